//! `leaderctl store init` and `leaderctl store check`.

use super::*;

#[tokio::test]
async fn a_table_is_made_once_and_its_memory_is_kept() {
    let server = shared();
    let url = server.url_with("schema=fresh&table=locks");
    let (first, second) = (open(&url), open(&url));
    let (made, also) = tokio::join!(first.prepare(), second.prepare());
    let (made, also) = (made.unwrap().join("\n"), also.unwrap().join("\n"));
    assert!(made.contains("created table \"fresh\".\"locks\"") != also.contains("created table"), "{made}\n{also}");
    server.age("fresh.locks");
    let again = first.prepare().await.unwrap().join("\n");
    assert!(again.contains("exists") && again.contains("has recorded since when it remembers leases"), "{again}");
    lead(&first, &candidate("one")).await;
}

#[tokio::test]
async fn a_rule_that_is_missing_or_off_is_named_and_mended() {
    let table = Table::new().await;
    let store = table.store();
    for spoil in ["DROP RULE leaderrun_keep ON $T", "ALTER TABLE $T DISABLE RULE leaderrun_keep"] {
        table.sql(spoil);
        finds(&store.check().await.unwrap(), Verdict::Doubtful, "deleted by hand");
        assert!(store.prepare().await.unwrap().join("\n").contains("a lease that is held cannot be deleted by hand"));
        finds(&store.check().await.unwrap(), Verdict::Good, "cannot be deleted by hand");
    }
}

#[tokio::test]
async fn a_check_of_a_good_server_finds_nothing_bad_and_leaves_nothing() {
    let server = Server::start_with(&["fsync=on"]);
    let store = open(&server.own_url());
    finds(&store.check().await.unwrap(), Verdict::Bad, "leaderctl store init");
    store.prepare().await.unwrap();
    let findings = store.check().await.unwrap();
    assert_eq!(texts(&findings, Verdict::Bad), Vec::<&str>::new());
    assert_eq!(texts(&findings, Verdict::Doubtful), Vec::<&str>::new());
    let good = texts(&findings, Verdict::Good).join("\n");
    for word in [
        "is version 1",
        "a round trip takes",
        "read, write, list and delete",
        "since when it remembers leases",
        "at once",
    ] {
        assert!(good.contains(word), "{word}: {good}");
    }
    assert_eq!(server.sql("SELECT part FROM leaderrun"), "marker");
}

#[tokio::test]
async fn a_check_names_what_makes_a_server_unsafe_and_a_lease_is_written_to_disk_where_the_server_would_not() {
    let server = Server::start_with(&["full_page_writes=off", "synchronous_commit=off", "wal_writer_delay=10s"]);
    let store = ready(&server).await;
    let (one, term) = one_leads(&store).await;
    // What was committed is in the log by then, and not only in memory. What the server writes by itself now and then may
    // not be.
    let unwritten = "SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()";
    let mut flushed = Vec::new();
    for sequence in 1..4 {
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        flushed.push(server.sql(unwritten) == "f");
    }
    assert!(flushed.contains(&true));
    server.sql("ALTER TABLE leaderrun SET UNLOGGED");
    let findings = store.check().await.unwrap();
    let bad = texts(&findings, Verdict::Bad).join("\n");
    assert!(bad.contains("fsync is off") && bad.contains("not logged"), "{bad}");
    assert!(texts(&findings, Verdict::Doubtful).join("\n").contains("full_page_writes"));
}
