//! The reference: documents in memory, exactly as the trait asks for them. For tests, which put a network of their own in
//! between ([`Way`]), and may have the server forget, restart, or tell another time.

#![allow(dead_code, reason = "each test compiles all of it and uses some")]

use futures_util::FutureExt;
use leaderrun::internals::lease::{Session, Shard};
use leaderrun::internals::store::foreign_lock::ForeignLock;
use leaderrun::internals::store::lease_store::documents::{
    Content, Documents, Draft, EachListed, EachSeen, Ends, Found, Key, Leadership, Life, List, Listed, Marking, Ours,
    Over, Part, Properties, Touch, Touched, Version,
};
use leaderrun::internals::store::lease_store::{LeaseStore, touch};
use leaderrun::internals::store::{Administration, Clock, Delivery, Page, ServerTime, StoreError};
use leaderrun::internals::time::{BootInstant, millis, wall_clock_millis};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// What kind of server it is.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// It renews by itself. Otherwise it can only compare.
    pub touches: bool,
    pub tells: Tells,
    /// The server itself ends documents, and shows no clock. A renewal leaves no trace in the document.
    pub is_leased: bool,
    /// Other programs write the documents of shards.
    pub is_shared: bool,
    /// What it pushes to standbys is as good as a look.
    pub pushes_documents: bool,
    pub marking: Marking,
}

/// How its answers tell the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    Millis,
    /// A `Date` with the whole seconds.
    Seconds,
    Nothing,
}

impl Style {
    /// As a server with scripts or statements.
    pub const SCRIPTED: Self = Self {
        touches: true,
        tells: Tells::Millis,
        is_leased: false,
        is_shared: false,
        pushes_documents: false,
        marking: Marking::ByAnyone,
    };
    /// As etcd.
    pub const LEASED: Self = Self { tells: Tells::Nothing, is_leased: true, ..Self::SCRIPTED };
    /// As object storage.
    pub const COMPARING: Self =
        Self { touches: false, tells: Tells::Seconds, marking: Marking::ByInit, ..Self::SCRIPTED };
    /// As DynamoDB.
    pub const SHARED: Self =
        Self { tells: Tells::Seconds, is_shared: true, marking: Marking::ByWriters, ..Self::SCRIPTED };
    /// As NATS.
    pub const PUSHING: Self = Self { touches: false, pushes_documents: true, ..Self::SCRIPTED };
    /// As Kubernetes.
    pub const SHARED_PUSHING: Self = Self { tells: Tells::Seconds, is_shared: true, ..Self::PUSHING };

    #[must_use]
    pub fn delivery(self) -> Delivery {
        if self.pushes_documents || (self.touches && !self.is_shared) { Delivery::Push } else { Delivery::Poll }
    }
}

/// The name of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    Marker,
    Shard(Shard),
    Led(Shard),
    Note(Shard, Page),
    Scratch(String),
}

impl From<Key<'_>> for Name {
    fn from(key: Key<'_>) -> Self {
        match key {
            Key::Marker => Self::Marker,
            Key::Shard(shard) => Self::Shard(shard.clone()),
            Key::Led(shard) => Self::Led(shard.clone()),
            Key::Note(shard, page) => Self::Note(shard.clone(), page.clone()),
            Key::Scratch(name) => Self::Scratch(name.to_owned()),
        }
    }
}

/// A document as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Some: another program wrote it.
    pub foreign: Option<Content>,
    pub text: String,
    pub leadership: Option<Leadership>,
    pub sequence: u64,
    /// In milliseconds since 1970. None: never.
    pub ends: Option<u64>,
    pub write: String,
}

/// All documents.
pub type Contents = BTreeMap<Name, Kept>;

/// A server with documents.
pub struct Server {
    style: Style,
    /// In milliseconds since 1970.
    time: fn() -> u64,
    state: Mutex<State>,
    /// Rung by each write that wakes, or by each write where documents are pushed. (A `watch` of tokio wakes in a random order, and a simulation repeats itself.)
    news: Notify,
}

#[derive(Default)]
struct State {
    documents: Contents,
    incarnation: u64,
    /// How often a document was changed since the marker was written.
    changes: u64,
    /// How far its clock was set.
    step_millis: i64,
}

/// A write, as the server gets it.
#[derive(Clone, Debug)]
pub struct Write {
    name: Name,
    text: String,
    leadership: Option<Leadership>,
    sequence: u64,
    ends: Ends,
    /// The end of `Ends::In` and `Ends::Now`, where the client sets it.
    dated: Option<u64>,
    wakes: bool,
    over: Found,
    exactly: bool,
    /// Another one for each write: sent twice, it is the same.
    nonce: String,
}

