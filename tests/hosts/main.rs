//! Two never run at once, whatever the network between hosts loses: three hosts and the store's own, each a network
//! namespace; a lease of 8 s, renewed every second, 1 s of grace.
//!
//! A proxy's black hole still acknowledges what it swallows. A dropped packet is not acknowledged: it is sent again
//! after longer and longer waits, and when the network heals, everybody may be in the middle of such a wait.
#![cfg(any(feature = "aws", feature = "tls"))]

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::thread::sleep;
use support::fleet::leaderrun_in;
use support::network::{Cut, HUB, Network};
use support::prelude::*;
use support::server::Server;
use support::world::{Story, name};

const LEASE: Duration = Duration::from_secs(8);
const TIMING: [&str; 10] =
    ["--lease", "8s", "--renew", "1s", "--kill-after", "1s", "--retry", "1s", "--stop-timeout", "1s"];
/// TCP itself tries 6.2 s after the first packet that was lost, which a renewal may send a second after the cut, and
/// then not before 12.6 s: leaderrun must not leave it to one connection. With [`LONG_TIMING`] an outage may last for
/// 17.5 s, and half of that where the guard is woken late.
const MOMENT: Duration = Duration::from_millis(7300);
const LONG_TIMING: [&str; 10] =
    ["--lease", "22s", "--renew", "1s", "--kill-after", "1s", "--retry", "1s", "--stop-timeout", "1s"];
const HOSTS: usize = 3;

struct Hosts {
    network: Network,
    fleet: Fleet,
    _server: Box<dyn Server>,
}

impl Hosts {
    fn new(network: Network, story: Story, timing: [&str; 10]) -> Self {
        let mut server = (story.start)();
        prepare(&*server);
        server.grow_old();
        let mut fleet = Fleet::titled(story.store, story.fault);
        let url = server.url(SocketAddr::new(HUB.parse().expect("an address"), server.address().port()));
        let flags = [&timing, &["--store", &url][..]].concat();
        for index in 0..HOSTS {
            let command = leaderrun_in(&network.host_file(index));
            fleet.start_as(command, &name(index), &flags, &["ignore-term", "daemon"], server.environment());
        }
        Self { network, fleet, _server: server }
    }

    /// The tree of this host, once it is alive.
    fn leader(&self) -> (usize, Life) {
        let leader = self.fleet.leader();
        ((0..HOSTS).find(|index| name(*index) == leader.owner).expect("one of ours"), leader)
    }

    /// Without all others this host leads within a generous time: it knows again how things stand.
    fn assert_leads_when_others_are_gone(&mut self, host: usize) {
        for other in (0..HOSTS).filter(|other| *other != host) {
            self.fleet.stop(&name(other));
        }
        let alone = BootInstant::now();
        let life = self.fleet.leader_where(|life| life.owner == name(host));
        let taken = BootInstant::from_nanos(life.last).since(alone);
        assert!(taken < LEASE * 3, "{taken:?}\n{}", self.fleet.logs());
    }
}

fn a_leader_is_cut_off_for_a_moment(network: Network, story: Story, cut: Cut) {
    let hosts = Hosts::new(network, story, LONG_TIMING);
    let (host, leader) = hosts.leader();
    hosts.network.cut(host, cut);
    sleep(MOMENT);
    hosts.network.heal(host);
    sleep(LEASE);
    hosts.fleet.assert_undisturbed(&leader);
    hosts.fleet.conclude();
}

fn a_leader_is_cut_off_for_long(network: Network, story: Story, cut: Cut) {
    let mut hosts = Hosts::new(network, story, TIMING);
    let (host, leader) = hosts.leader();
    let begun = BootInstant::now();
    hosts.network.cut(host, cut);
    let next = hosts.fleet.leader_where(|life| life.term > leader.term);
    let taken = BootInstant::from_nanos(next.first).since(begun);
    assert!(taken < LEASE * 2 + LEASE / 2, "{taken:?}\n{}", hosts.fleet.logs());
    hosts.network.heal(host);
    hosts.assert_leads_when_others_are_gone(host);
    hosts.fleet.conclude();
}

fn a_standby_is_cut_off(network: Network, story: Story, cut: Cut) {
    let mut hosts = Hosts::new(network, story, TIMING);
    let (host, leader) = hosts.leader();
    let standby = (host + 1) % HOSTS;
    for length in [LEASE / 2, LEASE + LEASE / 2] {
        hosts.network.cut(standby, cut);
        sleep(length);
        hosts.network.heal(standby);
    }
    hosts.fleet.assert_undisturbed(&leader);
    hosts.assert_leads_when_others_are_gone(standby);
    hosts.fleet.conclude();
}

macro_rules! stories {
    ($store:ident, $start:expr, [$($story:ident: $shape:ident($cut:ident)),* $(,)?]) => {
        mod $store {
            use crate::support::world::{Kit, Story};

            $(
                #[test]
                fn $story() {
                    let path = concat!(module_path!(), "::", stringify!($story));
                    let story = Story {
                        store: stringify!($store),
                        fault: stringify!($story),
                        start: || Box::new($start),
                        kit: Kit::Bare,
                    };
                    crate::support::network::tell(crate::HOSTS, path, |network| {
                        crate::$shape(network, story, crate::Cut::$cut);
                    });
                }
            )*
        }
    };
}

// A client that hears nothing notices last, and each store has another client.
every_store!(stories:
    a_leader_that_hears_nothing_for_a_moment_is_not_disturbed: a_leader_is_cut_off_for_a_moment(StoreToHost),
    a_leader_that_hears_nothing_is_dead_before_the_next_begins: a_leader_is_cut_off_for_long(StoreToHost),
);

#[cfg(feature = "redis")]
mod other_cuts {
    stories!(
        redis,
        crate::support::redis::Server::start(),
        [
            a_leader_cut_off_both_ways_for_a_moment_is_not_disturbed: a_leader_is_cut_off_for_a_moment(BothWays),
            a_leader_that_is_not_heard_for_a_moment_is_not_disturbed: a_leader_is_cut_off_for_a_moment(HostToStore),
            a_leader_cut_off_both_ways_is_dead_before_the_next_begins: a_leader_is_cut_off_for_long(BothWays),
            a_leader_that_is_not_heard_is_dead_before_the_next_begins: a_leader_is_cut_off_for_long(HostToStore),
            a_standby_cut_off_both_ways_disturbs_nobody_and_comes_back: a_standby_is_cut_off(BothWays),
        ]
    );
}
