//! Defines a lease store: its three traits and their answers.
//!
//! The hazard: an answer can be lost after the request was applied. So a refusal is a value, not an error, and an error
//! says what the caller may conclude from it ([`ErrorKind`]). Every method that writes can safely be called again with
//! the same session: a claim of a lease that the session already holds is granted, a renewal is recognised however late
//! it arrives, and a release of a lease that the session does not hold does nothing.

#![cfg_attr(
    not(all(
        feature = "dynamodb",
        feature = "bucket",
        feature = "redis",
        feature = "postgres",
        feature = "mysql",
        feature = "nats",
        feature = "etcd",
        feature = "kubernetes"
    )),
    allow(dead_code, unreachable_patterns, reason = "each store uses a part of what they share")
)]

use crate::lease::{Candidate, Session, Shard, Term};
use crate::text::on_one_line;
use crate::time::BootInstant;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

mod allowance;
pub mod anchor;
#[cfg(feature = "aws")]
mod aws;
#[cfg(feature = "bucket")]
pub mod bucket;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod expiry;
pub mod file;
pub mod foreign_lock;
mod kept_connection;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod lease_store;
mod location;
#[cfg(feature = "nats")]
pub mod nats;
pub mod notes;
pub mod parallel;
mod record;
#[cfg(feature = "redis")]
pub mod redis;
mod round_trip;
mod server_clock;
mod socket;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod sql;
pub(crate) mod stable_hash;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod tls_mode;
pub mod url;

pub use error::{Cause, ErrorKind, StoreError};
pub use expiry::ServerTime;
pub use location::{BUILT_IN, Location};
pub use notes::{Note, NoteRead, Notes, Page};
pub(crate) use round_trip::within;
pub use server_clock::Clock;

/// The answer of a store, or why there is none.
pub type Answer<T> = Result<T, StoreError>;

/// What an election needs of a store's leases, for one [`Candidate`].
///
/// Dropping a method's future cancels it. Its request may have been applied, as after a lost answer.
#[async_trait::async_trait]
pub trait Leases: Send + Sync {
    /// Takes the lease if it is free, or if the candidate's own session holds it.
    ///
    /// A grant counts from the instant before this call.
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError>;

    /// Shows whether a claim is worth making. Never writes a lease. The answer may be a little old.
    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError>;

    /// Extends the lease to its whole duration, counted from the instant before this call. Where the store can, the
    /// same request reads the operators' orders of `shards`. The renewal does not depend on them: if a note cannot be
    /// read, [`Renewed::orders`] is `None`.
    ///
    /// `sequence` rises with every renewal of a leadership. A renewal that arrives after a later one changes nothing.
    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError>;

    /// Renews without reading orders.
    async fn renew(&self, candidate: &Candidate, term: Term, sequence: u64) -> Result<Renewal, StoreError> {
        self.renew_and_read(candidate, term, sequence, &[]).await.map(|renewed| renewed.renewal)
    }

    /// Gives the lease back if the candidate's session holds it. The tree must be dead.
    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError>;

    /// Returns when the answer of [`Leases::observe`] may have changed. It may return early for no reason. It never
    /// returns where [`Store::delivery`] is [`Delivery::Poll`].
    async fn changed(&self, shard: &Shard) -> Result<(), StoreError>;

    /// Like [`Leases::changed`], for several shards at once. Returns the index in `shards` of one that changed.
    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        let waits = shards.iter().enumerate().map(|(index, shard)| async move {
            self.changed(shard).await?;
            Ok(index)
        });
        parallel::first(waits).await
    }

    /// Returns when something may have ended a lease that this candidate holds: a connection on which the lease depends
    /// broke, or the record changed. The caller should then renew at once. It may return early for no reason. Without
    /// this hint, the next renewal notices.
    async fn doubted(&self, shard: &Shard) {
        let _ = shard;
        std::future::pending::<()>().await;
    }

    /// Calls `act` with the descriptors that must stay open while the tree lives: the guard inherits them.
    fn with_lease_files(&self, shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        let _ = shard;
        act(&[]);
    }
}

