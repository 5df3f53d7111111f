//! Late and lost messages, hanging connections, and what is pushed.

use super::*;
use crate::support::gate::{Gate, Mischief};
use crate::support::proxy::{NetworkFault, Proxy};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

fn sequence(server: &Server) -> u64 {
    let get = format!(r#"{{"last_by_subj":"$KV.{BUCKET}.{KEY}"}}"#);
    let answer = server.client().request(&format!("$JS.API.DIRECT.GET.KV_{BUCKET}"), "", get.as_bytes()).unwrap();
    let headers = answer.headers.expect("it has some");
    let header = headers.get("Leaderrun").expect("it is ours").as_str();
    serde_json::from_str::<serde_json::Value>(header).unwrap()["sequence"].as_u64().unwrap()
}

/// A server, a way to it that misbehaves, and one who leads by a store that takes this way.
async fn leader_behind_a_gate() -> (Server, Gate, Arc<dyn Store>, Candidate, Term) {
    let server = server().await;
    let gate = Gate::to(server.address());
    let store = open_with(&server.url(gate.address), Duration::from_secs(15)).await;
    let (one, term) = one_leads_for(&*store, Duration::from_mins(1)).await;
    (server, gate, store, one, term)
}

/// A connection that is dead for good, while new ones would work: a firewall that forgot it.
#[tokio::test]
async fn a_dead_connection_is_passed_by() {
    let (_server, gate, store, one, term) = leader_behind_a_gate().await;
    gate.forget();
    // The attempt itself tries another one after a while: a second.
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let mut quickest = Duration::MAX;
    for sequence in 2..6 {
        let begun = Instant::now();
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        quickest = quickest.min(begun.elapsed());
    }
    assert!(quickest < Duration::from_secs(1), "the dead one is asked again and again: {quickest:?}");
}

/// The answer to a write is lost, and its second sending finds what the first has done.
#[tokio::test]
async fn a_write_that_was_sent_twice_is_known_as_the_one_that_was_applied() {
    let (server, gate, store, one, term) = leader_behind_a_gate().await;
    gate.lose_answers();
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(nobody_leads(&server));
    gate.lose_answers();
    let later = lead(&*store, &one).await;
    assert!(later > term);
    gate.lose_answers();
    assert_eq!(store.renew(&one, later, 1).await, Ok(Renewal::Renewed));
    assert_eq!(sequence(&server), 1);
}

#[tokio::test]
async fn a_request_whose_connection_broke_is_sent_once_more() {
    let (_server, gate, store, one, term) = leader_behind_a_gate().await;
    for mischief in [Mischief::LoseRequest, Mischief::LoseAnswer] {
        gate.set(mischief);
        assert!(lead(&*store, &one).await > term);
        assert!(gate.is_fair());
    }
}

/// Nobody responds to the second sending, and the first may have been applied.
#[tokio::test]
async fn a_write_whose_second_sending_fails_may_have_been_applied() {
    let (server, gate, store, one, term) = leader_behind_a_gate().await;
    gate.lose_answers();
    let renewal = renews(&store, &one, term, 1);
    eventually("it is applied", async || sequence(&server) == 1).await;
    drop_bucket(&server);
    unknown(renewal.await.unwrap(), "no bucket");
}

#[tokio::test]
async fn of_several_servers_one_that_is_there_is_enough() {
    let server = server().await;
    let hole = Proxy::to(server.address());
    hole.set(NetworkFault::Partition);
    let nobody = crate::support::ports::free_port();
    let url = format!("nats://127.0.0.1:{nobody},{},{}/{BUCKET}", hole.address, server.address());
    for _ in 0..3 {
        let store = open_with(&url, Duration::from_secs(30)).await;
        store.observe(&shard()).await.unwrap();
    }
}

#[tokio::test]
async fn a_standby_whose_consumer_vanished_makes_another() {
    let server = server().await;
    let (leader, standby) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = with_lease("one", Duration::from_mins(1));
    let term = granted(leader.claim(&one).await.unwrap()).term;
    let news = listens(&standby);
    let names = || server.client().api(&format!("CONSUMER.NAMES.KV_{BUCKET}"), &Value::Null)["consumers"][0].clone();
    let mut first = Value::Null;
    eventually("it has a consumer", async || {
        first = names();
        first.is_string()
    })
    .await;
    server.client().api(&format!("CONSUMER.DELETE.KV_{BUCKET}.{}", first.as_str().unwrap()), &Value::Null);
    eventually("it makes another", async || names().is_string() && names() != first).await;
    leader.release(&one, term).await.unwrap();
    in_time(news).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused_in_one_line_that_names_its_version() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let info = r#"{"server_id":"x","server_name":"x","version":"2.9.10","go":"go1","host":"127.0.0.1","port":4222,"headers":true,"max_payload":1048576,"proto":1,"client_id":1}"#;
            let _ = client.write_all(format!("INFO {info}\r\n").as_bytes());
            while let Ok(1..) = client.read(&mut [0; 4096]) {
                let _ = client.write_all(b"PONG\r\n");
            }
        }
    });
    let store = open(&format!("nats://{address}/{BUCKET}")).await;
    let expected = format!("nats at {address} runs version 2.9.10: leaderrun needs nats-server 2.10 or later");
    misconfigured(store.claim(&candidate("one")).await, &expected);
    misconfigured(store.check().await, &expected);
}
