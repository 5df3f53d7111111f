//! What leaderrun costs, beside flock(1) or `etcdctl lock` where both do the same: start-up, memory, handover, requests,
//! and how soon each method of killing empties a tree.
//!
//! `cargo bench --bench compare` measures for about six minutes and prints one table; `-- quick` measures less of
//! everything. Each row names its target and whether it was met; nothing fails when one is missed, for the numbers are
//! of the machine as much as of the program. The two tools take turns within each measurement, so that whatever else
//! the machine does at the time slows both.
//!
//! What cannot be measured, because flock, etcdctl or dynoxide is missing, says so in its row.

mod killing;
#[path = "../../tests/support/mod.rs"]
mod support;

use leaderrun::internals::time::BootInstant;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::fleet::{Fleet, Life, PATIENCE, children_of, leaderrun};
use tempfile::TempDir;

const MIB: f64 = 1024.0 * 1024.0;
const FLOCK_FACTOR: f64 = 5.0;
const STANDBY_ON_FILE: f64 = 8.0 * MIB;
const STANDBY_ON_DYNAMODB: f64 = 14.0 * MIB;
const GUARD_PRIVATE: f64 = 2.0 * MIB;
const HANDOVER_ON_FILE: Duration = Duration::from_millis(50);

/// How much of everything.
struct Extent {
    starts: usize,
    peaks: usize,
    handovers_on_file: usize,
    handovers_on_dynamodb: usize,
    handovers_on_push: usize,
    requests: Duration,
    kills: usize,
}