/// What operators need from a store. Methods are cancelled as those of [`Leases`].
#[async_trait::async_trait]
pub trait Administration: Send + Sync {
    /// The state of a shard, for people; strongly consistent.
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError>;

    /// Lists every shard in the store whose name begins with `prefix`, letter by letter. Each shard appears once, in
    /// order, with the report of [`Administration::inspect`]. Never writes. It may take many requests, each with its
    /// own time bound, so the list is not a snapshot of one instant. A record of another program under a shard's name
    /// is listed as a holder, because it keeps every candidate from leading.
    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError>;

    /// Ends the lease of `term`, whichever session holds it, as if an operator had deleted its record by hand. The
    /// holder learns that it lost the lease. Its tree may still run, so the next candidate that gets the lease must not
    /// start COMMAND before that tree is dead.
    ///
    /// Misconfigured where leases do not expire, because the kernel keeps them ([`Delivery::Kernel`]).
    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError>;

    /// Gives the lease back as [`Leases::release`] does, and removes all traces of the shard: the lease, the last term,
    /// and the notes. It keeps the last term if later terms would otherwise not be higher. The caller holds the lease
    /// and has started nothing.
    ///
    /// `NotHeld`: another session holds the lease, which stays as it is. Some notes may be gone.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let _ = (candidate, term);
        Err(StoreError::misconfigured("this store cannot forget a shard"))
    }

    /// Creates what the store needs (a table, a bucket, a directory), unless it exists. Returns a line for each step.
    async fn prepare(&self) -> Result<Vec<String>, StoreError>;

    /// Records that no candidate has used the prepared store. So its first leader need not wait for a lease that the
    /// store may have lost. Call this only if an operator says so and the store has no record of any shard: if the
    /// store has forgotten a leader, a second one starts beside it.
    async fn vouch(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Tries everything that an election needs, and returns a [`Finding`] for each.
    async fn check(&self) -> Result<Vec<Finding>, StoreError>;
}

/// A lease store: leases, the [notes](Notes) beside them, their administration, and the store's properties.
#[async_trait::async_trait]
pub trait Store: Leases + Notes + Administration {
    /// How a standby learns of a change.
    fn delivery(&self) -> Delivery;

    /// Whether leases expire. Where they do not, the kernel keeps a lease as long as a process holds its file open.
    fn expires(&self) -> bool {
        self.delivery() != Delivery::Kernel
    }

    /// Whether to send few requests, because each costs money or loads a cluster's control plane.
    fn is_metered(&self) -> bool {
        false
    }

    /// Whether a leader also holds a lock of other programs ([`foreign_lock`]).
    fn shares_lock(&self) -> bool {
        false
    }

    /// Why a takeover is slow here: a part of a sentence, for people.
    fn takeover_warning(&self) -> Option<String> {
        None
    }

    /// Reads many notes, in few requests where the store can. Returns the result of [`Notes::read`] for each. An error
    /// that is not about one note alone ends it.
    async fn read_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        let mut notes = Vec::with_capacity(wanted.len());
        for (shard, page) in wanted {
            match self.read(shard, page).await {
                Err(error) if !error.kind.is_final() => return Err(error),
                note => notes.push(note),
            }
        }
        Ok(notes)
    }
}

/// How a standby learns that the lease may be free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// The standby polls at the retry interval.
    Poll,
    /// The store announces a release, but not a crash, and a message may be lost. So the standby also looks when the
    /// lease that it saw would end.
    #[default]
    Push,
    /// The kernel wakes the standby, without fail.
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
    /// Some if the last tree may still run: the store forgot its records, or the record vanished without a release. By
    /// this instant that tree is dead. The wait counts from the answer, never from the request, because the last holder
    /// may have renewed in between.
    pub start_after: Option<BootInstant>,
    pub takeover: Takeover,
}

/// How the leadership before a grant ended, as far as the store knows. If the answer to a grant was lost, the grant
/// that repeats it says `Expired`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "lowercase")]
pub enum Takeover {
    /// The store knows of none.
    First,
    /// Its tree was dead when it gave the lease back.
    Released,
    /// The lease was not given back: it expired, its record vanished, or the kernel freed a lock.
    Expired,
    /// An operator took it away.
    Revoked,
}

