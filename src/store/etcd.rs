//! The store `etcd://`: a key for each document, changed only by transactions; and beside the document of a shard that
//! is led another key, on an etcd lease, which is the document's clock.
//!
//! The hazard: an etcd lease may live longer than people expect, and a key may vanish before its lease does. So:
//!
//! - **A renewal writes nothing.** It keeps the etcd lease alive, and reads the document and the key beside it, over
//!   one connection to one member. A renewal that wrote would fill etcd's history, and wake every standby.
//! - **A deposed leader of etcd may answer a renewal**, and keep alive what its successor lets expire
//!   (etcd-io/etcd#15247). A new leader gives every lease its whole time again when it takes over, so the answer is
//!   wrong only if the takeover was before the renewal was sent. Both answers carry the raft term of the last entry
//!   that our member had applied: the first as of when it received the renewal, the second as of when a quorum had
//!   confirmed the leader. If both terms are the same, no leader was elected in between. If they differ, the renewal is
//!   sent again.
//! - **A claim compares that no key stands beside the document**, unless it is its own session's. A key that was
//!   deleted by hand says nothing: while the etcd lease that the document names lives, its holder may count on it, and
//!   every other candidate is refused. The holder puts its key back. Once that lease is gone, nobody counts on it.
//! - **A revocation** deletes the key, and leaves the etcd lease in the document, so the next leader waits for its end.
//! - **etcd may forget everything**: its data is lost, it was restored from a backup, the prefix was deleted. Each
//!   answer names the cluster and shows the marker, and the marker names the life of the cluster's memory in which it
//!   was written. Another cluster, or a revision below one that was seen, is another life. The marker is young while a
//!   key beside it stands, which an etcd lease of a day ends.
//!
//! A restart of etcd, or a change of its leader, makes leases longer, never shorter. For etcd, `etcdctl lease revoke`
//! is the same as an expiry.

mod address;
mod check;
mod connection;
mod document;
mod failure;
mod lease;
mod list;
mod proto;
mod watch;

pub use address::Address;

use super::expiry::ServerTime;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, EachSeen, Ends, Found, Key, Leadership, Life, List, Over, Properties, Touch,
    Touched, Version, random_name, strange,
};
use super::{ErrorKind, Finding, Holder, Page, StoreError, parallel};
use crate::lease::Shard;
use connection::{Client, Connection};
use document::{Names, Record, Revisions};
use parking_lot::Mutex;
use proto::{
    KeyValue, LeaseResponse, RangeResponse, ResponseHeader, TXN, TxnRequest, TxnResponse, delete, get, is_unchanged,
    put,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Servers take 128 operations, unless --max-txn-ops says otherwise.
const PAGE: usize = 60;
/// How often a renewal is sent again because etcd changed its leader, or the document its etcd lease.
const MOST_ATTEMPTS: usize = 4;

pub struct Keys {
    client: Arc<Client>,
    names: Names,
    /// The tasks that revoke etcd leases. They end with the store.
    revocations: Mutex<JoinSet<()>>,
    past: Mutex<Past>,
    /// The etcd lease beside the marker, and what was left of it at most when this process first saw it.
    young: Mutex<Option<(i64, Duration)>>,
}

/// The revisions of etcd that were seen.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    highest: i64,
    /// The last one that was below an earlier one.
    fell_to: i64,
    /// How many there were since that of the marker.
    since_marker: u64,
}

impl Past {
    /// The life of the server's memory that answered: as the marker says, if that is of this cluster, and not of a
    /// backup. `earlier` is a revision that was seen before the request was sent.
    fn incarnation(
        &mut self,
        header: &ResponseHeader,
        earlier: i64,
        marker: Option<&KeyValue>,
        is_young: bool,
    ) -> String {
        if header.revision < earlier {
            *self = Self { highest: header.revision, fell_to: header.revision, since_marker: 0 };
        }
        self.highest = self.highest.max(header.revision);
        self.since_marker = marker.map_or(0, |marker| self.highest.abs_diff(marker.mod_revision));
        let cluster = format!("{:x}.", header.cluster_id);
        let is_trusted = |marker: &&KeyValue| is_young || marker.mod_revision > self.fell_to;
        let says = marker.filter(is_trusted).and_then(|marker| Record::read(&marker.value).ok()?.incarnation);
        says.filter(|says| says.starts_with(&cluster)).unwrap_or_else(|| format!("{cluster}{}", header.revision))
    }
}

