//! Two never run at once, whatever happens to processes, connections, the store and the clocks: three candidates
//! on each store that is behind a network, a lease of 6 s, renewed every second, 1 s of grace.
#![cfg(any(feature = "aws", feature = "tls"))]

#[path = "support/long_run.rs"]
mod long_run;
#[macro_use]
mod support;

use std::thread::sleep;
use support::prelude::*;
use support::proxy::NetworkFault;
use support::random::Random;
use support::server::{mortal, start_quietly};
use support::world::{Ends, Kit, LEASE, Story, World, name};

const BARE: Kit = Kit::Bare;
const FAILING_ONCE: Kit = Kit::Equipped(Ends::Once);
const FAILING: Kit = Kit::Equipped(Ends::Always);

/// For stories of an outage that has to end in time: a slow machine may be some seconds late. An outage costs the
/// leadership after 12.1 to 13.1 s.
const LONG: Duration = Duration::from_secs(16);
const LONG_TIMING: [&str; 10] =
    ["--lease", "16s", "--renew", "1s", "--kill-after", "1s", "--retry", "1s", "--stop-timeout", "1s"];

/// Three candidates with a lease of [`LONG`], and who leads.
fn long_leases(story: Story) -> (World, Life) {
    let mut world = World::empty(story, &LONG_TIMING, PLAIN);
    world.crew(3);
    let leader = world.fleet.leader();
    (world, leader)
}

/// After an outage: by then it would have cost the leadership.
fn conclude_undisturbed(world: World, leader: &Life, outage: Duration) {
    sleep((LONG - Duration::from_secs(1)).saturating_sub(outage));
    world.fleet.assert_undisturbed(leader);
    world.conclude();
}

const PLAIN: &[&str] = &[];
const DAEMON: &[&str] = &["ignore-term", "daemon"];

fn the_leader_is_killed(story: Story) {
    let mut world = World::new(story, PLAIN);
    let leader = world.leader();
    world.fleet.kill(&leader.owner);
    world.successor(&leader);
    // Nobody had to wait for the lease to end. The one that released it says so afterwards.
    wait_until("the backstop has said that it released", || {
        world.fleet.logs().contains("released after it was killed")
    });
    world.conclude();
}

fn the_leader_of_a_daemon_is_frozen_for_two_leases(story: Story) {
    let world = World::new(story, DAEMON);
    let leader = world.leader();
    world.fleet.signal(&leader.owner, Signal::SIGSTOP);
    sleep(2 * LEASE);
    let next = world.successor(&leader);
    world.fleet.signal(&leader.owner, Signal::SIGCONT);
    // The one that woke up has to see that it lost, and to leave the other alone.
    sleep(LEASE / 2);
    world.assert_leads_on(&next);
    world.conclude();
}

fn the_leader_of_a_daemon_is_cut_off_for_three_leases(story: Story) {
    let world = World::new(story, DAEMON);
    let leader = world.leader();
    world.set(&leader.owner, NetworkFault::Partition);
    sleep(3 * LEASE);
    let next = world.successor(&leader);
    world.set(&leader.owner, NetworkFault::Fair);
    sleep(LEASE / 2);
    world.assert_leads_on(&next);
    world.conclude();
}

/// Freezes the candidate, and another one of (candidate, backstop, guard), for two leases.
fn candidate_and_another_are_frozen(story: Story, other: usize) {
    let world = World::new(story, DAEMON);
    let leader = world.leader();
    let keepers = world.processes(&leader.owner);
    for index in [0, other] {
        kill(keepers[index], Signal::SIGSTOP).unwrap();
    }
    sleep(2 * LEASE);
    for index in [0, other] {
        let _ = kill(keepers[index], Signal::SIGCONT);
    }
    world.successor(&leader);
    world.conclude();
}

fn candidate_and_backstop_are_frozen(story: Story) {
    candidate_and_another_are_frozen(story, 1);
}

fn candidate_and_guard_are_frozen(story: Story) {
    candidate_and_another_are_frozen(story, 2);
}

fn the_guard_is_frozen_while_the_leader_is_cut_off(story: Story) {
    let world = World::new(story, DAEMON);
    let leader = world.fleet.leader();
    let [backstop, guard] = helpers_of(world.fleet.pid(&leader.owner));
    kill(guard, Signal::SIGSTOP).unwrap();
    kill(backstop, Signal::SIGSTOP).unwrap();
    world.set(&leader.owner, NetworkFault::Partition);
    world.successor(&leader);
    world.conclude();
}

