//! How a lock is taken, and for whom its new holder has to wait.

use super::connection::Connection;
use super::proto::{TXN, TxnRequest, TxnResponse, is_absent, is_unchanged, put};
use super::record::{self, Base, Entry, Hold, Last, Lock, View, millis, written};
use super::unclaimed::UnclaimedLeases;
use super::{Etcd, Known, Left, MOST_ATTEMPTS, Tenure, YOUTH, with_drift};
use crate::lease::{Candidate, Term};
use crate::store::{Claim, Grant, StoreError};
use crate::time::{BootInstant, wall_clock_millis};
use std::sync::Arc;
use std::time::Duration;

/// The wait that a new leader owes to trees of before.
#[derive(Debug, Default)]
struct Debt {
    start_after: Option<BootInstant>,
    /// The prefix may have forgotten a leadership.
    young: bool,
    before: Vec<Hold>,
}

impl Debt {
    fn until(&mut self, instant: BootInstant) {
        self.start_after = Some(self.start_after.map_or(instant, |known| known.max(instant)));
    }
}

impl Etcd {
    /// Makes the prefix remember from now on. False when it did so already, or somebody was faster.
    pub(super) async fn found(&self, connection: &Arc<Connection>, after: Option<Term>) -> Result<bool, StoreError> {
        let stray = UnclaimedLeases::new_lease(&self.unclaimed)?;
        self.grant(connection, stray.id, YOUTH).await?;
        let (base, young) = (self.keys.base(), self.keys.young());
        let request = TxnRequest {
            compare: vec![is_absent(&base)],
            success: vec![
                put(&base, written(&Base::now(after)), 0),
                put(&young, b"deleted by an etcd lease once this prefix is a day old".to_vec(), stray.id),
            ],
            failure: Vec::new(),
        };
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        if answer.succeeded {
            stray.keep();
        }
        Ok(answer.succeeded)
    }

    /// For which trees of before a leader has to wait that takes the lock over this view.
    async fn debt(&self, connection: &Arc<Connection>, view: &View, candidate: &Candidate) -> Result<Debt, StoreError> {
        let mut debt = Debt::default();
        let mut may_be_young = true;
        if let Some(Entry { record: last, .. }) = view.last_known() {
            may_be_young = last.young;
            // Whoever claims has no tree.
            let vanished = !last.released && last.session != candidate.session;
            for hold in last.before.iter().chain(vanished.then_some(&last.hold)) {
                if let Some(left) = self.time_to_live(connection, hold.etcd_lease).await? {
                    // Not what is left alone: a renewal that saw its lock may still be under way.
                    let whole = left.granted.max(Duration::from_millis(hold.lease_ms));
                    debt.until(BootInstant::now().plus(with_drift(whole)));
                    debt.before.push(hold.clone());
                }
            }
        }
        if let Some(mark) = view.young.filter(|_| may_be_young) {
            // Zero: somebody put it there by hand.
            let left = if mark == 0 { Some(Left::ALL) } else { self.time_to_live(connection, mark).await? };
            if let Some(left) = left {
                let age = left.granted.saturating_sub(left.at_most);
                let wait = with_drift(candidate.lease).saturating_sub(age);
                if !wait.is_zero() {
                    debt.young = true;
                    debt.until(BootInstant::now().plus(wait));
                }
            }
        }
        Ok(debt)
    }

    pub(super) async fn claim_on(
        &self,
        connection: Arc<Connection>,
        candidate: &Candidate,
    ) -> Result<Claim, StoreError> {
        let shard = &candidate.shard;
        let mut stray = UnclaimedLeases::new_lease(&self.unclaimed)?;
        // At once, for most claims come when the lock is free.
        let (view, granted) =
            tokio::join!(self.look(&connection, shard), self.grant(&connection, stray.id, candidate.lease));
        let mut view = view?;
        if view.lock.as_ref().is_none_or(|lock| lock.record.session == candidate.session) {
            granted?;
            stray.granted();
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
            match self.take(&connection, candidate, &view, base, debt, stray.id).await? {
                Ok(tenure) => {
                    stray.keep();
                    let grant = Grant { term: tenure.term, start_after: tenure.start_after };
                    self.known().insert(shard.clone(), Known { seen: None, tenure: Some(tenure) });
                    return Ok(Claim::Granted(grant));
                }
                Err(newer) => view = newer,
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be taken")))
    }

    /// Puts the lock if nothing has changed since the view, or answers what is there now.
    async fn take(
        &self,
        connection: &Arc<Connection>,
        candidate: &Candidate,
        view: &View,
        base: &Entry<Base>,
        debt: Debt,
        etcd_lease: i64,
    ) -> Result<Result<Tenure, View>, StoreError> {
        let (lock_key, last_key) = (self.keys.lock(&candidate.shard), self.keys.last(&candidate.shard));
        let hold = Hold { etcd_lease, lease_ms: millis(candidate.lease) };
        let Debt { start_after, young, before } = debt;
        // The lock will be put after this view, so this makes its term higher than the last one.
        let higher = view.last_known().map_or(0, |last| last.term().0 + 1);
        let term_offset = base.term_offset().max(higher.saturating_sub(record::revision(view.revision)));
        // Over a lock of ours, by a claim whose answer nobody heard or a leadership that ran out: it moves to the new
        // etcd lease, for its own may be revoked.
        let lock = Lock::of(candidate, term_offset, wall_clock_millis());
        let session = candidate.session.clone();
        let last = Last { session, hold, term_offset, term: None, released: false, young, before };
        let seen = |entry: Option<i64>| entry.unwrap_or(0);
        let request = TxnRequest {
            compare: vec![
                is_unchanged(&self.keys.base(), base.mod_revision),
                is_unchanged(&last_key, seen(view.last.as_ref().map(|last| last.mod_revision))),
                is_unchanged(&lock_key, seen(view.lock.as_ref().map(|lock| lock.mod_revision))),
            ],
            success: vec![
                put(&lock_key, written(&lock), etcd_lease),
                put(&last_key, written(&last), 0),
                put(&self.keys.copy(&candidate.shard), written(&last), etcd_lease),
            ],
            failure: self.gets(&candidate.shard),
        };
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        if !answer.succeeded {
            return Ok(Err(View::read(&connection.server, answer)?));
        }
        let mod_revision = answer.revision();
        let create_revision = view.lock.as_ref().map_or(mod_revision, |lock| lock.create_revision);
        let lock = Entry { record: lock, create_revision, mod_revision, lease: etcd_lease };
        Ok(Ok(Tenure { term: lock.term(), lock, last, start_after, beat: 0 }))
    }
}
