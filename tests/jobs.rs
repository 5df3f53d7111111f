//! Jobs that run once a period, or once at all, with real candidates and real servers: however many hosts start them, at
//! most one run succeeds, and one that failed is repeated only where that is allowed.

#[macro_use]
mod support;

use std::collections::BTreeSet;
use std::process::Child;
use support::prelude::*;

/// A machine that stands still for a while loses no such lease, and nobody waits for its end: what a killed candidate leaves
/// gives it back.
const PATIENT: [&str; 10] =
    ["--lease", "30s", "--renew", "1s", "--kill-after", "1s", "--retry", "1s", "--stop-timeout", "1s"];

impl Place {
    fn runs(&self) -> PathBuf {
        self.path("runs")
    }

    /// A host whose wall clock is off by `shift` seconds runs a job that writes a line, and then does `then`.
    fn host(&self, name: &str, shift: i64, job: &[&str], then: &str) -> Command {
        let mut command = leaderrun();
        let file = self.path(&format!("{name}.clock"));
        fs::write(&file, shift.to_string()).unwrap();
        command.args(usual_but(&PATIENT, job)).args(["-v", "--store", &self.url, "--owner", name]).arg("shard");
        let told = "$LEADERRUN_DUE$LEADERRUN_JOB $LEADERRUN_ATTEMPT $LEADERRUN_PREVIOUS";
        command.args(["-c", &format!("echo {name} {told} >>{}; {then}", self.runs().display())]);
        command.envs(self.environment.iter().copied());
        if shift != 0 {
            command.env("LD_PRELOAD", support::world::wall_clock()).env("WALLCLOCK_FILE", file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn attempt(&self, name: &str, shift: i64, job: &[&str], then: &str) -> (i32, String) {
        let said = self.host(name, shift, job, then).said();
        (said.code, said.err)
    }

    #[track_caller]
    fn skips(&self, name: &str, job: &[&str], why: &str) {
        let before = self.lines().len();
        let (status, said) = self.attempt(name, 0, job, "exit 1");
        assert!(status == 0 && said.contains("skipped: ") && said.contains(why), "{status} {said}");
        assert_eq!(self.lines().len(), before, "{said}");
    }

    /// Who ran it so far, and as what.
    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.runs()).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn last_run(&self) -> Value {
        self.object(&["status", "shard", "--json"])["last_run"].clone()
    }

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

fn told(host: Child) -> (i32, String) {
    let said = Said::from(host.wait_with_output().unwrap());
    (said.code, said.err)
}

const EVERY: &[&str] = &["--every", "366d"];

fn of_ten_hosts_that_start_at_once_one_runs(place: &Place) {
    let name = |host: usize| format!("h{host}");
    let hosts: Vec<Child> = (0..10).map(|host| place.host(&name(host), 0, EVERY, "").spawn().unwrap()).collect();
    for host in hosts {
        let (status, said) = told(host);
        assert_eq!(status, 0, "{said}");
        assert!(said.contains("released"), "each of them got the lease: {said}");
    }
    let lines = place.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let [winner, period, "1", "none"] = lines[0].split(' ').collect::<Vec<_>>()[..] else { panic!("{lines:?}") };
    assert!(period.ends_with(":00Z"), "{period}");
    let run = place.last_run();
    assert_eq!((&run["owner"], &run["period"]), (&winner.into(), &period.into()), "{run}");
    assert_eq!((&run["exit_status"], &run["attempts"]), (&0.into(), &1.into()), "{run}");
    assert!(run["started"].is_string() && run["ended"].is_string() && run["host"].is_string(), "{run}");
    let text = place.order(&["status", "shard"]);
    assert!(text.contains("last run") && text.contains("exited with 0"), "{text}");
}

fn a_run_that_failed_is_repeated_as_often_as_is_allowed(place: &Place) {
    assert_eq!(place.attempt("a", 0, EVERY, "exit 3").0, 3);
    place.skips("b", EVERY, "--retry-failed 1 allows another one");
    // It repeats by itself what may be repeated.
    assert_eq!(place.attempt("c", 0, &["--every", "366d", "--retry-failed", "2"], "exit 4").0, 4);
    assert_eq!(place.last_run()["attempts"], 3);
    // With -n it does not wait for that.
    let thrice = ["-n", "--every", "366d", "--retry-failed", "4"];
    assert_eq!(place.attempt("d", 0, &thrice, "kill -9 $$").0, 137);
    assert_eq!(place.last_run()["exit_status"], 137);
    assert_eq!(place.attempt("f", 0, &["--every", "366d", "--retry-failed", "4"], "").0, 0);
    place.skips("g", &["--every", "366d", "--retry-failed", "99"], "leave --every out for an extra run");
    assert_eq!(place.attempt("h", 0, &["--every", "366d", "--done-exit-code", "7"], "").0, 7);
    let lines = place.lines();
    let runs: Vec<String> =
        lines.iter().map(|line| format!("{} {}", &line[..1], line.split_once("Z ").unwrap().1)).collect();
    assert_eq!(runs, ["a 1 none", "c 2 failed:3", "c 3 failed:4", "d 4 failed:4", "f 5 failed:137"]);
    let periods: BTreeSet<&str> = lines.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(periods.len(), 1, "a repeat belongs to the period that it repeats: {lines:?}");
}

fn a_run_whose_host_died_counts_as_failed(place: &Place) {
    let first = place.start("a", EVERY);
    assert!(place.last_run()["ended"].is_null());
    assert!(place.order(&["status", "shard"]).contains("it runs"));
    place.kill(first);
    place.skips("b", EVERY, "nobody recorded how it ended");
    assert_eq!(place.attempt("c", 0, &["--every", "366d", "--retry-failed", "1"], "").0, 0);
    assert!(place.lines()[1].ends_with(" 2 unknown"), "{:?}", place.lines());
    place.skips("d", EVERY, "did the run of");
}

/// Half a year and more, in seconds.
const HALF: i64 = 183 * 86_400;

fn hosts_whose_clocks_differ_by_less_than_half_a_period_run_it_once_in_each(place: &Place) {
    assert_eq!(place.attempt("early", -1, EVERY, "").0, 0);
    for (name, off) in [("late", 1), ("punctual", 0), ("slow", 1000 - HALF), ("fast", HALF - 1000)] {
        let (status, said) = place.attempt(name, off, EVERY, "");
        assert!(status == 0 && said.contains("skipped: "), "{name}: {status} {said}");
    }
    assert_eq!(place.lines().len(), 1, "{:?}", place.lines());
    // The next period is due half a period before its time, and then it has run for hosts that are behind.
    assert_eq!(place.attempt("next", HALF + 1000, EVERY, "").0, 0);
    for off in [HALF - 1000, 2 * HALF, 3 * HALF - 1000] {
        let (status, said) = place.attempt("another", off, EVERY, "");
        assert!(status == 0 && said.contains("skipped: "), "{off}: {status} {said}");
    }
    assert_eq!(place.lines().len(), 2);
}

fn nothing_repeats_a_job_with_a_name_by_itself_unless_that_is_allowed(place: &Place) {
    let go = place.path("go");
    let fails = format!("until [ -e {} ]; do sleep 0.05; done; exit 3", go.display());
    let waits = |name: &str, flags: &[&str]| {
        let _ = fs::remove_file(&go);
        let leader = place.host("leads", 0, flags, &fails).spawn().unwrap();
        let run = format!("leads {} 1 none", flags[1]);
        let runs = || place.lines().last() == Some(&run);
        wait_until("it runs", runs);
        let mut waiting = place.host(name, 0, flags, "").envs([ANNOUNCED]).spawn().unwrap();
        let is_seen = || place.order(&["status", "shard", "--standbys"]).contains("standbys   1");
        wait_until("it has seen who leads", is_seen);
        assert!(waiting.try_wait().unwrap().is_none());
        fs::write(&go, "").unwrap();
        [leader, waiting].map(told)
    };
    let [led, waited] = waits("waits", &["--once", "a"]);
    assert_eq!((led.0, waited.0), (3, 3), "{waited:?}");
    assert!(waited.1.contains("job a failed on ") && waited.1.contains("start it again to repeat it"), "{waited:?}");
    assert_eq!(place.lines(), ["leads a 1 none"]);

    // The one that waits goes first, and what it did is done for the one that failed.
    let [led, waited] = waits("waits", &["--once", "b", "--retry-failed", "1", "--done-exit-code", "9"]);
    assert_eq!((led.0, waited.0), (9, 0), "{led:?} {waited:?}");
    assert_eq!(place.lines()[1..], ["leads b 1 none", "waits b 2 failed:3"]);

    let [led, waited] = waits("waits", &["--once", "c", "--retry-failed", "0"]);
    assert_eq!((led.0, waited.0), (3, 3), "{led:?} {waited:?}");
    let (status, said) = place.attempt("never", 0, &["--once", "c", "--retry-failed", "0"], "");
    assert!(status == 3 && said.contains("leaderctl jobs shard --clear c"), "at most once ever: {status} {said}");
    assert_eq!(place.lines()[3..], ["leads c 1 none"]);
}

fn leaderctl_tells_what_has_become_of_jobs_and_lets_one_run_again(place: &Place) {
    let ask = |words: &[&str]| {
        let said = place.ctl(&[&["jobs", "shard"], words].concat()).said();
        (said.code, said.all())
    };
    let job = |id: &str| -> Value { serde_json::from_str(&ask(&[id, "--json"]).1).unwrap() };
    assert_eq!(place.attempt("one", 0, &["--once", "a"], "exit 3").0, 3);
    let failed = job("a");
    assert_eq!((&failed["state"], &failed["exit_status"]), (&"failed".into(), &3.into()), "{failed}");
    let (status, text) = ask(&["a"]);
    assert!(status == 1 && text.contains("job a has failed\n") && text.contains("exited with 3"), "{status} {text}");
    assert_eq!(place.attempt("two", 0, &["--once", "a"], "").0, 0);
    let done = job("a");
    assert_eq!((&done["state"], &done["exit_status"], &done["attempts"]), (&"succeeded".into(), &0.into(), &2.into()));
    let (status, text) = ask(&["a"]);
    assert!(status == 0 && text.contains("job a has succeeded\n") && text.contains("\n  owner      two\n"), "{text}");

    let run = place.start("three", &["--once", "b"]);
    wait_until("the store tells the term", || job("b")["state"] == "running");
    let (status, text) = ask(&["b"]);
    assert!(status == 75 && text.contains("job b is running\n"), "{status} {text}");
    let (status, text) = ask(&["--clear", "b"]);
    assert!(status == 75 && text.contains("job b is running"), "{status} {text}");
    // Another job is another matter.
    assert_eq!((&job("a")["state"], &job("c")["state"]), (&"succeeded".into(), &"never".into()));
    let (status, text) = ask(&["c"]);
    assert!(status == 75 && text.contains("job c has never run"), "{status} {text}");
    assert_eq!(ask(&["--clear", "c"]).0, 75);
    place.kill(run);
    wait_until("its lease is over", || job("b")["state"] == "failed");
    assert!(job("b")["ended"].is_null(), "nobody wrote it down");
    let (status, text) = ask(&["b"]);
    assert!(status == 1 && text.contains("nobody recorded how it ended"), "{status} {text}");

    assert_eq!(ask(&["--clear", "a"]), (0, "shard: job a may run again\n".to_owned()));
    assert_eq!(place.attempt("four", 0, &["--once", "a"], "").0, 0);
    assert_eq!(place.lines().last().unwrap(), "four a 1 none");
}

fn a_run_whose_end_cannot_be_written_counts_as_failed(place: &Place) {
    let server = place.server();
    let go = place.path("go");
    let then = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    // It gives up when the lease is over.
    let host = place.host("a", 0, &["--every", "366d", "--lease", "6s"], &then).spawn().unwrap();
    wait_until("it runs", || !place.lines().is_empty());
    server.freeze();
    fs::write(go, "").unwrap();
    let (status, said) = told(host);
    server.thaw();
    assert_eq!(status, 0, "{said}");
    // What it had accepted it does now, before it is asked.
    std::thread::sleep(Duration::from_secs(2));
    // What the kernel of a frozen server accepted is done when it thaws, though nobody hears of it.
    let heard = place.last_run()["ended"].is_string();
    assert!(heard || said.contains("may count as failed"), "{said}");
    place.skips("b", EVERY, if heard { "did the run of" } else { "nobody recorded how it ended" });
    if !heard {
        assert_eq!(place.attempt("c", 0, &["--every", "366d", "--retry-failed", "1"], "").0, 0);
    }
}

on_two_stores!(
    [
        &a_run_whose_end_cannot_be_written_counts_as_failed,
        &a_run_that_failed_is_repeated_as_often_as_is_allowed,
        &leaderctl_tells_what_has_become_of_jobs_and_lets_one_run_again,
    ]:
    &of_ten_hosts_that_start_at_once_one_runs,
    &a_run_whose_host_died_counts_as_failed,
    &hosts_whose_clocks_differ_by_less_than_half_a_period_run_it_once_in_each,
    &nothing_repeats_a_job_with_a_name_by_itself_unless_that_is_allowed,
);
