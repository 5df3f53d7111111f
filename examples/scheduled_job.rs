//! A job that one replica runs every full minute, if enough of its lease is left to complete it.
//!
//! `cargo run --example scheduled_job [STORE [SECONDS]]`

use leaderrun::{Leadership, Member};
use std::num::NonZeroU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};

/// The longest that the job takes.
const MOST: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let store = words.next().or_else(|| std::env::var("LEADERRUN_STORE").ok());
    let every: NonZeroU64 = words.next().as_deref().unwrap_or("60").parse()?;
    let member =
        Member::builder(store.unwrap_or("file:/tmp/leaderrun-examples".into()), "examples/schedule").join().await?;
    println!("{} waits", member.owner());
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        stopped = member.run(|leadership| keep_schedule(leadership, every)) => stopped?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        // As service managers and containers stop a program.
        _ = terminated.recv() => {}
    }
    Ok(member.stop().await?)
}

async fn keep_schedule(leadership: Leadership, every: NonZeroU64) {
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let slot = now.as_secs() / every + 1;
        tokio::time::sleep(Duration::from_secs(slot * every.get()) - now).await;
        // The sleep may have taken too long.
        if leadership.remaining() > MOST {
            println!("term {}: slot {slot}", leadership.term());
        }
    }
}
