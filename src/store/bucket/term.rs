//! Terms, and how long a new leader has to wait for a tree that may still run.
//!
//! The hazard: an object that is absent does not say why. Its shard is new, or the object was deleted: by an operator,
//! by a lifecycle rule, or with all the others of the bucket. After a deletion its holder may not know yet, and its
//! tree runs until its deadline. So each shard that was led has a second object, the led mark, with the longest lease
//! that it had, and the bucket has a marker that says since when it remembers. Both may be deleted as well, all at
//! once: then there is no marker, and nobody leads until an operator has run `leaderctl store init`, which writes a new
//! one.

use super::objects::{Condition, Outcome, unique};
use super::record::{MARKER, led_key};
use super::{Bucket, MOST_ATTEMPTS};
use crate::lease::{Candidate, Shard};
use crate::store::StoreError;
use crate::store::expiry::ServerTime;
use crate::store::server_clock::{Wait, with_drift};
use crate::time::{BootInstant, millis};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The marker of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// For people who find the object.
    what: String,
    write: String,
    /// Server time, in milliseconds since 1970: since when the bucket remembers.
    pub created_ms: u64,
}

/// The led mark of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LedMark {
    write: String,
    /// The longest lease that a leader had.
    lease_ms: u64,
}

/// The first term of a shard, and when its leader may start.
pub struct First {
    pub term: u64,
    pub start_after: Option<BootInstant>,
}

/// Refuses a bucket that `leaderctl store init` has not tried.
pub async fn require_marker(store: &Bucket) -> Result<(), StoreError> {
    if !store.is_checked.load(Ordering::Relaxed) {
        marker(store).await?;
    }
    Ok(())
}

/// The marker.
///
/// # Errors
/// There is none, or it cannot be read.
async fn marker(store: &Bucket) -> Result<Marker, StoreError> {
    let objects = &store.objects;
    let Some(marker) = find_marker(store).await? else {
        store.is_checked.store(false, Ordering::Relaxed);
        return Err(StoreError::misconfigured(format!(
            "{} was not tried yet, and a server that ignores conditions lets two candidates lead: run leaderctl \
             --store URL store init",
            objects.name
        )));
    };
    store.is_checked.store(true, Ordering::Relaxed);
    Ok(marker)
}

/// The marker, or None if there is none.
pub async fn find_marker(store: &Bucket) -> Result<Option<Marker>, StoreError> {
    let Some((bytes, _)) = store.objects.get(MARKER).await? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|_| {
        StoreError::misconfigured(format!(
            "the object {}{MARKER} was written by something else: delete it and run leaderctl store init, or use \
             another prefix",
            store.objects.name
        ))
    })
}

fn marker_bytes(created_ms: u64) -> Result<Vec<u8>, StoreError> {
    let what = "leaderrun keeps leases beside this object: see leaderrun(7)".to_owned();
    Ok(serde_json::to_vec(&Marker { what, write: unique()?, created_ms }).expect("a marker is plain data"))
}

/// Marks that the bucket remembers from now on, unless there is a marker already.
pub async fn mark(store: &Bucket) -> Result<(), StoreError> {
    let created = store.objects.server_millis(BootInstant::now());
    store.objects.put(MARKER, marker_bytes(created)?, Condition::Absent).await.map(drop)
}

/// Makes the marker one of a bucket that has always remembered.
pub async fn vouch(store: &Bucket) -> Result<(), StoreError> {
    for _ in 0..MOST_ATTEMPTS {
        let Some((_, version)) = store.objects.get(MARKER).await? else { return Ok(()) };
        let written = store.objects.put(MARKER, marker_bytes(0)?, Condition::Unchanged(&version)).await?;
        if matches!(written, Outcome::Done(_)) {
            return Ok(());
        }
    }
    Err(StoreError::unknown(format!("the object {}{MARKER} changes faster than it can be written", store.objects.name)))
}

/// Writes down that the shard is led with this lease. Returns the longest lease that was there before.
pub async fn keep_led_mark(store: &Bucket, shard: &Shard, lease: Duration) -> Result<Option<Duration>, StoreError> {
    let key = led_key(shard);
    for _ in 0..MOST_ATTEMPTS {
        let found = store.objects.get(&key).await?;
        let before = match &found {
            // A mark that cannot be read says at least that the shard was led.
            Some((bytes, _)) => serde_json::from_slice::<LedMark>(bytes).map_or(Some(0), |mark| Some(mark.lease_ms)),
            None => None,
        };
        let known = before.map(Duration::from_millis);
        if known.is_some_and(|known| known >= lease) {
            return Ok(known);
        }
        let mark = LedMark { write: unique()?, lease_ms: millis(lease) };
        let bytes = serde_json::to_vec(&mark).expect("a mark is plain data");
        let condition = found.as_ref().map_or(Condition::Absent, |(_, version)| Condition::Unchanged(version));
        if matches!(store.objects.put(&key, bytes, condition).await?, Outcome::Done(_)) {
            return Ok(known);
        }
    }
    Err(StoreError::unknown(format!("the record that shard {shard} was led changes faster than it can be kept")))
}

/// What follows for the first leader of a shard whose object knows of no leadership.
pub async fn first(store: &Bucket, candidate: &Candidate) -> Result<First, StoreError> {
    let marker = marker(store).await?;
    let objects = &store.objects;
    let now = BootInstant::now();
    let duration = with_drift(candidate.lease);
    let young = Wait { until_millis: marker.created_ms.saturating_add(millis(duration)), duration: candidate.lease };
    let start_after = young.over_by(&objects.clock(), objects.wall_clock_millis(), now);
    // Milliseconds since 1970 rise faster than leaderships do, so this is above every term that was forgotten. The
    // known server's time may be off by a second or two, but the wait lasts longer.
    let term = objects.server_millis(start_after.unwrap_or(now)) + 1;
    Ok(First { term, start_after })
}
