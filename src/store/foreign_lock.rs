//! The lock of other programs, held beside the lease.
//!
//! The hazards:
//!
//! - The lock must be held for as long as our tree may live. So it is taken after the lease, each renewal of the lease
//!   is followed by one of the lock, and it is given back before the lease. Revoking the lease does not free the lock.
//! - A lock that lives as long as a session of its server is freed as soon as its connection ends, though our tree
//!   still runs. So the guard keeps the connection open ([`ForeignLock::descriptor`]).
//! - If the lock is gone while we lead, another program may have led meanwhile. So the leadership is lost, except with
//!   PostgreSQL, where COMMAND goes on if the lock can be taken again. Our tree lives on for a while, so the lock is
//!   taken again, and no other program begins before the tree is dead. If the answer to that is lost, the next renewal
//!   must not believe that the lock was held all the time. So a lock that was taken again shows that ([`Hold::Lost`]).
//! - Another program that gives the lock back tells nobody. So a standby looks again and again while one holds it.

use super::{Finding, Holder, StoreError};
use crate::lease::{Candidate, Session, Term};
use std::os::fd::BorrowedFd;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    Held,
    /// It was gone. We hold it again until the lease would end, but only a new claim makes it `Held`.
    Lost,
    Taken(Holder),
}

/// What the lock of programs without terms cannot promise, for `store check`.
pub fn doubt(name: &str) -> Finding {
    Finding::doubtful(format!(
        "the programs that take only {name} have no terms, and have to stop by themselves before their time is over; if it \
         is deleted or lost, another may take it at once, and two can lead until leaderrun notices: see leaderrun-stores(7)"
    ))
}

/// A lock that other programs take too.
#[async_trait::async_trait]
pub trait ForeignLock: Send + Sync {
    /// Its name, for people; the same for all candidates of a shard.
    fn name(&self) -> String;

    /// Who has it, unless that is `session`.
    async fn holder(&self, session: Option<&Session>) -> Result<Option<Holder>, StoreError>;

    /// Takes it for as long as the lease lasts; if `again`, confirms that it was held since, and prolongs it.
    async fn take(&self, candidate: &Candidate, term: Term, again: bool) -> Result<Hold, StoreError>;

    /// Gives it back, if `session` has it.
    async fn let_go(&self, session: &Session) -> Result<(), StoreError>;

    /// Returns when it may have been lost, as [`Leases::doubted`](super::Leases::doubted) does.
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
