//! What every verb says to programs: one object a line, which jq reads, with the members that leaderctl(1) tells of and no
//! others; and a status and one line, soon, where the store is away.

use crate::support::fleet::{leaderctl, wait_until};
use crate::support::place::Place;
use crate::support::said::Runs as _;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

impl Place {
    /// What it prints where it succeeds.
    #[track_caller]
    fn prints(&self, words: &[&str]) -> Vec<u8> {
        let printed = self.order(words);
        assert!(!printed.is_empty(), "{words:?}");
        printed.into_bytes()
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

/// leaderctl(1) and leaderrun-formats(5).
mod manual {
    use std::collections::BTreeMap;

    /// The types, and the members of an object, by the name of the member.
    pub type Members = BTreeMap<String, Vec<String>>;

    const PAGE: &str = include_str!("../../man/leaderctl.1");
    const FORMATS: &str = include_str!("../../man/leaderrun-formats.5");

    /// The rows of the table in a section: `.It Va NAME Ta TYPE or TYPE Ta MEANING`, and after an object `.Va NAME` for
    /// each member.
    pub fn table(section: &str) -> Members {
        let (_, text) = FORMATS.split_once(&format!("\n.Sh {section}\n")).expect("there is such a section");
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
        let (_, text) = PAGE.split_once(&format!("\n.Ss {verb}\n")).expect("there is such a verb");
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
        !["led_slots", "paused", "pause", "parent_pause", "handover", "last_run", "jobs", "waiting"]
            .contains(&name.as_str())
    });
    assert_eq!(with_orders.len(), without.len() + 8);
    let full = |place: &Place, words: &[&str]| assert_as_in_table(&place.prints(words), &with_orders);

    full(&place, &["status", "--json", "nobody/ever/led"]);
    for owner in ["c0", "c1"] {
        place.launch(owner, &[]);
    }
    let leader = place.fleet.leader();
    let term = leader.term.to_string();
    full(&place, &["status", "--json", "shard"]);
    full(&place, &["status", "--standbys", "--json", "shard"]);
    full(&place, &["status", "--json", "shard", "another"]);
    let status = place.object(&["status", "--json", "shard"]);
    // Every second, and some stores tell the time to a second.
    let renewed = status["renewed_seconds_ago"].as_f64();
    assert_eq!((renewed.is_some(), renewed.is_none_or(|ago| ago < 6.0)), (place.server.is_some(), true), "{status}");
    let text = place.order(&["status", "shard"]);
    let line = text.lines().find(|line| line.starts_with("  renewed    "));
    assert_eq!(line.is_some_and(|line| line.ends_with(" ago")), place.server.is_some(), "{text}");
    // It has never run, so the status is 75.
    let job = place.ask(&["jobs", "--json", "shard", "id"]).out;
    assert_as_in_table(job.as_bytes(), &manual::table("JOB AS JSON"));
    // Where that costs money, nobody gets more unasked.
    let listed = if place.is_metered() { &without } else { &with_orders };
    for words in [&["list", "--json"][..], &["list", "--standbys", "--json", "sh"]] {
        assert_as_in_table(&place.prints(words), listed);
        full(&place, &[words, &["--orders"]].concat());
    }
    for words in [&["watch", "--json", "shard"][..], &["watch", "--json"]] {
        assert_as_in_table(&place.first_line(words), listed);
        assert_as_in_table(&place.first_line(&[words, &["--orders"]].concat()), &with_orders);
    }
    if place.is_metered() {
        // What follows is the same there, and each leaderctl takes its time.
        return drop(place.fleet.conclude());
    }
    full(&place, &["wait", "--json", "shard"]);
    assert_as_said_of("verify", &place.prints(&["verify", "shard", "--json", "--term", &term]));
    let lost = place.ask(&["verify", "shard", "--json", "--term", "1"]).ended(79);
    assert_as_said_of("verify", lost.out.as_bytes());
    for words in [&["why", "--json", "shard"][..], &["why", "--json", "--host", "elsewhere", "shard"]] {
        assert_as_said_of("why", &place.prints(words));
    }
    let history = ["history", "--json", "shard"];
    wait_until("it is written down", || !place.ask(&history).out.is_empty());
    assert_as_said_of("history", &place.prints(&history));

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
            &place.prints(&["selftest", "--json", "--only", "stop", "--only", "partition"]),
            &manual::table("SELFTEST AS JSON"),
        );
    }
    place.fleet.leader();
    assert_as_said_of("history", &place.prints(&history));
    full(&place, &["pause", "--json", "nobody/ever/led"]);
    full(&place, &["forget", "--json", "nobody/ever/led"]);
    place.fleet.conclude();
}

