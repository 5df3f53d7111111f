//! The stores `redis://`, `rediss://`, `redis+unix://` and `redis+sentinel://`: a hash for each document, changed only
//! by a script that runs in the server, by the server's clock.
//!
//! The hazard: Redis forgets. A restart loses what was not persisted, a failover loses what was not replicated, and an
//! operator's FLUSHALL loses everything. So each answer names the server's incarnation: `run_id` is new at each start,
//! and `master_replid` at each promotion of a replica. A write applies only in the incarnation in which its writer
//! read, and over an absence only if nothing was flushed since: the version of an absence is the marker's write.
//!
//! What the store has to trust: the server's clock is not set forward. A candidate that saw the lease before still
//! waits for what it saw, but one that has just started cannot know. And a master that is cut off from its replicas
//! goes on renewing leases while a promoted replica grants others: `wait=` protects against that.

mod address;
mod check;
mod connection;
mod document;
mod failure;
mod lock_key;
mod script;
mod sentinel;

pub use address::Address;

use super::allowance;
use super::expiry::ServerTime;
use super::foreign_lock::ForeignLock;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, EachSeen, Ends, Found, Key, Life, List, Listed, Over, Touch, Touched,
    random_name,
};
use super::server_clock::Clock;
use super::{Finding, StoreError};
use crate::time::{BootInstant, millis};
use connection::Client;
use document::{Names, Place, Shown};
use futures_util::StreamExt;
use lock_key::LockKey;
use parking_lot::Mutex;
use redis::{ToRedisArgs, cmd};
use std::collections::BTreeSet;
use std::sync::{Arc, Once};
use std::time::Duration;

/// The server answers no other client meanwhile, and the notes must fit into `allowance`.
const PAGE: usize = 100;
/// The server answers no other client meanwhile.
const SCAN_PAGE: usize = 500;
/// The server adds the time to a duration, in 63 bits.
const MOST_MILLIS: u64 = 1 << 62;

pub struct Hashes {
    client: Arc<Client>,
    lock: Option<LockKey>,
    names: Names,
    clock: Mutex<Clock>,
    /// Gives the warning that nobody hears of changes only once.
    unheard: Once,
}

impl Hashes {
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let client = Arc::new(Client::new(address, request_timeout)?);
        let lock = address.lock_key.as_ref().map(|key| LockKey::new(key, &client));
        Ok(Self {
            client,
            lock,
            names: Names { prefix: address.prefix.clone() },
            clock: Mutex::default(),
            unheard: Once::new(),
        })
    }

    /// Returns the status, and the documents at the places. More may follow.
    async fn ask(
        &self,
        places: &[Place],
        words: &(impl ToRedisArgs + Sync),
        waits: bool,
    ) -> Result<(String, Vec<Found>), StoreError> {
        let marker = self.names.marker();
        let keys: Vec<&str> =
            std::iter::once(&marker).chain(places.iter().map(|(key, _)| key)).map(|key| &**key).collect();
        let sent = BootInstant::now();
        let (status, (now, incarnation, shown)): (_, (u64, String, Vec<Shown>)) =
            self.client.run(script::DOCUMENTS, &keys, words, waits).await?;
        self.clock.lock().sample_millis(now, sent, BootInstant::now());
        if shown.len() < places.len() {
            return Err(script::not_understood(&self.client));
        }
        Ok((status, shown.iter().map(|shown| document::read(shown, &incarnation)).collect()))
    }

    async fn read(&self, places: &[Place]) -> Result<Vec<Found>, StoreError> {
        let fields: Vec<&str> = places.iter().map(|(_, field)| field.as_str()).collect();
        self.ask(places, &("get", fields), false).await.map(|(_, found)| found)
    }

    /// All keys that match, each once. KEYS would stop the server for all clients. SCAN does not, but it may name a key
    /// twice, and its cursor means nothing to another server. So one scan stays on one connection.
    async fn keys(&self, pattern: &str) -> Result<BTreeSet<String>, StoreError> {
        let mut exchange = self.client.exchange().await?;
        let mut found = BTreeSet::new();
        let mut cursor = 0;
        loop {
            let scan = cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_PAGE).take();
            let (next, keys): (u64, Vec<Vec<u8>>) = exchange.ask(&scan).await?;
            // Keys that are not text are not ours.
            found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
            allowance::listed(found.len(), exchange.place())?;
            if next == 0 {
                return Ok(found);
            }
            cursor = next;
            exchange.deadline = self.client.deadline();
        }
    }
}

impl ServerTime for Hashes {
    fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }
}

#[async_trait::async_trait]
impl Documents for Hashes {
    fn place(&self) -> String {
        self.client.to_string()
    }

