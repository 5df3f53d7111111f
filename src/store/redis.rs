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
mod watch;

pub use address::Address;

use super::allowance;
use super::expiry::ServerTime;
use super::foreign_lock::ForeignLock;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, EachSeen, Ends, Found, Key, Life, List, Listed, Over, Touch, Touched,
    Version, random_name,
};
use super::server_clock::Clock;
use super::{Finding, StoreError};
use crate::time::{BootInstant, millis};
use connection::Client;
use document::{Names, Place};
use lock_key::LockKey;
use parking_lot::Mutex;
use redis::{cmd, from_redis_value};
use script::Script;
use std::collections::BTreeSet;
use std::sync::{Arc, Once};
use std::time::Duration;
use watch::Subscription;

/// The server answers no other client meanwhile, and the notes must fit into `allowance`.
const PAGE: usize = 100;
/// The server answers no other client meanwhile.
const SCAN_PAGE: usize = 500;
/// The server adds the time to a duration, in 63 bits.
const MOST_MILLIS: u64 = 1 << 62;

pub struct Hashes {
    client: Arc<Client>,
    lock: Option<LockKey>,
    script: Script,
    names: Names,
    replicas: u32,
    clock: Mutex<Clock>,
    /// Kept from one wait for a change to the next.
    subscription: Mutex<Option<Subscription>>,
    /// Gives the warning that nobody hears of changes only once.
    unheard: Once,
}

impl Hashes {
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let client = Arc::new(Client::new(address, request_timeout)?);
        let lock = address.lock_key.as_ref().map(|key| LockKey::new(key, &client, address.replicas));
        Ok(Self {
            client,
            lock,
            script: Script::new(script::DOCUMENTS),
            names: Names { prefix: address.prefix.clone() },
            replicas: address.replicas,
            clock: Mutex::default(),
            subscription: Mutex::default(),
            unheard: Once::new(),
        })
    }
}

struct Answer {
    status: String,
    /// In their order; see [`document::read`].
    found: Vec<Option<Found>>,
}

impl Hashes {
    async fn ask(&self, places: &[Place], arguments: &[&str], replicas: u32) -> Result<Answer, StoreError> {
        let marker = self.names.marker();
        let keys: Vec<&str> =
            std::iter::once(&marker).chain(places.iter().map(|place| &place.key)).map(String::as_str).collect();
        let sent = BootInstant::now();
        let answer = self.script.run(&self.client, &keys, arguments, replicas).await?;
        let received = BootInstant::now();
        let word = |index: usize| answer.get(index).and_then(script::text);
        let not_understood = || script::not_understood(&self.place());
        let (Some(status), Some(now), Some(incarnation)) = (word(0), word(1), word(2)) else {
            return Err(not_understood());
        };
        let now = now.parse().map_err(|_| not_understood())?;
        self.clock.lock().sample_millis(now, sent, received);
        let found = answer.iter().skip(3).map(|document| document::read(document, &incarnation)).collect();
        Ok(Answer { status, found })
    }

    async fn read(&self, places: &[Place]) -> Result<Vec<Found>, StoreError> {
        let mut arguments = vec!["get"];
        arguments.extend(places.iter().map(|place| place.field.as_str()));
        let answer = self.ask(places, &arguments, 0).await?;
        let found: Option<Vec<_>> = answer.found.into_iter().collect();
        found.filter(|found| found.len() == places.len()).ok_or_else(|| script::not_understood(&self.place()))
    }

