//! Stories that no author wrote: a store, some candidates, and many faults, all drawn from a seed.
//!
//! A seed draws the same story again, but not the same races, because the machine influences those. So a breach is
//! reported with its seed. Replay the seed until the breach occurs again.
//!
//! In some stories an operator gives random orders meanwhile. An order is not a fault; the table lists it beside the
//! faults, because a change of the leader may follow from it.
//!
//! One fault never occurs, because leaderrun promises nothing about it: all three keepers of a tree harmed at once. So
//! harm to one of them is over, or its tree is dead, before the next one is harmed.

use crate::support::evidence::{Evidence, common, median_and_worst, millis};
use crate::support::fleet::{Life, leaderctl, wait_until};
use crate::support::operator::{ORDERED, Operator, Order};
use crate::support::proxy::NetworkFault;
use crate::support::random::Random;
use crate::support::server::Server;
use crate::support::world::{Ends, Kit, LEASE, Story, TIMING, World, name};
use leaderrun::internals::time::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Stdio;
use std::sync::Mutex;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

pub type Stores = &'static [(&'static str, fn() -> Box<dyn Server>)];

/// How long to go on.
#[derive(Clone, Copy)]
pub enum Limit {
    Stories(usize),
    Time(Duration),
}

/// Who is harmed in whom, in the order of [`World::processes`].
const KEEPERS: [&str; 3] = ["candidate", "backstop", "guard"];

