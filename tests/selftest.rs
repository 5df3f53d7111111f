//! `leaderctl selftest`: what it says of stores that are sound, of one that is away, and of a tree that was broken; and
//! that it leaves nothing behind, however it ends.

#[macro_use]
mod support;

use std::process::Child;
use support::prelude::*;
use support::server::{Server, pid_of};

const FAULTS: [&str; 9] =
    ["stop", "kill", "kill-guard", "freeze", "stubborn", "slow", "short-partition", "partition", "clock"];
/// Longer than the default: a leader that is not to be disturbed outlasts a stall of the machine.
const LEASE: [&str; 2] = ["--lease", "12s"];
const OF_NETWORK: [&str; 3] = ["slow", "short-partition", "partition"];

/// A store, and a directory that all of a self-test's processes have in their environment, and nobody else.
struct Bench {
    place: Place,
    temporary: TempDir,
}

impl Bench {
    fn local() -> Self {
        Self::at(Place::local())
    }

    fn remote(server: Box<dyn Server>) -> Self {
        Self::at(Place::remote(server))
    }

    fn at(place: Place) -> Self {
        Self { place, temporary: TempDir::new().unwrap() }
    }

    fn selftest(&self, words: &[&str]) -> Command {
        let mut command = leaderctl();
        command.env("LEADERRUN_STORE", &self.place.url).envs(self.place.environment.iter().copied());
        // The store of a busy machine takes its time.
        command.args(["--request-timeout", "1m"]);
        command.env("TMPDIR", self.temporary.path()).arg("selftest").args(words);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Said {
        self.selftest(words).said()
    }

    fn begin(&self, words: &[&str]) -> Child {
        self.selftest(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Whatever was started here and runs.
    fn processes(&self) -> Vec<i32> {
        let marker = format!("TMPDIR={}", self.temporary.path().display());
        processes().filter(|number| shown(*number, "environ").contains(&marker)).collect()
    }

    #[track_caller]
    fn assert_is_left_clean(&self) {
        let left: Vec<String> = self.processes().iter().map(|number| shown(*number, "cmdline")).collect();
        assert_eq!(left, Vec::<String>::new());
        assert_eq!(fs::read_dir(self.temporary.path()).unwrap().count(), 0, "the scratch directory is left");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for number in self.processes() {
            let _ = kill(Pid::from_raw(number), Signal::SIGKILL);
        }
    }
}

fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn shown(number: i32, what: &str) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{number}/{what}")).unwrap_or_default()).into_owned()
}

#[track_caller]
fn assert_held(said: &Said, expected: &[&str]) {
    assert_eq!(said.code, 0, "{said:?}");
    let rows = objects(&said.out);
    let faults: Vec<&str> = rows.iter().map(|row| row["fault"].as_str().unwrap()).collect();
    assert_eq!(faults, expected, "{said:?}");
    for row in &rows {
        let measured = (&row["verdict"], &row["overlap_ms"], &row["orphans"], &row["terms_rise"]);
        let expected = (&Value::from("held"), &Value::from(0), &Value::from(0), &Value::from(true));
        assert_eq!(measured, expected, "{row}\n{}", said.err);
        let hands_over = !matches!(row["fault"].as_str(), Some("slow" | "short-partition"));
        assert_eq!(row["handover_ms"].is_u64(), hands_over, "{row}");
        assert_eq!(row["terms"], if hands_over { 2 } else { 1 }, "{row}");
    }
}

#[test]
fn on_local_files_what_needs_a_network_or_an_expiry_is_not_run_and_the_rest_holds() {
    let bench = Bench::local();
    let said = bench.run(&[]);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    let table = said.out;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), FAULTS.len() + 3, "{table}");
    assert!(lines[0].starts_with("FAULT ") && lines[0].ends_with(" VERDICT"), "{table}");
    let verdicts = lines[0].find("VERDICT").unwrap();
    for (fault, line) in FAULTS.iter().zip(&lines[1..]) {
        assert_eq!(line.split(' ').next(), Some(*fault));
        match *fault {
            "stubborn" => assert!(line[verdicts..].starts_with("not run: a lease of this store is not lost"), "{line}"),
            fault if OF_NETWORK.contains(&fault) => {
                assert_eq!(&line[verdicts..], "not run: the store needs no network");
            }
            _ => assert_eq!(&line[verdicts..], "held", "{table}"),
        }
    }
    assert!(lines[10].starts_with("5 held, 0 failed, 4 not run, in "), "{table}");
    assert!(lines[11].starts_with("the scratch shard leaderrun-selftest/"), "{table}");
    assert!(lines[11].ends_with(" is forgotten"), "{table}");
    // All shards of a directory share the lock of their notes.
    let left = fs::read_dir(bench.place.path("store")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["+lock"]);
    bench.assert_is_left_clean();
}