    fn name(&self, key: Key<'_>) -> String {
        let (key, field) = self.names.place(key);
        let field = if field.is_empty() { field } else { format!("the field {field} of ") };
        format!("{field}the key {key} in {}", self.client)
    }

    fn remedy(&self, _: Key<'_>) -> String {
        "delete it or use another prefix=".to_owned()
    }

    fn lock(&self) -> Option<&dyn ForeignLock> {
        Some(self.lock.as_ref()?)
    }

    async fn get(&self, keys: &[Key<'_>], _may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let places: Vec<Place> = keys.iter().map(|&key| self.names.place(key)).collect();
        let mut all = Vec::with_capacity(keys.len());
        for page in places.chunks(PAGE) {
            all.extend(self.read(page).await?);
        }
        Ok(all)
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError> {
        let write = random_name()?;
        let wakes = matches!(over, Over::Text(_));
        let (over, judged) = match over {
            Over::Exactly(over) => (over, over.ours()),
            Over::Text(over) => (over, None),
        };
        let sequence_over = judged.map(|ours| ours.sequence.to_string()).unwrap_or_default();
        let ends_over = match judged.map(|ours| ours.life) {
            Some(Life::Ends(ends)) => ends.to_string(),
            _ => String::new(),
        };
        let version = (&over.version.incarnation, &over.version.write, sequence_over, ends_over);
        let (session, term) = draft.leadership.map_or(("", 0), |of| (of.session.as_str(), of.term.0));
        let lasts = match draft.ends {
            Ends::Keep => "keep".to_owned(),
            Ends::In(lasts) => millis(lasts).min(MOST_MILLIS).to_string(),
            Ends::Now => "0".to_owned(),
            Ends::Never => "never".to_owned(),
        };
        let channel = if wakes { self.names.channel(key) } else { String::new() };
        let place = self.names.place(key);
        let words = ("put", &place.1, &write, version, (draft.text, session, term, draft.sequence, lasts, &channel));
        let grants = draft.leadership.is_some() && matches!(draft.ends, Ends::In(_));
        let (status, mut found) = self.ask(std::slice::from_ref(&place), &words, grants).await?;
        if status == "unheard" {
            self.unheard.call_once(|| {
                tracing::warn!(
                    "{} denies PUBLISH to {channel}: a standby notices a release only when the lease would have ended \
                     ('leaderctl store check' names what is missing)",
                    self.client
                );
            });
        }
        Ok(found.pop().filter(|_| status != "refused"))
    }

    async fn touch(&self, touch: Touch<'_>) -> Result<Touched, StoreError> {
        let Touch { leadership, sequence, .. } = touch;
        let also: Vec<String> = touch.also.iter().map(|&key| self.names.place(key).0).collect();
        let words = ("touch", leadership.session.as_str(), leadership.term.0, sequence, millis(touch.lease), also);
        let place = self.names.place(Key::Shard(touch.shard));
        let (status, mut found) = self.ask(&[place], &words, true).await?;
        Ok(match status.as_str() {
            "done" => {
                let own = found.remove(0);
                Touched::Done { found: own, also: Some(found).filter(|also| also.len() == touch.also.len()) }
            }
            "overtaken" => Touched::Overtaken,
            _ => Touched::Refused,
        })
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.client.ask(cmd("DEL").arg(self.names.place(key).0)).await
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let keys = self.keys(&self.names.pattern(list)).await?;
        let named = keys.into_iter().filter_map(|key| Some((self.names.listed(list, &key)?, (key, String::new()))));
        let (named, places): (Vec<_>, Vec<Place>) = named.unzip();
        for (named, places) in named.chunks(PAGE).zip(places.chunks(PAGE)) {
            let listed = named.iter().cloned().zip(self.read(places).await?);
            // It may have vanished since the scan.
            let listed = listed.filter(|(_, found)| found.content != Content::Absent);
            each(listed.map(|((shard, part), found)| Listed { shard, part, found }).collect());
        }
        Ok(())
    }

    /// One connection serves all keys.
    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let channels: Vec<String> = keys.iter().map(|&key| self.names.channel(key)).collect();
        let (messages, allowance) = self.client.subscribe(&channels).await?;
        // What was announced up to now is in the documents that are read next.
        let mut messages = messages.ready_chunks(PAGE);
        loop {
            for (index, found) in self.get(keys, false).await?.into_iter().enumerate() {
                if each(index, found).is_break() {
                    return Ok(());
                }
            }
            allowance.begin_again();
            if messages.next().await.is_none() {
                return Ok(());
            }
        }
    }

    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        check::identify(self).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        check::findings(self).await
    }
}