const FULL: Extent = Extent {
    starts: 100,
    peaks: 9,
    handovers_on_file: 20,
    handovers_on_dynamodb: 5,
    handovers_on_push: 10,
    requests: Duration::from_mins(1),
    kills: 8,
};
const QUICK: Extent = Extent {
    starts: 40,
    peaks: 3,
    handovers_on_file: 10,
    handovers_on_dynamodb: 2,
    handovers_on_push: 3,
    requests: Duration::from_secs(10),
    kills: 2,
};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` starts it as well, without this word.
    if !words.iter().any(|word| word == "--bench") {
        println!("ignored: cargo bench --bench compare runs it");
        return;
    }
    let extent = if words.iter().any(|word| word == "quick") { QUICK } else { FULL };
    build_stamp();
    let flock = find("flock");
    let mut table = Table::default();
    start_up(&extent, flock.as_deref(), &mut table);
    memory_on_file(flock.as_deref(), &mut table);
    let on_file = handovers_on_file(&extent, &mut table);
    dynamodb::measure(&extent, &mut table);
    remote::measure(&extent, on_file, &mut table);
    killing::measure(&extent, &mut table);
    introduce(flock.as_deref());
    table.print();
}

fn introduce(flock: Option<&Path>) {
    let told = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "\n{cores} cores, {} {}, load average {}",
        told("/proc/sys/kernel/ostype"),
        told("/proc/sys/kernel/osrelease"),
        told("/proc/loadavg"),
    );
    match flock {
        Some(path) => {
            let version = Command::new(path).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
            println!("beside {} ({})", path.display(), String::from_utf8_lossy(&version).trim());
        }
        None => println!("flock is missing: nothing to compare with (it is in util-linux)"),
    }
    println!();
}

// Start-up

/// The whole life of `leaderrun -n SHARD true`, and the most memory that the candidate ever had.
fn start_up(extent: &Extent, flock: Option<&Path>, table: &mut Table) {
    let scratch = TempDir::new().expect("a scratch directory");
    let ours = |words: &[&str]| on_file(scratch.path(), &["-q", "-n", "shard"], words);
    let theirs = |words: &[&str]| flock.map(|flock| locked(flock, scratch.path(), words));

    progress("start-up");
    let (our_median, their_median) = medians(extent.starts, || ours(&["true"]), || theirs(&["true"]));
    let factor = |ours: f64, theirs: f64| (format!("at most {FLOCK_FACTOR} x flock"), ours <= FLOCK_FACTOR * theirs);
    table.add(
        &format!("start-up and end, file, median of {}", extent.starts),
        &millis(our_median),
        &their_median
            .map_or_else(missing, |theirs| beside(our_median.as_secs_f64(), theirs.as_secs_f64(), &millis(theirs))),
        their_median.map(|theirs| factor(our_median.as_secs_f64(), theirs.as_secs_f64())),
    );

    progress("peak memory");
    let (mut our_peaks, mut their_peaks) = (Vec::new(), Vec::new());
    for _ in 0..extent.peaks {
        our_peaks.push(peak_of(ours(&["cat"])));
        their_peaks.extend(theirs(&["cat"]).map(peak_of));
    }
    let (our_peak, their_peak) =
        (our_peaks.into_iter().fold(0.0, f64::max), their_peaks.into_iter().fold(0.0, f64::max));
    table.add(
        &format!("peak RSS of that process, most of {}", extent.peaks),
        &mebibytes(our_peak),
        &flock.map_or_else(missing, |_| beside(our_peak, their_peak, &mebibytes(their_peak))),
        flock.map(|_| factor(our_peak, their_peak)),
    );
}

/// How long our command takes, and that of a peer if there is one, in turns.
fn medians(
    rounds: usize,
    ours: impl Fn() -> Command,
    theirs: impl Fn() -> Option<Command>,
) -> (Duration, Option<Duration>) {
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    let warm_up = 5;
    for round in 0..warm_up + rounds {
        let (our_time, their_time) = (duration_of(ours()), theirs().map(duration_of));
        if round >= warm_up {
            our_times.push(our_time);
            their_times.extend(their_time);
        }
    }
    (median(&mut our_times), (!their_times.is_empty()).then(|| median(&mut their_times)))
}

fn duration_of(mut command: Command) -> Duration {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status().expect("it starts");
    let taken = begun.elapsed();
    assert!(status.success(), "{command:?}: {status}");
    taken
}

/// The most resident memory that the process of `command`, which runs cat, has had when it ends.
///
/// What wait4(2) tells (ru_maxrss) is of no use here: it counts the memory that a child shares with its parent between
/// vfork and exec, and would be this program's. The kernel's own high-water mark in /proc begins at the exec, but is
/// gone once the process has ended. It only rises, so the last of readings in close succession is it.
fn peak_of(command: Command) -> f64 {
    let mut running = Running::start(command);
    running.end_command();
    let mut peak = 0.0;
    while let Some(mark) = field(&format!("/proc/{}/status", running.child.id()), "VmHWM:") {
        peak = mark;
    }
    assert!(running.child.wait().expect("it can be waited for").success());
    peak
}

/// A process that runs cat, which has shown that it is there.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut running = Self { child, output };
        running.child.stdin.as_mut().expect("it is piped").write_all(b"there\n").expect("cat reads");
        let mut answer = String::new();
        running.output.read_line(&mut answer).expect("cat answers");
        assert_eq!(answer, "there\n", "cat does not run");
        running
    }

    fn end_command(&mut self) {
        drop(self.child.stdin.take());
    }
}

// Memory

fn memory_on_file(flock: Option<&Path>, table: &mut Table) {
    progress("memory on file");
    let mut fleet = Fleet::new();
    let url = format!("file:{}", fleet.scratch.path().join("store").display());
    fleet.start("leader", &["--store", &url], &[], &[]);
    fleet.leader();
    fleet.start("standby", &["--store", &url], &[], &[]);
    let file = fleet.scratch.path().join("flock");
    let theirs = flock.map(|flock| {
        let lock = || {
            let mut command = Command::new(flock);
            command.arg(&file).arg("cat");
            command
        };
        let holder = Running::start(lock());
        let waiting = lock().stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("flock starts");
        (holder, waiting)
    });
    sleep(Duration::from_secs(3));
    let their_memory = |child: &Child| {
        let Memory { resident, .. } = Memory::of(i32::try_from(child.id()).expect("process numbers fit"));
        mebibytes(resident)
    };
    let peers = theirs.as_ref().map(|(holder, waiting)| (their_memory(&holder.child), their_memory(waiting)));
    memory_rows("file", STANDBY_ON_FILE, &fleet, peers, table);
    if let Some((mut holder, mut waiting)) = theirs {
        holder.end_command();
        holder.child.wait().expect("flock ends");
        waiting.wait().expect("flock ends");
    }
    fleet.conclude();
}

/// Of the candidates `leader` and `standby` and of what the first has started.
fn memory_rows(store: &str, standby_target: f64, fleet: &Fleet, peers: Option<(String, String)>, table: &mut Table) {
    let candidate = fleet.pid("leader").as_raw();
    let backstop = only_child(candidate);
    let guard = only_child(backstop);
    let [leading, backstop, guard] = [candidate, backstop, guard].map(Memory::of);
    let standby = Memory::of(fleet.pid("standby").as_raw());
    let (holding, waiting) = match (peers, store) {
        (Some((holding, waiting)), _) => (holding, waiting),
        (None, "file") => (missing(), missing()),
        (None, _) => (String::new(), String::new()),
    };
    let at_most = |target: f64, what: &str, value: f64| {
        Some((format!("at most {:.0} MiB {what}", target / MIB), value <= target))
    };
    let row = |who: &str| format!("memory of {who}, {store}");
    table.add(&row("the leader's candidate"), &leading.to_string(), &holding, None);
    table.add(&row("its backstop"), &backstop.to_string(), "", at_most(GUARD_PRIVATE, "private", backstop.private));
    table.add(&row("its guard"), &guard.to_string(), "", at_most(GUARD_PRIVATE, "private", guard.private));
    let together = leading.proportional + backstop.proportional + guard.proportional;
    table.add(&row("these three"), &format!("{} PSS", mebibytes(together)), "", None);
    table.add(&row("a standby"), &standby.to_string(), &waiting, at_most(standby_target, "RSS", standby.resident));
}

fn only_child(parent: i32) -> i32 {
    let children = children_of(parent);
    assert_eq!(children.len(), 1, "{parent} has not one child: {children:?}");
    children[0]
}

struct Memory {
    resident: f64,
    /// What would be freed if it ended. Backstop and guard are one forked process: what neither of them has written
    /// since counts here for neither, and for each by half as proportional.
    private: f64,
    /// Its own and its part of what it shares.
    proportional: f64,
}

impl Memory {
    fn of(process: i32) -> Self {
        let rollup = format!("/proc/{process}/smaps_rollup");
        let of = |name: &str| field(&rollup, name).expect("the process runs and is ours");
        // VmRSS in /proc/PID/status may be off by some pages for each core (proc(5)): the kernel adds it up lazily.
        Self { resident: of("Rss:"), private: of("Private_Clean:") + of("Private_Dirty:"), proportional: of("Pss:") }
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [resident, private, shares] = [self.resident, self.private, self.proportional].map(|bytes| bytes / MIB);
        write!(f, "{resident:.1} MiB RSS, {private:.2} private, {shares:.1} PSS")
    }
}

/// A number of bytes that `/proc` tells in kB. None when the line is not there: the process has ended.
fn field(path: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u32 = value.trim().trim_end_matches(" kB").parse().expect("a number of kB");
    Some(f64::from(kilobytes) * 1024.0)
}

// Handover

#[derive(Clone, Copy)]
enum End {
    /// SIGTERM to the candidate.
    Orderly,
    /// SIGKILL to the candidate.
    Killed,
}

/// To the first sign of life of the next COMMAND.
#[derive(Default)]
struct Handovers {
    since_signal: Vec<Duration>,
    /// Since the last sign of life of the last COMMAND, which shows one every two milliseconds.
    since_end: Vec<Duration>,
}

/// Answers the median since the end of COMMAND, after SIGTERM.
fn handovers_on_file(extent: &Extent, table: &mut Table) -> Duration {
    let mut orderly = Duration::ZERO;
    for end in [End::Orderly, End::Killed] {
        let mut fleet = Fleet::new();
        let url = format!("file:{}", fleet.scratch.path().join("store").display());
        let mut handovers =
            hand_over(&mut fleet, end, extent.handovers_on_file, Duration::from_millis(300), &["--store", &url], &[]);
        fleet.conclude();
        if matches!(end, End::Orderly) {
            orderly = median(&mut handovers.since_end);
        }
        handovers.rows("file", end, Some(HANDOVER_ON_FILE), table);
    }
    orderly
}

/// Ends one leader after another. `settle`: from the start of a standby until it surely waits.
fn hand_over(
    fleet: &mut Fleet,
    end: End,
    rounds: usize,
    settle: Duration,
    flags: &[&str],
    environment: &[(&str, &str)],
) -> Handovers {
    let mut handovers = Handovers::default();
    fleet.start("0", flags, &[], environment);
    fleet.leader();
    for round in 0..rounds {
        progress(&format!("handover {} of {rounds}", round + 1));
        let (old, new) = (round.to_string(), (round + 1).to_string());
        fleet.start(&new, flags, &[], environment);
        sleep(settle);
        let signalled = BootInstant::now();
        match end {
            End::Orderly => drop(fleet.stop(&old)),
            End::Killed => fleet.kill(&old),
        }
        let next = first_life(fleet, &new);
        let last = fleet.lives().into_iter().find(|life| life.owner == old).expect("the old one has led").last;
        handovers.since_signal.push(BootInstant::from_nanos(next.first).since(signalled));
        handovers.since_end.push(BootInstant::from_nanos(next.first).since(BootInstant::from_nanos(last)));
        // For the next round to find a sign of life of this one's leader.
        fleet.leader();
    }
    handovers
}

/// Looks seldom: when it looks does not change what it finds, and looking takes time from those who hand over.
fn first_life(fleet: &Fleet, owner: &str) -> Life {
    let begun = Instant::now();
    loop {
        sleep(Duration::from_millis(200));
        if let Some(life) = fleet.lives().into_iter().find(|life| life.owner == owner) {
            return life;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody took over\n{}", fleet.logs());
    }
}

impl Handovers {
    fn rows(mut self, store: &str, end: End, target: Option<Duration>, table: &mut Table) {
        let how = match end {
            End::Orderly => "SIGTERM",
            End::Killed => "kill -9",
        };
        let kinds = [("the signal", &mut self.since_signal), ("the end of COMMAND", &mut self.since_end)];
        for (since, times) in kinds {
            let worst = *times.iter().max().expect("at least one round");
            table.add(
                &format!("handover after {how}, {store}, since {since}, {} rounds", times.len()),
                &format!("{} median, {} worst", millis(median(times)), millis(worst)),
                "",
                target.map(|target| (format!("worst below {} ms", target.as_millis()), worst < target)),
            );
        }
    }
}

// DynamoDB

mod dynamodb {
    use super::support::dynamo::{Proxy, REGION, Server};
    use super::support::fleet::Fleet;
    use super::{End, Extent, STANDBY_ON_DYNAMODB, Table, find, hand_over, memory_rows, progress, sleep};
    use std::collections::BTreeMap;
    use std::time::Duration;

    const TIMING: [&str; 8] = ["--lease", "6s", "--renew", "1s", "--kill-after", "1s", "--retry", "1s"];
    const ENVIRONMENT: [(&str, &str); 4] = [
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_CONFIG_FILE", "/dev/null"),
    ];
    /// A leader renews once in so long, and a standby looks once, by default.
    const RENEW: f64 = 5.0;
    const RETRY: f64 = 2.0;

    pub fn measure(extent: &Extent, table: &mut Table) {
        if std::env::var_os("TEST_DYNOXIDE").is_none() && find("dynoxide").is_none() {
            table.add(
                "everything on DynamoDB",
                "not measured: dynoxide is neither in PATH nor TEST_DYNOXIDE",
                "",
                None,
            );
            return;
        }
        let server = Server::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        for name in ["steady", "orderly", "killed"] {
            runtime.block_on(server.table(name));
        }
        steady(extent, &server, table);
        for (end, name) in [(End::Orderly, "orderly"), (End::Killed, "killed")] {
            let mut fleet = Fleet::new();
            let url = server.url(name);
            let flags = [&["--store", &url], TIMING.as_slice()].concat();
            let settle = Duration::from_millis(2_500);
            let handovers = hand_over(&mut fleet, end, extent.handovers_on_dynamodb, settle, &flags, &ENVIRONMENT);
            fleet.conclude();
            let store = "DynamoDB (polled each 1s)";
            handovers.rows(store, end, None, table);
        }
    }

    /// Memory and requests of a leader and a standby that nothing disturbs, each before a proxy of its own.
    fn steady(extent: &Extent, server: &Server, table: &mut Table) {
        let (before_leader, before_standby) = (Proxy::before(server), Proxy::before(server));
        let url = |proxy: &Proxy| {
            let endpoint = proxy.endpoint().replace(':', "%3A").replace('/', "%2F");
            format!("dynamodb://steady?region={REGION}&endpoint={endpoint}")
        };
        let mut fleet = Fleet::new();
        fleet.start("leader", &["--store", &url(&before_leader)], &[], &ENVIRONMENT);
        fleet.leader();
        fleet.start("standby", &["--store", &url(&before_standby)], &[], &ENVIRONMENT);
        progress("requests to DynamoDB");
        // A renewal and a few polls.
        sleep(Duration::from_secs(8));
        let beginnings = [&before_leader, &before_standby].map(|proxy| counted(&proxy.actions()));
        sleep(extent.requests);
        let (asked, polled) = (counted(&before_leader.actions()), counted(&before_standby.actions()));
        memory_rows("DynamoDB", STANDBY_ON_DYNAMODB, &fleet, None, table);
        fleet.conclude();
        // A leader also reads the orders once a minute.
        for (who, actions, usual, interval, seldom, most_others) in [
            ("the leader", asked, "UpdateItem", RENEW, "one GetItem a minute", 2),
            ("a standby", polled, "GetItem", RETRY, "nothing else", 0),
        ] {
            let expected = extent.requests.as_secs_f64() / interval;
            let number = actions.get(usual).copied().unwrap_or_default();
            let others: u32 = actions.values().sum::<u32>() - number;
            // One more where both ends of the window meet one; a standby's polls are jittered.
            let met = others <= most_others && (f64::from(number) - expected).abs() <= 1.0 + 0.1 * expected;
            table.add(
                &format!("requests of {who} in {} s, DynamoDB", extent.requests.as_secs()),
                &listed(&actions),
                "",
                Some((format!("one {usual} each {interval} s, {seldom}"), met)),
            );
        }
        let [leader, standby] = beginnings.map(|actions| listed(&actions));
        table.add("requests before that, of the leader", &leader, "", None);
        table.add("requests before that, of a standby (8 s)", &standby, "", None);
    }

    fn counted(actions: &[String]) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for action in actions {
            *counts.entry(action.clone()).or_default() += 1;
        }
        counts
    }

    fn listed(actions: &BTreeMap<String, u32>) -> String {
        let words: Vec<String> = actions.iter().map(|(action, number)| format!("{number} {action}")).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(", ") }
    }
}

// Stores that push

mod remote {
    use super::support::fleet::Fleet;
    use super::support::server::{Server, prepare};
    use super::{
        End, Extent, Handovers, MIB, Memory, STANDBY_ON_DYNAMODB, Table, beside, find, hand_over, leaderrun, mebibytes,
        median, medians, millis, progress, sleep,
    };
    use leaderrun::internals::lease::Shard;
    use leaderrun::internals::store::Location;
    use std::process::Command;
    use std::time::{Duration, Instant};

    const TIMING: [&str; 6] = ["--lease", "6s", "--renew", "1s", "--kill-after", "1s"];
    /// From kill -9 of the leader's candidate to the next COMMAND.
    const AFTER_A_KILL: Duration = Duration::from_secs(1);
    /// An orderly handover may take so many round trips more than one on the file store, which makes none.
    const ROUND_TRIPS: u32 = 10;

    /// `on_file`: what an orderly handover takes without a store to ask: the time to start processes.
    pub fn measure(extent: &Extent, on_file: Duration, table: &mut Table) {
        of("Redis", Box::new(super::support::redis::Server::start()), extent, on_file, table);
        of("PostgreSQL", Box::new(super::support::postgres::Server::start()), extent, on_file, table);
        of("MySQL", Box::new(super::support::mysql::Server::start()), extent, on_file, table);
        of("NATS", Box::new(super::support::nats::Server::start()), extent, on_file, table);
        of("etcd", Box::new(super::support::etcd::Server::start()), extent, on_file, table);
    }

    fn of(name: &str, mut server: Box<dyn Server>, extent: &Extent, on_file: Duration, table: &mut Table) {
        progress(name);
        prepare(&*server);
        server.grow_old();
        let url = server.own_url();
        // Until the server has run for a lease, leaders wait in case that it forgot one.
        sleep(Duration::from_secs(8));
        if name == "etcd" {
            beside_etcdctl(extent, &url, &*server, table);
        }
        let round_trip = round_trip(&url);
        table.add(&format!("one look at a lease, {name}, median"), &millis(round_trip), "", None);

        let flags = [&["--store", &url], TIMING.as_slice()].concat();
        let settle = Duration::from_secs(1);
        for end in [End::Orderly, End::Killed] {
            let mut fleet = Fleet::new();
            let mut handovers =
                hand_over(&mut fleet, end, extent.handovers_on_push, settle, &flags, server.environment());
            if matches!(end, End::Killed) {
                standby(name, &mut fleet, &flags, table);
            }
            fleet.conclude();
            let Handovers { since_signal, since_end } = &mut handovers;
            let worst = *since_signal.iter().max().expect("at least one round");
            let (how, times, target) = match end {
                End::Orderly => {
                    let most = on_file + round_trip * ROUND_TRIPS;
                    let target = format!("at most {} ({ROUND_TRIPS} looks more than on file)", millis(most));
                    let met = median(since_end) <= most;
                    ("SIGTERM", format!("{} median since the end of COMMAND", millis(median(since_end))), (target, met))
                }
                End::Killed => {
                    let times =
                        format!("{} median, {} worst since the signal", millis(median(since_signal)), millis(worst));
                    ("kill -9", times, ("worst below 1 s".to_owned(), worst < AFTER_A_KILL))
                }
            };
            table.add(&format!("handover after {how}, {name}, {} rounds", since_end.len()), &times, "", Some(target));
        }
    }

    /// The whole life of a command under a lease in etcd, and under `etcdctl lock`.
    fn beside_etcdctl(extent: &Extent, url: &str, server: &dyn Server, table: &mut Table) {
        progress("etcdctl");
        let etcdctl = find("etcdctl");
        let ours = || {
            let mut command = leaderrun();
            command.args(["--store", url, "-q", "-n", "start-up", "true"]);
            command
        };
        let theirs = || {
            let mut command = Command::new(etcdctl.as_ref()?);
            command.env("ETCDCTL_API", "3").arg("--endpoints").arg(format!("http://{}", server.address()));
            command.args(["lock", "start-up", "true"]);
            Some(command)
        };
        let (our_median, their_median) = medians(extent.starts, ours, theirs);
        let theirs = their_median.map_or_else(
            || "etcdctl is missing".to_owned(),
            |theirs| {
                let shown = format!("{} with etcdctl lock", millis(theirs));
                beside(our_median.as_secs_f64(), theirs.as_secs_f64(), &shown)
            },
        );
        let what = format!("start-up and end, etcd, median of {}", extent.starts);
        table.add(&what, &millis(our_median), &theirs, None);
    }

    /// Memory of a standby that has waited for a while.
    fn standby(name: &str, fleet: &mut Fleet, flags: &[&str], table: &mut Table) {
        fleet.start("standby", flags, &[], &[]);
        sleep(Duration::from_secs(3));
        let standby = Memory::of(fleet.pid("standby").as_raw());
        let target =
            (format!("at most {:.0} MiB RSS", STANDBY_ON_DYNAMODB / MIB), standby.resident <= STANDBY_ON_DYNAMODB);
        table.add(&format!("memory of a standby, {name}"), &mebibytes(standby.resident), "", Some(target));
    }

    fn round_trip(url: &str) -> Duration {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let store =
                Location::from_url(url).expect("a store URL").open(Duration::from_secs(5)).await.expect("it opens");
            let shard: Shard = "round-trip".parse().expect("a shard");
            let mut times = Vec::new();
            for round in 0..60 {
                let begun = Instant::now();
                store.observe(&shard).await.expect("the store answers");
                if round >= 10 {
                    times.push(begun.elapsed());
                }
            }
            median(&mut times)
        })
    }
}

// What is run

fn on_file(directory: &Path, flags: &[&str], words: &[&str]) -> Command {
    let mut command = leaderrun();
    command.arg("--store").arg(format!("file:{}", directory.join("store").display())).args(flags).args(words);
    command
}

fn locked(flock: &Path, directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(flock);
    command.arg(directory.join("flock")).args(words);
    command
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// The COMMAND of the handovers. Cargo builds examples for tests, but not for benches.
fn build_stamp() {
    let bench = std::env::current_exe().expect("a bench has a path");
    let profile = bench.parent().and_then(Path::parent).expect("target/release/deps/BENCH");
    if profile.join("examples/stamp").exists() {
        return;
    }
    let target = profile.parent().expect("target/release");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--example", "stamp", "--target-dir"]).arg(target);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(build.status().expect("cargo starts").success(), "the example stamp does not build");
}

// What is shown

#[derive(Default)]
struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// `target`: what it is, and whether it was met.
    fn add(&mut self, what: &str, ours: &str, theirs: &str, target: Option<(String, bool)>) {
        let (target, verdict) = target.map_or_else(Default::default, |(target, met)| {
            (target, if met { "met".to_owned() } else { "MISSED".to_owned() })
        });
        self.rows.push([what.to_owned(), ours.to_owned(), theirs.to_owned(), target, verdict]);
    }

    fn print(&self) {
        let head = ["what", "leaderrun", "flock, or the peer that is named", "target", ""].map(str::to_owned);
        let width = |column: usize| {
            let cells = std::iter::once(&head).chain(&self.rows).map(|row| row[column].chars().count());
            cells.max().unwrap_or_default()
        };
        let widths: [usize; 5] = std::array::from_fn(width);
        let rule = widths.map(|width| "-".repeat(width));
        for row in [&head, &rule].into_iter().chain(&self.rows) {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

fn missing() -> String {
    "flock is missing".to_owned()
}

fn beside(ours: f64, theirs: f64, shown: &str) -> String {
    format!("{shown}; ours is {:.1} x", ours / theirs)
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / MIB)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    let (below, above) = (times[(times.len() - 1) / 2], times[times.len() / 2]);
    (below + above) / 2
}

fn progress(what: &str) {
    eprintln!("measuring: {what}");
}
