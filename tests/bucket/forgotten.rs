//! Objects that somebody deleted.

use super::*;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Doubt, ErrorKind, Report};

#[tokio::test]
async fn a_first_claim_of_a_shard_is_seven_requests_long_and_does_not_wait() {
    let server = old_server();
    let proxy = support::wire::Proxy::before(&server);
    let store = store(&proxy.endpoint()).await;
    let grant = granted(store.claim(&candidate("one")).await.unwrap());
    assert_eq!((grant.start_after, grant.doubt), (None, Doubt::FirstUse));
    // The marker for the process, the object, the marker for the shard, the claim, the led mark, and that it is there.
    assert_eq!(proxy.actions(), ["GET", "GET", "GET", "PUT", "GET", "PUT", "PUT"]);
}

#[tokio::test]
async fn a_led_mark_keeps_the_longest_lease() {
    let server = old_server();
    let store = store(&server.endpoint()).await;
    for (seconds, kept) in [(15, 15_000), (30, 30_000), (10, 30_000)] {
        let one = with_lease("one", Duration::from_secs(seconds));
        let term = granted(store.claim(&one).await.unwrap()).term;
        assert!(server.object("led/db=main").unwrap().contains(&format!(":{kept}}}")), "{seconds}");
        store.release(&one, term).await.unwrap();
    }
}

#[tokio::test]
async fn an_emptied_bucket_lets_nobody_lead_until_it_is_prepared() {
    let server = old_server();
    let store = store(&server.endpoint()).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    for key in server.keys() {
        server.delete(&key);
    }
    assert_eq!(store.claim(&one).await.unwrap_err().kind, ErrorKind::Misconfigured);
    store.prepare().await.unwrap();
    let grant = granted(store.claim(&one).await.unwrap());
    assert!(grant.term > term && wait_of(&grant) > LEASE * 8 / 10, "{grant:?}");
}

#[tokio::test]
async fn a_forgotten_shard_keeps_its_term_alone() {
    let server = old_server();
    let store = store(&server.endpoint()).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    store.forget(&one, term).await.unwrap();
    assert_eq!(store.inspect(&one.shard).await.unwrap(), Report::default());
    let record = record(&server);
    assert_eq!((record["term"].as_u64(), &record["lease"]), (Some(term.0), &serde_json::Value::Null));
    assert!(lead(&store, &one).await > term);
}
