//! What a standby hears, and how soon; and what it does not ask.

use super::*;
use leaderrun::internals::store::StoreError;
use tokio::task::JoinHandle;

async fn leader_and_standby(server: &Server, lease: Duration) -> (Arc<dyn Store>, Candidate, Term, Arc<dyn Store>) {
    let (first, second) = (store(server).await, store(server).await);
    let one = with_lease("one", lease);
    let term = lead(&*first, &one).await;
    refused(second.claim(&candidate("two")).await.unwrap());
    (first, one, term, second)
}

async fn heard(news: JoinHandle<Result<(), StoreError>>) {
    timeout(PATIENCE, news).await.expect("news come").expect("nothing panics").expect("the watch works");
}

/// Waits until the server has more watches than before.
async fn watched(server: &Server, before: u64) {
    eventually("the standby watches", async || server.api.watches() > before).await;
}

#[tokio::test]
async fn a_deletion_by_hand_is_heard_and_renewals_are_not() {
    let server = server();
    let (first, one, term, second) = leader_and_standby(&server, LEASE).await;
    let mut news = listens(&second);
    for sequence in 1..4 {
        sleep(Duration::from_millis(300)).await;
        assert_eq!(first.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    timeout(Duration::from_millis(500), &mut news).await.expect_err("a renewal is no news");
    server.delete(&name_of("db/main"));
    heard(news).await;
}

/// The server forgets the versions that a watch began with, and ends it.
#[tokio::test]
async fn a_release_is_heard_though_the_server_was_restarted_and_has_forgotten_what_the_watch_began_with() {
    let mut server = Server::start();
    server.grow_old();
    let lease = Duration::from_mins(2);
    let (first, one, term, second) = leader_and_standby(&server, lease).await;
    let mut news = listens(&second);
    watched(&server, 0).await;
    for sequence in 1..4 {
        assert_eq!(first.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    let compacted = server.api.compact();
    server.kill();
    server.start_again();
    // The end of the watch may be news, and then the standby looks.
    if let Ok(ended) = timeout(Duration::from_secs(2), &mut news).await {
        println!("after {compacted}: {ended:?}");
        assert!(matches!(second.observe(&one.shard).await, Ok(Observation::Held(_))));
        news = listens(&second);
    }
    watched(&server, 0).await;
    first.release(&one, term).await.unwrap();
    heard(news).await;
}
