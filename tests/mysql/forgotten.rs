//! A table, or a server, that forgot who leads: nobody starts a tree beside one that may still run.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::watch::{Lockup, alone, updates};
use super::*;
use leaderrun::internals::lease::{Candidate, Term};
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Release, Renewal};

const SLACK: Duration = Duration::from_millis(1);

#[tokio::test]
async fn the_first_leader_of_a_new_table_waits_until_it_is_a_lease_old() {
    let table = Table::young().await;
    let store = table.store();
    let left = wait_of(&granted(store.claim(&with_lease("one", Duration::from_hours(1))).await.unwrap()));
    assert!(left > Duration::from_mins(50) && left <= Duration::from_hours(1) + SLACK, "{left:?}");
    table.sql("UPDATE $T SET since = UTC_TIMESTAMP(6) - INTERVAL 10 SECOND WHERE shard = ''");
    let another = Candidate { shard: "another".parse().unwrap(), ..with_lease("one", Duration::from_mins(1)) };
    let left = wait_of(&granted(store.claim(&another).await.unwrap()));
    assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(50) + SLACK, "{left:?}");
}

#[tokio::test]
async fn a_table_that_was_dropped_and_made_again_makes_the_next_leader_wait_and_terms_go_on_rising() {
    let table = Table::new().await;
    let (first, second) = (table.store(), table.store());
    let (one, two) = (candidate("one"), candidate("two"));
    let mut term = Term(0);
    for _ in 0..3 {
        term = lead(&first, &one).await;
        first.release(&one, term).await.unwrap();
    }
    lead(&first, &one).await;
    table.sql("DROP TABLE $T");
    let error = first.renew(&one, term, 1).await.unwrap_err();
    assert!(error.message.contains("leaderctl store init"), "{error}");
    second.prepare().await.unwrap();
    let grant = granted(second.claim(&two).await.unwrap());
    assert!(grant.term > term, "{grant:?} after {term}");
    assert!(wait_of(&grant) > Duration::from_secs(5));
    assert!(matches!(first.renew(&one, term, 2).await.unwrap(), Renewal::Lost(Some(holder)) if holder.owner == "two"));
}

/// As where another node of a cluster grants a lease meanwhile.
#[tokio::test]
async fn a_claim_that_waited_for_its_row_goes_by_what_the_table_remembers_then() {
    const ROW: &str = "leaderrun WHERE shard = 'db/main'";
    let server = alone().await;
    let store = open(&server.url_with(""));
    let one = candidate("one");
    let term = lead(&store, &one).await;
    store.release(&one, term).await.unwrap();
    let lockup = Lockup::of(&server, ROW).await;
    let elsewhere = async {
        eventually("the claim waits", async || updates(&server) == "1").await;
        server.sql("UPDATE leaderrun SET host = 'another node', since = UTC_TIMESTAMP(6) WHERE shard = ''");
        lockup.end(&server, ROW);
    };
    let two = candidate("two");
    let (claim, ()) = tokio::join!(store.claim(&two), elsewhere);
    assert!(wait_of(&granted(claim.unwrap())) > LEASE - Duration::from_secs(2));
}

