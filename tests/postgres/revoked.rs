//! Leases that somebody ended who does not hold them.

use super::*;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Release, Renewal};
use tokio::time::timeout;

#[tokio::test]
async fn a_revoked_lease_is_nobodys_until_it_would_have_ended_and_its_term_is_remembered() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&first, &one).await;
    let end = table.sql("SELECT expires FROM $T WHERE shard = 'db/main'");
    assert_eq!(second.revoke(&shard(), term).await, Ok(Release::Released));
    assert_eq!(table.sql("SELECT expires FROM $T WHERE shard = 'db/main'"), end);
    let report = second.inspect(&shard()).await.unwrap();
    let holder = report.holder.expect("nobody may lead yet");
    assert!(holder.owner.contains("nobody") && holder.owner.contains("one"), "{holder:?}");
    assert_eq!((holder.session, holder.term, report.last_term), (None, None, Some(term)));
    assert!(holder.expires_in.is_some_and(|left| left > LEASE / 4 && left <= LEASE));
    for candidate in [&one, &two] {
        assert!(refused(second.claim(candidate).await.unwrap()).owner.contains("nobody"));
    }
    assert!(matches!(first.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(holder))) if holder.session.is_none()));
    assert_eq!(first.release(&one, term).await, Ok(Release::NotHeld));
    assert_eq!(second.revoke(&shard(), term).await, Ok(Release::NotHeld));
    // Nor does a DELETE let anybody lead early.
    table.sql("DELETE FROM $T");
    refused(second.claim(&two).await.unwrap());
    table.sql("UPDATE $T SET expires = clock_timestamp() WHERE shard = 'db/main'");
    assert_eq!(first.renew(&one, term, 2).await, Ok(Renewal::Lost(None)));
    assert!(lead(&second, &two).await > term);
}

#[tokio::test]
async fn a_standby_hears_of_a_revocation_at_once() {
    let table = Table::new().await;
    let (leader, standby) = (table.store().await, table.store().await);
    let term = lead(&leader, &candidate("one")).await;
    refused(standby.claim(&candidate("two")).await.unwrap());
    let shard = shard();
    let mut news = standby.changed(&shard);
    assert!(timeout(Duration::from_millis(500), &mut news).await.is_err(), "one leads");
    assert_eq!(leader.revoke(&shard, term).await, Ok(Release::Released));
    timeout(Duration::from_secs(5), news).await.expect("it is told").unwrap();
}

#[tokio::test]
async fn what_is_over_cannot_be_revoked() {
    let table = Table::new().await;
    let store = table.store().await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    store.release(&one, term).await.unwrap();
    assert_eq!(store.revoke(&shard(), term).await, Ok(Release::NotHeld));
    let term = lead(&store, &one).await;
    table.sql("UPDATE $T SET expires = clock_timestamp() WHERE shard = 'db/main'");
    assert_eq!(store.revoke(&shard(), term).await, Ok(Release::NotHeld));
    assert_eq!(store.observe(&shard()).await, Ok(Observation::Free));
    assert_eq!(store.revoke(&"never".parse().unwrap(), term).await, Ok(Release::NotHeld));
    assert!(lead(&store, &one).await > term);
}

#[tokio::test]
async fn a_session_that_holds_the_advisory_lock_keeps_it_until_its_holder_has_noticed() {
    let table = Table::new().await;
    let url = table.url_with("advisory_lock=9090");
    let (first, second) = (open(&url).await, open(&url).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&first, &one).await;
    assert_eq!(second.revoke(&shard(), term).await, Ok(Release::Released));
    table.sql("UPDATE $T SET expires = clock_timestamp() WHERE shard = 'db/main'");
    refused(second.claim(&two).await.unwrap());
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    assert_eq!(first.release(&one, term).await, Ok(Release::NotHeld));
    assert!(granted_in_time(&second, &two).await.term > term);
}
