//! How a leadership ends, and how the election does.

use super::{CommandEnd, HookEnd, Obstacle, Skipped, StartError, Unhealthy};
use crate::exit;
use crate::store::{Holder, StoreError};
use std::fmt;

/// How a leadership ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    ByItself(CommandEnd),
    NotStarted(StartError),
    /// COMMAND was not started, because the hook before it ended like this.
    Unready(HookEnd),
    /// The candidate got this signal.
    Asked(i32),
    Paused,
    SteppedDown,
    /// COMMAND ran for as long as it may.
    Overran,
    /// COMMAND kept ending by itself, the last time like this.
    GaveUp {
        end: CommandEnd,
        restarts: u32,
    },
    /// It was another candidate's turn.
    Relinquished,
    /// COMMAND was stopped because its health check failed.
    Unhealthy(Unhealthy),
    Lost(Loss),
}

/// Why a leadership ended against our will.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    TakenBy(Holder),
    RecordGone,
    /// The store could not be asked in time.
    DeadlinePassed,
    GuardFailed,
}

/// How the election ended, for the exit status.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Ended(CommandEnd),
    NotStarted(StartError),
    /// COMMAND was stopped because it ran for too long.
    Overran,
    /// Stopped by this signal before COMMAND was started.
    Interrupted(i32),
    NotAcquired(Option<Obstacle>),
    Unreachable(String),
    Refused(StoreError),
    Lost(Loss),
    /// The job, or its run for this period, is done already.
    Done(Skipped),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByItself(end) => end.fmt(f),
            Self::NotStarted(error) => write!(f, "not started: {error}"),
            Self::Unready(end) => write!(f, "not started: the --pre-start hook {end}"),
            Self::Asked(signal) => write!(f, "stopped on signal {signal}"),
            Self::Paused => f.write_str("paused"),
            Self::SteppedDown => f.write_str("stepped down"),
            Self::Overran => f.write_str("stopped after --max-run"),
            Self::GaveUp { end, restarts } => write!(f, "{end}, after {restarts} restarts in a row"),
            Self::Relinquished => f.write_str("relinquished"),
            Self::Unhealthy(unhealthy) => write!(f, "unhealthy: {unhealthy}"),
            Self::Lost(loss) => write!(f, "lost: {loss}"),
        }
    }
}

impl Loss {
    /// Whether the store has said so.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        matches!(self, Self::TakenBy(_) | Self::RecordGone)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakenBy(holder) => write!(f, "{holder} holds the lease"),
            Self::RecordGone => f.write_str("the store has no record of it any more"),
            Self::DeadlinePassed => f.write_str("the lease could not be renewed in time"),
            Self::GuardFailed => f.write_str("the guard was killed or did not answer"),
        }
    }
}

impl Outcome {
    /// The exit status; `conflict` is what `-E` chose.
    #[must_use]
    pub fn exit_status(&self, conflict: u8) -> u8 {
        match self {
            Self::Ended(end) => end.exit_status(),
            Self::Interrupted(signal) => exit::of_signal(*signal),
            Self::NotStarted(error) => error.exit_status(),
            Self::Overran => exit::OVERRAN,
            Self::NotAcquired(_) => conflict,
            Self::Unreachable(_) => exit::UNAVAILABLE,
            Self::Refused(error) => error.exit_status(),
            Self::Lost(_) => exit::LOST,
            Self::Done(skipped) => skipped.status,
        }
    }
}
