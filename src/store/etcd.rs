//! The store `etcd://`: a key for each document, changed only by transactions; and beside the document of a shard that is
//! led another key, on an etcd lease, which is the document's clock.
//!
//! The hazard: an etcd lease may live longer than people expect, and a key may vanish before its lease does. So:
//!
//! - **A renewal writes nothing.** It keeps the etcd lease alive, and reads the document and the key beside it, over one
//!   connection to one member. A renewal that wrote would fill etcd's history, and wake every standby.
//! - **A deposed leader of etcd may answer a renewal**, and keep alive what its successor lets expire
//!   (etcd-io/etcd#15247). A new leader gives every lease its whole time again when it takes over, so the answer is
//!   wrong only if the takeover was before the renewal was sent. Both answers carry the raft term of the last entry
//!   that our member had applied: the first as of when it received the renewal, the second as of when a quorum had
//!   confirmed the leader. If both terms are the same, no leader was elected in between. If they differ, the renewal is
//!   sent again.
//! - **A claim compares that no key stands beside the document**, unless it is its own session's. A key that was deleted
//!   by hand says nothing: while the etcd lease that the document names lives, its holder may count on it, and every other
//!   candidate is refused. The holder puts its key back. Once that lease is gone, nobody counts on it.
//! - **A revocation** deletes the key, and leaves the etcd lease in the document, so the next leader waits for its end.
//! - **etcd may forget everything**: its data is lost, it was restored from a backup, the prefix was deleted. Each answer
//!   names the cluster and shows the marker, and the marker names the life of the cluster's memory in which it was
//!   written. Another cluster, or a revision below one that was seen, is another life. The marker is young while a key
//!   beside it stands, which an etcd lease of a day ends.
//!
//! A restart of etcd, or a change of its leader, makes leases longer, never shorter. For etcd, `etcdctl lease revoke` is
//! the same as an expiry.

mod address;
mod check;
mod connection;
mod document;
mod failure;
mod lease;
mod proto;
mod watch;

pub use address::Address;

use super::allowance::{self, MOST_LISTED};
use super::expiry::ServerTime;
use super::lease_store::LeaseStore;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, EachSeen, Ends, Found, Key, Leadership, Life, List, Listed, Ours, Over,
    Part, Put, Renewing, Touch, Touched, Version,
};
use super::server_clock::Clock;
use super::{ErrorKind, Finding, Holder, StoreError, parallel};
use crate::lease::{Session, Shard};
use crate::time::wall_clock_millis;
use connection::{Client, Connection};
use document::{Names, Record, Revisions};
use failure::Failure;
use lease::Leases;
use parking_lot::Mutex;
use proto::{
    KeyValue, LeaseKeepAliveResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader, TXN, TxnRequest,
    TxnResponse, delete, get, is_unchanged, put, range,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use watch::Sight;

/// How many documents one request reads. Servers take 128 operations, unless --max-txn-ops says otherwise.
const PAGE: usize = 60;
/// How many keys one request lists.
const LIST_PAGE: i64 = 250;
/// The most etcd leases that a list asks for the time they have left. Ten thousand take longer than a second.
const MOST_ASKED: i64 = 1000;
/// How often a renewal is sent again because etcd changed its leader, or the document its etcd lease.
const MOST_ATTEMPTS: usize = 4;
/// What is left of a document that ended since it was read.
const A_MOMENT: Duration = Duration::from_millis(1);

pub type Etcd = LeaseStore<Keys>;

/// The documents.
pub struct Keys {
    client: Arc<Client>,
    names: Names,
    leases: Arc<Leases>,
    past: Mutex<Past>,
    /// The etcd lease beside the marker, and what was left of it at most when this process first saw it.
    young: Mutex<Option<(i64, Duration)>>,
    sights: Mutex<HashMap<Shard, Sight>>,
}

/// The revisions of etcd that were seen.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    highest: i64,
    /// The last one that was below an earlier one.
    fell_to: i64,
}

