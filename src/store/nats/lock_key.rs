//! `lock_key=BUCKET/KEY`: a key of other programs that is held beside the lease, so that leaderrun and programs that
//! elect with a leader record in a key-value bucket exclude each other.
//!
//! Such programs create the key if nothing is in it, update it at the revision that they wrote last, and delete it when
//! they stop. It ends by itself, because the server forgets it.
//!
//! Some of them do not wait for that: the record says when it expires, and they replace it after that time by their own
//! clock. A record without a time counts as expired. So ours has one under each name that they may look for, one lease
//! later than the server forgets the record, because clocks differ; and every renewal moves it.
//!
//! The hazards:
//!
//! - The key has to last as long as our tree may live. So the time after which the server forgets it must not be
//!   shorter than the lease, and a bucket that forgets nothing would keep it for ever: both are refused. Our own
//!   documents must not be forgotten, so they are in another bucket, unless the server can forget single messages.
//! - Several renewals may be under way. One follows the other here: each names the revision that the last one made.
//! - A renewal that arrives after the release must not take the key again.

use super::bucket::Bucket;
use super::document::{DELETION, OPERATION, is_deletion, stored_millis};
use crate::lease::{Candidate, Session, Term, show};
use crate::store::foreign_lock::{self, ForeignLock, Hold, STARTED, writer_of};
use crate::store::{Holder, StoreError};
use crate::time::{millis, rfc3339, wall_clock_millis};
use async_nats::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::Mutex;

/// How often a write that was refused looks again before it reports that: another process wrote in between.
const MOST_ATTEMPTS: usize = 4;
/// A revision that no key reaches: they begin with the time in microseconds, and this is the year 2255.
const NO_REVISION: u64 = (1 << 53) - 1;

pub struct LockKey {
    bucket: Bucket,
    key: String,
    /// Only one task at a time writes the key.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Some from a claim to the release: the revision that we wrote last.
    held: Option<u64>,
    /// When the key was taken, in milliseconds since 1970.
    started: u64,
    /// Whether the key was found gone since the claim. It is kept because the answer to the request that takes the key
    /// again may not arrive.
    lost: bool,
    /// After what time the bucket forgets everything. Zero: each message says when.
    max_age: Duration,
}

/// Our leader record, also in the spellings of other programs: snake case, camel case, and Go's untagged fields.
fn record(candidate: &Candidate, term: Term, started: u64, lasts: Duration) -> String {
    let mut record = foreign_lock::record(candidate, term, started);
    let expires = rfc3339(wall_clock_millis() + millis(lasts + candidate.lease));
    for (names, value) in [
        (["leader_id", "leaderId", "LeaderID"], record["instance_id"].clone()),
        (["term", "term", "Term"], record["term"].clone()),
        (STARTED, record["started_at"].clone()),
        (["expires_at", "expiresAt", "ExpiresAt"], expires.into()),
    ] {
        for name in names {
            record[name] = value.clone();
        }
    }
    record.to_string()
}

impl LockKey {
    pub fn new(bucket: Bucket, key: String) -> Self {
        Self { bucket, key, state: Mutex::default() }
    }

    fn unsteady(&self) -> StoreError {
        StoreError::unknown(format!("{} changes faster than it can be written", self.name()))
    }

    /// Not the mark of a deletion. And the revision to write over.
    async fn look(&self) -> Result<(Option<StreamMessage>, u64), StoreError> {
        let found = self.bucket.get(&self.key).await?;
        let revision = found.as_ref().map_or(0, |message| message.sequence);
        Ok((found.filter(|message| !is_deletion(&message.headers)), revision))
    }

    /// # Errors
    /// What it holds never ends. If it `was_ours`, it is lost in any case.
    async fn holder_of(&self, message: &StreamMessage, was_ours: bool) -> Result<Holder, StoreError> {
        let info = self.bucket.info(true).await?;
        let lasts = match info.stream.config.max_age {
            // Whole seconds, or a number with a unit, or "never".
            Duration::ZERO => message.headers.get("Nats-TTL").and_then(|lasts| {
                let seconds = lasts.as_str().parse().map(Duration::from_secs).ok();
                seconds.or_else(|| humantime::parse_duration(lasts.as_str()).ok())
            }),
            age => Some(age),
        };
        if lasts.is_none() && !was_ours {
            return Err(StoreError::misconfigured(format!(
                "{} was written without a TTL, so nobody could take it after its holder died: delete it",
                self.name()
            )));
        }
        let age = Duration::from_millis(info.millis.saturating_sub(stored_millis(message)));
        Ok(Holder {
            expires_in: lasts.map(|lasts| lasts.saturating_sub(age)),
            renewed_ago: Some(age),
            foreign_lock: Some(self.name()),
            ..writer_of(&message.payload)
        })
    }