fn the_server_is_away_for_half_a_lease(story: Story) {
    let (mut world, leader) = long_leases(story);
    world.server.kill();
    // Starting takes its time as well: until it answers again it is half a lease. An API server starts for all of it.
    if story.store != "kubernetes" {
        sleep(LONG * 9 / 20);
    }
    world.server.start_again();
    conclude_undisturbed(world, &leader, LONG * 9 / 20);
}

/// For long enough to cost a leadership that cannot bear it. The store that needs the most, NATS, has room for answers of
/// 5 s: one renewal follows upon another there.
fn answers_that_take_a_quarter_of_the_lease_disturb_nothing(story: Story) {
    let (world, leader) = long_leases(story);
    world.set_all(NetworkFault::Slow(LONG / 4));
    sleep(2 * LEASE);
    world.set_all(NetworkFault::Fair);
    sleep(LEASE / 2);
    world.fleet.assert_undisturbed(&leader);
    world.conclude();
}

/// What an operator orders meanwhile is a note for the history as well.
fn slow_answers_cost_no_leadership_while_an_operator_gives_orders(story: Story) {
    // A connection of MySQL takes one request at a time. On NATS one renewal follows upon another, and an order would cost
    // two answers more.
    let (lease, latency) = match story.store {
        "mysql" => ("12s", 3),
        "nats" => ("6s", 2),
        _ => ("6s", 3),
    };
    let (latency, timing) =
        (Duration::from_secs(latency), ["--renew", "1s", "--kill-after", "100ms", "--lease", lease]);
    let mut world = World::empty(story, &[&timing[..], &["--stop-timeout", "100ms"]].concat(), PLAIN);
    world.crew(1);
    let leader = world.fleet.leader();
    world.set_all(NetworkFault::Slow(latency));
    for words in [&["pause", "--keep"][..], &["resume"], &["pause", "--keep"], &["resume"]] {
        sleep(latency);
        if story.store == "nats" {
            continue;
        }
        let (url, environment) = (world.server.url(world.server.address()), world.server.environment());
        let mut order = leaderctl();
        order.args(["--store", &url]).args(words).arg("shard").envs(environment.iter().copied());
        let output = order.output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", world.fleet.logs());
    }
    sleep(latency);
    world.fleet.assert_undisturbed(&leader);
    world.set_all(NetworkFault::Fair);
    world.conclude();
}

fn connections_are_reset_for_half_a_lease(story: Story) {
    let (world, leader) = long_leases(story);
    world.set_all(NetworkFault::Reset);
    sleep(LONG / 2);
    world.set_all(NetworkFault::Fair);
    conclude_undisturbed(world, &leader, LONG / 2);
}

/// Something was done to the store's records behind the leader's back. It may go on, or lose its leadership; what counts
/// is that two never run, and that somebody leads again.
fn somebody_leads_after(world: World, leader: &Life) {
    sleep(LEASE);
    world.fleet.leader_where(|life| life.term >= leader.term);
    sleep(2 * LEASE);
    world.fleet.leader();
    world.conclude();
}

fn the_store_is_wiped_under_a_leader(story: Story) {
    let mut world = World::new(story, DAEMON);
    let leader = world.fleet.leader();
    world.server.wipe();
    somebody_leads_after(world, &leader);
}

/// And somebody comes who never saw them.
fn all_records_are_deleted_by_hand_under_a_leader(story: Story) {
    let mut world = World::new(story, DAEMON);
    let leader = world.fleet.leader();
    world.server.remove_records("shard");
    world.start(&name(3));
    somebody_leads_after(world, &leader);
}

fn the_whole_tree_is_killed(story: Story) {
    let mut world = World::new(story, PLAIN);
    let leader = world.leader();
    let helpers = helpers_of(world.fleet.pid(&leader.owner));
    let killed = BootInstant::now();
    // In this order nobody is left who could release the lease.
    for helper in helpers {
        kill(helper, Signal::SIGSTOP).unwrap();
    }
    world.fleet.kill(&leader.owner);
    for helper in helpers {
        kill(helper, Signal::SIGKILL).unwrap();
    }
    let next = world.successor(&leader);
    // One lease and a second are promised where the store pushes, and a poll or two more where it does not.
    let taken = BootInstant::from_nanos(next.first).since(killed);
    // A busy machine is late as well.
    assert!(taken < LEASE * 4, "{taken:?}");
    world.conclude();
}