impl Past {
    /// The life of the server's memory that answered: as the marker says, if that is of this cluster, and not of a backup.
    /// `earlier` is a revision that was seen before the request was sent.
    fn incarnation(
        &mut self,
        header: &ResponseHeader,
        earlier: i64,
        marker: Option<&KeyValue>,
        is_young: bool,
    ) -> String {
        if header.revision < earlier {
            *self = Self { highest: header.revision, fell_to: header.revision };
        }
        self.highest = self.highest.max(header.revision);
        let cluster = format!("{:x}.", header.cluster_id);
        let is_trusted = |marker: &&KeyValue| is_young || marker.mod_revision > self.fell_to;
        let says = marker.filter(is_trusted).and_then(|marker| Record::read(&marker.value).ok()?.incarnation);
        says.filter(|says| says.starts_with(&cluster)).unwrap_or_else(|| format!("{cluster}{}", header.revision))
    }
}

/// What a transaction showed.
struct Answer {
    revision: i64,
    raft_term: u64,
    /// When the marker was written last.
    marker: i64,
    incarnation: String,
    found: std::vec::IntoIter<RangeResponse>,
}

impl Answer {
    fn next(&mut self) -> Option<KeyValue> {
        self.found.next()?.kvs.into_iter().next()
    }
}

/// A page of a list.
struct Page {
    range: RangeResponse,
    marker: i64,
    incarnation: String,
}

/// A document, and the key beside it, at one revision.
struct Stands {
    record: Option<Record>,
    beside: Option<KeyValue>,
    version: Version,
}

impl Etcd {
    /// Opens the store. Sends no request yet.
    ///
    /// # Errors
    /// Misconfigured, if a file for TLS cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let client = Arc::new(Client::open(address, request_timeout)?);
        let leases = Arc::new(Leases::new(Arc::clone(&client)));
        let names = Names { prefix: address.prefix.clone() };
        let (past, young, sights) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Self::new(Keys { client, names, leases, past, young, sights }))
    }
}

/// Whether the key that was read stays for a whole lease from when both requests were sent: its etcd lease was kept alive,
/// and by the present leader of etcd. See the hazards of this store.
fn is_proof(kept: &LeaseKeepAliveResponse, raft_term: u64) -> bool {
    kept.header.as_ref().is_some_and(|header| header.raft_term == raft_term && raft_term > 0)
}

fn strange(name: &[u8], connection: &Connection, why: &str) -> StoreError {
    StoreError::misconfigured(format!(
        "the key {} in etcd at {} was written by something else ({why}): delete it once no leaderrun uses it, or use \
         another prefix",
        String::from_utf8_lossy(name),
        connection.server
    ))
}

impl Keys {
    /// Sends a transaction, which shows the marker as well.
    async fn transact(&self, connection: &Arc<Connection>, mut request: TxnRequest) -> Result<Answer, Failure> {
        let marker = self.names.of(Key::Marker);
        let young = self.names.beside(Key::Marker).unwrap_or_default();
        for branch in [&mut request.success, &mut request.failure] {
            branch.extend([get(&marker), get(&young)]);
        }
        let earlier = self.past.lock().highest;
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        let header = answer.header.clone().unwrap_or_default();
        let mut found: Vec<RangeResponse> = answer.ranges().collect();
        let (Some(young), Some(marker)) = (found.pop(), found.pop()) else {
            let server = &connection.server;
            let message = format!("{server} answers a Txn with less than was asked: it is not etcd 3.4 or later");
            return Err(StoreError::misconfigured(message).into());
        };
        let marker = marker.kvs.first();
        Ok(Answer {
            revision: header.revision,
            raft_term: header.raft_term,
            marker: marker.map_or(0, |marker| marker.mod_revision),
            incarnation: self.past.lock().incarnation(&header, earlier, marker, !young.kvs.is_empty()),
            found: found.into_iter(),
        })
    }

    /// What to ask for about a key, in the order of [`Keys::stands`].
    fn gets(&self, key: Key<'_>) -> Vec<RequestOp> {
        [Some(self.names.of(key)), self.names.beside(key)].iter().flatten().map(|name| get(name)).collect()
    }

