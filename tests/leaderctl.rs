//! What operators and scripts are told, with real candidates and real servers. (That wrong words get one line and a status
//! of their own is in tests/cli.rs.)

#[macro_use]
mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use support::fleet::{PATIENCE, leaderctl, leaderrun, wait_until, wait_until_or};
use support::place::Place;

impl Place {
    /// Runs a script under leaderrun. In it `$leaderctl` is the program, and `$out` the scratch directory.
    fn lead(&self, script: &str) -> Candidate {
        self.lead_as("shard", script)
    }

    fn lead_as(&self, shard: &str, script: &str) -> Candidate {
        let mut command = leaderrun();
        command.args(["-q", "--store", &self.url, "--lease", "20s", "--renew", "1s", "--grace", "8s"]);
        command.args([shard, "-c", script]);
        command.envs(self.environment.iter().copied());
        command.env("out", self.fleet.scratch.path()).env("leaderctl", env!("CARGO_BIN_EXE_leaderctl"));
        Candidate(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn ask(&self, words: &[&str]) -> Output {
        self.ctl(words).output().unwrap()
    }

    /// What a script has written there, once it has.
    fn read(&self, name: &str) -> String {
        let path = self.path(name);
        let mut text = String::new();
        let explain = || format!("{name}: {:?}", fs::read_to_string(&path));
        wait_until_or("a script has written", explain, || {
            text = fs::read_to_string(&path).unwrap_or_default();
            text.ends_with('\n')
        });
        text.trim().to_owned()
    }
}

struct Candidate(Child);

impl Candidate {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).expect("fits"))
    }

    fn end(mut self) {
        let _ = kill(self.pid(), Signal::SIGTERM);
        self.0.wait().unwrap();
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines of a program that goes on.
struct Lines {
    child: Child,
    lines: Receiver<String>,
}

impl Lines {
    fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines }
    }

    #[track_caller]
    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Leads until it is asked to end.
const STEADY: &str = r#"echo "$LEADERRUN_TERM" > "$out/term.new"; mv "$out/term.new" "$out/term"; exec sleep 1000"#;

