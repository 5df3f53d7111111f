//! What every verb says to programs: one object a line, which jq reads, with the members that leaderctl(1) tells of and no
//! others; and a status and one line, soon, where the store is away.

#[macro_use]
mod support;

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::fleet::wait_until;
use support::place::Place;
use support::world::TIMING;

impl Place {
    fn start(&mut self, owner: &str) {
        let flags = [&TIMING, &["-q", "--announce", "always", "--store", &self.url][..]].concat();
        self.fleet.start(owner, &flags, &[], self.environment);
    }

    /// What it prints where it succeeds.
    #[track_caller]
    fn told(&self, words: &[&str]) -> Vec<u8> {
        let output = self.ctl(words).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty(), "{words:?}: {output:?}");
        output.stdout
    }

    /// The first line of a verb that goes on.
    #[track_caller]
    fn first_line(&self, words: &[&str]) -> Vec<u8> {
        let mut child = self.ctl(words).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = Vec::new();
        BufReader::new(child.stdout.take().unwrap()).read_until(b'\n', &mut line).unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        assert!(!line.is_empty(), "{words:?}");
        line
    }
}

/// The types of the members of each object, as jq sees them. It ends with 0 only where it can read all.
#[track_caller]
fn read_by_jq(text: &[u8]) -> Vec<BTreeMap<String, String>> {
    let types = "map_values(if type == \"object\" then keys_unsorted | join(\" \") else type end)";
    let mut jq = Command::new("jq");
    jq.args(["-e", "-c", types]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut jq: Child = jq.spawn().expect("jq starts: apt install jq");
    jq.stdin.take().unwrap().write_all(text).unwrap();
    let Output { status, stdout, stderr } = jq.wait_with_output().unwrap();
    let (text, said) = (String::from_utf8_lossy(text), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "jq ends with {status}: {said}{text}");
    let objects: Vec<_> = stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    // Each is a line of its own.
    assert_eq!(objects.len(), text.lines().count(), "{text}");
    objects.into_iter().map(|object| serde_json::from_slice(object).unwrap()).collect()
}

/// leaderctl(1).
mod manual {
    use std::collections::BTreeMap;

    /// The types, and the members of an object, by the name of the member.
    pub type Members = BTreeMap<String, Vec<String>>;

    const PAGE: &str = include_str!("../man/leaderctl.1");

    /// The rows of the table in a section: `.It Va NAME Ta TYPE or TYPE Ta MEANING`, and after an object `.Va NAME` for
    /// each member.
    pub fn table(section: &str) -> Members {
        let (_, text) = PAGE.split_once(&format!("\n.Sh {section}\n")).expect("there is such a section");
        let (_, text) = text.split_once("\n.Bl -column").expect("it has a table");
        let (text, _) = text.split_once("\n.El").expect("the table ends");
        let mut members = Members::new();
        let mut last = String::new();
        for line in text.lines() {
            if let Some(row) = line.strip_prefix(".It Va ") {
                let mut cells = row.split(" Ta ");
                last = String::from(cells.next().expect("a name"));
                let types = cells.next().expect("types").split(" or ").map(str::to_owned).collect();
                members.insert(last.clone(), types);
            } else if let Some(name) = name(line) {
                let types = members.get_mut(&last).expect("a member");
                let object = types.iter_mut().find(|kind| kind.starts_with("object")).expect("it is an object");
                *object = format!("{object} {name}");
            }
        }
        members
    }

    /// What the verb's `--json` says: `.Va NAME` for each member.
    pub fn said_of(verb: &str) -> Vec<String> {
        let (_, text) = PAGE.split_once(&format!("\n.It Cm {verb} ")).expect("there is such a verb");
        let (_, text) = text.split_once("\n.It Fl -json\nPrint one JSON object").expect("it prints JSON");
        let (text, _) = text.split_once("\n.El").expect("the list ends");
        text.lines().filter_map(name).map(str::to_owned).collect()
    }

    fn name(line: &str) -> Option<&str> {
        line.strip_prefix(".Va ")?.split(' ').next()
    }
}

/// The members, with one of the types that the table has.
#[track_caller]
fn assert_as_in_table(text: &[u8], members: &manual::Members) {
    for object in read_by_jq(text) {
        let (names, documented): (Vec<_>, Vec<_>) = (object.keys().collect(), members.keys().collect());
        assert_eq!(names, documented);
        for (name, kind) in object {
            let fits = |allowed: &String| *allowed == kind || allowed.strip_prefix("object ") == Some(&kind);
            assert!(members[&name].iter().any(fits), "{name}: {kind}, not {:?}", members[&name]);
        }
    }
}

#[track_caller]
fn assert_as_said_of(verb: &str, text: &[u8]) {
    let documented = manual::said_of(verb);
    assert!(documented.len() > 3, "{documented:?}");
    for object in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        // The order is ours to choose, and that of the manual.
        let object: Map<String, Value> = serde_json::from_slice(object).unwrap();
        let mut names: Vec<_> = object.keys().cloned().collect();
        let mut documented = documented.clone();
        names.sort();
        documented.sort();
        assert_eq!(names, documented, "{verb}");
    }
    read_by_jq(text);
}