    /// Reads what a transaction showed of a key.
    fn stands(&self, connection: &Connection, key: Key<'_>, answer: &mut Answer) -> Result<Stands, StoreError> {
        let name = self.names.of(key);
        let document = answer.next();
        let beside_name = self.names.beside(key);
        let beside = beside_name.as_ref().and_then(|_| answer.next());
        let record = document.as_ref().map(|document| Record::read(&document.value)).transpose();
        let record = record.map_err(|why| strange(&name, connection, &why))?;
        if let Some(name) = beside_name.filter(|_| beside.as_ref().is_some_and(|beside| beside.lease == 0)) {
            return Err(strange(&name, connection, "it is attached to no lease"));
        }
        let changed = |kv: &Option<KeyValue>| kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let revisions = Revisions {
            marker: answer.marker,
            document: changed(&document),
            beside: changed(&beside),
            lease: record.as_ref().map_or(0, |record| record.lease),
        };
        let version = Version { write: revisions.to_string(), incarnation: answer.incarnation.clone() };
        Ok(Stands { record, beside, version })
    }

    /// Asks for the etcd lease of what stands at a key.
    async fn judge(&self, connection: &Arc<Connection>, key: Key<'_>, stands: Stands) -> Result<Found, StoreError> {
        let Stands { record, beside, version } = stands;
        let lease = record.as_ref().map_or(0, |record| record.lease);
        if let Some(other) = beside.as_ref().filter(|beside| beside.lease != lease)
            && let Some(at_most) = self.leases.left(connection, other.lease).await?
        {
            let owner = String::from_utf8_lossy(&other.value).into_owned();
            let holder = Holder { owner, ..Holder::default() };
            let (sign, life) = (other.mod_revision.to_string(), Life::Left { at_most });
            return Ok(Found { content: Content::Foreign { holder, sign, life }, version });
        }
        let is_marker = key == Key::Marker;
        let known = self.young.lock().filter(|(known, _)| is_marker && *known == lease);
        let left = match known {
            _ if lease == 0 => return Ok(found(record, Life::ForEver, version)),
            // Gone for good.
            _ if is_marker && beside.is_none() => None,
            Some((_, at_most)) => Some(at_most),
            None => self.leases.left(connection, lease).await?,
        };
        if is_marker {
            *self.young.lock() = left.map(|at_most| (lease, at_most));
        }
        let life = match left {
            Some(at_most) => Life::Left { at_most },
            // It was read before it ended.
            None if matches!(key, Key::Note(..)) => Life::Left { at_most: A_MOMENT },
            None => Life::Over,
        };
        Ok(found(record, life, version))
    }

    async fn read(&self, connection: Arc<Connection>, keys: &[Key<'_>]) -> Result<(Vec<Found>, i64), StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let success = keys.iter().flat_map(|&key| self.gets(key)).collect();
            let mut answer = self.transact(&connection, TxnRequest { success, ..TxnRequest::default() }).await?;
            let stands = keys.iter().map(|&key| self.stands(&connection, key, &mut answer));
            let stands = stands.collect::<Result<Vec<_>, _>>()?;
            let found = keys.iter().zip(stands).map(|(&key, stands)| self.judge(&connection, key, stands));
            let found = parallel::all(found).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            // An etcd lease that is gone has taken its key with it. Where the key stood, the document may name another one
            // by now.
            let is_over = |found: &Found| found.ours().is_some_and(|ours| ours.life == Life::Over);
            if found.iter().any(|found| is_over(found) && watch::has_key(found)) {
                continue;
            }
            for (key, found) in keys.iter().zip(&found) {
                self.saw(*key, found, answer.revision);
            }
            return Ok((found, answer.revision));
        }
        Err(StoreError::unknown(format!("{} changes faster than it can be read", self.place())))
    }

    fn saw(&self, key: Key<'_>, found: &Found, revision: i64) {
        if let Key::Shard(shard) = key {
            self.sights.lock().insert(shard.clone(), Sight { found: found.clone(), revision });
        }
    }

    /// The document of a shard as it stands.
    async fn sight(&self, shard: &Shard) -> Result<Sight, StoreError> {
        let keys = [Key::Shard(shard)];
        let (mut found, revision) = self.client.operate(|connection| Box::pin(self.read(connection, &keys))).await?;
        Ok(Sight { found: found.remove(0), revision })
    }

