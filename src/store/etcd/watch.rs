//! Watches leaders' keys: for a release or an expiry, and for what ends a lease by hand.
//!
//! The hazard: etcd forgets revisions, and then a watch cannot begin where it should. A leadership lasts for months,
//! and the watch of its key breaks with every connection. So where a revision is forgotten, the key is looked at, and
//! watched from there.

use super::Keys;
use super::proto::{NO_PUT, WatchCreateRequest};
use crate::lease::Shard;
use crate::store::StoreError;
use crate::store::lease_store::documents::{EachSeen, Found, Key};
use std::time::Duration;
use tonic::Status;

/// From one failed watch of our own key to the next.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);

impl Keys {
    /// As [`Documents::watch`](crate::store::lease_store::documents::Documents::watch). What was seen led is watched
    /// from there on. A key that is taken over is deleted first: by its holder, by hand, or with its etcd lease.
    pub(super) async fn follow(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let shards = keys.iter().filter_map(|key| if let Key::Shard(shard) = key { Some(*shard) } else { None });
        let shards: Vec<&Shard> = shards.collect();
        loop {
            let mut from = Vec::with_capacity(shards.len());
            for (index, &shard) in shards.iter().enumerate() {
                let revision = if let Some(revision) = self.led_at(shard) {
                    revision
                } else {
                    let (found, revision) = self.look(shard).await?;
                    if each(index, found).is_break() {
                        return Ok(());
                    }
                    revision
                };
                from.push((shard, revision));
            }
            let deleted = self.first_deleted(&from).await?;
            let mut led = self.led.lock();
            for (index, shard) in shards.iter().enumerate() {
                if deleted.is_none_or(|deleted| deleted == index) {
                    led.remove(shard);
                }
            }
        }
    }

    /// Returns once the key of our own leadership may be gone.
    pub(super) async fn doubt(&self, shard: &Shard) {
        loop {
            let deleted = match self.led_at(shard) {
                Some(revision) => self.first_deleted(&[(shard, revision)]).await,
                None => Ok(None),
            };
            let looked = match deleted {
                Ok(Some(_)) => return,
                Ok(None) => self.look(shard).await.map(drop),
                Err(error) => Err(error),
            };
            if looked.is_err() {
                tokio::time::sleep(DOUBT_PAUSE).await;
            } else if self.led_at(shard).is_none() {
                return;
            }
        }
    }

    fn led_at(&self, shard: &Shard) -> Option<i64> {
        self.led.lock().get(shard).copied()
    }

    /// The document of a shard as it stands, and the revision of etcd.
    async fn look(&self, shard: &Shard) -> Result<(Found, i64), StoreError> {
        let keys = [Key::Shard(shard)];
        let (mut found, revision) = self.client.operate(|connection| Box::pin(self.read(connection, &keys))).await?;
        Ok((found.remove(0), revision))
    }

    /// The place of the first shard whose leader's key is deleted after the revision beside it. None if one of these
    /// revisions no longer exists.
    async fn first_deleted(&self, shards: &[(&Shard, i64)]) -> Result<Option<usize>, StoreError> {
        let connection = self.client.connection();
        let watched = shards.iter().zip(1..).map(|(&(shard, revision), watch_id)| WatchCreateRequest {
            key: self.names.lock(shard),
            start_revision: revision.saturating_add(1),
            filters: vec![NO_PUT],
            watch_id,
        });
        let mut watch = self.client.watch(&connection, watched.collect()).await?;
        let ended = loop {
            match watch.events.message().await {
                Ok(Some(seen)) if !seen.events.is_empty() => {
                    return Ok(Some(usize::try_from(seen.watch_id - 1).unwrap_or(0)));
                }
                Ok(Some(seen)) if seen.compact_revision > 0 => return Ok(None),
                Ok(Some(seen)) if seen.canceled => break Status::unavailable(seen.cancel_reason),
                Ok(Some(_)) => {}
                Ok(None) => break Status::unavailable("the watch ended"),
                Err(status) => break status,
            }
        };
        Err(self.client.watch_ended(&connection, &ended))
    }
}
