//! What operators and scripts are told, with real candidates and real servers. (That wrong words get one line and a status
//! of their own is in tests/cli.)

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod balance;
mod forget;
mod steer;
mod verbs;
mod why;

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, channel};
use support::prelude::*;
use support::squatting::{NOBODY, Squatter};

impl Place {
    /// Runs a script under leaderrun. In it `$leaderctl` is the program, and `$out` the scratch directory.
    fn lead(&self, script: &str) -> Process {
        self.lead_as("shard", script)
    }

    fn lead_as(&self, shard: &str, script: &str) -> Process {
        let mut command = leaderrun();
        command.args(["-q", "--store", &self.url, "--lease", "20s", "--renew", "1s", "--kill-after", "8s"]);
        match shard.strip_suffix("#1") {
            Some(parent) => command.args(["--slots", "1", parent, "-c", script]),
            None => command.args([shard, "-c", script]),
        };
        command.envs(self.environment.iter().copied());
        command.env("out", self.fleet.scratch.path()).env("leaderctl", env!("CARGO_BIN_EXE_leaderctl"));
        Process::start(command.stdin(Stdio::null()))
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

struct Lines {
    _child: Process,
    lines: Receiver<String>,
}

impl Lines {
    fn of(mut command: Command) -> Self {
        let mut child = Process::start(command.stdout(Stdio::piped()));
        let out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { _child: child, lines }
    }

    #[track_caller]
    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
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
    wait_until(wait, || verify(&["--term", &term]).code == 0);
    for other in [&*earlier, "1"] {
        verify(&["--term", other]).refused(79, "does not lead: ");
    }
    if place.server.is_some() {
        let answer = verify(&["--term", &term, "--for", "1h", "--json"]).ended(79).json();
        assert_eq!((&answer["verified"], &answer["told_by"]), (&Value::Bool(false), &"store".into()), "{answer}");
        assert!(answer["seconds_left"].as_f64().is_some_and(|left| left > 0.0 && left < 60.0), "{answer}");
    }
    leader.stops();
    verify(&["--term", &term]).ended(79);
}

/// It needs no store for that: COMMAND does not even know where the store is. So it needs no configuration file either.
fn verify_within_command_asks_the_candidate(place: &Place) {
    let script = r#"
        trap '"$leaderctl" verify 2> "$out/then.new"; echo "status $?" >> "$out/then.new"; mv "$out/then.new" "$out/then"; exit' TERM
        LEADERRUN_CONFIG="$out" "$leaderctl" verify --json > "$out/now"
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
    leader.stops();
    assert_eq!(place.read("then"), "status 0");
}

fn wait_returns_when_it_is_so_and_gives_up_in_time(place: &Place) {
    // A machine that is busy may answer late.
    let waits_for = |words: &[&str]| place.ctl(&[&["--request-timeout", "30s", "wait"], words].concat());
    let waits = Lines::of(waits_for(&["shard", "--led"]));
    let leader = place.lead(STEADY);
    let term = place.read("term");
    let line = waits.next();
    // A record may tell its term a little later than its owner.
    let tells_term = !line.contains("(term ") || line.contains(&format!("(term {term})"));
    assert!(line.starts_with("shard: led by ") && tells_term, "{line}");
    let gives_up = || place.ask(&["wait", "shard", "--free", "--timeout", "1s"]);
    let mut said = gives_up();
    // It says so where the first look takes longer than that.
    wait_until("the store answers in time", || {
        if said.code == 69 {
            said = gives_up();
        }
        said.code != 69
    });
    said.ended(75).tells("shard: still led by ");
    let waits = Lines::of(waits_for(&["shard", "--free", "--json"]));
    leader.stops();
    let status: Value = serde_json::from_str(&waits.next()).unwrap();
    assert_eq!((&status["held"], &status["shard"]), (&false.into(), &"shard".into()), "{status}");
    assert_eq!(waits_for(&["shard", "--free"]).said().good(), "shard: nobody leads\n");
}

fn a_prefix_pauses_and_resumes_each_known_shard(place: &Place) {
    let first = place.lead_as("nc/prod", STEADY);
    place.read("term");
    let second = place.lead_as("nc/work#1", &STEADY.replace("term", "slot"));
    place.read("slot");
    let other = place.lead_as("other", &STEADY.replace("term", "other"));
    place.read("other");
    let said = place.order(&["pause", "--prefix", "nc/", "--reason", "upgrade", "--wait"]);
    let lines: Vec<&str> = said.lines().collect();
    let paused =
        ["nc/prod", "nc/work", "nc/work#1"].map(|shard| format!("{shard}: paused until it is resumed; nobody leads"));
    assert_eq!(lines[..3], paused, "{said}");
    assert_eq!(lines[3..], ["paused 3 shards whose names begin with \"nc/\""]);
    let status = place.object(&["status", "--json", "other"]);
    assert!(status["held"] == true && status["paused"] == false, "{status}");

    // What is paused already stays as it is, and the others follow.
    place.order(&["resume", "nc/prod"]);
    let said = place.ask(&["pause", "--prefix", "nc/"]).ended(75);
    assert_eq!(said.err.matches("already paused by ").count(), 2, "{said:?}");
    assert!(said.out.starts_with("nc/prod: paused "), "{said:?}");
    assert!(said.out.ends_with("paused 1 of 3 shards whose names begin with \"nc/\"\n"), "{said:?}");
    let shards = place.objects(&["resume", "--prefix", "nc/", "--json"]);
    assert!(shards.len() == 3 && shards.iter().all(|shard| shard["paused"] == false), "{shards:?}");
    let told = place.order(&["resume", "--prefix", "nc/"]);
    assert!(told.ends_with("resumed 0 of 3 shards whose names begin with \"nc/\"\n"), "{told}");
    for verb in ["pause", "resume"] {
        let said = place.ask(&[verb, "--prefix", "nobody/"]).ended(66);
        assert_eq!(said.err, "leaderctl: no shard is known whose name begins with \"nobody/\"\n");
    }
    for leader in [first, second, other] {
        leader.stops();
    }
}

fn check_as_json_has_a_line_for_each_finding(place: &Place) {
    let text = place.ask(&["store", "check"]);
    let json = place.ask(&["store", "check", "--json"]).ended(text.code);
    let findings = objects(&json.out);
    assert!(!findings.is_empty() && text.out.lines().count() == findings.len(), "{text:?} {json:?}");
    for (line, finding) in text.out.lines().zip(findings) {
        let members: Vec<&String> = finding.as_object().unwrap().keys().collect();
        assert_eq!(members, ["text", "verdict"], "{finding}");
        let verdict = finding["verdict"].as_str().unwrap();
        assert!(["good", "doubtful", "bad"].contains(&verdict) && line.starts_with(verdict), "{line} {finding}");
        assert!(finding["text"].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
    }
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
    first.stops();
    assert!(lines.next().ends_with(" shard: free"));
    second.stops();
    assert!(lines.next().ends_with(" later/on: free"));
}

fn only_a_store_without_records_is_new(place: &Place) {
    let said = place.order(&["store", "init", "--new"]);
    assert!(said.ends_with("recorded that the store is new: the first command starts at once\n"), "{said}");
    let leader = place.lead(STEADY);
    place.read("term");
    leader.stops();
    let said = place.ask(&["store", "init", "--new"]).ended(78);
    assert_eq!(said.err, "leaderctl: the store is not new: it has a record of shard: leave --new out\n");
    place.order(&["store", "init"]);
}

on_two_stores!(
    &verify_tells_whether_a_term_leads,
    &verify_within_command_asks_the_candidate,
    &wait_returns_when_it_is_so_and_gives_up_in_time,
    &watch_of_all_tells_of_shards_that_are_yet_to_come,
    &a_prefix_pauses_and_resumes_each_known_shard,
    &check_as_json_has_a_line_for_each_finding,
    &only_a_store_without_records_is_new,
);

#[test]
fn a_candidate_that_is_frozen_or_gone_verifies_nothing() {
    let place = Place::local();
    let leader = place.lead(TELLING);
    let told = place.told();
    let verify = || verify_as_told(&told, LEADERCTL);
    verify().good();
    kill(leader.pid(), Signal::SIGSTOP).unwrap();
    verify().ended(69);
    kill(leader.pid(), Signal::SIGCONT).unwrap();
    wait_until("it answers again", || verify().code == 0);
    drop(leader);
    verify().ended(69).tells("name a store to ask it instead");
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
    leader.stops();
    while !lines.next().ends_with("shard: free") {}
    assert_eq!(said().lines().count(), 1, "{}", said());
}

/// A store that is asked for news of a free shard reports at once that it is free.
#[test]
#[cfg(feature = "redis")]
fn a_shard_that_nobody_leads_is_checked_every_two_seconds() {
    use support::server::Server as _;
    let server = support::redis::Server::start();
    for words in [&["watch", "shard"][..], &["wait", "shard"]] {
        let before = server.scripts_run();
        let mut command = support::fleet::leaderctl();
        command.args(["--store", &server.own_url()]).args(words).stdout(Stdio::null()).stderr(Stdio::null());
        let _waits = Process::start(&mut command);
        wait_until("it has asked", || server.scripts_run() > before);
        let before = server.scripts_run();
        std::thread::sleep(std::time::Duration::from_secs(7));
        // Each time for the shard and its slots or its orders; at the beginning, also whether it is known.
        let asked = server.scripts_run() - before;
        assert!((3..=30).contains(&asked), "{words:?}: {asked}");
    }
}

/// Writes down what COMMAND is told, and goes on.
const TELLING: &str = r#"env | grep ^LEADERRUN_ > "$out/told.new"; mv "$out/told.new" "$out/told"; exec sleep 1000"#;

impl Place {
    fn told(&self) -> Vec<(String, String)> {
        let told = self.read("told");
        told.lines().filter_map(|line| line.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
    }
}

fn value<'a>(told: &'a [(String, String)], name: &str) -> &'a str {
    &told.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}: {told:?}")).1
}

/// What the candidate answers to somebody who connects without a name, as people may.
fn statement(told: &[(String, String)]) -> String {
    use std::os::linux::net::SocketAddrExt;
    let name = std::os::unix::net::SocketAddr::from_abstract_name(value(told, "LEADERRUN_SOCKET")).unwrap();
    let mut text = String::new();
    std::os::unix::net::UnixStream::connect_addr(&name).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn verify_as_told(told: &[(String, String)], program: &str) -> Said {
    let mut command = Command::new(program.split(' ').next().unwrap());
    command.args(program.split(' ').skip(1)).args(["verify", "--json"]);
    command.env("LEADERRUN_CONFIG", "/dev/null").envs(told.iter().map(|(name, value)| (name, value)));
    command.said()
}

const LEADERCTL: &str = env!("CARGO_BIN_EXE_leaderctl");

#[test]
fn who_answers_in_the_place_of_a_candidate_that_was_killed_is_not_believed() {
    // Another user, and somebody of the candidate's own who was not told what its COMMAND was.
    for user in [NOBODY, 0] {
        let place = Place::local();
        let leader = place.lead(TELLING);
        let told = place.told();
        verify_as_told(&told, LEADERCTL).good();
        let statement = statement(&told);
        drop(leader);
        // It says what the candidate said.
        let _squatter = Squatter::start(user, &statement, &[value(&told, "LEADERRUN_SOCKET").to_owned()]);
        verify_as_told(&told, LEADERCTL).refused(69, "another process has taken its place");
        // The store knows better.
        let store = verify_as_told(&told, &format!("{LEADERCTL} --store {}", place.url)).ended(79);
        assert_eq!(store.json()["told_by"], "store", "{store:?}");
    }
}

/// Where the candidate has no number.
#[test]
fn verify_believes_the_candidate_in_other_namespaces() {
    let place = Place::local();
    let leader = place.lead(TELLING);
    let told = place.told();
    for namespace in ["--pid --fork", "--pid --fork --mount-proc", "--user --map-root-user --pid --fork"] {
        verify_as_told(&told, &format!("unshare {namespace} {LEADERCTL}")).good();
    }
    leader.stops();
}

#[test]
fn who_connects_to_a_candidate_without_a_name_is_answered_with_one_object() {
    let place = Place::local();
    let leader = place.lead(TELLING);
    let mut told = place.told();
    let text = statement(&told);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&answer["pid"], &answer["shard"]), (&leader.pid().as_raw().into(), &"shard".into()), "{answer}");
    assert!(!told.iter().any(|(name, key)| name.ends_with("_KEY") && text.contains(key)), "{text}");
    // Without the key nobody is believed.
    told.retain(|(name, _)| !name.ends_with("_KEY"));
    verify_as_told(&told, LEADERCTL).refused(64, "no store named; this runs inside a leadership");
    leader.stops();
}
