//! Claims, renewals and releases of the lock, and the wait that a new holder owes to earlier trees.
//!
//! The hazards are those of the store: see its module.

use super::connection::Connection;
use super::lease::Left;
use super::proto::{
    KeyValue, LeaseKeepAliveResponse, RangeResponse, ResponseHeader, TXN, TxnRequest, TxnResponse, delete, get,
    is_absent, is_unchanged, put,
};
use super::record::{self, Base, Entry, EtcdLease, Last, Lock, View, millis, written};
use super::unclaimed::UnclaimedLeases;
use super::{Etcd, Known, Leadership, MOST_ATTEMPTS, YOUTH};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::{Claim, Grant, Holder, Leases, Observation, Release, Renewal, Renewed, StoreError};
use crate::time::{BootInstant, wall_clock_millis};
use std::sync::Arc;
use std::time::Duration;

#[async_trait::async_trait]
impl Leases for Etcd {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        self.client.operate(|connection| Box::pin(self.claim_on(connection, candidate))).await
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        self.client.operate(|connection| Box::pin(self.observe_on(connection, shard))).await
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        self.client.operate(|connection| Box::pin(self.renew_on(connection, candidate, term, sequence, shards))).await
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        self.client.operate(|connection| Box::pin(self.release_on(connection, candidate, term))).await
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        self.wait_for_release(shard).await
    }

    async fn doubted(&self, shard: &Shard) {
        self.wait_for_doubt(shard).await;
    }
}

/// The wait that a new leader owes to earlier trees.
#[derive(Debug, Default)]
struct Debt {
    start_after: Option<BootInstant>,
    /// The prefix may have forgotten a leadership.
    young: bool,
    before: Vec<EtcdLease>,
}

impl Debt {
    fn until(&mut self, instant: BootInstant) {
        self.start_after = Some(self.start_after.map_or(instant, |known| known.max(instant)));
    }
}

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

/// Whether the lock that `found` shows stays for a whole lease from when both requests were sent: its lease was kept
/// alive, and by the present leader of etcd. See the hazards of this store.
fn is_proof(kept: &LeaseKeepAliveResponse, found: &RangeResponse) -> bool {
    let term = |header: &Option<ResponseHeader>| header.as_ref().map(|header| header.raft_term);
    // A lease that is gone takes its lock with it. The read may have been too early to see that.
    kept.ttl_seconds > 0 && term(&kept.header).is_some() && term(&kept.header) == term(&found.header)
}

/// The record beside a lock that is given back, if that record was deleted by hand.
pub(super) fn given_back(lock: &Entry<Lock>) -> Last {
    let Lock { session, lease_ms, term_offset, .. } = lock.record.clone();
    let etcd_lease = EtcdLease { id: lock.lease, lease_ms };
    let term = Some(lock.term().0);
    let (released, revoked, young) = (true, None, false);
    Last { session, etcd_lease, term_offset, term, released, revoked, young, before: Vec::new() }
}

impl Etcd {
    /// Makes the prefix remember from now on. False if it did so already, or another candidate was faster.
    pub(super) async fn found(&self, connection: &Arc<Connection>, after: Option<Term>) -> Result<bool, StoreError> {
        let unclaimed = UnclaimedLeases::new_lease(&self.unclaimed)?;
        self.grant(connection, unclaimed.id, YOUTH).await?;
        let (base, young) = (self.keys.base(), self.keys.young());
        let request = TxnRequest {
            compare: vec![is_absent(&base)],
            success: vec![
                put(&base, written(&Base::now(after)), 0),
                put(&young, b"deleted by an etcd lease once this prefix is older than a day".to_vec(), unclaimed.id),
            ],
            failure: Vec::new(),
        };
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        if answer.succeeded {
            unclaimed.keep();
        }
        Ok(answer.succeeded)
    }

    /// The wait for earlier trees that a leader owes if it takes the lock over this view.
    async fn debt(&self, connection: &Arc<Connection>, view: &View, candidate: &Candidate) -> Result<Debt, StoreError> {
        let mut debt = Debt::default();
        let mut may_be_young = true;
        if let Some(Entry { record: last, .. }) = view.last_known() {
            may_be_young = last.young;
            // A candidate that claims has no tree.
            let vanished = !last.released && last.session != candidate.session;
            for lease in last.before.iter().chain(vanished.then_some(&last.etcd_lease)) {
                if let Some(left) = self.time_to_live(connection, lease.id).await? {
                    // The whole lease, not just what is left: a renewal that saw its lock may still be under way.
                    let whole = left.granted.max(Duration::from_millis(lease.lease_ms));
                    debt.until(BootInstant::now().plus(whole));
                    debt.before.push(lease.clone());
                }
            }
        }
        if let Some(mark) = view.young.filter(|_| may_be_young) {
            // Zero: a user put it there by hand.
            let left = if mark == 0 { Some(Left::ALL) } else { self.time_to_live(connection, mark).await? };
            if let Some(left) = left {
                let age = left.granted.saturating_sub(left.at_most);
                let wait = candidate.lease.saturating_sub(age);
                if !wait.is_zero() {
                    debt.young = true;
                    debt.until(BootInstant::now().plus(wait));
                }
            }
        }
        Ok(debt)
    }

