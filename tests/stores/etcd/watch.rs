//! What a standby hears, and how soon; and what it does not ask.

use super::*;
use tokio::task::JoinHandle;

/// Nobody waits for its end, and no machine is too slow for it.
const LONG: Duration = Duration::from_mins(5);

async fn leader_and_standby(server: &Server) -> (Arc<dyn Store>, Candidate, Term, Arc<dyn Store>) {
    let (first, second) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let (one, term) = one_leads_for(&*first, LONG).await;
    refused(second.claim(&candidate("two")).await.unwrap());
    (first, one, term, second)
}

async fn watched(server: &Server, count: u64) {
    eventually("the standby watches", async || server.calls(&["Watch"]) >= count).await;
}

async fn heard(news: JoinHandle<Result<(), StoreError>>) {
    timeout(PATIENCE, news).await.expect("news come").expect("nothing panics").expect("the watch works");
}

#[tokio::test]
async fn a_deletion_by_hand_is_heard_by_standby_and_leader() {
    let mut server = old_server().await;
    let (first, one, term, second) = leader_and_standby(&server).await;
    let news = listens(&second);
    let doubt = tokio::spawn({
        let (first, shard) = (Arc::clone(&first), one.shard.clone());
        async move { first.doubted(&shard).await }
    });
    watched(&server, 2).await;
    for sequence in 1..4 {
        assert_eq!(first.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    sleep(Duration::from_millis(300)).await;
    assert!(!news.is_finished() && !doubt.is_finished(), "a renewal is no news");
    server.remove_records("db/main");
    heard(news).await;
    timeout(PATIENCE, doubt).await.expect("the leader hears of it").unwrap();
    assert_eq!(first.renew(&one, term, 4).await, Ok(Renewal::Lost(None)));
}

fn compact(server: &Server) {
    for number in 0..5 {
        server.put("unrelated", &number.to_string());
    }
    server.etcdctl(&["compact", &server.revision().to_string()]);
}

/// The watch of its lock breaks with every connection, and etcd may have forgotten by then when the lock was put there.
#[tokio::test]
async fn a_compaction_makes_no_leader_doubt_again_and_again() {
    let mut server = old_server().await;
    let (first, one, term, _second) = leader_and_standby(&server).await;
    compact(&server);
    let doubt = tokio::spawn({
        let (first, shard) = (Arc::clone(&first), one.shard.clone());
        async move { first.doubted(&shard).await }
    });
    watched(&server, 1).await;
    sleep(Duration::from_millis(300)).await;
    assert!(!doubt.is_finished(), "nothing has changed");
    server.remove_lock("db/main");
    timeout(PATIENCE, doubt).await.expect("the leader hears of it").unwrap();
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    // Also of a deletion that a compaction has taken.
    server.remove_lock("db/main");
    compact(&server);
    timeout(PATIENCE, first.doubted(&one.shard)).await.expect("the leader hears of it");
    assert_eq!(first.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    timeout(Duration::from_millis(500), first.doubted(&one.shard)).await.expect_err("its key is back");
}

#[tokio::test]
async fn the_holder_hears_of_a_revocation_at_once_and_a_standby_of_its_end() {
    let server = old_server().await;
    let (leader, one, term, standby) = leader_and_standby(&server).await;
    let shard = shard();
    let (mut news, mut doubt) = (standby.changed(&shard), leader.doubted(&shard));
    let pause = Duration::from_millis(500);
    assert!(timeout(pause, &mut news).await.is_err() && timeout(pause, &mut doubt).await.is_err(), "one leads");
    assert_eq!(standby.revoke(&shard, term).await, Ok(Release::Released));
    timeout(PATIENCE, doubt).await.expect("it is told");
    assert_eq!(leader.renew(&one, term, 1).await, Ok(Renewal::Revoked));
    assert!(timeout(pause, &mut news).await.is_err(), "its etcd lease lives");
}
