//! How standbys hear of a release: they look.

use super::*;
use tokio::time::timeout;

/// Longer than half a second, on a slow machine too.
const SOON: Duration = Duration::from_secs(10);

/// A server of one's own, whose requests can be counted, with a table that has remembered for an hour.
async fn alone() -> Server {
    let mut server = tokio::task::spawn_blocking(Server::start).await.expect("it starts");
    open(&server.url_with("")).prepare().await.expect("it can be made");
    server.grow_old();
    server
}

/// Has a long lease, so that no standby looks at its end.
fn leader() -> Candidate {
    with_lease("one", Duration::from_mins(10))
}

#[tokio::test]
async fn a_standby_looks_twice_a_second_and_hears_of_a_release() {
    let server = alone().await;
    let (store, standby) = (open(&server.url_with("")), open(&server.url_with("")));
    let (one, shard) = (leader(), shard());
    let term = lead(&store, &one).await;
    let mut news = standby.changed(&shard);
    let (before, begun) = (server.requests(), std::time::Instant::now());
    let asked = loop {
        assert!(timeout(SOON / 5, &mut news).await.is_err(), "the lease is held");
        let asked = server.requests() - before;
        if asked >= 4 {
            break asked;
        }
        assert!(begun.elapsed() < SOON, "{asked} requests in {:?}", begun.elapsed());
    };
    let most = u64::try_from(begun.elapsed().as_millis() / 500).expect("small") + 3;
    assert!(asked <= most, "{asked} requests in {:?}", begun.elapsed());
    store.release(&one, term).await.unwrap();
    timeout(SOON, news).await.expect("the standby hears of it").unwrap();
}
