//! Settings of the server that change what statements mean.

use super::*;

/// An election, and notes, on a server with these options. Answers what was said when it was prepared.
async fn works_with(settings: &[&str]) -> String {
    let server = Server::start_with(settings);
    // For a user with SUPER, the server does not run init_connect.
    server.sql(&format!("CREATE USER app; GRANT ALL ON {DATABASE}.* TO app"));
    let url = server.url_with("").replace(&format!("//{ADMIN}@"), "//app@");
    let (first, second) = (open(&url), open(&url));
    let prepared = first.prepare().await.unwrap_or_else(|error| panic!("{settings:?}: {error}")).join("\n");
    server.age("leaderrun");
    let one = leaderrun::internals::lease::Candidate { owner: "a \\ \"b\" 'c' `d` ä".to_owned(), ..candidate("one") };
    let (two, shards) = (candidate("two"), [shard()]);
    for _ in 0..2 {
        let term = lead(&first, &one).await;
        assert_eq!(refused(second.claim(&two).await.unwrap()).owner, one.owner, "{settings:?}");
        let text = "orders \\' \" `";
        let note = Note::lasting(text.to_owned(), None);
        assert_eq!(second.replace(&shard(), &Page::Orders, None, Some(&note)).await, Ok(true), "{settings:?}");
        let renewed = first.renew_and_read(&one, term, 1, &shards).await.unwrap();
        assert_eq!(
            (renewed.renewal, renewed.orders),
            (Renewal::Renewed, Some(vec![Some(note.clone())])),
            "{settings:?}"
        );
        assert_eq!(second.replace(&shard(), &Page::Orders, Some("other"), Some(&note)).await, Ok(false));
        // Equal texts are a change as well.
        assert_eq!(second.replace(&shard(), &Page::Orders, Some(text), Some(&note)).await, Ok(true), "{settings:?}");
        assert_eq!(second.replace(&shard(), &Page::Orders, Some(text), None).await, Ok(true), "{settings:?}");
        let holder = second.inspect(&shard()).await.unwrap().holder.unwrap();
        let (left, since) = (holder.expires_in.unwrap(), holder.since_millis.unwrap());
        assert!(left <= LEASE && left > LEASE / 4, "{settings:?}: {left:?}");
        assert!(leaderrun::internals::time::wall_clock_millis().abs_diff(since) < 60_000, "{settings:?}: {since}");
        assert_eq!(first.release(&one, term).await, Ok(Release::Released));
        let next = lead(&second, &two).await;
        assert!(next > term, "{settings:?}");
        assert_eq!(second.release(&two, next).await, Ok(Release::Released));
    }
    assert_eq!(
        server.sql("SELECT COUNT(*) FROM leaderrun WHERE part = 'lease' AND session <> ''"),
        "0",
        "{settings:?}"
    );
    prepared
}

/// Several in each server: to start one takes longer than all that is asked of it.
#[tokio::test]
async fn commits_quotes_strictness_time_zone_and_isolation_may_be_set_in_any_way() {
    works_with(&[
        "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE",
        "--autocommit=0",
        "--init-connect=SET autocommit=0",
        "--default-time-zone=-11:30",
        "--transaction-isolation=SERIALIZABLE",
    ])
    .await;
    works_with(&[
        "--sql-mode=TRADITIONAL,ONLY_FULL_GROUP_BY,NO_ZERO_DATE",
        "--character-set-server=latin1",
        "--default-time-zone=+13:00",
        "--transaction-isolation=READ-UNCOMMITTED",
    ])
    .await;
    works_with(&[
        "--transaction-isolation=REPEATABLE-READ",
        "--binlog-format=STATEMENT",
        "--log-bin",
        "--log-bin-trust-function-creators=1",
    ])
    .await;
    // Where statements are logged, it lets nobody make a trigger.
    let lines = works_with(&["--transaction-isolation=READ-COMMITTED", "--binlog-format=ROW", "--log-bin"]).await;
    assert!(lines.contains("a lease that is held can still be deleted by hand"), "{lines}");
    if is_mariadb() {
        works_with(&["--sql-mode=ANSI_QUOTES,SIMULTANEOUS_ASSIGNMENT"]).await;
        works_with(&["--sql-mode=ORACLE", "--lower-case-table-names=1"]).await;
    }
}

#[tokio::test]
async fn a_server_that_is_read_only_is_passed_over_for_one_that_is_not() {
    let table = Table::new().await;
    let server = Server::start_with(&["--read-only=1"]);
    not_applied(open(&server.url_with("")).claim(&candidate("one")).await, "does not accept writes: it is a replica");
    let both = format!("@127.0.0.1:{},127.0.0.1:{}/", server.port(), table.server.port());
    let url = table.url().replace(&format!("@127.0.0.1:{}/", table.server.port()), &both);
    lead(&open(&url), &candidate("one")).await;
}
