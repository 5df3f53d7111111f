//! Rows and names that are not what one hopes for.

use super::*;
use crate::support::fleet::leaderctl;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Notes as _, Renewal};

#[tokio::test]
async fn tables_may_have_any_name() {
    let table = Table::new().await;
    for name in ["user", "a 'table'", "my `own`", "Ünïcode", "back\\slash", &"y".repeat(64)] {
        let encoded: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
        let url = table.url().replace(&format!("table={}&", table.name), &format!("table={encoded}&"));
        let store = open(&url);
        store.prepare().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        store.vouch().await.unwrap();
        let one = candidate("one");
        let term = granted(store.claim(&one).await.unwrap()).term;
        assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed), "{name}");
        store.release(&one, term).await.unwrap();
    }
}

#[tokio::test]
async fn values_that_nobody_of_us_wrote_are_named() {
    let table = Table::new().await;
    let store = table.store();
    for values in ["'v', 'words', 's', 5, 1, 1", "'v', '{\"format\": 1}', 's', -5, 1, 1", "'v', '{}', '', 5, -1, NULL"]
    {
        table.sql(&format!("INSERT INTO $T VALUES ('db/main', 'lease', {values})"));
        for error in [store.claim(&candidate("one")).await.unwrap_err(), store.observe(&shard()).await.unwrap_err()] {
            assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}");
            assert!(error.message.contains("the row lease of shard db/main in table"), "{error}");
        }
        table.sql("DELETE FROM $T WHERE part = 'lease'");
    }
    lead(&store, &candidate("one")).await;
}

/// A table of an earlier release is one of them.
#[tokio::test]
async fn a_table_of_something_else_is_named_and_left_alone() {
    let table = Table::new().await;
    let columns = "shard VARCHAR(200) PRIMARY KEY, term BIGINT, session VARCHAR(64), owner TEXT, host TEXT, pid BIGINT, \
                   beat BIGINT, sent BIGINT, lease_ms BIGINT, since DATETIME(6), expires DATETIME(6), released TINYINT";
    for (name, columns) in [("earlier", columns), ("foreign_table", "id INT PRIMARY KEY, shard TEXT")] {
        table.sql(&format!("CREATE TABLE {name} ({columns})"));
        let url = table.url().replace(&format!("table={}&", table.name), &format!("table={name}&"));
        let store = open(&url);
        for error in [
            store.claim(&candidate("one")).await.unwrap_err(),
            store.observe(&shard()).await.unwrap_err(),
            store.prepare().await.unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}");
            assert!(error.message.contains(name) && error.message.contains("an earlier release"), "{error}");
        }
        let status = leaderctl().args(["--store", &url, "status", "db/main"]).output().unwrap().status;
        assert_eq!(status.code(), Some(78));
        assert_eq!(table.sql(&format!("SELECT COUNT(*) FROM {name}")), "0");
    }
}

#[tokio::test]
async fn a_table_without_transactions_is_refused() {
    let table = Table::new().await;
    table.sql("DROP TABLE $T; CREATE TABLE $T (shard VARCHAR(10)) ENGINE = MyISAM");
    for error in [
        table.store().prepare().await.unwrap_err(),
        table.store().check().await.unwrap_err(),
        table.store().claim(&candidate("one")).await.unwrap_err(),
    ] {
        assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("a table of InnoDB"), "{error}");
    }
}

#[tokio::test]
async fn ten_thousand_shards_are_listed_in_a_moment() {
    let table = Table::new().await;
    let store = table.store();
    let document = |shard: &str| {
        format!(
            "CONCAT('{{\"format\":1,\"shard\":\"', {shard}, '\",\"term\":5,\"lease\":null,\"wait\":null,\"led_ms\":0,\
             \"orders\":null}}')"
        )
    };
    table.sql(&format!(
        "INSERT INTO $T SELECT CONCAT('many/', seq), 'lease', 'v', {}, '', 0, 0, NULL FROM {}",
        document("CONCAT('many/', seq)"),
        sequence(10_000)
    ));
    let begun = std::time::Instant::now();
    let list = store.list("many/").await.unwrap();
    println!("10,000 shards were listed in {:?}", begun.elapsed());
    assert_eq!(list.len(), 10_000);
    assert!(list.is_sorted_by(|(one, _), (other, _)| one < other));
    // A name that no shard has, and wildcards that are letters here.
    table.sql("INSERT INTO $T VALUES ('bad name', 'lease', 'v', '{}', '', 0, 0, NULL)");
    assert_eq!(store.list("man_/").await.unwrap().len(), 0);
    assert_eq!(store.list("bad").await.unwrap().len(), 0);
    assert!(store.standbys("").await.unwrap().is_empty());
}