fn jq_reads_what_every_verb_says_and_finds_what_the_manual_tells(mut place: Place) {
    let with_orders = manual::table("STATUS AS JSON");
    let mut without = with_orders.clone();
    without.retain(|name, _| {
        !["led_slots", "paused", "pause", "parent_pause", "handover", "last_run", "waiting"].contains(&name.as_str())
    });
    assert_eq!(with_orders.len(), without.len() + 7);
    let full = |place: &Place, words: &[&str]| assert_as_in_table(&place.told(words), &with_orders);

    full(&place, &["status", "--json", "nobody/ever/led"]);
    for owner in ["c0", "c1"] {
        place.start(owner);
    }
    let leader = place.fleet.leader();
    let term = leader.term.to_string();
    full(&place, &["status", "--json", "shard"]);
    full(&place, &["status", "--standbys", "--json", "shard"]);
    full(&place, &["status", "--json", "shard", "another"]);
    let status: Value = serde_json::from_slice(&place.told(&["status", "--json", "shard"])).unwrap();
    // Every second, and some stores tell the time to a second.
    let renewed = status["renewed_seconds_ago"].as_f64();
    assert_eq!((renewed.is_some(), renewed.is_none_or(|ago| ago < 6.0)), (place.server.is_some(), true), "{status}");
    let text = String::from_utf8(place.told(&["status", "shard"])).unwrap();
    let line = text.lines().find(|line| line.starts_with("  renewed    "));
    assert_eq!(line.is_some_and(|line| line.ends_with(" ago")), place.server.is_some(), "{text}");
    assert_as_in_table(&place.told(&["status", "--json", "--once", "id", "shard"]), &manual::table("JOB AS JSON"));
    // Where that costs money, nobody gets more unasked.
    let listed = if place.is_metered() { &without } else { &with_orders };
    for words in [&["list", "--json"][..], &["list", "--standbys", "--json", "sh"]] {
        assert_as_in_table(&place.told(words), listed);
        full(&place, &[words, &["--orders"]].concat());
    }
    for words in [&["list", "--json", "--watch"][..], &["watch", "--json", "shard"], &["watch", "--json"]] {
        assert_as_in_table(&place.first_line(words), listed);
        assert_as_in_table(&place.first_line(&[words, &["--orders"]].concat()), &with_orders);
    }
    full(&place, &["wait", "--json", "shard"]);
    assert_as_said_of("verify", &place.told(&["verify", "shard", "--json", "--term", &term]));
    let lost = place.ctl(&["verify", "shard", "--json", "--term", "1"]).output().unwrap();
    assert_eq!(lost.status.code(), Some(79), "{lost:?}");
    assert_as_said_of("verify", &lost.stdout);
    for words in [&["why", "--json", "shard"][..], &["why", "--json", "--host", "elsewhere", "shard"]] {
        assert_as_said_of("why", &place.told(words));
    }
    let history = ["history", "--json", "shard"];
    wait_until("it is written down", || !place.ctl(&history).output().unwrap().stdout.is_empty());
    assert_as_said_of("history", &place.told(&history));

    full(&place, &["pause", "--keep", "--for", "1h", "--reason", "\"quotes\" and \\", "--json", "shard"]);
    full(&place, &["status", "--json", "shard"]);
    full(&place, &["pause", "--force", "--json", "--wait", "shard"]);
    full(&place, &["resume", "--json", "shard"]);
    let leader = place.fleet.leader_where(|life| life.term > leader.term);
    full(&place, &["step-down", "--json", "--for", "1s", "--force", "shard"]);
    let leader = place.fleet.leader_where(|life| life.term > leader.term);
    full(&place, &["step-down", "--json", "--for", "5s", "--to", "nobody", "--force", "shard"]);
    full(&place, &["status", "--json", "shard"]);
    let leader = place.fleet.leader_where(|life| life.term > leader.term);
    if place.server.is_some() {
        full(&place, &["revoke", "--json", "--force", "--term", &leader.term.to_string(), "shard"]);
    } else {
        // A lease that is the kernel's is ended by nobody else.
        assert_as_in_table(
            &place.told(&["selftest", "--json", "--only", "stop", "--only", "partition"]),
            &manual::table("SELFTEST AS JSON"),
        );
    }
    place.fleet.leader();
    assert_as_said_of("history", &place.told(&history));
    full(&place, &["forget", "--json", "nobody/ever/led"]);
    place.fleet.conclude();
}

