//! How a lock is kept, given back, and taken away.

use super::connection::{Connection, Failure};
use super::list::after_all;
use super::proto::{
    KeyValue, LEASE_KEEP_ALIVE, LeaseKeepAliveRequest, LeaseKeepAliveResponse, RangeResponse, ResponseHeader, TXN,
    TxnRequest, TxnResponse, delete, delete_range, get, is_unchanged, put,
};
use super::record::{self, Entry, Hold, Last, Lock, View, written};
use super::unclaimed::UnclaimedLeases;
use super::{Etcd, MOST_ATTEMPTS};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::{Holder, Page, Release, Renewal, StoreError};
use crate::time::BootInstant;
use std::sync::Arc;
use std::time::Duration;

enum Whose {
    Ours(Entry<Lock>),
    Theirs(Holder),
    Nobodys,
}

fn whose(candidate: &Candidate, connection: &Connection, kv: Option<&KeyValue>) -> Whose {
    let Some(kv) = kv else { return Whose::Nobodys };
    match record::read_lock(&connection.server, kv) {
        Ok(lock) if lock.record.session == candidate.session => Whose::Ours(lock),
        Ok(lock) => Whose::Theirs(lock.holder(None)),
        Err(_) => Whose::Theirs(record::foreign(kv)),
    }
}

/// Whether a lock that was found stays for a whole lease from when both were asked: its lease was kept alive, and by
/// who leads. See the hazards of this store.
fn is_proof(kept: &LeaseKeepAliveResponse, found: &RangeResponse) -> bool {
    let term = |header: &Option<ResponseHeader>| header.as_ref().map(|header| header.raft_term);
    // A lease that is gone takes its lock with it, which the read may have been too early to see.
    kept.ttl_seconds > 0 && term(&kept.header).is_some() && term(&kept.header) == term(&found.header)
}

/// What stands beside a lock that is given back, where a hand has deleted that.
fn given_back(lock: &Entry<Lock>) -> Last {
    let Lock { session, lease_ms, term_offset, .. } = lock.record.clone();
    let hold = Hold { etcd_lease: lock.lease, lease_ms };
    let term = Some(lock.term().0);
    Last { session, hold, term_offset, term, released: true, young: false, before: Vec::new() }
}

/// What has to stand beside a lock once that is gone, so that its tree is waited for. None: that stands there already.
fn unreleased(lock: &Entry<Lock>, last: Option<Entry<Last>>) -> Option<Last> {
    let hold = Hold { etcd_lease: lock.lease, lease_ms: lock.record.lease_ms };
    let (mut young, mut before) = (false, Vec::new());
    if let Some(Entry { record: last, .. }) = last {
        if last.hold.etcd_lease == hold.etcd_lease && !last.released {
            return None;
        }
        // Somebody's hand was there. Whom it speaks of is waited for as well.
        (young, before) = (last.young, last.before);
        if !last.released {
            before.push(last.hold);
        }
    }
    let Lock { session, term_offset, .. } = lock.record.clone();
    Some(Last { session, hold, term_offset, term: Some(lock.term().0), released: false, young, before })
}

impl Etcd {
    pub(super) async fn renew_on(
        &self,
        connection: Arc<Connection>,
        candidate: &Candidate,
        beat: u64,
    ) -> Result<Renewal, StoreError> {
        let shard = &candidate.shard;
        let key = self.keys.lock(shard);
        let mut mine = match self.tenure(shard, &candidate.session) {
            Some(tenure) if beat <= tenure.beat => return Ok(Renewal::Overtaken),
            Some(tenure) => Some((tenure.lock.lease, tenure.lock.mod_revision)),
            None => None,
        };
        for _ in 0..MOST_ATTEMPTS {
            let Some((etcd_lease, mod_revision)) = mine else {
                // A claim of ours whose answer nobody heard, or nothing.
                let found = self.get(&connection, key.clone()).await?;
                match whose(candidate, &connection, found.kvs.first()) {
                    Whose::Ours(lock) if self.unclaimed.leases().contains(&lock.lease) => {
                        return Err(StoreError::unknown(format!(
                            "the lock of shard {shard} is about to be given back"
                        )));
                    }
                    Whose::Ours(lock) => mine = Some((lock.lease, lock.mod_revision)),
                    Whose::Theirs(holder) => return Ok(Renewal::Lost(Some(holder))),
                    Whose::Nobodys => return Ok(Renewal::Lost(None)),
                }
                continue;
            };
            let (kept, found) =
                tokio::join!(self.keep_alive(&connection, etcd_lease), self.get(&connection, key.clone()));
            let found = found?;
            match found.kvs.first() {
                Some(kv) if kv.mod_revision == mod_revision && kv.lease == etcd_lease => {
                    let kept = kept?;
                    if !is_proof(&kept, &found) {
                        continue;
                    }
                    if Duration::from_secs(record::revision(kept.ttl_seconds)) < candidate.lease {
                        return Err(StoreError::unknown(format!(
                            "etcd at {} kept the lease of shard {shard} for {} s only",
                            connection.server, kept.ttl_seconds
                        )));
                    }
                    let mut known = self.known();
                    let tenure = known.entry(shard.clone()).or_default().tenure.as_mut();
                    if let Some(tenure) = tenure.filter(|tenure| tenure.lock.mod_revision == mod_revision) {
                        tenure.beat = tenure.beat.max(beat);
                    }
                    return Ok(Renewal::Renewed);
                }
                other => {
                    let holder = match whose(candidate, &connection, other) {
                        Whose::Ours(lock) => {
                            mine = Some((lock.lease, lock.mod_revision));
                            continue;
                        }
                        Whose::Theirs(holder) => Some(holder),
                        Whose::Nobodys => None,
                    };
                    self.forget_tenure(shard, &candidate.session);
                    return Ok(Renewal::Lost(holder));
                }
            }
        }
        Err(StoreError::unknown(format!(
            "etcd at {} changes its leader, or the lock of shard {shard}, while the lease is renewed",
            connection.server
        )))
    }

