//! A server whose clock is slewed as fast as chrony slews one.

use crate::support::fleet::{Fleet, wait_until_or};
use crate::support::proxy::{NetworkFault, Proxy};
use crate::support::redis::Server;
use crate::support::server::Server as _;
use std::net::SocketAddr;

/// The longer the lease, the more of it such a clock takes away: with this one, a holder that allows for one part in a
/// hundred runs on for 0.4 s beside the next.
const TIMING: [&str; 8] = ["--lease", "15s", "--renew", "1s", "--kill-after", "1s", "--retry", "1s"];

#[test]
fn a_server_whose_clock_is_a_twelfth_fast_gives_no_lease_away_while_its_tree_lives() {
    let server = Server::slewed(83_333);
    server.age();
    let proxy = Proxy::to(SocketAddr::from(([127, 0, 0, 1], server.port())));
    let mut fleet = Fleet::new();
    let through = format!("redis://{}", proxy.address);
    fleet.start("leader", &[&TIMING[..], &["--store", &through]].concat(), &["ignore-term"], &[]);
    let leader = fleet.leader();
    proxy.set(NetworkFault::Partition);
    // Each sees the lease for the first time: a standby would wait for what was left of it when it saw it first.
    for number in 0.. {
        let fresh = format!("fresh{number}");
        fleet.start(&fresh, &[&TIMING[..], &["-n", "--store", &server.own_url()]].concat(), &[], &[]);
        let mut gave_up = false;
        wait_until_or("it gives up or leads", String::new, || {
            gave_up = fleet.has_ended(&fresh);
            gave_up || fleet.lives().iter().any(|life| life.term > leader.term)
        });
        if !gave_up {
            break;
        }
    }
    fleet.conclude();
}