/// The kernel that is out of memory chooses one; which, and when, nobody knows.
fn one_of_the_three_is_killed_again_and_again(story: Story) {
    let seed = BootInstant::now().as_nanos();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut world = World::new(story, DAEMON);
    for _ in 0..8 {
        let leader = world.leader();
        sleep(random.millis(0, 700));
        let victim = random.one_of(&world.processes(&leader.owner));
        kill(victim, Signal::SIGKILL).unwrap();
        world.successor(&leader);
        world.start_those_that_ended();
    }
    world.conclude();
}

/// Also between two runs of a COMMAND that ends again and again: then there is a lease without a tree.
fn the_leader_is_killed_whatever_it_does(story: Story) {
    let seed = BootInstant::now().as_nanos();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut world = World::new(story, DAEMON);
    for _ in 0..2 {
        let leader = world.leader();
        sleep(random.millis(0, 2000));
        world.fleet.kill(&leader.owner);
        world.successor(&leader);
        world.start(&leader.owner);
    }
    world.conclude();
}

/// The tree is frozen as well. The first of guard, backstop and candidate that wakes up kills it before it runs again.
fn everything_of_the_leader_is_frozen_until_another_leads(story: Story) {
    let world = World::new(story, DAEMON);
    let leader = world.fleet.leader();
    let keepers = world.processes(&leader.owner);
    let tree = world.tree(&leader.owner);
    assert!(!tree.is_empty());
    for process in keepers.iter().chain(&tree) {
        // What was only to start the daemon may have ended.
        let stopped = kill(*process, Signal::SIGSTOP);
        assert!(matches!(stopped, Ok(()) | Err(nix::errno::Errno::ESRCH)), "{stopped:?}");
    }
    world.successor(&leader);
    for process in keepers.iter().rev() {
        kill(*process, Signal::SIGCONT).unwrap();
    }
    wait_until("the frozen tree is gone", || tree.iter().all(|process| kill(*process, None).is_err()));
    world.conclude();
}

fn the_server_is_frozen_for_a_third_of_a_lease(story: Story) {
    let (world, leader) = long_leases(story);
    world.server.freeze();
    sleep(LONG / 3);
    world.server.thaw();
    conclude_undisturbed(world, &leader, LONG / 3);
}

fn wall_clocks_are_stepped_by_an_hour_both_ways(story: Story) {
    let mut world = World::empty(story, &LONG_TIMING, PLAIN);
    world.use_wall_clocks();
    world.crew(3);
    let leader = world.fleet.leader();
    for shifts in [[3600, 0, 0], [-3600, 3600, 0], [0, -3600, 3600], [3600, 3600, -3600]] {
        for (index, shift) in shifts.into_iter().enumerate() {
            world.set_wall_clock(&name(index), shift);
        }
        sleep(LEASE / 3);
    }
    world.fleet.assert_undisturbed(&leader);
    world.fleet.kill(&leader.owner);
    world.successor(&leader);
    world.conclude();
}

/// A killed leader and one that is cut off.
fn every_processor_is_busy(story: Story) {
    let mut world = World::new(story, DAEMON);
    let leader = world.fleet.leader();
    let begin = |_| {
        let mut command = mortal("perl");
        command.args(["-e", "1 while 1"]);
        start_quietly(command)
    };
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let load: Vec<Process> = (0..processors).map(begin).collect();
    world.fleet.kill(&leader.owner);
    let leader = world.successor(&leader);
    world.set(&leader.owner, NetworkFault::Partition);
    world.successor(&leader);
    drop(load);
    world.set_all(NetworkFault::Fair);
    world.conclude();
}

macro_rules! told {
    ($kit:ident, $fault:expr, $store:ident, $start:expr, [$($story:ident),* $(,)?]) => {
        mod $store {
            $(
                #[test]
                fn $story() {
                    crate::$story(crate::support::world::Story {
                        store: stringify!($store),
                        fault: concat!(stringify!($story), $fault),
                        start: || Box::new($start),
                        kit: crate::$kit,
                    });
                }
            )*
        }
    };
}

