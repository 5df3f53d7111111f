//! Orders in the shard's object, and what a leader pays for them.

use super::*;
use crate::support::wire::Proxy;
use leaderrun::internals::store::{Leases as _, Note, Notes as _, Page, Renewal};

#[tokio::test]
async fn a_renewal_is_one_request_and_a_new_order_costs_two_more() {
    let server = old_server();
    let proxy = Proxy::before(&server);
    let (store, operator) = (store(&proxy.endpoint()).await, store(&server.endpoint()).await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    proxy.actions();
    let shards = [one.shard.clone()];
    for (sequence, orders, requests) in
        [(1, None, &["PUT"][..]), (2, Some("pause"), &["PUT", "GET", "PUT"]), (3, Some("pause"), &["PUT"])]
    {
        if sequence == 2 {
            let note = Note::for_ever("pause");
            assert_eq!(operator.replace(&one.shard, &Page::Orders, None, Some(&note)).await, Ok(true));
        }
        let renewed = store.renew_and_read(&one, term, sequence, &shards).await.unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
        assert_eq!(renewed.orders, Some(vec![orders.map(Note::for_ever)]), "{sequence}");
        assert_eq!(proxy.actions(), requests, "{sequence}");
    }
}

#[tokio::test]
async fn orders_for_a_shard_that_was_never_led_are_no_lease_and_stay_for_the_first_leader() {
    let server = old_server();
    let store = store(&server.endpoint()).await;
    let note = Note::for_ever("pause");
    assert_eq!(store.replace(&shard(), &Page::Orders, None, Some(&note)).await, Ok(true));
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let renewed = store.renew_and_read(&one, term, 1, &[shard()]).await.unwrap();
    assert_eq!(renewed.orders, Some(vec![Some(note)]));
}

#[tokio::test]
async fn an_order_does_not_prolong_a_lease_that_is_not_renewed() {
    let server = old_server();
    let (store, other) = (store(&server.endpoint()).await, store(&server.endpoint()).await);
    let lease = Duration::from_secs(3);
    granted(store.claim(&with_lease("one", lease)).await.unwrap());
    let two = with_lease("two", lease);
    let begun = std::time::Instant::now();
    let mut standing: Option<String> = None;
    let mut writes = 0;
    while let leaderrun::internals::store::Claim::Refused(_) = other.claim(&two).await.unwrap() {
        writes += 1;
        let text = format!("order {writes}");
        let note = Note::for_ever(text.clone());
        assert_eq!(other.replace(&shard(), &Page::Orders, standing.as_deref(), Some(&note)).await, Ok(true));
        standing = Some(text);
        assert!(begun.elapsed() < support::fleet::PATIENCE, "it never expires");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(writes > 2, "{writes}");
}