    /// The transaction of a write, for which the etcd lease `lease` was granted; zero: none was.
    fn write(&self, key: Key<'_>, record: &Record, lease: i64, draft: &Draft<'_>, over: &Found) -> TxnRequest {
        let name = self.names.of(key);
        let before = Revisions::read(&over.version.write);
        let mut compare = vec![is_unchanged(&name, before.document)];
        if key != Key::Marker {
            compare.push(is_unchanged(&self.names.of(Key::Marker), before.marker));
        }
        let beside = self.names.beside(key);
        let mut success = vec![put(&name, record.bytes(), if beside.is_some() { 0 } else { record.lease })];
        match beside {
            Some(beside) if lease != 0 => {
                if key != Key::Marker {
                    let session = |of: Option<&Leadership>| of.map(|of| of.session.clone());
                    let is_own = session(over.leadership()) == session(draft.leadership);
                    compare.push(is_unchanged(&beside, if is_own { before.beside } else { 0 }));
                }
                success.push(put(&beside, draft.owner.unwrap_or("leaderrun").into(), lease));
            }
            Some(beside) if draft.leadership.is_none() => success.push(delete(&beside)),
            Some(_) | None => {}
        }
        success.extend(self.gets(key));
        TxnRequest { compare, success, failure: self.gets(key) }
    }

    async fn touch_on(&self, connection: Arc<Connection>, touch: Touch<'_>) -> Result<Touched, StoreError> {
        let key = Key::Shard(touch.shard);
        let mut lease = touch.known.map_or(0, |known| Revisions::read(&known.version.write).lease);
        let mut also = touch.also;
        for _ in 0..MOST_ATTEMPTS {
            let success = [key].iter().chain(also).flat_map(|&key| self.gets(key)).collect();
            let read = self.transact(&connection, TxnRequest { success, ..TxnRequest::default() });
            // In this order.
            let (kept, read) = tokio::join!(self.leases.keep_alive(&connection, lease), read);
            let mut answer = match read {
                // What else is denied must not cost the lease.
                Err(failure) if failure.error.kind == ErrorKind::Denied && !also.is_empty() => {
                    also = &[];
                    continue;
                }
                read => read?,
            };
            let stands = self.stands(&connection, key, &mut answer)?;
            let named = stands.record.as_ref().filter(|record| record.leadership().as_ref() == Some(touch.leadership));
            let Some(named) = named.map(|record| record.lease).filter(|named| *named != 0) else {
                let found = self.judge(&connection, key, stands).await?;
                return Ok(Touched { outcome: Renewing::Refused, found, also: None });
            };
            if named != lease {
                lease = named;
                continue;
            }
            let kept = kept?;
            if kept.ttl_seconds <= 0 || stands.beside.as_ref().is_some_and(|beside| beside.lease != lease) {
                let found = self.judge(&connection, key, stands).await?;
                return Ok(Touched { outcome: Renewing::Refused, found, also: None });
            }
            if !is_proof(&kept, answer.raft_term) {
                continue;
            }
            if lease::seconds(kept.ttl_seconds) < touch.lease {
                return Err(StoreError::unknown(format!(
                    "etcd at {} kept the lease of shard {} for {} s only",
                    connection.server, touch.shard, kept.ttl_seconds
                )));
            }
            if stands.beside.is_none() {
                self.put_back(&connection, &touch, &stands.version, lease).await?;
                continue;
            }
            let others = also.iter().map(|&key| Ok((key, self.stands(&connection, key, &mut answer)?)));
            let others: Result<Vec<_>, StoreError> = others.collect();
            let others = match others {
                Ok(others) if also.len() == touch.also.len() => {
                    let judged = others.into_iter().map(|(key, stands)| self.judge(&connection, key, stands));
                    parallel::all(judged).await.into_iter().collect::<Result<Vec<_>, _>>().ok()
                }
                Ok(_) | Err(_) => None,
            };
            let found = found(stands.record, Life::Left { at_most: lease::seconds(kept.ttl_seconds) }, stands.version);
            self.saw(key, &found, answer.revision);
            return Ok(Touched { outcome: Renewing::Done, found, also: others });
        }
        Err(StoreError::unknown(format!(
            "etcd at {} changes its leader, or {}, while the lease is renewed",
            connection.server,
            self.name(key)
        )))
    }