macro_rules! stories {
    ($store:ident, $start:expr, $stories:tt) => {
        told!(BARE, "", $store, $start, $stories);
    };
}

// Each store has another client.
every_store!(stories:
    answers_that_take_a_quarter_of_the_lease_disturb_nothing,
    connections_are_reset_for_half_a_lease,
    the_server_is_frozen_for_a_third_of_a_lease,
);

mod on_two_kinds {
    two_kinds!(stories:
        the_leader_is_killed,
        the_leader_of_a_daemon_is_cut_off_for_three_leases,
        the_server_is_away_for_half_a_lease,
        the_store_is_wiped_under_a_leader,
        all_records_are_deleted_by_hand_under_a_leader,
        wall_clocks_are_stepped_by_an_hour_both_ways,
    );
}

/// What happens to the processes of a host is not the store's doing.
#[cfg(feature = "redis")]
mod on_one_store {
    macro_rules! on_redis {
        ($module:ident, $kit:ident, $beside:expr, $stories:tt) => {
            mod $module {
                told!($kit, $beside, redis, crate::support::redis::Server::start(), $stories);
            }
        };
    }

    on_redis!(
        plain,
        BARE,
        "",
        [
            the_leader_of_a_daemon_is_frozen_for_two_leases,
            candidate_and_backstop_are_frozen,
            the_guard_is_frozen_while_the_leader_is_cut_off,
            everything_of_the_leader_is_frozen_until_another_leads,
            every_processor_is_busy,
        ]
    );

    on_redis!(
        equipped,
        FAILING_ONCE,
        " beside hooks and a standby command",
        [
            the_leader_of_a_daemon_is_frozen_for_two_leases,
            the_leader_of_a_daemon_is_cut_off_for_three_leases,
            candidate_and_guard_are_frozen,
            the_whole_tree_is_killed,
            one_of_the_three_is_killed_again_and_again,
        ]
    );

    on_redis!(
        restarting,
        FAILING,
        " beside hooks, a standby command and restarts",
        [the_leader_is_killed_whatever_it_does,]
    );
}

/// Those whose clients take a request at a time, or send one to a connection that is silent.
mod slow_answers {
    macro_rules! told_on {
        ($($store:ident $feature:literal $start:expr;)*) => {
            $(
                #[cfg(feature = $feature)]
                stories!($store, $start, [slow_answers_cost_no_leadership_while_an_operator_gives_orders]);
            )*
        };
    }

    told_on! {
        dynamodb "dynamodb" crate::support::dynamo::Server::durable();
        redis "redis" crate::support::redis::Server::start();
        postgres "postgres" crate::support::postgres::Server::start();
        mysql "mysql" crate::support::mysql::Server::start();
        nats "nats" crate::support::nats::Server::start();
    }
}

mod random_faults {
    use crate::long_run::{Limit, Stores, tell_stories};
    use std::time::Duration;

    const STORES: Stores = &[
        #[cfg(feature = "dynamodb")]
        ("dynamodb", || Box::new(crate::support::dynamo::Server::durable())),
        #[cfg(feature = "bucket")]
        ("bucket", || Box::new(crate::support::bucket::Server::durable())),
        #[cfg(feature = "redis")]
        ("redis", || Box::new(crate::support::redis::Server::start())),
        #[cfg(feature = "postgres")]
        ("postgres", || Box::new(crate::support::postgres::Server::start())),
        #[cfg(feature = "mysql")]
        ("mysql", || Box::new(crate::support::mysql::Server::start())),
        #[cfg(feature = "nats")]
        ("nats", || Box::new(crate::support::nats::Server::start())),
        #[cfg(feature = "etcd")]
        ("etcd", || Box::new(crate::support::etcd::Server::start())),
    ];

    #[test]
    fn a_short_run_finds_no_breach() {
        tell_stories(13, Limit::Stories(3), STORES);
    }

    #[test]
    #[ignore = "takes as long as it is told to: tests/faults --minutes N --seed S runs it"]
    fn a_long_run_finds_no_breach() {
        let number = |name: &str| {
            let text = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use tests/faults"));
            text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
        };
        let time = Duration::from_secs(60 * number("TEST_FAULTS_MINUTES"));
        tell_stories(number("TEST_FAULTS_SEED"), Limit::Time(time), STORES);
    }
}
