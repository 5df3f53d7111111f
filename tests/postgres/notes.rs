//! Notes, and the table that they are in.

use super::*;
use crate::support::postgres::Bouncer;
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::{ErrorKind, Leases as _, Note, Notes as _, Page, Renewal, Verdict};

fn standby() -> Page {
    Page::Standby(Session::random().unwrap())
}

/// All that is done with notes, once each.
async fn use_all(store: &Postgres) -> Result<(), StoreError> {
    let (shard, page) = (shard(), standby());
    let (one, two) = (Note::for_ever("one"), Note::lasting("two".to_owned(), Some(Duration::from_hours(1))));
    assert!(store.replace(&shard, &page, None, Some(&one)).await?);
    assert!(store.replace(&shard, &page, Some("one"), Some(&two)).await?);
    assert_eq!(store.read(&shard, &page).await?.map(|note| note.text).as_deref(), Some("two"));
    assert_eq!(store.standbys("db").await?.len(), 1);
    assert!(store.replace(&shard, &page, Some("two"), None).await?);
    assert!(store.replace(&shard, &page, None, None).await?);
    Ok(())
}

#[tokio::test]
async fn without_a_table_of_notes_an_election_goes_on_and_notes_ask_to_create_it() {
    let table = Table::new().await;
    table.sql("DROP TABLE $T_notes");
    let store = table.store().await;
    lead(&store, &candidate("one")).await;
    for error in [
        store.read(&shard(), &Page::Orders).await.unwrap_err(),
        store.standbys("").await.unwrap_err(),
        use_all(&store).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}");
        let sign = format!("no table public.\"{}_notes\"", table.name);
        assert!(error.message.contains(&sign) && error.message.contains("leaderctl store init"), "{error}");
    }
    let findings = store.check().await.unwrap();
    let sign = |text: &str| text.contains("_notes") && text.contains("leaderctl store init");
    assert!(findings.iter().any(|it| it.verdict == Verdict::Bad && sign(&it.text)), "{findings:?}");
    let said = store.prepare().await.unwrap().join("\n");
    assert!(said.contains("made table") && said.contains("for notes"), "{said}");
    use_all(&store).await.unwrap();
    let findings = store.check().await.unwrap();
    assert!(findings.iter().all(|it| it.verdict != Verdict::Bad || !sign(&it.text)), "{findings:?}");
    assert_eq!(table.sql("SELECT count(*) FROM $T_notes"), "0");
}

#[tokio::test]
async fn each_missing_grant_on_the_table_of_notes_is_named() {
    for missing in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
        let table = Table::new().await;
        let role = format!("scribe_{}", table.name);
        let others = ["SELECT", "INSERT", "UPDATE", "DELETE"].into_iter().filter(|&grant| grant != missing);
        let others = others.collect::<Vec<_>>().join(", ");
        table.sql(&format!(
            "CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE ON TABLE $T TO {role}; \
             GRANT {others} ON TABLE $T_notes TO {role}"
        ));
        let store = open(&table.url().replace("//postgres@", &format!("//{role}@"))).await;
        lead(&store, &candidate("one")).await;
        let error = use_all(&store).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied, "{error}");
        let grant = format!("GRANT {missing} ON TABLE public.\"{}_notes\" TO {role}", table.name);
        assert!(error.message.contains(&grant), "{error}");
        let findings = store.check().await.unwrap();
        assert!(findings.iter().any(|it| it.verdict == Verdict::Bad && it.text.contains(&grant)), "{findings:?}");
    }
}

