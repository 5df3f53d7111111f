//! Two never run at once, whatever happens to the servers of a clustered store, and a lease that is long enough rides
//! it out: three candidates, and the store's servers, each on a host of its own, which is a network namespace.
//!
//! A store loses its own leader: it is killed, or cut off from all others, or all servers are killed at once. Some
//! seconds later another one leads. What it has lost by then, and for how long nobody could renew, is the store's affair;
//! that no two trees run is ours.
//!
//! Each story is told once. `tests/faults --clusters` tells each of them fifty times.
#![cfg(all(feature = "redis", feature = "postgres", feature = "nats", feature = "etcd"))]

mod etcd;
mod member;
mod nats;
mod postgres;
mod races;
mod redis;
#[macro_use]
#[path = "../support/mod.rs"]
mod support;

use member::{Member, wait_calmly_until};
use support::evidence::millis;
use support::fleet::leaderrun_in;
use support::network::{Network, address};
use support::note::note;
use support::prelude::*;
use support::world::name;

/// Servers have the first hosts, and candidates the others.
const MEMBERS: usize = 3;
const CANDIDATES: usize = 3;
const HOSTS: usize = MEMBERS + CANDIDATES;

/// The servers of a store. Those of the first hosts are asked from the hub.
trait Cluster {
    /// What `--store` takes.
    fn url(&self) -> String;

    /// One on each host, from the first on.
    fn members(&mut self) -> &mut [Member];

    fn kill(&mut self, host: usize) {
        self.members()[host].kill();
    }

    fn start_again(&mut self, host: usize) {
        self.members()[host].start_again();
    }

    /// The leader of the store, according to the others.
    fn leading(&self, without: Option<usize>) -> Option<usize>;

    /// All are there and have what the leader has.
    fn is_whole(&self) -> bool;

    /// What a failover manager does, where the store has none of its own.
    fn promote_instead_of(&mut self, _lost: usize) {}

    /// What a failover manager does before others can reach the former leader again. True where it was killed.
    fn fence(&mut self, _lost: usize) -> bool {
        false
    }

    /// After [`Cluster::kill`] and a failover.
    fn bring_back(&mut self, lost: usize) {
        self.start_again(lost);
    }
}

#[derive(Clone, Copy)]
struct Timing {
    lease: Duration,
    /// Beside `--lease`.
    flags: &'static [&'static str],
    /// A leadership outlives it when the store has no leader for so long: the half of what it could bear, because a busy
    /// machine may be late.
    bears: Duration,
}

/// A store, and how its candidates are started.
#[derive(Clone, Copy)]
struct Kind {
    store: &'static str,
    start: fn(&Network) -> Box<dyn Cluster>,
    timing: Timing,
    servers: usize,
    /// No lease is renewed before the other server is back as well.
    waits: bool,
    /// The next leader of the store may lack what the former one has acknowledged, and the former one goes on.
    forgets: bool,
}

/// A leadership goes on if the store answers again within 5.15 s.
const DEFAULT: Timing =
    Timing { lease: Duration::from_secs(15), flags: &["--kill-after", "3s"], bears: Duration::from_secs(3) };
/// Within 15.4 s.
const LONG: Timing = Timing {
    lease: Duration::from_secs(24),
    flags: &["--renew", "3s", "--kill-after", "3s"],
    bears: Duration::from_secs(9),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    LeaderKilled,
    LeaderCutOff,
    /// Together with the leader of the shard, which still reaches it.
    LeaderCutOffWithOurs,
    /// Killed, and nothing that it acknowledged of late has reached the next one.
    LeaderKilledAlone,
    AllRestarted,
}

struct World {
    kind: Kind,
    cluster: Box<dyn Cluster>,
    network: Network,
    fleet: Fleet,
}

impl World {
    fn new(network: Network, kind: Kind) -> Self {
        let cluster = (kind.start)(&network);
        prepared(&*cluster);
        let mut world = Self { kind, cluster, network, fleet: Fleet::new() };
        (0..CANDIDATES).for_each(|index| world.start(index));
        world
    }

    fn start(&mut self, index: usize) {
        let Timing { lease, flags, .. } = self.kind.timing;
        let (lease, url) = (lease.as_secs().to_string(), self.cluster.url());
        let flags = [&["--lease", &lease, "--stop-timeout", "1s", "--store", &url], flags].concat();
        let command = leaderrun_in(&self.network.host_file(MEMBERS + index));
        self.fleet.start_as(command, &name(index), &flags, &["ignore-term", "daemon"], &[]);
    }

