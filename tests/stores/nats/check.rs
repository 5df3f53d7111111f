//! `leaderctl store init` and `leaderctl store check`.

use super::*;

#[tokio::test]
async fn init_makes_a_bucket_that_a_check_finds_nothing_wrong_with() {
    let server = Server::start();
    let store = open(&server.own_url()).await;
    let lines = store.prepare().await.unwrap();
    let place = format!("nats at {}", server.address());
    assert_eq!(
        lines,
        [
            format!("created bucket locks in {place}, with file storage, replicas: 1"),
            "its revisions begin with the time when it was created".to_owned(),
            format!("recorded in bucket locks in {place} that it remembers leases from now on"),
        ]
    );
    let findings = store.check().await.unwrap();
    all_good(&findings);
    assert!(findings[0].text.starts_with(&format!("{place} runs version 2.")), "{findings:?}");
    assert!(findings.last().unwrap().text.starts_with("a round trip takes "), "{findings:?}");
}

/// Made by hand, and called by this number.
async fn of_a_bucket_with(server: &Server, number: usize, settings: &Value) -> Arc<dyn Store> {
    let bucket = format!("bucket{number}");
    make(server, &bucket, settings);
    open(&server.own_url().replace(BUCKET, &bucket)).await
}

#[tokio::test]
async fn settings_by_which_leases_are_lost_are_bad_and_refused_by_init_and_by_claims() {
    let server = Server::start();
    for (number, (settings, part)) in [
        (json!({ "max_age": 60_000_000_000_u64, "duplicate_window": 1_000_000_000 }), "forgets its records after 1m"),
        (json!({ "retention": "interest" }), "forgets what was read"),
        (json!({ "max_msgs": 100, "discard": "old" }), "drops old records when it is full"),
        (json!({ "no_ack": true }), "does not acknowledge writes"),
        (json!({ "subjects": ["other.>"] }), "does not take the subjects $KV.bucket4.>"),
    ]
    .into_iter()
    .enumerate()
    {
        let store = of_a_bucket_with(&server, number, &settings).await;
        misconfigured(store.prepare().await, part);
        if settings["no_ack"].is_null() && settings["subjects"].is_null() {
            finds(&store.check().await.unwrap(), Verdict::Bad, part);
            misconfigured(store.claim(&candidate("one")).await, part);
        }
    }
}

#[tokio::test]
async fn a_missing_bucket_is_named() {
    let server = Server::start();
    let store = open(&server.own_url()).await;
    let expected = format!("no bucket locks in nats at {}: create it with leaderctl store init", server.address());
    assert_eq!(store.claim(&short("one")).await, Err(StoreError::misconfigured(expected.clone())));
    let findings = store.check().await.unwrap();
    assert_eq!(texts(&findings, Verdict::Bad), [expected]);
}

#[tokio::test]
async fn a_server_without_jetstream_is_reported() {
    let server = Server::configured("", "{}");
    let store = open(&server.own_url()).await;
    let expected = format!("nats at {} runs without JetStream: start nats-server with -js", server.address());
    assert_eq!(store.observe(&shard()).await, Err(StoreError::misconfigured(expected.clone())));
    assert_eq!(store.prepare().await, Err(StoreError::misconfigured(expected)));
}
