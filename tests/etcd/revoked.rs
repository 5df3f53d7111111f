//! Leases that somebody ended who does not hold them.

use super::*;
use leaderrun::internals::store::{Observation, Release, Renewal};
use tokio::time::timeout;

#[tokio::test]
async fn the_successor_of_a_revoked_leader_waits_for_a_whole_lease_of_that_one() {
    let server = old_server().await;
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let (one, two) = (with_lease("one", Duration::from_secs(30)), candidate("two"));
    let term = lead(&*first, &one).await;
    assert_eq!(second.revoke(&one.shard, Term(term.0 + 1)).await, Ok(Release::NotHeld));
    assert_eq!(second.revoke(&one.shard, term).await, Ok(Release::Released));
    assert_eq!(second.observe(&one.shard).await, Ok(Observation::Free));
    let report = second.inspect(&one.shard).await.unwrap();
    assert_eq!((report.holder, report.last_term), (None, Some(term)));
    assert_eq!(second.revoke(&one.shard, term).await, Ok(Release::NotHeld));
    let grant = granted(second.claim(&two).await.unwrap());
    assert!(grant.term > term);
    let wait = wait_of(&grant);
    assert!(wait > Duration::from_secs(25) && wait <= Duration::from_millis(30_300), "{wait:?}");
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Revoked));
    assert_eq!(first.release(&one, term).await, Ok(Release::NotHeld));
    assert_eq!(second.renew(&two, grant.term, 1).await, Ok(Renewal::Renewed));
    // A revocation of the one who waits ends nobody's wait.
    assert_eq!(first.revoke(&one.shard, grant.term).await, Ok(Release::Released));
    let next = granted(first.claim(&candidate("three")).await.unwrap());
    assert!(next.term > grant.term && wait_of(&next) > Duration::from_secs(25), "{next:?}");
}

#[tokio::test]
async fn a_standby_and_the_holder_hear_of_a_revocation_at_once() {
    let server = old_server().await;
    let (leader, standby) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let (one, shard) = (candidate("one"), shard());
    let term = lead(&*leader, &one).await;
    refused(standby.claim(&candidate("two")).await.unwrap());
    let (mut news, mut doubt) = (standby.changed(&shard), leader.doubted(&shard));
    let pause = Duration::from_millis(500);
    assert!(timeout(pause, &mut news).await.is_err() && timeout(pause, &mut doubt).await.is_err(), "one leads");
    assert_eq!(standby.revoke(&shard, term).await, Ok(Release::Released));
    timeout(PATIENCE, news).await.expect("it is told").unwrap();
    timeout(PATIENCE, doubt).await.expect("it is told");
    assert_eq!(leader.renew(&one, term, 1).await, Ok(Renewal::Revoked));
}

#[tokio::test]
async fn a_leader_whose_record_was_deleted_is_waited_for_when_it_is_revoked() {
    let server = old_server().await;
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let term = lead(&*first, &with_lease("one", Duration::from_secs(30))).await;
    server.delete(LAST);
    assert_eq!(second.revoke(&shard(), term).await, Ok(Release::Released));
    assert_eq!(second.inspect(&shard()).await.unwrap().last_term, Some(term));
    let grant = granted(second.claim(&candidate("two")).await.unwrap());
    assert!(grant.term > term && wait_of(&grant) > Duration::from_secs(25), "{grant:?}");
}

#[tokio::test]
async fn what_is_released_cannot_be_revoked() {
    let server = old_server().await;
    let store = open(&server.store_url()).await;
    let one = candidate("one");
    let term = lead(&*store, &one).await;
    store.release(&one, term).await.unwrap();
    assert_eq!(store.revoke(&one.shard, term).await, Ok(Release::NotHeld));
    assert!(lead(&*store, &candidate("two")).await > term);
}
