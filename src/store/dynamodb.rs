//! The store `dynamodb://`: one item for each shard in a DynamoDB table, changed only by conditional single-item
//! writes.
//!
//! The hazard: DynamoDB has no leases. It compares and swaps one item, and looks at no clock while it does so. So
//! everything that makes the item a lease happens here, on hosts whose clocks are wrong, over a network that loses
//! answers and delivers writes late:
//!
//! - A write that arrives late must not undo a later one. Every write of a session to the lock carries a `beat` that is
//!   higher than all before it, and applies only over a lower one.
//! - A claim whose answer was lost is made again, and is granted over the record of the same session.
//! - A takeover applies only to exactly the record that was judged expired. If the record changes in between in any
//!   way, the takeover is refused. That is why standbys may look with eventually consistent reads.
//! - Whether a record has expired is judged by the server's clock, as far as it can be known (`server_clock`), and by
//!   how long the record stayed unchanged on our own clock.
//! - Orders are an item of their own. A leader that read them with every renewal would double its cost. So who writes
//!   orders then puts a stamp into the lock item, and the answer to the next renewal shows it (`notes`).
//! - A record that vanished without a release leaves a tree behind that may still run (`term`). Revoking a lease makes
//!   its record vanish. All records of a shard may vanish at once; a separate led mark shows that.
//!
//! Other programs may use the same table with the same four attributes (`record`). The store uses no transactions,
//! because multi-region strongly consistent tables do not have them.

mod address;
mod administration;
mod check;
mod claim;
mod connection;
mod description;
mod failure;
mod list;
mod notes;
mod record;
mod table;
mod term;

pub use address::Address;

pub use super::server_clock::WallClock;

use super::aws::BySchemeClient;
use super::expiry::ServerTime;
use super::{Delivery, Holder, Store, StoreError};
use crate::lease::Shard;
use crate::mutex::Mutex;
use crate::time::{BootInstant, wall_clock_millis};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use record::{Item, Record, Snapshot};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use table::Table;

/// How often a refused write looks again before it reports the refusal, because another session wrote in between. And
/// how often the stamp of new orders is sent if its request is lost.
const MOST_ATTEMPTS: usize = 4;

pub struct DynamoDb {
    table: Table,
    /// The last beat that was given out. Claims and renewals share one counter, because they overtake each other too. A
    /// session never outlives it.
    beat: AtomicU64,
    seen: Mutex<HashMap<Shard, Seen>>,
}

/// What this process remembers about a shard.
#[derive(Debug, Default)]
struct Seen {
    snapshot: Option<Snapshot>,
    /// The highest `sequence` of a renewal that was applied in this leadership.
    renewed: u64,
    /// The longest lease that the shard's led mark records, as far as it is known.
    led_mark: Option<Duration>,
    /// Some while we lead.
    orders: Option<notes::Known>,
}

impl DynamoDb {
    /// Opens the store. Sends no request to DynamoDB yet.
    ///
    /// # Errors
    /// No region is known, or the endpoint is not a URL.
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        Self::open_with_wall_clock(address, request_timeout, wall_clock_millis).await
    }

    /// Opens the store with another wall clock, for tests of a wrong one.
    ///
    /// # Errors
    /// As [`DynamoDb::open`].
    #[doc(hidden)]
    pub async fn open_with_wall_clock(
        address: &Address,
        request_timeout: Duration,
        wall_clock: WallClock,
    ) -> Result<Self, StoreError> {
        Self::open_over(SharedHttpClient::new(BySchemeClient::default()), address, request_timeout, wall_clock).await
    }

    /// Opens the store over another network, for simulations.
    ///
    /// # Errors
    /// As [`DynamoDb::open`].
    #[doc(hidden)]
    pub async fn open_over(
        network: SharedHttpClient,
        address: &Address,
        request_timeout: Duration,
        wall_clock: WallClock,
    ) -> Result<Self, StoreError> {
        let table = Table::open(network, address, request_timeout, wall_clock).await?;
        Ok(Self { table, beat: AtomicU64::new(0), seen: Mutex::default() })
    }

    fn next_beat(&self) -> u64 {
        self.beat.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn read(&self, shard: &Shard, item: &Item) -> Result<Record, StoreError> {
        Record::read(item).ok_or_else(|| {
            StoreError::misconfigured(format!(
                "the record of shard {shard} in table {} was written by something else: it needs ownerId (S) and ttl \
                 (N); delete the item pk=SHARD#{shard}, sk=LOCK or use another table",
                self.table.name
            ))
        })
    }

    /// Remembers what a read showed that was sent at `read_sent`. Returns how long the record has to live; zero if it
    /// expired.
    fn notice(&self, shard: &Shard, record: &Record, read_sent: BootInstant) -> Duration {
        let moment = self.table.moment(read_sent);
        let mut seen = self.seen.lock();
        let snapshot = &mut seen.entry(shard.clone()).or_default().snapshot;
        let known = snapshot.take().filter(|snapshot| snapshot.record == *record);
        let mut known = known.unwrap_or_else(|| Snapshot::first(record.clone(), moment.now, moment.wall_millis));
        let left = known.expires_in(&self.table.clock(), moment);
        known.expired = left.is_zero();
        *snapshot = Some(known);
        left
    }

    /// The leader according to a record that a read sent at `read_sent` showed. None if the record has expired.
    fn holder(&self, shard: &Shard, record: &Record, read_sent: BootInstant) -> Option<Holder> {
        let left = self.notice(shard, record, read_sent);
        let renewed_ago = || record.renewed_ago(&self.table.clock(), BootInstant::now());
        (!left.is_zero()).then(|| Holder { renewed_ago: renewed_ago(), ..record.holder(Some(left)) })
    }

    fn unsee(&self, shard: &Shard) {
        self.seen.lock().remove(shard);
    }
}

impl Store for DynamoDb {
    fn delivery(&self) -> Delivery {
        Delivery::Poll
    }

    fn hindrance(&self) -> Option<String> {
        self.table.clock().hindrance("DynamoDB's", BootInstant::now())
    }

    fn is_metered(&self) -> bool {
        true
    }
}
