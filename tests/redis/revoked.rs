//! A lease that was revoked does not come back, whatever else the server has forgotten.

use super::*;
use crate::support::server::Server as _;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Observation, Release, Renewal};
use leaderrun::internals::time::BootInstant;
use std::sync::Arc;

const SHORT: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_lease_that_was_revoked_while_the_server_may_have_forgotten_leases_is_not_recreated() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT));
    let term = lead(&store, &one).await;
    server.kill();
    server.start_again();
    let begun = Instant::now();
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(other.revoke(&shard(), term).await, Ok(Release::Released));
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(None)));
    assert_eq!(server.cli(&["EXISTS", LOCK, RECORD]), "0");
    assert_eq!(refused(other.claim(&two).await.unwrap()).owner, FORGOTTEN);
    let grant = granted_in_time(&other, &two).await;
    assert!(begun.elapsed() + wait_of(&grant) >= SHORT && grant.term > term, "{grant:?}");
}

#[tokio::test]
async fn a_lease_that_was_revoked_is_not_recreated_by_a_renewal_after_its_end() {
    let server = old_server();
    let store = store(&server).await;
    let one = with_lease("one", Duration::from_secs(3));
    let term = lead(&store, &one).await;
    assert_eq!(store.revoke(&shard(), term).await, Ok(Release::Released));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    tokio::time::sleep(Duration::from_millis(3050)).await;
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(None)));
    assert_eq!(store.observe(&shard()).await, Ok(Observation::Free));
    assert_eq!(store.revoke(&shard(), term).await, Ok(Release::NotHeld));
    // The same session may lead again, and then renew.
    let again = lead(&store, &one).await;
    assert_eq!(store.renew(&one, again, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn the_next_leader_waits_for_a_revoked_one_until_that_has_released() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    assert_eq!(other.revoke(&shard(), term).await, Ok(Release::Released));
    assert_eq!(other.inspect(&shard()).await.unwrap().last_term, Some(term));
    let grant = granted(other.claim(&two).await.unwrap());
    assert!(wait_of(&grant) > LEASE / 2 && wait_of(&grant) <= LEASE, "{grant:?}");
    assert!(matches!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
    assert_eq!(store.release(&one, term).await, Ok(Release::NotHeld));

    assert_eq!(store.revoke(&shard(), grant.term).await, Ok(Release::Released));
    assert_eq!(other.release(&two, grant.term).await, Ok(Release::Released));
    // Two has shown that it runs nothing; of one nobody has.
    let third = granted(store.claim(&candidate("three")).await.unwrap());
    assert!(wait_of(&third) > LEASE / 2 && wait_of(&third) <= LEASE, "{third:?}");
}

#[tokio::test]
async fn a_leader_that_was_revoked_may_release_and_nobody_waits() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    assert_eq!(other.revoke(&shard(), term).await, Ok(Release::Released));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(lead(&other, &candidate("two")).await > term);
}

#[tokio::test]
async fn a_lock_that_is_all_that_is_left_is_waited_for_when_it_is_revoked() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    server.cli(&["DEL", LAST]);
    assert_eq!(other.revoke(&shard(), term).await, Ok(Release::Released));
    assert_eq!(other.inspect(&shard()).await.unwrap().last_term, Some(term));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    let grant = granted(other.claim(&candidate("two")).await.unwrap());
    assert!(grant.term > term && wait_of(&grant) > LEASE / 2, "{grant:?}");
}

#[tokio::test]
async fn a_revocation_is_heard_at_once() {
    let server = old_server();
    let (store, other) = (store(&server).await, Arc::new(store(&server).await));
    let term = lead(&store, &candidate("one")).await;
    refused(other.claim(&candidate("two")).await.unwrap());
    let news = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.changed(&shard()).await }
    });
    eventually("it subscribes", async || server.subscribers() == 1).await;
    let begun = BootInstant::now();
    assert_eq!(store.revoke(&shard(), term).await, Ok(Release::Released));
    tokio::time::timeout(LEASE / 2, news).await.expect("it is heard at once").unwrap().unwrap();
    println!("heard after {:?}", BootInstant::now().since(begun));
    // It holds to what it saw.
    assert!(wait_of(&granted(other.claim(&candidate("two")).await.unwrap())) > LEASE / 2);
}

#[tokio::test]
async fn what_another_program_wrote_is_not_revoked() {
    let server = old_server();
    let store = store(&server).await;
    server.cli(&["SET", LOCK, "instance-7", "PX", "60000"]);
    for term in [Term(0), Term(7)] {
        assert_eq!(store.revoke(&shard(), term).await, Ok(Release::NotHeld));
    }
    server.cli(&["SET", LOCK, "session 7 0 9 7 host owner"]);
    let error = store.revoke(&shard(), Term(7)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misconfigured);
    assert!(error.message.contains("never expires"), "{error}");
    assert_eq!(server.cli(&["EXISTS", LOCK]), "1");
}