/// Why a tree that the store does not know may be running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// The store knows no leader of this shard, and its memory is younger than a lease.
    FirstUse,
    /// It may have forgotten a lease, or the record vanished without a release.
    #[default]
    Forgotten,
    /// An operator took its lease away.
    Revoked,
}

impl From<Takeover> for Doubt {
    fn from(takeover: Takeover) -> Self {
        match takeover {
            Takeover::First => Self::FirstUse,
            Takeover::Released | Takeover::Expired => Self::Forgotten,
            Takeover::Revoked => Self::Revoked,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    Free,
    Held(Holder),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    Renewed,
    /// A later renewal of the same leadership was applied before, and this one changed nothing.
    Overtaken,
    /// Certain: another session holds the lease (`Some`), or the record is gone.
    Lost(Option<Holder>),
    /// Certain: an operator took the lease away. A store that cannot tell answers `Lost`.
    Revoked,
}

/// The answer of [`Leases::renew_and_read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    pub renewal: Renewal,
    /// The notes on [`Page::Orders`] of the shards, in their order, as [`Notes::read`] would show them. A write that is
    /// not answered yet may be missing. None if they did not come with the answer: then [`Notes::read`] shows them, or
    /// says what is wrong with them.
    pub orders: Option<Vec<Option<Note>>>,
}

impl Renewed {
    /// A renewal whose answer brought no orders.
    #[must_use]
    pub fn alone(renewal: Renewal) -> Self {
        Self { renewal, orders: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    Released,
    /// This session had nothing to release.
    NotHeld,
}

/// The holder of a lease, as far as its record says. Records of other programs say little.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    pub owner: String,
    pub session: Option<Session>,
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub term: Option<Term>,
    /// Milliseconds since 1970: when this leadership began.
    pub since_millis: Option<u64>,
    /// Time until the store may grant the lease to another session. None where leases do not expire.
    pub expires_in: Option<Duration>,
    /// Time since the lease was granted or last renewed, from [`Administration::inspect`] and [`Administration::list`].
    /// None where leases do not expire, and where the record does not say.
    pub renewed_ago: Option<Duration>,
    /// Some if this stands for a leader that the store may have forgotten.
    pub doubt: Option<Doubt>,
    /// Some if this is another program: the lock that it shares with leaderrun, in words.
    pub foreign_lock: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named())?;
        if let Some(term) = self.term {
            write!(f, " (term {term})")?;
        }
        Ok(())
    }
}

impl Holder {
    /// The owner and the lock of another program, for people, on one line.
    #[must_use]
    pub fn named(&self) -> String {
        let lock = self.foreign_lock.as_ref().map(|lock| format!(" (holds {lock})")).unwrap_or_default();
        on_one_line(format!("{}{lock}", self.owner))
    }

    /// Whether it is another program, which reads no orders and records nothing.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.foreign_lock.is_some()
    }

    /// A holder that stands for a record of another program.
    pub(crate) fn unknown() -> Self {
        Self { owner: "another program".to_owned(), ..Self::default() }
    }
}

/// The answer of [`Administration::inspect`] about a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// None when the shard is free.
    pub holder: Option<Holder>,
    /// The highest term that the store remembers.
    pub last_term: Option<Term>,
}

impl Report {
    pub(crate) fn leads(&self, term: Term) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.term == Some(term))
    }
}

/// The result of one check by [`Administration::check`].
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "lowercase")]
pub enum Verdict {
    Good,
    /// It works, but less well than it could.
    Doubtful,
    /// An election cannot work, or is not safe.
    Bad,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_record_or_a_server_stays_on_one_line() {
        let holder = Holder { owner: "me\n\u{1b}[2Jyou".to_owned(), ..Holder::default() };
        assert_eq!(holder.to_string(), "me  [2Jyou");
        assert_eq!(StoreError::unknown("a\r\nb\u{9b}c").message, "a  b c");
    }
}
