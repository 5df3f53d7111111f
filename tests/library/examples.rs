//! The examples, as somebody would try them: two of each.

use crate::support::fleet::{example_program, wait_until_or};
use crate::support::process::Process;
use crate::{LEASE, Place};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The examples' leases are the default ones, of 15 s, and renewed every 5 s: what is sooner has not waited for the end of one.
const SOON: Duration = Duration::from_secs(10);

struct Example {
    child: Process,
    said: PathBuf,
}

impl Example {
    fn start(place: &Place, example: &str, name: &str, arguments: &[&str]) -> Self {
        let said = place.fleet.scratch.path().join(format!("{name}.said"));
        let mut command = Command::new(example_program(example));
        command.arg(&place.url).args(arguments).env_remove("LEADERRUN_STORE").stdin(Stdio::null());
        command.stdout(fs::File::create(&said).unwrap());
        Self { child: Process::start(&mut command), said }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    fn says(&self, what: &str) {
        wait_until_or(&format!("it says {what}"), || self.said(), || self.said().contains(what));
    }
}

/// One that works, and the other.
fn leader_and_standby(one: Example, other: Example, works: impl Fn(&Example) -> bool) -> (Example, Example) {
    wait_until_or("one of them works", String::new, || works(&one) || works(&other));
    if works(&one) { (one, other) } else { (other, one) }
}

#[test]
fn a_background_job_runs_once() {
    let place = Place::local();
    let start = |name| Example::start(&place, "background_job", name, &[]);
    let works = |example: &Example| example.said().contains("pass 3");
    let (mut leader, other) = leader_and_standby(start("one"), start("two"), works);
    assert!(!other.said().contains("pass"), "{}", other.said());
    leader.child.signal(Signal::SIGINT);
    let begun = Instant::now();
    assert!(leader.child.ends().success());
    other.says("pass 1");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let mut third = start("three");
    drop(other);
    third.says("pass 1");
    third.child.signal(Signal::SIGTERM);
    assert!(third.child.ends().success());
}

fn health(replica: &Example) -> Option<(u16, String)> {
    let said = replica.said();
    let mut stream = TcpStream::connect(said.trim().strip_prefix("listening on ")?).ok()?;
    stream.set_read_timeout(Some(LEASE)).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
}

#[test]
fn a_health_endpoint_says_who_leads() {
    let place = Place::local();
    let start = |name| Example::start(&place, "health_endpoint", name, &["127.0.0.1:0"]);
    let leads = |example: &Example| health(example).is_some_and(|(status, _)| status == 200);
    // One after the other: on `file:` a standby that is refused before the leader's record is written is not told of it.
    let mut leader = start("one");
    wait_until_or("the first one leads", String::new, || leads(&leader));
    let other = start("two");
    wait_until_or(
        "the other one knows who leads",
        String::new,
        || matches!(health(&other), Some((503, says)) if says.contains(&leader.child.id().to_string())),
    );
    leader.child.signal(Signal::SIGTERM);
    assert!(leader.child.ends().success());
    wait_until_or("the other one leads", String::new, || leads(&other));
}