    /// Puts a leader's key back that was deleted by hand. Its document still names it, and its etcd lease lives.
    async fn put_back(
        &self,
        connection: &Arc<Connection>,
        touch: &Touch<'_>,
        version: &Version,
        lease: i64,
    ) -> Result<(), StoreError> {
        let (document, lock) = (self.names.of(Key::Shard(touch.shard)), self.names.lock(touch.shard));
        let before = Revisions::read(&version.write);
        let request = TxnRequest {
            compare: vec![is_unchanged(&document, before.document), is_unchanged(&lock, 0)],
            success: vec![put(&lock, touch.owner.into(), lease)],
            failure: Vec::new(),
        };
        match self.transact(connection, request).await {
            Err(failure) if !failure.no_such_lease => Err(failure.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn page(&self, connection: Arc<Connection>, request: RangeRequest) -> Result<Page, StoreError> {
        let request = TxnRequest { success: vec![range(request)], ..TxnRequest::default() };
        let mut answer = self.transact(&connection, request).await?;
        Ok(Page {
            range: answer.found.next().unwrap_or_default(),
            marker: answer.marker,
            incarnation: answer.incarnation,
        })
    }

    /// The keys of leaders beside a page of documents.
    async fn held(&self, page: &Page) -> Result<HashSet<Vec<u8>>, StoreError> {
        let listed = page.range.kvs.iter().filter_map(|kv| self.names.listed(&kv.key));
        let locks: Vec<_> = listed.map(|(shard, _)| self.names.lock(&shard)).collect();
        let [key, ..] = &locks[..] else { return Ok(HashSet::new()) };
        let last = locks.last().unwrap_or(key);
        let request = RangeRequest { key: key.clone(), range_end: [&last[..], b"\0"].concat(), limit: 0 };
        let found = self.client.operate(|connection| Box::pin(self.page(connection, request.clone()))).await?;
        Ok(found.range.kvs.into_iter().map(|kv| kv.key).collect())
    }

    /// What is left of an etcd lease that a list found.
    async fn left(&self, lease: i64) -> Result<Option<Duration>, StoreError> {
        let left = async |connection: Arc<Connection>| self.leases.left(&connection, lease).await;
        self.client.operate(|connection| Box::pin(left(connection))).await
    }

    /// The documents of a page. `held` are the keys of leaders; None: each etcd lease is asked.
    async fn listed(&self, page: Page, held: Option<HashSet<Vec<u8>>>) -> Result<Vec<Listed>, StoreError> {
        let Page { range, marker, incarnation } = page;
        let named = range.kvs.into_iter().filter_map(|kv| Some((self.names.listed(&kv.key)?, kv)));
        let judged = named.map(|((shard, part), kv)| {
            let (incarnation, held) = (incarnation.clone(), held.as_ref());
            async move {
                let Ok(record) = Record::read(&kv.value) else {
                    let (holder, sign) = (Holder::stranger(), String::new());
                    let content = Content::Foreign { holder, sign, life: Life::ForEver };
                    return Ok(Listed { shard, part, found: Found { content, version: Version::default() } });
                };
                let life = match held {
                    _ if record.lease == 0 => Life::ForEver,
                    None => self.left(record.lease).await?.map_or(Life::Over, |at_most| Life::Left { at_most }),
                    Some(held) if part == Part::Lease && !held.contains(&self.names.lock(&shard)) => Life::Over,
                    Some(_) => Life::ForEver,
                };
                let revisions =
                    Revisions { marker, document: kv.mod_revision, lease: record.lease, ..Revisions::default() };
                let found = found(Some(record), life, Version { write: revisions.to_string(), incarnation });
                Ok(Listed { shard, part, found })
            }
        });
        parallel::answers(judged).await
    }
}

/// The first key after all that begin with `key`. The last byte of `key` must not be 255.
fn after_all(key: &[u8]) -> Vec<u8> {
    let mut end = key.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

fn found(record: Option<Record>, life: Life, version: Version) -> Found {
    let content = record.map_or(Content::Absent, |record| {
        let leadership = record.leadership();
        Content::Ours(Ours { text: record.text, leadership, sequence: 0, life })
    });
    Found { content, version }
}

impl ServerTime for Keys {
    fn clock(&self) -> Clock {
        Clock::default()
    }

    fn wall_clock_millis(&self) -> u64 {
        wall_clock_millis()
    }
}

#[async_trait::async_trait]
impl Documents for Keys {
    fn place(&self) -> String {
        format!("the prefix {} in {}", self.names.prefix, self.client)
    }

    fn name(&self, key: Key<'_>) -> String {
        format!("the key {} in {}", String::from_utf8_lossy(&self.names.of(key)), self.client)
    }

    fn tells_time(&self) -> bool {
        false
    }

    fn has_clock(&self) -> bool {
        false
    }

    async fn get(&self, keys: &[Key<'_>], _may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let mut all = Vec::with_capacity(keys.len());
        for page in keys.chunks(PAGE) {
            all.extend(self.client.operate(|connection| Box::pin(self.read(connection, page))).await?.0);
        }
        Ok(all)
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Put, StoreError> {
        let (Over::Exactly(over) | Over::Text(over)) = over;
        let write = Session::random();
        let write = write.map_err(|error| StoreError::not_applied(format!("no random bytes for a write: {error}")))?;
        let before = Revisions::read(&over.version.write).lease;
        let is_announcement = matches!(key, Key::Note(_, super::Page::Standby(_)));
        let mut granted = None;
        let lease = match draft.ends {
            Ends::In(lasts) if !lease::ends(lasts) => 0,
            Ends::In(lasts) if is_announcement => Leases::announce(&self.leases, lasts).await?,
            Ends::In(lasts) => {
                let lease = Leases::grant(&self.leases, lasts).await?;
                let id = lease.id;
                if matches!(key, Key::Shard(_)) && draft.sequence == 0 {
                    // What a claim that is given up leaves must come to nothing, however late it arrives.
                    granted = Some(lease);
                } else {
                    lease.keep();
                }
                id
            }
            Ends::Keep | Ends::Now | Ends::Never => 0,
        };
        let named = if draft.ends == Ends::Keep { before } else { lease };
        let incarnation = (key == Key::Marker).then(|| over.version.incarnation.clone());
        let record = Record::new(&write, &draft, named, incarnation);
        let request = self.write(key, &record, lease, &draft, over);
        let attempt = async |connection: Arc<Connection>| {
            let mut answer = self.transact(&connection, request.clone()).await?;
            let stands = self.stands(&connection, key, &mut answer)?;
            Ok((stands, answer.revision))
        };
        let outcome = self.client.operate(|connection| Box::pin(attempt(connection))).await;
        let is_applied = |stands: &Stands| stands.record.as_ref().is_some_and(|stands| stands.write == record.write);
        let (stands, revision) = match outcome {
            Ok((stands, revision)) if is_applied(&stands) => (stands, revision),
            outcome => {
                let is_known = outcome.as_ref().map_or_else(|error| error.kind != ErrorKind::Unknown, |_| true);
                if lease != 0 && is_known && granted.is_none() && !is_announcement {
                    self.leases.revoke_later(lease);
                }
                return outcome.map(|_| Put::Refused);
            }
        };
        if let Some(granted) = granted {
            granted.keep();
        }
        if before != 0
            && named != before
            && !is_announcement
            && !over.ours().is_some_and(|ours| ours.life == Life::Over)
        {
            self.leases.revoke_later(before);
        }
        let life = match (draft.ends, over.ours()) {
            (Ends::Keep, Some(ours)) => ours.life,
            (Ends::In(lasts), _) if lease != 0 => Life::Left { at_most: lease::seconds(lease::whole_seconds(lasts)) },
            _ => Life::ForEver,
        };
        let found = found(stands.record, life, stands.version);
        self.saw(key, &found, revision);
        Ok(Put::Done(Some(found)))
    }

    async fn touch(&self, touch: Touch<'_>) -> Result<Touched, StoreError> {
        self.client.operate(|connection| Box::pin(self.touch_on(connection, touch))).await
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        let request = TxnRequest { success: vec![delete(&self.names.of(key))], ..TxnRequest::default() };
        let remove =
            async |connection: Arc<Connection>| Ok(self.transact(&connection, request.clone()).await.map(drop)?);
        self.client.operate(|connection| Box::pin(remove(connection))).await
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let page = |request: RangeRequest| {
            self.client.operate(move |connection| Box::pin(self.page(connection, request.clone())))
        };
        for beginning in self.names.beginnings(list) {
            let (mut next, range_end) = (Some(beginning.clone()), after_all(&beginning));
            let (mut asks, mut count) = (None, 0);
            while let Some(key) = next {
                let request = RangeRequest { key, range_end: range_end.clone(), limit: LIST_PAGE };
                let part = page(request).await?;
                let asks = *asks.get_or_insert(part.range.count <= MOST_ASKED);
                count += part.range.kvs.len();
                if count > MOST_LISTED {
                    return Err(allowance::too_long(&self.client.to_string()));
                }
                let end = part.range.kvs.last().map(|last| last.key.clone());
                next = end.filter(|_| part.range.more).map(|last| [&last[..], b"\0"].concat());
                let held = if asks { None } else { Some(self.held(&part).await?) };
                each(self.listed(part, held).await?);
            }
        }
        Ok(())
    }

    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        self.follow(keys, each).await
    }

    async fn doubted(&self, shard: &Shard) {
        self.doubt(shard).await;
    }

    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        check::identify(self).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        check::findings(self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::lease_store::documents::{Draft, Ends};

    #[test]
    fn a_renewal_over_a_change_of_etcds_leader_proves_nothing() {
        let kept = |raft_term| LeaseKeepAliveResponse {
            header: Some(ResponseHeader { raft_term, ..ResponseHeader::default() }),
            ttl_seconds: 15,
        };
        assert!(is_proof(&kept(3), 3));
        assert!(!is_proof(&kept(2), 3), "a former leader may have answered");
        assert!(!is_proof(&LeaseKeepAliveResponse { header: None, ttl_seconds: 15 }, 0));
    }

    #[test]
    fn another_cluster_and_a_revision_of_the_past_are_other_lives_until_the_marker_is_written() {
        let header = |cluster_id, revision| ResponseHeader { cluster_id, revision, raft_term: 1 };
        let marker = |incarnation: &str, mod_revision| {
            let (text, leadership, owner) = ("", None, None);
            let draft = Draft { text, leadership, sequence: 0, ends: Ends::Never, wakes: false, owner };
            let record = Record::new(&Session::from_record("w"), &draft, 0, Some(incarnation.to_owned()));
            KeyValue { key: b"p/base".to_vec(), mod_revision, value: record.bytes(), lease: 0 }
        };
        let mut past = Past::default();
        assert_eq!(past.incarnation(&header(10, 5), 0, None, false), "a.5");
        let known = marker("a.5", 6);
        assert_eq!(past.incarnation(&header(10, 100), 5, Some(&known), false), "a.5");
        // An answer to what was asked before it.
        assert_eq!(past.incarnation(&header(10, 99), 99, Some(&known), false), "a.5");
        assert_eq!(past.incarnation(&header(11, 101), 100, Some(&known), false), "b.101");
        assert_eq!(past.incarnation(&header(10, 50), 101, Some(&known), false), "a.50");
        assert_eq!(
            past.incarnation(&header(10, 200), 50, Some(&known), false),
            "a.200",
            "it is still that of a backup"
        );
        assert_eq!(
            past.incarnation(&header(10, 201), 200, Some(&known), true),
            "a.5",
            "nobody leads while it is young"
        );
        assert_eq!(past.incarnation(&header(10, 202), 201, Some(&marker("a.50", 60)), false), "a.50");
    }
}
