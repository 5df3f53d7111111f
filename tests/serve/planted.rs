//! A store with leases and histories as many hosts would have left them, written by the library itself.

use leaderrun::internals::election::Ended;
use leaderrun::internals::lease::{Candidate, Session, Shard, Term};
use leaderrun::internals::notes::history::Entry;
use leaderrun::internals::notes::orders::{self, Orders};
use leaderrun::internals::store::{Claim, Location, Note, Page, Store};
use std::sync::Arc;
use std::time::Duration;

pub const HOUR: u64 = 3_600_000;

pub struct Planted {
    pub store: Arc<dyn Store>,
    runtime: tokio::runtime::Runtime,
}

impl Planted {
    pub fn open(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let location = Location::from_url(url).unwrap();
        let store = runtime.block_on(location.open(Duration::from_secs(20))).unwrap();
        runtime.block_on(store.vouch()).unwrap();
        Self { store, runtime }
    }

    fn candidate(shard: &str, host: &str, owner: &str) -> Candidate {
        Candidate {
            shard: shard.parse().unwrap(),
            owner: owner.to_owned(),
            session: Session::random().unwrap(),
            host: host.to_owned(),
            pid: 4711,
            lease: Duration::from_hours(1),
        }
    }

    /// Leads, and does not give the lease back.
    pub fn lead(&self, shard: &str, host: &str, owner: &str) -> Term {
        let candidate = Self::candidate(shard, host, owner);
        match self.runtime.block_on(self.store.claim(&candidate)).unwrap() {
            Claim::Granted(grant) => grant.term,
            Claim::Refused(holder) => panic!("{holder} leads {shard}"),
        }
    }

    /// Led, and gave the lease back.
    pub fn led(&self, shard: &str, host: &str) -> Term {
        let candidate = Self::candidate(shard, host, host);
        let claim = self.runtime.block_on(self.store.claim(&candidate)).unwrap();
        let Claim::Granted(grant) = claim else { panic!("{claim:?}") };
        self.runtime.block_on(self.store.release(&candidate, grant.term)).unwrap();
        grant.term
    }

    pub fn pause(&self, shard: &str, reason: &str) {
        let shard: Shard = shard.parse().unwrap();
        let pause = orders::pause(Some(reason.to_owned()), false, None).unwrap();
        let order = orders::change(&*self.store, &shard, |orders: &mut Orders| {
            orders.pause = Some(pause.clone());
            true
        });
        self.runtime.block_on(order).unwrap();
    }

    pub fn history(&self, shard: &str, entries: &[Entry]) {
        let note = Note::for_ever(serde_json::to_string(entries).unwrap());
        let shard: Shard = shard.parse().unwrap();
        let written = self.store.replace(&shard, &Page::History, None, Some(&note));
        assert!(self.runtime.block_on(written).unwrap());
    }
}

/// A leadership; `end` is when and how it ended.
pub fn entry(term: u64, host: &str, from: u64, end: Option<(u64, &Ended)>) -> Entry {
    let mut entry = Entry::begun(Term(term), format!("{host}-4711-a1b2c3"), host.to_owned(), 4711, from);
    if let Some((to, how)) = end {
        entry.close(to, how, None);
    }
    entry
}
