//! The store `nats://`: one key for each document in a JetStream key-value bucket, changed only at the revision that
//! was seen.
//!
//! The hazard: a bucket has no leases. It compares revisions, and stamps each message with its clock. So a renewal is a
//! write too, at the revision of the write before. A message says how long after its stamp its lease ends.
//!
//! - Each write has a revision of its own. `store init` makes them begin at the microsecond at which the bucket is
//!   made, so a bucket that was dropped and made again repeats none. Only the absence of a message has the same version
//!   in both: a write over an absence asks afterwards which bucket it is in.
//! - The server tells the time only in an answer about the bucket. So a candidate that looks, or renews, also requests
//!   that if it does not know the time well. In a cluster, one server may stamp a message and another one tell the
//!   time; so there the time counts as earlier, by as much as their clocks may differ (`Info::slack`).
//! - The server pushes what changes to a standby. So a standby looks at what was pushed last, and asks nothing.
//!
//! What the store cannot prevent: a server that loses acknowledged writes (storage in memory, a crash of the machine
//! between two syncs) has forgotten leaderships, and does not know it.

mod address;
mod bucket;
mod check;
mod connection;
mod consumer;
mod document;
mod failure;
mod lock_key;
mod login;
mod meter;
mod setup;

pub use address::{Address, Login};

use super::allowance;
use super::error::denied;
use super::expiry::ServerTime;
use super::foreign_lock::ForeignLock;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, EachSeen, Ends, Found, Key, List, Listed, Over, Properties, Version,
    random_name,
};
use super::server_clock::Clock;
use super::{ErrorKind, Finding, StoreError, parallel};
use crate::time::BootInstant;
use async_nats::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use bucket::{Bucket, Info};
use connection::Connections;
use document::{DELETION, Header, OPERATION};
use lock_key::LockKey;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// For how long the mark stays of a document that was deleted, where the server can forget a message.
const MARK_LASTS: &str = "600s";

/// The documents.
pub struct Keys {
    bucket: Bucket,
    lock: Option<LockKey>,
    clock: Mutex<Clock>,
    /// The bucket as the server last described it.
    known: Mutex<Option<Arc<Info>>>,
}

impl Keys {
    /// Opens the store. Sends no request to the server yet.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let connections = Arc::new(Connections::open(address, request_timeout)?);
        let bucket = |name: &str| Bucket { connections: Arc::clone(&connections), name: name.to_owned() };
        let lock = address.lock_key.as_ref().map(|(name, key)| LockKey::new(bucket(name), key.clone()));
        let bucket = bucket(&address.bucket);
        Ok(Self { bucket, lock, clock: Mutex::default(), known: Mutex::default() })
    }

    /// Asks about the bucket, and what time it is.
    async fn learn(&self) -> Result<Arc<Info>, StoreError> {
        let sent = BootInstant::now();
        let info = Arc::new(self.bucket.info(false).await?);
        self.clock.lock().sample_within(info.millis, info.slack(), sent, BootInstant::now());
        *self.known.lock() = Some(Arc::clone(&info));
        Ok(info)
    }

    /// Whether the server has to be asked for the time.
    fn is_vague(&self) -> bool {
        let now = BootInstant::now();
        let clock = self.clock.lock();
        clock.bounds(now).is_none() || clock.is_wide(now)
    }

    /// What is known of the bucket in which this revision, or a higher one, was seen. If that is of a bucket that was
    /// made since, the server is asked.
    async fn known_with(&self, revision: u64) -> Result<Arc<Info>, StoreError> {
        let known = self.known.lock().clone().filter(|known| revision < known.millis * 1000);
        match known {
            Some(known) => Ok(known),
            None => self.learn().await,
        }
    }

    fn key_in<'a>(&self, message: &'a StreamMessage) -> &'a str {
        message.subject.as_str().strip_prefix(&self.bucket.subject("")).unwrap_or_default()
    }
}

impl ServerTime for Keys {
    fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }
}

#[async_trait::async_trait]
impl Documents for Keys {
    fn place(&self) -> String {
        self.bucket.place()
    }

    fn name(&self, key: Key<'_>) -> String {
        format!("the key {} of {}", document::key_of(key), self.place())
    }

    fn remedy(&self, key: Key<'_>) -> String {
        format!("delete it (nats kv del {} {}) or use another bucket", self.bucket.name, document::key_of(key))
    }

    fn properties(&self) -> Properties {
        Properties { compares_only: true, pushes_documents: true, ..Properties::default() }
    }

    fn lock(&self) -> Option<&dyn ForeignLock> {
        Some(self.lock.as_ref()?)
    }

