//! Stories that no author wrote: a store, some candidates, and many faults, all drawn from a seed.
//!
//! A seed draws the same story again, but not the same races, because the machine influences those. So a breach is
//! reported with its seed. Replay the seed until the breach occurs again.
//!
//! One fault never occurs, because leaderrun promises nothing about it: all three keepers of a tree harmed at once. So
//! harm to one of them is over, or its tree is dead, before the next one is harmed.

use crate::support::prelude::*;
use crate::support::proxy::NetworkFault;
use crate::support::random::Random;
use crate::support::server::Server;
use crate::support::world::{Ends, Kit, LEASE, Story, World, name};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread::{scope, sleep};

pub type Stores = &'static [(&'static str, fn() -> Box<dyn Server>)];

#[derive(Clone, Copy)]
pub enum Limit {
    Stories(usize),
    Time(Duration),
}

/// What is done to processes of a candidate. The number is one of [`World::processes`].
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
    NetworkFault(NetworkFault),
    /// For everybody.
    Climate(NetworkFault),
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
}

impl Trouble {
    fn draw(random: &mut Random) -> Self {
        let latency = NetworkFault::Slow(random.millis(100, 4000));
        let shift = random.one_of(&[3600, -3600]);
        random.one_of(&[
            Self::NetworkFault(NetworkFault::Partition),
            Self::NetworkFault(latency),
            Self::NetworkFault(NetworkFault::Reset),
            Self::Climate(NetworkFault::Partition),
            Self::Climate(latency),
            Self::Climate(NetworkFault::Reset),
            Self::ServerKilled,
            Self::ServerFrozen,
            Self::Clock(shift),
            Self::Nothing,
            Self::Nothing,
        ])
    }
}

/// What each step of a story did, and to whom.
type Log = Vec<(String, Trouble, Harm)>;

/// Half of them end long before a lease does, and half of them do not.
fn length(random: &mut Random) -> Duration {
    if random.below(2) == 0 { random.millis(50, 3000) } else { random.millis(3000, 10_000) }
}

/// One step of a story: something is done to processes while there is trouble outside, or not. Adds what was done.
fn step(world: &mut World, random: &mut Random, size: usize, log: &mut Log) {
    let (trouble, harm) = (Trouble::draw(random), Harm::draw(random));
    let (lasts, pause) = (length(random), random.millis(500, 2000));
    let (anybody, which) = (name(random.below(size)), random.next());
    // Mostly the leader, if there is one: there the danger is.
    let leads = world.fleet.lives().last().map(|life| life.owner.clone());
    let target = leads.filter(|_| which % 4 > 0).unwrap_or(anybody);
    match trouble {
        Trouble::NetworkFault(fault) => world.set(&target, fault),
        Trouble::Climate(fault) => world.set_all(fault),
        Trouble::ServerKilled => world.server.kill(),
        Trouble::ServerFrozen => world.server.freeze(),
        Trouble::Clock(shift) => world.set_wall_clock(&target, shift),
        Trouble::Nothing => {}
    }
    if which % 8 > 3 {
        sleep(lasts / 2);
    }
    // Whom it was meant for may not be there.
    let harm = if do_harm(world, &target, harm, lasts, which) { harm } else { Harm::Nothing };
    match trouble {
        Trouble::NetworkFault(_) | Trouble::Climate(_) => world.set_all(NetworkFault::Fair),
        Trouble::ServerKilled => world.server.start_again(),
        Trouble::ServerFrozen => world.server.thaw(),
        Trouble::Clock(_) | Trouble::Nothing => {}
    }
    log.push((target, trouble, harm));
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

#[derive(Default)]
struct Sums {
    stories: usize,
    faults: usize,
    breaches: Vec<String>,
}

fn tell(seed: u64, stores: Stores, sums: &Mutex<Sums>) {
    let mut random = Random::new(seed);
    let (store, start) = random.one_of(stores);
    let (size, steps) = (2 + random.below(5), 2 + random.below(4));
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
    let mut log = Log::new();
    for _ in 0..steps {
        step(&mut world, &mut random, size, &mut log);
    }
    // Whatever happened, it is over now; so somebody leads, and not in the end only.
    let over = Instant::now();
    world.fleet.leader();
    let idle = over.elapsed();
    let (lives, evidence) = world.fleet.end();
    let told = format!("seed {seed}: {store}: {log:?}\n{lives:?}\n{}", world.fleet.logs());
    let late = (idle > LEASE * 6).then(|| format!("nobody led for {idle:?} after all was well"));
    let mut sums = sums.lock().expect("nobody panicked with it");
    let troubles = log.iter().filter(|(_, trouble, _)| !matches!(trouble, Trouble::Nothing));
    sums.faults += troubles.count() + log.iter().filter(|(.., harm)| !matches!(harm, Harm::Nothing)).count();
    sums.breaches.extend(
        evidence.breach().or_else(|| world.breach_of_hooks()).or(late).map(|breach| format!("{breach}\n{told}")),
    );
}

/// Tells stories, several at once. The first has this very seed. Panics on any breach.
pub fn tell_stories(seed: u64, limit: Limit, stores: Stores) {
    println!("seed {seed}");
    let (begun, sums) = (Instant::now(), Mutex::new(Sums::default()));
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
                    let told = catch_unwind(AssertUnwindSafe(|| tell(seed, stores, &sums)));
                    let mut sums = sums.lock().expect("nobody panicked with it");
                    sums.stories += 1;
                    if told.is_err() {
                        sums.breaches.push(format!("seed {seed}: the story broke off, see above"));
                    }
                }
            });
        }
    });
    let Sums { stories, faults, breaches } = sums.into_inner().expect("nobody panicked with it");
    println!("{stories} stories, {faults} faults, {} breaches", breaches.len());
    for breach in &breaches {
        println!("\n{breach}");
    }
    assert!(breaches.is_empty(), "to replay a story: tests/faults --minutes 0 --seed SEED-OF-THE-STORY");
}
