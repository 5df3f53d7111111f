//! The store `kubernetes:`: one Lease of `coordination.k8s.io/v1` for each document in a namespace, changed only over
//! the `resourceVersion` that was seen.
//!
//! The hazard: the API server compares and writes one object, and looks at no clock. So a renewal is a write too; ends
//! are written from the upper bound of the server's clock (`server_clock`) and judged by the lower. Several API servers
//! are several clocks.
//!
//! - A write names `resourceVersion` and `uid`: with the first alone, it would create a Lease again that was deleted.
//! - Other electors may use a shard's Lease, and anybody may delete it. So its led mark repeats what would be lost, and
//!   another elector's Lease has ended once it stood unchanged for its duration on our own clock.
//! - A namespace that was made again, or restored from a copy, has a marker with another `uid`, the incarnation.
//! - The API server has other work to do. So standbys announce themselves only on request, and a standby to which it
//!   pushes changes requests nothing.
//!
//! What the store cannot prevent: if the cluster's etcd is restored from a copy, only a candidate that saw later
//! leaderships can know that they are forgotten. And an elector that uses a shorter duration than the Lease says may
//! lead while our tree is being stopped.

mod address;
mod check;
mod connection;
mod document;
mod failure;

pub use address::Address;
pub use connection::Objects;

use super::expiry::ServerTime;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, EachSeen, Found, Key, List, Listed, Over, Part, Properties, Version,
};
use super::record::Record;
use super::server_clock::Clock;
use super::{Finding, StoreError, parallel};
use crate::lease::Shard;
use crate::time::BootInstant;
use futures_util::stream::{StreamExt, select_all};
use k8s_openapi::api::coordination::v1::Lease;
use std::collections::HashMap;

/// More documents than this are read by one list request.
const FEW: usize = 16;

impl Objects {
    fn name_of(&self, key: Key<'_>) -> String {
        document::name_of(key, self.address.lease.as_deref())
    }

    fn found(&self, key: Key<'_>, lease: Option<Lease>) -> Found {
        let mut incarnation = self.incarnation.lock();
        if key == Key::Marker {
            *incarnation = lease.as_ref().and_then(|lease| lease.metadata.uid.clone()).unwrap_or_default();
        }
        let incarnation = incarnation.clone();
        match lease {
            Some(lease) => document::found(lease, matches!(key, Key::Shard(_)), incarnation),
            None => Found { content: Content::Absent, version: Version { write: String::new(), incarnation } },
        }
    }

    /// The Leases of shards that were led, whose label another program has removed.
    async fn taken(&self, listed: &[Listed]) -> Result<Vec<Listed>, StoreError> {
        let has_lease = |shard: &Shard| listed.iter().any(|of| of.part == Part::Lease && of.shard == *shard);
        let is_led = |of: &&Listed| of.part == Part::Led && !has_lease(&of.shard) && self.address.lease.is_none();
        let mut taken = Vec::new();
        for Listed { shard, .. } in listed.iter().filter(is_led) {
            let lease = self.get_lease(&self.name_of(Key::Shard(shard))).await?;
            let found = lease.map(|lease| document::found(lease, true, String::new()));
            taken.extend(found.map(|found| Listed { shard: shard.clone(), part: Part::Lease, found }));
        }
        Ok(taken)
    }

    async fn read(&self, keys: &[Key<'_>]) -> Result<Vec<Option<Lease>>, StoreError> {
        let names: Vec<String> = keys.iter().map(|key| self.name_of(*key)).collect();
        if names.len() <= FEW {
            return parallel::try_all(names.iter().map(|name| self.get_lease(name))).await;
        }
        let listed = self.leases("marker,shard,led,note,standby").await?.into_iter();
        let mut listed: HashMap<_, _> = listed.map(|lease| (lease.metadata.name.clone(), lease)).collect();
        Ok(names.into_iter().map(|name| listed.remove(&Some(name))).collect())
    }
}

impl ServerTime for Objects {
    fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }
}

#[async_trait::async_trait]
impl Documents for Objects {
    fn place(&self) -> String {
        self.namespace()
    }

    fn name(&self, key: Key<'_>) -> String {
        format!("the Lease {} in {}", self.name_of(key), self.namespace())
    }

    fn remedy(&self, _: Key<'_>) -> String {
        "delete it, or use another namespace".to_owned()
    }

    fn properties(&self) -> Properties {
        let (is_shared, tells_time, compares_only) = (true, false, true);
        let (pushes_documents, is_metered) = (true, true);
        Properties { is_shared, tells_time, compares_only, pushes_documents, is_metered, ..Properties::default() }
    }

    async fn get(&self, keys: &[Key<'_>], _may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let leases = self.read(keys).await?;
        // The marker first: its incarnation is that of the others.
        if let Some(marker) = keys.iter().position(|key| matches!(key, Key::Marker)) {
            self.found(Key::Marker, leases[marker].clone());
        }
        Ok(keys.iter().zip(leases).map(|(key, lease)| self.found(*key, lease)).collect())
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError> {
        let (Over::Exactly(over) | Over::Text(over)) = over;
        let record = Record::new(&draft, over, self)?;
        let now_millis = self.server_millis(BootInstant::now());
        let lease = document::drafted(key, self.name_of(key), &draft, &record, over, now_millis);
        let written = self.write(&lease, &record.write).await?;
        Ok(written.map(|written| self.found(key, Some(written))))
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.delete(&self.name_of(key)).await
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let (kinds, prefix, of) = match list {
            List::Shards(prefix) => ("shard,led", prefix, None),
            List::Standbys(prefix) => ("standby", prefix, None),
            List::Notes(shard) => ("note,standby", "", Some(shard)),
        };
        let is_wanted =
            |listed: &Listed| listed.shard.as_str().starts_with(prefix) && of.is_none_or(|of| *of == listed.shard);
        let leases = self.leases(kinds).await?.into_iter();
        let mut listed: Vec<Listed> = leases.filter_map(document::listed).filter(is_wanted).collect();
        let taken = self.taken(&listed).await?;
        listed.extend(taken);
        each(listed);
        Ok(())
    }

    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let names: Vec<String> = keys.iter().map(|key| self.name_of(*key)).collect();
        let begun = parallel::try_all(names.iter().map(|name| self.states(name))).await?.into_iter().enumerate();
        let mut states = select_all(begun.map(|(index, states)| states.map(move |state| (index, state))));
        while let Some((index, lease)) = states.next().await {
            if each(index, self.found(keys[index], lease?)).is_break() {
                return Ok(());
            }
        }
        std::future::pending().await
    }

    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        check::identify(self).await
    }
}
