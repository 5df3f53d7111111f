//! Why a leadership ended, in one word: the same in `LEADERRUN_REASON`, the history, JSON and metrics.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a leadership ended. Words are added, never renamed or removed; who reads them accepts unknown ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// A signal asked the candidate to stop.
    Asked,
    /// It was the signal of a keyboard.
    Interrupted,
    /// It was the signal of a terminal that hung up.
    Hangup,
    /// An operator paused the shard.
    Paused,
    /// An operator wants another candidate to lead.
    SteppedDown,
    /// It is another candidate's turn.
    Relinquished,
    /// An operator took the lease away.
    Revoked,
    /// COMMAND's health check failed.
    Unhealthy,
    /// COMMAND ran for as long as it may.
    MaxRun,
    /// COMMAND ended by itself after its last restart.
    GaveUp,
    /// The lease is lost, or cannot be renewed in time.
    Lost,
    /// The candidate is gone.
    Killed,
    /// COMMAND ended by itself.
    Ended,
    NotStarted,
    /// The hook before COMMAND failed.
    Failed,
}

/// signal(7): these numbers are the same on every Linux.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;

impl Reason {
    pub const ALL: [Self; 15] = [
        Self::Asked,
        Self::Interrupted,
        Self::Hangup,
        Self::Paused,
        Self::SteppedDown,
        Self::Relinquished,
        Self::Revoked,
        Self::Unhealthy,
        Self::MaxRun,
        Self::GaveUp,
        Self::Lost,
        Self::Killed,
        Self::Ended,
        Self::NotStarted,
        Self::Failed,
    ];

    /// Of a candidate that this signal asked to stop.
    #[must_use]
    pub fn of_signal(signal: i32) -> Self {
        match signal {
            SIGHUP => Self::Hangup,
            SIGINT | SIGQUIT => Self::Interrupted,
            _ => Self::Asked,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Interrupted => "interrupted",
            Self::Hangup => "hangup",
            Self::Paused => "paused",
            Self::SteppedDown => "stepped-down",
            Self::Relinquished => "relinquished",
            Self::Revoked => "revoked",
            Self::Unhealthy => "unhealthy",
            Self::MaxRun => "max-run",
            Self::GaveUp => "gave-up",
            Self::Lost => "lost",
            Self::Killed => "killed",
            Self::Ended => "ended",
            Self::NotStarted => "not-started",
            Self::Failed => "failed",
        }
    }

    /// The reason that a record names. None for a word that this version does not know.
    #[must_use]
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
