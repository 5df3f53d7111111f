//! Why a member could not join, or has left.

use crate::election::Outcome;
use crate::store::{ErrorKind, StoreError};
use std::fmt;
use std::io;

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