/// Verbs about what has been, which a mistyped name must not carry out in silence.
const OF_WHAT_HAS_BEEN: &[&[&str]] = &[
    &["step-down", "shrad"],
    &["step-down", "--force", "--json", "shrad"],
    &["step-down", "--cancel", "shrad"],
    &["revoke", "--term", "1", "shrad"],
    &["resume", "shrad"],
    &["resume", "--json", "shrad"],
    &["resume", "--prefix", "shrad"],
    &["forget", "shrad"],
    &["forget", "--json", "shrad"],
    &["history", "shrad"],
    &["history", "--json", "shrad"],
    &["history", "--timeline", "shrad"],
    &["jobs", "shrad"],
    &["jobs", "--json", "shrad"],
    &["jobs", "shrad", "id"],
    &["jobs", "--json", "shrad", "id"],
    &["jobs", "--clear", "id", "shrad"],
    &["wait", "--free", "shrad"],
    &["wait", "--free", "--json", "--timeout", "1h", "shrad"],
];

/// The advice where no name is near.
const SEE_THE_LIST: &str = "; leaderctl list shows the shards that were led";

#[track_caller]
fn assert_says(place: &Place, words: &[&str], status: i32, told: &str, said: &str) {
    let output = place.ask(words);
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (status, told, said), "{words:?}");
}

fn a_shard_that_the_store_has_never_seen_is_a_miss_with_the_nearest_name(mut place: Place) {
    place.launch("c0", &[]);
    place.fleet.leader();
    let meant = if place.is_metered() { SEE_THE_LIST } else { "; did you mean shard?" };
    let line = format!("leaderctl: nobody has led shrad so far{meant}\n");
    // That a store is metered is asked in one place.
    let words = if place.is_metered() { &OF_WHAT_HAS_BEEN[..1] } else { OF_WHAT_HAS_BEEN };
    for words in words {
        if words.contains(&"--prefix") {
            let line = "leaderctl: no shard is known whose name begins with \"shrad\"\n";
            assert_says(&place, words, 66, "", line);
        } else {
            assert_says(&place, words, 66, "", &line);
        }
    }
    // Before the first leader of a shard these are right.
    let still = format!("{line}leaderctl: shrad: still nobody leads after 2s\n");
    assert_says(&place, &["wait", "--timeout", "2s", "shrad"], 75, "", &still);
    let said = if place.is_metered() { "" } else { &line };
    assert_says(&place, &["status", "shrad"], 0, "shrad: never led\n", said);
    let known = |shard: &str| place.object(&["status", "--json", shard])["known"].clone();
    assert_eq!((known("shrad"), known("shard")), (false.into(), true.into()));
    let listed = place.order(&["list", "--orders"]);
    assert!(!listed.contains("shrad"), "nothing of it was written: {listed}");

    assert_says(&place, &["pause", "shrad"], 0, "shrad: paused until it is resumed; nobody leads\n", &line);
    assert_says(&place, &["wait", "--free", "shrad"], 0, "shrad: nobody leads\n", "");
    assert_eq!(known("shrad"), true);
    place.ask(&["status", "shrad"]).tells("shrad: paused, never led\n");
    place.prints(&["resume", "shrad"]);
    assert_says(&place, &["resume", "shrad"], 66, "", &line);
    place.fleet.conclude();
}

