//! A service with several replicas, one of which does the work in the background.
//!
//! `cargo run --example background_job [STORE]`; start it in several terminals, and stop one with Ctrl-C.

use leaderrun::{Leadership, Member};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::args().nth(1).or_else(|| std::env::var("LEADERRUN_STORE").ok());
    let member =
        Member::builder(store.unwrap_or("file:/tmp/leaderrun-examples".into()), "examples/background").join().await?;
    println!("{} waits", member.owner());
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        stopped = member.run(work) => stopped?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        // As service managers and containers stop a program.
        _ = terminated.recv() => {}
    }
    // The work has been dropped, so the next replica leads at once.
    Ok(member.stop().await?)
}

/// Runs until it is dropped at its `await`, when this replica no longer leads.
async fn work(leadership: Leadership) {
    for pass in 1.. {
        println!("term {}: pass {pass}", leadership.term());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