struct Answer {
    header: ResponseHeader,
    incarnation: String,
    marker: i64,
    /// For each key that it was to read.
    stands: Vec<Stands>,
    listed: RangeResponse,
}

impl Answer {
    fn understand(&self, document: Option<&KeyValue>, beside: Option<KeyValue>) -> Stands {
        let (mut write, mut lease) = (String::new(), 0);
        let content = match document.map(|document| Record::read(&document.value)) {
            None => Content::Absent,
            Some(Err(why)) => Content::Unreadable(why),
            Some(Ok(record)) => {
                write.clone_from(&record.write);
                lease = record.lease;
                Content::Ours(record.document())
            }
        };
        let changed = |kv: Option<&KeyValue>| kv.map_or(0, |kv| kv.mod_revision);
        let (document, marker) = (changed(document), self.marker);
        let revisions = Revisions { marker, document, beside: changed(beside.as_ref()), lease };
        let version = Version { write: revisions.text(), incarnation: self.incarnation.clone() };
        Stands { found: Found { content, version }, write, lease, beside }
    }
}

/// A document, and the key beside it, at one revision.
#[derive(Clone)]
struct Stands {
    /// As if it lasted for ever.
    found: Found,
    /// Which write it is from.
    write: String,
    /// The etcd lease that it names; zero if it names none.
    lease: i64,
    beside: Option<KeyValue>,
}

impl Stands {
    fn with(mut self, life: Life) -> Found {
        if let Content::Ours(ours) = &mut self.found.content {
            ours.life = life;
        }
        self.found
    }
}

