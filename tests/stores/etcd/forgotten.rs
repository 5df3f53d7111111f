//! Keys that vanish without a release, leases that an operator revokes, and an etcd that forgets: nobody starts a tree beside
//! one that may still run.
//!
//! The stories that all stores share are in tests/conformance/forgotten.rs and tests/lease_store. Here is what is special
//! about this one.

use super::*;

#[tokio::test]
async fn a_key_without_its_document_is_in_the_way_until_it_ends() {
    let server = old_server().await;
    let (first, second) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let (one, two) = (with_lease("one", Duration::from_secs(4)), candidate("two"));
    let term = lead(&*first, &one).await;
    server.delete(DOCUMENT);
    assert_eq!(refused(second.claim(&two).await.unwrap()).owner, "one");
    assert!(matches!(first.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(_)))));
    let grant = granted_in_time(&*second, &two).await;
    assert!(grant.term > term && wait_of(&grant) > Duration::from_secs(3), "{grant:?}");
}

/// The cluster is the same, and so is the marker; but the revisions are those of the past.
#[tokio::test]
async fn a_backup_that_is_restored_is_another_life_for_who_was_there() {
    let mut server = old_server().await;
    let (first, second) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = with_lease("one", Duration::from_mins(1));
    let earlier = lead(&*first, &one).await;
    first.release(&one, earlier).await.unwrap();
    let backup = server.back_up();
    let term = lead(&*first, &one).await;
    assert_eq!(refused(second.claim(&candidate("two")).await.unwrap()).term, Some(term));
    let marker = server.value("leaderrun/base");
    server.restore(&backup);
    let holder = refused(second.claim(&candidate("two")).await.unwrap());
    assert_eq!(holder.doubt, Some(Doubt::Forgotten), "{holder:?}");
    assert_ne!(server.value("leaderrun/base"), marker);
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    // Who comes now is told by the marker.
    let third = open(&server.own_url()).await;
    assert_eq!(refused(third.claim(&candidate("three")).await.unwrap()).owner, "one");
    assert_eq!(first.renew(&one, term, 2).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn nobody_leads_after_a_revocation_before_the_etcd_lease_of_the_revoked_leader_is_gone() {
    let server = old_server().await;
    let (first, second) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let (one, two) = (with_lease("one", Duration::from_secs(5)), candidate("two"));
    let term = lead(&*first, &one).await;
    let lease = server.lease_of(LOCK);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(second.revoke(&one.shard, term).await, Ok(Release::Released));
    assert_eq!((server.value(LOCK), server.lease_in(DOCUMENT)), (None, lease.clone()));
    // Its last renewal is under way.
    server.etcdctl(&["lease", "keep-alive", "--once", &lease]);
    let begun = Instant::now();
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Revoked));
    let holder = refused(second.claim(&two).await.unwrap());
    assert_eq!((holder.owner.as_str(), holder.term), ("a leader whose lease was revoked", None));
    assert_eq!(second.inspect(&one.shard).await.unwrap().last_term, Some(term));
    let grant = granted_in_time(&*second, &two).await;
    assert!(begun.elapsed() > Duration::from_millis(4_900), "{:?}", begun.elapsed());
    assert!(grant.term > term && grant.start_after.is_none(), "{grant:?}");
}
