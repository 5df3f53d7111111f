//! The store `kubernetes:`: one Lease of `coordination.k8s.io/v1` for each document in a namespace, changed only over the
//! `resourceVersion` that was seen.
//!
//! The hazard: the API server compares and writes one object, and looks at no clock while it does so. So a renewal is a
//! write too; ends are written from the upper bound of the server's clock (`server_clock`) and judged by the lower. Several
//! API servers are several clocks.
//!
//! - A write names `resourceVersion` and `uid`: by the first alone, the Lease would be made again that somebody deleted.
//! - Other electors may use a shard's Lease, and anybody may delete it. So its led mark says what would be lost with it, and
//!   a Lease that another elector holds has ended once it stood unchanged for its duration on our own clock.
//! - A namespace that was made again, or restored from a copy, has a marker with another `uid`. That is the incarnation.
//! - A cluster has other work to do. So standbys do not announce themselves unasked, and a standby that is pushed what
//!   changes asks nothing.
//!
//! What the store cannot prevent: an etcd of the cluster that is restored from a copy has forgotten leaderships, and only
//! those who were there know it. And an elector that goes by a shorter duration than the Lease says may lead while our
//! tree is being stopped.

mod address;
mod check;
mod connection;
mod document;
mod failure;
mod watch;

pub use address::Address;

use super::expiry::ServerTime;
use super::lease_store::LeaseStore;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, EachSeen, Found, Key, Life, List, Listed, Over, Part, Put, Version,
};
use super::record::Record;
use super::server_clock::Clock;
use super::{ErrorKind, Finding, Holder, StoreError, parallel};
use crate::lease::Shard;
use crate::time::{BootInstant, wall_clock_millis};
use connection::{Api, Written};
use document::{Lease, name_of};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// More documents than these are read by one list.
const FEW: usize = 16;
/// For how long what was pushed last is taken for what stands, by a look.
const FRESH: Duration = Duration::from_secs(10);
const LEAST_PAUSE: Duration = Duration::from_millis(200);
const MOST_PAUSE: Duration = Duration::from_secs(3);

pub type Kubernetes = LeaseStore<Objects>;

/// The documents.
pub struct Objects {
    api: Api,
    address: Address,
    /// The uid of the marker; empty if it was not seen yet.
    incarnation: Mutex<String>,
    /// What was pushed last of each Lease that is watched.
    pushed: Mutex<HashMap<String, Pushed>>,
    /// Notifies that a look found something else than was pushed.
    is_behind: Notify,
}

struct Pushed {
    at: BootInstant,
    found: Found,
}

impl Kubernetes {
    /// Opens the store. Sends no request to the server yet.
    #[must_use]
    pub fn open(address: &Address, request_timeout: Duration) -> Self {
        Self::new(Objects {
            api: Api::open(address, request_timeout),
            address: address.clone(),
            incarnation: Mutex::default(),
            pushed: Mutex::default(),
            is_behind: Notify::new(),
        })
    }
}

impl Objects {
    /// The Lease that other programs use as well.
    fn lease(&self) -> Option<&str> {
        self.address.lease.as_deref()
    }

    fn found(&self, key: Key<'_>, lease: Option<Lease>) -> Result<Found, StoreError> {
        if matches!(key, Key::Marker) {
            *self.incarnation.lock() = lease.as_ref().map(|lease| lease.metadata.uid.clone()).unwrap_or_default();
        }
        let incarnation = self.incarnation.lock().clone();
        let Some(lease) = lease else {
            return Ok(Found { content: Content::Absent, version: Version { write: String::new(), incarnation } });
        };
        lease.found(matches!(key, Key::Shard(_)), incarnation).map_err(|why| {
            let name = Documents::name(self, key);
            StoreError::misconfigured(format!(
                "{name} was written by something else ({why}): delete it, or use another namespace"
            ))
        })
    }

    /// What was pushed of all these a short time ago.
    fn pushed_lately(&self, names: &[String]) -> Option<Vec<Found>> {
        let pushed = self.pushed.lock();
        let is_fresh = |pushed: &&Pushed| BootInstant::now().since(pushed.at) < FRESH;
        names.iter().map(|name| pushed.get(name).filter(is_fresh).map(|pushed| pushed.found.clone())).collect()
    }

    /// Has the watch begin again if it did not push what a look has found.
    fn compare(&self, name: &str, found: &Found) {
        let pushed = self.pushed.lock();
        if pushed.get(name).is_some_and(|pushed| pushed.found.version.write != found.version.write) {
            self.is_behind.notify_one();
        }
    }

    /// The Leases of shards that were led, whose label another program has removed.
    async fn taken(&self, listed: &[Listed]) -> Result<Vec<Listed>, StoreError> {
        let has_lease = |shard: &Shard| listed.iter().any(|of| of.part == Part::Lease && of.shard == *shard);
        let led = listed.iter().filter(|of| of.part == Part::Led && !has_lease(&of.shard) && self.lease().is_none());
        let mut taken = Vec::new();
        for Listed { shard, .. } in led {
            let lease = self.api.get(&name_of(Key::Shard(shard), None)).await?;
            let part = Part::Lease;
            taken.extend(lease.map(|lease| Listed { shard: shard.clone(), found: self::listed(lease, &part), part }));
        }
        Ok(taken)
    }

