//! The stores `s3://`, `gs://` and `azblob://`: one object for each shard in a bucket, changed only by conditional
//! writes (`If-None-Match: *`, `If-Match: ETAG`).
//!
//! The hazard: object storage has no leases. It compares and swaps one object, and looks at no clock while it does so.
//! So everything that makes the object a lease happens here, on hosts whose clocks are wrong, over a network that loses
//! answers and delivers writes late:
//!
//! - A write applies only over exactly the object that its writer saw. So a write that arrives late changes nothing,
//!   and a takeover is refused if the object changes in any way after it was judged expired.
//! - A claim whose answer was lost is made again, and is granted over the lease of the same session. A renewal that is
//!   refused looks: the session in the object tells whether it was an earlier one of its own that changed it.
//! - Whether a lease has expired is judged by the server's clock, as far as it can be known (`server_clock`), and by
//!   how long the lease stayed unchanged on our own clock.
//! - The operators' orders are a part of the object. So a renewal that is granted has proved that they are those that
//!   the leader knows, and one that is refused reads them. A renewal is one request.
//! - The object is never deleted, so its term rises for ever. If an operator deletes it, a tree may still run. So a
//!   second object (the led mark) says that the shard was once led, and a third one, the marker, since when the whole
//!   bucket remembers (`term`).
//! - A server may ignore conditions, or check them and write without holding a lock in between. Then two candidates
//!   both lead. `leaderctl store init` tries that (`trial`) before it writes the marker, and without the marker
//!   nobody leads.

mod address;
mod administration;
mod check;
mod claim;
mod connection;
mod failure;
mod list;
mod notes;
mod objects;
mod price;
mod record;
mod term;
mod trial;

use super::expiry::ServerTime;
pub use super::server_clock::WallClock;
pub use address::{Address, Kind};
pub use price::price;

use super::{Delivery, Holder, Store, StoreError};
use crate::lease::Shard;
use crate::mutex::Mutex;
use crate::time::{BootInstant, wall_clock_millis};
use objects::{Objects, Version};
use record::{Found, Record, Snapshot, shard_key};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How often a write that lost a race looks again before it gives up.
const MOST_ATTEMPTS: usize = 8;

pub struct Bucket {
    objects: Objects,
    /// The marker has been seen.
    is_checked: AtomicBool,
    seen: Mutex<HashMap<Shard, Seen>>,
    notes: Mutex<HashMap<String, notes::Standing>>,
}

/// What this process remembers about a shard.
#[derive(Debug, Default)]
struct Seen {
    /// The last object that was read or written.
    found: Option<Found>,
    snapshot: Option<Snapshot>,
    /// The term and the highest `sequence` of a renewal that was applied.
    renewed: (u64, u64),
}

impl Bucket {
    /// Opens the store. Sends no request to it yet.
    ///
    /// # Errors
    /// No region is known, or the endpoint is not a URL, or the credentials that the environment names make no sense.
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        Self::open_with_wall_clock(address, request_timeout, wall_clock_millis).await
    }

    /// Opens the store with another wall clock, for tests of a wrong one.
    ///
    /// # Errors
    /// As [`Bucket::open`].
    #[doc(hidden)]
    pub async fn open_with_wall_clock(
        address: &Address,
        request_timeout: Duration,
        wall_clock: WallClock,
    ) -> Result<Self, StoreError> {
        let objects = Objects::open(address, request_timeout, wall_clock).await?;
        Ok(Self { objects, is_checked: AtomicBool::new(false), seen: Mutex::default(), notes: Mutex::default() })
    }

    /// Reads the object of a shard, and remembers it.
    async fn look(&self, shard: &Shard) -> Result<Option<Found>, StoreError> {
        let found = self.glance(shard).await?;
        match &found {
            Some(found) => self.seen.lock().entry(shard.clone()).or_default().found = Some(found.clone()),
            None => self.unsee(shard),
        }
        Ok(found)
    }

    /// Reads the object of a shard.
    async fn glance(&self, shard: &Shard) -> Result<Option<Found>, StoreError> {
        let Some((bytes, version)) = self.objects.get(&shard_key(shard)).await? else { return Ok(None) };
        Ok(Some(Found { record: self.read(shard, &bytes)?, version }))
    }

    fn read(&self, shard: &Shard, bytes: &[u8]) -> Result<Record, StoreError> {
        Record::read(shard, bytes).map_err(|why| self.objects.foreign(&shard_key(shard), &why))
    }

    /// The object as it was last read or written.
    fn known(&self, shard: &Shard) -> Option<Found> {
        self.seen.lock().get(shard)?.found.clone()
    }

    fn remember(&self, shard: &Shard, record: Record, version: Option<Version>) {
        let mut seen = self.seen.lock();
        seen.entry(shard.clone()).or_default().found = version.map(|version| Found { record, version });
    }

    /// Has the next write look first.
    fn doubt(&self, shard: &Shard) {
        if let Some(seen) = self.seen.lock().get_mut(shard) {
            seen.found = None;
        }
    }

    fn unsee(&self, shard: &Shard) {
        self.seen.lock().remove(shard);
    }

    /// Remembers the lease that a read showed which was sent at `read_sent`. Returns the time until it may be given to
    /// another candidate: zero if it may now, or if there is none.
    fn notice(&self, shard: &Shard, record: &Record, read_sent: BootInstant) -> Duration {
        let moment = self.objects.moment(read_sent);
        let mut seen = self.seen.lock();
        let snapshot = &mut seen.entry(shard.clone()).or_default().snapshot;
        let Some(lease) = &record.lease else {
            *snapshot = None;
            return Duration::ZERO;
        };
        let known = snapshot.take().filter(|snapshot| snapshot.is_of(record.term, lease));
        let mut known = known.unwrap_or_else(|| Snapshot::first(record.term, lease.clone(), moment.now));
        let left = known.expires_in(&self.objects.clock(), moment);
        known.expired = left.is_zero();
        *snapshot = Some(known);
        left
    }

    /// The leader according to a record that a read sent at `read_sent` showed. None if there is none, or its lease has
    /// expired.
    fn holder(&self, shard: &Shard, record: &Record, read_sent: BootInstant) -> Option<Holder> {
        let left = self.notice(shard, record, read_sent);
        let renewed_ago = record.lease.as_ref()?.renewed_ago(&self.objects.clock(), BootInstant::now());
        let holder = record.holder(Some(left)).filter(|_| !left.is_zero())?;
        Some(Holder { renewed_ago, ..holder })
    }
}

impl Store for Bucket {
    fn delivery(&self) -> Delivery {
        Delivery::Poll
    }

    fn hindrance(&self) -> Option<String> {
        self.objects.clock().hindrance("the object storage's", BootInstant::now())
    }

    fn is_metered(&self) -> bool {
        true
    }
}