#[test]
fn what_was_not_run_is_not_passed() {
    let bench = Bench::local();
    let said = bench.run(&["--json", "--only", "partition"]).ended(1);
    let expected = r#"{"fault":"partition","verdict":"not run","why":"the store needs no network","overlap_ms":null,"orphans":null,"terms":null,"terms_rise":null,"handover_ms":null}"#;
    assert_eq!(said.out.trim(), expected);
    bench.assert_is_left_clean();
}

#[cfg(feature = "redis")]
fn holds(faults: &[&str]) {
    let bench = Bench::remote(Box::new(support::redis::Server::start()));
    let only: Vec<&str> = faults.iter().flat_map(|fault| ["--only", fault]).collect();
    let said = bench.run(&[&["--json"], &LEASE[..], &only].concat());
    assert_held(&said, faults);
    let said = said.err;
    assert!(said.starts_with("leaderctl: ") && said.lines().count() == 1, "{said}");
    assert!(said.contains(": the scratch shard leaderrun-selftest/"), "{said}");
    bench.assert_is_left_clean();
}

/// Some of them in each run, and the runs at once: most of them wait for a lease to end.
#[test]
#[cfg(feature = "redis")]
fn everything_holds() {
    std::thread::scope(|runs| {
        for faults in FAULTS.chunks(3) {
            runs.spawn(|| holds(faults));
        }
    });
}

#[test]
fn nonsense_is_refused_in_one_line_before_anything_starts() {
    let bench = Bench::local();
    for words in [&["--lease", "1s"][..], &["--renew", "0"], &["--only", "everything"], &["shard"]] {
        bench.run(words).refused(64, "leaderctl: ");
    }
    let nowhere = bench.temporary.path().join("nowhere");
    let mut command = bench.selftest(&[]);
    command.env("TMPDIR", &nowhere);
    command.said().refused(71, "leaderctl: cannot make a directory in  … /nowhere\": no such file … set TMPDIR");
    assert!(!bench.place.path("store").exists());
}

#[test]
#[cfg(feature = "redis")]
fn a_store_that_is_away_is_said_before_anything_starts() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bench = Bench::local();
    bench.place.url = format!("redis://:hunter2@{closed}");
    bench.run(&[]).refused(69, "leaderctl: ");
    bench.assert_is_left_clean();
}

/// The COMMAND of the leader, and of its daemon, once there are so many.
fn commands(bench: &Bench, count: usize) -> Vec<i32> {
    let mut found = Vec::new();
    wait_until("the leader's command runs", || {
        found = bench.processes();
        found.retain(|number| shown(*number, "cmdline").starts_with("/proc/self/exe\0lr-selftest-command\0"));
        found.len() >= count
    });
    found
}

