//! Writes that arrive after later ones: they do no harm.

use super::*;
use crate::support::late::hold_up;
use crate::support::proxy::{NetworkFault, Proxy};
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Release, Renewal};

const LATE: &str = "late";

/// A store whose requests can be held up on their way.
struct Detour {
    proxy: Proxy,
    store: Postgres,
}

impl Detour {
    async fn to(table: &Table) -> Self {
        let proxy = Proxy::to(([127, 0, 0, 1], table.server.port()).into());
        let port = proxy.address.port();
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?table={}&application_name={LATE}", table.name);
        let url = url.replace(LATE, &format!("{LATE}_{}", table.name));
        let store = open(&url).await;
        store.observe(&shard()).await.expect("the way is free");
        Self { proxy, store }
    }

    /// Lets it arrive. Returns once the server is through with it.
    async fn let_arrive(&self, table: &Table) {
        self.proxy.set(NetworkFault::Fair);
        eventually("the late connection was served", async || {
            table.connections(&format!("{LATE}_{}", table.name)) == 0
        })
        .await;
    }
}

late_writes!(table => table.store().await, "t", "|");
