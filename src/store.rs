//! What a lease store is: its three traits, and what they answer.
//!
//! The hazard: an answer can be lost after the request was applied. So a refusal is a value and not an error;
//! an error says what may be concluded from it ([`ErrorKind`]); and every method that writes is written so that
//! asking again with the same session does no harm: a claim of a lease that is already mine is granted, a
//! renewal is recognised however late it arrives, a release of what is not mine does nothing.

use crate::lease::{Candidate, Session, Shard, Term};
use crate::text::on_one_line;
use crate::time::BootInstant;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(any(feature = "dynamodb", feature = "tls"))]
mod allowance;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
mod fnv;
#[cfg(feature = "tls")]
mod kept;
mod location;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
pub mod notes;
pub mod parallel;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
mod round_trip;
#[cfg(feature = "tls")]
pub mod tls;
pub mod url;

pub use error::{ErrorKind, StoreError};
pub use location::{Location, SCHEMES};
pub use notes::{Note, Notes, Page};
pub(crate) use round_trip::within;

/// The leases of a store, on behalf of one [`Candidate`]: what an election needs.
///
/// Cancelling any of these (dropping its future) may leave the request applied, as a lost answer does.
#[async_trait::async_trait]
pub trait Leases: Send + Sync {
    /// Takes the lease if it is free, or if the candidate's own session holds it.
    ///
    /// A grant counts from the instant before this call.
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError>;

    /// Whether a claim is worth making. Never writes. May be a little behind.
    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError>;

    /// Extends the lease to its whole duration, counted from the instant before this call.
    ///
    /// `sequence` rises with every renewal of a leadership. A renewal that is overtaken by a later one changes nothing.
    async fn renew(&self, candidate: &Candidate, term: Term, sequence: u64) -> Result<Renewal, StoreError>;

    /// Gives the lease back if the candidate's session holds it. The tree must be dead.
    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError>;

    /// Returns when [`Leases::observe`] may answer differently than before; early for no reason is allowed.
    /// Where [`Store::delivery`] is [`Delivery::Poll`] it never returns.
    async fn changed(&self, shard: &Shard) -> Result<(), StoreError>;

    /// As [`Leases::changed`], of several shards at once; answers with the place in `shards` of one that changed.
    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        let waits = shards.iter().enumerate().map(|(index, shard)| async move {
            self.changed(shard).await?;
            Ok(index)
        });
        parallel::first(waits).await
    }

    /// Returns when something happened that may have ended a lease that this candidate holds (a connection broke on
    /// which it depends, the record was seen to change), so that the next renewal should not wait. Early for no reason
    /// is allowed. Without it, a renewal finds out.
    async fn doubted(&self, shard: &Shard) {
        let _ = shard;
        std::future::pending::<()>().await;
    }

    /// Calls `act` with the descriptors that must stay open for as long as the tree lives: the guard inherits them.
    fn with_lease_files(&self, shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        let _ = shard;
        act(&[]);
    }
}

/// What operators need of a store.
///
/// Cancelling any of these (dropping its future) may leave the request applied, as a lost answer does.
#[async_trait::async_trait]
pub trait Administration: Send + Sync {
    /// What people want to know about a shard; strongly consistent.
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError>;

    /// Every shard that the store knows whose name begins with `prefix`, letter by letter: in their order, each once, as
    /// [`Administration::inspect`] tells of it. Never writes. It may take many requests, each bounded by itself, so two shards
    /// may be shown as they were at two instants. A record that something else wrote in a shard's place is shown as
    /// a holder, for it keeps everybody from leading.
    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError>;

    /// Ends the lease of `term`, whoever holds it, as if somebody had deleted its record by hand: its holder is told that
    /// it is lost, and whoever is granted the next one may not start before the tree is dead that may be alive.
    ///
    /// Misconfigured where the kernel keeps leases for as long as processes hold them open.
    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError>;

