//! Writes that arrive after later ones: they do no harm.

use super::*;
use crate::support::proxy::{NetworkFault, Proxy};
use leaderrun::internals::lease::{Candidate, Term};
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Release, Renewal};

const ROW: &str = "SELECT version, session, term, sequence, ends FROM $T WHERE part = 'lease'";

/// A store whose requests can be held up on their way, and its table.
struct Detour {
    table: Table,
    proxy: Proxy,
    user: String,
    store: Mysql,
}

impl Detour {
    async fn new() -> Self {
        let table = Table::new().await;
        let proxy = Proxy::to(([127, 0, 0, 1], table.server.port()).into());
        let user = table.candidate();
        let url = format!("mysql://{user}@{}/{DATABASE}?table={}", proxy.address, table.name);
        Self { store: open(&url), table, proxy, user }
    }

    /// Leads by way of it.
    async fn lead(&self, one: &Candidate) -> Term {
        lead(&self.store, one).await
    }

    /// Sends it, and gives up on it before it has arrived.
    async fn hold_up<T>(&self, request: impl Future<Output = T>) {
        self.proxy.set(NetworkFault::Partition);
        let cut_off = tokio::time::timeout(Duration::from_millis(200), request).await;
        assert!(cut_off.is_err(), "nothing answers through a black hole");
    }

    /// Lets it arrive, which changes nothing.
    async fn arrives_in_vain(&self) {
        let row = self.table.sql(ROW);
        self.proxy.set(NetworkFault::Fair);
        eventually("the late connection was served", async || self.table.sessions(&self.user) == 0).await;
        assert_eq!(self.table.sql(ROW), row);
    }
}

#[tokio::test]
async fn a_claim_that_arrives_after_another_leadership_takes_nothing() {
    let (way, one, two) = (Detour::new().await, candidate("one"), candidate("two"));
    let term = way.lead(&one).await;
    assert_eq!(way.store.release(&one, term).await, Ok(Release::Released));
    way.hold_up(way.store.claim(&one)).await;
    let store = way.table.store();
    let next = lead(&store, &two).await;
    assert_eq!(store.release(&two, next).await, Ok(Release::Released));
    way.arrives_in_vain().await;
    lead(&store, &two).await;
}

#[tokio::test]
async fn a_renewal_that_arrives_after_a_release_prolongs_nothing() {
    let (way, one) = (Detour::new().await, candidate("one"));
    let term = way.lead(&one).await;
    way.hold_up(way.store.renew(&one, term, 1)).await;
    let store = way.table.store();
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    way.arrives_in_vain().await;
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(None)));
}

#[tokio::test]
async fn a_release_that_arrives_after_the_next_claim_frees_nothing() {
    let (way, one) = (Detour::new().await, candidate("one"));
    let term = way.lead(&one).await;
    way.hold_up(way.store.release(&one, term)).await;
    let store = way.table.store();
    let next = lead(&store, &one).await;
    way.arrives_in_vain().await;
    assert_eq!(store.renew(&one, next, 1).await, Ok(Renewal::Renewed));
}
