//! The simulation: election, driver, the guard's policy and the store's logic as they are, over a network, a store and
//! clocks that a seed drives.
//!
//! # What must hold
//!
//! At every instant at most one tree runs; terms rise with every tree; no release is applied to a lease whose tree lives;
//! once all faults are over somebody leads within three leases; and when all are asked to stop, nothing is left.
//!
//! # What is simulated, and what is not
//!
//! | part | how |
//! | --- | --- |
//! | candidate | `leaderrun::internals::runner::driver` with `leaderrun::internals::election`, as they are |
//! | guard | `leaderrun::internals::guard::policy` as it is; `leadership` plays what is around it, as in the model |
//! | store | `leaderrun::internals::store::lease_store` over documents in memory (`documents`) |
//! | network | messages lost, late by more than a lease, doubled, answered with an error though applied (`network`) |
//! | clocks | each host's, and the store's, is up to a twelfth fast or slow, a host's wall clock up to a day off (`clock`) |
//! | operators | pauses, handovers and leases ended by force, at any time (`operator`) |
//! | faults | processes stopped and killed, hosts suspended, cut off one way and both, the store down, slow, wiped |
//!
//! The protocols of stores that have one of their own, and real processes, are for tests/faults.rs and tests/hosts.
//!
//! A seed is one story. `TEST_SEEDS=100..200 cargo test --test simulation` tells those of a range, and one seed is
//! told again exactly as before. `-- --nocapture` shows what was counted.

mod clock;
mod documents;
mod host;
#[path = "../support/leadership.rs"]
mod leadership;
#[path = "../support/memory.rs"]
mod memory;
mod network;
#[path = "../support/note.rs"]
mod note;
mod operator;
#[path = "../support/random.rs"]
mod random;
mod running;
mod story;
mod world;

use note::note;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use story::{Kind, Told, tell};
use world::Record;

/// A panic in a task is a breach of its story, which only this tells.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
}

thread_local! {
    static PANICS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(asked) = std::env::var("TEST_SEEDS") else { return usual };
    let range = asked.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.unwrap_or_else(|| panic!("TEST_SEEDS={asked} is not like 100..200"))
}

/// Tells the stories of all seeds, on all processors, and fails with the transcript of the first one that went wrong.
fn all_hold(kind: Kind, seeds: Range<u64>) {
    note_panics();
    println!("{kind:?}: seeds {}..{}", seeds.start, seeds.end);
    let begun = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let wrong: Mutex<Option<Told>> = Mutex::new(None);
    let sums: Mutex<Sums> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || wrong.lock().expect("not poisoned").is_some() {
                        return;
                    }
                    let panics = PANICS.get();
                    let mut told = tell(kind, seed);
                    if PANICS.get() > panics {
                        told.record.breaches.push("something panicked".to_owned());
                    }
                    if told.record.breaches.is_empty() {
                        sums.lock().expect("not poisoned").add(told);
                    } else {
                        wrong.lock().expect("not poisoned").get_or_insert(told);
                    }
                }
            });
        }
    });
    if let Some(told) = wrong.into_inner().expect("not poisoned") {
        let Record { breaches, transcript, .. } = told.record;
        panic!("seed {} of {:?}: {breaches:?}\n{}", told.seed, told.kind, transcript.join("\n"));
    }
    let Sums { faults, mut gaps, lives } = sums.into_inner().expect("not poisoned");
    gaps.sort_unstable();
    let count = seeds.end - seeds.start;
    let (median, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!(
        "{count} stories in {:.1?}: {lives} trees, from one to the next {median:.1?}, at most {worst:.1?}",
        begun.elapsed()
    );
    for (fault, count) in &faults {
        println!("  {fault}: {count}");
    }
    let struck: u64 = faults.values().sum();
    note(&format!(
        "simulation\t{kind:?}\t{count}\t{struck}\t{lives}\t0\t{}\t{}",
        median.as_millis(),
        worst.as_millis()
    ));
    assert!(lives as u64 > count, "only {lives} trees in {count} stories: what went missing?");
}

/// What is counted over many stories.
#[derive(Default)]
struct Sums {
    faults: BTreeMap<&'static str, u64>,
    gaps: Vec<Duration>,
    lives: usize,
}

impl Sums {
    fn add(&mut self, told: Told) {
        self.gaps.extend(told.record.gaps());
        self.lives += told.record.lives.len();
        for (fault, count) in told.record.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }
}

#[test]
fn no_story_over_documents_that_other_programs_write_has_two_trees_at_once() {
    all_hold(Kind::Shared, seeds(0..350));
}

#[test]
fn no_story_over_documents_on_a_server_with_scripts_has_two_trees_at_once() {
    all_hold(Kind::Scripted, seeds(0..350));
}

#[test]
fn no_story_over_documents_on_a_server_that_compares_has_two_trees_at_once() {
    all_hold(Kind::Comparing, seeds(0..250));
}

#[test]
fn no_story_over_documents_on_a_server_that_ends_leases_has_two_trees_at_once() {
    all_hold(Kind::Leased, seeds(0..250));
}

#[test]
fn no_story_over_documents_on_a_server_that_pushes_has_two_trees_at_once() {
    all_hold(Kind::Pushing, seeds(0..250));
}

#[test]
fn no_story_over_documents_that_are_shared_and_pushed_has_two_trees_at_once() {
    all_hold(Kind::SharedPushing, seeds(100..350));
}
