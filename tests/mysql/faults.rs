//! Servers that are gone, silent, slow, or not the right one.

use super::*;
use crate::support::ports::free_port;
use crate::support::proxy::{NetworkFault, Proxy};
use crate::support::server::Server as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Observation, Release, Renewal};
use std::sync::Arc;
use std::time::Instant;

fn proxied(proxy: &Proxy, table: &Table) -> String {
    format!("mysql://{ADMIN}@{}/{DATABASE}?table={}", proxy.address, table.name)
}

#[tokio::test]
async fn a_server_that_is_not_there_was_not_asked() {
    let port = free_port();
    let error = open(&format!("mysql://app:hunter2@127.0.0.1:{port}/db")).claim(&candidate("one")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotApplied);
    assert_eq!(error.message, format!("cannot reach MySQL at 127.0.0.1:{port}: connection refused"));
    let error = open("mysql://app@nowhere.invalid/db").claim(&candidate("one")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotApplied);
    assert!(error.message.starts_with("cannot reach MySQL at nowhere.invalid:3306: "), "{error}");
}

#[tokio::test]
async fn the_next_request_after_a_restart_succeeds() {
    let mut server = tokio::task::spawn_blocking(Server::start).await.unwrap();
    let store = open(&server.url(server.address()));
    store.prepare().await.unwrap();
    server.grow_old();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    for sequence in 1..4 {
        server.kill();
        if sequence == 2 {
            let error = store.renew(&one, term, 9).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
            let error = store.renew(&one, term, 9).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::NotApplied, "{error}");
        }
        server.start_again();
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    server.restart();
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    server.restart();
    assert_eq!(store.observe(&shard()).await, Ok(Observation::Free));
    // A restart forgets nothing, so nobody waits for it.
    lead(&store, &candidate("two")).await;
}

#[tokio::test]
async fn a_request_that_hangs_does_not_hold_up_the_next() {
    let table = Table::new().await;
    let proxy = Proxy::to(([127, 0, 0, 1], table.server.port()).into());
    let store = Arc::new(open(&proxied(&proxy, &table)));
    let one = candidate("one");
    let term = lead(&*store, &one).await;
    proxy.set(NetworkFault::Partition);
    let hanging = {
        let (store, one) = (Arc::clone(&store), one.clone());
        tokio::spawn(async move { store.renew(&one, term, 1).await })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!hanging.is_finished());
    proxy.set(NetworkFault::Fair);
    let begun = Instant::now();
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    assert!(begun.elapsed() < REQUEST_TIMEOUT / 2, "{:?}", begun.elapsed());
    assert!(matches!(hanging.await.unwrap(), Ok(Renewal::Renewed | Renewal::Overtaken)));
}

#[tokio::test]
async fn silence_is_given_up_in_time_and_a_new_connection_is_made_afterwards() {
    let table = Table::new().await;
    let proxy = Proxy::to(([127, 0, 0, 1], table.server.port()).into());
    let patience = Duration::from_secs(2);
    let store = open_for(&proxied(&proxy, &table), patience);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    proxy.set(NetworkFault::Partition);
    let begun = Instant::now();
    let error = store.renew(&one, term, 1).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
    assert!(error.message.contains("did not answer in time") && begun.elapsed() < patience * 5, "{error}");
    let error = store.renew(&one, term, 2).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotApplied, "{error}");
    proxy.set(NetworkFault::Fair);
    let begun = Instant::now();
    while !matches!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed | Renewal::Overtaken)) {
        assert!(begun.elapsed() < crate::support::fleet::PATIENCE);
    }
}

#[tokio::test]
async fn a_row_that_is_locked_is_waited_for_and_no_longer_than_we_do() {
    let table = Table::new().await;
    let store = open_for(&table.url(), Duration::from_secs(3));
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let lock =
        format!("START TRANSACTION; SELECT 1 FROM {} WHERE part = 'lease' FOR UPDATE; SELECT SLEEP(600)", table.name);
    let mut client = table.server.client().args(["-e", &lock]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let waits =
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP(600)' AND state = 'User sleep'";
    eventually("the row is locked", async || table.server.sql(waits) != "0").await;
    let error = store.renew(&one, term, 1).await.unwrap_err();
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(error.kind, ErrorKind::NotApplied, "{error}");
    assert!(error.message.contains("an open transaction holds a lock"), "{error}");
    let begun = Instant::now();
    while store.renew(&one, term, 2).await != Ok(Renewal::Renewed) {
        assert!(begun.elapsed() < crate::support::fleet::PATIENCE);
    }
}