    /// After what time the bucket forgets the key. Zero: each message says when.
    ///
    /// # Errors
    /// It would end too soon, or never.
    async fn max_age(&self, lease: Duration) -> Result<Duration, StoreError> {
        let info = self.bucket.info(true).await?;
        let (name, config) = (&self.bucket.name, &info.stream.config);
        let shortest = lease + info.slack();
        let lasts = config.max_age;
        if lasts.is_zero() && !config.allow_message_ttl {
            return Err(StoreError::misconfigured(format!(
                "bucket {name} forgets nothing, so {} would never be free after its holder died: lock_key= needs a key \
                 in a bucket with a TTL (max_age): write lock_key=BUCKET/KEY",
                self.name()
            )));
        }
        if !lasts.is_zero() && lasts < shortest {
            return Err(StoreError::misconfigured(format!(
                "bucket {name} forgets {} after {}, sooner than the lease ends in the store, after {}: choose a shorter \
                 --lease, or set the bucket's TTL to at least {}",
                self.key,
                show(lasts),
                show(lease),
                show(shortest)
            )));
        }
        Ok(lasts)
    }
}

#[async_trait::async_trait]
impl ForeignLock for LockKey {
    fn name(&self) -> String {
        format!("the key {} of bucket {}", self.key, self.bucket.name)
    }

    async fn holder(&self, candidate: Option<&Candidate>) -> Result<Option<Holder>, StoreError> {
        if let Some(candidate) = candidate {
            // Or else nobody would hear of it before the lock is free.
            self.max_age(candidate.lease).await?;
        }
        let is_other = |message: &StreamMessage| !candidate.is_some_and(|candidate| is_of(message, &candidate.session));
        match self.look().await?.0.filter(is_other) {
            Some(message) => self.holder_of(&message, false).await.map(Some),
            None => Ok(None),
        }
    }

    async fn take(&self, candidate: &Candidate, term: Term, again: bool) -> Result<Hold, StoreError> {
        let mut state = self.state.lock().await;
        if !again {
            let max_age = self.max_age(candidate.lease).await?;
            *state = State { started: wall_clock_millis(), max_age, ..State::default() };
        }
        let mut headers = HeaderMap::new();
        let mut lasts = state.max_age;
        if lasts.is_zero() {
            lasts = candidate.lease;
            headers.insert("Nats-TTL", format!("{}s", lasts.as_millis().div_ceil(1000)));
        }
        let mut known = state.held;
        for _ in 0..MOST_ATTEMPTS {
            let revision = if let Some(revision) = known.take() {
                revision
            } else {
                let (stands, revision) = self.look().await?;
                if stands.is_none() && again && state.held.is_none() {
                    return Ok(Hold::Lost);
                }
                let is_own = stands.as_ref().is_some_and(|message| is_of(message, &candidate.session));
                state.lost |= again && !is_own;
                if let Some(message) = stands.filter(|_| !is_own) {
                    return Ok(Hold::Taken(self.holder_of(&message, again).await?));
                }
                revision
            };
            let record = record(candidate, term, state.started, lasts);
            // None: another process wrote in between.
            if let Some(written) = self.bucket.put(&self.key, headers.clone(), &record, Some(revision)).await? {
                state.held = Some(written);
                return Ok(if state.lost { Hold::Lost } else { Hold::Held });
            }
        }
        Err(self.unsteady())
    }

    async fn let_go(&self, candidate: &Candidate, _term: Term) -> Result<(), StoreError> {
        let mut state = self.state.lock().await;
        state.held = None;
        let mut deleted = HeaderMap::new();
        deleted.insert(OPERATION, DELETION);
        for _ in 0..MOST_ATTEMPTS {
            let (stands, revision) = self.look().await?;
            if !stands.is_some_and(|message| is_of(&message, &candidate.session))
                || self.bucket.put(&self.key, deleted.clone(), "", Some(revision)).await?.is_some()
            {
                return Ok(());
            }
        }
        Err(self.unsteady())
    }

    async fn try_out(&self) -> Result<Option<Holder>, StoreError> {
        self.max_age(Duration::ZERO).await?;
        let holder = self.holder(None).await?;
        self.bucket.put(&self.key, HeaderMap::new(), "", Some(NO_REVISION)).await?;
        Ok(holder)
    }
}

fn is_of(message: &StreamMessage, session: &Session) -> bool {
    serde_json::from_slice::<Value>(&message.payload).is_ok_and(|record| record["session"] == session.as_str())
}
