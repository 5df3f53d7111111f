//! The words of the library: roles, endings and errors.

use crate::election::Outcome;
use crate::store::{ErrorKind, Holder, StoreError};
use crate::text::on_one_line;
use std::fmt;
use std::io;

/// The state of a [`Member`](crate::Member).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It waits to lead.
    Standby {
        /// The leader, as far as is known.
        leader: Option<Leader>,
        /// What it waits for, as text: the leader's name, or that an operator has paused the shard.
        waiting_for: Option<String>,
    },
    /// It leads.
    Leading {
        /// The fencing token: it rises with every leadership of the shard.
        term: u64,
    },
    /// It has to stop leading, and a [`Leadership`](crate::Leadership) has not been dropped yet.
    Ending {
        /// The fencing token.
        term: u64,
        /// Why it has to stop.
        why: Ending,
    },
    /// It has left the election, for good.
    Stopped,
}

/// The leader, by the store's record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Its owner name.
    pub owner: String,
    /// The name of its host.
    pub host: Option<String>,
    /// Its process number there.
    pub pid: Option<u32>,
    /// The fencing token.
    pub term: Option<u64>,
}

/// Why a leadership ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// This member was asked to stop, or was dropped. The lease is renewed until the work has ended.
    Asked,
    /// An operator paused the shard, or wants another member to lead. The lease is renewed until the work has ended.
    Ordered,
    /// The lease could not be renewed in time and is about to end. Nobody else leads before that.
    Late,
    /// Lost for certain: the store says that another candidate holds the lease, or has no record of it.
    Lost,
}

/// What happens to work that still holds a [`Leadership`](crate::Leadership) when its time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overrun {
    /// The process is aborted. Nothing else stops a thread that does not want to stop, so nothing else keeps the
    /// promise.
    #[default]
    Abort,
    /// A log line says so, and the work goes on: **beside its successor's**. Choose this only if every effect of the
    /// work carries the term as a fencing token to something that checks it.
    Warn,
}

/// Why a member could not join, or has left.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The store URL cannot be read, or names a store that this build does not have. The message contains no password.
    Url(String),
    /// The name of the shard is not valid.
    Shard(String),
    /// The name to show as the leader is not valid.
    Owner(String),
    /// The durations do not fit together.
    Timing(String),
    /// The store denied permission.
    Denied(String),
    /// The store lacks something that an election needs, such as a table, or holds a record that cannot be read.
    Misconfigured(String),
    /// The store cannot be reached, and the member cannot try again.
    Unreachable(String),
    /// The operating system refused a thread, a timer, or random numbers.
    System(String),
    /// The member has left, but could not give the lease back: it ends by itself.
    NotReleased(String),
    /// The member has left the election.
    Stopped,
    /// The election itself failed: a defect of this crate.
    Failed(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "asked to stop",
            Self::Ordered => "ordered by an operator",
            Self::Late => "the lease could not be renewed in time",
            Self::Lost => "the lease is lost",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(message)
            | Self::Shard(message)
            | Self::Owner(message)
            | Self::Timing(message)
            | Self::Denied(message)
            | Self::Misconfigured(message)
            | Self::Unreachable(message) => f.write_str(message),
            Self::System(message) => write!(f, "the operating system refused: {message}"),
            Self::NotReleased(message) => write!(f, "left without a release; the lease ends by itself: {message}"),
            Self::Stopped => f.write_str("the member has left the election"),
            Self::Failed(message) => write!(f, "the election failed: {message}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error.kind {
            ErrorKind::NotApplied | ErrorKind::Unknown => Self::Unreachable(error.message),
            ErrorKind::Denied => Self::Denied(error.message),
            ErrorKind::Misconfigured => Self::Misconfigured(error.message),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::System(error.to_string())
    }
}

impl From<&Holder> for Leader {
    fn from(holder: &Holder) -> Self {
        let host = holder.host.clone().map(on_one_line);
        let owner = on_one_line(holder.owner.clone());
        Self { owner, host, pid: holder.pid, term: holder.term.map(|term| term.0) }
    }
}

/// The result of an election that is over.
pub(super) fn farewell(outcome: Outcome) -> Result<(), Error> {
    match outcome {
        // The member was asked to end, whether it led or not.
        Outcome::Ended(_) | Outcome::Interrupted(_) => Ok(()),
        Outcome::Refused(error) => Err(error.into()),
        Outcome::NotStarted(error) => Err(Error::System(error.to_string())),
        // These come from options that a member does not have.
        Outcome::Unreachable(message) => Err(Error::Unreachable(message)),
        Outcome::Overran | Outcome::NotAcquired(_) | Outcome::Lost(_) | Outcome::Done(_) => Err(Error::Stopped),
    }
}
