//! Servers that are gone, silent, slow, or not the right one.

use super::*;
use crate::support::latency::three_seconds_cost_nothing;
use crate::support::ports::free_port;
use crate::support::server::Server as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Observation, Release, Renewal};
use std::time::Instant;

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

/// With a longer lease than elsewhere: a connection takes one request at a time, so two answers have to fit into it.
#[tokio::test]
async fn three_seconds_of_latency_cost_no_leadership_while_an_operator_gives_orders() {
    let table = Table::new().await;
    let server = ([127, 0, 0, 1], table.server.port()).into();
    let url = move |address| format!("mysql://{ADMIN}@{address}/{DATABASE}?table={}", table.name);
    tokio::task::spawn_blocking(move || three_seconds_cost_nothing("12s", server, &[], url)).await.unwrap();
}