    async fn read(&self, names: &[String]) -> Result<Vec<Option<Lease>>, StoreError> {
        if names.len() <= FEW {
            return parallel::all(names.iter().map(|name| self.api.get(name))).await.into_iter().collect();
        }
        let listed = self.api.list("marker,shard,led,note,standby").await?;
        let mut listed: HashMap<String, Lease> =
            listed.into_iter().map(|lease| (lease.metadata.name.clone(), lease)).collect();
        Ok(names.iter().map(|name| listed.remove(name)).collect())
    }
}

/// The document of a Lease in a list. One that cannot be read is a stranger's.
fn listed(lease: Lease, part: &Part) -> Found {
    lease.found(*part == Part::Lease, String::new()).unwrap_or_else(|_| Found {
        content: Content::Foreign { holder: Holder::stranger(), sign: String::new(), life: Life::ForEver },
        version: Version::default(),
    })
}

impl ServerTime for Objects {
    fn clock(&self) -> Clock {
        self.api.clock()
    }

    fn wall_clock_millis(&self) -> u64 {
        wall_clock_millis()
    }
}

#[async_trait::async_trait]
impl Documents for Objects {
    fn place(&self) -> String {
        self.api.place()
    }

    fn name(&self, key: Key<'_>) -> String {
        format!("the Lease {} in {}", name_of(key, self.lease()), self.api.place())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn tells_time(&self) -> bool {
        false
    }

    fn compares_only(&self) -> bool {
        true
    }

    fn is_metered(&self) -> bool {
        true
    }

    async fn get(&self, keys: &[Key<'_>], may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let names: Vec<String> = keys.iter().map(|key| name_of(*key, self.lease())).collect();
        if let Some(found) = self.pushed_lately(&names).filter(|_| may_be_behind) {
            return Ok(found);
        }
        let mut leases = self.read(&names).await?;
        // It says of which incarnation the others are.
        if let Some(marker) = keys.iter().position(|key| matches!(key, Key::Marker)) {
            self.found(Key::Marker, leases[marker].clone())?;
        }
        let found = keys.iter().zip(leases.drain(..)).map(|(key, lease)| self.found(*key, lease));
        let found = found.collect::<Result<Vec<Found>, StoreError>>()?;
        for (name, found) in names.iter().zip(&found) {
            self.compare(name, found);
        }
        Ok(found)
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Put, StoreError> {
        let (Over::Exactly(over) | Over::Text(over)) = over;
        let record = Record::new(&draft, over, self)?;
        let name = name_of(key, self.lease());
        let now_millis = self.server_millis(BootInstant::now());
        let lease = Lease::of(over).draft(key, name.clone(), &draft, &record, now_millis);
        let written = match self.api.write(&lease).await? {
            Written::Done(written) => *written,
            Written::Refused { sent_twice: false } => return Ok(Put::Refused),
            Written::Refused { sent_twice: true } => match self.api.get(&name).await? {
                Some(stands) if stands.is_of(&record.write) => stands,
                Some(_) | None => return Ok(Put::Refused),
            },
        };
        Ok(Put::Done(Some(self.found(key, Some(written))?)))
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.api.delete(&name_of(key, self.lease())).await
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let (kinds, prefix, of) = match list {
            List::Shards(prefix) => ("shard,led", prefix, None),
            List::Standbys(prefix) => ("standby", prefix, None),
            List::Notes(shard) => ("note,standby", "", Some(shard)),
        };
        let leases = self.api.list(kinds).await?;
        let ours = leases.into_iter().filter_map(|lease| {
            let (shard, part) = lease.listed()?;
            if !shard.as_str().starts_with(prefix) || of.is_some_and(|of| *of != shard) {
                return None;
            }
            let found = listed(lease, &part);
            Some(Listed { shard, part, found })
        });
        let mut listed: Vec<Listed> = ours.collect();
        let taken = self.taken(&listed).await?;
        listed.extend(taken);
        listed.sort_by(|one, other| one.shard.cmp(&other.shard));
        each(listed);
        Ok(())
    }

    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let mut pause = LEAST_PAUSE;
        loop {
            let mut has_worked = false;
            match self.follow(keys, each, &mut has_worked).await {
                Ok(ControlFlow::Break(())) => return Ok(()),
                Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
                    sleep(MOST_PAUSE).await;
                    return Err(error);
                }
                Ok(ControlFlow::Continue(())) | Err(_) => {}
            }
            pause = if has_worked { LEAST_PAUSE } else { (pause * 2).min(MOST_PAUSE) };
            sleep(pause).await;
        }
    }

    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        check::identify(self).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        check::findings(self).await
    }
}
