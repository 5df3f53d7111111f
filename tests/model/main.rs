//! The model check: the election machine and the guard's policy of src/, as they are, in every situation that a small
//! world can get into.
//!
//! # What must hold
//!
//! In every state: at most one tree runs; a tree runs only while its session holds the lease in the store; terms rise
//! with every start; no release is applied to a lease whose tree lives; no tree runs on a host where something still runs
//! beside the standby that it was ([`world::Breach`]).
//!
//! # What is modelled
//!
//! | part | how |
//! | --- | --- |
//! | candidate | [`leaderrun::internals::election::Election`], and around it what `driver` does (`host`) |
//! | guard | [`leaderrun::internals::guard::policy::Policy`], and around it what `guard` does (`leadership`) |
//! | what runs beside a standby | one thing that obeys or not until it is seized (`standby_tasks`) |
//! | backstop | its limit, the guard's end, its own end, the release after a crash (`leadership`) |
//! | tree | runs, was asked, is dying, is dead. It may obey, or not. It outlives a guard that is killed |
//! | store | the lease protocol of `src/store/lease_store`: document, version, marker, led mark, waits, heals (`store`) |
//! | a lock beside the lease | another program takes it and lets it go (`world`) |
//! | network | a request or an answer comes in its tick, later, never, or twice; a host may be cut off either way |
//! | time | 300 ms a tick, which is also the most that a process takes to act or a kill to work (`clock`) |
//! | clocks | each shows another time and runs slow, exact or fast, a twelfth apart; the store's is as fast as one may be |
//! | faults | [`world::Faults`]: each of them may strike at any step between any two others |
//!
//! A lease is 10 ticks: the leader renews every 3, a request times out after 2, the stop signal goes out 6 ticks after
//! the last granted renewal was sent, the guard kills at 8, the backstop and the candidate at 9. The margin is the one
//! that `Timing` computes: not a tick is to spare on a clock that is a twelfth slow.
//!
//! # What is not
//!
//! - More faults at once than a test names, or later than its horizon; more than three hosts.
//! - A guard that the kernel does not schedule, while backstop and candidate are stopped or gone as well (src/guard.rs
//!   says so). A host that was suspended has the tick in which it wakes to kill what it then finds.
//! - Clocks that change their rate. What counts is how far they are apart after one lease.
//! - A process that is stopped between the machine's decision and its first effect, but for the start of a guard: see
//!   `a_candidate_frozen_while_it_starts_its_guard_starts_a_tree_too_late`.
//! - What is read may be lost with the link, but is never stale: a read is answered at once. The led mark is read and
//!   written in the step of the claim's put.
//! - An older copy that is put back, or a clock that is set, before some candidate has looked: it cannot know.
//! - Several shards, notes, leases of different length, documents of other programs.
//! - The file store, `-w`, `--stop-timeout`, `--after-loss=exit`: they have no deadline, or only stop earlier.
//! - The code of the protocol, and the real stores: see tests/lease_store, whose mutants take away each rule of the code, and
//!   tests/conformance.rs.
//!
//! A state is hashed as it is, with the machines in it (they derive `Hash`): no abstraction can hide a difference. The
//! clock is in it, so states come again only along other ways to the same instant; that is what bounds the space.
//!
//! `cargo test --test model -- --nocapture` shows the states explored, how often each thing worth meeting was met, and
//! each mutant's counterexample. `-- --ignored` explores for longer. How many states each world has, and how soon each
//! mutant is found, stands in tests/golden/model.txt: a change that only moves or renames leaves that as it is.

mod clock;
#[path = "../support/golden.rs"]
#[allow(dead_code, reason = "what is pinned here are lines")]
mod golden;
mod host;
#[path = "../support/leadership.rs"]
mod leadership;
mod mutants;
mod network;
#[path = "../support/note.rs"]
mod note;
mod orders;
mod standby_tasks;
mod steps;
mod store;
mod world;

use golden::golden_line;
use stateright::{Checker, Model};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use store::{Id, Kind};
use world::{Breach, Faults, Met, Start, World};

/// Two candidates; the first to start has the slow clock, which is the dangerous one for a leader, and the other the fast
/// one, which is that for who waits.
fn world(store: Kind, faults: Faults, horizon: u8) -> World {
    World {
        clocks: vec![vec![55, 65]],
        staggered: true,
        start: Start::AtOnce,
        store,
        faults,
        victim: None,
        has_standby_tasks: false,
        contained: false,
        horizon,
        breaches: Breach::HARMFUL.to_vec(),
        mutant: None,
        met: Arc::default(),
    }
}

/// A breach, the number of steps to it, and the steps, tick by tick.
struct Counterexample {
    breach: Breach,
    steps: usize,
    story: String,
}

