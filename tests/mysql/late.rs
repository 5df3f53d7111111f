//! Writes that arrive after later ones: they do no harm.

use super::*;
use crate::support::proxy::{NetworkFault, Proxy};
use leaderrun::internals::lease::Term;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Release, Renewal};
use std::future::Future;

/// A store whose requests can be held up on their way.
struct Detour {
    proxy: Proxy,
    user: String,
    store: Mysql,
}

impl Detour {
    async fn to(table: &Table) -> Self {
        let proxy = Proxy::to(([127, 0, 0, 1], table.server.port()).into());
        let port = proxy.address.port();
        let user = table.candidate();
        let url = format!("mysql://{user}@127.0.0.1:{port}/{DATABASE}?table={}", table.name);
        let store = open(&url);
        store.observe(&shard()).await.expect("the way is free");
        Self { proxy, user, store }
    }

    /// Sends it, and gives up on it before it has arrived.
    async fn hold_up<T>(&self, request: impl Future<Output = T>) {
        self.proxy.set(NetworkFault::Partition);
        let cut_off = tokio::time::timeout(Duration::from_millis(200), request).await;
        assert!(cut_off.is_err(), "nothing answers through a black hole");
    }

    /// Lets it arrive. Returns once the server is through with it.
    async fn let_arrive(&self, table: &Table) {
        self.proxy.set(NetworkFault::Fair);
        eventually("the late connection was served", || table.sessions(&self.user) == 0).await;
    }
}

#[tokio::test]
async fn a_claim_that_arrives_after_our_release_takes_nothing() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store());
    let one = candidate("one");
    let term = lead(&store, &one).await;
    detour.hold_up(detour.store.claim(&one)).await;
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    detour.let_arrive(&table).await;
    assert_eq!(table.sql("SELECT released FROM $T WHERE shard = 'db/main'"), "1");
    lead(&store, &candidate("two")).await;
}

#[tokio::test]
async fn a_claim_that_arrives_after_a_later_one_changes_neither_term_nor_beat() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store());
    let one = candidate("one");
    lead(&store, &one).await;
    detour.hold_up(detour.store.claim(&one)).await;
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed));
    detour.let_arrive(&table).await;
    assert_eq!(table.sql("SELECT term, beat FROM $T WHERE shard = 'db/main'"), format!("{term}\t3"));
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_release_that_arrives_after_our_next_claim_frees_nothing() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store());
    let one = candidate("one");
    lead(&store, &one).await;
    detour.hold_up(detour.store.release(&one, Term(0))).await;
    let term = lead(&store, &one).await;
    detour.let_arrive(&table).await;
    assert_eq!(refused(store.claim(&candidate("two")).await.unwrap()).owner, "one");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_renewal_of_an_earlier_leadership_does_not_overtake_those_of_the_next() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store());
    let one = candidate("one");
    let earlier = lead(&store, &one).await;
    detour.hold_up(detour.store.renew(&one, earlier, 99)).await;
    let term = lead(&store, &one).await;
    detour.let_arrive(&table).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_renewal_that_arrives_after_a_release_or_a_takeover_changes_nothing() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store());
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    detour.hold_up(detour.store.renew(&one, term, 1)).await;
    store.release(&one, term).await.unwrap();
    detour.let_arrive(&table).await;
    assert_eq!(table.sql("SELECT released FROM $T WHERE shard = 'db/main'"), "1");
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(None)));

    let next = lead(&store, &two).await;
    assert!(matches!(store.renew(&one, term, 3).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
    assert_eq!(store.release(&one, Term(0)).await, Ok(Release::NotHeld));
    assert_eq!(store.renew(&two, next, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_renewal_that_was_overtaken_says_so_and_takes_nothing_back() {
    let table = Table::new().await;
    let store = table.store();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 5).await, Ok(Renewal::Renewed));
    let row = table.sql("SELECT beat, expires FROM $T WHERE shard = 'db/main'");
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Overtaken));
    assert_eq!(store.renew(&one, term, 5).await, Ok(Renewal::Overtaken));
    assert_eq!(table.sql("SELECT beat, expires FROM $T WHERE shard = 'db/main'"), row);
}

#[tokio::test]
async fn a_release_of_another_term_frees_nothing() {
    let table = Table::new().await;
    let store = table.store();
    let one = candidate("one");
    let earlier = lead(&store, &one).await;
    let term = lead(&store, &one).await;
    assert!(term > earlier);
    assert_eq!(store.release(&one, earlier).await, Ok(Release::NotHeld));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
}

/// As an attempt does that waited in the server for the row, when its connection broke, and the repeat was faster.
#[tokio::test]
async fn a_claim_that_is_applied_behind_its_own_repeat_changes_nothing() {
    let server = tokio::task::spawn_blocking(Server::start).await.unwrap();
    let store = open(&server.url_with(""));
    store.prepare().await.unwrap();
    server.age("leaderrun");
    let one = candidate("one");
    server.sql("SET GLOBAL log_output = 'TABLE', general_log = 1");
    lead(&store, &one).await;
    let term = lead(&store, &one).await;
    server.sql("SET GLOBAL general_log = 0");
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed));
    let logged = server.sql(
        "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log \
         WHERE argument LIKE '%SET term = %' ORDER BY event_time",
    );
    assert!(logged.lines().count() >= 2, "{logged}");
    let row = "SELECT term, beat FROM leaderrun WHERE shard = 'db/main'";
    for claim in logged.lines() {
        server.sql(claim);
        assert_eq!(server.sql(row), format!("{term}\t3"));
    }
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Renewed));
}
