//! The store `nats://`: one key for each shard in a JetStream key-value bucket, changed only at the revision that was
//! seen.
//!
//! The hazard: a bucket has no leases. It compares revisions, and stamps each value with its clock. Everything that
//! makes a record a lease happens here, over a network that loses answers and delivers writes late:
//!
//! - Every write names the revision that it replaces. So a write that arrives late applies only if nothing has happened
//!   since it was sent, just as if it had been in time: a renewal prolongs a lease that nobody has taken, and a release
//!   gives back a lease that its holder has not touched since. A claim that arrives after its candidate has gone blocks
//!   the shard for one lease; it starts nothing. Revisions are not reused: `store init` makes them begin at the
//!   microsecond at which the bucket is made, so a bucket that was dropped and made again does not repeat the old ones.
//! - A lease has expired if its record stayed unchanged for its whole duration while we knew it (a standby hears of
//!   each renewal at once). It has also expired by the server's clock: the server's present time minus its stamp on the
//!   record. In a cluster, two servers may have stamped the two, so more time must pass (`CLUSTER_SLACK`).
//! - A release marks the record and leaves it in place. So if a record is absent, either the shard was never led, or
//!   the record or the whole bucket was deleted. In the second case its holder may not know yet, and its tree runs
//!   until its deadline. A second record, the led mark, distinguishes the two, and a marker in the bucket says since
//!   when the bucket remembers anything. A leader that has to wait for such a tree may crash meanwhile, so its record
//!   says until when to wait, and every successor obeys it.
//!
//! The term is one more than the term of the record before. If there is no such record, the term is the microsecond of
//! the server's clock, which is above all earlier terms unless that clock is set back.
//!
//! What the store cannot prevent: a server that loses acknowledged writes (storage in memory, a crash of the machine
//! between two syncs) has forgotten leaderships, and does not know it.

mod address;
mod administration;
mod bucket;
mod check;
mod claim;
mod connection;
mod failure;
mod jetstream;
mod list;
mod lock_key;
mod login;
mod meter;
mod notes;
mod orders;
mod record;
mod watch;

pub use address::{Address, Login};

use super::{Delivery, NoteRead, Page, Store, StoreError};
use crate::lease::{Candidate, Shard, Term};
use crate::time::{BootInstant, millis};
use address::key_of;
use bucket::{Bucket, Put};
use connection::Connections;
use jetstream::Info;
use lock_key::Lock;
use parking_lot::Mutex;
use record::{Content, Record, Snapshot};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Notify;

/// How often a write that was refused looks again before it reports that: another process wrote in between.
const MOST_ATTEMPTS: usize = 4;
/// How far apart the clocks of a cluster's servers may be.
const CLUSTER_SLACK: Duration = Duration::from_secs(5);

pub struct Nats {
    bucket: Bucket,
    seen: Mutex<HashMap<Shard, Snapshot>>,
    /// Notifies that a record was seen.
    noted: Notify,
    /// The latest renewal that was requested: its term and sequence.
    latest: Mutex<HashMap<Shard, (Term, u64)>>,
    heard: orders::Heard,
    /// The key of other programs that is held in addition to the lease.
    lock: Option<Lock>,
}

/// Who wants to know how old a record is, if the server does not tell the time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// May write, and needs no further permission for this.
    Candidate,
    /// May perhaps only read.
    Onlooker,
}

