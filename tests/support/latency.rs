//! A network that is slow for a while costs no leadership, whatever else is asked of the store meanwhile.

use super::fleet::{Fleet, leaderctl};
use super::proxy::{NetworkFault, Proxy};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

/// Each of these is a note for the history as well.
const ORDERS: [&[&str]; 4] = [&["pause", "--keep"], &["resume"], &["pause", "--keep"], &["resume"]];

/// Each answer to the leader takes three seconds, and an operator gives orders meanwhile. `url` is that of the store behind
/// an address.
pub fn three_seconds_cost_nothing(
    lease: &str,
    server: SocketAddr,
    environment: &[(&str, &str)],
    url: impl Fn(SocketAddr) -> String,
) {
    latency_costs_nothing(Duration::from_secs(3), lease, server, environment, url, &ORDERS);
}

/// Each answer to the leader takes this long.
pub fn latency_costs_nothing(
    latency: Duration,
    lease: &str,
    server: SocketAddr,
    environment: &[(&str, &str)],
    url: impl Fn(SocketAddr) -> String,
    orders: &[&[&str]],
) {
    let proxy = Proxy::to(server);
    let mut fleet = Fleet::new();
    let store = url(proxy.address);
    let timing = ["--lease", lease, "--renew", "1s", "--kill-after", "100ms", "--stop-timeout", "100ms"];
    fleet.start("one", &[&timing[..], &["--store", &store]].concat(), &[], environment);
    let leader = fleet.leader();
    proxy.set(NetworkFault::Slow(latency));
    for &words in orders {
        sleep(latency);
        let mut order = leaderctl();
        order.arg("--store").arg(url(server)).args(words).arg("shard").envs(environment.iter().copied());
        let output = order.output().expect("leaderctl starts");
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", fleet.logs());
    }
    sleep(latency * 5);
    let now = fleet.leader();
    assert_eq!((now.term, fleet.lives().len()), (leader.term, 1), "{}", fleet.logs());
    proxy.set(NetworkFault::Fair);
    fleet.conclude();
}
