//! Why a leadership ended, in one word: the same in `LEADERRUN_REASON`, the history, JSON and metrics.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// Why a leadership ended. Words are added, never renamed or removed; who reads them accepts unknown ones.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(const_into_str, serialize_all = "kebab-case")]
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
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Of a candidate that this signal asked to stop.
    pub fn of_signal(signal: i32) -> Self {
        match signal {
            SIGHUP => Self::Hangup,
            SIGINT | SIGQUIT => Self::Interrupted,
            _ => Self::Asked,
        }
    }
}
