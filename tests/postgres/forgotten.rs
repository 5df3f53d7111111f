//! A table, or a server, that forgot who leads: nobody starts a tree beside one that may still run.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use crate::support::server::Server as _;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Release, Renewal};

const SLACK: Duration = Duration::from_millis(1);

#[tokio::test]
async fn the_first_leader_of_a_new_table_waits_until_it_is_a_lease_old() {
    let table = Table::young().await;
    let store = table.store().await;
    let left = wait_of(&granted(store.claim(&with_lease("one", Duration::from_hours(1))).await.unwrap()));
    assert!(left > Duration::from_mins(50) && left <= Duration::from_hours(1) + SLACK, "{left:?}");
    table.sql(
        "UPDATE $T SET since = clock_timestamp() - interval '10 s', \
         session = (txid_current() & 4294967295)::text WHERE shard = ''",
    );
    let another = Candidate { shard: "another".parse().unwrap(), ..with_lease("one", Duration::from_mins(1)) };
    let left = wait_of(&granted(store.claim(&another).await.unwrap()));
    assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(50) + SLACK, "{left:?}");
}

#[tokio::test]
async fn a_table_that_was_dropped_and_made_again_makes_the_next_leader_wait_and_terms_go_on_rising() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
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

#[tokio::test]
async fn a_truncated_table_makes_the_next_leader_wait() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
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

#[tokio::test]
async fn rows_that_came_out_of_a_dump_make_the_next_leader_wait() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
    let one = candidate("one");
    let term = lead(&first, &one).await;
    first.release(&one, term).await.unwrap();
    // The dump says that nobody leads; then somebody does, and the dump comes back.
    table.sql("CREATE TABLE $T_dump AS SELECT * FROM $T");
    lead(&first, &one).await;
    table.sql("TRUNCATE $T; INSERT INTO $T SELECT * FROM $T_dump");
    let grant = granted(second.claim(&candidate("two")).await.unwrap());
    assert!(wait_of(&grant) > Duration::from_secs(5), "{grant:?}");
    assert_remembers(&second).await;
}

/// From now on, that is.
async fn assert_remembers(store: &Postgres) {
    let said = store.prepare().await.unwrap().join("\n");
    assert!(said.contains("says since when it remembers"), "{said}");
}

#[tokio::test]
async fn a_vacuum_makes_nobody_wait() {
    let table = Table::new().await;
    let store = table.store().await;
    for vacuum in ["VACUUM (FREEZE) $T", "VACUUM (FULL, FREEZE) $T", "CLUSTER $T USING $T_pkey"] {
        table.sql(vacuum);
        let one = candidate("one");
        let term = lead(&store, &one).await;
        store.release(&one, term).await.unwrap();
    }
}

#[tokio::test]
async fn a_longer_lease_that_the_row_speaks_of_is_waited_for() {
    let table = Table::young().await;
    let store = table.store().await;
    let one = with_lease("one", Duration::from_hours(1));
    let grant = granted(store.claim(&one).await.unwrap());
    store.release(&one, grant.term).await.unwrap();
    let left = wait_of(&granted(store.claim(&candidate("two")).await.unwrap()));
    assert!(left > Duration::from_mins(50), "{left:?}");
}

#[tokio::test]
async fn a_marker_from_the_future_makes_nobody_wait_longer_than_a_lease() {
    let table = Table::new().await;
    table.sql(
        "UPDATE $T SET since = clock_timestamp() + interval '1 year', \
         session = (txid_current() & 4294967295)::text WHERE shard = ''",
    );
    let grant = granted(table.store().await.claim(&candidate("one")).await.unwrap());
    assert!(wait_of(&grant) > LEASE / 2 && wait_of(&grant) <= LEASE + SLACK, "{grant:?}");
}

#[tokio::test]
async fn a_held_lease_cannot_be_deleted_by_hand_and_what_is_over_can() {
    let table = Table::new().await;
    let (first, second) = (table.store().await, table.store().await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&first, &one).await;
    table.sql("DELETE FROM $T");
    table.sql("DELETE FROM $T WHERE shard = 'db/main'");
    assert_eq!(refused(second.claim(&two).await.unwrap()).owner, "one");
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    first.release(&one, term).await.unwrap();
    table.sql("DELETE FROM $T");
    // What is left is the memory of the table, so nobody waits.
    assert_eq!(table.sql("SELECT count(*) FROM $T"), "1");
    assert!(lead(&second, &two).await > term);
}