    /// Answers how long nobody led the store, and whether the leadership went on.
    fn suffer(&mut self, fault: Fault) -> (Duration, bool) {
        let leader = self.fleet.leader();
        let led = self.leading(None);
        let ours = MEMBERS + (0..CANDIDATES).find(|index| name(*index) == leader.owner).expect("one of ours");
        let mut begun = BootInstant::now();
        let failover = match fault {
            Fault::LeaderKilled => {
                self.cluster.kill(led);
                let failover = self.failover(led, begun);
                self.cluster.bring_back(led);
                failover
            }
            Fault::LeaderKilledAlone => {
                // The only other one.
                self.network.cut_between(led, 1 - led);
                self.fleet.kill(&leader.owner);
                let next = self.fleet.leader_where(|life| life.term > leader.term);
                self.start(ours - MEMBERS);
                println!("{next:?} began where only {led} has heard of it");
                begun = BootInstant::now();
                self.cluster.kill(led);
                let failover = self.failover(led, begun);
                self.network.heal_all(HOSTS);
                self.cluster.bring_back(led);
                failover
            }
            Fault::LeaderCutOff | Fault::LeaderCutOffWithOurs => {
                let with_ours = fault == Fault::LeaderCutOffWithOurs;
                self.network.part(&[led, ours][..=usize::from(with_ours)], HOSTS);
                let failover = self.failover(led, begun);
                if with_ours {
                    self.wait_for_the_end_of(&leader);
                }
                let is_killed = self.cluster.fence(led);
                self.network.heal_all(HOSTS);
                if is_killed {
                    self.cluster.bring_back(led);
                }
                failover
            }
            Fault::AllRestarted => {
                (0..self.kind.servers).for_each(|host| self.cluster.kill(host));
                (0..self.kind.servers).for_each(|host| self.cluster.start_again(host));
                self.leading(None);
                BootInstant::now().since(begun)
            }
        };
        let whole = || self.cluster.is_whole();
        wait_calmly_until("the cluster is whole again", || self.fleet.logs(), whole);
        // A tree that is older than the fault, and alive a lease after it, was renewed since.
        let over = begun.plus(self.kind.timing.lease).as_nanos();
        let now = self.fleet.leader_where(|life| life.last > over || life.term > leader.term);
        (failover, now.term == leader.term)
    }

    /// Or until another one leads as well, where the store allows that.
    fn wait_for_the_end_of(&self, leader: &Life) {
        // Silent for two seconds of which this thread has seen most: the machine may stand still.
        let (mut last, mut silent, mut looked) = (0, Duration::ZERO, Instant::now());
        let is_over = || {
            let lives = self.fleet.lives();
            let life = lives.iter().find(|life| life.term == leader.term).expect("it began");
            let seen = looked.elapsed().min(Duration::from_millis(100));
            silent = if life.last == last { silent + seen } else { Duration::ZERO };
            (last, looked) = (life.last, Instant::now());
            silent > Duration::from_secs(2)
                || lives.iter().any(|other| other.term > leader.term && other.last > other.first + 1_000_000_000)
        };
        wait_until_or("the leadership is over there", || self.fleet.logs(), is_over);
    }

    fn failover(&mut self, led: usize, begun: BootInstant) -> Duration {
        self.cluster.promote_instead_of(led);
        self.leading(Some(led));
        BootInstant::now().since(begun)
    }

    fn leading(&self, without: Option<usize>) -> usize {
        let mut found = None;
        let leads = || {
            found = self.cluster.leading(without);
            found.is_some()
        };
        wait_calmly_until("the store has a leader", || self.fleet.logs(), leads);
        found.expect("it has one")
    }
}

/// With what the store needs, and whole. Nobody has used it, so nobody waits for a lease that it may have lost.
fn prepared(cluster: &dyn Cluster) {
    wait_until("leaderctl store init succeeds", || {
        let mut init = leaderctl();
        init.args(["--store", &cluster.url(), "store", "init", "--new"]).stdout(Stdio::null()).stderr(Stdio::null());
        init.status().expect("leaderctl starts").success()
    });
    wait_calmly_until("the cluster is whole", String::new, || cluster.is_whole());
}

