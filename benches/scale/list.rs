//! `leaderctl list` over many leases: how soon its first line is there, and its last, and how much memory it takes.

use super::requests::Counted;
use super::support::fleet::leaderctl;
use leaderrun::internals::lease::{Candidate, Session};
use leaderrun::internals::store::{Claim, Location, Store};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const HEAD: &str = "| store | leases | filled in | requests | list: first line | last line | list --json: first line | \
                        last line | most memory |";

/// So many clients fill a store, each with so many claims at once.
const CLIENTS: usize = 4;
const AT_ONCE: usize = 8;
/// The best of so many.
const TRIES: u64 = 3;

pub fn measure(store: &str, counted: &mut Counted, number: usize) -> String {
    eprintln!("filling: {store}");
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(fill(counted, number));
    let filled = begun.elapsed();
    drop(runtime);
    let asked = counted.asked();
    let plain = best(counted, &[], number + 1);
    let requests = (counted.asked() - asked) / TRIES;
    let json = best(counted, &["--json"], number);
    let millis = |time: Duration| format!("{} ms", time.as_millis());
    format!(
        "| {store} | {number} | {:.0} s | {requests} | {} | {} | {} | {} | {:.0} MiB |",
        filled.as_secs_f64(),
        millis(plain.first),
        millis(plain.last),
        millis(json.first),
        millis(json.last),
        f64::from(plain.memory.max(json.memory)) / 1024.0
    )
}

pub async fn fill(counted: &Counted, number: usize) {
    let url = counted.url();
    // What DynamoDB's client needs is in our own environment: tests/support/environment.sh.
    let mut claims = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let location = Location::from_url(&url).expect("a URL");
        let store = location.open(Duration::from_secs(20)).await.expect("it opens");
        for lane in 0..AT_ONCE {
            let store: Arc<dyn Store> = Arc::clone(&store);
            claims.spawn(async move {
                for number in (client * AT_ONCE + lane..number).step_by(CLIENTS * AT_ONCE) {
                    claim(&*store, number).await;
                }
            });
        }
    }
    claims.join_all().await;
}

async fn claim(store: &dyn Store, number: usize) {
    let candidate = Candidate {
        shard: format!("many/shard-{number:05}").parse().expect("a shard"),
        owner: format!("host-{}.example.com-{number}", number % 100),
        session: Session::random().expect("random bytes"),
        host: format!("host-{}.example.com", number % 100),
        pid: 7,
        lease: Duration::from_hours(1),
    };
    let answer = store.claim(&candidate).await;
    assert!(matches!(answer, Ok(Claim::Granted(_))), "{answer:?}");
}

struct Listed {
    first: Duration,
    last: Duration,
    /// In kB.
    memory: u32,
}

fn best(counted: &Counted, words: &[&str], lines: usize) -> Listed {
    let tries = (0..TRIES).map(|_| list(counted, words, lines));
    tries.min_by_key(|listed| listed.last).expect("more than none")
}

fn list(counted: &Counted, words: &[&str], lines: usize) -> Listed {
    let mut command = leaderctl();
    command.args(["--store", &counted.url(), "list"]).args(words);
    command.envs(counted.server.environment().iter().copied()).stdout(Stdio::piped()).stderr(Stdio::null());
    let begun = Instant::now();
    let mut child = command.spawn().expect("leaderctl starts");
    let status = format!("/proc/{}/status", child.id());
    let peak = std::thread::spawn(move || {
        let mut peak = 0;
        while let Some(now) = highest(&status) {
            peak = peak.max(now);
            sleep(Duration::from_millis(5));
        }
        peak
    });
    let mut read = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    read.next().expect("a line").expect("text");
    let first = begun.elapsed();
    let count = 1 + read.inspect(|line| assert!(line.is_ok())).count();
    let last = begun.elapsed();
    assert!(child.wait().expect("it can be waited for").success());
    assert_eq!(count, lines);
    Listed { first, last, memory: peak.join().expect("it does not panic") }
}

/// The most memory that a process has had, in kB. None once it has ended.
pub fn highest(status: &str) -> Option<u32> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
