//! Why a member could not join, or has left.

use crate::election::Outcome;
use crate::store::{Cause, ErrorKind, StoreError};
use std::error;
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
    Denied(Detail),
    /// The store lacks something that an election needs, such as a table, or holds a record that cannot be read.
    Misconfigured(Detail),
    /// The store cannot be reached, or did not answer in time.
    Unreachable(Detail),
    /// The operating system refused a thread, a timer, or random numbers.
    System(Detail),
    /// The member has left, but could not give the lease back: it ends by itself.
    NotReleased(String),
    /// The member has left the election.
    Stopped,
    /// The election itself failed: a defect of this crate.
    Failed(String),
}

/// What went wrong, in one line without secrets. Where the operating system or the network said so, that is the
/// error's [`source`](error::Error::source), as an [`io::Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    message: String,
    cause: Option<Cause>,
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<String> for Detail {
    fn from(message: String) -> Self {
        Self { message, cause: None }
    }
}

impl From<io::Error> for Detail {
    fn from(error: io::Error) -> Self {
        Self { message: error.to_string(), cause: Some(error.into()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(message) | Self::Shard(message) | Self::Owner(message) | Self::Timing(message) => {
                f.write_str(message)
            }
            Self::Denied(detail) | Self::Misconfigured(detail) | Self::Unreachable(detail) => detail.fmt(f),
            Self::System(message) => write!(f, "the operating system refused: {message}"),
            Self::NotReleased(message) => write!(f, "left without a release; the lease ends by itself: {message}"),
            Self::Stopped => f.write_str("the member has left the election"),
            Self::Failed(message) => write!(f, "the election failed: {message}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Denied(detail) | Self::Misconfigured(detail) | Self::Unreachable(detail) | Self::System(detail) => {
                detail.cause.as_ref().map(|cause| cause.error() as _)
            }
            _ => None,
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let detail = Detail { message: error.message, cause: error.cause };
        match error.kind {
            ErrorKind::NotApplied | ErrorKind::Unknown => Self::Unreachable(detail),
            ErrorKind::Denied => Self::Denied(detail),
            ErrorKind::Misconfigured => Self::Misconfigured(detail),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::System(error.into())
    }
}

/// The result of an election that is over.
pub(super) fn farewell(outcome: Outcome) -> Result<(), Error> {
    match outcome {
        // The member was asked to leave, whether it led or not.
        Outcome::Ended(_) | Outcome::EndedByKey(_) | Outcome::Interrupted(_) => Ok(()),
        Outcome::Refused(error) => Err(error.into()),
        Outcome::NotStarted(error) => Err(Error::System(error.to_string().into())),
        // These come from options that a member does not have.
        Outcome::Unreachable(message) => Err(Error::Unreachable(message.into())),
        Outcome::Overran | Outcome::NotAcquired(_) | Outcome::Lost(_) | Outcome::Done(_) => Err(Error::Stopped),
    }
}