/// A renewal, as the server gets it.
#[derive(Clone, Debug)]
pub struct Prolong {
    shard: Shard,
    leadership: Leadership,
    sequence: u64,
    lease: Duration,
    also: Vec<Name>,
}

impl Server {
    #[must_use]
    pub fn new(style: Style, time: fn() -> u64) -> Self {
        Self { style, time, state: Mutex::default(), news: Notify::new() }
    }

    /// What its clock shows, in milliseconds since 1970.
    #[must_use]
    pub fn now(&self) -> u64 {
        (self.time)().saturating_add_signed(self.state.lock().step_millis)
    }

    /// Sets its clock forward, or back.
    pub fn step(&self, millis: i64) {
        self.state.lock().step_millis += millis;
    }

    #[must_use]
    pub fn contents(&self) -> Contents {
        self.state.lock().documents.clone()
    }

    /// Replaces everything, and nobody is told: a backup that is restored in place, an operator's edit.
    pub fn restore(&self, contents: Contents) {
        let mut state = self.state.lock();
        state.documents = contents;
        state.changes += 1;
        drop(state);
        self.wake();
    }

    /// Everything is gone, in the same life of the server.
    pub fn wipe(&self) {
        self.restore(Contents::new());
    }

    /// Another life of its memory begins, with what it has.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        (state.incarnation, state.changes) = (state.incarnation + 1, 0);
        drop(state);
        self.wake();
    }

    /// Another server answers, with the same documents: the one with this number.
    pub fn answers_as(&self, number: u64) {
        self.state.lock().incarnation = number;
    }

    fn wake(&self) {
        self.news.notify_waiters();
    }

    fn found(&self, state: &State, name: &Name) -> Found {
        let kept = state.documents.get(name);
        let write = kept.map(|kept| kept.write.clone()).unwrap_or_default();
        let incarnation = match self.style.marking {
            Marking::ByInit => String::new(),
            Marking::ByAnyone | Marking::ByWriters => format!("life {}", state.incarnation),
        };
        let now = (self.time)().saturating_add_signed(state.step_millis);
        let content = kept.map_or(Content::Absent, |kept| {
            let life = match kept.ends {
                None => Life::ForEver,
                Some(ends) if !self.style.is_leased => Life::Ends(ends),
                Some(ends) if ends <= now => Life::Over,
                Some(ends) => Life::Left { at_most: Duration::from_millis(ends - now) },
            };
            let sequence = if self.style.is_leased { 0 } else { kept.sequence };
            let (text, leadership) = (kept.text.clone(), kept.leadership.clone());
            kept.foreign.clone().unwrap_or(Content::Ours(Ours { text, leadership, sequence, life }))
        });
        Found { content, version: Version { write, incarnation } }
    }

    #[must_use]
    pub fn get(&self, names: &[Name]) -> Vec<Found> {
        let state = self.state.lock();
        names.iter().map(|name| self.found(&state, name)).collect()
    }

    #[must_use]
    pub fn put(&self, write: &Write) -> Option<Found> {
        let now = self.now();
        let mut state = self.state.lock();
        let standing = self.found(&state, &write.name);
        if standing.version.write == write.nonce {
            return Some(standing);
        }
        let is_same = if write.exactly { same(&standing, &write.over) } else { standing.version == write.over.version };
        let before = state.documents.get(&write.name);
        // However old the look was by which the writer judged.
        let is_held = before.is_some_and(|kept| {
            let session = kept.leadership.as_ref().map(|of| &of.session);
            let is_anothers = session.is_some() && session != write.leadership.as_ref().map(|of| &of.session);
            is_anothers && write.leadership.is_some() && kept.ends.is_some_and(|ends| ends > now)
        });
        if !is_same || (self.style.is_leased && is_held) {
            return None;
        }
        let (sequence, ends) = match write.ends {
            Ends::Keep => before.map_or((0, None), |kept| (kept.sequence, kept.ends)),
            Ends::In(lasts) => (write.sequence, Some(write.dated.unwrap_or(now.saturating_add(millis(lasts))))),
            Ends::Now => (write.sequence, Some(write.dated.unwrap_or(now))),
            Ends::Never => (write.sequence, None),
        };
        let kept = Kept {
            foreign: None,
            text: write.text.clone(),
            leadership: write.leadership.clone(),
            sequence,
            ends,
            write: write.nonce.clone(),
        };
        state.documents.insert(write.name.clone(), kept);
        state.changes = if write.name == Name::Marker { 0 } else { state.changes + 1 };
        let found = self.found(&state, &write.name);
        drop(state);
        if write.wakes || self.style.pushes_documents {
            self.wake();
        }
        Some(found)
    }

    #[must_use]
    pub fn touch(&self, prolong: &Prolong) -> Touched {
        let now = self.now();
        let mut state = self.state.lock();
        let name = Name::Shard(prolong.shard.clone());
        let has_ended = |kept: &Kept| self.style.is_leased && kept.ends.is_some_and(|ends| ends <= now);
        let kept = state.documents.get_mut(&name).filter(|kept| kept.foreign.is_none() && !has_ended(kept));
        match kept.filter(|kept| kept.leadership.as_ref() == Some(&prolong.leadership)) {
            Some(kept) if kept.sequence > prolong.sequence => return Touched::Overtaken,
            Some(kept) => {
                if kept.sequence < prolong.sequence {
                    kept.sequence = prolong.sequence;
                    kept.ends = Some(now.saturating_add(millis(prolong.lease)));
                }
            }
            None => return Touched::Refused,
        }
        let also = prolong.also.iter().map(|name| self.found(&state, name)).collect();
        Touched::Done { found: self.found(&state, &name), also: Some(also) }
    }

    pub fn remove(&self, name: &Name) {
        let mut state = self.state.lock();
        state.documents.remove(name);
        state.changes += 1;
    }

    #[must_use]
    pub fn list(&self, keep: &dyn Fn(&Name) -> bool) -> Vec<(Name, Found)> {
        let state = self.state.lock();
        let names = state.documents.keys().filter(|name| keep(name));
        names.map(|name| (name.clone(), self.found(&state, name))).collect()
    }
}

