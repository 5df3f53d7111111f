//! Writes that arrive after later ones: they do no harm.

use super::*;
use crate::support::late::hold_up;
use crate::support::proxy::{NetworkFault, Proxy};
use leaderrun::internals::lease::Term;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Release, Renewal};

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

    /// Lets it arrive. Returns once the server is through with it.
    async fn let_arrive(&self, table: &Table) {
        self.proxy.set(NetworkFault::Fair);
        eventually("the late connection was served", async || table.sessions(&self.user) == 0).await;
    }
}

late_writes!(table => table.store(), "1", "\t");

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