#[derive(Clone, Copy, Debug)]
enum Harm {
    Kill(usize),
    Freeze(usize),
    /// The first and another one.
    FreezeTwo(usize),
    KillCommand,
    FreezeCommand,
    Stop,
    Nothing,
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    NetworkFault(&'static str, NetworkFault),
    /// For everybody.
    Climate(&'static str, NetworkFault),
    ServerKilled,
    ServerFrozen,
    Clock(i64),
    Nothing,
}

impl Harm {
    fn draw(random: &mut Random) -> Self {
        let keeper = random.below(3);
        random.one_of(&[
            Self::Kill(keeper),
            Self::Kill(keeper),
            Self::Freeze(keeper),
            Self::FreezeTwo(1 + keeper % 2),
            Self::KillCommand,
            Self::FreezeCommand,
            Self::Stop,
            Self::Nothing,
        ])
    }

    fn name(self) -> Option<String> {
        Some(match self {
            Self::Kill(index) => format!("{} killed", KEEPERS[index]),
            Self::Freeze(index) => format!("{} frozen", KEEPERS[index]),
            Self::FreezeTwo(index) => format!("candidate and {} frozen", KEEPERS[index]),
            Self::KillCommand => "one of COMMAND's tree killed".to_owned(),
            Self::FreezeCommand => "one of COMMAND's tree frozen".to_owned(),
            Self::Stop => "leader asked to end".to_owned(),
            Self::Nothing => return None,
        })
    }
}

impl Trouble {
    fn draw(random: &mut Random) -> Self {
        let latency = NetworkFault::Slow(random.millis(100, 4000));
        let shift = random.one_of(&[3600, -3600]);
        random.one_of(&[
            Self::NetworkFault("black hole", NetworkFault::Partition),
            Self::NetworkFault("slow", latency),
            Self::NetworkFault("storm", NetworkFault::Reset),
            Self::Climate("black hole for all", NetworkFault::Partition),
            Self::Climate("slow for all", latency),
            Self::Climate("storm for all", NetworkFault::Reset),
            Self::ServerKilled,
            Self::ServerFrozen,
            Self::Clock(shift),
            Self::Nothing,
            Self::Nothing,
        ])
    }

    fn name(self) -> Option<String> {
        Some(match self {
            Self::NetworkFault(name, _) | Self::Climate(name, _) => name.to_owned(),
            Self::ServerKilled => "server killed".to_owned(),
            Self::ServerFrozen => "server frozen".to_owned(),
            Self::Clock(_) => "wall clock stepped".to_owned(),
            Self::Nothing => return None,
        })
    }
}

/// The faults of a story so far: in which step and when each began.
type Log = Vec<(usize, u64, String)>;

fn begin(log: &mut Log, step: usize, name: Option<String>) {
    log.extend(name.map(|name| (step, BootInstant::now().as_nanos(), name)));
}

/// Half of them end long before a lease does, and half of them do not.
fn length(random: &mut Random) -> Duration {
    if random.below(2) == 0 { random.millis(50, 3000) } else { random.millis(3000, 10_000) }
}

/// One step of a story: something is done to processes while there is trouble outside, or not.
fn step(index: usize, world: &mut World, random: &mut Random, size: usize, log: &mut Log) {
    let (trouble, harm) = (Trouble::draw(random), Harm::draw(random));
    let (lasts, pause) = (length(random), random.millis(500, 2000));
    let (anybody, which) = (name(random.below(size)), random.next());
    // Mostly the leader, if there is one: there the danger is.
    let leads = world.fleet.lives().last().map(|life| life.owner.clone());
    let target = leads.filter(|_| which % 4 > 0).unwrap_or(anybody);
    begin(log, index, trouble.name());
    match trouble {
        Trouble::NetworkFault(_, fault) => world.set(&target, fault),
        Trouble::Climate(_, fault) => world.set_all(fault),
        Trouble::ServerKilled => world.server.kill(),
        Trouble::ServerFrozen => world.server.freeze(),
        Trouble::Clock(shift) => world.set_wall_clock(&target, shift),
        Trouble::Nothing => {}
    }
    if which % 8 > 3 {
        sleep(lasts / 2);
    }
    let begun = log.len();
    begin(log, index, harm.name());
    if !do_harm(world, &target, harm, lasts, which) {
        // Whom it was meant for was not there.
        log.truncate(begun);
    }
    match trouble {
        Trouble::NetworkFault(..) | Trouble::Climate(..) => world.set_all(NetworkFault::Fair),
        Trouble::ServerKilled => world.server.start_again(),
        Trouble::ServerFrozen => world.server.thaw(),
        Trouble::Clock(_) | Trouble::Nothing => {}
    }
    world.start_those_that_ended();
    sleep(pause);
}

/// False where there was nothing to harm.
fn do_harm(world: &mut World, target: &str, harm: Harm, lasts: Duration, which: u64) -> bool {
    let (keepers, tree) = (world.processes(target), world.tree(target));
    let of_tree = tree.get(usize::try_from(which % 97).expect("small") % tree.len().max(1));
    let victims: Vec<Pid> = match harm {
        Harm::Kill(index) | Harm::Freeze(index) => keepers.get(index).copied().into_iter().collect(),
        Harm::FreezeTwo(index) => keepers.get(index).map_or_else(Vec::new, |other| vec![keepers[0], *other]),
        Harm::KillCommand | Harm::FreezeCommand => of_tree.copied().into_iter().collect(),
        Harm::Stop => {
            world.fleet.stop(target);
            vec![]
        }
        Harm::Nothing => vec![],
    };
    let signal = if matches!(harm, Harm::Kill(_) | Harm::KillCommand) { Signal::SIGKILL } else { Signal::SIGSTOP };
    let harmed = victims.iter().filter(|victim| kill(**victim, signal).is_ok()).count();
    sleep(lasts);
    if signal == Signal::SIGSTOP {
        for victim in &victims {
            // It may have been killed in its sleep, and its number be given to nobody since: numbers rise.
            let _ = kill(*victim, Signal::SIGCONT);
        }
    } else if harmed > 0 {
        // Until the two that are left have done what the third cannot do any more.
        let gone = |process: &Pid| kill(*process, None).is_err();
        if matches!(harm, Harm::Kill(_)) {
            wait_until("the tree of a killed keeper is dead", || tree.iter().all(gone));
        }
    }
    harmed > 0 || matches!(harm, Harm::Stop)
}

/// Steps of a story until it has lasted for so long.
pub fn steps_for(time: Duration, world: &mut World, random: &mut Random, size: usize) {
    let (begun, mut log) = (Instant::now(), Log::new());
    for index in 0.. {
        step(index, world, random, size, &mut log);
        if begun.elapsed() >= time {
            break;
        }
    }
    println!("{log:?}");
}

/// Whatever was ordered: no pause stands any more.
pub fn resume(world: &World) {
    let server = &world.server;
    wait_until("it is resumed", || {
        let mut resume = leaderctl();
        resume.args(["--store", &server.own_url(), "resume", "shard"]);
        resume.envs(server.environment().iter().copied()).stdout(Stdio::null()).stderr(Stdio::null());
        resume.status().expect("leaderctl starts").success()
    });
}

/// Each with the step that had begun last before it.
fn enter_orders(log: &mut Log, orders: &[Order]) {
    for order in orders {
        let step = log.iter().filter(|(_, begun, _)| *begun <= order.at).map(|(step, ..)| *step).max();
        log.extend(order.name().map(|name| (step.unwrap_or_default(), order.at, name)));
    }
    log.sort_by_key(|(_, begun, _)| *begun);
}

/// What a story shows of one kind of fault with one store.
#[derive(Default)]
struct Row {
    faults: usize,
    terms: usize,
    overlap: Duration,
    orphans: usize,
    gaps: Vec<Duration>,
}

#[derive(Default)]
struct Table {
    rows: BTreeMap<(String, &'static str), Row>,
    stories: usize,
    breaches: Vec<String>,
}

impl Table {
    /// What happened between two lives is put down to every fault of the step that began last before the second.
    fn enter(&mut self, store: &'static str, log: &Log, lives: &[Life], evidence: &Evidence) {
        for (.., name) in log {
            self.rows.entry((name.clone(), store)).or_default().faults += 1;
        }
        for pair in lives.windows(2) {
            for name in faults_behind(log, pair[1].first) {
                let row = self.rows.entry((name, store)).or_default();
                row.terms += 1;
                row.overlap += common(&pair[0], &pair[1]);
                row.gaps.push(Duration::from_nanos(pair[1].first.saturating_sub(pair[0].last)));
            }
        }
        for name in faults_behind(log, u64::MAX) {
            self.rows.entry((name, store)).or_default().orphans += evidence.orphans;
        }
    }

    fn print(&self) {
        let mut text = format!(
            "{:32} {:9} {:>6} {:>6} {:>10} {:>7} {:>13} {:>12}\n",
            "fault", "store", "faults", "terms", "overlap ms", "orphans", "gap median ms", "gap worst ms"
        );
        for ((fault, store), row) in &self.rows {
            let (median, worst) = median_and_worst(&row.gaps);
            let (faults, terms, overlap, orphans) = (row.faults, row.terms, millis(row.overlap), row.orphans);
            let _ = writeln!(
                text,
                "{fault:32} {store:9} {faults:>6} {terms:>6} {overlap:>10} {orphans:>7} {median:>13} {worst:>12}"
            );
        }
        let is_fault = |fault: &str| !fault.starts_with(ORDERED);
        let faults: usize = self.rows.iter().filter(|((fault, _), _)| is_fault(fault)).map(|(_, row)| row.faults).sum();
        println!("{text}A term, with the gap before it, counts for each fault of the step that it began in.");
        println!("{} stories, {faults} faults, {} breaches", self.stories, self.breaches.len());
    }
}

/// Those of the last step that had begun by then.
fn faults_behind(log: &Log, at: u64) -> Vec<String> {
    let begun = || log.iter().filter(|(_, begun, _)| *begun <= at);
    let last = begun().map(|(step, ..)| *step).next_back();
    begun().filter(|(step, ..)| Some(*step) == last).map(|(.., name)| name.clone()).collect()
}

/// Tells one story and enters it into the table.
fn tell(seed: u64, stores: Stores, table: &Mutex<Table>) {
    let mut random = Random::new(seed);
    let (store, start) = random.one_of(stores);
    let (size, steps) = (2 + random.below(5), 2 + random.below(4));
    let orders_too = random.per_mille(300).then(|| random.next());
    let (kit, equipment) = if random.per_mille(400) {
        (Kit::Equipped(Ends::Always), ", with hooks, a standby command and restarts")
    } else {
        (Kit::Bare, "")
    };
    println!("seed {seed}: {store}, {size} candidates{equipment}, {steps} steps");
    let kind = Story { store, fault: "random_faults", start, kit };
    let mut world = World::empty(kind, &TIMING, &["ignore-term", "daemon"]);
    world.use_wall_clocks();
    world.crew(size);
    world.fleet.leader();
    let operator = orders_too.map(|seed| Operator::of(&*world.server, "shard", seed));
    let mut log = Log::new();
    for index in 0..steps {
        step(index, &mut world, &mut random, size, &mut log);
    }
    if let Some(operator) = operator {
        enter_orders(&mut log, &operator.enough());
        resume(&world);
    }
    // Whatever happened, it is over now; so somebody leads, and not in the end only.
    let over = Instant::now();
    world.fleet.leader();
    let idle = over.elapsed();
    let (lives, evidence) = world.fleet.end();
    let told = format!("seed {seed}: {store}: {log:?}\n{lives:?}\n{}", world.fleet.logs());
    let late = (idle > LEASE * 6).then(|| format!("nobody led for {idle:?} after all was well"));
    let mut table = table.lock().expect("nobody panicked with it");
    table.enter(store, &log, &lives, &evidence);
    table.breaches.extend(
        evidence.breach().or_else(|| world.breach_of_hooks()).or(late).map(|breach| format!("{breach}\n{told}")),
    );
}

/// Tells stories, several at once, and prints the table. The first has this very seed. Panics on any breach.
pub fn tell_stories(seed: u64, limit: Limit, stores: Stores) {
    println!("seed {seed}");
    let (begun, table) = (Instant::now(), Mutex::new(Table::default()));
    let seeds = Mutex::new((0, seed));
    let next = || {
        let mut seeds = seeds.lock().expect("nobody panicked with it");
        let more = match limit {
            Limit::Stories(count) => seeds.0 < count,
            // One at least.
            Limit::Time(time) => seeds.0 == 0 || begun.elapsed() < time,
        };
        let seed = seeds.1;
        // Short enough to be typed.
        *seeds = (seeds.0 + 1, Random::new(seed).next() % 1_000_000_000_000);
        more.then_some(seed)
    };
    scope(|workers| {
        for _ in 0..4 {
            workers.spawn(|| {
                while let Some(seed) = next() {
                    let told = catch_unwind(AssertUnwindSafe(|| tell(seed, stores, &table)));
                    let mut table = table.lock().expect("nobody panicked with it");
                    table.stories += 1;
                    if told.is_err() {
                        table.breaches.push(format!("seed {seed}: the story broke off, see above"));
                    }
                }
            });
        }
    });
    let table = table.into_inner().expect("nobody panicked with it");
    table.print();
    for breach in &table.breaches {
        println!("\n{breach}");
    }
    assert!(table.breaches.is_empty(), "to replay a story: tests/faults --minutes 0 --seed SEED-OF-THE-STORY");
}
