//! The store `nats://`: one key a shard in a JetStream key-value bucket, changed only at the revision that was seen.
//!
//! The hazard: a bucket keeps no leases. It compares revisions and stamps what it stores with its clock; everything
//! that makes a record a lease is done here, over a network that loses answers and delivers writes late:
//!
//! - Every write names the revision it replaces, so a write that arrives late applies only if nothing has happened since
//!   it was sent, as if it had been in time: a renewal then prolongs what nobody has taken yet, a release gives back what
//!   its holder has not touched since. A claim that is delivered after its claimant has gone blocks the shard for one
//!   lease; it starts nothing. Revisions are not reused: `store init` makes them begin at the microsecond at which the
//!   bucket is made, so those of a bucket that was dropped and made again do not meet the old ones.
//! - A lease has expired when its record stood unchanged for all of it, as long as we have known it (a standby hears of
//!   each renewal at once), or by the server's clock: the time it tells now minus its stamp on the record. Two servers
//!   of a cluster may have stamped the two, so there more has to pass (`CLUSTER_SLACK`).
//! - A release marks the record and leaves it there. So an absent record is of a shard that was never led, or somebody
//!   deleted it, or all of the bucket; its holder may not know yet, and its tree runs until its deadline. A second
//!   record, the ledger, tells the first from the second, and a marker in the bucket tells since when it remembers
//!   anything. A leader that has to wait for such a tree may crash meanwhile, so its record says until when to wait, and
//!   every successor keeps to that.
//!
//! The term is one more than that of the record before. Where there is none it is the microsecond of the server's
//! clock, above all that came before unless that clock is set back.
//!
//! What cannot be helped: a server that loses acknowledged writes (storage in memory, a crash of the machine between
//! two syncs) has forgotten leaderships, and does not know it.

mod address;
mod bucket;
mod check;
mod claim;
mod connection;
mod failure;
mod jetstream;
mod list;
mod login;
mod meter;
mod notes;
mod record;
mod watch;

pub use address::{Address, Login};

use super::{Delivery, Store, StoreError};
use crate::lease::{Candidate, Shard, Term};
use crate::time::BootInstant;
use crate::time::millis;
use address::key_of;
use bucket::{Bucket, Put};
use connection::Connections;
use jetstream::Info;
use record::{Record, Snapshot};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A write that is refused looks again this often before it says so: somebody wrote in between.
const MOST_ATTEMPTS: usize = 4;
/// The clocks of a cluster's servers are trusted to agree so far.
const CLUSTER_SLACK: Duration = Duration::from_secs(5);

pub struct Nats {
    bucket: Bucket,
    seen: Mutex<HashMap<Shard, Snapshot>>,
    /// Something was seen.
    noted: Notify,
    /// The latest renewal that was asked for: its term and beat.
    latest: Mutex<HashMap<Shard, (Term, u64)>>,
}

/// Who wants to know how old a record is, of a server that does not tell the time.
#[derive(Clone, Copy)]
enum Asks {
    /// May write, and does not need another permission for this.
    Candidate,
    /// May be allowed to look only.
    Onlooker,
}

impl Nats {
    /// Asks nothing of the server yet.
    ///
    /// # Errors
    /// Misconfigured, when a file cannot be used that the address names.
    #[expect(clippy::unused_async, reason = "all stores are opened in the same way")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let bucket = Bucket { connections: Connections::open(address, request_timeout)? };
        Ok(Self { bucket, seen: Mutex::default(), noted: Notify::new(), latest: Mutex::default() })
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Shard, Snapshot>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, shard: &Shard) -> Option<Snapshot> {
        self.seen().get(shard).cloned()
    }

    /// Takes in what was seen by a request sent at `asked`, or later. Answers with all that is known of it.
    ///
    /// Answers may come in another order than they were sent in, so what is known stays unless this is newer.
    fn note(&self, shard: &Shard, snapshot: Snapshot, asked: BootInstant) -> Snapshot {
        let mut seen = self.seen();
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
        // The second: the bucket was made again, and counts from one.
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
            let mut seen = self.seen();
            if seen.get(shard).is_some_and(|known| known.as_of < asked) {
                seen.remove(shard);
            }
            return Ok(None);
        };
        Ok(Some(self.note(shard, Snapshot::of(&entry, BootInstant::now()), asked)))
    }

    /// A record that was not seen to appear may be older than we have known it. Asks the server's clock.
    async fn dated(&self, shard: &Shard, mut snapshot: Snapshot, asks: Asks) -> Result<Snapshot, StoreError> {
        let Some(stamp) = snapshot.stamp.filter(|_| !snapshot.dated) else { return Ok(snapshot) };
        let asked = BootInstant::now();
        let info = self.bucket.info().await?.ok_or_else(|| self.bucket.missing())?;
        let time = match (info.time(), asks) {
            (Some(time), _) => time,
            (None, Asks::Candidate) => self.bucket.probed_time().await?,
            (None, Asks::Onlooker) => self.bucket.time(&info).await?,
        };
        snapshot.learn_age(time.since(stamp).saturating_sub(slack(&info)), BootInstant::now());
        snapshot.dated = true;
        Ok(self.note(shard, snapshot, asked))
    }

    fn foreign(&self, shard: &Shard) -> StoreError {
        let (key, bucket) = (key_of(shard), &self.bucket.address().bucket);
        StoreError::misconfigured(format!(
            "the key {key} of bucket {bucket} in {} was written by something else: delete it (nats kv del {bucket} {key}) \
             or use another bucket",
            self.bucket.address().server()
        ))
    }

    /// Whether it is the candidate's, and says of which leadership.
    fn is_ours(candidate: &Candidate, snapshot: &Snapshot) -> bool {
        snapshot.record().is_some_and(|record| record.is_of(candidate)) && snapshot.term().is_some()
    }

    /// Writes our record of revision `expected`. None when somebody else wrote in between.
    async fn write(
        &self,
        shard: &Shard,
        mut record: Record,
        expected: u64,
        hold_until: Option<BootInstant>,
    ) -> Result<Option<Snapshot>, StoreError> {
        // From before it is sent, so that what the server counts from when it stores it does not end sooner.
        let sent = BootInstant::now();
        record.hold_ms = hold_until.map_or(0, |until| millis(until.since(sent)));
        match self.bucket.put(&key_of(shard), record.encoded(), expected).await? {
            Put::Done { revision } => {
                let snapshot = Snapshot::ours(revision, record, BootInstant::now(), hold_until.or(Some(sent)));
                Ok(Some(self.note(shard, snapshot, sent)))
            }
            Put::Conflict => {
                // What we thought is wrong.
                let mut seen = self.seen();
                if seen.get(shard).is_some_and(|known| known.revision == expected) {
                    seen.remove(shard);
                }
                Ok(None)
            }
        }
    }
}

/// How far two stamps may be apart because they come from different clocks.
fn slack(info: &Info) -> Duration {
    if info.is_clustered() { CLUSTER_SLACK } else { Duration::ZERO }
}

impl Store for Nats {
    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
