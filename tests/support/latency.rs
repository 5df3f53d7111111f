//! A network that is slow for a while costs no leadership, whatever else is asked of the store meanwhile.

use super::fleet::{Fleet, leaderctl};
use super::proxy::{NetworkFault, Proxy};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

const LATENCY: Duration = Duration::from_secs(3);

/// Each answer to the leader takes three seconds. `url` is that of the store behind an address.
pub fn three_seconds_cost_nothing(
    lease: &str,
    server: SocketAddr,
    environment: &[(&str, &str)],
    url: impl Fn(SocketAddr) -> String,
) {
    let proxy = Proxy::to(server);
    let mut fleet = Fleet::new();
    let store = url(proxy.address);
    let timing = ["--lease", lease, "--renew", "1s", "--kill-after", "100ms", "--stop-timeout", "100ms"];
    fleet.start("one", &[&timing[..], &["--store", &store]].concat(), &[], environment);
    let leader = fleet.leader();
    proxy.set(NetworkFault::Slow(LATENCY));
    // Each of these is a note for the history as well.
    for words in [&["pause", "--keep"][..], &["resume"], &["pause", "--keep"], &["resume"]] {
        sleep(LATENCY);
        let mut order = leaderctl();
        order.arg("--store").arg(url(server)).args(words).arg("shard").envs(environment.iter().copied());
        let output = order.output().expect("leaderctl starts");
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", fleet.logs());
    }
    sleep(LATENCY);
    let now = fleet.leader();
    assert_eq!((now.term, fleet.lives().len()), (leader.term, 1), "{}", fleet.logs());
    proxy.set(NetworkFault::Fair);
    fleet.conclude();
}
