//! A table, or a server, that forgot who leads: nobody starts a tree beside one that may still run.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use crate::support::server::Server as _;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Renewal};
use std::time::Instant;

const SHORT: Duration = Duration::from_secs(4);
const FORGOTTEN: &str = "a leader that the store may have forgotten";

/// The leader goes on; nobody else is granted anything before a lease has passed since; then the terms rise.
async fn forgets(forget: impl FnOnce(&Table)) {
    let table = Table::new().await;
    let (store, other) = (table.store().await, table.store().await);
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT));
    let term = lead(&store, &one).await;
    forget(&table);
    let begun = Instant::now();
    let holder = refused(other.claim(&two).await.unwrap());
    assert_eq!(holder.owner, FORGOTTEN);
    assert!(matches!(other.observe(&shard()).await, Ok(Observation::Held(holder)) if holder.owner == FORGOTTEN));
    // The leader does not notice.
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let holder = refused(other.claim(&two).await.unwrap());
    assert_eq!((holder.session.as_ref(), holder.term), (Some(&one.session), Some(term)));
    let grant = granted_in_time(&other, &two).await;
    assert!(begun.elapsed() >= SHORT * 9 / 10, "granted after {:?}", begun.elapsed());
    assert!(grant.term > term && grant.start_after.is_none(), "{grant:?}");
    assert!(matches!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(Some(_)))));
}

#[tokio::test]
async fn a_truncated_table_does_not_disturb_the_leader_and_lets_nobody_else_lead() {
    forgets(|table| drop(table.sql("TRUNCATE $T"))).await;
}

#[tokio::test]
async fn rows_that_came_out_of_a_dump_do_not_disturb_the_leader_and_let_nobody_else_lead() {
    forgets(|table| {
        // The dump says that nobody ever led; the marker comes back with it.
        table.sql("CREATE TABLE $T_dump AS SELECT * FROM $T WHERE part = 'marker'");
        table.sql("TRUNCATE $T; INSERT INTO $T SELECT * FROM $T_dump");
    })
    .await;
}

/// A claim that was judged by what stood there before the dump came back.
#[tokio::test]
async fn a_dump_that_has_the_very_row_that_a_candidate_knows_is_no_reason_to_lead() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT));
    let term = lead(&first, &one).await;
    first.release(&one, term).await.unwrap();
    // It knows the row as it was released, and that the table has remembered for long.
    let known = lead(&second, &two).await;
    second.release(&two, known).await.unwrap();
    table.sql("CREATE TABLE $T_dump AS SELECT * FROM $T");
    let lost = lead(&first, &one).await;
    table.sql("TRUNCATE $T; INSERT INTO $T SELECT * FROM $T_dump");
    assert_eq!(refused(second.claim(&two).await.unwrap()).owner, FORGOTTEN);
    assert_eq!(first.renew(&one, lost, 1).await, Ok(Renewal::Renewed));
    assert!(granted_in_time(&second, &two).await.term > lost);
}

#[tokio::test]
async fn a_table_that_was_dropped_and_made_again_lets_nobody_lead_for_a_lease_and_terms_go_on_rising() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT));
    let mut term = Term(0);
    for _ in 0..3 {
        term = lead(&first, &one).await;
        first.release(&one, term).await.unwrap();
    }
    lead(&first, &one).await;
    table.sql("DROP TABLE $T");
    let error = first.renew(&one, term, 1).await.unwrap_err();
    assert!(error.message.contains("leaderctl store init"), "{error}");
    second.prepare().await.unwrap();
    assert_eq!(refused(second.claim(&two).await.unwrap()).owner, FORGOTTEN);
    assert!(granted_in_time(&second, &two).await.term > term);
}

#[tokio::test]
async fn a_vacuum_makes_nobody_wait() {
    let table = Table::new().await;
    let store = table.store().await;
    for vacuum in ["VACUUM (FREEZE) $T", "VACUUM (FULL, FREEZE) $T", "CLUSTER $T USING $T_pkey"] {
        table.sql(vacuum);
        let one = candidate("one");
        let term = lead(&store, &one).await;
        store.release(&one, term).await.unwrap();
    }
}

#[tokio::test]
async fn a_held_lease_cannot_be_deleted_by_hand_and_what_is_over_can() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&first, &one).await;
    table.sql("DELETE FROM $T");
    table.sql("DELETE FROM $T WHERE shard = 'db/main'");
    assert_eq!(refused(second.claim(&two).await.unwrap()).owner, "one");
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    first.release(&one, term).await.unwrap();
    table.sql("DELETE FROM $T");
    assert_eq!(table.sql("SELECT part FROM $T ORDER BY part"), "led\nmarker");
    assert!(granted(second.claim(&two).await.unwrap()).term > term);
}