/// Looks at every state, breadth first if what is found should be short. Answers how many there are.
fn explore(world: World, shortest: bool) -> (usize, Option<Counterexample>) {
    fn read<C: Checker<World>>(checker: C) -> (usize, Option<Counterexample>) {
        let checker = checker.join();
        let path = checker.discovery("no breach").map(stateright::Path::into_vec);
        (checker.unique_state_count(), path.map(|path| tell(checker.model(), &path)))
    }
    let checker = world.checker();
    if shortest { read(checker.spawn_bfs()) } else { read(checker.spawn_dfs()) }
}

fn tell(world: &World, path: &[(world::State, Option<steps::Step>)]) -> Counterexample {
    let mut by_tick: BTreeMap<u8, Vec<String>> = BTreeMap::new();
    let breach = path.last().and_then(|(state, _)| world.breach(state)).expect("it ends in a breach");
    for (state, step) in path {
        if let Some(step) = step.filter(|&step| step != steps::Step::Tick) {
            by_tick.entry(state.tick).or_default().push(step.show(state));
        }
    }
    let lines = by_tick.iter().map(|(tick, steps)| format!("  at {tick:>2}: {}\n", steps.join(", ")));
    Counterexample { breach, steps: path.len() - 1, story: lines.collect() }
}

/// The world as it is holds, has as many states as ever (and at least `floor`), and all of `met` happened in it.
fn holds(what: &str, world: World, floor: usize, met: &[Met]) {
    let states = explored(what, world, floor, met);
    golden_line("model", what, &format!("holds in {states} states"));
}

fn explored(what: &str, world: World, floor: usize, met: &[Met]) -> usize {
    let (begun, counts) = (Instant::now(), Arc::clone(&world.met));
    let (states, found) = explore(world, false);
    println!("{what}: states explored: {states} in {:.1?}", begun.elapsed());
    if let Some(found) = found {
        panic!("{what}: {:?} after {} steps\n{}", found.breach, found.steps, found.story);
    }
    let count = |met: Met| counts[met as usize].load(std::sync::atomic::Ordering::Relaxed);
    for &met in Met::ALL.iter().filter(|&&met| count(met) > 0) {
        println!("  {met:?}: {} times", count(met));
    }
    note::note(&format!("model\t{what}\t{states}\t0"));
    assert!(states >= floor, "{what}: only {states} states: what went missing?");
    let missed: Vec<&Met> = met.iter().filter(|&&met| count(met) == 0).collect();
    assert!(missed.is_empty(), "{what}: never met {missed:?}");
    states
}

fn pin_breach(what: &str, found: &Counterexample) {
    golden_line("model", what, &format!("{:?} after {} steps", found.breach, found.steps));
}

#[test]
fn no_single_fault_breaks_it_for_any_first_leader() {
    let met = [Met::TakenAfterCrash, Met::TakenAfterRelease, Met::RenewalLostAndRetried, Met::ClaimRecognised];
    for store in [Kind::Comparing, Kind::Touching] {
        let clocks = vec![vec![55, 60], vec![60, 65]];
        let world = World { clocks, staggered: false, ..world(store, Faults::any(1), 24) };
        holds(&format!("one fault, {store:?}"), world, 250_000, &met);
    }
}

#[test]
fn no_single_fault_breaks_it_among_three() {
    let clocks = vec![vec![55, 60, 65]];
    let world = World { clocks, ..world(Kind::Touching, Faults::any(1), 18) };
    holds("one fault, three candidates", world, 80_000, &[Met::TakenAfterRelease, Met::TakenAfterCrash]);
}

/// Nor does a candidate take all of a processor, by a `wake_at` in the past with nothing to do: while a tree is hard to
/// kill whose lease has ended, or after a definite loss, when another renewal fails that was under way.
#[test]
fn no_two_faults_break_it_over_a_store_that_compares_and_swaps() {
    // All that can be met, but for a start that was put off.
    let met: Vec<Met> = Met::ALL[..Met::UNORDERED].iter().copied().filter(|&met| met != Met::NotStarted).collect();
    let breaches = [&Breach::HARMFUL[..], &[Breach::Spins]].concat();
    let world = World { breaches, ..world(Kind::Comparing, Faults::any(2), 12) };
    holds("two faults, Comparing", world, 1_000_000, &met);
}

#[test]
fn no_two_faults_break_it_over_a_store_that_judges_by_itself() {
    let met = [Met::GuardKillsInTime, Met::BackstopKills, Met::CandidateSeizes, Met::RenewalOvertaken];
    holds("two faults, Touching", world(Kind::Touching, Faults::any(2), 11), 600_000, &met);
}

#[test]
fn no_three_faults_of_the_network_break_it() {
    let faults = Faults { held_up: 2, doubled: 1, ..Faults::NONE };
    let met = [Met::ClaimTooLate, Met::ClaimRecognised, Met::RenewalOvertaken];
    holds("three messages astray, Touching", world(Kind::Touching, faults, 14), 50_000, &met);
}