    pub(super) async fn keep_alive(
        &self,
        connection: &Arc<Connection>,
        id: i64,
    ) -> Result<LeaseKeepAliveResponse, Failure> {
        self.client.call(connection, LEASE_KEEP_ALIVE, LeaseKeepAliveRequest { id }).await
    }

    fn forget_tenure(&self, shard: &Shard, session: &Session) {
        if let Some(known) = self.known().get_mut(shard) {
            known.tenure.take_if(|tenure| tenure.lock.record.session == *session);
        }
    }

    pub(super) async fn release_on(
        &self,
        connection: Arc<Connection>,
        candidate: &Candidate,
        term: Term,
    ) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let (lock_key, last_key) = (self.keys.lock(shard), self.keys.last(shard));
        let fits =
            |lock: &Entry<Lock>| lock.record.session == candidate.session && (term == Term(0) || term == lock.term());
        let mut found = self
            .tenure(shard, &candidate.session)
            .filter(|tenure| fits(&tenure.lock))
            .map(|tenure| (tenure.lock, Some(tenure.last), tenure.start_after));
        let mut released = Release::NotHeld;
        for attempt in 0..MOST_ATTEMPTS {
            if let Some((lock, last, start_after)) = found.take() {
                let mut last = last.unwrap_or_else(|| given_back(&lock));
                (last.term, last.released) = (Some(lock.term().0), true);
                // Those trees are dead by now, and nobody has to ask again.
                if start_after.is_some_and(|instant| instant <= BootInstant::now()) {
                    (last.young, last.before) = (false, Vec::new());
                }
                let request = TxnRequest {
                    compare: vec![is_unchanged(&lock_key, lock.mod_revision)],
                    success: vec![delete(&lock_key), put(&last_key, written(&last), 0), delete(&self.keys.copy(shard))],
                    failure: Vec::new(),
                };
                let answer: TxnResponse = self.client.call(&connection, TXN, request).await?;
                if answer.succeeded {
                    // It may be the last thing that this process does, and expires by itself otherwise.
                    UnclaimedLeases::revoke_later(&self.unclaimed, lock.lease);
                    released = Release::Released;
                    break;
                }
            }
            if attempt + 1 < MOST_ATTEMPTS {
                found = self.find_own(&connection, candidate).await?.filter(|(lock, ..)| fits(lock));
            }
            if found.is_none() {
                break;
            }
        }
        self.forget_tenure(shard, &candidate.session);
        // A claim that was given up may be under way: without its etcd lease it comes to nothing.
        for id in self.unclaimed.leases() {
            self.unclaimed.revoke(&connection, id).await?;
        }
        Ok(released)
    }

    /// The etcd lease is left alone: for as long as it lives, whoever is granted the lock waits for the tree that it was
    /// for. So is the record that leads there, unless it is not the one that was written with this lock.
    pub(super) async fn revoke_on(
        &self,
        connection: Arc<Connection>,
        shard: &Shard,
        term: Term,
    ) -> Result<Release, StoreError> {
        let (lock_key, last_key) = (self.keys.lock(shard), self.keys.last(shard));
        for _ in 0..MOST_ATTEMPTS {
            let View { lock, last, .. } = self.look(&connection, shard).await?;
            let Some(lock) = lock.filter(|lock| lock.term() == term) else { return Ok(Release::NotHeld) };
            let mut success = vec![delete(&lock_key)];
            let last_revision = last.as_ref().map_or(0, |last| last.mod_revision);
            if let Some(last) = unreleased(&lock, last) {
                success.push(put(&last_key, written(&last), 0));
            }
            let request = TxnRequest {
                compare: vec![is_unchanged(&lock_key, lock.mod_revision), is_unchanged(&last_key, last_revision)],
                success,
                failure: Vec::new(),
            };
            let answer: TxnResponse = self.client.call(&connection, TXN, request).await?;
            if answer.succeeded {
                return Ok(Release::Released);
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be taken away")))
    }

    /// All in one step. Terms count on from the revision, so nothing has to stay. `again` after a request whose answer
    /// was lost.
    pub(super) async fn forget_on(
        &self,
        connection: Arc<Connection>,
        candidate: &Candidate,
        term: Term,
        again: bool,
    ) -> Result<Release, StoreError> {
        let (shard, keys) = (&candidate.shard, &self.keys);
        let (lock_key, last_key) = (keys.lock(shard), keys.last(shard));
        for _ in 0..MOST_ATTEMPTS {
            let View { lock, last, base, .. } = self.look(&connection, shard).await?;
            let mine = |lock: &Entry<Lock>| lock.record.session == candidate.session && lock.term() == term;
            let is_gone = again && lock.is_none() && last.is_none();
            let Some(lock) = lock.filter(mine) else {
                return Ok(if is_gone { Release::Released } else { Release::NotHeld });
            };
            let mut success = vec![delete(&lock_key), delete(&keys.copy(shard))];
            // Unless they were counted from a higher base than there is by now.
            let is_ahead = base.is_none_or(|base| lock.record.term_offset > base.term_offset());
            success.push(if is_ahead { put(&last_key, written(&given_back(&lock)), 0) } else { delete(&last_key) });
            success.extend([Page::Orders, Page::History, Page::Runs].map(|page| delete(&keys.note(shard, &page))));
            let many = keys.many_notes(shard).map(String::into_bytes);
            success.extend(many.map(|key| delete_range(key.clone(), after_all(&key))));
            let request =
                TxnRequest { compare: vec![is_unchanged(&lock_key, lock.mod_revision)], success, failure: Vec::new() };
            let answer: TxnResponse = self.client.call(&connection, TXN, request).await?;
            if answer.succeeded {
                UnclaimedLeases::revoke_later(&self.unclaimed, lock.lease);
                self.known().remove(shard);
                return Ok(Release::Released);
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be forgotten")))
    }

    /// Our lock and the record beside it, as they are now.
    async fn find_own(
        &self,
        connection: &Arc<Connection>,
        candidate: &Candidate,
    ) -> Result<Option<(Entry<Lock>, Option<Last>, Option<BootInstant>)>, StoreError> {
        let (lock, last) = (self.keys.lock(&candidate.shard), self.keys.last(&candidate.shard));
        let request = TxnRequest { success: vec![get(&lock), get(&last)], ..TxnRequest::default() };
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        let mut answer = answer.found();
        let (lock, last) = (answer.next().flatten(), answer.next().flatten());
        // What cannot be read is not ours, and nothing to complain about here.
        let lock = lock.and_then(|kv| record::read::<Lock>(&connection.server, &kv).ok());
        let Some(lock) = lock.filter(|lock| lock.record.session == candidate.session) else { return Ok(None) };
        let last = last.and_then(|kv| record::read::<Last>(&connection.server, &kv).ok()).map(|last| last.record);
        Ok(Some((lock, last.filter(|last| last.session == candidate.session), None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_beside_a_lock_that_is_taken_away_speaks_of_it() {
        let hold = |etcd_lease| Hold { etcd_lease, lease_ms: 15_000 };
        let lock = Lock {
            owner: "o".to_owned(),
            session: Session::from_record("s"),
            host: "h".to_owned(),
            pid: 1,
            lease_ms: 15_000,
            since_ms: 1,
            term_offset: 3,
        };
        let lock = Entry { record: lock, create_revision: 9, mod_revision: 9, lease: 7 };
        let last = |etcd_lease, released| {
            let session = Session::from_record("s");
            let (hold, before) = (hold(etcd_lease), vec![hold(1)]);
            let record = Last { session, hold, term_offset: 3, term: None, released, young: true, before };
            Some(Entry { record, create_revision: 9, mod_revision: 9, lease: 0 })
        };
        assert!(unreleased(&lock, last(7, false)).is_none(), "it is left alone");
        let absent = unreleased(&lock, None).expect("it is written");
        assert_eq!((absent.hold, absent.term, absent.released, absent.before), (hold(7), Some(12), false, Vec::new()));
        let released = unreleased(&lock, last(7, true)).expect("it is written");
        assert_eq!((released.released, released.young, released.before), (false, true, vec![hold(1)]));
        let other = unreleased(&lock, last(5, false)).expect("it is written");
        assert_eq!((other.hold, other.before), (hold(7), vec![hold(1), hold(5)]));
    }

    #[test]
    fn a_renewal_over_a_change_of_etcds_leader_proves_nothing() {
        let header = |raft_term| Some(ResponseHeader { raft_term, ..ResponseHeader::default() });
        let kept = |raft_term, ttl_seconds| LeaseKeepAliveResponse { header: header(raft_term), ttl_seconds };
        let found = |raft_term| RangeResponse { header: header(raft_term), ..RangeResponse::default() };
        assert!(is_proof(&kept(3, 15), &found(3)));
        assert!(!is_proof(&kept(2, 15), &found(3)), "a former leader may have answered");
        assert!(!is_proof(&kept(3, 0), &found(3)), "the lease is gone");
        assert!(!is_proof(&LeaseKeepAliveResponse { header: None, ttl_seconds: 15 }, &found(3)));
        assert!(!is_proof(&LeaseKeepAliveResponse { header: None, ttl_seconds: 15 }, &RangeResponse::default()));
    }
}