    async fn get(&self, keys: &[Key<'_>], _may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let names: Vec<String> = keys.iter().map(|&key| document::key_of(key)).collect();
        // The requests below share it.
        self.bucket.connections.connection().await?;
        let asks_the_time = async { if self.is_vague() { self.learn().await.map(drop) } else { Ok(()) } };
        let reads =
            parallel::answers(names.clone().into_iter().map(|name| async move { self.bucket.get(&name).await }));
        let ((), messages) = tokio::try_join!(asks_the_time, reads)?;
        let newest = messages.iter().flatten().map(|message| message.sequence).max().unwrap_or(0);
        let incarnation = self.known_with(newest).await?.incarnation();
        let found = names.iter().zip(&messages);
        Ok(found.map(|(name, message)| document::read(name, message.as_ref(), &incarnation)).collect())
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError> {
        let (Over::Exactly(over) | Over::Text(over)) = over;
        let name = document::key_of(key);
        let expected = over.version.write.parse().unwrap_or(0);
        let header = Header::new(&random_name()?, &draft, over);
        let written = self.bucket.put(&name, header.headers(), draft.text, Some(expected));
        let renews = draft.leadership.is_some() && matches!(draft.ends, Ends::In(_));
        let written = if renews && self.is_vague() { tokio::join!(written, self.learn()).0 } else { written.await };
        let Some(revision) = written? else { return Ok(None) };
        let incarnation = if expected == 0 {
            let known = self.learn().await;
            known.map_err(|error| StoreError { kind: ErrorKind::Unknown, ..error })?.incarnation()
        } else {
            over.version.incarnation.clone()
        };
        // The stamp is not known, but it is no later than now.
        let ours = header.document(draft.text.to_owned(), self.server_millis(BootInstant::now()));
        let version = Version { write: revision.to_string(), incarnation };
        Ok(Some(Found { content: Content::Ours(ours), version }))
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        let mut headers = HeaderMap::new();
        headers.insert(OPERATION, DELETION);
        if self.known.lock().as_ref().is_some_and(|known| known.stream.config.allow_message_ttl) {
            headers.insert("Nats-TTL", MARK_LASTS);
        }
        self.bucket.put(&document::key_of(key), headers, "", None).await.map(drop)
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let bring = async {
            let mut brought = BTreeMap::new();
            let mut pushed = self.bucket.consume(&document::filters(list)).await?;
            while pushed.pending > 0 {
                let message = pushed.next_in_time().await?;
                brought.insert(self.key_in(&message).to_owned(), message);
                allowance::listed(brought.len(), &self.place())?;
            }
            Ok(brought)
        };
        // The requests share it.
        self.bucket.connections.connection().await?;
        let (known, brought) = tokio::try_join!(self.learn(), bring)?;
        let incarnation = known.incarnation();
        let prefix = if let List::Shards(prefix) | List::Standbys(prefix) = list { prefix } else { "" };
        let listed = brought.iter().filter_map(|(key, message)| {
            let (shard, part) = document::listed(key).filter(|(shard, _)| shard.as_str().starts_with(prefix))?;
            let found = document::read(key, Some(message), &incarnation);
            (found.content != Content::Absent).then_some(Listed { shard, part, found })
        });
        each(listed.collect());
        Ok(())
    }

    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let names: Vec<String> = keys.iter().map(|&key| document::key_of(key)).collect();
        let mut known = self.known_with(0).await?;
        let mut pushed = self.bucket.consume(&names).await?;
        let mut awaited: Vec<usize> = (0..names.len()).collect();
        loop {
            if pushed.pending == 0 {
                // What was not pushed by now is not there.
                for index in std::mem::take(&mut awaited) {
                    if each(index, document::read(&names[index], None, &known.incarnation())).is_break() {
                        return Ok(());
                    }
                }
            }
            let message = pushed.next().await?;
            let stored = document::stored_millis(&message).saturating_sub(1);
            self.clock.lock().at_least(stored, known.slack(), BootInstant::now());
            let Some(index) = names.iter().position(|name| name == self.key_in(&message)) else { continue };
            awaited.retain(|&other| other != index);
            known = self.known_with(message.sequence).await?;
            if each(index, document::read(&names[index], Some(&message), &known.incarnation())).is_break() {
                return Ok(());
            }
        }
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        setup::prepare(&self.bucket).await
    }

    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        check::identify(&self.bucket).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        // What an election needs besides documents: a push of the marker, which is there.
        let hear = async { self.bucket.consume(&[document::key_of(Key::Marker)]).await?.next_in_time().await };
        Ok(denied(hear.await.map(drop))?.map(Finding::bad).into_iter().collect())
    }
}
