//! A server that is away, or comes back: what a store says of it, and that nothing of it is in the way afterwards.

use super::support::claims::eventually;
use super::support::gate::Gate;
use super::support::server::Server;
use super::{AnyServer, Bench, candidate, does, granted, remote_bench};
use crate::support::prelude::*;
use leaderrun::internals::lease::Term;
use leaderrun::internals::store::{Delivery, ErrorKind, Location, Release, Renewal};

async fn of_a_server_that_is_away_nothing_was_asked_and_the_first_request_after_that_succeeds(
    bench: &Bench,
    mut server: AnyServer,
) {
    a_store_that_is_dropped_leaves_no_connection(&*server).await;
    let (store, unused) = (bench.store(), bench.store());
    let one = candidate("restarted", "one");
    let term = granted(&*store, &one).await.term;
    for sequence in 1..4 {
        server = does(server, |server| server.kill()).await;
        if sequence == 1 {
            for error in [
                unused.claim(&one).await.unwrap_err(),
                unused.observe(&one.shard).await.unwrap_err(),
                unused.inspect(&one.shard).await.unwrap_err(),
                unused.renew(&one, Term(1), 1).await.unwrap_err(),
                unused.release(&one, Term(1)).await.unwrap_err(),
                unused.prepare().await.unwrap_err(),
            ] {
                assert_eq!(error.kind, ErrorKind::NotApplied, "{error}");
                let address = server.address().to_string();
                let is_named = error.message.starts_with("cannot reach ") && error.message.contains(&address);
                assert!(is_named && error.message.ends_with(": connection refused"), "{error}");
            }
        }
        if sequence == 2 {
            let error = store.renew(&one, term, 9).await.unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Unknown | ErrorKind::NotApplied), "{error}");
        }
        server = does(server, |server| server.start_again()).await;
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        unused.observe(&one.shard).await.unwrap();
    }
    let _server = does(server, |server| {
        server.kill();
        server.start_again();
    })
    .await;
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
}

async fn a_store_that_is_dropped_leaves_no_connection(server: &dyn Server) {
    let gate = Gate::to(server.address());
    let location = Location::from_url(&server.url(gate.address)).unwrap();
    let store = location.open(Duration::from_secs(10)).await.unwrap();
    assert_eq!(location.delivery(), store.delivery());
    let one = candidate("dropped", "one");
    granted(&*store, &one).await;
    if store.delivery() == Delivery::Push {
        let (waiting, shard) = (Arc::clone(&store), one.shard.clone());
        let news = tokio::time::timeout(Duration::from_secs(1), async move { waiting.changed(&shard).await });
        assert!(news.await.is_err(), "one leads");
    }
    drop(store);
    eventually("no task keeps one open", async || gate.connections() == 0).await;
}

every_store!(own_server: of_a_server_that_is_away_nothing_was_asked_and_the_first_request_after_that_succeeds);
