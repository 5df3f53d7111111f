//! How a leader hears of orders without asking: an ephemeral consumer on its record and on the keys of its orders.
//!
//! The hazard: news may be late, or lost, and a leader that took silence for "no orders" would not hear of a pause. So
//! one consumer brings both, in the order in which the bucket stored them, our own renewals among them. Once it has
//! brought the renewal that was just acknowledged, it has brought every order that was stored before. If that does not
//! happen at once, the orders did not come with this renewal, and are read.
//!
//! A bucket can be changed without any news: keys are purged by hand. So the consumer is replaced once a minute, and
//! the new one begins with what is there.

use super::Nats;
use super::address::{key_of, note_of};
use super::jetstream::Entry;
use super::notes::Kept;
use super::watch::{self, Place, SILENCE};
use crate::lease::Shard;
use crate::store::{ErrorKind, Note, Page, StoreError};
use crate::time::BootInstant;
use async_nats::Message;
use futures_util::StreamExt;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long a consumer is used.
const REPLACED_AFTER: Duration = Duration::from_mins(1);
/// How long a renewal waits for the news of itself. They usually come with its acknowledgement.
const MOST_WAIT: Duration = Duration::from_millis(200);
/// Before the next attempt to make a consumer.
const PAUSE: Duration = Duration::from_secs(1);
/// The same if the server does not let us, or does not know how.
const LONG_PAUSE: Duration = Duration::from_mins(1);
/// The first version whose consumers have several subjects.
const LEAST_VERSION: (u32, u32) = (2, 10);

/// What leaders know of their orders.
#[derive(Default)]
pub struct Heard {
    leaders: Mutex<HashMap<Shard, Leader>>,
    news: Notify,
}

#[derive(Default)]
struct Leader {
    /// The shards whose orders it obeys.
    wanted: Vec<Shard>,
    /// Everything up to this revision of the bucket was brought. None while nothing is known.
    up_to: Option<u64>,
    entries: HashMap<String, Entry>,
    /// Which consumer brought them. What an earlier one still does must not change them.
    consumer: u64,
}

impl Heard {
    fn wanted(&self, shard: &Shard) -> Vec<Shard> {
        self.leaders.lock().get(shard).map(|leader| leader.wanted.clone()).unwrap_or_default()
    }

    /// Says whose orders the leader of `shard` obeys.
    pub fn want(&self, shard: &Shard, orders_of: &[Shard]) {
        let mut leaders = self.leaders.lock();
        let leader = leaders.entry(shard.clone()).or_default();
        if leader.wanted != orders_of {
            *leader = Leader { wanted: orders_of.to_vec(), consumer: leader.consumer + 1, ..Leader::default() };
            drop(leaders);
            self.news.notify_waiters();
        }
    }

    /// The entries under the keys of orders, as they were at `revision` or later. None if they were not brought.
    async fn entries_at(&self, shard: &Shard, revision: u64, wait: Duration) -> Option<HashMap<String, Entry>> {
        let brought = async {
            loop {
                let news = self.news.notified();
                {
                    let leaders = self.leaders.lock();
                    let leader = leaders.get(shard)?;
                    if leader.up_to? >= revision {
                        return Some(leader.entries.clone());
                    }
                }
                news.await;
            }
        };
        timeout(wait, brought).await.ok().flatten()
    }
}

/// Forgets what a consumer brought, however it ends.
struct Hearing<'a> {
    heard: &'a Heard,
    shard: &'a Shard,
    consumer: u64,
}

impl<'a> Hearing<'a> {
    fn begun(heard: &'a Heard, shard: &'a Shard) -> Self {
        let mut leaders = heard.leaders.lock();
        let leader = leaders.entry(shard.clone()).or_default();
        let consumer = leader.consumer + 1;
        *leader = Leader { wanted: std::mem::take(&mut leader.wanted), consumer, ..Leader::default() };
        Self { heard, shard, consumer }
    }

    fn update(&self, change: impl FnOnce(&mut Leader)) {
        let mut leaders = self.heard.leaders.lock();
        if let Some(leader) = leaders.get_mut(self.shard).filter(|leader| leader.consumer == self.consumer) {
            change(leader);
        }
        drop(leaders);
        self.heard.news.notify_waiters();
    }
}

impl Drop for Hearing<'_> {
    fn drop(&mut self) {
        self.update(|leader| (leader.up_to, leader.entries) = (None, HashMap::new()));
    }
}