#[tokio::test]
async fn a_lease_that_expired_a_moment_ago_cannot_be_deleted_either() {
    let table = Table::new().await;
    let store = table.store().await;
    lead(&store, &with_lease("one", Duration::from_millis(1))).await;
    eventually("it is over", async || table.sql("SELECT expires < clock_timestamp() FROM $T WHERE shard <> ''") == "t")
        .await;
    table.sql("DELETE FROM $T");
    assert_eq!(table.sql("SELECT count(*) FROM $T"), "2");
}

/// A copy of a server's data, as a backup or a replica has it, started as a replica.
fn replica_of(original: &mut Server) -> Server {
    original.kill();
    let data = original.directory().join("data");
    let replica = Server::prepared_with(&["hot_standby=on"], |copy| {
        std::fs::remove_dir_all(copy).unwrap();
        let status = std::process::Command::new("cp").arg("-a").arg(&data).arg(copy).status();
        assert!(status.unwrap().success());
        std::fs::write(copy.join("standby.signal"), "").unwrap();
        let _ = std::fs::remove_file(copy.join("postmaster.pid"));
    });
    original.start_again();
    replica
}

#[tokio::test]
async fn after_a_failover_that_forgot_a_lease_the_next_leader_waits() {
    let mut primary = Server::start();
    let (first, url) = (open(&primary.url(primary.address())).await, primary.url(primary.address()));
    first.prepare().await.unwrap();
    primary.grow_old();
    let one = candidate("one");
    let term = lead(&first, &one).await;
    first.release(&one, term).await.unwrap();
    let replica = replica_of(&mut primary);
    // A leadership that the replica never hears of.
    let second = open(&url).await;
    let two = candidate("two");
    let lost = lead(&second, &two).await;
    primary.kill();
    replica.sql("SELECT pg_promote()");
    eventually("it was promoted", async || replica.sql("SELECT pg_is_in_recovery()") == "f").await;

    let third = open(&replica.url(replica.address())).await;
    let grant = granted(third.claim(&candidate("three")).await.unwrap());
    assert!(wait_of(&grant) > Duration::from_secs(5));
    assert!(grant.term > lost);
    let second = open(&replica.url(replica.address())).await;
    assert!(
        matches!(second.renew(&two, lost, 1).await.unwrap(), Renewal::Lost(Some(holder)) if holder.owner == "three")
    );
}

#[tokio::test]
async fn a_failover_is_noted_on_any_connect_and_not_only_by_the_next_claim() {
    let mut primary = Server::start();
    let url = primary.url(primary.address());
    let store = open(&url).await;
    store.prepare().await.unwrap();
    primary.grow_old();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let replica = replica_of(&mut primary);
    let ports = (replica.port(), primary.port());
    let reversed = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", ports.0, ports.1);
    assert_eq!(open(&reversed).await.renew(&one, term, 1).await, Ok(Renewal::Renewed), "a replica is passed over");
    primary.kill();
    replica.sql("SELECT pg_promote()");
    eventually("it was promoted", async || replica.sql("SELECT pg_is_in_recovery()") == "f").await;
    let both = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", primary.port(), replica.port());
    drop(store);
    // The leader goes on at the replica, which never forgot it.
    primary.start_again();
    let store = open(&both).await;
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    primary.kill();
    eventually_renewed(&store, &one, term).await;
    let memory = "SELECT since > clock_timestamp() - interval '10 min' FROM leaderrun WHERE shard = ''";
    assert_eq!(replica.sql(memory), "t");
}

async fn eventually_renewed(store: &Postgres, candidate: &Candidate, term: Term) {
    for sequence in 3..10 {
        if store.renew(candidate, term, sequence).await == Ok(Renewal::Renewed) {
            return;
        }
    }
    panic!("it never was renewed");
}

#[tokio::test]
async fn a_restart_makes_nobody_wait_and_forgets_nothing() {
    let mut server = Server::start();
    let store = open(&server.url(server.address())).await;
    store.prepare().await.unwrap();
    server.grow_old();
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    server.restart();
    assert_eq!(refused(store.claim(&two).await.unwrap()).owner, "one");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    store.release(&one, term).await.unwrap();
    server.restart();
    assert_eq!(store.observe(&shard()).await, Ok(Observation::Free));
    assert!(lead(&store, &two).await > term);
}