/// Interrupts it when the fault is under way.
fn interrupted(bench: &Bench, fault: &str, signal: Signal) -> Said {
    let child = bench.begin(&["--lease", "15s", "--only", fault]);
    commands(bench, 1);
    // All of them last for much longer than this, with such a lease.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    kill(pid_of(&child), signal).unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
#[cfg(feature = "redis")]
fn interrupted_on_a_remote_store_it_leaves_nothing_and_releases_the_lease() {
    let bench = Bench::remote(Box::new(support::redis::Server::start()));
    for (fault, signal) in [("freeze", Signal::SIGINT), ("partition", Signal::SIGTERM), ("slow", Signal::SIGHUP)] {
        let said = interrupted(&bench, fault, signal).ended(128 + signal as i32);
        said.tells(" is forgotten");
        bench.assert_is_left_clean();
    }
}

#[test]
#[cfg(feature = "redis")]
fn interrupted_when_the_store_is_away_it_says_how_to_remove_what_it_left() {
    let mut bench = Bench::remote(Box::new(support::redis::Server::start()));
    let child = bench.begin(&["--only", "freeze"]);
    commands(&bench, 1);
    bench.place.server.as_mut().unwrap().kill();
    kill(pid_of(&child), Signal::SIGINT).unwrap();
    let said = Said::from(child.wait_with_output().unwrap()).ended(130);
    said.tells("the store may keep the scratch shard leaderrun-selftest/ … : leaderctl forget leaderrun-selftest/");
    bench.assert_is_left_clean();
}

/// The scratch directory is left then, and what was started ends by itself.
#[test]
#[cfg(feature = "redis")]
fn killed_it_leaves_no_process() {
    let bench = Bench::remote(Box::new(support::redis::Server::start()));
    interrupted(&bench, "freeze", Signal::SIGKILL);
    wait_until("nothing is left", || bench.processes().is_empty());
}

#[test]
#[cfg(feature = "redis")]
fn a_password_is_shown_to_nobody() {
    let mut bench = Bench::remote(Box::new(support::redis::Server::start()));
    let port = bench.place.server().port();
    assert_eq!(support::redis::cli(port, &["CONFIG", "SET", "requirepass", "hunter2"]), "OK");
    bench.place.url = bench.place.url.replace("redis://", "redis://:hunter2@");
    let child = bench.begin(&[LEASE[0], LEASE[1], "--only", "stop", "--only", "short-partition"]);
    let begun = std::time::Instant::now();
    while begun.elapsed().as_secs() < 4 {
        for number in bench.processes() {
            assert!(!shown(number, "cmdline").contains("hunter2"));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Said::from(child.wait_with_output().unwrap()).ended(0).tells("");
    bench.assert_is_left_clean();
}

/// Its number is a real shard's, whether that is led or not.
#[test]
#[cfg(feature = "postgres")]
fn a_lock_of_other_programs_is_left_alone() {
    let mut bench = Bench::local();
    bench.place.url = "postgres://h/db?advisory_lock=7".to_owned();
    bench.run(&[]).refused(64, "leaderctl: advisory_lock= in the store URL belongs to a real shard: leave it out");
}

/// All three keepers of a tree are killed in one instant, which no process can survive: its daemon lives on, beside the
/// next leader's tree. That is the evidence of a broken leaderrun, and it has to be seen, and be cleaned up.
#[test]
#[cfg(feature = "redis")]
fn a_tree_that_outlives_its_lease_fails_and_is_ended() {
    use support::fleet::{children_of, helpers_of};
    let bench = Bench::remote(Box::new(support::redis::Server::start()));
    let child = bench.begin(&["--only", "stubborn", LEASE[0], LEASE[1]]);
    commands(&bench, 2);
    let leads = |candidate: &i32| !children_of(*candidate).is_empty();
    let candidate = children_of(pid_of(&child).as_raw()).into_iter().find(leads).expect("somebody leads");
    let candidate = Pid::from_raw(candidate);
    let [backstop, guard] = helpers_of(candidate);
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for keeper in [candidate, backstop, guard] {
            kill(keeper, signal).unwrap();
        }
    }
    let said = Said::from(child.wait_with_output().unwrap()).ended(1).tells("leaderctl: candidate 1: ");
    let table = said.out;
    let row = table.lines().nth(1).unwrap();
    assert!(row.contains("failed: two at once for ") && row.contains("1 processes are left"), "{table}");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert!(cells[1].trim_end_matches("ms").parse::<u64>().unwrap() > 100 && cells[2] == "1", "{table}");
    bench.assert_is_left_clean();
}
