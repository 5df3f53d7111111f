//! A program that uses the library and shows when it worked: it writes a line every two milliseconds, like a stamp.
//!
//! `worker STORE OWNER FILE [block] [hold] [warn]`; each line is `OWNER TERM PID BOOT_NANOSECONDS`. With `block` its work
//! never awaits, so the whole runtime stands still. With `hold` it ignores that it has to end, and with `warn` the library
//! only warns about that. SIGTERM makes it leave.

mod line;

use leaderrun::{Leadership, Member, Overrun};
use std::fs::File;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

const PAUSE: Duration = Duration::from_millis(2);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    leaderrun::internals::observe::log::begin("worker", leaderrun::internals::observe::log::Format::Text, 1, false);
    let mut words = std::env::args().skip(1);
    let mut next = || words.next().expect("STORE OWNER FILE");
    let (store, owner, path) = (next(), next(), next());
    let flags: Vec<String> = words.collect();
    let has = |flag: &str| flags.iter().any(|word| word == flag);
    let (block, hold) = (has("block"), has("hold"));
    let seconds = Duration::from_secs;
    let builder = Member::builder(store, "shard").lease(seconds(6)).renew(seconds(1)).kill_after(seconds(1));
    let builder = builder.retry(seconds(1)).owner(owner.clone());
    let builder = if has("warn") { builder.on_overrun(Overrun::Warn) } else { builder };
    let member = builder.join().await.expect("the store can be opened");
    let mut asked = signal(SignalKind::terminate()).expect("signals can be heard");
    let file = File::options().append(true).create(true).open(path).expect("the file can be written");
    let work = |leadership: Leadership| {
        let (owner, mut file) = (owner.clone(), file.try_clone().expect("a descriptor"));
        async move {
            let term = leadership.term().to_string();
            loop {
                line::append(&mut file, &owner, &term).expect("the file can be written");
                if block {
                    std::thread::sleep(PAUSE);
                } else {
                    tokio::time::sleep(PAUSE).await;
                }
                if block && !hold && leadership.why_ending().is_some() {
                    return;
                }
            }
        }
    };
    if hold && !block {
        // Like run(), without an ear for the end.
        let leadership = member.leadership().await.expect("it leads");
        work(leadership).await;
    }
    tokio::select! {
        done = member.run(work) => done.expect("it leads"),
        _ = asked.recv() => {}
    }
    member.stop().await.expect("the lease can be given back");
}