    /// All keys that match, each once. KEYS would stop the server for all clients. SCAN does not, but it may name a key
    /// twice, and its cursor means nothing to another server. So one scan stays on one connection.
    async fn keys(&self, pattern: &str) -> Result<BTreeSet<String>, StoreError> {
        let mut exchange = self.client.exchange().await?;
        let mut found = BTreeSet::new();
        let mut cursor = b"0".to_vec();
        loop {
            let answer =
                exchange.ask(cmd("SCAN").arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_PAGE)).await;
            let answer = answer.map_err(|error| exchange.explain(&error))?;
            let page: Result<(Vec<u8>, Vec<Vec<u8>>), _> = from_redis_value(answer);
            let (next, keys) = page.map_err(|_| script::not_understood(exchange.place()))?;
            // Keys that are not text are not ours.
            found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
            allowance::listed(found.len(), exchange.place())?;
            if next == b"0" {
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
        format!("the key {} in {}", self.names.place(key).key, self.place())
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
        let (over, ours) = match over {
            Over::Exactly(over) => (over, over.ours()),
            Over::Text(over) => (over, None),
        };
        let (sequence_over, ends_over) = match ours.map(|ours| (ours.sequence, ours.life)) {
            Some((sequence, Life::Ends(ends))) => (sequence.to_string(), ends.to_string()),
            Some((sequence, _)) => (sequence.to_string(), String::new()),
            None => (String::new(), String::new()),
        };
        let (session, term) = match draft.leadership {
            Some(leadership) => (leadership.session.as_str(), leadership.term.to_string()),
            None => ("", "0".to_owned()),
        };
        let lasts = match draft.ends {
            Ends::Keep => "keep".to_owned(),
            Ends::In(lasts) => millis(lasts).min(MOST_MILLIS).to_string(),
            Ends::Now => "0".to_owned(),
            Ends::Never => "never".to_owned(),
        };
        let place = self.names.place(key);
        let channel = if draft.wakes { self.names.channel(key) } else { String::new() };
        let Version { write: write_over, incarnation } = &over.version;
        let sequence = draft.sequence.to_string();
        let arguments = [
            "put",
            &place.field,
            &write,
            incarnation,
            write_over,
            &sequence_over,
            &ends_over,
            draft.text,
            session,
            &term,
            &sequence,
            &lasts,
            &channel,
        ];
        let grants = draft.leadership.is_some() && matches!(draft.ends, Ends::In(_));
        let replicas = if grants { self.replicas } else { 0 };
        let mut answer = self.ask(std::slice::from_ref(&place), &arguments, replicas).await?;
        let found = answer.found.pop().flatten().ok_or_else(|| script::not_understood(&self.place()))?;
        match answer.status.as_str() {
            "done" => {}
            "unheard" => self.unheard.call_once(|| {
                tracing::warn!(
                    "{} denies PUBLISH to {channel}: a standby notices a release only when the lease would have ended \
                     ('leaderctl store check' names what is missing)",
                    self.place()
                );
            }),
            _ => return Ok(None),
        }
        if grants {
            // A leader needs no subscription.
            self.subscription.lock().take();
        }
        Ok(Some(found))
    }

    async fn touch(&self, touch: Touch<'_>) -> Result<Touched, StoreError> {
        let place = self.names.place(Key::Shard(touch.shard));
        let also: Vec<Place> = touch.also.iter().map(|&key| self.names.place(key)).collect();
        let Touch { leadership, .. } = touch;
        let (term, sequence, lease) =
            (leadership.term.to_string(), touch.sequence.to_string(), millis(touch.lease).to_string());
        let mut arguments = vec!["touch", leadership.session.as_str(), &term, &sequence, &lease];
        arguments.extend(also.iter().map(|place| place.key.as_str()));
        let answer = self.ask(std::slice::from_ref(&place), &arguments, self.replicas).await?;
        let mut found = answer.found.into_iter();
        let own = found.next().flatten().ok_or_else(|| script::not_understood(&self.place()))?;
        Ok(match answer.status.as_str() {
            "done" => Touched::Done { found: own, also: found.collect() },
            "overtaken" => Touched::Overtaken,
            _ => Touched::Refused,
        })
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.client.request(cmd("DEL").arg(self.names.place(key).key)).await.map(drop)
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let keys = self.keys(&self.names.pattern(list)).await?;
        let named = keys.into_iter().filter_map(|key| {
            let (shard, part) = self.names.listed(list, &key)?;
            Some((shard, part, Place { key, field: String::new() }))
        });
        let mut named: Vec<_> = named.collect();
        named.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
        for page in named.chunks(PAGE) {
            let places: Vec<Place> = page.iter().map(|(.., place)| place.clone()).collect();
            let listed = page.iter().zip(self.read(&places).await?).filter_map(|((shard, part, _), found)| {
                // It may have vanished since the scan.
                let is_there = found.content != Content::Absent;
                is_there.then(|| Listed { shard: shard.clone(), part: part.clone(), found })
            });
            each(listed.collect());
        }
        Ok(())
    }

    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        self.follow(keys, each).await
    }

    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        check::identify(self).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        check::findings(self).await
    }
}
