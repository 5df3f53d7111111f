//! PgBouncer before the server.

use super::*;
use crate::support::postgres::Bouncer;

#[tokio::test]
async fn an_election_works_through_a_pooler_in_transaction_mode() {
    let table = Table::new().await;
    for mode in ["transaction", "statement", "session"] {
        let bouncer = Bouncer::before(table.server, mode);
        let url = bouncer.url_with(&format!("table={}", table.name));
        let (first, second) = (open(&url).await, open(&url).await);
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
    let (leader, standby) = (open(&url).await, open(&url).await);
    let one = candidate("one");
    let term = lead(&leader, &one).await;
    refused(standby.claim(&candidate("two")).await.unwrap());
    let shard = shard();
    let mut news = standby.changed(&shard);
    assert!(timeout(Duration::from_secs(3), &mut news).await.is_err(), "one leads");
    // A busy pooler may close a connection.
    eventually("it is released", async || leader.release(&one, term).await.is_ok()).await;
    timeout(Duration::from_secs(10), news).await.expect("it looks now and then").unwrap();
    let findings = standby.check().await.unwrap();
    let doubtful = findings.iter().find(|finding| finding.text.contains("pooler in transaction mode"));
    assert_eq!(doubtful.expect("it is told").verdict, Verdict::Doubtful);
}

#[tokio::test]
async fn a_row_that_is_locked_is_given_up_behind_a_pooler_as_well() {
    let table = Table::new().await;
    let bouncer = Bouncer::before(table.server, "transaction");
    let url = bouncer.url_with(&format!("table={}&application_name=pooled_{}", table.name, table.name));
    let store = try_open(&url, Duration::from_secs(3)).await.unwrap();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let mut psql = Psql::start(table.server);
    psql.say(&format!("BEGIN; SELECT 1 FROM {} FOR UPDATE", table.name));
    let error = store.renew(&one, term, 1).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::NotApplied | ErrorKind::Unknown), "{error}");
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
        table.name
    );
    eventually("nobody waits in the server any more", async || table.server.sql(&waiting) == "0").await;
    psql.say("ROLLBACK");
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn an_advisory_lock_is_refused_where_it_would_be_another_clients() {
    let table = Table::new().await;
    let bouncer = Bouncer::before(table.server, "transaction");
    let url = bouncer.url_with(&format!("table={}&advisory_lock=4711", table.name));
    misconfigured(open(&url).await.claim(&candidate("one")).await, "pooler");
    assert_eq!(table.server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"), "0");

    let bouncer = Bouncer::before(table.server, "session");
    let url = bouncer.url_with(&format!("table={}&advisory_lock=4711", table.name));
    let store = open(&url).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(table.server.sql("SELECT pg_try_advisory_lock(4711)"), "f");
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert_eq!(table.server.sql("SELECT pg_try_advisory_lock(4711)"), "t");
}
