//! How standbys hear of a release, and that nobody else listens.

use super::*;
use tokio::task::JoinHandle;

async fn listen(server: &Server, store: &Arc<LeaseStore>) -> JoinHandle<Result<(), StoreError>> {
    let before = server.subscribers();
    let news = tokio::spawn({
        let store = Arc::clone(store);
        async move { store.changed(&shard()).await }
    });
    eventually("it subscribes", async || server.subscribers() > before).await;
    // And has looked.
    let looks = server.scripts_run();
    eventually("it looks", async || server.scripts_run() > looks || news.is_finished() || looks > 1).await;
    news
}

/// Sooner than anybody looks by himself.
async fn heard(news: JoinHandle<Result<(), StoreError>>) {
    tokio::time::timeout(LEASE / 2, news).await.expect("it is heard at once").unwrap().unwrap();
}

#[tokio::test]
async fn a_subscription_that_broke_is_made_again() {
    let mut server = old_server();
    let (store, other) = (store(&server), Arc::new(store(&server)));
    let (one, term) = one_leads_for(&store, Duration::from_mins(5)).await;
    refused(other.claim(&candidate("two")).await.unwrap());
    let news = listen(&server, &other).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually("it subscribes again", async || server.subscribers() == 1).await;
    assert!(!news.is_finished());

    // While the server is away nobody can subscribe; the look after the next wait tells.
    server.kill();
    let error = news.await.unwrap().unwrap_err();
    assert!(error.message.starts_with("cannot reach redis at"), "{error}");
    server.start_again();
    assert!(matches!(other.observe(&shard()).await, Ok(Observation::Held(_))));
    refused(other.claim(&candidate("two")).await.unwrap());
    let news = listens(&other);
    store.renew(&one, term, 1).await.unwrap();
    store.release(&one, term).await.unwrap();
    heard(news).await;
}
