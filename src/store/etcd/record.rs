//! The stored records, and how they are read. Everything is JSON, so that `etcdctl get` shows it to people.
//!
//! The hazard: every user can put anything under a key. A value that cannot be read is an error that names the key, and
//! is never replaced. Numbers are bounded, so that no sum with them overflows.

use super::proto::{KeyValue, TxnResponse};
use crate::lease::{Candidate, Session, Term};
use crate::store::{Holder, StoreError, Takeover};
use crate::time::wall_clock_millis;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The largest number. No term, revision or time comes near it, and JSON's numbers are exact up to it.
const MOST: u64 = 1 << 53;

/// A record, and what etcd says about its key.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    pub record: T,
    pub create_revision: i64,
    /// The revision of the last change. No two writes of a key have the same.
    pub mod_revision: i64,
    pub lease: i64,
}

/// A record, which can check that its numbers are possible.
pub trait Record: DeserializeOwned {
    fn is_sound(&self) -> bool;
}

/// Since when the prefix remembers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Base {
    /// Microseconds since 1970, by the wall clock of the candidate that made it. The first term is higher.
    pub origin: u64,
}

/// Who leads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    pub owner: String,
    pub session: Session,
    pub host: String,
    pub pid: u32,
    pub lease_ms: u64,
    pub since_ms: u64,
    /// The term is this number plus the revision at which the lock was put. That also holds if its session claims the
    /// lock again after a leadership that it could neither renew nor release.
    pub term_offset: u64,
}

/// The last leadership. Written with the lock, and again by its release.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Last {
    pub session: Session,
    #[serde(flatten)]
    pub etcd_lease: EtcdLease,
    pub term_offset: u64,
    /// None: the term is the offset plus the revision of this record, which the record itself cannot contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// Its tree was dead when it gave the lease back.
    #[serde(default)]
    pub released: bool,
    /// The last term whose lease an operator took away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
    /// It had to wait until the prefix was a lease old, and nobody knows whether it did.
    #[serde(default)]
    pub young: bool,
    /// Earlier leaderships whose trees were not seen to die.
    #[serde(default)]
    pub before: Vec<EtcdLease>,
}

/// The etcd lease of a leadership, which may have a tree while that lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdLease {
    #[serde(rename = "etcdLease")]
    pub id: i64,
    pub lease_ms: u64,
}

impl Record for Base {
    fn is_sound(&self) -> bool {
        self.origin < MOST
    }
}

impl Record for Lock {
    fn is_sound(&self) -> bool {
        self.term_offset < MOST && self.lease_ms < MOST && self.since_ms < MOST
    }
}

impl Record for Last {
    fn is_sound(&self) -> bool {
        let leases = self.before.iter().chain([&self.etcd_lease]);
        self.term_offset < MOST
            && self.term.is_none_or(|term| term < MOST)
            && leases.into_iter().all(EtcdLease::is_sound)
    }
}

impl EtcdLease {
    fn is_sound(&self) -> bool {
        self.lease_ms < MOST
    }
}

impl Base {
    /// A base that begins now. `after` is the highest term that is known to have existed.
    pub fn now(after: Option<Term>) -> Self {
        let wall = wall_clock_millis().saturating_mul(1000);
        Self { origin: wall.max(after.map_or(0, |term| term.0 + 1)).min(MOST - 1) }
    }
}

impl Entry<Base> {
    /// The number to which a revision is added: the prefix was born at zero.
    pub fn term_offset(&self) -> u64 {
        self.record.origin.saturating_sub(unsigned(self.create_revision))
    }
}

impl Lock {
    pub fn of(candidate: &Candidate, term_offset: u64, since_ms: u64) -> Self {
        Self {
            owner: candidate.owner.clone(),
            session: candidate.session.clone(),
            host: candidate.host.clone(),
            pid: candidate.pid,
            lease_ms: millis(candidate.lease),
            since_ms,
            term_offset,
        }
    }
}

