//! `leaderctl store init` and `leaderctl store check`.

use super::*;

#[tokio::test]
async fn init_makes_nothing_but_begins_the_time_of_waiting() {
    let server = Server::start();
    let store = store(&server);
    let doubts = store.check().await.unwrap();
    assert_eq!(texts(&doubts, Verdict::Bad), [""; 0]);
    assert!(texts(&doubts, Verdict::Doubtful)[0].contains("no new leader for one lease"), "{doubts:?}");
    assert_eq!(server.cli(&["KEYS", "*"]), MARKER, "a check leaves nothing else behind");
    server.cli(&["DEL", MARKER]);
    let lines = store.prepare().await.unwrap();
    let place = format!("redis at 127.0.0.1:{}", server.port());
    assert_eq!(lines, [format!("recorded in {place} that it remembers leases from now on")]);
    assert_eq!(server.cli(&["KEYS", "*"]), MARKER);
    let since = server.cli(&["HGET", MARKER, "text"]);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let lines = store.prepare().await.unwrap();
    assert_eq!(lines, [format!("{place} has recorded since when it remembers leases")]);
    assert_eq!(server.cli(&["HGET", MARKER, "text"]), since);
    let findings = store.check().await.unwrap();
    all_good(&findings);
    assert!(findings.last().unwrap().text.starts_with("a round trip takes "), "{findings:?}");
}

#[tokio::test]
async fn unsafe_settings_are_reported() {
    let server = Server::forgetful();
    server.age();
    let store = store(&server);
    finds(&store.check().await.unwrap(), Verdict::Doubtful, "no append-only file");

    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    finds(&store.check().await.unwrap(), Verdict::Doubtful, "maxmemory-policy is allkeys-lru");
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    finds(&store.check().await.unwrap(), Verdict::Bad, "maxmemory-policy is allkeys-lru");
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(texts(&store.check().await.unwrap(), Verdict::Bad), [""; 0]);
}

#[tokio::test]
async fn a_node_of_a_cluster_gives_no_leases_even_with_all_slots() {
    let server = Server::with(&["--cluster-enabled", "yes"]);
    assert_eq!(server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    wait_until("it takes commands", || server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
    let store = store(&server);
    finds(&store.check().await.unwrap(), Verdict::Bad, "is a node of a Redis Cluster");
    misconfigured(store.claim(&candidate("one")).await, "Redis Cluster");
}
