//! PgBouncer before the server.

use super::*;
use crate::support::postgres::Bouncer;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[tokio::test]
async fn an_election_works_through_a_pooler_in_transaction_mode() {
    let table = Table::new().await;
    for mode in ["transaction", "statement", "session"] {
        let bouncer = Bouncer::before(table.server, mode);
        let url = bouncer.url_with(&format!("table={}", table.name));
        let (first, second) = (open(&url), open(&url));
        let (one, two) = (candidate("one"), candidate("two"));
        for _ in 0..3 {
            let term = lead(&first, &one).await;
            assert_eq!(refused(second.claim(&two).await.unwrap()).owner, "one", "{mode}");
            for sequence in 1..4 {
                assert_eq!(first.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
            }
            assert!(matches!(second.observe(&shard()).await, Ok(Observation::Held(_))));
            assert_eq!(first.release(&one, term).await, Ok(Release::Released));
            let next = lead(&second, &two).await;
            assert_eq!(second.release(&two, next).await, Ok(Release::Released));
        }
        // Nothing of ours stays with a session that others use.
        let left = table.sql("SELECT count(*) FROM $T WHERE part = 'lease' AND session <> ''");
        assert_eq!(left, "0");
    }
}

#[tokio::test]
async fn a_standby_behind_a_pooler_that_swallows_notifications_looks_instead() {
    let table = Table::new().await;
    let bouncer = Bouncer::before(table.server, "transaction");
    let url = bouncer.url_with(&format!("table={}", table.name));
    let (leader, standby) = (open(&url), open(&url));
    let (one, term) = one_leads_for(&leader, Duration::from_mins(5)).await;
    refused(standby.claim(&candidate("two")).await.unwrap());
    let shard = shard();
    let mut news = standby.changed(&shard);
    assert!(timeout(Duration::from_secs(3), &mut news).await.is_err(), "one leads");
    // A busy pooler that has listened breaks off an answer now and then, in both of two tries as well.
    eventually("it is released", async || leader.release(&one, term).await.is_ok()).await;
    timeout(PATIENCE, news).await.expect("it looks now and then").unwrap();
    let is_doubtful =
        |finding: &Finding| finding.text.contains("pooler in transaction mode") && finding.verdict == Verdict::Doubtful;
    let is_told = async || standby.check().await.is_ok_and(|findings| findings.iter().any(is_doubtful));
    eventually("it is told", is_told).await;
}

#[tokio::test]
async fn an_advisory_lock_is_refused_where_it_would_be_another_clients() {
    let table = Table::new().await;
    let bouncer = Bouncer::before(table.server, "transaction");
    let url = bouncer.url_with(&format!("table={}&advisory_lock=4711", table.name));
    misconfigured(open(&url).claim(&candidate("one")).await, "pooler");
    assert_eq!(table.server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"), "0");

    let bouncer = Bouncer::before(table.server, "session");
    let url = bouncer.url_with(&format!("table={}&advisory_lock=4711", table.name));
    let store = open(&url);
    let (one, term) = one_leads(&store).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(table.server.sql("SELECT pg_try_advisory_lock(4711)"), "f");
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert_eq!(table.server.sql("SELECT pg_try_advisory_lock(4711)"), "t");
}

/// Stands before a server, and once it is told to says after the first rows of an answer that the answer is over. What
/// follows seems to answer the next request.
fn breaker(upstream: u16, breaks: &Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let breaks = Arc::clone(breaks);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", upstream)).unwrap();
            let mut requests = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut requests.0, &mut requests.1));
            let breaks = Arc::clone(&breaks);
            thread::spawn(move || answer(server, client, &breaks));
        }
    });
    port
}

/// Passes on messages: a tag, the length of the rest, and that.
fn answer(mut server: TcpStream, mut client: TcpStream, breaks: &AtomicBool) -> std::io::Result<()> {
    loop {
        let mut head = [0; 5];
        server.read_exact(&mut head[..1])?;
        if head[0] == b'N' {
            // No TLS: a letter alone.
            client.write_all(&head[..1])?;
            continue;
        }
        server.read_exact(&mut head[1..])?;
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        let mut rest = vec![0; length - 4];
        server.read_exact(&mut rest)?;
        client.write_all(&[&head[..], &rest].concat())?;
        if head[0] == b'C' && rest.starts_with(b"SELECT") && breaks.swap(false, Ordering::Relaxed) {
            client.write_all(b"Z\0\0\0\x05I")?;
        }
    }
}

#[tokio::test]
async fn an_answer_that_a_pooler_breaks_off_is_asked_for_again_on_a_new_connection() {
    let table = Table::new().await;
    let breaks = Arc::new(AtomicBool::new(false));
    let port = breaker(table.server.port(), &breaks);
    let store = open(&format!("postgres://postgres@127.0.0.1:{port}/postgres?table={}", table.name));
    let (one, term) = one_leads(&store).await;
    for sequence in 1..4 {
        breaks.store(true, Ordering::Relaxed);
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        assert!(!breaks.load(Ordering::Relaxed), "it was broken off");
    }
    breaks.store(true, Ordering::Relaxed);
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
}