/// Whether exactly this stands there. What is left of a lease whose renewals leave no trace says nothing.
fn same(standing: &Found, over: &Found) -> bool {
    let (Content::Ours(one), Content::Ours(other)) = (&standing.content, &over.content) else {
        return standing == over;
    };
    let is_left = |life| matches!(life, Life::Left { .. });
    let other =
        Ours { life: if is_left(one.life) && is_left(other.life) { one.life } else { other.life }, ..other.clone() };
    standing.version == over.version && *one == other
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Get { names: Vec<Name>, may_be_behind: bool },
    Put(Name),
    Touch(Shard),
    Remove(Name),
    List,
}

/// What lies between a client and the server.
pub trait Way: Send + Sync {
    /// Has the server `serve` a request.
    fn carry<A: Send + 'static>(
        &self,
        step: Step,
        serve: impl Fn() -> A + Send + Sync + 'static,
    ) -> impl Future<Output = Result<A, StoreError>> + Send;
}

/// Nothing lies between.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Way for Direct {
    async fn carry<A: Send + 'static>(
        &self,
        _: Step,
        serve: impl Fn() -> A + Send + Sync + 'static,
    ) -> Result<A, StoreError> {
        Ok(serve())
    }
}

/// A client of a server in memory.
pub struct Memory<W = Direct> {
    server: Arc<Server>,
    way: W,
    clock: Mutex<Clock>,
    changes: AtomicU64,
    lock: Option<Box<dyn ForeignLock>>,
}

/// The lease protocol over them, on a server of its own, as its operator prepares it: it has forgotten nobody.
#[must_use]
pub fn reference() -> LeaseStore {
    reference_by(Direct)
}

/// The same, where this lies between.
#[must_use]
pub fn reference_by(way: impl Way + 'static) -> LeaseStore {
    let server = Server::new(Style::SCRIPTED, wall_clock_millis);
    let store = LeaseStore::new(Memory::new(Arc::new(server), way));
    let vouched = store.vouch().now_or_never();
    vouched.expect("the memory does not wait").expect("it answers");
    store
}

impl<W: Way> Memory<W> {
    pub fn new(server: Arc<Server>, way: W) -> Self {
        Self { server, way, clock: Mutex::default(), changes: AtomicU64::default(), lock: None }
    }

    /// With a lock of other programs beside the leases.
    #[must_use]
    pub fn beside(self, lock: impl ForeignLock + 'static) -> Self {
        Self { lock: Some(Box::new(lock)), ..self }
    }

    async fn ask<A: Send + 'static>(
        &self,
        step: Step,
        serve: impl Fn(&Server) -> A + Send + Sync + 'static,
    ) -> Result<A, StoreError> {
        let server = Arc::clone(&self.server);
        let sent = BootInstant::now();
        let serve = move || (server.now(), serve(&server), server.state.lock().changes);
        let (now, answer, changes) = self.way.carry(step, serve).await?;
        self.changes.store(changes, Ordering::Relaxed);
        let received = BootInstant::now();
        match self.server.style.tells {
            Tells::Millis => self.clock.lock().sample_millis(now, sent, received),
            Tells::Seconds => self.clock.lock().sample(now / 1000, sent, received),
            Tells::Nothing => {}
        }
        Ok(answer)
    }
}

