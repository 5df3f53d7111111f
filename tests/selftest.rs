//! `leaderctl selftest`: what it says of stores that are sound, of one that is away, and of a tree that was broken; and
//! that it leaves nothing behind, however it ends.

#[macro_use]
mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use support::fleet::{leaderctl, wait_until};
use support::server::Server;
use tempfile::TempDir;

const FAULTS: [&str; 9] =
    ["stop", "kill", "kill-guard", "freeze", "stubborn", "slow", "short-partition", "partition", "clock"];
const OF_NETWORK: [&str; 3] = ["slow", "short-partition", "partition"];

/// A store, and a directory that all of a self-test's processes have in their environment, and nobody else.
struct Place {
    scratch: TempDir,
    temporary: TempDir,
    url: String,
    environment: &'static [(&'static str, &'static str)],
    server: Option<Box<dyn Server>>,
}

impl Place {
    fn local() -> Self {
        let scratch = TempDir::new().unwrap();
        let url = format!("file:{}", scratch.path().join("store").display());
        Self { scratch, temporary: TempDir::new().unwrap(), url, environment: &[], server: None }
    }

    fn remote(server: Box<dyn Server>) -> Self {
        Self::local().with(server)
    }

    fn with(mut self, mut server: Box<dyn Server>) -> Self {
        support::server::prepare(&*server);
        server.grow_old();
        self.url = server.own_url();
        self.environment = server.environment();
        self.server = Some(server);
        self
    }

