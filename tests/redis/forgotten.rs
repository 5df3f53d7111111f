//! What makes a server one that has forgotten, or a shard one that was led. The stories that all stores share are in
//! tests/lease_store and tests/conformance/forgotten.rs.

use super::*;

#[tokio::test]
async fn all_keys_of_a_shard_deleted_by_hand_make_the_next_leader_wait_and_terms_rise() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    for key in server.cli(&["KEYS", "*db/main*"]).lines() {
        server.cli(&["DEL", key]);
    }
    // A new candidate has seen nothing of it.
    let grant = granted(other.claim(&candidate("two")).await.unwrap());
    assert!(grant.term > term);
    let wait = wait_of(&grant);
    assert!(wait > LEASE / 2 && wait < LEASE + Duration::from_secs(2), "{wait:?}");
    assert!(matches!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(_)))));
}
