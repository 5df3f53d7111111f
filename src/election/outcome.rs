//! How a leadership ends, and how the election does.

use super::{CommandEnd, HeldBack, Hold, HookEnd, Interrupt, Obstacle, Reason, Skipped, StartError, Unhealthy};
use crate::exit;
use crate::store::{Holder, StoreError};
use strum::{Display, IntoStaticStr};

/// How a leadership ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Display)]
pub enum Ended {
    #[strum(to_string = "{0}")]
    ByItself(CommandEnd),
    #[strum(to_string = "not started: {0}")]
    NotStarted(StartError),
    /// COMMAND was not started, because the hook before it ended like this.
    #[strum(to_string = "not started: the --pre-start hook {0}")]
    Unready(HookEnd),
    /// The candidate got this signal.
    #[strum(to_string = "stopped on signal {0}")]
    Asked(i32),
    #[strum(to_string = "paused")]
    Paused,
    #[strum(to_string = "stepped down")]
    SteppedDown,
    /// COMMAND ran for as long as it may.
    #[strum(to_string = "stopped after --max-run")]
    Overran,
    /// COMMAND kept ending by itself, the last time like this.
    #[strum(to_string = "{end}, after {restarts} restarts in a row")]
    GaveUp { end: CommandEnd, restarts: u32 },
    /// It was another candidate's turn.
    #[strum(to_string = "relinquished")]
    Relinquished,
    /// COMMAND was stopped because its health check failed.
    #[strum(to_string = "unhealthy: {0}")]
    Unhealthy(Unhealthy),
    #[strum(to_string = "lost: {0}")]
    Lost(Loss),
}

/// Why a leadership ended against our will.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Display)]
pub enum Loss {
    #[strum(to_string = "{0} holds the lease")]
    TakenBy(Holder),
    #[strum(to_string = "the store has no record of it any more")]
    RecordGone,
    #[strum(to_string = "an operator revoked the lease")]
    Revoked,
    #[strum(to_string = "the lease could not be renewed in time")]
    DeadlinePassed,
    #[strum(to_string = "the guard was killed or did not answer")]
    GuardFailed,
}

/// How the election ended, for the exit status.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Ended(CommandEnd),
    /// The signal of the keyboard ended COMMAND.
    EndedByKey(Interrupt),
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

/// Whose exit status it is: COMMAND's, or leaderrun's own and its cause. An own status may look like one of COMMAND's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(const_into_str, serialize_all = "kebab-case")]
pub enum Why {
    #[strum(serialize = "ended")]
    Command,
    /// Another candidate leads.
    Led,
    /// Other candidates go first: after a failure here, or by an operator's order.
    HeldBack,
    Paused,
    /// The store cannot show that the tree before was stopped.
    Doubt,
    /// The job had run.
    Done,
    Lost,
    MaxRun,
    /// A signal came before COMMAND was started.
    Asked,
    NotStarted,
    /// The store could not be reached.
    Unavailable,
    /// The options, the configuration, a permission or the operating system.
    Refused,
}

impl Why {
    /// Of a failure that ends with this status of ours.
    pub fn failed(status: u8) -> Self {
        match status {
            exit::UNAVAILABLE => Self::Unavailable,
            exit::NOT_EXECUTABLE | exit::NOT_FOUND => Self::NotStarted,
            _ => Self::Refused,
        }
    }

    pub fn from(self) -> &'static str {
        if self == Self::Command { "command" } else { "leaderrun" }
    }
}

impl Ended {
    pub(super) fn ordered(hold: &Hold) -> Self {
        if hold.why == HeldBack::Paused { Self::Paused } else { Self::SteppedDown }
    }

    pub fn reason(&self) -> Reason {
        match self {
            Self::ByItself(_) => Reason::Ended,
            Self::NotStarted(_) => Reason::NotStarted,
            Self::Unready(_) => Reason::Failed,
            Self::Asked(signal) => Reason::of_signal(*signal),
            Self::Paused => Reason::Paused,
            Self::SteppedDown => Reason::SteppedDown,
            Self::Overran => Reason::MaxRun,
            Self::GaveUp { .. } => Reason::GaveUp,
            Self::Relinquished => Reason::Relinquished,
            Self::Unhealthy(_) => Reason::Unhealthy,
            Self::Lost(loss) => loss.reason(),
        }
    }

    /// How COMMAND ended, if that ended the leadership.
    pub fn command_end(&self) -> Option<CommandEnd> {
        match self {
            Self::ByItself(end) | Self::GaveUp { end, .. } => Some(*end),
            _ => None,
        }
    }
}

impl Loss {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Revoked => Reason::Revoked,
            Self::TakenBy(_) | Self::RecordGone | Self::DeadlinePassed | Self::GuardFailed => Reason::Lost,
        }
    }

    /// Whether the store has said so.
    pub fn is_certain(&self) -> bool {
        matches!(self, Self::TakenBy(_) | Self::RecordGone | Self::Revoked)
    }
}

impl Outcome {
    pub fn why(&self) -> Why {
        match self {
            Self::Ended(_) | Self::EndedByKey(_) => Why::Command,
            Self::NotStarted(error) => Why::failed(error.exit_status()),
            Self::Overran => Why::MaxRun,
            Self::Interrupted(_) => Why::Asked,
            Self::NotAcquired(Some(Obstacle::Hold(Hold { why: HeldBack::Paused, .. }))) => Why::Paused,
            Self::NotAcquired(Some(Obstacle::Hold(_))) => Why::HeldBack,
            Self::NotAcquired(Some(Obstacle::Doubt(..))) => Why::Doubt,
            Self::NotAcquired(Some(Obstacle::Holder(_)) | None) => Why::Led,
            Self::Unreachable(_) => Why::Unavailable,
            Self::Refused(error) => Why::failed(error.exit_status()),
            Self::Lost(_) => Why::Lost,
            Self::Done(_) => Why::Done,
        }
    }

    /// The exit status; `conflict` is what `-E` chose.
    pub fn exit_status(&self, conflict: u8) -> u8 {
        match self {
            Self::Ended(end) => end.exit_status(),
            Self::Interrupted(signal) | Self::EndedByKey(Interrupt { signal, .. }) => exit::of_signal(*signal),
            Self::NotStarted(error) => error.exit_status(),
            Self::Overran => exit::OVERRAN,
            Self::NotAcquired(Some(Obstacle::Hold(Hold { why: HeldBack::Paused, .. }))) => conflict,
            Self::NotAcquired(Some(Obstacle::Holder(holder))) if !holder.is_foreign() => conflict,
            // No candidate leads, so what another exit status may promise would not be done.
            Self::NotAcquired(_) => exit::NOT_ACQUIRED,
            Self::Unreachable(_) => exit::UNAVAILABLE,
            Self::Refused(error) => error.exit_status(),
            Self::Lost(_) => exit::LOST,
            Self::Done(skipped) => skipped.status,
        }
    }
}