    fn selftest(&self, words: &[&str]) -> Command {
        let mut command = leaderctl();
        command.env("LEADERRUN_STORE", &self.url).envs(self.environment.iter().copied());
        command.env("TMPDIR", self.temporary.path()).arg("selftest").args(words);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.selftest(words).output().unwrap()
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

impl Drop for Place {
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

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Of `--json`.
fn rows(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn assert_held(output: &Output, expected: &[&str]) {
    let rows = rows(output);
    let faults: Vec<&str> = rows.iter().map(|row| row["fault"].as_str().unwrap()).collect();
    assert_eq!(faults, expected, "{output:?}");
    for row in &rows {
        let measured = (&row["verdict"], &row["overlap_ms"], &row["orphans"], &row["terms_rise"]);
        let expected = (&Value::from("held"), &Value::from(0), &Value::from(0), &Value::from(true));
        assert_eq!(measured, expected, "{row}\n{}", text(&output.stderr));
        let hands_over = !matches!(row["fault"].as_str(), Some("slow" | "short-partition"));
        assert_eq!(row["handover_ms"].is_u64(), hands_over, "{row}");
        assert_eq!(row["terms"], if hands_over { 2 } else { 1 }, "{row}");
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn on_local_files_what_needs_a_network_or_an_expiry_is_not_run_and_the_rest_holds() {
    let place = Place::local();
    let output = place.run(&[]);
    let table = text(&output.stdout);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(lines.len(), FAULTS.len() + 3, "{table}");
    assert!(lines[0].starts_with("FAULT ") && lines[0].ends_with(" VERDICT"), "{table}");
    let verdicts = lines[0].find("VERDICT").unwrap();
    for (fault, line) in FAULTS.iter().zip(&lines[1..]) {
        assert_eq!(line.split(' ').next(), Some(*fault));
        match *fault {
            "stubborn" => assert!(line[verdicts..].starts_with("not run: a lease of this store is not lost"), "{line}"),
            fault if OF_NETWORK.contains(&fault) => {
                assert_eq!(&line[verdicts..], "not run: the store is not behind a network");
            }
            _ => assert_eq!(&line[verdicts..], "held", "{table}"),
        }
    }
    assert!(lines[10].starts_with("5 held, 0 failed, 4 not run, in "), "{table}");
    assert!(lines[11].starts_with("nothing is left of the scratch shard leaderrun-selftest/"), "{table}");
    // All shards of a directory share the lock of their notes.
    let left = fs::read_dir(place.scratch.path().join("store")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["+lock"]);
    assert!(output.stderr.is_empty(), "{output:?}");
    place.assert_is_left_clean();
}

#[test]
fn what_was_not_run_is_not_passed() {
    let place = Place::local();
    let output = place.run(&["--json", "--only", "partition"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = r#"{"fault":"partition","verdict":"not run","why":"the store is not behind a network","overlap_ms":null,"orphans":null,"terms":null,"terms_rise":null,"handover_ms":null}"#;
    assert_eq!(text(&output.stdout).trim(), expected);
    place.assert_is_left_clean();
}

#[test]
fn a_candidate_whose_wall_clock_is_set_shows_it() {
    use std::os::unix::process::CommandExt;
    let place = Place::local();
    let clock = place.scratch.path().join("clock");
    fs::write(&clock, "-3600").unwrap();
    let mut candidate = Command::new(env!("CARGO_BIN_EXE_leaderctl"));
    candidate.arg0("lr-selftest").env("LEADERRUN_STORE", &place.url).args(["-q", "shard", "sleep", "1000"]);
    candidate.env("LEADERRUN_SELFTEST_PARENT", std::process::id().to_string());
    let mut candidate = candidate.env("LEADERRUN_SELFTEST_CLOCK", &clock).spawn().unwrap();
    let mut since = Value::Null;
    wait_until("it leads", || {
        let status = leaderctl().args(["--store", &place.url, "status", "--json", "shard"]).output().unwrap();
        since = serde_json::from_slice::<Value>(&status.stdout).unwrap_or_default()["since"].clone();
        since.is_string()
    });
    kill(pid_of(&candidate), Signal::SIGTERM).unwrap();
    candidate.wait().unwrap();
    let since = humantime::parse_rfc3339(since.as_str().unwrap()).unwrap();
    let ago = since.elapsed().unwrap().as_secs();
    assert!((3600..3800).contains(&ago), "{ago}");
}

fn everything_holds(place: &Place) {
    let output = place.run(&["--json", "--lease", "8s"]);
    assert_held(&output, &FAULTS);
    let said = text(&output.stderr);
    assert!(said.starts_with("leaderctl: ") && said.lines().count() == 1, "{said}");
    assert!(said.contains(" of the scratch shard leaderrun-selftest/"), "{said}");
    place.assert_is_left_clean();
}

fn a_kill_and_a_partition_hold(place: &Place) {
    // Kubernetes speaks TLS alone, which no proxy of ours can cut off.
    let faults: &[&str] = if place.url.starts_with("kubernetes:") { &["kill"] } else { &["kill", "partition"] };
    let words: Vec<&str> = faults.iter().flat_map(|fault| ["--only", fault]).collect();
    assert_held(&place.run(&[&["--json"], &words[..]].concat()), faults);
    place.assert_is_left_clean();
}

macro_rules! stories {
    ($store:ident, $start:expr, [$story:ident]) => {
        mod $store {
            #[test]
            fn $story() {
                crate::$story(&crate::Place::remote(Box::new($start)));
            }
        }
    };
}

every_store!(stories: a_kill_and_a_partition_hold);

#[cfg(feature = "redis")]
mod all_faults {
    stories!(redis, crate::support::redis::Server::start(), [everything_holds]);
}

#[test]
fn nonsense_is_refused_in_one_line_before_anything_starts() {
    let place = Place::local();
    for words in [
        &["--lease", "1s"][..],
        &["--lease", "soon"],
        &["--lease", "-1"],
        &["--renew", "0"],
        &["--retry", "2h"],
        &["--kill-after", "6s"],
        &["--only", "everything"],
        &["--only"],
        &["shard"],
    ] {
        let output = place.run(words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {output:?}");
        assert!(said.starts_with("leaderctl: ") && said.lines().count() == 1, "{words:?}: {said}");
        assert!(output.stdout.is_empty());
    }
    assert!(!place.scratch.path().join("store").exists());
}

#[test]
#[cfg(feature = "redis")]
fn a_store_that_is_away_is_said_before_anything_starts() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut place = Place::local();
    place.url = format!("redis://:hunter2@{closed}");
    let output = place.run(&[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(said.starts_with("leaderctl: ") && said.lines().count() == 1 && !said.contains("hunter2"), "{said}");
    assert!(output.stdout.is_empty());
    place.assert_is_left_clean();
}

/// The COMMAND of the leader, and of its daemon, once there are so many.
fn commands(place: &Place, count: usize) -> Vec<i32> {
    let mut found = Vec::new();
    wait_until("the leader's command runs", || {
        found = place.processes();
        found.retain(|number| shown(*number, "cmdline").starts_with("/proc/self/exe\0lr-selftest-command\0"));
        found.len() >= count
    });
    found
}

/// Interrupts it when the fault is under way.
fn interrupted(place: &Place, fault: &str, signal: Signal) -> Output {
    let child = place.begin(&["--lease", "15s", "--only", fault]);
    commands(place, 1);
    // All of them last for much longer than this, with such a lease.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    kill(pid_of(&child), signal).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn interrupted_on_local_files_it_leaves_nothing() {
    let place = Place::local();
    let output = interrupted(&place, "freeze", Signal::SIGTERM);
    assert_eq!(output.status.code(), Some(128 + 15), "{output:?}");
    assert!(text(&output.stdout).contains("nothing is left of the scratch shard"), "{output:?}");
    place.assert_is_left_clean();
}

#[test]
#[cfg(feature = "redis")]
fn interrupted_on_a_remote_store_it_leaves_nothing_and_releases_the_lease() {
    let place = Place::remote(Box::new(support::redis::Server::start()));
    for (fault, signal) in [("freeze", Signal::SIGINT), ("partition", Signal::SIGTERM), ("slow", Signal::SIGHUP)] {
        let output = interrupted(&place, fault, signal);
        assert_eq!(output.status.code(), Some(128 + signal as i32), "{fault}: {output:?}");
        assert!(
            text(&output.stdout).contains("the store keeps the last term of the scratch shard"),
            "{fault}: {output:?}"
        );
        place.assert_is_left_clean();
    }
}

/// The scratch directory is left then, and what was started ends by itself.
#[test]
#[cfg(feature = "redis")]
fn killed_it_leaves_no_process() {
    let place = Place::remote(Box::new(support::redis::Server::start()));
    interrupted(&place, "freeze", Signal::SIGKILL);
    wait_until("nothing is left", || place.processes().is_empty());
}

#[test]
#[cfg(feature = "redis")]
fn a_password_is_shown_to_nobody() {
    let server = support::redis::Server::start();
    let mut place = Place::remote(Box::new(server));
    let port: String = place.url.chars().filter(char::is_ascii_digit).skip("127001".len()).collect();
    let set = Command::new("redis-cli").args(["-p", &port, "CONFIG", "SET", "requirepass", "hunter2"]).output();
    assert!(set.unwrap().status.success());
    place.url = place.url.replace("redis://", "redis://:hunter2@");
    let child = place.begin(&["--lease", "8s", "--only", "stop", "--only", "short-partition"]);
    let begun = std::time::Instant::now();
    while begun.elapsed().as_secs() < 4 {
        for number in place.processes() {
            assert!(!shown(number, "cmdline").contains("hunter2"));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!format!("{}{}", text(&output.stdout), text(&output.stderr)).contains("hunter2"));
    place.assert_is_left_clean();
}

/// Its number is a real shard's, whether that is led or not. Another number is tested in its place.
#[test]
#[cfg(feature = "postgres")]
fn an_advisory_lock_is_left_to_those_whom_it_is_meant_for_and_another_one_is_tested() {
    let server = support::postgres::Server::start();
    let others = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND (classid, objid) <> (0, 7)";
    let mut count = server.client("postgres");
    count.args(["-c", others]);
    let mut place = Place::remote(Box::new(server));
    place.url += if place.url.contains('?') { "&advisory_lock=7" } else { "?advisory_lock=7" };
    let up = place.scratch.path().join("up");
    let script = format!("touch {}; exec sleep 1000", up.display());
    let mut leader = support::fleet::leaderrun();
    let mut leader = leader.env("LEADERRUN_STORE", &place.url).args(["-q", "shard", "-c", &script]).spawn().unwrap();
    wait_until("it leads", || up.exists());
    let selftest = place.begin(&["--json", "--only", "stop", "--only", "freeze", "--only", "short-partition"]);
    wait_until("another lock is taken", || text(&count.output().unwrap().stdout).trim() == "1");
    let output = selftest.wait_with_output().unwrap();
    let still_leads = leader.try_wait().unwrap().is_none();
    kill(pid_of(&leader), Signal::SIGTERM).unwrap();
    leader.wait().unwrap();
    assert!(still_leads);
    assert_held(&output, &["stop", "freeze", "short-partition"]);
    let said = text(&output.stderr);
    assert!(said.starts_with("leaderctl: advisory_lock= in the URL belongs to a real shard: advisory lock "), "{said}");
    place.assert_is_left_clean();
}

/// All three keepers of a tree are killed in one instant, which no process can survive: its daemon lives on, beside the
/// next leader's tree. That is the evidence of a broken leaderrun, and it has to be seen, and be cleaned up.
#[test]
#[cfg(feature = "redis")]
fn a_tree_that_outlives_its_lease_fails_and_is_ended() {
    use support::fleet::children_of;
    let place = Place::remote(Box::new(support::redis::Server::start()));
    let child = place.begin(&["--only", "stubborn", "--lease", "5s"]);
    commands(&place, 2);
    let leads = |candidate: &i32| !children_of(*candidate).is_empty();
    let candidate = children_of(pid_of(&child).as_raw()).into_iter().find(leads).expect("somebody leads");
    let backstop = children_of(candidate)[0];
    let guard = children_of(backstop)[0];
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for keeper in [candidate, backstop, guard] {
            kill(Pid::from_raw(keeper), signal).unwrap();
        }
    }
    let output = child.wait_with_output().unwrap();
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let row = table.lines().nth(1).unwrap();
    assert!(row.contains("failed: two at once for ") && row.contains("1 processes are left"), "{table}");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert!(cells[1].trim_end_matches("ms").parse::<u64>().unwrap() > 100 && cells[2] == "1", "{table}");
    assert!(text(&output.stderr).contains("leaderctl: candidate 1: "), "{output:?}");
    place.assert_is_left_clean();
}

#[test]
fn its_programs_are_hidden_and_refuse_to_be_started_by_hand() {
    let help = text(&leaderctl().arg("--help").output().unwrap().stdout);
    assert!(help.contains("selftest") && !help.contains("lr-"), "{help}");
    let by_hand = |name: &str, words: &[&str]| {
        use std::os::unix::process::CommandExt;
        Command::new(Path::new(env!("CARGO_BIN_EXE_leaderctl"))).arg0(name).args(words).output().unwrap()
    };
    for (name, words) in [("lr-selftest", &["shard", "true"][..]), ("/proc/self/exe", &["lr-selftest-command"])] {
        let output = by_hand(name, words);
        assert_eq!(output.status.code(), Some(71), "{output:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1);
    }
}

#[test]
#[cfg(feature = "redis")]
fn a_wait_for_a_new_store_is_announced() {
    use std::io::{BufRead, BufReader};
    let server = support::redis::Server::start();
    let mut place = Place::local();
    place.url = support::server::Server::own_url(&server);
    let mut child = place.begin(&["--lease", "1h"]);
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    kill(pid_of(&child), Signal::SIGTERM).unwrap();
    child.wait().unwrap();
    assert!(line.starts_with("leaderctl: the first command starts in ") && line.contains("forgotten"), "{line}");
}