fn verify_tells_whether_a_term_leads(place: &Place) {
    let leader = place.lead(STEADY);
    let term = place.read("term");
    let earlier = (term.parse::<u64>().unwrap() - 1).to_string();
    let verify = |words: &[&str]| place.ask(&[&["verify", "shard"], words].concat());
    let wait = "the store tells the term";
    wait_until(wait, || verify(&["--term", &term]).status.code() == Some(0));
    for (words, words_of_it) in [(&["--term", &earlier][..], "does not lead: "), (&["--term", "1"], "does not lead: ")]
    {
        let output = verify(words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(79), "{words:?}: {said}");
        assert!(said.contains(words_of_it) && said.lines().count() == 1 && output.stdout.is_empty(), "{said}");
    }
    if place.server.is_some() {
        let output = verify(&["--term", &term, "--for", "1h", "--json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(79));
        assert_eq!((&answer["verified"], &answer["told_by"]), (&Value::Bool(false), &"store".into()), "{answer}");
        assert!(answer["seconds_left"].as_f64().is_some_and(|left| left > 0.0 && left < 60.0), "{answer}");
    }
    leader.end();
    let output = verify(&["--term", &term]);
    assert_eq!(output.status.code(), Some(79), "{output:?}");
}

/// It needs no store for that: COMMAND does not even know where the store is.
fn verify_within_command_asks_the_candidate(place: &Place) {
    let script = r#"
        trap '"$leaderctl" verify 2> "$out/then.new"; echo "status $?" >> "$out/then.new"; mv "$out/then.new" "$out/then"; exit' TERM
        "$leaderctl" verify --json > "$out/now"
        "$leaderctl" verify --for 1h 2> "$out/long.new"; echo "status $?" >> "$out/long.new"; mv "$out/long.new" "$out/long"
        while :; do sleep 0.05; done"#;
    let leader = place.lead(script);
    let now: Value = serde_json::from_str(&place.read("now")).unwrap();
    assert_eq!((&now["verified"], &now["told_by"]), (&Value::Bool(true), &"candidate".into()), "{now}");
    let long = place.read("long");
    if place.server.is_none() {
        assert!(now["seconds_left"].is_null(), "{now}");
        assert_eq!(long, "status 0", "a lease that does not expire lasts for an hour");
    } else {
        assert!(now["seconds_left"].as_f64().is_some_and(|left| left > 0.0 && left < 20.0), "{now}");
        assert!(long.contains("does not lead for long enough") && long.ends_with("status 79"), "{long}");
    }
    // An orderly stop holds the lease until COMMAND has ended.
    leader.end();
    assert_eq!(place.read("then"), "status 0");
}

fn watch_tells_of_each_leader(place: &Place) {
    let first = place.lead(STEADY);
    let term = place.read("term");
    let lines = Lines::of(place.ctl(&["watch", "shard"]));
    let mut line = lines.next();
    assert!(line.contains(" shard: led by "), "{line}");
    let second = place.lead(&STEADY.replace("term", "next"));
    first.end();
    let next = place.read("next");
    assert!(next.parse::<u64>().unwrap() > term.parse::<u64>().unwrap());
    // A record may tell its term a little later than its owner, and that is no news.
    let owner = format!("-{}-", second.pid());
    // It may have seen that it was free in between.
    while !line.contains(&owner) {
        line = lines.next();
        let told = line.ends_with("shard: free") || line.contains("shard: led by ");
        assert!(told && line.starts_with("20"), "{line}");
    }
    second.end();
    assert!(lines.next().ends_with("shard: free"));
}

fn watch_of_all_tells_of_shards_that_are_yet_to_come(place: &Place) {
    let first = place.lead(STEADY);
    let term = place.read("term");
    let lines = Lines::of(place.ctl(&["watch"]));
    let line = lines.next();
    assert!(line.starts_with("20") && line.contains(" shard: led by ") && line.contains(&term), "{line}");
    let second = place.lead_as("later/on", &STEADY.replace("term", "next"));
    // It leads.
    place.read("next");
    let mut line = lines.next();
    // A record may tell its term a little later than its owner, and that is no news.
    let owner = format!("-{}-", second.pid());
    while !line.contains(&owner) {
        assert!(line.contains(" later/on: "), "{line}");
        line = lines.next();
    }
    assert!(line.contains(" later/on: led by "), "{line}");
    first.end();
    assert!(lines.next().ends_with(" shard: free"));
    second.end();
    assert!(lines.next().ends_with(" later/on: free"));
}

everywhere!(
    &verify_tells_whether_a_term_leads,
    &verify_within_command_asks_the_candidate,
    &watch_tells_of_each_leader,
    &watch_of_all_tells_of_shards_that_are_yet_to_come,
);

#[test]
fn a_candidate_that_is_frozen_or_gone_verifies_nothing() {
    let place = Place::local();
    let script = r#"echo "$LEADERRUN_SOCKET $LEADERRUN_TERM" > "$out/told.new"; mv "$out/told.new" "$out/told"; exec sleep 1000"#;
    let leader = place.lead(script);
    let told = place.read("told");
    let (socket, term) = told.split_once(' ').unwrap();
    let verify = || {
        let mut command = leaderctl();
        command.env("LEADERRUN_SHARD", "shard").env("LEADERRUN_SOCKET", socket).env("LEADERRUN_TERM", term);
        command.arg("verify").output().unwrap()
    };
    assert_eq!(verify().status.code(), Some(0));
    kill(leader.pid(), Signal::SIGSTOP).unwrap();
    let frozen = verify();
    assert_eq!(frozen.status.code(), Some(69), "{frozen:?}");
    kill(leader.pid(), Signal::SIGCONT).unwrap();
    wait_until("it answers again", || verify().status.code() == Some(0));
    drop(leader);
    let gone = verify();
    assert_eq!(gone.status.code(), Some(69), "{gone:?}");
    assert!(String::from_utf8_lossy(&gone.stderr).contains("name the store to ask that"), "{gone:?}");
}

/// The lease is gone for certain, and the tree has its grace to end: whatever it does now, it does without a lease.
#[test]
#[cfg(feature = "redis")]
fn verify_within_a_command_that_is_stopped_because_the_lease_is_lost_says_no() {
    let mut place = Place::remote(Box::new(support::redis::Server::start()));
    let script = r#"
        trap '"$leaderctl" verify 2> "$out/then.new"; echo "status $?" >> "$out/then.new"; mv "$out/then.new" "$out/then"; exit' TERM
        echo > "$out/up"; while :; do sleep 0.05; done"#;
    let _leader = place.lead(script);
    place.read("up");
    place.server.as_mut().unwrap().remove_lock("shard");
    let then = place.read("then");
    assert!(then.contains("it is being stopped") && then.ends_with("status 79"), "{then}");
}

#[test]
fn watch_as_json_prints_the_objects_of_status_and_ends_when_nobody_reads() {
    let place = Place::local();
    let leader = place.lead(STEADY);
    place.read("term");
    let lines = Lines::of(place.ctl(&["watch", "--json", "shard"]));
    let object: Value = serde_json::from_str(&lines.next()).unwrap();
    assert_eq!((&object["shard"], &object["held"]), (&"shard".into(), &Value::Bool(true)));
    let mut child = place.ctl(&["watch", "shard"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    leader.end();
    let object: Value = serde_json::from_str(&lines.next()).unwrap();
    assert_eq!(object["held"], false);
    wait_until("it has ended", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
}

#[test]
#[cfg(feature = "redis")]
fn watch_goes_on_when_the_store_was_away() {
    let mut place = Place::remote(Box::new(support::redis::Server::start()));
    let leader = place.lead(STEADY);
    let term = place.read("term");
    let errors = place.path("errors");
    let mut command = place.ctl(&["watch", "shard"]);
    command.stderr(fs::File::create(&errors).unwrap());
    let lines = Lines::of(command);
    assert!(lines.next().contains(&term));
    let said = || fs::read_to_string(&errors).unwrap();
    place.server.as_mut().unwrap().kill();
    wait_until("it says that the store is away", || said().contains("; retrying"));
    place.server.as_mut().unwrap().start_again();
    leader.end();
    while !lines.next().ends_with("shard: free") {}
    assert_eq!(said().lines().count(), 1, "{}", said());
}
