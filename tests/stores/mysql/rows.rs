//! Rows and names that are not what one hopes for.

use super::*;

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
        misconfigured(store.claim(&candidate("one")).await, &format!("{name} … an earlier release"));
        misconfigured(store.prepare().await, &format!("{name} … an earlier release"));
        leaderctl().args(["--store", &url, "status", "db/main"]).said().ended(78);
        assert_eq!(table.sql(&format!("SELECT COUNT(*) FROM {name}")), "0");
    }
}

#[tokio::test]
async fn a_table_without_transactions_is_refused() {
    let table = Table::new().await;
    table.sql("DROP TABLE $T; CREATE TABLE $T (shard VARCHAR(10)) ENGINE = MyISAM");
    misconfigured(table.store().prepare().await, "leases need InnoDB");
    misconfigured(table.store().check().await, "leases need InnoDB");
    misconfigured(table.store().claim(&candidate("one")).await, "leases need InnoDB");
}