    /// Gives the lease back as [`Leases::release`] does, and leaves nothing behind of the shard: no lease, no last term, no
    /// notes; but where later terms would not be higher, its term. For who holds the lease and has started nothing.
    ///
    /// `NotHeld`: the lease is not the session's, and stays as it is; some notes may be gone.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let _ = (candidate, term);
        Err(StoreError::misconfigured("this store cannot forget a shard"))
    }

    /// Makes what the store needs (a table, a bucket, a directory), harmless when it exists.
    /// Answers what was done, a line each.
    async fn prepare(&self) -> Result<Vec<String>, StoreError>;

    /// Tries everything that an election needs and answers what it found, a [`Finding`] each.
    async fn check(&self) -> Result<Vec<Finding>, StoreError>;
}

/// A lease store: leases, the [notes](Notes) beside them, their administration, and what the store is like.
pub trait Store: Leases + Notes + Administration {
    /// How a standby learns of a change.
    fn delivery(&self) -> Delivery;

    /// False where a lease lasts for as long as a process holds it open.
    fn expires(&self) -> bool {
        true
    }

    /// True where each request costs money.
    fn is_metered(&self) -> bool {
        false
    }

    /// What makes a takeover slow here, for people: a fragment.
    fn hindrance(&self) -> Option<String> {
        None
    }

    /// How many observations may run at once without a connection for each.
    fn lanes(&self) -> usize {
        16
    }
}

/// How a standby learns that the lease may be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// It polls at the retry interval.
    Poll,
    /// The store announces a release. It does not announce a crash, and a message may be lost, so the standby also looks
    /// when the lease that it saw would end.
    Push,
    /// The kernel wakes it, without fail.
    Kernel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    Granted(Grant),
    Refused(Holder),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub term: Term,
    /// Some when the store cannot show that the last tree was stopped (it forgot its records, or the record
    /// vanished without a release): that tree is dead by then. Counted from the answer, never from the request: a
    /// renewal of its holder may have come in between.
    pub start_after: Option<BootInstant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    Free,
    Held(Holder),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    Renewed,
    /// A later renewal of the same leadership was applied before: this one changed nothing.
    Overtaken,
    /// Definite: another session holds the lease (`Some`), or the record is gone.
    Lost(Option<Holder>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    Released,
    /// There was nothing of this session to release.
    NotHeld,
}

/// Who holds a lease, as far as its record says. Records of other programs say little.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    pub owner: String,
    pub session: Option<Session>,
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub term: Option<Term>,
    /// Milliseconds since 1970: when this leadership began.
    pub since_millis: Option<u64>,
    /// Until the store may grant it to another session. None where it does not expire.
    pub expires_in: Option<Duration>,
    /// Since the lease was granted or last renewed, as [`Administration::inspect`] and [`Administration::list`] tell. None where leases do
    /// not expire, and where the record does not tell.
    pub renewed_ago: Option<Duration>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&on_one_line(self.owner.clone()))?;
        if let Some(term) = self.term {
            write!(f, " (term {term})")?;
        }
        Ok(())
    }
}

impl Holder {
    /// For a record that another program wrote.
    pub(crate) fn stranger() -> Self {
        Self { owner: "something that writes other records".to_owned(), ..Self::default() }
    }
}

/// What [`Administration::inspect`] tells of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// None when the shard is free.
    pub holder: Option<Holder>,
    /// The highest term that the store remembers.
    pub last_term: Option<Term>,
}

/// One thing that [`Administration::check`] looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub verdict: Verdict,
    pub text: String,
}

impl Finding {
    pub fn good(text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Good, text: text.into() }
    }

    pub fn doubtful(text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Doubtful, text: text.into() }
    }

    pub fn bad(text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Bad, text: text.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// It works, with less than it could.
    Doubtful,
    /// An election cannot work, or not safely.
    Bad,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_record_or_a_server_says_stays_on_one_line() {
        let holder = Holder { owner: "me\n\u{1b}[2Jyou".to_owned(), ..Holder::default() };
        assert_eq!(holder.to_string(), "me  [2Jyou");
        assert_eq!(StoreError::unknown("a\r\nb\u{9b}c").message, "a  b c");
    }
}
