//! `leaderctl serve` over many shards with histories: how soon it knows them, how long its answers take, and how much
//! memory it has.

use super::list::{fill, highest};
use super::requests::Counted;
use super::support::fleet::leaderctl;
use super::support::ports::free_port;
use leaderrun::internals::election::{Ended, Loss};
use leaderrun::internals::lease::Term;
use leaderrun::internals::notes::history::Entry;
use leaderrun::internals::store::{Location, Note, Page};
use leaderrun::internals::time::wall_clock_millis;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const HEAD: &str = "| store | shards | requests | leases known after | notes known after | / | / with all rows | /metrics | \
                        /api/shards | length of /metrics | most memory |";

/// Leaderships in each history.
const LEADERSHIPS: u64 = 8;

pub fn measure(store: &str, counted: &mut Counted, number: usize) -> String {
    eprintln!("filling: {store}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        fill(counted, number).await;
        histories(counted, number).await;
    });
    drop(runtime);
    let (port, asked) = (free_port(), counted.asked());
    let mut command = leaderctl();
    command.args(["--store", &counted.url(), "serve", "--listen", &format!("127.0.0.1:{port}")]);
    command.envs(counted.server.environment().iter().copied()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let mut child = command.spawn().expect("leaderctl starts");
    let until = |path: &str, wanted: &str, count: usize| {
        while get(port, path).matches(wanted).count() < count {
            sleep(Duration::from_millis(20));
        }
        begun.elapsed()
    };
    let leases = until("/metrics", "leaderrun_shard_led{", number);
    let notes = until("/metrics", "leaderrun_shard_paused_seconds{", number);
    let requests = counted.asked() - asked;
    let took = |path: &str| {
        let timed = || {
            let begun = Instant::now();
            assert!(get(port, path).len() > 1000, "{path}");
            begun.elapsed()
        };
        (0..5).map(|_| timed()).min().expect("more than none").as_millis()
    };
    let times = ["/", "/?all=1", "/metrics", "/api/shards"].map(took).map(|time| format!("{time} ms")).join(" | ");
    let length = get(port, "/metrics").len();
    let memory = highest(&format!("/proc/{}/status", child.id())).expect("it runs");
    child.kill().expect("it can be killed");
    child.wait().expect("it can be waited for");
    format!(
        "| {store} | {number} | {requests} | {:.1} s | {:.1} s | {times} | {:.1} MiB | {:.0} MiB |",
        leases.as_secs_f64(),
        notes.as_secs_f64(),
        f64::from(u32::try_from(length).expect("some megabytes")) / super::MIB,
        f64::from(memory) / 1024.0
    )
}

async fn histories(counted: &Counted, number: usize) {
    let location = Location::from_url(&counted.url()).expect("a URL");
    let store = location.open(Duration::from_secs(20)).await.expect("it opens");
    let now = wall_clock_millis();
    for number in 0..number {
        let at = |step: u64| now - (LEADERSHIPS - step) * 600_000;
        let entry = |step: u64| {
            let host = format!("host-{}.example.com", step % 100);
            let mut entry = Entry::begun(Term(step + 1), format!("{host}-{number}"), host, 7, at(step));
            entry.close(at(step + 1) - 5_000, &Ended::Lost(Loss::DeadlinePassed), None);
            entry
        };
        let text = serde_json::to_string(&(0..LEADERSHIPS).map(entry).collect::<Vec<_>>()).expect("plain data");
        let shard = format!("many/shard-{number:05}").parse().expect("a shard");
        let written = store.replace(&shard, &Page::History, None, Some(&Note::for_ever(text))).await;
        assert_eq!(written, Ok(true));
    }
}

fn get(port: u16, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    let mut text = String::new();
    let asked = stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    asked.and_then(|()| stream.read_to_string(&mut text)).map_or(String::new(), |_| text)
}