#[tokio::test]
async fn a_lease_that_expired_a_moment_ago_cannot_be_deleted_either() {
    let table = Table::new().await;
    let store = table.store().await;
    lead(&store, &with_lease("one", Duration::from_millis(1))).await;
    eventually("it is over", async || {
        table.sql("SELECT ends < extract(epoch FROM clock_timestamp()) * 1000 FROM $T WHERE part = 'lease'") == "t"
    })
    .await;
    table.sql("DELETE FROM $T");
    assert_eq!(table.sql("SELECT count(*) FROM $T WHERE part = 'lease'"), "1");
}

/// A copy of a server's data, as a backup or a replica has it, started as a replica.
fn replica_of(original: &mut Server) -> Server {
    original.kill();
    let data = original.directory().join("data");
    let replica = Server::prepared_with(&["hot_standby=on"], |copy| {
        std::fs::remove_dir_all(copy).unwrap();
        let status = std::process::Command::new("cp").arg("-a").arg(&data).arg(copy).status();
        assert!(status.unwrap().success());
        std::fs::write(copy.join("standby.signal"), "").unwrap();
        let _ = std::fs::remove_file(copy.join("postmaster.pid"));
    });
    original.start_again();
    replica
}

#[tokio::test]
async fn after_a_failover_that_forgot_a_lease_its_leader_goes_on_and_nobody_else_leads_for_a_lease() {
    let mut primary = Server::start();
    let first = ready(&primary).await;
    let one = with_lease("one", SHORT);
    let term = lead(&first, &one).await;
    first.release(&one, term).await.unwrap();
    let replica = replica_of(&mut primary);
    let both = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", replica.port(), primary.port());
    // A leadership that the replica never hears of. And who knows what both have is not granted it by the replica.
    let (second, third) = (open(&both).await, open(&both).await);
    let two = with_lease("two", SHORT);
    let known = lead(&third, &one).await;
    third.release(&one, known).await.unwrap();
    let lost = lead(&second, &two).await;
    primary.kill();
    replica.sql("SELECT pg_promote()");
    eventually("it was promoted", async || replica.sql("SELECT pg_is_in_recovery()") == "f").await;
    assert_eq!(refused(third.claim(&one).await.unwrap()).owner, FORGOTTEN);
    assert_eq!(second.renew(&two, lost, 1).await, Ok(Renewal::Renewed));
    assert!(granted_in_time(&third, &one).await.term > lost);
    assert!(matches!(second.renew(&two, lost, 2).await.unwrap(), Renewal::Lost(Some(_))));
}

#[tokio::test]
async fn a_failover_is_noted_by_whoever_sees_it_first() {
    let mut primary = Server::start();
    let store = ready(&primary).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let replica = replica_of(&mut primary);
    let both = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", replica.port(), primary.port());
    let (leader, standby) = (open(&both).await, open(&both).await);
    assert_eq!(leader.renew(&one, term, 1).await, Ok(Renewal::Renewed), "a replica is passed over");
    assert!(matches!(standby.observe(&shard()).await, Ok(Observation::Held(_))));
    primary.kill();
    replica.sql("SELECT pg_promote()");
    eventually("it was promoted", async || replica.sql("SELECT pg_is_in_recovery()") == "f").await;
    let young = "SELECT (text::jsonb ->> 'created_ms')::bigint > extract(epoch FROM now()) * 1000 - 600000 \
                 FROM leaderrun WHERE part = 'marker'";
    assert_eq!(replica.sql(young), "f");
    eventually("it looks", async || standby.observe(&shard()).await.is_ok()).await;
    assert_eq!(replica.sql(young), "t");
    eventually_renewed(&leader, &one, term).await;
}

async fn eventually_renewed(store: &Postgres, candidate: &Candidate, term: Term) {
    for sequence in 3..10 {
        if store.renew(candidate, term, sequence).await == Ok(Renewal::Renewed) {
            return;
        }
    }
    panic!("it never was renewed");
}

#[tokio::test]
async fn a_restart_makes_nobody_wait_and_forgets_nothing() {
    let mut server = Server::start();
    let store = ready(&server).await;
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    server.restart();
    assert_eq!(refused(store.claim(&two).await.unwrap()).owner, "one");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    store.release(&one, term).await.unwrap();
    server.restart();
    assert_eq!(store.observe(&shard()).await, Ok(Observation::Free));
    assert!(lead(&store, &two).await > term);
}
