//! Notes beside the leases.

use super::*;
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::{ErrorKind, Note, Notes as _, Page};

#[tokio::test]
async fn a_text_is_compared_byte_by_byte() {
    let table = Table::new().await;
    let store = table.store();
    let note = Note::for_ever("text");
    assert_eq!(store.replace(&shard(), &Page::Orders, None, Some(&note)).await, Ok(true));
    for other in ["text ", "TEXT", "téxt", "text\0", ""] {
        assert_eq!(store.replace(&shard(), &Page::Orders, Some(other), None).await, Ok(false), "{other:?}");
    }
    assert_eq!(store.replace(&shard(), &Page::Orders, None, Some(&note)).await, Ok(false));
    assert_eq!(store.replace(&shard(), &Page::Orders, Some("text"), None).await, Ok(true));
}

#[tokio::test]
async fn notes_of_standbys_that_have_ended_are_swept_by_the_next_one() {
    let table = Table::new().await;
    let store = table.store();
    table.sql(&format!(
        "INSERT INTO $T_notes SELECT CONCAT('db/', seq), CONCAT('standby/', seq), 'x', UTC_TIMESTAMP(6), 0 FROM {}",
        sequence(150)
    ));
    table.sql("INSERT INTO $T_notes VALUES ('db/x', 'history', 'x', UTC_TIMESTAMP(6), 0), ('db/y', 'standby/y', 'x', NULL, 0)");
    let announce = async || {
        let page = Page::Standby(Session::random().unwrap());
        let note = Note::lasting("here".to_owned(), Some(Duration::from_mins(1)));
        assert_eq!(store.replace(&shard(), &page, None, Some(&note)).await, Ok(true));
    };
    announce().await;
    assert_eq!(table.sql("SELECT COUNT(*) FROM $T_notes WHERE text = 'x'"), "52");
    announce().await;
    assert_eq!(table.sql("SELECT COUNT(*) FROM $T_notes WHERE text = 'x'"), "2");
    assert_eq!(store.standbys("db/m").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_row_of_something_else_is_named() {
    let table = Table::new().await;
    let store = table.store();
    table.sql("DROP TABLE $T_notes");
    let error = store.read(&shard(), &Page::Orders).await.unwrap_err();
    assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("leaderctl store init"), "{error}");
    table.sql(
        "CREATE TABLE $T_notes (shard VARCHAR(200), page VARCHAR(100), text BLOB, expires_at DATETIME(6), changes INT)",
    );
    table.sql("INSERT INTO $T_notes VALUES ('db/main', 'orders', X'ff', NULL, 0)");
    let error = store.read(&shard(), &Page::Orders).await.unwrap_err();
    assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("written by something else"), "{error}");
}

#[tokio::test]
async fn a_table_that_an_earlier_init_left_without_notes_gets_them() {
    let table = Table::new().await;
    table.sql("DROP TABLE $T_notes");
    let store = table.store();
    let findings = store.check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.text.contains("_notes` in MySQL at")), "{findings:?}");
    let said = store.prepare().await.unwrap().join("\n");
    assert!(said.contains("for notes"), "{said}");
    assert_eq!(store.read(&shard(), &Page::Orders).await, Ok(None));
}