impl Nats {
    /// The orders of `orders_of` as they were when the renewal was stored that has this revision. None if they were not
    /// brought, cannot be read, or end some time, which the server's clock decides. The renewal began at `called`.
    pub(super) async fn orders_at(
        &self,
        shard: &Shard,
        orders_of: &[Shard],
        revision: u64,
        called: BootInstant,
    ) -> Option<Vec<Option<Note>>> {
        if orders_of.is_empty() {
            return None;
        }
        self.heard.want(shard, orders_of);
        // The renewal is acknowledged: to wait for its news must not make its caller give it up. A server that was
        // frozen has the news as well, and must not be asked for them besides.
        let left = self.bucket.connections.bound().saturating_sub(BootInstant::now().since(called));
        let wait = MOST_WAIT.min(left / 4);
        let entries = self.heard.entries_at(shard, revision, wait).await?;
        let note = |of: &Shard| {
            let key = note_of(of, &Page::Orders);
            let Some(entry) = entries.get(&key) else { return Some(None) };
            match self.kept(&key, entry).ok()? {
                None => Some(None),
                Some(Kept { text, lasts_ms: None }) => Some(Some(Note::for_ever(text))),
                Some(Kept { lasts_ms: Some(_), .. }) => None,
            }
        };
        orders_of.iter().map(note).collect()
    }

    /// Listens for orders for as long as it is polled.
    pub(super) async fn hear_orders(&self, shard: &Shard) {
        loop {
            let news = self.heard.news.notified();
            let wanted = self.heard.wanted(shard);
            if wanted.is_empty() {
                news.await;
                continue;
            }
            let pause = match self.listen_for_orders(shard, &wanted).await {
                Ok(()) => continue,
                Err(error) => match error.kind {
                    ErrorKind::NotApplied | ErrorKind::Unknown => PAUSE,
                    ErrorKind::Denied | ErrorKind::Misconfigured => LONG_PAUSE,
                },
            };
            sleep(pause).await;
        }
    }

    /// Listens to a consumer until it has to be replaced.
    async fn listen_for_orders(&self, shard: &Shard, wanted: &[Shard]) -> Result<(), StoreError> {
        let connections = &self.bucket.connections;
        let connection = connections.connection().await?;
        if connection.version().is_none_or(|version| version < LEAST_VERSION) {
            return Err(StoreError::misconfigured("consumers of this server have one subject"));
        }
        let before = connection.denials();
        let (inbox, mut messages) = watch::open_inbox(connections, &connection).await?;
        let hearing = Hearing::begun(&self.heard, shard);
        self.consume_orders(shard, wanted, &inbox).await?;
        let replace_at = Instant::now() + REPLACED_AFTER;
        let (mut silent_at, mut last, mut complete) = (Instant::now() + SILENCE, 0, false);
        while self.heard.wanted(shard) == wanted {
            tokio::select! {
                biased;
                message = messages.next() => {
                    let Some(message) = message else { return Ok(()) };
                    connection.heard();
                    silent_at = Instant::now() + SILENCE;
                    if watch::last_before(&message).is_some_and(|told| told > last) {
                        return Ok(());
                    }
                    if let Some((key, place, entry)) = self.read_news(&message) {
                        if place.sequence != last + 1 {
                            return Ok(());
                        }
                        last = place.sequence;
                        // What was there before comes first.
                        complete |= place.pending == 0;
                        hearing.update(|leader| {
                            leader.up_to = complete.then_some(place.revision);
                            if key != key_of(shard) {
                                leader.entries.insert(key, entry);
                            }
                        });
                    }
                }
                error = connections.trouble(&connection, &inbox, before) => return Err(error),
                () = sleep_until(silent_at.min(replace_at)) => return Ok(()),
            }
        }
        Ok(())
    }

    async fn consume_orders(&self, shard: &Shard, wanted: &[Shard], inbox: &str) -> Result<(), StoreError> {
        let address = self.bucket.address();
        let keys = wanted.iter().map(|of| note_of(of, &Page::Orders)).chain([key_of(shard)]);
        let subjects = json!(keys.map(|key| address.subject(&key)).collect::<Vec<_>>());
        let filter = ("filter_subjects", subjects.clone());
        let answer = watch::consume(&self.bucket, inbox, filter, "last_per_subject").await?;
        if answer.pointer("/config/filter_subjects") == Some(&subjects) {
            return Ok(());
        }
        Err(StoreError::misconfigured("this server made another consumer"))
    }

    /// A message of the consumer: its key, and what that holds now.
    fn read_news(&self, message: &Message) -> Option<(String, Place, Entry)> {
        let (place, value) = watch::read(message)?;
        let key = message.subject.as_str().strip_prefix(&self.bucket.address().subject(""))?.to_owned();
        let value = value.map(<[u8]>::to_vec);
        Some((key, place, Entry { revision: place.revision, stamp: place.stamp, value, lasts: None }))
    }
}