const VERBS: &[&[&str]] = &[
    &["status", "shard"],
    &["status", "--json", "shard"],
    &["status", "--standbys", "shard"],
    &["status", "--once", "id", "--json", "shard"],
    &["list"],
    &["list", "--json", "--standbys", "sh"],
    &["list", "--watch"],
    &["watch", "shard"],
    &["watch"],
    &["wait", "shard"],
    &["wait", "shard", "--free", "--timeout", "1h", "--json"],
    &["verify", "--term", "1", "shard"],
    &["step-down", "shard"],
    &["step-down", "--to", "c1", "--wait", "shard"],
    &["step-down", "--cancel", "shard"],
    &["pause", "shard"],
    &["pause", "--keep", "--for", "1m", "--force", "--json", "shard"],
    &["pause", "--wait", "shard"],
    &["resume", "shard"],
    &["resume", "--force", "shard"],
    &["pause", "--prefix", "sh"],
    &["resume", "--prefix", "sh", "--json"],
    &["revoke", "--term", "1", "shard"],
    &["revoke", "--term", "1", "--force", "--json", "shard"],
    &["forget", "shard"],
    &["forget", "--json", "shard"],
    &["why", "shard"],
    &["why", "--json", "shard"],
    &["why", "--host", "elsewhere", "shard"],
    &["history", "shard"],
    &["history", "--json", "shard"],
    &["selftest", "--only", "stop"],
    &["store", "init"],
    &["store", "check"],
    &["store", "check", "--json"],
];

/// One request takes a second at most, of a verb that gives up then; this machine may be busy.
const SOON: Duration = Duration::from_secs(30);

fn assert_all_say_that_it_is_away(place: &Place, when: &str) {
    for verb in VERBS {
        let begun = Instant::now();
        let words = [&["--request-timeout", "1s"], *verb].concat();
        let Output { status, stdout, stderr } = place.ctl(&words).output().unwrap();
        let (took, said) = (begun.elapsed(), String::from_utf8(stderr).unwrap());
        println!("{when}: {verb:?}: {took:?}: {said}");
        assert_eq!(status.code(), Some(69), "{when}: {verb:?}: {said}");
        assert!(said.lines().count() == 1 && said.starts_with("leaderctl: "), "{when}: {verb:?}: {said}");
        assert!(stdout.is_empty() || verb[0] == "why", "{when}: {verb:?}: {}", String::from_utf8_lossy(&stdout));
        assert!(took < SOON, "{when}: {verb:?} took {took:?}");
        if verb[0] == "why" {
            let text = String::from_utf8(stdout).unwrap();
            assert!(text.contains("the store does not answer here"), "{text}");
            // What it could not ask it does not tell.
            assert!(!text.contains("has announced itself"), "{text}");
            if verb.contains(&"--json") {
                assert_as_said_of("why", text.as_bytes());
            }
        }
    }
}

#[allow(dead_code, reason = "a build without remote stores has none")]
fn every_verb_says_soon_that_the_store_is_away(mut place: Place) {
    let server = place.server.take().expect("it has a server");
    server.freeze();
    assert_all_say_that_it_is_away(&place, "frozen");
    server.thaw();
    place.server = Some(server);
    wait_until("it answers again", || place.ctl(&["status", "shard"]).output().unwrap().status.success());
    let server = place.server.as_mut().expect("it has a server");
    server.kill();
    assert_all_say_that_it_is_away(&place, "killed");
    place.server.as_mut().expect("it has a server").start_again();
    // Nothing came of what was ordered in vain.
    let mut status = Vec::new();
    wait_until("it answers again", || {
        let output = place.ctl(&["status", "--json", "shard"]).output().unwrap();
        status = output.stdout;
        output.status.success()
    });
    let status: Value = serde_json::from_slice(&status).unwrap();
    assert!(status["paused"] == false && status["handover"].is_null() && status["held"] == false, "{status}");
}

everywhere!(
    [every_verb_says_soon_that_the_store_is_away,]:
    jq_reads_what_every_verb_says_and_finds_what_the_manual_tells,
);