    async fn claim_on(&self, connection: Arc<Connection>, candidate: &Candidate) -> Result<Claim, StoreError> {
        let shard = &candidate.shard;
        let mut unclaimed = UnclaimedLeases::new_lease(&self.unclaimed)?;
        // Both at the same time, because most claims come when the lock is free.
        let (view, granted) =
            tokio::join!(self.look(&connection, shard), self.grant(&connection, unclaimed.id, candidate.lease));
        let mut view = view?;
        if view.lock.as_ref().is_none_or(|lock| lock.record.session == candidate.session) {
            granted?;
            unclaimed.granted();
        }
        for _ in 0..MOST_ATTEMPTS {
            if let Some(lock) = view.lock.as_ref().filter(|lock| lock.record.session != candidate.session) {
                self.saw_held(shard, view.revision);
                return Ok(Claim::Refused(self.holder(&connection, lock).await?));
            }
            let Some(base) = &view.base else {
                self.found(&connection, view.last_known().map(Entry::<Last>::term)).await?;
                view = self.look(&connection, shard).await?;
                continue;
            };
            let debt = self.debt(&connection, &view, candidate).await?;
            let takeover = view.takeover();
            match self.take(&connection, candidate, &view, base, debt, unclaimed.id).await? {
                Ok(leadership) => {
                    unclaimed.keep();
                    let grant = Grant { term: leadership.term, start_after: leadership.start_after, takeover };
                    self.known.lock().insert(shard.clone(), Known { seen: None, leadership: Some(leadership) });
                    return Ok(Claim::Granted(grant));
                }
                Err(newer) => view = newer,
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be taken")))
    }

    /// Puts the lock if nothing has changed since the view; otherwise returns what is there now.
    async fn take(
        &self,
        connection: &Arc<Connection>,
        candidate: &Candidate,
        view: &View,
        base: &Entry<Base>,
        debt: Debt,
        lease_id: i64,
    ) -> Result<Result<Leadership, View>, StoreError> {
        let (lock_key, last_key) = (self.keys.lock(&candidate.shard), self.keys.last(&candidate.shard));
        let etcd_lease = EtcdLease { id: lease_id, lease_ms: millis(candidate.lease) };
        let Debt { start_after, young, before } = debt;
        // The lock will be put after this view, so this makes its term higher than the last one.
        let higher = view.last_known().map_or(0, |last| last.term().0 + 1);
        let term_offset = base.term_offset().max(higher.saturating_sub(record::unsigned(view.revision)));
        // The lock may already be ours, by a claim whose answer was lost or a leadership that ran out. Then it moves to
        // the new etcd lease, because its own may be revoked.
        let lock = Lock::of(candidate, term_offset, wall_clock_millis());
        let session = candidate.session.clone();
        let revoked = view.last_known().and_then(|last| last.record.revoked);
        let (released, term) = (false, None);
        let last = Last { session, etcd_lease, term_offset, term, released, revoked, young, before };
        let seen = |entry: Option<i64>| entry.unwrap_or(0);
        let request = TxnRequest {
            compare: vec![
                is_unchanged(&self.keys.base(), base.mod_revision),
                is_unchanged(&last_key, seen(view.last.as_ref().map(|last| last.mod_revision))),
                is_unchanged(&lock_key, seen(view.lock.as_ref().map(|lock| lock.mod_revision))),
            ],
            success: vec![
                put(&lock_key, written(&lock), lease_id),
                put(&last_key, written(&last), 0),
                put(&self.keys.copy(&candidate.shard), written(&last), lease_id),
            ],
            failure: self.gets(&candidate.shard),
        };
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        if !answer.succeeded {
            return Ok(Err(View::read(&connection.server, answer)?));
        }
        let mod_revision = answer.revision();
        let create_revision = view.lock.as_ref().map_or(mod_revision, |lock| lock.create_revision);
        let lock = Entry { record: lock, create_revision, mod_revision, lease: lease_id };
        Ok(Ok(Leadership { term: lock.term(), lock, last, start_after, sequence: 0 }))
    }

    async fn observe_on(&self, connection: Arc<Connection>, shard: &Shard) -> Result<Observation, StoreError> {
        let found = self.get(&connection, self.keys.lock(shard)).await?;
        let Some(kv) = found.kvs.first() else { return Ok(Observation::Free) };
        let lock = record::read_lock(&connection.server, kv)?;
        self.saw_held(shard, found.header.map_or(0, |header| header.revision));
        Ok(Observation::Held(self.holder(&connection, &lock).await?))
    }

    async fn renew_on(
        &self,
        connection: Arc<Connection>,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let shard = &candidate.shard;
        let key = self.keys.lock(shard);
        let mut mine = match self.leadership(shard, &candidate.session) {
            Some(leadership) if sequence <= leadership.sequence => return Ok(Renewed::alone(Renewal::Overtaken)),
            Some(leadership) => Some((leadership.lock.lease, leadership.lock.mod_revision)),
            None => None,
        };
        for _ in 0..MOST_ATTEMPTS {
            let Some((etcd_lease, mod_revision)) = mine else {
                // This is a claim of ours whose answer was lost, or nothing.
                let found = self.get(&connection, key.clone()).await?;
                match whose(candidate, &connection, found.kvs.first()) {
                    Whose::Ours(lock) if self.unclaimed.leases().contains(&lock.lease) => {
                        return Err(StoreError::unknown(format!(
                            "the lock of shard {shard} is about to be given back"
                        )));
                    }
                    Whose::Ours(lock) => mine = Some((lock.lease, lock.mod_revision)),
                    Whose::Theirs(holder) => {
                        return Ok(Renewed::alone(self.lost(&connection, shard, term, Some(holder)).await));
                    }
                    Whose::Nobodys => return Ok(Renewed::alone(self.lost(&connection, shard, term, None).await)),
                }
                continue;
            };
            let (kept, found) =
                tokio::join!(self.keep_alive(&connection, etcd_lease), self.get_with_orders(&connection, &key, shards));
            let (found, orders) = found?;
            match found.kvs.first() {
                Some(kv) if kv.mod_revision == mod_revision && kv.lease == etcd_lease => {
                    let kept = kept?;
                    if !is_proof(&kept, &found) {
                        continue;
                    }
                    if Duration::from_secs(record::unsigned(kept.ttl_seconds)) < candidate.lease {
                        return Err(StoreError::unknown(format!(
                            "etcd at {} kept the lease of shard {shard} for {} s only",
                            connection.server, kept.ttl_seconds
                        )));
                    }
                    let mut known = self.known.lock();
                    let leadership = known.entry(shard.clone()).or_default().leadership.as_mut();
                    if let Some(leadership) =
                        leadership.filter(|leadership| leadership.lock.mod_revision == mod_revision)
                    {
                        leadership.sequence = leadership.sequence.max(sequence);
                    }
                    return Ok(Renewed { renewal: Renewal::Renewed, orders });
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
                    self.forget_leadership(shard, &candidate.session);
                    return Ok(Renewed::alone(self.lost(&connection, shard, term, holder).await));
                }
            }
        }
        Err(StoreError::unknown(format!(
            "etcd at {} changes its leader, or the lock of shard {shard}, while the lease is renewed",
            connection.server
        )))
    }

    /// What a renewal of `term` is that found this holder in the place of its lock. The record beside it tells whether
    /// an operator deleted that lock.
    async fn lost(&self, connection: &Arc<Connection>, shard: &Shard, term: Term, holder: Option<Holder>) -> Renewal {
        let found = self.get(connection, self.keys.last(shard)).await.ok();
        let last = found.as_ref().and_then(|found| found.kvs.first());
        match last.and_then(|kv| record::read::<Last>(&connection.server, kv).ok()) {
            Some(last) if last.record.revoked == Some(term.0) => Renewal::Revoked,
            Some(_) | None => Renewal::Lost(holder),
        }
    }

    fn forget_leadership(&self, shard: &Shard, session: &Session) {
        if let Some(known) = self.known.lock().get_mut(shard) {
            known.leadership.take_if(|leadership| leadership.lock.record.session == *session);
        }
    }

    async fn release_on(
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
            .leadership(shard, &candidate.session)
            .filter(|leadership| fits(&leadership.lock))
            .map(|leadership| (leadership.lock, Some(leadership.last), leadership.start_after));
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
                    // In the background, because this process may end now. A lease that is not revoked expires by
                    // itself.
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
        self.forget_leadership(shard, &candidate.session);
        // A claim that was given up may be under way. Without its etcd lease it has no effect.
        for id in self.unclaimed.leases() {
            self.unclaimed.revoke(&connection, id).await?;
        }
        Ok(released)
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
        // A lock that cannot be read is not ours, and no error here.
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
