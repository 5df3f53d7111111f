//! A table, or a server, that forgot who leads: nobody starts a tree beside one that may still run.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use crate::support::server::Server as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::Renewal;

const SHORT: Duration = Duration::from_secs(4);
const FORGOTTEN: &str = "a leader that the store may have forgotten";

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
