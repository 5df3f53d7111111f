//! Rows and names that are not what one hopes for.

use super::*;

#[tokio::test]
async fn schemas_and_tables_may_have_any_name() {
    let server = shared();
    for (schema, table) in
        [("public", "user"), ("my \"schema\"", "a 'table'"), ("Upper", "Ünïcode"), ("x", &"y".repeat(63))]
    {
        let encode =
            |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        let url = server.url_with(&format!("schema={}&table={}", encode(schema), encode(table)));
        let store = open(&url);
        store.prepare().await.unwrap();
        store.vouch().await.unwrap();
        let (one, term) = one_leads_for(&store, Duration::from_mins(5)).await;
        assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
        let standby = open(&url);
        let waiting = tokio::spawn(async move { standby.changed(&shard()).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.release(&one, term).await.unwrap();
        timeout(PATIENCE, waiting).await.expect("it is told").unwrap().unwrap();
    }
}

#[tokio::test]
async fn values_that_nobody_of_us_wrote_are_named() {
    let table = Table::new().await;
    let store = table.store();
    for values in ["'v', 'words', 's', 5, 1, 1", "'v', '{\"format\": 1}', 's', -5, 1, 1", "'v', '{}', '', 5, -1, NULL"]
    {
        table.sql(&format!("INSERT INTO $T VALUES ('db/main', 'lease', {values})"));
        misconfigured(store.claim(&candidate("one")).await, "the row lease of shard db/main in table");
        table.sql("DELETE FROM $T WHERE part = 'lease'");
    }
    lead(&store, &candidate("one")).await;
}

/// The table keeps a leader's row from an ordinary deletion.
#[tokio::test]
async fn a_leaders_row_that_something_else_wrote_can_be_removed_as_the_error_says() {
    let table = Table::new().await;
    lead(&table.store(), &with_lease("one", Duration::from_secs(1))).await;
    table.sql("UPDATE $T SET text = 'words' WHERE part = 'lease'");
    let store = table.store();
    misconfigured(
        store.claim(&with_lease("two", Duration::from_secs(1))).await,
        "set its ends to 0 and delete it, or use another",
    );
    table.sql("UPDATE $T SET ends = 0 WHERE part = 'lease'");
    table.sql("DELETE FROM $T WHERE part = 'lease'");
    granted_in_time(&store, &with_lease("two", Duration::from_secs(1))).await;
}

#[tokio::test]
async fn a_marker_that_something_else_wrote_is_replaced_once_its_text_is_removed() {
    let table = Table::new().await;
    table.sql("UPDATE $T SET text = 'words' WHERE part = 'marker'");
    // The table keeps it.
    table.sql("DELETE FROM $T WHERE part = 'marker'");
    misconfigured(table.store().claim(&candidate("one")).await, "set its text to ''");
    table.sql("UPDATE $T SET text = '' WHERE part = 'marker'");
    let claim = table.store().claim(&candidate("one")).await;
    assert!(matches!(claim, Ok(Claim::Refused(_))), "{claim:?}");
}

#[tokio::test]
async fn a_table_of_something_else_is_named_and_left_alone() {
    let server = shared();
    server.sql("CREATE TABLE theirs (id int PRIMARY KEY, shard text); INSERT INTO theirs VALUES (1, 'db/main')");
    let store = open(&server.url_with("table=theirs"));
    misconfigured(store.claim(&candidate("one")).await, "theirs");
    misconfigured(store.renew(&candidate("one"), Term(1), 1).await, "theirs");
    misconfigured(store.prepare().await, "theirs");
    assert_eq!(server.sql("SELECT * FROM theirs"), "1|db/main");
    server.sql("CREATE VIEW seen AS SELECT 1 AS shard");
    assert!(open(&server.url_with("table=seen")).prepare().await.unwrap_err().message.contains("cannot be used"));
}

#[tokio::test]
async fn candidates_exclude_each_other_in_a_serializable_database_too() {
    let table = Table::new().await;
    table.server.sql("CREATE DATABASE strict");
    table.server.sql("ALTER DATABASE strict SET default_transaction_isolation = 'serializable'");
    let url = table.url().replace("/postgres?", "/strict?");
    let stores: Vec<Arc<dyn Store>> = (0..4).map(|_| Arc::new(open(&url)) as _).collect();
    stores[0].prepare().await.unwrap();
    stores[0].vouch().await.unwrap();
    one_wins_every_race(&stores, "race", 25).await;
}

#[tokio::test]
async fn a_list_of_many_pages_is_whole_and_in_order() {
    let table = Table::new().await;
    let store = table.store();
    table.sql(
        "INSERT INTO $T SELECT 'many/' || n, 'lease', 'v', format('{\"format\":1,\"shard\":\"many/%s\",\"term\":5,\"lease\":null,\
         \"wait\":null,\"led_ms\":0,\"orders\":null}', n), '', 0, 0, NULL FROM generate_series(1, 1201) AS n",
    );
    table.sql(
        "INSERT INTO $T SELECT 'many/' || n % 7, 'standby/' || n, 'v', format('{\"session\":\"%s\",\"owner\":\"one\",\
         \"host\":\"here\",\"pid\":7,\"since_millis\":1}', n), '', 0, 0, NULL FROM generate_series(1, 1201) AS n",
    );
    let list = store.list("many/").await.unwrap();
    assert!(list.len() == 1201 && list.is_sorted_by(|(one, _), (other, _)| one < other), "{list:?}");
    assert_eq!(store.list("many/12").await.unwrap().len(), 1 + 10 + 2);
    assert_eq!(store.list("few/").await, Ok(Vec::new()));
    assert_eq!(store.standbys("many/").await.unwrap().len(), 1201);
    assert_eq!(store.standbys("many/3").await.unwrap().len(), 172);
}
