//! Clocks that are wrong: a host's, and the server's.

use super::*;
use leaderrun::internals::store::{Leases as _, Renewal};
use leaderrun::internals::time::wall_clock_millis;

fn hour_ahead() -> u64 {
    wall_clock_millis() + 3_600_000
}

fn hour_behind() -> u64 {
    wall_clock_millis() - 3_600_000
}

#[tokio::test]
async fn a_hosts_wall_clock_decides_nothing() {
    let server = old_server();
    let address = address(&server.endpoint());
    let lease = Duration::from_secs(4);
    for (ours, theirs) in [(hour_ahead as fn() -> u64, hour_behind as fn() -> u64), (hour_behind, hour_ahead)] {
        let leader = Bucket::open_with_wall_clock(&address, REQUEST_TIMEOUT, ours).await.unwrap();
        let standby = Bucket::open_with_wall_clock(&address, REQUEST_TIMEOUT, theirs).await.unwrap();
        let (one, two) = (with_lease("one", lease), with_lease("two", lease));
        let term = granted(leader.claim(&one).await.unwrap()).term;
        refused(standby.claim(&two).await.unwrap());
        let begun = std::time::Instant::now();
        assert_eq!(leader.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
        let term = granted_in_time(&standby, &two).await.term;
        assert!(begun.elapsed() >= lease * 95 / 100, "{:?}", begun.elapsed());
        standby.release(&two, term).await.unwrap();
    }
}