impl Entry<Lock> {
    pub fn term(&self) -> Term {
        Term(self.record.term_offset + unsigned(self.mod_revision))
    }

    pub fn holder(&self, expires_in: Option<Duration>) -> Holder {
        Holder {
            owner: self.record.owner.clone(),
            session: Some(self.record.session.clone()),
            host: Some(self.record.host.clone()),
            pid: Some(self.record.pid),
            term: Some(self.term()),
            since_millis: Some(self.record.since_ms),
            expires_in,
            renewed_ago: None,
            doubt: None,
            foreign_lock: None,
        }
    }
}

impl Entry<Last> {
    pub fn term(&self) -> Term {
        Term(self.record.term.unwrap_or(self.record.term_offset + unsigned(self.mod_revision)))
    }
}

/// Everything that a claim needs to know about a shard, at one revision.
#[derive(Clone, Debug)]
pub struct View {
    pub revision: i64,
    pub lock: Option<Entry<Lock>>,
    pub last: Option<Entry<Last>>,
    pub base: Option<Entry<Base>>,
    /// The etcd lease of the mark of youth.
    pub young: Option<i64>,
    copy: Option<Entry<Last>>,
}

impl View {
    /// How the last leadership ended, if another session may lead now.
    pub fn takeover(&self) -> Takeover {
        match self.last_known() {
            None => Takeover::First,
            Some(last) if last.record.released => Takeover::Released,
            Some(last) if last.record.revoked == Some(last.term().0) => Takeover::Revoked,
            Some(_) => Takeover::Expired,
        }
    }

    /// The last leadership, from any record that still tells of it.
    pub fn last_known(&self) -> Option<&Entry<Last>> {
        self.last.as_ref().or(self.copy.as_ref())
    }

    /// Reads the answer to gets of lock, last, base, young and the copy, in this order.
    pub fn read(server: &str, answer: TxnResponse) -> Result<Self, StoreError> {
        let revision = answer.revision();
        let mut found = answer.found();
        let mut next = || {
            found.next().ok_or_else(|| {
                StoreError::misconfigured(format!(
                    "{server} answers a Txn with less than was asked: it is not etcd 3.4 or later"
                ))
            })
        };
        let (lock, last, base, young, copy) = (next()?, next()?, next()?, next()?, next()?);
        Ok(Self {
            revision,
            lock: lock.map(|kv| read_lock(server, &kv)).transpose()?,
            last: last.map(|kv| read(server, &kv)).transpose()?,
            base: base.map(|kv| read(server, &kv)).transpose()?,
            young: young.map(|kv| kv.lease),
            // A copy that cannot be read does not count.
            copy: copy.and_then(|kv| read(server, &kv).ok()),
        })
    }
}

/// Reads a lock. A lock without a lease would never end, and protects nobody.
pub fn read_lock(server: &str, kv: &KeyValue) -> Result<Entry<Lock>, StoreError> {
    let entry: Entry<Lock> = read(server, kv)?;
    if entry.lease == 0 { Err(unreadable(server, &kv.key)) } else { Ok(entry) }
}

pub fn read<T: Record>(server: &str, kv: &KeyValue) -> Result<Entry<T>, StoreError> {
    let record = serde_json::from_slice(&kv.value).ok().filter(T::is_sound);
    let record = record.ok_or_else(|| unreadable(server, &kv.key))?;
    Ok(Entry { record, create_revision: kv.create_revision, mod_revision: kv.mod_revision, lease: kv.lease })
}

/// The holder that stands for a lock that cannot be read.
pub fn foreign(kv: &KeyValue) -> Holder {
    let owner = format!("something else that wrote {}", String::from_utf8_lossy(&kv.key));
    Holder { owner, ..Holder::default() }
}

pub fn written(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record is plain data")
}

pub fn unreadable(server: &str, key: &[u8]) -> StoreError {
    StoreError::misconfigured(format!(
        "the key {} in etcd at {server} was written by something else: delete it once no leaderrun uses it, or use \
         another prefix",
        String::from_utf8_lossy(key)
    ))
}

