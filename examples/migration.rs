//! Every replica updates the schema before it serves, and no two replicas do so at once.
//!
//! `cargo run --example migration [STORE [DATABASE]]`, where the database is a file that lists the completed steps.

use leaderrun::{Leadership, Member};
use std::time::Duration;
use std::{fs, io};

const STEPS: [&str; 3] = ["create table users", "add column email", "create index on email"];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let store = words.next().or_else(|| std::env::var("LEADERRUN_STORE").ok());
    let database = words.next().unwrap_or("/tmp/leaderrun-examples.schema".into());
    let member =
        Member::builder(store.unwrap_or("file:/tmp/leaderrun-examples".into()), "examples/migration").join().await?;
    let taken = member.run(|leadership| migrate(leadership, database.clone())).await??;
    // The lease is released, so the next replica can lead.
    member.stop().await?;
    println!("took {taken} steps; serving");
    Ok(())
}

/// May be dropped between two steps, so it first reads which steps are done.
async fn migrate(leadership: Leadership, database: String) -> io::Result<usize> {
    let done = fs::read_to_string(&database).unwrap_or_default();
    let missing = STEPS.get(done.lines().count()..).unwrap_or_default();
    for step in missing {
        println!("term {}: {step}", leadership.term());
        tokio::time::sleep(Duration::from_millis(200)).await;
        let so_far = fs::read_to_string(&database).unwrap_or_default();
        fs::write(&database, format!("{so_far}{step}\n"))?;
    }
    Ok(missing.len())
}