/// Tells it once, or as often as it is to be. Notes
/// `clusters STORE FAULT TIMES LOST FAILOVER_WORST_MS GAP_WORST_MS OVERLAP_MS`.
fn told(network: Network, kind: Kind, fault: Fault, title: &str) {
    let times = std::env::var("TEST_CLUSTERS_TIMES").map_or(1, |times| times.parse().expect("a number"));
    let mut world = World::new(network, kind);
    let (mut lost, mut needlessly, mut slowest) = (0, 0, Duration::ZERO);
    let is_of_the_store_alone = matches!(fault, Fault::LeaderKilled | Fault::LeaderCutOff | Fault::AllRestarted);
    for _ in 0..times {
        let (failover, went_on) = world.suffer(fault);
        println!("{}, {title}: another leads after {failover:?}; the leadership went on: {went_on}", kind.store);
        lost += u32::from(!went_on);
        let is_short = failover < kind.timing.bears && !kind.waits;
        needlessly += u32::from(!went_on && is_short && is_of_the_store_alone);
        slowest = slowest.max(failover);
    }
    let (lives, mut evidence) = world.fleet.end();
    let (slowest, overlap) = (millis(slowest), millis(evidence.overlap));
    let gap = millis(evidence.gaps.iter().copied().max().unwrap_or_default());
    note(&format!("clusters\t{}\t{title}\t{times}\t{lost}\t{slowest}\t{gap}\t{overlap}", kind.store));
    let logs = world.fleet.logs();
    if fault == Fault::LeaderCutOffWithOurs && kind.forgets {
        // What leaderrun-stores(7) warns of: this has to be read as a limit, and not as a licence.
        assert!(!evidence.overlap.is_zero(), "the manual says that two lead: {lives:?}\n{logs}");
        evidence.overlap = Duration::ZERO;
    }
    assert_eq!(evidence.breach(), None, "{lives:?}\n{logs}");
    assert_eq!(needlessly, 0, "leaderships were lost: {lives:?}\n{logs}");
}

/// What `--store` takes for so many hosts, with something behind each.
fn hosts(count: usize, behind: &str) -> String {
    (0..count).map(|host| address(host) + behind).collect::<Vec<_>>().join(",")
}

macro_rules! stories {
    ($name:ident: $kind:expr, [$($story:ident: $fault:ident),* $(,)?]) => {
        mod $name {
            $(
                #[test]
                fn $story() {
                    let path = concat!(module_path!(), "::", stringify!($story));
                    let told = |network| crate::told(network, $kind, crate::Fault::$fault, stringify!($story));
                    crate::support::network::tell(crate::HOSTS, path, told);
                }
            )*
        }
    };
}

const ETCD: Kind =
    Kind { store: "etcd", start: etcd::Etcd::start, timing: DEFAULT, servers: 3, waits: false, forgets: false };

const NATS: Kind = Kind { store: "nats", start: nats::Nats::start, timing: LONG, ..ETCD };

const REDIS_THAT_WAITS: Kind =
    Kind { store: "redis, wait=1", start: redis::Redis::waiting, timing: LONG, waits: true, ..ETCD };

const REDIS: Kind = Kind {
    store: "redis, asynchronous",
    start: redis::Redis::asynchronous,
    waits: false,
    forgets: true,
    ..REDIS_THAT_WAITS
};

const POSTGRES_THAT_WAITS: Kind =
    Kind { store: "postgres, synchronous", start: postgres::Postgres::synchronous, servers: 2, waits: true, ..ETCD };

const POSTGRES: Kind = Kind {
    store: "postgres, asynchronous",
    start: postgres::Postgres::asynchronous,
    waits: false,
    forgets: true,
    ..POSTGRES_THAT_WAITS
};

stories!(of_etcd: crate::ETCD, [
    its_leader_is_killed: LeaderKilled,
    its_leader_is_cut_off: LeaderCutOff,
    all_of_it_is_restarted: AllRestarted,
    its_leader_is_cut_off_with_ours: LeaderCutOffWithOurs,
]);
stories!(of_nats: crate::NATS, [
    its_leader_is_killed: LeaderKilled,
    its_leader_is_cut_off_with_ours: LeaderCutOffWithOurs,
]);
stories!(of_redis_that_waits: crate::REDIS_THAT_WAITS, [
    its_leader_is_cut_off_with_ours: LeaderCutOffWithOurs,
]);
stories!(of_redis: crate::REDIS, [
    its_leader_is_killed: LeaderKilled,
    all_of_it_is_restarted: AllRestarted,
    its_leader_is_cut_off_with_ours_and_two_lead: LeaderCutOffWithOurs,
    its_leader_is_killed_and_acknowledged_writes_are_lost: LeaderKilledAlone,
]);
stories!(of_postgres_that_waits: crate::POSTGRES_THAT_WAITS, [
    its_leader_is_cut_off_with_ours: LeaderCutOffWithOurs,
]);
stories!(of_postgres: crate::POSTGRES, [
    its_leader_is_cut_off_with_ours_and_two_lead: LeaderCutOffWithOurs,
    its_leader_is_killed_and_acknowledged_writes_are_lost: LeaderKilledAlone,
]);
