//! What leaderrun costs, beside flock(1) or `etcdctl lock` where both do the same: start-up, memory and handover.
//!
//! After `cargo build --release --example stamp`, `cargo bench --bench compare` measures for some minutes and prints a
//! table; `-- quick` measures less. Each row names its target and whether it was met; nothing fails when one is missed,
//! for the numbers are of the machine as much as of the program. The two tools take turns, so that whatever else the
//! machine does at the time slows both.

#[path = "../tests/support/mod.rs"]
mod support;

use leaderrun::internals::time::BootInstant;
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::fleet::{Fleet, helpers_of, leaderrun};
use support::server::{Server, vouch_for};
use support::{dynamo, etcd, mysql, nats, postgres, redis};
use tempfile::TempDir;

const MIB: f64 = 1024.0 * 1024.0;
const PEER_FACTOR: f64 = 5.0;
const GUARD_PRIVATE: f64 = 2.0 * MIB;
const TIMING: [&str; 8] = ["--lease", "6s", "--renew", "1s", "--kill-after", "1s", "--retry", "1s"];
const WARM_UP: usize = 5;
/// From the start of a standby until it surely waits.
const SETTLES: Duration = Duration::from_secs(1);

/// Runs a program under a lock of another tool.
type Peer = Box<dyn Fn(&[&str]) -> Command>;

type Start = fn() -> Box<dyn Server>;