#[tokio::test]
async fn a_role_that_may_only_read_may_read_notes() {
    let table = Table::new().await;
    let role = format!("reader_{}", table.name);
    table.sql(&format!("CREATE ROLE {role} LOGIN; GRANT SELECT ON TABLE $T_notes TO {role}"));
    let (store, page) = (table.store().await, standby());
    assert_eq!(store.replace(&shard(), &page, None, Some(&Note::for_ever("one"))).await, Ok(true));
    let reader = open(&table.url().replace("//postgres@", &format!("//{role}@"))).await;
    assert_eq!(reader.read(&shard(), &page).await, Ok(Some(Note::for_ever("one"))));
    assert_eq!(reader.standbys("").await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_note_is_kept_through_poolers() {
    let table = Table::new().await;
    for mode in ["transaction", "statement", "session"] {
        let bouncer = Bouncer::before(table.server, mode);
        use_all(&open(&bouncer.url_with(&format!("table={}", table.name))).await).await.unwrap();
    }
}

#[tokio::test]
async fn a_table_with_the_longest_name_has_notes_of_its_own() {
    let server = shared();
    for name in ["n".repeat(57), "n".repeat(58), "n".repeat(63)] {
        let store = open(&server.url_with(&format!("table={name}"))).await;
        store.prepare().await.unwrap();
        use_all(&store).await.unwrap();
        store.replace(&shard(), &Page::Orders, None, Some(&Note::for_ever(name.as_str()))).await.unwrap();
    }
    for name in ["n".repeat(57), "n".repeat(58), "n".repeat(63)] {
        let store = open(&server.url_with(&format!("table={name}"))).await;
        assert_eq!(store.read(&shard(), &Page::Orders).await, Ok(Some(Note::for_ever(name))));
    }
}

#[tokio::test]
async fn notes_of_standbys_that_have_ended_are_removed_by_the_next_standby() {
    let table = Table::new().await;
    let store = table.store().await;
    let soon = Note::lasting("soon".to_owned(), Some(Duration::from_hours(1)));
    let another = "another".parse().unwrap();
    for _ in 0..5 {
        assert_eq!(store.replace(&another, &standby(), None, Some(&soon)).await, Ok(true));
    }
    assert_eq!(store.replace(&another, &Page::Orders, None, Some(&soon)).await, Ok(true));
    table.sql("UPDATE $T_notes SET expires_at = clock_timestamp()");
    let (mine, orders) = (standby(), Page::Orders);
    assert_eq!(store.replace(&shard(), &orders, None, Some(&soon)).await, Ok(true));
    assert_eq!(table.sql("SELECT count(*) FROM $T_notes"), "7");
    assert_eq!(store.replace(&shard(), &mine, None, Some(&soon)).await, Ok(true));
    let left = table.sql("SELECT shard, split_part(page, '/', 1) FROM $T_notes ORDER BY shard, page");
    assert_eq!(left.split('\n').collect::<Vec<_>>(), ["another|orders", "db/main|orders", "db/main|standby"]);
    assert_eq!(store.standbys("").await.unwrap().len(), 1);
}

#[tokio::test]
async fn standbys_that_come_back_at_once_for_notes_that_have_ended_do_not_wait_for_each_other() {
    let table = Table::new().await;
    let (shard, pages) = (shard(), (0..8).map(|_| standby()).collect::<Vec<_>>());
    let lasting = |text: &str| Note::lasting(text.to_owned(), Some(Duration::from_hours(1)));
    let mut stores = Vec::new();
    for page in &pages {
        let store = std::sync::Arc::new(table.store().await);
        assert_eq!(store.replace(&shard, page, None, Some(&lasting("0"))).await, Ok(true));
        stores.push(store);
    }
    for round in 1..=25 {
        table.sql("UPDATE $T_notes SET expires_at = clock_timestamp()");
        let mut writes = tokio::task::JoinSet::new();
        for (store, page) in stores.iter().zip(&pages) {
            let (store, page, note) = (std::sync::Arc::clone(store), page.clone(), lasting(&round.to_string()));
            writes.spawn(async move { store.replace(&super::shard(), &page, None, Some(&note)).await });
        }
        assert_eq!(writes.join_all().await, vec![Ok(true); 8], "round {round}");
        assert_eq!(stores[0].standbys("").await.unwrap().len(), 8, "round {round}");
    }
}

#[tokio::test]
async fn a_write_that_waited_for_a_row_goes_by_what_stands_there_then() {
    let table = Table::new().await;
    let store = table.store().await;
    let (one, two, three) = (Note::for_ever("one"), Note::for_ever("two"), Note::for_ever("three"));
    assert_eq!(store.replace(&shard(), &Page::Orders, None, Some(&one)).await, Ok(true));
    let mut psql = Psql::start(table.server);
    psql.say("BEGIN");
    psql.say(&format!("UPDATE {}_notes SET text = 'two'", table.name));
    let writes = async {
        let (other, third) = (table.store().await, table.store().await);
        tokio::join!(async { other.replace(&shard(), &Page::Orders, Some("one"), Some(&three)).await }, async {
            third.replace(&shard(), &Page::Orders, Some("one"), None).await
        },)
    };
    let commit = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        psql.say("COMMIT");
    };
    let ((changed, removed), ()) = tokio::join!(writes, commit);
    assert_eq!((changed, removed), (Ok(false), Ok(false)));
    assert_eq!(store.read(&shard(), &Page::Orders).await, Ok(Some(two)));
}

#[tokio::test]
async fn a_note_for_longer_than_any_calendar_lasts_for_ever() {
    let table = Table::new().await;
    let store = table.store().await;
    for lasts in [Duration::MAX, Duration::from_secs(10_000_000_000)] {
        let (page, note) = (standby(), Note::lasting("ever".to_owned(), Some(lasts)));
        assert_eq!(store.replace(&shard(), &page, None, Some(&note)).await, Ok(true));
        assert_eq!(store.read(&shard(), &page).await, Ok(Some(Note::for_ever("ever"))));
    }
}

#[tokio::test]
async fn orders_that_cannot_be_read_do_a_renewal_no_harm() {
    let table = Table::new().await;
    let (one, page) = (candidate("one"), Page::Orders);
    for spoil in [
        "DROP TABLE $T_notes",
        "ALTER TABLE $T_notes RENAME COLUMN text TO words",
        "ALTER TABLE $T_notes ALTER COLUMN expires_at TYPE text",
    ] {
        let store = table.store().await;
        store.prepare().await.unwrap();
        let term = lead(&store, &one).await;
        assert!(store.replace(&shard(), &page, None, Some(&Note::for_ever("one"))).await.unwrap());
        let brought = Some(vec![Some(Note::for_ever("one"))]);
        let renewed = store.renew_and_read(&one, term, 1, &[shard()]).await.unwrap();
        assert_eq!((renewed.renewal, renewed.orders), (Renewal::Renewed, brought));
        table.sql(spoil);
        for sequence in 2..5 {
            let renewed = store.renew_and_read(&one, term, sequence, &[shard()]).await.unwrap();
            assert_eq!((renewed.renewal, renewed.orders), (Renewal::Renewed, None), "{spoil}");
        }
        store.read(&shard(), &page).await.expect_err("who reads them is told");
        table.sql("DROP TABLE IF EXISTS $T_notes");
    }
}

#[tokio::test]
async fn a_table_of_notes_that_is_locked_costs_no_lease() {
    let table = Table::new().await;
    let store = try_open(&table.url(), Duration::from_secs(2)).await.unwrap();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let mut other = Psql::start(table.server);
    other.say(&format!("BEGIN; LOCK TABLE {}_notes", table.name));
    // One renewal is in vain at most.
    let first = store.renew_and_read(&one, term, 1, &[shard()]).await;
    assert!(first.is_err(), "{first:?}");
    for sequence in 2..5 {
        let renewed = store.renew_and_read(&one, term, sequence, &[shard()]).await.unwrap();
        assert_eq!((renewed.renewal, renewed.orders), (Renewal::Renewed, None));
    }
}
