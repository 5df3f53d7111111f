//! Watches a lock: for its release, and for changes that end a lease.
//!
//! The hazard: etcd forgets revisions, and then a watch cannot begin where it should. A leadership lasts for months,
//! and the watch of its lock breaks with every connection. So where a revision is forgotten, the lock is looked at, and
//! watched from there.

use super::Etcd;
use super::proto::{NO_PUT, WatchCreateRequest};
use crate::lease::Shard;
use crate::store::StoreError;
use std::time::Duration;

/// From one failed watch of our own lock to the next.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);

/// What a look at a lock showed.
struct Sight {
    /// The revision of etcd that it is of.
    revision: i64,
    /// When the lock was changed last. None: there is no lock.
    lock: Option<i64>,
}

impl Etcd {
    pub(super) async fn wait_for_release(&self, shard: &Shard) -> Result<(), StoreError> {
        loop {
            let Some(from) = self.watch_from(shard).await? else { return Ok(()) };
            // A lock that is taken over is deleted first: by its holder, by hand, or with its etcd lease.
            if self.watch_lock(shard, from, vec![NO_PUT]).await? {
                return Ok(());
            }
            if let Some(known) = self.known.lock().get_mut(shard) {
                known.seen = None;
            }
        }
    }

    pub(super) async fn wait_for_doubt(&self, shard: &Shard) {
        let leadership = self.known.lock().get(shard).and_then(|known| known.leadership.clone());
        let Some(leadership) = leadership else { return std::future::pending().await };
        let ours = leadership.lock.mod_revision;
        let mut from = ours.saturating_add(1);
        loop {
            let seen = match self.watch_lock(shard, from, Vec::new()).await {
                // Only we change it, so any event is a reason to look.
                Ok(true) => return,
                Ok(false) => self.lock_now(shard).await,
                Err(error) => Err(error),
            };
            match seen {
                Ok(seen) if seen.lock == Some(ours) => from = seen.revision.saturating_add(1),
                Ok(_) => return,
                Err(_) => tokio::time::sleep(DOUBT_PAUSE).await,
            }
        }
    }

    /// The first revision whose event at the lock is unknown yet. None: the lock is free now.
    async fn watch_from(&self, shard: &Shard) -> Result<Option<i64>, StoreError> {
        let seen = self.known.lock().get(shard).and_then(|known| known.seen);
        if let Some(seen) = seen {
            return Ok(Some(seen.saturating_add(1)));
        }
        let Sight { revision, lock } = self.lock_now(shard).await?;
        if lock.is_none() {
            return Ok(None);
        }
        self.saw_held(shard, revision);
        Ok(Some(revision.saturating_add(1)))
    }

    async fn lock_now(&self, shard: &Shard) -> Result<Sight, StoreError> {
        let key = self.keys.lock(shard);
        let get = async |connection| Ok(self.get(&connection, key.clone()).await?);
        let found = self.client.operate(|connection| Box::pin(get(connection))).await?;
        let revision = found.header.map_or(0, |header| header.revision);
        Ok(Sight { revision, lock: found.kvs.first().map(|kv| kv.mod_revision) })
    }

    /// Returns at the first event at the lock from a revision on. False if that revision no longer exists.
    async fn watch_lock(&self, shard: &Shard, start_revision: i64, filters: Vec<i32>) -> Result<bool, StoreError> {
        let connection = self.client.bounded(self.client.connection()).await?;
        let what = WatchCreateRequest { key: self.keys.lock(shard), start_revision, filters };
        let mut watch = self.client.watch(&connection, what).await?;
        loop {
            match watch.next().await {
                Ok(Some(seen)) if !seen.events.is_empty() => return Ok(true),
                Ok(Some(seen)) if seen.compact_revision > 0 => return Ok(false),
                Ok(Some(seen)) if seen.canceled => {
                    return Err(self.client.watch_refused(&connection, &seen.cancel_reason));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Err(self.client.watch_refused(&connection, "the watch ended")),
                Err(status) => return Err(self.client.watch_failure(&connection, &status)),
            }
        }
    }
}
