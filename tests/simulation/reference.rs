//! The reference store behind the network, and news of it: what a store does that judges by itself and can push.

use crate::network::{Network, Refused};
use crate::watched::Watched;
use crate::world::World;
use leaderrun::internals::lease::{Candidate, Shard, Term};
use leaderrun::internals::store::memory::Memory;
use leaderrun::internals::store::{Administration, EachPage};
use leaderrun::internals::store::{
    Claim, Delivery, Finding, Grant, Leases, Note, Notes, Observation, Page, Release, Renewed, Report, Store,
    StoreError,
};
use leaderrun::internals::time::BootInstant;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pub struct Reference {
    memory: Memory,
    releases: Watched<u64>,
}

impl Default for Reference {
    fn default() -> Self {
        Self { memory: Memory::default(), releases: Watched::new(0) }
    }
}

/// The client of one host.
pub struct Link {
    pub host: usize,
    pub network: Network,
    pub reference: Arc<Reference>,
    pub world: World,
}

/// The reference answers without ever waiting.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the reference waits for something"),
    }
}

impl Link {
    async fn call<A: Send + 'static>(
        &self,
        writes: bool,
        serve: impl Fn(&Reference) -> Result<A, StoreError> + Send + Sync + 'static,
    ) -> Result<A, StoreError> {
        let (reference, network) = (Arc::clone(&self.reference), self.network.clone());
        let answer = self.network.call(self.host, writes, move || {
            if network.chance(10) {
                return Err(StoreError::not_applied("busy"));
            }
            serve(&reference)
        });
        match answer.await {
            Ok(answer) => answer,
            Err(Refused) => Err(StoreError::not_applied("connection refused")),
        }
    }
}

#[async_trait::async_trait]
impl Notes for Link {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        let (shard, page) = (shard.clone(), page.clone());
        self.call(false, move |reference| at_once(reference.memory.read(&shard, &page))).await
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let (shard, page) = (shard.clone(), page.clone());
        let (expected, draft) = (expected.map(str::to_owned), draft.cloned());
        self.call(true, move |reference| {
            at_once(reference.memory.replace(&shard, &page, expected.as_deref(), draft.as_ref()))
        })
        .await
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let prefix = prefix.to_owned();
        self.call(false, move |reference| at_once(reference.memory.standbys(&prefix))).await
    }
}

#[async_trait::async_trait]
impl Leases for Link {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let candidate = candidate.clone();
        let claim = self.call(true, move |reference| {
            let claim = at_once(reference.memory.claim(&candidate))?;
            // How long to wait, for an instant of the server's clock means nothing to others.
            let wait = match &claim {
                Claim::Granted(grant) => grant.start_after.map(|until| until.since(BootInstant::now())),
                Claim::Refused(_) => None,
            };
            Ok((claim, wait))
        });
        Ok(match claim.await? {
            (Claim::Granted(grant), Some(wait)) => {
                let start_after = Some(BootInstant::now().plus(wait + wait / 100));
                Claim::Granted(Grant { start_after, ..grant })
            }
            (claim, _) => claim,
        })
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let shard = shard.clone();
        self.call(false, move |reference| at_once(reference.memory.observe(&shard))).await
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let (candidate, shards) = (candidate.clone(), shards.to_vec());
        self.call(true, move |reference| at_once(reference.memory.renew_and_read(&candidate, term, sequence, &shards)))
            .await
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (candidate, world) = (candidate.clone(), self.world.clone());
        self.call(true, move |reference| {
            let release = at_once(reference.memory.release(&candidate, term));
            if release == Ok(Release::Released) {
                world.released(candidate.session.as_str());
                reference.releases.set(reference.releases.get() + 1);
            }
            release
        })
        .await
    }

    async fn changed(&self, _: &Shard) -> Result<(), StoreError> {
        let mut known = self.reference.releases.get();
        loop {
            known = self.reference.releases.wait_for(|count| count != known).await;
            if self.network.push(self.host).await {
                return Ok(());
            }
        }
    }
}

#[async_trait::async_trait]
impl Administration for Link {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.reference.memory.inspect(shard).await
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        self.reference.memory.list_in_pages(prefix, each).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let shard = shard.clone();
        self.call(true, move |reference| at_once(reference.memory.revoke(&shard, term))).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }
}

impl Store for Link {
    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
