//! How standbys hear of a release.

use super::*;
use leaderrun::internals::lease::Candidate;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::Store as _;
use leaderrun::internals::store::{Delivery, Observation, Renewal};
use std::time::Instant;
use tokio::time::timeout;

/// A standby that waits does not look by itself for a minute, so it may take that long on a slow machine.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Long enough for what would happen without a cause.
const A_WHILE: Duration = Duration::from_millis(500);

/// Has a long lease, so that no standby looks at its end.
fn leader() -> Candidate {
    with_lease("one", Duration::from_mins(10))
}

impl Table {
    /// How many sessions wait for a leader lock.
    fn waiting(&self) -> usize {
        let count = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%GET_LOCK(%' AND id <> \
                     CONNECTION_ID()";
        self.server.sql(count).parse().expect("a number")
    }
}

/// Of a server of its own, so that it can count.
async fn alone() -> Table {
    let server: &'static Server = tokio::task::spawn_blocking(|| Box::leak(Box::new(Server::start()))).await.unwrap();
    let table = Table { server, name: "alone".to_owned() };
    table.store().prepare().await.expect("it can be made");
    server.age(&table.name);
    table
}

#[tokio::test]
async fn a_release_reaches_a_standby_at_once_and_not_that_of_another_shard() {
    let table = Table::new().await;
    let (store, standby) = (table.store(), table.store());
    assert_eq!(standby.delivery(), Delivery::Push);
    let one = leader();
    let other = Candidate { shard: "db/other".parse().unwrap(), ..one.clone() };
    let term = lead(&store, &one).await;
    let other_term = lead(&store, &other).await;
    let shard = shard();
    let mut news = standby.changed(&shard);
    assert!(timeout(A_WHILE, &mut news).await.is_err(), "nothing happened yet");
    store.release(&other, other_term).await.unwrap();
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert!(timeout(A_WHILE, &mut news).await.is_err(), "nothing happened to this shard");
    store.release(&one, term).await.unwrap();
    let begun = Instant::now();
    timeout(AT_ONCE, news).await.expect("the standby hears of it").unwrap();
    println!("heard after {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_release_before_anybody_waited_is_not_missed() {
    let table = Table::new().await;
    let (store, standby) = (table.store(), table.store());
    let one = leader();
    let term = lead(&store, &one).await;
    refused(standby.claim(&candidate("two")).await.unwrap());
    store.release(&one, term).await.unwrap();
    timeout(AT_ONCE, standby.changed(&shard())).await.expect("it looks").unwrap();
}

#[tokio::test]
async fn a_standby_asks_once_a_minute_while_it_waits() {
    let table = alone().await;
    let (store, standby) = (table.store(), table.store());
    let one = leader();
    let term = lead(&store, &one).await;
    let shard = shard();
    let mut news = standby.changed(&shard);
    assert!(timeout(A_WHILE, &mut news).await.is_err());
    assert_eq!(table.waiting(), 1);
    let count = || table.server.requests();
    let counting = {
        let before = count();
        count() - before
    };
    let before = count();
    for sequence in 1..10 {
        assert!(timeout(A_WHILE, &mut news).await.is_err(), "a renewal is no news");
        assert_eq!(
            store.renew_and_read(&one, term, sequence, std::slice::from_ref(&shard)).await.unwrap().renewal,
            Renewal::Renewed
        );
    }
    assert_eq!(count() - before - counting, 9, "the renewals");
    drop(news);
    eventually("a wait that was given up ends", || table.waiting() == 0).await;
}

#[tokio::test]
async fn a_leader_takes_no_more_connections_and_a_standby_two() {
    let table = Table::new().await;
    let (leaders, standbys) = (table.candidate(), "standbys".to_owned());
    table.sql(&format!("CREATE USER {standbys}"));
    table.sql(&format!("GRANT SELECT, INSERT, UPDATE ON $T TO {standbys}"));
    let (store, standby) = (open(&table.url_as(&leaders)), open(&table.url_as(&standbys)));
    let one = leader();
    let term = lead(&store, &one).await;
    let shard = shard();
    let mut news = standby.changed(&shard);
    for sequence in 1..4 {
        assert!(timeout(A_WHILE / 4, &mut news).await.is_err());
        assert!(matches!(standby.observe(&shard).await, Ok(Observation::Held(_))));
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    assert_eq!(
        (table.sessions(&leaders), table.sessions(&standbys)),
        (1, 2),
        "connections of the leader and a standby"
    );
}

/// As a leader of an earlier version does, or one whose session was lost.
#[tokio::test]
async fn a_lease_without_its_leader_lock_is_polled() {
    let table = alone().await;
    let (store, standby) = (table.store(), table.store());
    let one = leader();
    let term = lead(&store, &one).await;
    let sessions = "SELECT GROUP_CONCAT(CONCAT('KILL ', id) SEPARATOR '; ') FROM information_schema.processlist \
                    WHERE db IS NOT NULL AND id <> CONNECTION_ID()";
    let kills = table.server.sql(sessions);
    table.server.sql(&kills);
    let shard = shard();
    let mut news = standby.changed(&shard);
    let before = table.server.requests();
    assert!(timeout(A_WHILE * 6, &mut news).await.is_err(), "it is held");
    let looks = table.server.requests() - before;
    assert!((4..=12).contains(&looks), "{looks} looks");
    // A leader that lives on takes it again.
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let waiting = async {
        while table.waiting() == 0 {
            assert!(timeout(A_WHILE / 10, &mut news).await.is_err(), "it is held");
        }
    };
    timeout(AT_ONCE, waiting).await.expect("it waits for the lock");
    store.release(&one, term).await.unwrap();
    timeout(AT_ONCE, news).await.expect("the standby hears of it").unwrap();
}

#[tokio::test]
async fn a_leader_that_lost_its_lease_keeps_no_leader_lock() {
    let table = Table::new().await;
    let (store, operator) = (table.store(), table.store());
    let one = with_lease("one", Duration::from_secs(3));
    let term = lead(&store, &one).await;
    operator.revoke(&one.shard, term).await.unwrap();
    assert!(matches!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(_))));
    let shard = shard();
    // It is a standby now, as another one is, and waits in the session that had the lock.
    let (own, other) =
        tokio::join!(timeout(AT_ONCE, store.changed(&shard)), timeout(AT_ONCE, operator.changed(&shard)));
    own.expect("the lease ends").unwrap();
    other.expect("the lease ends").unwrap();
}

#[tokio::test]
async fn a_server_that_ends_waits_or_allows_none_is_polled() {
    let table = Table::new().await;
    let (store, standby) = (table.store(), table.store());
    let one = leader();
    let term = lead(&store, &one).await;
    let shard = shard();
    let waiting = tokio::spawn(async move { standby.changed(&shard).await });
    let mut killed = 0;
    while killed < 3 {
        let waits = "SELECT id FROM information_schema.processlist WHERE info LIKE '%GET_LOCK(%' AND id <> \
                     CONNECTION_ID() LIMIT 1";
        let id = table.server.sql(waits);
        if !id.is_empty() && table.server.ask(&format!("KILL {id}")).is_ok() {
            killed += 1;
        }
        assert!(!waiting.is_finished(), "it is held");
        tokio::time::sleep(A_WHILE / 10).await;
    }
    store.release(&one, term).await.unwrap();
    timeout(AT_ONCE, waiting).await.expect("the standby hears of it").unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_is_gone_is_reported() {
    let mut server = tokio::task::spawn_blocking(Server::start).await.unwrap();
    let (store, standby) = (open(&server.url_with("")), open(&server.url_with("")));
    store.prepare().await.unwrap();
    support::server::Server::grow_old(&mut server);
    lead(&store, &leader()).await;
    let shard = shard();
    let mut news = standby.changed(&shard);
    assert!(timeout(A_WHILE, &mut news).await.is_err());
    support::server::Server::kill(&mut server);
    assert!(timeout(AT_ONCE, news).await.expect("it says so").is_err());
}
