//! What leaderctl prints for programs: the members of every object, in their order, and what kind of value each has. Words
//! that programs compare are shown; times, numbers and sentences are not. The manual tells of the same members.

use crate::golden::golden;
use crate::manual;
use crate::plain::Plain;
use crate::support::prelude::*;
use std::io::{BufRead, BufReader, Write};

/// A member a line, as jq walks through the objects: in the order that they have.
pub fn members(objects: &str, plain: &Plain) -> String {
    let walk = r#"paths as $path | [
        ($path | map(if type == "number" then "[]" else . end) | join(".")),
        (getpath($path) | if type == "object" or type == "array" then "(\(type))" else . end)]"#;
    let mut jq = Command::new("jq");
    jq.args(["-c", walk]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut jq = jq.spawn().expect("jq starts: apt install jq");
    jq.stdin.take().expect("it is piped").write_all(objects.as_bytes()).expect("jq reads");
    let output = jq.wait_with_output().expect("jq ends");
    assert!(output.status.success(), "jq cannot read {objects}");
    let mut lines: Vec<String> = Vec::new();
    for line in String::from_utf8(output.stdout).expect("jq writes text").lines() {
        let (path, value): (String, Value) = serde_json::from_str(line).expect("two values");
        let value = match value {
            Value::Number(_) => "number".to_owned(),
            Value::String(text) => word(&plain.text(&text)),
            other => other.to_string(),
        };
        let line = format!("  {path}: {value}");
        // Of several objects in an array, each shape once.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.join("\n")
}

fn word(text: &str) -> String {
    if text.starts_with('(') {
        text.to_owned()
    } else if text.contains(' ') {
        "a sentence".to_owned()
    } else {
        format!("\"{text}\"")
    }
}

struct Told {
    place: Place,
    text: String,
    plain: Plain,
}

impl Told {
    fn new(place: Place) -> Self {
        Self { place, text: String::new(), plain: Plain::new() }
    }

    fn tell(&mut self, what: &str, objects: &str) {
        manual::assert_tells_of(what.split(' ').next().expect("a verb"), objects);
        let count = objects.lines().count();
        let members = members(objects, &self.plain);
        self.text.extend([format!("== {what}: {count} lines\n{members}\n")]);
    }

    fn ask(&mut self, words: &[&str]) {
        self.ask_and(words, ".");
    }

    /// The same, as a filter of jq changes it.
    fn ask_and(&mut self, words: &[&str], filter: &str) {
        let mut verb = self.place.ctl(words).stderr(Stdio::piped()).spawn().expect("leaderctl starts");
        let mut jq = Command::new("jq");
        jq.args(["-c", filter]).stdin(verb.stdout.take().expect("it is piped"));
        let filtered = jq.output().expect("jq starts: apt install jq");
        let output = verb.wait_with_output().expect("leaderctl ends");
        let objects = String::from_utf8(filtered.stdout).expect("it writes text");
        assert!(!objects.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        let what = format!("{} ({})", self.plain.text(&words.join(" ")), output.status.code().unwrap_or(-1));
        self.tell(&what, &objects);
    }

    /// The first line of a verb that goes on.
    fn watch(&mut self, words: &[&str]) {
        let mut child = self.place.ctl(words).stderr(Stdio::inherit()).spawn().expect("leaderctl starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it writes text");
        let _ = child.kill();
        child.wait().expect("it can be reaped");
        self.tell(&words.join(" "), &line);
    }

    fn run(&self, words: &[&str]) -> Command {
        let mut command = leaderrun();
        command.args(TIMING).args(["-q", "--store", &self.place.url]).args(words);
        command.env("leaderctl", env!("CARGO_BIN_EXE_leaderctl")).env("out", self.place.fleet.scratch.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn ends(&self, words: &[&str], status: i32) {
        let words = [&["--owner", "one"], words].concat();
        assert_eq!(self.run(&words).status().expect("it starts").code(), Some(status), "{words:?}");
    }

    fn start(&self, words: &[&str]) -> Process {
        Process::start(&mut self.run(words))
    }

    fn status(&self, shard: &str) -> Value {
        serde_json::from_str(&self.place.order(&["status", "--standbys", "--json", shard])).expect("JSON")
    }
}

#[test]
fn what_leaderctl_prints_as_json_stays_as_it_is() {
    let mut told = Told::new(Place::local());
    told.ask(&["status", "--json", "nobody/ever/led"]);
    told.ends(&["--once", "a.job", "once", "true"], 0);
    told.ask(&["jobs", "--json", "once", "a.job"]);
    told.ask(&["jobs", "--json", "once"]);
    told.ask(&["status", "--json", "once"]);
    told.ask(&["jobs", "--json", "once", "another"]);
    told.ends(&["--every", "366days", "runs", "false"], 1);
    told.ask(&["status", "--json", "runs"]);
    told.ask(&["jobs", "--json", "runs"]);
    told.ask(&["pause", "--json", "--for", "1h", "--reason", "a sentence", "idle"]);
    told.ask(&["status", "--json", "idle"]);
    told.ask(&["resume", "--json", "idle"]);
    told.ask(&["forget", "--json", "runs"]);

    let verify =
        r#""$leaderctl" verify --json >"$out/verify.new"; mv "$out/verify.new" "$out/verify"; exec sleep 1000"#;
    let shard = told.place.shard();
    told.plain = Plain::new().with(&shard, "SHARD");
    let leader = told.start(&["--owner", "one", &shard, "-c", verify]);
    let verified = told.place.path("verify");
    wait_until("COMMAND asks its candidate", || verified.exists());
    told.tell("verify --json, within COMMAND", &fs::read_to_string(verified).expect("it is there"));
    let standby = told.start(&["--owner", "two", &shard, "--", "sleep", "1000"]);
    wait_until("one waits", || told.status(&shard)["standbys"] == 1);
    wait_until("it is written down", || !told.place.order(&["history", &shard]).is_empty());
    let term = told.status(&shard)["term"].to_string();
    told.ask(&["status", "--json", &shard]);
    told.ask(&["status", "--json", "--standbys", &shard]);
    told.ask(&["list", "--json", &shard]);
    told.ask(&["list", "--json", "--standbys", &shard]);
    told.watch(&["watch", "--json"]);
    told.ask(&["verify", "--json", "--term", &term, &shard]);
    told.ask(&["verify", "--json", "--term", "1", &shard]);
    told.ask(&["why", "--json", &shard]);
    told.ask(&["why", "--json", "--host", "elsewhere", &shard]);
    told.ask(&["wait", "--json", &shard]);
    told.ask(&["history", "--json", &shard]);
    told.ask(&["pause", "--json", "--keep", "--for", "1h", "--reason", "a sentence", &shard]);
    told.ask(&["status", "--json", &shard]);
    told.ask(&["resume", "--json", &shard]);
    // The new leader takes the order away a moment after it leads.
    told.ask_and(&["step-down", "--json", "--wait", "--for", "1s", "--force", &shard], ".handover = null");
    wait_until("that is written down, too", || {
        let history = told.place.order(&["history", &shard]);
        history.contains("two") && history.contains("stepped down")
    });
    told.ask(&["history", "--json", &shard]);
    drop((leader, standby));

    let leaders =
        ["three", "four"].map(|owner| told.start(&["--owner", owner, "--slots", "2", "many", "sleep", "1000"]));
    wait_until("both slots are led", || {
        told.status("many")["led_slots"].as_array().is_some_and(|slots| slots.len() == 2)
    });
    told.place.order(&["pause", "many", "--keep", "--for", "1h"]);
    told.plain = Plain::new().with("three", "OWNER").with("four", "OWNER");
    told.ask(&["status", "--json", "many"]);
    let slots = told.status("many")["led_slots"].clone();
    told.ask(&["status", "--json", slots[0].as_str().expect("a name")]);
    drop(leaders);
    told.ask(&["selftest", "--json", "--only", "stop"]);
    golden("json", &told.text);
}

/// Where a lease expires there is more to tell, and it can be ended by force.
#[test]
#[cfg(feature = "redis")]
fn what_leaderctl_prints_as_json_of_a_lease_that_expires_stays_as_it_is() {
    use crate::support::claims;
    use leaderrun::internals::store::Location;
    let mut told = Told::new(Place::remote(Box::new(crate::support::redis::Server::start())));
    let location = Location::from_url(&told.place.url).expect("a store URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let term = runtime.block_on(async {
        let store = location.open(std::time::Duration::from_secs(10)).await.expect("it opens");
        let hour = std::time::Duration::from_hours(1);
        claims::lead(&*store, &claims::with_lease("one", hour)).await.0.to_string()
    });
    told.ask(&["status", "--json", "db/main"]);
    told.ask(&["verify", "--json", "--term", &term, "db/main"]);
    told.ask(&["why", "--json", "--host", "elsewhere", "db/main"]);
    told.ask(&["revoke", "--json", "--force", "--term", &term, "db/main"]);
    golden("json-expiring", &told.text);
}

#[test]
fn the_members_of_a_log_line_stay_as_they_are() {
    let told = Told::new(Place::local());
    let mut command = leaderrun();
    command.args(["-v", "--log-format", "json", "--store", &told.place.url, "--owner", "one", "shard", "true"]);
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let text = String::from_utf8(output.stderr).expect("it writes text");
    let mut shapes: Vec<String> = Vec::new();
    for line in text.lines() {
        let names: Vec<String> = members(line, &told.plain)
            .lines()
            .map(|line| line.split(':').next().expect("a name").trim().to_owned())
            .collect();
        let line: Value = serde_json::from_str(line).expect("JSON");
        let shape = format!("{}: {}", line["level"].as_str().unwrap_or("no level"), names.join(" "));
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    shapes.sort();
    golden("json-log", &shapes.join("\n"));
}