impl<W: Way> ServerTime for Memory<W> {
    fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }
}

#[async_trait::async_trait]
impl<W: Way> Documents for Memory<W> {
    fn place(&self) -> String {
        "the memory".to_owned()
    }

    fn name(&self, key: Key<'_>) -> String {
        format!("the document {:?}", Name::from(key))
    }

    fn remedy(&self, _: Key<'_>) -> String {
        "delete it, or use another place for the leases".to_owned()
    }

    fn properties(&self) -> Properties {
        let Style { touches, tells, is_leased, is_shared, pushes_documents, marking } = self.server.style;
        Properties {
            marking,
            delivery: self.server.style.delivery(),
            is_shared,
            pushes_documents,
            tells_time: tells == Tells::Millis,
            has_clock: !is_leased,
            compares_only: !touches,
            ..Properties::default()
        }
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn lock(&self) -> Option<&dyn ForeignLock> {
        self.lock.as_deref()
    }

    async fn get(&self, keys: &[Key<'_>], may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let names: Vec<Name> = keys.iter().map(|&key| key.into()).collect();
        self.ask(Step::Get { names: names.clone(), may_be_behind }, move |server| server.get(&names)).await
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError> {
        let nonce = Session::random().expect("the kernel has random bytes").as_str().to_owned();
        let (over, exactly) = match over {
            Over::Exactly(found) => (found, true),
            Over::Text(found) => (found, false),
        };
        let sent = BootInstant::now();
        let dated = match draft.ends {
            Ends::In(lasts) => Some(self.expiry(sent, lasts)),
            Ends::Now => Some(self.expiry(sent, Duration::ZERO)),
            Ends::Keep | Ends::Never => None,
        };
        let write = Write {
            name: key.into(),
            text: draft.text.to_owned(),
            leadership: draft.leadership.cloned(),
            sequence: draft.sequence,
            ends: draft.ends,
            dated: dated.filter(|_| !self.server.style.touches && self.server.style.tells != Tells::Millis),
            wakes: !exactly,
            over: over.clone(),
            exactly: exactly || !self.server.style.touches,
            nonce,
        };
        self.ask(Step::Put(key.into()), move |server| server.put(&write)).await
    }

    async fn touch(&self, touch: Touch<'_>) -> Result<Touched, StoreError> {
        if !self.server.style.touches {
            return touch::by_put(self, touch).await;
        }
        let prolong = Prolong {
            shard: touch.shard.clone(),
            leadership: touch.leadership.clone(),
            sequence: touch.sequence,
            lease: touch.lease,
            also: touch.also.iter().map(|&key| key.into()).collect(),
        };
        self.ask(Step::Touch(touch.shard.clone()), move |server| server.touch(&prolong)).await
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        let name = Name::from(key);
        self.ask(Step::Remove(name.clone()), move |server| server.remove(&name)).await
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let (prefix, of) = match list {
            List::Shards(prefix) | List::Standbys(prefix) => (prefix.to_owned(), None),
            List::Notes(shard) => (String::new(), Some(shard.clone())),
        };
        let is_of_shards = matches!(list, List::Shards(_));
        let is_shared = self.server.style.is_shared;
        let keep = move |name: &Name| match (name, &of) {
            (Name::Shard(shard), _) => is_of_shards && shard.as_str().starts_with(&prefix),
            (Name::Led(shard), _) => is_of_shards && is_shared && shard.as_str().starts_with(&prefix),
            (Name::Note(shard, _), Some(of)) => shard == of,
            (Name::Note(shard, Page::Standby(_)), None) => !is_of_shards && shard.as_str().starts_with(&prefix),
            _ => false,
        };
        let found = self.ask(Step::List, move |server| server.list(&keep)).await?;
        let listed = found.into_iter().filter_map(|(name, found)| match name {
            Name::Shard(shard) => Some(Listed { shard, part: Part::Lease, found }),
            Name::Led(shard) => Some(Listed { shard, part: Part::Led, found }),
            Name::Note(shard, page) => Some(Listed { shard, part: Part::Note(page), found }),
            Name::Marker | Name::Scratch(_) => None,
        });
        each(listed.collect());
        Ok(())
    }

    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        if self.properties().delivery == Delivery::Poll {
            return std::future::pending().await;
        }
        loop {
            // It misses nothing that is rung from here on.
            let news = self.server.news.notified();
            for (index, found) in self.get(keys, false).await?.into_iter().enumerate() {
                if each(index, found) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            news.await;
        }
    }
}
