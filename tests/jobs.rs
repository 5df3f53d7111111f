//! Jobs that run once a period, or once at all, with real candidates and real servers: however many hosts start them, at
//! most one run succeeds, and one that failed is repeated only where that is allowed.

#[macro_use]
mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use support::fleet::{leaderrun, processes_naming, wait_until, wait_until_or};
use support::place::Place;
use support::world::TIMING;

/// In seconds. So long that no test meets an edge of one but by a clock that is off.
const SLOT: u64 = 366 * 86_400;

impl Place {
    fn runs(&self) -> PathBuf {
        self.path("runs")
    }

    /// A host whose wall clock is off by `shift` seconds runs a job that writes a line, and then does `then`.
    fn host(&self, name: &str, shift: i64, job: &[&str], then: &str) -> Command {
        let mut command = leaderrun();
        let file = self.path(&format!("{name}.clock"));
        fs::write(&file, shift.to_string()).unwrap();
        command.args(TIMING).args(["-v", "--store", &self.url, "--owner", name]).args(job).arg("shard");
        command.args(["-c", &format!("echo {name} $LEADERRUN_DUE$LEADERRUN_JOB >>{}; {then}", self.runs().display())]);
        command.envs(self.environment.iter().copied());
        if shift != 0 {
            command.env("LD_PRELOAD", support::world::wall_clock()).env("WALLCLOCK_FILE", file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// It runs to its end: its status, and what it said.
    fn ask(&self, name: &str, shift: i64, job: &[&str], then: &str) -> (i32, String) {
        told(&self.host(name, shift, job, then).output().unwrap())
    }

    #[track_caller]
    fn skips(&self, name: &str, job: &[&str], why: &str) {
        let before = self.lines().len();
        let (status, said) = self.ask(name, 0, job, "exit 1");
        assert!(status == 0 && said.contains("skipped: ") && said.contains(why), "{status} {said}");
        assert_eq!(self.lines().len(), before, "{said}");
    }

    /// Who ran it so far, and as what.
    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.runs()).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn last_run(&self) -> Value {
        let status: Value = serde_json::from_str(&self.order(&["status", "shard", "--json"])).unwrap();
        status["last_run"].clone()
    }

    /// Starts a run that goes on until it is killed.
    fn start(&self, name: &str, job: &[&str]) -> Child {
        let child = self.host(name, 0, job, "sleep 1000").spawn().unwrap();
        wait_until("it runs", || self.lines().iter().any(|line| line.starts_with(name)));
        child
    }

    fn kill(&self, mut child: Child) {
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        let nobody = || processes_naming(self.fleet.scratch.path()).is_empty();
        wait_until_or("its tree is dead", || format!("{output:?}"), nobody);
    }
}

fn told(output: &Output) -> (i32, String) {
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A shift that puts a clock so many seconds off the moment that some period is due.
fn until_due(off: i64) -> i64 {
    let now = now();
    let due = (now / SLOT + 2) * SLOT;
    i64::try_from(due - now).unwrap() + off
}

const EVERY: &[&str] = &["--every", "366d"];

fn of_ten_hosts_that_start_at_once_one_runs(place: &Place) {
    let name = |host: usize| format!("h{host}");
    let hosts: Vec<Child> = (0..10).map(|host| place.host(&name(host), 0, EVERY, "").spawn().unwrap()).collect();
    for host in hosts {
        let (status, said) = told(&host.wait_with_output().unwrap());
        assert_eq!(status, 0, "{said}");
        assert!(said.contains("released"), "each of them got the lease: {said}");
    }
    let lines = place.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (winner, period) = lines[0].split_once(' ').unwrap();
    assert!(period.ends_with("T00:00:00.000Z"), "{period}");
    let run = place.last_run();
    assert_eq!((&run["owner"], &run["slot"]), (&winner.into(), &period.into()), "{run}");
    assert_eq!((&run["exit_status"], &run["attempts"]), (&0.into(), &1.into()), "{run}");
    assert!(run["started"].is_string() && run["ended"].is_string() && run["host"].is_string(), "{run}");
    let text = place.order(&["status", "shard"]);
    assert!(text.contains("last run") && text.contains("exited with 0"), "{text}");
}

fn a_run_that_failed_is_repeated_as_often_as_is_allowed(place: &Place) {
    assert_eq!(place.ask("a", 0, EVERY, "exit 3").0, 3);
    place.skips("b", EVERY, "failed already on ");
    let twice = ["--every", "366d", "--retry-failed", "2"];
    assert_eq!(place.ask("c", 0, &twice, "exit 4").0, 4);
    assert_eq!(place.last_run()["attempts"], 2);
    assert_eq!(place.ask("d", 0, &twice, "kill -9 $$").0, 137);
    place.skips("e", &twice, "failed already on ");
    assert_eq!(place.last_run()["exit_status"], 137);
    let thrice = ["--every", "366d", "--retry-failed", "3"];
    assert_eq!(place.ask("f", 0, &thrice, "").0, 0);
    place.skips("g", &["--every", "366d", "--retry-failed", "99"], "done already by ");
    assert_eq!(place.lines().len(), 4);
}

fn a_run_whose_host_died_counts_as_failed(place: &Place) {
    let first = place.start("a", EVERY);
    assert!(place.last_run()["ended"].is_null());
    assert!(place.order(&["status", "shard"]).contains("it runs"));
    place.kill(first);
    place.skips("b", EVERY, "nobody wrote down how it ended");
    assert_eq!(place.ask("c", 0, &["--every", "366d", "--retry-failed", "1"], "").0, 0);
    place.skips("d", EVERY, "done already by ");
}

fn a_boundary_hit_early_by_one_host_and_late_by_another_is_one_period(place: &Place) {
    assert_eq!(place.ask("early", until_due(-1), EVERY, "").0, 0);
    for (name, off) in [("late", 1), ("punctual", 0), ("slow", -15_000_000), ("fast", 15_000_000)] {
        let (status, said) = place.ask(name, until_due(off), EVERY, "");
        assert!(status == 0 && said.contains("done already by "), "{name}: {status} {said}");
    }
    let lines = place.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    // The next period is another one, and who is behind by more than a period has missed it.
    assert_eq!(place.ask("next", until_due(366 * 86_400 - 1), EVERY, "").0, 0);
    let (status, said) = place.ask("behind", until_due(0), EVERY, "");
    assert!(status == 0 && said.contains("the later period "), "{status} {said}");
    assert_eq!(place.lines().len(), 2);
}

fn a_paused_shard_runs_its_job_when_it_is_resumed(place: &Place) {
    place.order(&["pause", "shard"]);
    let (status, said) = place.ask("a", 0, &["-n", "--every", "366d"], "");
    assert_eq!(status, 75, "{said}");
    assert!(place.last_run().is_null(), "a pause is no run");
    let waits = place.host("b", 0, EVERY, "").spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(place.lines().is_empty());
    place.order(&["resume", "shard"]);
    let (status, said) = told(&waits.wait_with_output().unwrap());
    assert_eq!(status, 0, "{said}");
    assert_eq!(place.lines().len(), 1, "{said}");
    place.skips("c", EVERY, "done already by ");
}

fn a_host_that_is_asked_to_stop_has_failed(place: &Place) {
    let host = place.start("a", EVERY);
    kill(Pid::from_raw(host.id().cast_signed()), Signal::SIGTERM).unwrap();
    let (status, said) = told(&host.wait_with_output().unwrap());
    assert_eq!(status, 143, "{said}");
    assert_eq!(place.last_run()["exit_status"], 143);
    let host = place.start("b", &["--every", "366d", "--retry-failed", "1"]);
    place.order(&["step-down", "shard", "--force"]);
    let (status, said) = told(&host.wait_with_output().unwrap());
    assert_eq!(status, 143, "{said}");
    place.skips("c", EVERY, "failed already on ");
}

fn a_job_with_a_name_runs_once(place: &Place) {
    assert_eq!(place.ask("a", 0, &["--once", "2026.11_add-users"], "").0, 0);
    place.skips("b", &["--once", "2026.11_add-users", "--retry-failed", "9"], "done already by ");
    assert_eq!(place.ask("c", 0, &["--once", "2026.12"], "exit 1").0, 1);
    // The next candidate must not take it for done.
    let (status, said) = place.ask("d", 0, &["--once", "2026.12"], "");
    assert!(status == 1 && said.contains("not run again: failed already on "), "{status} {said}");
    let first = place.start("dies", &["--once", "2027"]);
    place.kill(first);
    let (status, said) = place.ask("comes", 0, &["--once", "2027"], "");
    assert!(status == 75 && said.contains("nobody wrote down how it ended"), "{status} {said}");
    assert_eq!(place.ask("e", 0, &["--once", "2026.12", "--retry-failed", "1"], "").0, 0);
    for number in 0..5 {
        assert_eq!(place.ask("f", 0, &["--once", &format!("n{number}")], "").0, 0);
    }
    place.skips("g", &["--once", "2026.11_add-users"], "done already by ");
    assert_eq!(place.lines()[..3], ["a 2026.11_add-users", "c 2026.12", "dies 2027"]);
    assert!(place.last_run().is_null(), "they have no periods");
}

fn status_tells_what_has_become_of_a_job_with_a_name(place: &Place) {
    let job = |id: &str| -> Value {
        let told = place.order(&["status", "shard", "--once", id, "--json"]);
        serde_json::from_str(&told).unwrap()
    };
    let text = |id: &str| place.order(&["status", "shard", "--once", id]);
    let never = job("a");
    assert_eq!((&never["state"], &never["attempts"], &never["host"]), (&"never".into(), &0.into(), &Value::Null));
    assert_eq!(text("a"), "shard: job a has never run\n");

    assert_eq!(place.ask("one", 0, &["--once", "a"], "exit 3").0, 3);
    let failed = job("a");
    assert_eq!((&failed["state"], &failed["exit_status"]), (&"failed".into(), &3.into()), "{failed}");
    assert!(text("a").contains("job a has failed\n") && text("a").contains("exited with 3"), "{}", text("a"));
    assert_eq!(place.ask("two", 0, &["--once", "a", "--retry-failed", "1"], "").0, 0);
    let done = job("a");
    assert_eq!((&done["state"], &done["exit_status"], &done["attempts"]), (&"succeeded".into(), &0.into(), &2.into()));
    assert_eq!((&done["shard"], &done["job"], &done["owner"]), (&"shard".into(), &"a".into(), &"two".into()));
    assert!(done["host"].is_string() && done["started"].is_string() && done["ended"].is_string(), "{done}");
    assert!(text("a").contains("job a has succeeded\n") && text("a").contains("\n  owner      two\n"), "{}", text("a"));

    let run = place.start("three", &["--once", "b"]);
    wait_until("the store tells the term", || job("b")["state"] == "running");
    let runs = job("b");
    assert!(runs["ended"].is_null() && runs["exit_status"].is_null() && runs["how"].is_null(), "{runs}");
    assert!(text("b").contains("job b is running\n"), "{}", text("b"));
    // Another job is another matter.
    assert_eq!((&job("a")["state"], &job("c")["state"]), (&"succeeded".into(), &"never".into()));
    place.kill(run);
    wait_until("its lease is over", || job("b")["state"] == "failed");
    assert!(job("b")["ended"].is_null(), "nobody wrote it down");
    assert!(text("b").contains("nobody wrote down how it ended"), "{}", text("b"));
}

#[allow(dead_code, reason = "a build without remote stores has none")]
fn a_run_whose_end_cannot_be_written_counts_as_failed(place: &Place) {
    let server = place.server();
    let go = place.path("go");
    let then = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let host = place.host("a", 0, EVERY, &then).spawn().unwrap();
    wait_until("it runs", || !place.lines().is_empty());
    server.freeze();
    fs::write(go, "").unwrap();
    let (status, said) = told(&host.wait_with_output().unwrap());
    server.thaw();
    assert_eq!(status, 0, "{said}");
    // What it had accepted it does now, before it is asked.
    std::thread::sleep(Duration::from_secs(2));
    // What the kernel of a frozen server accepted is done when it thaws, though nobody hears of it.
    let heard = place.last_run()["ended"].is_string();
    assert!(heard || said.contains("counts as failed"), "{said}");
    place.skips("b", EVERY, if heard { "done already by " } else { "nobody wrote down how it ended" });
    if !heard {
        assert_eq!(place.ask("c", 0, &["--every", "366d", "--retry-failed", "1"], "").0, 0);
    }
}

fn a_job_that_was_stopped_is_not_done_whatever_its_command_says(place: &Place) {
    let ready = place.path("ready");
    let obliging = format!("trap 'exit 0' TERM; echo >{}; sleep 1000 & wait", ready.display());
    let stopped = |name: &str, stop: &dyn Fn(&Child)| {
        let _ = fs::remove_file(&ready);
        let host = place.host("a", 0, &["--once", name], &obliging).spawn().unwrap();
        wait_until("it runs", || ready.exists());
        stop(&host);
        told(&host.wait_with_output().unwrap()).0
    };
    let asked = |host: &Child| kill(Pid::from_raw(host.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(stopped("asked", &asked), 143);
    assert_eq!(stopped("stepped-down", &|_| drop(place.order(&["step-down", "shard", "--for", "1s", "--force"]))), 143);
    let overran = place.ask("a", 0, &["--once", "overran", "--max-run", "3s"], &obliging);
    assert_eq!(overran.0, 124, "{overran:?}");
    for (name, wanted) in [("asked", 143), ("stepped-down", 143), ("overran", 124)] {
        let (status, said) = place.ask("b", 0, &["--once", name], "exit 1");
        assert!(status == wanted && said.contains("failed already"), "{name}: {status} {said}");
    }
}

#[test]
fn two_jobs_in_one_shard_are_warned_of() {
    let place = Place::local();
    assert_eq!(place.ask("a", 0, &["--every", "366d"], "").0, 0);
    let (_, said) = place.ask("b", 0, &["--every", "365d"], "");
    assert!(said.contains("was of a job every 1year 18h"), "{said}");
    assert!(said.contains("two jobs need two shards"), "{said}");
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let place = Place::local();
    for (flags, part) in [
        (&["--every", "0"][..], "1s"),
        (&["--every", "999ms"], "1s"),
        (&["--every", "9years"], "366 days"),
        (&["--every", "1s 1ns"], "milliseconds"),
        (&["--every", "5m", "--once", "a"], "--every and --once exclude each other"),
        (&["--retry-failed", "1"], "--every or --once"),
        (&["--every", "5m", "--retry-failed", "-1"], "--retry-failed"),
        (&["--once", ""], "letters, digits"),
        (&["--once", "a/b"], "letters, digits"),
        (&["--once", ".."], "letters, digits"),
    ] {
        let (status, said) = place.ask("a", 0, flags, "");
        assert!(status == 64 && said.contains(part) && said.lines().count() == 1, "{flags:?}: {status} {said}");
    }
    // On the command line each overrules the other's variable.
    let output = place.host("b", 0, &["--once", "a"], "").env("LEADERRUN_EVERY", "5m").output().unwrap();
    assert_eq!(told(&output).0, 0, "{output:?}");
    assert_eq!(place.lines(), ["b a"]);
}

everywhere!(
    [&a_run_whose_end_cannot_be_written_counts_as_failed,]:
    &of_ten_hosts_that_start_at_once_one_runs,
    &a_run_that_failed_is_repeated_as_often_as_is_allowed,
    &a_run_whose_host_died_counts_as_failed,
    &a_boundary_hit_early_by_one_host_and_late_by_another_is_one_period,
    &a_paused_shard_runs_its_job_when_it_is_resumed,
    &a_host_that_is_asked_to_stop_has_failed,
    &a_job_with_a_name_runs_once,
    &a_job_that_was_stopped_is_not_done_whatever_its_command_says,
    &status_tells_what_has_become_of_a_job_with_a_name,
);
