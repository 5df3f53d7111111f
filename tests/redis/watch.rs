//! How standbys hear of a release, and that they ask for nothing else.

use super::*;
use crate::support::fleet::Fleet;
use tokio::task::JoinHandle;

/// Waits for news as a standby does.
async fn listen(server: &Server, store: &Arc<Redis>) -> JoinHandle<Result<(), StoreError>> {
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
async fn a_release_between_two_waits_is_not_missed() {
    let server = old_server();
    let (store, other) = (store(&server).await, Arc::new(store(&server).await));
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    refused(other.claim(&two).await.unwrap());
    let news = listen(&server, &other).await;
    let connection = || server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]).split(' ').next().unwrap_or("").to_owned();
    let first = connection();
    store.release(&one, term).await.unwrap();
    heard(news).await;
    // Somebody else was quicker, and is done already.
    let three = candidate("three");
    let term = lead(&store, &three).await;
    refused(other.claim(&two).await.unwrap());
    store.release(&three, term).await.unwrap();
    tokio::time::timeout(LEASE / 2, other.changed(&shard())).await.expect("it was heard").unwrap();
    assert_eq!(connection(), first, "it is the same subscription");
}

#[tokio::test]
async fn a_subscription_that_broke_is_made_again() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, Arc::new(store(&server).await));
    let one = candidate("one");
    let term = lead(&store, &one).await;
    refused(other.claim(&candidate("two")).await.unwrap());
    let news = listen(&server, &other).await;
    // Longer than one that is not made again at once.
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually("it subscribes again", async || server.subscribers() == 1).await;
    assert!(!news.is_finished());

    // While the server is away nobody can subscribe; the look after the next wait tells.
    server.kill();
    let error = news.await.unwrap().unwrap_err();
    let away = error.message.starts_with("cannot reach redis at") || error.message.contains("was ended by the server");
    assert!(away, "{error}");
    server.start_again();
    assert!(matches!(other.observe(&shard()).await, Ok(Observation::Held(_))));
    refused(other.claim(&candidate("two")).await.unwrap());
    let news = listens(&other);
    store.renew(&one, term, 1).await.unwrap();
    store.release(&one, term).await.unwrap();
    heard(news).await;
}

#[tokio::test]
async fn a_leader_has_no_subscription() {
    let server = old_server();
    let (store, other) = (store(&server).await, Arc::new(store(&server).await));
    let one = candidate("one");
    let term = lead(&store, &one).await;
    refused(other.claim(&candidate("two")).await.unwrap());
    let news = listen(&server, &other).await;
    store.release(&one, term).await.unwrap();
    heard(news).await;
    lead(&*other, &candidate("two")).await;
    eventually("it unsubscribes", async || server.subscribers() == 0).await;

    let three = Arc::new(store);
    refused(three.claim(&candidate("three")).await.unwrap());
    let news = listen(&server, &three).await;
    news.abort();
    eventually("one that is not waited for ends", async || server.subscribers() == 0).await;
}

#[tokio::test]
async fn a_standby_asks_about_once_a_lease() {
    const SPAN: u32 = 3;
    let lease = Duration::from_secs(6);
    let server = old_server();
    let store = store(&server).await;
    let one = with_lease("one", lease);
    let one = Candidate { shard: "shard".parse().unwrap(), ..one };
    let term = lead(&store, &one).await;
    let mut fleet = Fleet::new();
    let url = server.own_url();
    let timing = ["--lease", "6s", "--renew", "300ms", "--kill-after", "200ms", "--store", &url];
    fleet.start("standby", &timing, &[], &[]);
    eventually("the standby listens", async || {
        store.renew(&one, term, server.scripts_run()).await.unwrap();
        server.subscribers() == 1
    })
    .await;
    store.renew(&one, term, 1_000_000).await.unwrap();
    let (begun, before) = (Instant::now(), server.scripts_run());
    let mut ours = 0;
    // So often that the leases seen do not end soon after they were seen.
    while begun.elapsed() < lease * SPAN {
        tokio::time::sleep(lease / 8).await;
        ours += 1;
        store.renew(&one, term, 1_000_000 + ours).await.unwrap();
    }
    let leases = begun.elapsed().as_secs_f64() / lease.as_secs_f64();
    let theirs = server.scripts_run() - before - ours;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let rate = theirs as f64 / leases;
    assert!(rate <= 1.8, "{theirs} requests in {leases} leases");
    println!("{theirs} requests in {leases:.1} leases");
    store.release(&one, term).await.unwrap();
    assert!(fleet.leader().owner == "standby");
    fleet.conclude();
}
