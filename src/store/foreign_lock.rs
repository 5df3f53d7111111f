//! The lock of other programs, held beside the lease.
//!
//! The hazards:
//!
//! - The lock must be held for as long as our tree may live. So it is taken after the lease, each renewal of the lease is
//!   followed by one of the lock, and it is given back before the lease. An operator who revokes the lease leaves it.
//! - A lock that lives as long as a session of its server is freed as soon as its connection ends, though our tree still
//!   runs. So the guard keeps the connection open ([`ForeignLock::descriptor`]).
//! - A lock that is gone while we lead was taken away, or forgotten, and another program may have led meanwhile. So the
//!   leadership is lost. But our tree lives on for a while: what finds the lock gone takes it again, so that no other
//!   program begins before the tree is dead. Should the answer to that be lost, the next renewal must not take the lock for
//!   one that was held all the time: so it is taken in such a way that shows ([`Hold::Lost`]).
//! - Another program that gives the lock back tells nobody. So a standby looks again and again while one holds it.

use super::{
    Administration, Claim, Delivery, EachPage, ErrorKind, Finding, Holder, Leases, Note, NoteRead, Notes, Observation,
    Page, Release, Renewal, Renewed, Report, Store, StoreError,
};
use crate::lease::{Candidate, Session, Shard, Term};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tokio::time::sleep;

/// The first pause between looks while another program holds the lock; later pauses are longer.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// What became of a lock that was taken, or prolonged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    Held,
    /// It was gone. It is ours again until the lease would end, and is never `Held` again but by a new claim.
    Lost,
    /// Another program has it.
    Taken(Holder),
}

/// A lock that other programs take too.
#[async_trait::async_trait]
pub trait ForeignLock: Send + Sync {
    /// Who has it, if it is not `session`.
    async fn holder(&self, session: Option<&Session>) -> Result<Option<Holder>, StoreError>;

    /// Takes it for as long as the lease lasts; if `again`, confirms that it was held since, and prolongs it.
    async fn take(&self, candidate: &Candidate, term: Term, again: bool) -> Result<Hold, StoreError>;

    /// Gives it back, if `session` has it.
    async fn let_go(&self, session: &Session) -> Result<(), StoreError>;

    /// Returns when it may have been lost, as [`Leases::doubted`] does.
    async fn doubted(&self) {
        std::future::pending::<()>().await;
    }

    /// What must stay open while the tree lives: the guard inherits it.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What `store check` says of it.
    async fn check(&self, findings: &mut Vec<Finding>) -> Result<(), StoreError>;
}

/// A store, and the lock beside its leases, if there is one.
pub struct Beside<S, L> {
    store: S,
    lock: Option<L>,
}

impl<S: Store, L: ForeignLock> Beside<S, L> {
    pub fn new(store: S, lock: Option<L>) -> Self {
        Self { store, lock }
    }

    async fn holder(&self, session: Option<&Session>) -> Result<Option<Holder>, StoreError> {
        match &self.lock {
            Some(lock) => lock.holder(session).await,
            None => Ok(None),
        }
    }

    async fn let_go(&self, session: &Session) -> Result<(), StoreError> {
        match &self.lock {
            Some(lock) => lock.let_go(session).await,
            None => Ok(()),
        }
    }
}

#[async_trait::async_trait]
impl<S: Store, L: ForeignLock> Leases for Beside<S, L> {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let Some(lock) = &self.lock else { return self.store.claim(candidate).await };
        if let Some(holder) = lock.holder(Some(&candidate.session)).await? {
            // A leader of ours holds both, and its lease says more.
            return Ok(Claim::Refused(match self.store.observe(&candidate.shard).await? {
                Observation::Held(leader) if leader.session.as_ref().is_some_and(|of| *of != candidate.session) => {
                    leader
                }
                Observation::Held(_) | Observation::Free => holder,
            }));
        }
        let grant = match self.store.claim(candidate).await? {
            Claim::Granted(grant) => grant,
            refused @ Claim::Refused(_) => return Ok(refused),
        };
        match lock.take(candidate, grant.term, false).await {
            Ok(Hold::Taken(holder)) => {
                let released = self.store.release(candidate, grant.term).await;
                released.map_err(StoreError::after_a_part)?;
                Ok(Claim::Refused(holder))
            }
            Ok(Hold::Held | Hold::Lost) => Ok(Claim::Granted(grant)),
            Err(error) => {
                if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) {
                    // We will not ask again soon, so others should not have to wait until the lease ends.
                    let _ = self.store.release(candidate, grant.term).await;
                }
                Err(error.after_a_part())
            }
        }
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        match self.store.observe(shard).await? {
            Observation::Free => Ok(self.holder(None).await?.map_or(Observation::Free, Observation::Held)),
            held @ Observation::Held(_) => Ok(held),
        }
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let renewed = self.store.renew_and_read(candidate, term, sequence, shards).await?;
        let Some(lock) = self.lock.as_ref().filter(|_| renewed.renewal == Renewal::Renewed) else { return Ok(renewed) };
        Ok(match lock.take(candidate, term, true).await? {
            Hold::Held => renewed,
            Hold::Lost => Renewed::alone(Renewal::Lost(None)),
            Hold::Taken(holder) => Renewed::alone(Renewal::Lost(Some(holder))),
        })
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let let_go = self.let_go(&candidate.session).await;
        let released = self.store.release(candidate, term).await?;
        let_go.map(|()| released)
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        self.any_changed(std::slice::from_ref(shard)).await.map(drop)
    }

    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        let mut pause = FIRST_LOOK;
        loop {
            let index = self.store.any_changed(shards).await?;
            if self.holder(None).await?.is_none() {
                return Ok(index);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    async fn doubted(&self, shard: &Shard) {
        match &self.lock {
            Some(lock) => tokio::select! {
                () = self.store.doubted(shard) => {}
                () = lock.doubted() => {}
            },
            None => self.store.doubted(shard).await,
        }
    }

    fn with_lease_files(&self, shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        let own = self.lock.as_ref().and_then(ForeignLock::descriptor);
        self.store.with_lease_files(shard, &mut |files| act(&[files, own.as_slice()].concat()));
    }
}

#[async_trait::async_trait]
impl<S: Store, L: ForeignLock> Administration for Beside<S, L> {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let report = self.store.inspect(shard).await?;
        if report.holder.is_some() {
            return Ok(report);
        }
        Ok(Report { holder: self.holder(None).await?, ..report })
    }

    /// The lock belongs to one shard, and nothing says to which.
    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        self.store.list_in_pages(prefix, each).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        self.store.revoke(shard, term).await
    }

    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        self.let_go(&candidate.session).await?;
        self.store.forget(candidate, term).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        self.store.prepare().await
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        self.store.vouch().await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = self.store.check().await?;
        if let Some(lock) = &self.lock {
            lock.check(&mut findings).await?;
        }
        Ok(findings)
    }
}

#[async_trait::async_trait]
impl<S: Store, L: ForeignLock> Notes for Beside<S, L> {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        self.store.read(shard, page).await
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        self.store.replace(shard, page, expected, draft).await
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        self.store.standbys(prefix).await
    }
}

#[async_trait::async_trait]
impl<S: Store, L: ForeignLock> Store for Beside<S, L> {
    fn delivery(&self) -> Delivery {
        self.store.delivery()
    }

    fn is_metered(&self) -> bool {
        self.store.is_metered()
    }

    fn hindrance(&self) -> Option<String> {
        self.store.hindrance()
    }

    fn lanes(&self) -> usize {
        self.store.lanes()
    }

    async fn read_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        self.store.read_notes(wanted).await
    }
}
