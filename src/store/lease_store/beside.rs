//! The lock of other programs beside the lease (see [`foreign_lock`](crate::store::foreign_lock)): taken after the
//! lease, confirmed with each renewal, and given back before it.

use super::LeaseStore;
use super::seen::Standing;
use crate::lease::{BALANCE, Candidate, Shard, Term};
use crate::store::foreign_lock::{ForeignLock, Hold};
use crate::store::{Claim, ErrorKind, Holder, Observation, Renewal, Renewed, StoreError};
use crate::text::on_one_line;

impl LeaseStore {
    /// The lock that a leader of this shard also holds. `leaderctl balance` takes none with its own lease, because the
    /// leaders that it moves hold it.
    pub(super) fn lock_of(&self, shard: &Shard) -> Option<&dyn ForeignLock> {
        self.documents.lock().filter(|_| shard.as_str() != BALANCE)
    }

    /// Warns once if this candidate would lead without the lock that the leader holds, or with another lock.
    pub(super) fn compare_locks(&self, shard: &Shard, standing: &Standing) {
        let Some(leader) = standing.document.as_ref().and_then(|document| document.lease.as_ref()) else { return };
        let own = self.lock_of(shard).map(ForeignLock::name);
        if leader.lock != own {
            let [theirs, own] = [&leader.lock, &own].map(|lock| lock.as_deref().unwrap_or("no other lock"));
            let said = format!("{} holds {theirs} beside the lease, and this candidate would hold {own}", leader.owner);
            self.other_lock.call_once(|| {
                tracing::warn!("{}: give all candidates of a shard the same store URL", on_one_line(said));
            });
        }
    }

    pub(super) async fn lock_holder(&self, shard: &Shard) -> Result<Option<Holder>, StoreError> {
        match self.lock_of(shard) {
            Some(lock) => lock.holder(None).await,
            None => Ok(None),
        }
    }

    /// Another program holds the lock, and no lease stands. A watch may still show the lease of a leader that is gone,
    /// because nothing reports an end by time: so it begins again, and looks now and then for the end of the lock.
    pub(super) fn held_by_lock(&self, holder: Holder) -> Holder {
        self.is_behind.notify_waiters();
        holder
    }

    pub(super) async fn claim_with_lock(
        &self,
        lock: &dyn ForeignLock,
        candidate: &Candidate,
    ) -> Result<Claim, StoreError> {
        if let Some(holder) = lock.holder(Some(candidate)).await? {
            // A leader of ours holds both, and its lease says more.
            return Ok(Claim::Refused(match self.observe_lease(&candidate.shard).await? {
                Observation::Held(leader) if leader.session.as_ref().is_some_and(|of| *of != candidate.session) => {
                    leader
                }
                Observation::Held(_) | Observation::Free => self.held_by_lock(holder),
            }));
        }
        let grant = match self.claim_lease(candidate).await? {
            Claim::Granted(grant) => grant,
            refused @ Claim::Refused(_) => return Ok(refused),
        };
        match lock.take(candidate, grant.term, false).await {
            Ok(Hold::Taken(holder)) => {
                let released = self.give_back(candidate, grant.term, false).await;
                released.map_err(StoreError::after_a_part)?;
                Ok(Claim::Refused(holder))
            }
            Ok(Hold::Held | Hold::Lost) => Ok(Claim::Granted(grant)),
            Err(error) => {
                if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) {
                    // We will not ask again soon, so others should not have to wait until the lease ends.
                    let _ = self.give_back(candidate, grant.term, false).await;
                }
                Err(error.after_a_part())
            }
        }
    }

    /// Confirms the lock after a renewal of the lease. Without the lock, the lease counts as lost.
    pub(super) async fn with_lock(
        &self,
        renewed: Renewed,
        candidate: &Candidate,
        term: Term,
    ) -> Result<Renewed, StoreError> {
        let lock = self.lock_of(&candidate.shard).filter(|_| renewed.renewal == Renewal::Renewed);
        let Some(lock) = lock else { return Ok(renewed) };
        Ok(match lock.take(candidate, term, true).await? {
            Hold::Held => renewed,
            Hold::Lost => Renewed::alone(Renewal::Lost(None)),
            Hold::Taken(holder) => Renewed::alone(Renewal::Lost(Some(holder))),
        })
    }

    pub(super) async fn let_go(&self, candidate: &Candidate, term: Term) -> Result<(), StoreError> {
        match self.lock_of(&candidate.shard) {
            Some(lock) => lock.let_go(candidate, term).await,
            None => Ok(()),
        }
    }
}