impl Keys {
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let client = Arc::new(Client::open(address, request_timeout)?);
        let names = Names { prefix: address.prefix.clone() };
        Ok(Self { client, names, revocations: Mutex::default(), past: Mutex::default(), young: Mutex::default() })
    }

    /// After what it writes, and also if it writes nothing, it reads these keys and the marker.
    async fn transact(
        &self,
        connection: Arc<Connection>,
        mut request: TxnRequest,
        keys: &[Key<'_>],
    ) -> Result<Answer, StoreError> {
        let names = |key| [Some(self.names.of(key)), self.names.beside(key)];
        let read: Vec<_> = [Key::Marker].iter().chain(keys).flat_map(|&key| names(key)).flatten().collect();
        request.success.extend(read.iter().map(|name| get(name)));
        request.failure.extend(read.iter().map(|name| get(name)));
        let earlier = self.past.lock().highest;
        let answer: TxnResponse = self.client.call(&connection, TXN, request).await?;
        let header = answer.header.unwrap_or_default();
        let mut ranges: Vec<_> = answer.responses.into_iter().filter_map(|response| response.range).collect();
        let Some(others) = ranges.len().checked_sub(read.len()) else {
            let server = &connection.server;
            let message = format!("{server} answers a Txn with less than was asked: it is not etcd 3.4 or later");
            return Err(StoreError::misconfigured(message));
        };
        let mut found = ranges.split_off(others).into_iter().map(|range| range.kvs.into_iter().next());
        let mut next = || found.next().flatten();
        let (marker, young) = (next(), next());
        let incarnation = self.past.lock().incarnation(&header, earlier, marker.as_ref(), young.is_some());
        let marker = marker.map_or(0, |marker| marker.mod_revision);
        let listed = ranges.pop().unwrap_or_default();
        let mut answer = Answer { header, incarnation, marker, stands: Vec::new(), listed };
        for &key in keys {
            let document = next();
            let beside = self.names.beside(key).and_then(|_| next());
            answer.stands.push(answer.understand(document.as_ref(), beside));
        }
        Ok(answer)
    }

    /// Judges what stands at a key by what is left of its etcd lease.
    async fn judge(&self, connection: Arc<Connection>, key: Key<'_>, stands: Stands) -> Result<Found, StoreError> {
        if matches!(stands.found.content, Content::Unreadable(_)) {
            return Ok(stands.found);
        }
        let lease = stands.lease;
        let is_marker = key == Key::Marker;
        if let Some(other) = stands.beside.as_ref().filter(|beside| beside.lease != lease || lease == 0) {
            if other.lease == 0 {
                let name = format!("the key {} in {}", String::from_utf8_lossy(&other.key), self.client.address);
                return Err(strange(&name, "it is not attached to a lease", &self.remedy(key)));
            }
            // Beside a marker that was deleted by itself it is no holder, and lasts for a day.
            let is_left_over = is_marker && stands.found.content == Content::Absent;
            if !is_left_over && let Some(at_most) = self.left(&connection, other.lease).await? {
                let holder = Holder { owner: String::from_utf8_lossy(&other.value).into_owned(), ..Holder::default() };
                let (sign, life) = (other.mod_revision.to_string(), Life::Left { at_most });
                return Ok(Found { content: Content::Foreign { holder, sign, life }, ..stands.found });
            }
        }
        let known = self.young.lock().filter(|(known, _)| is_marker && *known == lease);
        let left = match known {
            _ if lease == 0 => return Ok(stands.found),
            // Gone for good.
            _ if is_marker && stands.beside.is_none() => None,
            Some((_, at_most)) => Some(at_most),
            None => self.left(&connection, lease).await?,
        };
        if is_marker {
            *self.young.lock() = left.map(|at_most| (lease, at_most));
        }
        Ok(stands.with(left.map_or(Life::Over, |at_most| Life::Left { at_most })))
    }

    async fn judge_all(
        &self,
        connection: &Arc<Connection>,
        keys: &[Key<'_>],
        stands: Vec<Stands>,
    ) -> Result<Vec<Found>, StoreError> {
        let stands = keys.iter().zip(stands);
        parallel::try_all(stands.map(|(&key, stands)| self.judge(Arc::clone(connection), key, stands))).await
    }

    async fn read(&self, connection: Arc<Connection>, keys: &[Key<'_>]) -> Result<Vec<Found>, StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let answer = self.transact(Arc::clone(&connection), TxnRequest::default(), keys).await?;
            let found = self.judge_all(&connection, keys, answer.stands).await?;
            // An etcd lease that is gone has taken its key with it. Where the key stood, the document may name another
            // one by now.
            let is_over = |found: &Found| found.ours().is_some_and(|ours| ours.life == Life::Over);
            if !found.iter().any(|found| is_over(found) && has_key(found)) {
                return Ok(found);
            }
        }
        Err(StoreError::unknown(format!("{} changes faster than it can be read", self.place())))
    }

    /// The transaction of a write, for which the etcd lease `lease` was granted; zero: none was.
    fn write(&self, key: Key<'_>, record: &Record, lease: i64, draft: &Draft<'_>, over: &Found) -> TxnRequest {
        let name = self.names.of(key);
        let before = Revisions::read(&over.version.write);
        let marker = is_unchanged(&self.names.of(Key::Marker), before.marker);
        let mut compare = vec![is_unchanged(&name, before.document), marker];
        let beside = self.names.beside(key);
        let mut success = vec![put(&name, record.bytes(), if beside.is_some() { 0 } else { record.lease })];
        match beside {
            Some(beside) if lease != 0 => {
                let session = |of: Option<&Leadership>| of.map(|of| of.session.clone());
                let is_own = session(over.leadership()) == session(draft.leadership);
                compare.push(is_unchanged(&beside, if is_own { before.beside } else { 0 }));
                success.push(put(&beside, draft.owner.unwrap_or("leaderrun").into(), lease));
            }
            Some(beside) if draft.leadership.is_none() => success.push(delete(&beside)),
            Some(_) | None => {}
        }
        TxnRequest { compare, success, failure: Vec::new() }
    }

    /// Keeps the etcd lease alive and reads what stands, over one connection to one member. See the hazards above.
    async fn touch_on(&self, connection: Arc<Connection>, touch: Touch<'_>) -> Result<Touched, StoreError> {
        let key = Key::Shard(touch.shard);
        let mut lease = touch.known.map_or(0, |known| Revisions::read(&known.version.write).lease);
        let mut also = touch.also;
        for _ in 0..MOST_ATTEMPTS {
            let keys = [&[key], also].concat();
            let read = self.transact(Arc::clone(&connection), TxnRequest::default(), &keys);
            // In this order: see the hazards above.
            let (kept, read) = tokio::join!(self.keep_alive(&connection, lease), read);
            let mut answer = match read {
                // If reading the other keys is denied, that must not cost the lease.
                Err(error) if error.kind == ErrorKind::Denied && !also.is_empty() => {
                    also = &[];
                    continue;
                }
                read => read?,
            };
            let stands = answer.stands.remove(0);
            let named = if stands.found.leadership() == Some(touch.leadership) { stands.lease } else { 0 };
            if named != 0 && named != lease {
                lease = named;
                continue;
            }
            let is_others = stands.beside.as_ref().is_some_and(|beside| beside.lease != lease);
            if named == 0 || kept.as_ref().is_ok_and(|kept| kept.ttl_seconds <= 0 || is_others) {
                return Ok(Touched::Refused);
            }
            let kept = kept?;
            if !is_proof(&kept, answer.header.raft_term, touch.lease) {
                continue;
            }
            if stands.beside.is_none() {
                // It was deleted by hand; its document still names it, and its etcd lease lives.
                let (document, lock) = (self.names.of(key), self.names.lock(touch.shard));
                let before = Revisions::read(&stands.found.version.write);
                let put_back = TxnRequest {
                    compare: vec![is_unchanged(&document, before.document), is_unchanged(&lock, 0)],
                    success: vec![put(&lock, touch.owner.into(), lease)],
                    failure: Vec::new(),
                };
                self.transact(Arc::clone(&connection), put_back, &[]).await?;
                continue;
            }
            let is_whole = also.len() == touch.also.len();
            let others = if is_whole { self.judge_all(&connection, also, answer.stands).await.ok() } else { None };
            let found = stands.with(Life::Left { at_most: lease::seconds(kept.ttl_seconds) });
            return Ok(Touched::Done { found, also: others });
        }
        Err(StoreError::unknown(format!(
            "{} changes faster than it can be renewed, or etcd changes its leader",
            self.name(key)
        )))
    }
}

/// Whether the key that was read stays for this time from when both requests were sent: its etcd lease was kept alive,
/// and by the present leader of etcd. See the hazards above.
fn is_proof(kept: &LeaseResponse, raft_term: u64, lease: Duration) -> bool {
    let is_present = kept.header.as_ref().is_some_and(|header| header.raft_term == raft_term && raft_term > 0);
    is_present && lease::seconds(kept.ttl_seconds) >= lease
}

fn has_key(found: &Found) -> bool {
    Revisions::read(&found.version.write).beside != 0
}

impl ServerTime for Keys {}

#[async_trait::async_trait]
impl Documents for Keys {
    fn place(&self) -> String {
        format!("the prefix {} in {}", self.names.prefix, self.client.address)
    }

    fn name(&self, key: Key<'_>) -> String {
        format!("the key {} in {}", String::from_utf8_lossy(&self.names.of(key)), self.client.address)
    }

    fn remedy(&self, _: Key<'_>) -> String {
        "delete it once no leaderrun uses it, or use another prefix".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { tells_time: false, has_clock: false, ..Properties::default() }
    }

    fn changes(&self) -> u64 {
        self.past.lock().since_marker
    }

    async fn get(&self, keys: &[Key<'_>], _may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let mut all = Vec::with_capacity(keys.len());
        for page in keys.chunks(PAGE) {
            all.extend(self.client.operate(|connection| self.read(connection, page)).await?);
        }
        Ok(all)
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError> {
        let (Over::Exactly(over) | Over::Text(over)) = over;
        let write = random_name()?;
        let before = Revisions::read(&over.version.write).lease;
        let is_announcement = matches!(key, Key::Note(_, Page::Standby(_)));
        let mut granted = match draft.ends {
            Ends::In(lasts) if is_announcement => self.grant_again(before, lasts).await?,
            Ends::In(lasts) => self.grant(lasts).await?,
            Ends::Keep | Ends::Now | Ends::Never => self.granted(0),
        };
        let named = if draft.ends == Ends::Keep { before } else { granted.id };
        let incarnation = (key == Key::Marker).then(|| over.version.incarnation.clone());
        let record = Record::new(write, &draft, named, incarnation);
        let request = &self.write(key, &record, granted.id, &draft, over);
        // What a claim that is given up leaves must come to nothing, however late it arrives. All else may have been
        // written unheard.
        let is_claim = matches!(key, Key::Shard(_)) && draft.sequence == 0;
        granted.is_kept = !is_claim;
        let keys = &[key];
        let outcome = self.client.operate(|on| self.transact(on, request.clone(), keys)).await;
        let is_in_doubt = outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Unknown);
        let is_ours = |stands: &Stands| stands.write == record.write;
        let is_written = outcome.as_ref().is_ok_and(|answer| answer.stands.iter().all(is_ours));
        granted.is_kept = is_written || (is_in_doubt && !is_claim);
        let stands = outcome?.stands.remove(0);
        if !is_written {
            return Ok(None);
        }
        if named != before && !over.ours().is_some_and(|ours| ours.life == Life::Over) {
            self.revoke_later(before);
        }
        let life = match (draft.ends, over.ours()) {
            (Ends::Keep, Some(ours)) => ours.life,
            (Ends::In(lasts), _) => Life::Left { at_most: lease::seconds(lease::whole_seconds(lasts)) },
            _ => Life::ForEver,
        };
        Ok(Some(stands.with(life)))
    }

    async fn touch(&self, touch: Touch<'_>) -> Result<Touched, StoreError> {
        self.client.operate(|connection| self.touch_on(connection, touch)).await
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        let request = &TxnRequest { success: vec![delete(&self.names.of(key))], ..TxnRequest::default() };
        self.client.operate(|on| self.transact(on, request.clone(), &[])).await.map(drop)
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        self.list_in_pages(list, each).await
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::lease_store::documents::{Draft, Ends};

    #[test]
    fn another_cluster_and_a_revision_of_the_past_are_other_lives_until_the_marker_is_written() {
        let header = |cluster_id, revision| ResponseHeader { cluster_id, revision, raft_term: 1 };
        let marker = |incarnation: &str, mod_revision| {
            let (text, leadership, owner) = ("", None, None);
            let draft = Draft { text, leadership, sequence: 0, ends: Ends::Never, owner };
            let record = Record::new("w".to_owned(), &draft, 0, Some(incarnation.to_owned()));
            KeyValue { key: b"p/base".to_vec(), mod_revision, value: record.bytes(), lease: 0 }
        };
        let (of_a, of_backup) = (marker("a.5", 6), marker("a.50", 60));
        let mut past = Past::default();
        for (header, earlier, marker, is_young, expected) in [
            (header(10, 5), 0, None, false, "a.5"),
            (header(10, 100), 5, Some(&of_a), false, "a.5"),
            // An answer to what was asked before it.
            (header(10, 99), 99, Some(&of_a), false, "a.5"),
            (header(11, 101), 100, Some(&of_a), false, "b.101"),
            (header(10, 50), 101, Some(&of_a), false, "a.50"),
            // It is still that of a backup.
            (header(10, 200), 50, Some(&of_a), false, "a.200"),
            // Nobody leads while it is young.
            (header(10, 201), 200, Some(&of_a), true, "a.5"),
            (header(10, 202), 201, Some(&of_backup), false, "a.50"),
        ] {
            assert_eq!(past.incarnation(&header, earlier, marker, is_young), expected, "{header:?}");
        }
    }
}