/// It cannot be told what is near, but that nobody led it.
#[test]
#[cfg(feature = "redis")]
fn a_shard_never_seen_is_a_miss_also_where_the_store_denies_a_list() {
    use crate::support::redis::{Server, cli};
    let mut place = Place::remote(Box::new(Server::start()));
    place.launch("c0", &[]);
    place.fleet.leader();
    let port = place.server().address().port();
    let denied = ["ACL", "SETUSER", "reader", "on", ">x", "~*", "&*", "+@all", "-scan", "-keys"];
    assert_eq!(cli(port, &denied), "OK");
    let all = std::mem::take(&mut place.url);
    place.url = all.replace("redis://", "redis://reader:x@");
    place.ask(&["list"]).ended(77);
    for words in OF_WHAT_HAS_BEEN.iter().filter(|words| !words.contains(&"--prefix")) {
        assert_says(&place, words, 66, "", &format!("leaderctl: nobody has led shrad so far{SEE_THE_LIST}\n"));
    }
    place.url = all;
    place.fleet.conclude();
}

const VERBS: &[&[&str]] = &[
    &["status", "shard"],
    &["status", "--json", "shard"],
    &["status", "--standbys", "shard"],
    &["jobs", "--json", "shard", "id"],
    &["jobs", "shard"],
    &["list"],
    &["list", "--json", "--standbys", "sh"],
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

/// Some at once: each waits for its time to be over.
fn assert_all_say_that_it_is_away(url: &str, when: &str) {
    for some in VERBS.chunks(7) {
        std::thread::scope(|scope| {
            for verb in some {
                scope.spawn(|| assert_says_that_it_is_away(url, when, verb));
            }
        });
    }
}

fn assert_says_that_it_is_away(url: &str, when: &str, verb: &[&str]) {
    let begun = Instant::now();
    let mut command = leaderctl();
    command.args(["--store", url, "--request-timeout", "1s"]).args(verb).stdin(Stdio::null());
    let said = command.said().ended(69);
    assert!(begun.elapsed() < SOON, "{when}: {verb:?} took {:?}", begun.elapsed());
    assert!(said.err.lines().count() == 1 && said.err.starts_with("leaderctl: "), "{when}: {verb:?}: {said:?}");
    assert!(said.out.is_empty() || verb[0] == "why", "{when}: {verb:?}: {said:?}");
    if verb[0] == "why" {
        let text = said.out;
        assert!(text.contains("the store does not answer here"), "{text}");
        // What it could not ask it does not tell.
        assert!(!text.contains("has announced itself"), "{text}");
        if verb.contains(&"--json") {
            assert_as_said_of("why", text.as_bytes());
        }
    }
}

fn every_verb_says_soon_that_the_store_is_away(mut place: Place) {
    place.server().freeze();
    assert_all_say_that_it_is_away(&place.url, "frozen");
    place.server().thaw();
    wait_until("it answers again", || place.ask(&["status", "shard"]).code == 0);
    place.server.as_mut().expect("it has a server").kill();
    assert_all_say_that_it_is_away(&place.url, "killed");
    place.server.as_mut().expect("it has a server").start_again();
    // Nothing came of what was ordered in vain.
    let mut said = place.ask(&["status", "shard"]);
    wait_until("it answers again", || {
        said = place.ask(&["status", "--json", "shard"]);
        said.code == 0
    });
    let status = said.json();
    assert!(status["paused"] == false && status["handover"].is_null() && status["held"] == false, "{status}");
}

on_two_stores!(
    [every_verb_says_soon_that_the_store_is_away,]:
    jq_reads_what_every_verb_says_and_finds_what_the_manual_tells,
    a_shard_that_the_store_has_never_seen_is_a_miss_with_the_nearest_name,
);
on_a_metered_store!(
    jq_reads_what_every_verb_says_and_finds_what_the_manual_tells,
    a_shard_that_the_store_has_never_seen_is_a_miss_with_the_nearest_name
);
