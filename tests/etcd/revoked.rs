//! Leases that somebody ended who does not hold them.

use super::*;

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

#[tokio::test]
async fn the_holder_hears_of_a_revocation_at_once_and_a_standby_of_its_end() {
    let server = old_server().await;
    let (leader, standby) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let (one, shard) = (candidate("one"), shard());
    let term = lead(&*leader, &one).await;
    refused(standby.claim(&candidate("two")).await.unwrap());
    let (mut news, mut doubt) = (standby.changed(&shard), leader.doubted(&shard));
    let pause = Duration::from_millis(500);
    assert!(timeout(pause, &mut news).await.is_err() && timeout(pause, &mut doubt).await.is_err(), "one leads");
    assert_eq!(standby.revoke(&shard, term).await, Ok(Release::Released));
    timeout(PATIENCE, doubt).await.expect("it is told");
    assert_eq!(leader.renew(&one, term, 1).await, Ok(Renewal::Revoked));
    assert!(timeout(pause, &mut news).await.is_err(), "its etcd lease lives");
}
