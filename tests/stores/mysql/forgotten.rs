//! A table, or a server, that forgot who leads: nobody starts a tree beside one that may still run.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use crate::rows_that_come_back_let_nobody_else_lead;

/// With the table, as mariadb-dump and mysqldump do it unless they are told otherwise.
#[tokio::test]
async fn rows_that_came_out_of_a_dump_do_not_disturb_the_leader_and_let_nobody_else_lead() {
    let table = Table::new().await;
    let dump = async || {
        let mut dump = std::process::Command::new("mariadb-dump");
        dump.args(["--no-defaults", "-h", "127.0.0.1", "-u", ADMIN, "-P", &table.server.port().to_string()]);
        let dump = dump.args([DATABASE, &table.name]).output().unwrap();
        assert!(dump.status.success(), "{dump:?}");
        dump.stdout
    };
    let restore = async |dump: Vec<u8>| {
        // The server tells when a table was made in whole seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), dump).unwrap();
        table.sql(&format!("source {}", file.path().display()));
    };
    rows_that_come_back_let_nobody_else_lead(&table.store(), &table.store(), dump, restore).await;
}

#[tokio::test]
async fn a_lease_that_is_held_is_not_deleted_by_hand_and_neither_are_the_marks() {
    let table = Table::new().await;
    let store = table.store();
    let (one, term) = one_leads(&store).await;
    for part in ["lease", "led", "marker"] {
        let delete = format!("DELETE FROM {} WHERE part = '{part}'", table.name);
        let error = table.server.ask(&delete).unwrap_err();
        assert!(error.contains("a lease that is held is not deleted"), "{error}");
    }
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    store.release(&one, term).await.unwrap();
    table.sql("DELETE FROM $T WHERE part = 'lease'");
    assert!(granted(store.claim(&one).await.unwrap()).term > term);
}