/// A revision or a duration, as etcd writes them. Zero if it is negative.
pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Rounded up, so that no lease gets shorter by it.
pub fn millis(duration: Duration) -> u64 {
    crate::time::millis(duration).min(MOST - 1)
}

/// The duration of an etcd lease, in whole seconds.
pub fn whole_seconds(duration: Duration) -> i64 {
    i64::try_from(millis(duration).div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate, Source};
    use crate::store::etcd::proto::{Outcome, RangeResponse, ResponseHeader, ResponseOp};
    use proptest::prelude::*;
    use prost::Message;

    fn kv(value: &[u8], lease: i64) -> KeyValue {
        KeyValue { key: b"p/lock/s".to_vec(), create_revision: 7, mod_revision: 9, value: value.to_vec(), lease }
    }

    #[test]
    fn a_lease_is_never_rounded_down() {
        for (asked, seconds) in [(1, 1), (999, 1), (1000, 1), (1001, 2), (15_000, 15)] {
            assert_eq!(whole_seconds(Duration::from_millis(asked)), seconds);
        }
        assert_eq!(whole_seconds(Duration::from_nanos(1_000_000_001)), 2);
    }

    #[test]
    fn a_term_is_the_revision_since_the_prefix_was_born() {
        let base = Entry { record: Base { origin: 1_000_000 }, create_revision: 500, mod_revision: 500, lease: 0 };
        assert_eq!(base.term_offset() + 510, 1_000_010);
    }

    #[test]
    fn a_base_is_never_behind_a_term_that_has_been() {
        let behind = Term(wall_clock_millis() * 1000 + 5_000_000_000);
        assert!(Base::now(Some(behind)).origin > behind.0);
        assert!(Base::now(None).origin < behind.0);
    }

    #[test]
    fn a_lock_without_a_lease_is_not_ours() {
        let lock = Lock {
            owner: "o".into(),
            session: Session::from_record("s"),
            host: "h".into(),
            pid: 1,
            lease_ms: 1,
            since_ms: 1,
            term_offset: 3,
        };
        let value = written(&lock);
        assert_eq!(read_lock("here", &kv(&value, 5)).unwrap().term(), Term(12));
        let error = read_lock("here", &kv(&value, 0)).unwrap_err();
        assert!(error.message.contains("the key p/lock/s in etcd at here"), "{error}");
    }

    #[test]
    fn numbers_that_cannot_be_true_are_refused() {
        for bad in [r#"{"origin":9007199254740992}"#, r#"{"origin":-1}"#, r#"{"origin":"1"}"#, "{}", "", "7"] {
            assert!(read::<Base>("here", &kv(bad.as_bytes(), 0)).is_err(), "{bad}");
        }
    }

    fn ours() -> (Base, Lock, Last) {
        let etcd_lease = EtcdLease { id: -7, lease_ms: 15_000 };
        let session = Session::from_record("s-1");
        let lock = Lock {
            owner: "me".to_owned(),
            session: session.clone(),
            host: "host".to_owned(),
            pid: 7,
            lease_ms: 15_000,
            since_ms: 1_795_268_611_017,
            term_offset: 1_795_268_611_017_220,
        };
        let before = vec![etcd_lease.clone()];
        let (released, young, revoked, term) = (true, true, None, Some(9));
        let last = Last { session, etcd_lease, term_offset: 5, term, released, revoked, young, before };
        (Base { origin: 1_795_268_611_017_220 }, lock, last)
    }

    fn check_value<T: Record + Serialize>(value: &[u8], source: &mut Source) -> Option<Entry<T>> {
        let mut kv = kv(value, source.signed());
        (kv.create_revision, kv.mod_revision) = (source.signed(), source.signed());
        let read = read::<T>("here", &kv);
        match read {
            Ok(entry) => {
                let again = read_again::<T>(&entry);
                assert_eq!(written(&again.record), written(&entry.record));
                Some(entry)
            }
            Err(error) => {
                fuzz::assert_is_one_line(&error.message);
                assert!(error.message.contains("the key p/lock/s in etcd at here"), "{error}");
                None
            }
        }
    }

    fn read_again<T: Record + Serialize>(entry: &Entry<T>) -> Entry<T> {
        read("here", &kv(&written(&entry.record), entry.lease)).expect("it was ours")
    }

    #[test]
    fn a_million_values_are_read_as_they_were_written_or_named_and_their_terms_can_be_followed() {
        let (base, lock, last) = ours();
        let values = [written(&base), written(&lock), written(&last)];
        let seeds: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        fuzz::bent("record of etcd://", &seeds, |value, source| match source.below(3) {
            0 => {
                let read = check_value::<Base>(value, source);
                assert!(read.as_ref().is_none_or(|base| base.term_offset() < MOST));
                (&read).into()
            }
            1 => {
                let read = check_value::<Lock>(value, source);
                assert!(read.as_ref().is_none_or(|lock| lock.term().0 >= lock.record.term_offset));
                let holder = read.as_ref().map(|lock| lock.holder(None));
                assert_eq!(holder.and_then(|holder| holder.term), read.as_ref().map(Entry::<Lock>::term));
                (&read).into()
            }
            _ => {
                let read = check_value::<Last>(value, source);
                let higher = read.as_ref().map(|last| Base::now(Some(last.term())).origin);
                assert!(higher.is_none_or(|higher| higher < MOST));
                (&read).into()
            }
        });
    }

    #[test]
    fn a_million_answers_of_transactions_are_views_or_refused() {
        let (base, lock, last) = ours();
        let range = |value: Vec<u8>| {
            let kvs = vec![KeyValue { key: b"p/x".to_vec(), create_revision: 5, mod_revision: 9, value, lease: 7 }];
            ResponseOp { response: Some(Outcome::Range(RangeResponse { kvs, ..RangeResponse::default() })) }
        };
        let whole = TxnResponse {
            header: Some(ResponseHeader { cluster_id: 1, revision: 9, raft_term: 2 }),
            succeeded: true,
            responses: vec![
                range(written(&lock)),
                range(written(&last)),
                range(written(&base)),
                range(b"young".to_vec()),
            ],
        };
        let nothing = || ResponseOp { response: Some(Outcome::Range(RangeResponse::default())) };
        let free = TxnResponse { responses: vec![nothing(), nothing(), nothing(), nothing()], ..whole.clone() };
        let (whole, free) = (whole.encode_to_vec(), free.encode_to_vec());
        fuzz::bent("answer of a transaction of etcd", &[&whole, &free], |bytes, _| {
            let Ok(answer) = TxnResponse::decode(bytes) else { return Fate::Refused };
            assert_eq!(TxnResponse::decode(&*answer.encode_to_vec()).as_ref(), Ok(&answer));
            let revision = answer.revision();
            let view = View::read("here", answer);
            match &view {
                Ok(view) => {
                    assert_eq!(view.revision, revision);
                    assert!(view.lock.as_ref().is_none_or(|lock| lock.lease != 0));
                }
                Err(error) => {
                    let shown: String = error.message.chars().take(1000).collect();
                    fuzz::assert_is_one_line(&shown);
                }
            }
            (&view).into()
        });
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            term in proptest::option::of(0..MOST), released: bool, young: bool, etcd_lease: i64, lease_ms in 0..MOST,
        ) {
            let etcd_lease = EtcdLease { id: etcd_lease, lease_ms };
            let session = Session::from_record("s");
            let before = vec![etcd_lease.clone()];
            let revoked = term.filter(|_| !released);
            let last = Last { session, etcd_lease, term_offset: 1, term, released, revoked, young, before };
            let again = read::<Last>("here", &kv(&written(&last), 0)).unwrap();
            prop_assert_eq!(again.term(), Term(term.unwrap_or(10)));
            prop_assert_eq!(again.record.before, last.before);
            prop_assert_eq!((again.record.released, again.record.young), (released, young));
        }
    }
}