#[tokio::test]
async fn a_truncated_table_makes_the_next_leader_wait() {
    let table = Table::new().await;
    let (first, second) = (table.store(), table.store());
    let term = lead(&first, &candidate("one")).await;
    table.sql("TRUNCATE $T");
    let (two, three) = (candidate("two"), candidate("three"));
    let grant = granted(second.claim(&two).await.unwrap());
    assert!(grant.term > term);
    assert!(wait_of(&grant) > Duration::from_secs(5));
    assert_remembers(&second).await;
    // A release in between ends nobody's wait, and a renewal does not either.
    assert_eq!(second.renew(&two, grant.term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(second.release(&two, grant.term).await, Ok(Release::Released));
    assert!(wait_of(&granted(first.claim(&three).await.unwrap())) > Duration::from_secs(5));
}

/// With the table, as mariadb-dump and mysqldump do it unless they are told otherwise.
#[tokio::test]
async fn rows_that_came_out_of_a_dump_make_the_next_leader_wait() {
    let table = Table::new().await;
    let (first, second) = (table.store(), table.store());
    let one = candidate("one");
    let term = lead(&first, &one).await;
    first.release(&one, term).await.unwrap();
    // The dump says that nobody leads; then somebody does, and the dump comes back.
    let mut dump = std::process::Command::new("mariadb-dump");
    dump.args(["--no-defaults", "-h", "127.0.0.1", "-u", ADMIN, "-P", &table.server.port().to_string()]);
    let dump = dump.args([DATABASE, &table.name]).output().unwrap();
    assert!(dump.status.success(), "{dump:?}");
    lead(&first, &one).await;
    // The server tells when a table was made in whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), dump.stdout).unwrap();
    table.sql(&format!("source {}", file.path().display()));
    let grant = granted(second.claim(&candidate("two")).await.unwrap());
    assert!(wait_of(&grant) > Duration::from_secs(5), "{grant:?}");
    assert_remembers(&second).await;
}

#[tokio::test]
async fn another_server_that_has_the_rows_makes_the_next_leader_wait() {
    let table = Table::new().await;
    let store = table.store();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    store.release(&one, term).await.unwrap();
    // What the marker of a replica says of it: the name of the server that it had its rows from.
    table.sql("UPDATE $T SET host = '2 elsewhere:3306/var/lib/mysql/ 1795421341' WHERE shard = ''");
    assert!(wait_of(&granted(store.claim(&one).await.unwrap())) > Duration::from_secs(5));
    assert_remembers(&store).await;
}

/// From now on, that is.
async fn assert_remembers(store: &Mysql) {
    let said = store.prepare().await.unwrap().join("\n");
    assert!(said.contains("says since when it remembers"), "{said}");
}

#[tokio::test]
async fn a_longer_lease_that_the_row_speaks_of_is_waited_for() {
    let table = Table::young().await;
    let store = table.store();
    let one = with_lease("one", Duration::from_hours(1));
    let grant = granted(store.claim(&one).await.unwrap());
    store.release(&one, grant.term).await.unwrap();
    let left = wait_of(&granted(store.claim(&candidate("two")).await.unwrap()));
    assert!(left > Duration::from_mins(50), "{left:?}");
}

#[tokio::test]
async fn a_marker_from_the_future_makes_nobody_wait_longer_than_a_lease() {
    let table = Table::new().await;
    table.sql("UPDATE $T SET since = UTC_TIMESTAMP(6) + INTERVAL 100 YEAR WHERE shard = ''");
    let left = wait_of(&granted(table.store().claim(&candidate("one")).await.unwrap()));
    assert!(left > LEASE / 2 && left <= LEASE + SLACK, "{left:?}");
}

#[tokio::test]
async fn a_lease_that_is_held_is_not_deleted_by_hand_and_neither_is_the_marker() {
    let table = Table::new().await;
    let store = table.store();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    for shard in ["db/main", ""] {
        let delete = format!("DELETE FROM {} WHERE shard = '{shard}'", table.name);
        let error = table.server.ask(&delete).unwrap_err();
        assert!(error.contains("a lease that is held is not deleted"), "{error}");
    }
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    store.release(&one, term).await.unwrap();
    table.sql("DELETE FROM $T WHERE shard = 'db/main'");
    assert!(lead(&store, &one).await > term);
}

/// As by a standby that lost its connection for a moment, and now asks another node of a cluster.
#[tokio::test]
async fn a_leader_that_renews_where_the_marker_does_not_point_points_it_there() {
    let table = Table::new().await;
    let store = table.store();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let marker = "SELECT host, since > UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE FROM $T WHERE shard = ''";
    let before = table.sql(marker);
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(table.sql(marker), before);
    table.sql("UPDATE $T SET host = 'another node', since = since - INTERVAL 1 SECOND WHERE shard = ''");
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    // So a claim at the other node waits for a lease, whatever its clock says.
    assert_eq!(table.sql(marker), before.replace("\t0", "\t1"));
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed));
    assert_eq!(table.sql("SELECT beat FROM $T WHERE shard = 'db/main'"), "3");
}

/// The leader had the lease extended by a clock that the other node does not have, and did not know yet.
#[tokio::test]
async fn a_leader_that_was_replaced_at_another_node_does_not_renew() {
    let table = Table::new().await;
    let store = table.store();
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    table.sql("UPDATE $T SET host = 'another node' WHERE shard = ''");
    table.sql("UPDATE $T SET expires = UTC_TIMESTAMP(6) WHERE shard = 'db/main'");
    granted(table.store().claim(&two).await.unwrap());
    table.sql("UPDATE $T SET host = 'another node' WHERE shard = ''");
    assert!(matches!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
}
