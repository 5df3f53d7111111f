//! Many candidates of many shards on one real server of each store: what they cost, and how soon every shard is led
//! again when half of the leaders are killed at once.
//!
//! After `cargo build --release --example stamp`, `cargo bench --bench scale` starts 200 candidates, two for each shard,
//! on each store in turn; `-- 1000 redis` starts 1,000 on Redis alone. Each store is a row of the table. Nothing fails
//! but for an overlap: the other numbers are of the machine as much as of the program.
//!
//! `-- list` fills each store with 10,000 leases instead, and measures `leaderctl list`; `-- list 500 redis` does so with
//! 500 on Redis alone. `-- serve` does the same for `leaderctl serve`, with histories.
//!
//! The COMMAND of each shard shows every tenth of a second that it is alive.

mod list;
mod requests;
mod serve;
#[path = "../../tests/support/mod.rs"]
mod support;

use leaderrun::internals::cli::leaderctl::selftest::evidence::{Life, Stamps, overlap};
use leaderrun::internals::time::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use requests::Counted;
use std::fs;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::fleet::{all_children, children_of, leaderrun, stamp_program};
use tempfile::TempDir;

const MIB: f64 = 1024.0 * 1024.0;
const USUAL: usize = 200;
const LISTED: usize = 10_000;
/// How long to watch what a fleet in rest costs.
const REST: Duration = Duration::from_secs(20);
/// How long the server is away: a quarter of the default lease.
const AWAY: Duration = Duration::from_millis(3750);
/// How long a new leader asks for more than renewals.
const SETTLES: Duration = Duration::from_secs(15);
/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_mins(5);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` starts it as well, without this word.
    if !words.iter().any(|word| word == "--bench") {
        println!("ignored: cargo bench --bench scale runs it");
        return;
    }
    let [listing, serving] = ["list", "serve"].map(|name| words.iter().any(|word| word == name));
    let number =
        words.iter().find_map(|word| word.parse().ok()).unwrap_or(if listing || serving { LISTED } else { USUAL });
    let known: [(&str, Start); 5] = [
        ("redis", Counted::redis),
        ("postgres", Counted::postgres),
        ("nats", Counted::nats),
        ("etcd", Counted::etcd),
        ("dynamodb", Counted::dynamodb),
    ];
    let named = |store: &str| words.iter().any(|word| word == store);
    let all = !known.iter().any(|(store, _)| named(store));
    let head = match (listing, serving) {
        (true, _) => list::HEAD,
        (false, true) => serve::HEAD,
        (false, false) => HEAD,
    };
    println!("{head}\n{}", head.replace(|letter| letter != '|', "-"));
    for (store, start) in known.into_iter().filter(|(store, _)| all || named(store)) {
        match (listing, serving) {
            (true, _) => println!("{}", list::measure(store, &mut start(), number)),
            (false, true) => println!("{}", serve::measure(store, &mut start(), number)),
            (false, false) => measure(store, start(), number),
        }
    }
}

type Start = fn() -> Counted;

const HEAD: &str = "| store | candidates | all led after | standby | leader and helpers | server's CPU | connections | \
                    requests a second | in the busiest | half killed: median | worst | server away 3.75 s: \
                    leaderships lost | requests in the busiest second | overlap |";

/// Two candidates for each shard. Ended when dropped.
struct Many {
    scratch: TempDir,
    candidates: Vec<Child>,
    stamps: Vec<Stamps>,
}

impl Many {
    fn start(counted: &Counted, shards: usize) -> Self {
        let scratch = TempDir::new().expect("a scratch directory");
        let url = counted.url();
        let mut candidates = Vec::new();
        for number in 0..2 * shards {
            let (shard, log) = (number % shards, scratch.path().join(format!("{number}.log")));
            let mut command = leaderrun();
            command.args(["-q", "--owner", &format!("c{number}"), "--store", &url]);
            command.args([&format!("shard-{shard}"), "--"]);
            command.arg(stamp_program()).arg(scratch.path().join(shard.to_string())).arg("slowly");
            command.envs(counted.server.environment().iter().copied());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(log).expect("a log"));
            candidates.push(command.spawn().expect("leaderrun starts"));
        }
        let stamps = (0..shards).map(|shard| Stamps::new(scratch.path().join(shard.to_string())).expect("a file"));
        let stamps = stamps.collect();
        Self { scratch, candidates, stamps }
    }

    fn lives(&mut self) -> Vec<Vec<Life>> {
        self.stamps.iter_mut().map(|stamps| stamps.lives().expect("only stamps are in it")).collect()
    }

    /// Waits until each shard has lives like this.
    fn wait(&mut self, what: &str, holds: impl Fn(usize, &[Life]) -> bool) -> Vec<Vec<Life>> {
        let begun = Instant::now();
        loop {
            let lives = self.lives();
            if lives.iter().enumerate().all(|(shard, lives)| holds(shard, lives)) {
                return lives;
            }
            assert!(begun.elapsed() < PATIENCE, "not so in time: {what}\n{}", self.logs());
            sleep(Duration::from_millis(200));
        }
    }

    fn logs(&self) -> String {
        let files = (0..self.candidates.len()).map(|number| self.scratch.path().join(format!("{number}.log")));
        files.filter_map(|file| fs::read_to_string(file).ok()).filter(|log| !log.is_empty()).take(20).collect()
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        for child in &self.candidates {
            let _ = kill(pid(child), Signal::SIGTERM);
        }
        for child in &mut self.candidates {
            let _ = child.wait();
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("process numbers fit"))
}

fn measure(store: &str, mut counted: Counted, number: usize) {
    eprintln!("measuring: {store}");
    let shards = number / 2;
    let server = Rc::clone(&counted.server);
    let begun = Instant::now();
    let mut many = Many::start(&counted, shards);
    many.wait("every shard is led", |_, lives| !lives.is_empty());
    let led_after = begun.elapsed();

    sleep(Duration::from_secs(5));
    let (before, watched) = (cpu_of(server.pid().as_raw()), Instant::now());
    let asked = counted.asked();
    let rest = counted.watch(asked, REST);
    let cpu = (cpu_of(server.pid().as_raw()) - before).as_secs_f64() / watched.elapsed().as_secs_f64();
    let (standby, leader) = memory(&many.candidates);
    let connections = connections_to(counted.address.port());

    // Half of the leaders, at one instant.
    let lives = many.lives();
    let current = |lives: &[Life]| lives.iter().max_by_key(|life| life.last).expect("it is led").clone();
    let leaders: Vec<Life> = lives.iter().map(|lives| current(lives)).collect();
    let victims: Vec<usize> = (0..shards).step_by(2).collect();
    let leads = |life: &Life| life.owner[1..].parse::<usize>().expect("a number");
    let killed = BootInstant::now();
    for &shard in &victims {
        let _ = many.candidates[leads(&leaders[shard])].kill();
    }
    let lives = many.wait("every shard is led again", |shard, lives| {
        shard % 2 == 1 || lives.iter().any(|life| life.term > leaders[shard].term)
    });
    let mut times: Vec<Duration> = victims
        .iter()
        .map(|&shard| {
            let next = lives[shard].iter().filter(|life| life.term > leaders[shard].term).map(|life| life.first).min();
            BootInstant::from_nanos(next.expect("it is led again")).since(killed)
        })
        .collect();
    times.sort();

    // What begins a leadership is no part of the usual.
    sleep(SETTLES);
    let before: Vec<u64> = many.lives().iter().map(|lives| current(lives).term).collect();
    let asked = counted.asked();
    server.freeze();
    sleep(AWAY);
    server.thaw();
    let back = counted.watch(asked, AWAY * 4);
    let lives = many.lives();
    let lost = (0..shards).filter(|&shard| current(&lives[shard]).term > before[shard]).count();
    if lost > 0 {
        eprintln!("{store}: {lost} leaderships were lost:\n{}", many.logs());
    }
    let overlap = lives.iter().map(|lives| overlap(lives)).max().unwrap_or_default();
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let mebibytes = |bytes: f64| format!("{:.2} MiB", bytes / MIB);
    println!(
        "| {store} | {number} | {} | {} | {} | {:.1} % | {connections} | {:.0} | {:.0} | {} | {} | {lost} | {:.0} \
         | {} ms |",
        seconds(led_after),
        mebibytes(standby),
        mebibytes(leader),
        cpu * 100.0,
        rest.mean(),
        rest.busiest(),
        seconds(times[times.len() / 2]),
        seconds(times[times.len() - 1]),
        back.busiest(),
        overlap.as_millis()
    );
    assert!(overlap.is_zero(), "two COMMANDs of a shard ran at once");
}

/// The mean of a standby, and of a leader with its helpers, without COMMAND: shared pages are counted once.
fn memory(candidates: &[Child]) -> (f64, f64) {
    let children = all_children();
    let (mut standbys, mut leaders) = (Vec::new(), Vec::new());
    for child in candidates {
        let (mut sum, mut process, mut helpers) = (0.0, pid(child).as_raw(), 0);
        loop {
            sum += proportional(process);
            let ours = children.get(&process).into_iter().flatten().find(|&&child| is_helper(child));
            let Some(&next) = ours else { break };
            (process, helpers) = (next, helpers + 1);
        }
        if helpers > 0 { leaders.push(sum) } else { standbys.push(sum) }
    }
    let mean = |sums: &[f64]| sums.iter().sum::<f64>() / f64::from(u32::try_from(sums.len().max(1)).expect("few"));
    (mean(&standbys), mean(&leaders))
}

/// Whether it is the backstop or the guard, and not COMMAND.
fn is_helper(process: i32) -> bool {
    let program = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| name == "leaderrun")
}

fn proportional(process: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number of kB") * 1024.0
}

/// What a process and its children have used of the processors.
fn cpu_of(process: i32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let (_, fields) = text.rsplit_once(") ").unwrap_or_default();
    // utime and stime, proc_pid_stat(5).
    let ticks: u64 = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    let below: Duration = children_of(process).into_iter().map(cpu_of).sum();
    Duration::from_millis(ticks * 10) + below
}

fn connections_to(port: u16) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").expect("there is a table of sockets");
    let local = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let (at, state) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        at.ends_with(&local) && state == "01"
    };
    table.lines().filter(is_one).count()
}