/// A store, with its targets.
struct Store {
    name: &'static str,
    url: String,
    environment: &'static [(&'static str, &'static str)],
    peer: Option<Peer>,
    standby: f64,
    handover: Option<Duration>,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` starts it as well, without this word.
    if !words.iter().any(|word| word == "--bench") {
        println!("ignored: cargo bench --bench compare runs it");
        return;
    }
    let is_quick = words.iter().any(|word| word == "quick");
    let (starts, handovers) = if is_quick { (40, 3) } else { (100, 20) };
    println!("| what | leaderrun | flock, or etcdctl lock | target | |\n| --- | --- | --- | --- | --- |");
    let scratch = TempDir::new().expect("a scratch directory");
    on_files(&scratch).measure(starts, handovers);
    let servers: [(&str, Start); 6] = [
        ("Redis", || Box::new(redis::Server::start())),
        ("PostgreSQL", || Box::new(postgres::Server::start())),
        ("MySQL", || Box::new(mysql::Server::start())),
        ("NATS", || Box::new(nats::Server::start())),
        ("etcd", || Box::new(etcd::Server::start())),
        ("DynamoDB", || Box::new(dynamo::Server::start())),
    ];
    for (name, start) in servers {
        let server = start();
        vouch_for(&*server);
        on_server(name, &*server).measure(starts, handovers);
    }
}

fn on_files(scratch: &TempDir) -> Store {
    let lock = scratch.path().join("flock");
    let peer = find("flock").map(|flock| -> Peer {
        Box::new(move |words| {
            let mut command = Command::new(&flock);
            command.arg(&lock).args(words);
            command
        })
    });
    Store {
        name: "file",
        url: format!("file:{}", scratch.path().join("store").display()),
        environment: &[],
        peer,
        standby: 8.0 * MIB,
        handover: Some(Duration::from_millis(50)),
    }
}

fn on_server(name: &'static str, server: &dyn Server) -> Store {
    let endpoint = format!("http://{}", server.address());
    let peer = find("etcdctl").filter(|_| name == "etcd").map(|etcdctl| -> Peer {
        Box::new(move |words| {
            let mut command = Command::new(&etcdctl);
            command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint, "lock", "peer"]).args(words);
            command
        })
    });
    Store {
        name,
        url: server.own_url(),
        environment: server.environment(),
        peer,
        standby: 14.0 * MIB,
        // On DynamoDB, a standby looks once a second.
        handover: Some(Duration::from_secs(1)).filter(|_| name != "DynamoDB"),
    }
}

impl Store {
    fn measure(&self, starts: usize, handovers: usize) {
        self.start_up(starts);
        self.memory();
        self.handover(false, handovers);
        self.handover(true, handovers);
    }

    fn flags(&self) -> Vec<&str> {
        [&["--store", &self.url], TIMING.as_slice()].concat()
    }

    /// The whole life of `leaderrun -n SHARD true`.
    fn start_up(&self, rounds: usize) {
        eprintln!("measuring: start-up, {}", self.name);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP + rounds {
            let mut command = leaderrun();
            command.args(["--store", &self.url, "-q", "-n", "start-up", "true"]).envs(self.environment.iter().copied());
            let our_time = duration_of(command);
            let their_time = self.peer.as_ref().map(|peer| duration_of(peer(&["true"])));
            if round >= WARM_UP {
                ours.push(our_time);
                theirs.extend(their_time);
            }
        }
        let ours = median(&mut ours);
        let what = format!("start-up and end, {}, median of {rounds}", self.name);
        if theirs.is_empty() {
            return row(&what, &millis(ours), "", None);
        }
        let theirs = median(&mut theirs);
        let factor = ours.as_secs_f64() / theirs.as_secs_f64();
        let target = (format!("at most {PEER_FACTOR} x"), factor <= PEER_FACTOR);
        row(&what, &millis(ours), &format!("{}; ours is {factor:.1} x", millis(theirs)), Some(target));
    }

    fn memory(&self) {
        eprintln!("measuring: memory, {}", self.name);
        let mut fleet = Fleet::new();
        fleet.start("leader", &self.flags(), &[], self.environment);
        fleet.leader();
        fleet.start("standby", &self.flags(), &[], self.environment);
        let their = || {
            let mut command = self.peer.as_ref()?(&["sleep", "8"]);
            Some(command.stdout(Stdio::null()).spawn().expect("it starts"))
        };
        let holder = their();
        sleep(SETTLES);
        let waiting = their();
        sleep(3 * SETTLES);
        let beside = |peer: &Option<Child>| {
            let resident = |child: &Child| mebibytes(Memory::of(child.id().cast_signed()).resident);
            peer.as_ref().map(resident).unwrap_or_default()
        };
        let of = |pid: Pid| Memory::of(pid.as_raw());
        let candidate = fleet.pid("leader");
        let [backstop, guard] = helpers_of(candidate).map(of);
        let standby = of(fleet.pid("standby"));
        let at_most =
            |most: f64, what: &str, value: f64| Some((format!("at most {:.0} MiB {what}", most / MIB), value <= most));
        let is_small = |helper: &Memory| at_most(GUARD_PRIVATE, "private", helper.private);
        let is_slim = at_most(self.standby, "RSS", standby.resident);
        for (who, memory, theirs, target) in [
            ("the leader's candidate", of(candidate), beside(&holder), None),
            ("its backstop", backstop, String::new(), is_small(&backstop)),
            ("its guard", guard, String::new(), is_small(&guard)),
            ("a standby", standby, beside(&waiting), is_slim),
        ] {
            let ours = format!("{} RSS, {} private", mebibytes(memory.resident), mebibytes(memory.private));
            row(&format!("memory of {who}, {}", self.name), &ours, &theirs, target);
        }
        for mut child in [holder, waiting].into_iter().flatten() {
            child.wait().expect("it ends");
        }
        fleet.conclude();
    }

    /// Ends one leader after another, and measures how long it takes to the first sign of life of the next COMMAND.
    fn handover(&self, kill: bool, rounds: usize) {
        let how = if kill { "kill -9" } else { "SIGTERM" };
        eprintln!("measuring: handover after {how}, {}", self.name);
        let mut fleet = Fleet::new();
        fleet.start("0", &self.flags(), &[], self.environment);
        fleet.leader();
        let (mut since_signal, mut since_end) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let (old, new) = (round.to_string(), (round + 1).to_string());
            fleet.start(&new, &self.flags(), &[], self.environment);
            sleep(SETTLES);
            let signalled = BootInstant::now();
            if kill {
                fleet.kill(&old);
            } else {
                fleet.stop(&old);
            }
            let next = BootInstant::from_nanos(fleet.leader_where(|life| life.owner == new).first);
            let last = fleet.lives().into_iter().find(|life| life.owner == old).expect("the old one has led").last;
            since_signal.push(next.since(signalled));
            since_end.push(next.since(BootInstant::from_nanos(last)));
        }
        fleet.conclude();
        let worst = *since_signal.iter().max().expect("at least one round");
        let ours = format!(
            "{} median, {} worst since the signal; {} median since the end of COMMAND",
            millis(median(&mut since_signal)),
            millis(worst),
            millis(median(&mut since_end))
        );
        let target = self.handover.map(|most| (format!("worst below {}", millis(most)), worst < most));
        row(&format!("handover after {how}, {}, {rounds} rounds", self.name), &ours, "", target);
    }
}

fn duration_of(mut command: Command) -> Duration {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status().expect("it starts");
    let taken = begun.elapsed();
    assert!(status.success(), "{command:?}: {status}");
    taken
}

#[derive(Clone, Copy)]
struct Memory {
    resident: f64,
    /// What would be freed if it ended. Backstop and guard are one forked process: what neither of them has written
    /// since counts here for neither.
    private: f64,
}

impl Memory {
    fn of(process: i32) -> Self {
        // VmRSS in /proc/PID/status may be off by some pages for each core (proc(5)): the kernel adds it up lazily.
        let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).expect("the process runs and is ours");
        let of = |name: &str| {
            let value = rollup.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells it");
            value.trim().trim_end_matches(" kB").parse::<f64>().expect("a number of kB") * 1024.0
        };
        Self { resident: of("Rss:"), private: of("Private_Clean:") + of("Private_Dirty:") }
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// `target`: what it is, and whether it was met.
fn row(what: &str, ours: &str, theirs: &str, target: Option<(String, bool)>) {
    let (target, verdict) =
        target.map_or_else(Default::default, |(target, met)| (target, if met { "met" } else { "MISSED" }));
    println!("| {what} | {ours} | {theirs} | {target} | {verdict} |");
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.2} MiB", bytes / MIB)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    let (below, above) = (times[(times.len() - 1) / 2], times[times.len() / 2]);
    (below + above) / 2
}