/// A server that is emptied, fails over or restarts, a copy put back, a document deleted, a clock set, a leader revoked:
/// each beside any other fault, or another one of these.
#[test]
fn no_fault_breaks_it_while_the_server_forgets() {
    for kind in [Kind::Touching, Kind::Comparing, Kind::Leasing] {
        let world = World {
            victim: Some(Id(0)),
            ..world(kind, Faults { total: 2, other_locks: 0, orders: 0, ..Faults::each(1) }, 11)
        };
        holds(&format!("the server forgets, {kind:?}"), world, 100_000, &[Met::Healed, Met::HeldBack]);
    }
}

#[test]
fn no_fault_lets_two_programs_have_a_lock_that_they_share() {
    let faults = Faults { other_locks: 1, total: 2, ..Faults::any(1) };
    let world = World { victim: Some(Id(0)), ..world(Kind::Touching, faults, 12) };
    holds("a lock beside the lease", world, 10_000, &[Met::OtherLocked, Met::TakenAfterRelease]);
}

#[test]
#[ignore = "takes a quarter of an hour: for a change of the machines"]
fn no_two_faults_break_it_for_longer_and_no_three_of_one_host() {
    for store in [Kind::Comparing, Kind::Touching] {
        let world = |faults, horizon| world(store, faults, horizon);
        explored("two faults", World { staggered: false, ..world(Faults::any(2), 18) }, 5_000_000, &[]);
        explored("three faults", World { victim: Some(Id(0)), ..world(Faults::any(3), 11) }, 2_000_000, &[]);
    }
}

/// Between the machine's decision and the start of COMMAND the candidate may be stopped for longer than its lease. So the
/// last look at the clock is right before COMMAND starts; without it there are two trees.
#[test]
fn a_candidate_frozen_while_it_starts_its_guard_starts_no_tree_too_late() {
    let faults = Faults { freezes: 1, ..Faults::NONE };
    let with = |start| World { start, ..world(Kind::Comparing, faults, 14) };
    holds("frozen while it starts its guard", with(Start::AfterAPauseAndALook), 2_000, &[Met::NotStarted]);
    let (_, found) = explore(with(Start::AfterAPause), true);
    let found = found.expect("no look at the clock is a breach");
    println!("without a look: {:?} after {} steps\n{}", found.breach, found.steps, found.story);
    pin_breach("frozen while it starts its guard, without a look", &found);
}

#[test]
fn no_order_starts_a_second_tree_and_none_starts_under_a_pause() {
    let breaches = [&Breach::HARMFUL[..], &[Breach::StartedUnderPause, Breach::PauseUnheard, Breach::Spins]].concat();
    let world = |store, faults, horizon| World { breaches: breaches.clone(), ..world(store, faults, horizon) };
    let met = [Met::PausedBeforeStart, Met::SteppedDown, Met::TakenAfterRelease];
    for store in [Kind::Comparing, Kind::Touching] {
        let operators = world(store, Faults { orders: 3, ..Faults::NONE }, 14);
        holds(&format!("three orders, {store:?}"), operators, 10_000, &met);
    }
    let trouble = world(Kind::Touching, Faults { orders: 1, total: 2, ..Faults::any(1) }, 10);
    holds("an order and a fault, Touching", trouble, 100_000, &met[..2]);
}

#[test]
fn command_never_meets_what_runs_beside_its_standby() {
    let breaches = [&Breach::HARMFUL[..], &[Breach::BesideStandby, Breach::Spins]].concat();
    let world = |store, faults, horizon| World {
        breaches: breaches.clone(),
        has_standby_tasks: true,
        ..world(store, faults, horizon)
    };
    let met = [Met::CommandWaited, Met::StandbyTasksSeized, Met::StandbyTasksBack];
    for store in [Kind::Comparing, Kind::Touching] {
        holds(&format!("beside standbys, {store:?}"), world(store, Faults::any(1), 24), 100_000, &met);
    }
    let operators = Faults { orders: 2, stops: 2, total: 2, ..Faults::NONE };
    holds("beside standbys, with orders", world(Kind::Touching, operators, 14), 5_000, &met);
}

/// In a PID namespace a tree dies with its guard, and a guard that is frozen is killed by the kernel: so a host may lose all
/// three of its processes.
#[test]
fn no_strike_at_all_processes_of_a_host_breaks_it_where_the_tree_has_a_namespace() {
    let met = [Met::KillTimerKills, Met::DiedWithItsGuard];
    let faults = Faults { kills: 3, freezes: 3, total: 3, ..Faults::NONE };
    let world = World { contained: true, victim: Some(Id(0)), ..world(Kind::Comparing, faults, 11) };
    holds("all processes of a host struck", world, 500_000, &met);
}
