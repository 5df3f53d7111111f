//! Rows and names that are not what one hopes for.

use super::*;
use leaderrun::internals::lease::Candidate;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Notes as _, Observation, Renewal};

#[tokio::test]
async fn a_holder_is_reported_in_full() {
    let table = Table::new().await;
    let store = table.store();
    let one = Candidate { owner: "Jürgen's \"job\"; DROP TABLE x --".to_owned(), ..candidate("one") };
    let term = lead(&store, &one).await;
    let holder = store.inspect(&shard()).await.unwrap().holder.unwrap();
    assert_eq!((holder.owner, holder.session, holder.term), (one.owner.clone(), Some(one.session.clone()), Some(term)));
    assert_eq!((holder.host.as_deref(), holder.pid), (Some("here"), Some(7)));
    store.release(&one, term).await.unwrap();
    let report = store.inspect(&shard()).await.unwrap();
    assert_eq!((report.holder, report.last_term), (None, Some(term)));
}

#[tokio::test]
async fn tables_may_have_any_name() {
    let table = Table::new().await;
    for name in ["user", "a 'table'", "my `own`", "Ünïcode", "back\\slash", &"y".repeat(64)] {
        let encoded: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
        let url = table.url().replace(&format!("table={}&", table.name), &format!("table={encoded}&"));
        let store = open(&url);
        store.prepare().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let one = candidate("one");
        let term = granted(store.claim(&one).await.unwrap()).term;
        assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed), "{name}");
        store.release(&one, term).await.unwrap();
    }
}

#[tokio::test]
async fn values_that_nobody_of_us_wrote_are_named_or_respected() {
    let table = Table::new().await;
    let store = table.store();
    let row = |values: &str| {
        table.sql("UPDATE $T SET released = 1 WHERE shard = 'db/main'; DELETE FROM $T WHERE shard = 'db/main'");
        table.sql(&format!("INSERT INTO $T VALUES ('db/main', {values})"));
    };
    row("-5, 'x', '', '', -1, -1, -1, -1, '1000-01-01', '9999-12-31', 0");
    let error = store.claim(&candidate("one")).await.unwrap_err();
    assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("written by something else"), "{error}");
    assert_eq!(store.observe(&shard()).await.unwrap_err().kind, ErrorKind::Misconfigured);
    assert!(store.list("").await.unwrap()[0].1.holder.is_some(), "it keeps everybody out");
    row("5, 'x', 'somebody', '', 0, 0, 0, 0, '1000-01-01', '9999-12-31', 0");
    let Observation::Held(holder) = store.observe(&shard()).await.unwrap() else { panic!("it is held") };
    assert_eq!((holder.owner.as_str(), holder.since_millis), ("somebody", Some(0)));
    refused(store.claim(&candidate("one")).await.unwrap());
    row("9000000000000000, 'x', 'somebody', '', 0, 0, 0, 0, '1000-01-01', '1000-01-01', 0");
    let grant = granted(store.claim(&candidate("one")).await.unwrap());
    assert_eq!(grant.term.0, 9_000_000_000_000_001);
}

#[tokio::test]
async fn a_table_of_something_else_is_named() {
    let table = Table::new().await;
    table.server.sql("CREATE TABLE foreign_table (id INT PRIMARY KEY)");
    let url = table.url().replace(&format!("table={}&", table.name), "table=foreign_table&");
    for error in [
        open(&url).claim(&candidate("one")).await.unwrap_err(),
        open(&url).prepare().await.unwrap_err(),
        open(&url).observe(&shard()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}");
        assert!(error.message.contains("foreign_table") && error.message.contains("table=NAME"), "{error}");
    }
}

#[tokio::test]
async fn a_table_without_transactions_is_refused() {
    let table = Table::new().await;
    table.sql("ALTER TABLE $T ENGINE = MyISAM");
    let error = table.store().prepare().await.unwrap_err();
    assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("a table of InnoDB"), "{error}");
    let findings = table.store().check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.text.contains("of the kind MyISAM")), "{findings:?}");
    let error = table.store().claim(&candidate("one")).await.unwrap_err();
    assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("a table of InnoDB"), "{error}");
}

#[tokio::test]
async fn ten_thousand_shards_are_listed_in_a_moment() {
    let table = Table::new().await;
    let store = table.store();
    table.sql(&format!(
        "INSERT INTO $T SELECT CONCAT('many/', seq), seq, 's', 'o', 'h', 1, 0, 0, 15000, UTC_TIMESTAMP(6), \
         UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 0 FROM {}",
        sequence(10_000)
    ));
    let begun = std::time::Instant::now();
    let list = store.list("many/").await.unwrap();
    println!("10,000 shards were listed in {:?}", begun.elapsed());
    assert_eq!(list.len(), 10_000);
    assert!(list.is_sorted_by(|(one, _), (other, _)| one < other) && list.iter().all(|(_, it)| it.holder.is_some()));
    // A name that no shard has, and wildcards that are letters here.
    table.sql(
        "INSERT INTO $T SELECT CONCAT('bad name', shard), term, session, owner, host, pid, beat, sent, lease_ms, \
               since, expires, released FROM $T WHERE shard IN ('many/1')",
    );
    assert_eq!(store.list("man_/").await.unwrap().len(), 0);
    assert_eq!(store.list("bad").await.unwrap().len(), 0);
    assert!(store.standbys("").await.unwrap().is_empty());
}
