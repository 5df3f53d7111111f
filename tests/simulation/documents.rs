//! Documents in memory behind the network: `leaderrun::internals::store::lease_store` as it is, over a server that
//! renews by itself and knows its lives, or over one that can only compare.

use crate::clock::{by_the_stores_clock, store_millis};
use crate::memory::{Contents, Direct, Memory, Name, Server, Step, Style, Way};
use crate::network::{Network, Refused};
use crate::world::World;
use futures_util::FutureExt;
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::lease_store::documents::Marking;
use leaderrun::internals::store::{Administration, Delivery, Store, StoreError};
use std::sync::{Arc, Mutex};

/// A server, and a copy of it that is behind.
pub struct Documents {
    server: Arc<Server>,
    style: Style,
    older: Mutex<Contents>,
}

impl Documents {
    pub fn new(style: Style) -> Arc<Self> {
        Arc::new(Self { server: Arc::new(Server::new(style, store_millis)), style, older: Mutex::default() })
    }

    /// Nothing lies between an operator on the server's host and the server.
    fn operate(&self, act: impl AsyncFnOnce(&LeaseStore)) {
        let store = LeaseStore::new(Memory::new(Arc::clone(&self.server), Direct));
        by_the_stores_clock(|| act(&store).now_or_never().expect("the memory waits for nothing"));
    }

    /// As an operator prepares it; `is_old`: it has remembered for long.
    pub fn prepare(&self, is_old: bool) {
        if is_old || self.style.marking == Marking::ByInit {
            self.operate(async |store| drop(store.prepare().await.expect("it answers")));
        }
        if is_old {
            self.operate(async |store| store.vouch().await.expect("it answers"));
        }
        self.copy();
    }

    /// The copy catches up.
    pub fn copy(&self) {
        *self.older.lock().expect("nobody panicked") = self.server.contents();
    }

    /// Everything is gone; sometimes the server has restarted with that.
    pub fn wipe(&self, restarts: bool) {
        if restarts {
            self.server.restart();
        }
        self.server.wipe();
        self.copy();
        self.prepare(false);
    }

    /// The copy that is behind takes over. False where the store cannot know that.
    pub fn fail_over(&self) -> bool {
        if self.style.marking == Marking::ByInit {
            return false;
        }
        self.server.restart();
        self.server.restore(self.older.lock().expect("nobody panicked").clone());
        true
    }

    /// Somebody deletes the shards' documents by hand.
    pub fn delete(&self) {
        let mut contents = self.server.contents();
        contents.retain(|name, _| !matches!(name, Name::Shard(_)));
        self.server.restore(contents);
    }

    pub fn delivery(&self) -> Delivery {
        self.style.delivery()
    }

    pub fn open(&self, host: usize, network: Network, world: World) -> Arc<dyn Store> {
        let link = Link { host, network, world, server: Arc::clone(&self.server) };
        Arc::new(LeaseStore::new(Memory::new(Arc::clone(&self.server), link)))
    }
}

/// The way of one host.
struct Link {
    host: usize,
    network: Network,
    world: World,
    server: Arc<Server>,
}

/// Who leads by the shards' documents, and whether that was ended by force.
fn led(server: &Server, name: &Name) -> (Option<Session>, bool) {
    let found = server.get(std::slice::from_ref(name)).remove(0);
    let text = found.ours().map(|ours| ours.text.clone()).unwrap_or_default();
    let text: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let revoked = !text["revoked"].is_null() && text["revoked"] == text["term"];
    (found.leadership().map(|leadership| leadership.session.clone()), revoked)
}

impl Way for Link {
    async fn carry<A: Send + 'static>(
        &self,
        step: Step,
        serve: impl Fn() -> A + Send + Sync + 'static,
    ) -> Result<A, StoreError> {
        let (network, world, server) = (self.network.clone(), self.world.clone(), Arc::clone(&self.server));
        let answer = self.network.call(self.host, move || {
            if network.chance(10) {
                return Err(StoreError::not_applied("busy"));
            }
            let Step::Put(name @ Name::Shard(_)) = &step else { return Ok(serve()) };
            let (before, _) = led(&server, name);
            let answer = serve();
            let (after, revoked) = led(&server, name);
            if let Some(session) = before.filter(|_| !revoked && after.is_none()) {
                world.released(session.as_str());
            }
            Ok(answer)
        });
        match answer.await {
            Ok(answer) => answer,
            Err(Refused) => Err(StoreError::not_applied("connection refused")),
        }
    }
}