impl Nats {
    /// Opens the store. Sends no request to the server yet.
    ///
    /// # Errors
    /// Misconfigured, if a file that the address names cannot be used.
    #[expect(clippy::unused_async, reason = "all stores are opened in the same way")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let bucket = Bucket { connections: Connections::open(address, request_timeout)?, is_ours: true };
        let lock = Lock::open(address, request_timeout)?;
        let (seen, latest, heard) = (Mutex::default(), Mutex::default(), orders::Heard::default());
        Ok(Self { bucket, seen, noted: Notify::new(), latest, heard, lock })
    }

    fn known(&self, shard: &Shard) -> Option<Snapshot> {
        self.seen.lock().get(shard).cloned()
    }

    /// Remembers what a request showed that was sent at `asked`, or later. Returns the best knowledge of the record.
    ///
    /// Answers may arrive in another order than their requests were sent, so older knowledge is replaced only by newer.
    fn note(&self, shard: &Shard, snapshot: Snapshot, asked: BootInstant) -> Snapshot {
        let mut seen = self.seen.lock();
        let Some(known) = seen.get_mut(shard) else {
            seen.insert(shard.clone(), snapshot.clone());
            return snapshot;
        };
        if known.is_same(&snapshot) {
            known.stamp = known.stamp.or(snapshot.stamp);
            known.dated |= snapshot.dated;
            known.learn_age(snapshot.age(snapshot.as_of), snapshot.as_of);
            return known.clone();
        }
        // The second condition: the bucket was made again, and counts from one.
        if snapshot.revision > known.revision || known.as_of < asked {
            *known = snapshot.clone();
        }
        drop(seen);
        self.noted.notify_waiters();
        snapshot
    }

    /// The record as the server has it now.
    async fn look(&self, shard: &Shard) -> Result<Option<Snapshot>, StoreError> {
        let asked = BootInstant::now();
        let Some(entry) = self.bucket.get(&key_of(shard)).await? else {
            let mut seen = self.seen.lock();
            if seen.get(shard).is_some_and(|known| known.as_of < asked) {
                seen.remove(shard);
            }
            return Ok(None);
        };
        Ok(Some(self.note(shard, Snapshot::of(&entry, BootInstant::now()), asked)))
    }

    /// Asks the server's clock how old the record is. A record that we did not see appear may be older than we have
    /// known it.
    async fn dated(&self, shard: &Shard, mut snapshot: Snapshot, asks: Asks) -> Result<Snapshot, StoreError> {
        let Some(stamp) = snapshot.stamp.filter(|_| !snapshot.dated) else { return Ok(snapshot) };
        let asked = BootInstant::now();
        let info = self.bucket.info().await?.ok_or_else(|| self.bucket.missing())?;
        if asks == Asks::Candidate {
            self.bucket.usable(&info)?;
        }
        let time = match (info.time(), asks) {
            (Some(time), _) => time,
            (None, Asks::Candidate) => self.bucket.probed_time().await?,
            (None, Asks::Onlooker) => self.bucket.time(&info).await?,
        };
        snapshot.learn_age(time.since(stamp).saturating_sub(slack(&info)), BootInstant::now());
        snapshot.dated = true;
        Ok(self.note(shard, snapshot, asked))
    }

    /// The record as the server has it now, dated unless it has expired anyway.
    async fn look_dated(&self, shard: &Shard, asks: Asks) -> Result<Option<Snapshot>, StoreError> {
        match self.look(shard).await? {
            Some(snapshot) if snapshot.content == Content::Foreign => Err(self.foreign(shard)),
            Some(snapshot) if !snapshot.left(BootInstant::now()).is_zero() => {
                self.dated(shard, snapshot, asks).await.map(Some)
            }
            found => Ok(found),
        }
    }

    fn foreign(&self, shard: &Shard) -> StoreError {
        let (key, bucket) = (key_of(shard), &self.bucket.address().bucket);
        StoreError::misconfigured(format!(
            "the key {key} of bucket {bucket} in {} was written by something else: delete it (nats kv del {bucket} {key}) \
             or use another bucket",
            self.bucket.address().server()
        ))
    }

    /// Whether the record belongs to the candidate and names a leadership.
    fn is_ours(candidate: &Candidate, snapshot: &Snapshot) -> bool {
        snapshot.record().is_some_and(|record| record.is_of(candidate)) && snapshot.term().is_some()
    }

    /// Writes our record over revision `expected`. None if another process wrote in between.
    async fn write(
        &self,
        shard: &Shard,
        mut record: Record,
        expected: u64,
        hold_until: Option<BootInstant>,
    ) -> Result<Option<Snapshot>, StoreError> {
        // Taken before the request is sent, so that the lease does not end sooner by the server's count, which begins
        // when it stores the record.
        let sent = BootInstant::now();
        record.hold_ms = hold_until.map_or(0, |until| millis(until.since(sent)));
        match self.bucket.put(&key_of(shard), record.encoded(), expected).await? {
            Put::Done { revision } => {
                let snapshot = Snapshot::ours(revision, record, BootInstant::now(), hold_until.or(Some(sent)));
                Ok(Some(self.note(shard, snapshot, sent)))
            }
            Put::Conflict => {
                // Our knowledge was wrong.
                let mut seen = self.seen.lock();
                if seen.get(shard).is_some_and(|known| known.revision == expected) {
                    seen.remove(shard);
                }
                Ok(None)
            }
        }
    }
}

/// How far two stamps may differ because they come from different clocks.
fn slack(info: &Info) -> Duration {
    if info.is_clustered() { CLUSTER_SLACK } else { Duration::ZERO }
}

#[async_trait::async_trait]
impl Store for Nats {
    async fn read_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        self.read_many(wanted).await
    }

    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
