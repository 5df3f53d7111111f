//! A table, or a server, that forgot who leads: nobody starts a tree beside one that may still run.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use crate::rows_that_come_back_let_nobody_else_lead;

/// A claim that was judged by what stood there before the dump came back.
#[tokio::test]
async fn a_dump_that_has_the_very_row_that_a_candidate_knows_is_no_reason_to_lead() {
    let table = Table::new().await;
    let dump = async || drop(table.sql("CREATE TABLE $T_dump AS SELECT * FROM $T"));
    let restore = async |()| drop(table.sql("TRUNCATE $T; INSERT INTO $T SELECT * FROM $T_dump"));
    rows_that_come_back_let_nobody_else_lead(&table.store(), &table.store(), dump, restore).await;
}

#[tokio::test]
async fn a_vacuum_makes_nobody_wait() {
    let table = Table::new().await;
    let store = table.store();
    for vacuum in ["VACUUM (FREEZE) $T", "VACUUM (FULL, FREEZE) $T", "CLUSTER $T USING $T_pkey"] {
        table.sql(vacuum);
        let (one, term) = one_leads(&store).await;
        store.release(&one, term).await.unwrap();
    }
}

#[tokio::test]
async fn a_held_lease_cannot_be_deleted_by_hand_and_what_is_over_can() {
    let table = Table::new().await;
    let (first, second) = (table.store(), table.store());
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
