//! The events of an election: what has happened.

use super::{HookEnd, StartError, Unhealthy};
use crate::exit;
use crate::lease::{Late, Term};
use crate::store::{Answer, Claim, Observation, Release, Renewal};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use strum::Display;

#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed, up to [`wake_at`](super::Election::wake_at) or any other instant.
    Tick,
    /// The store answered a claim.
    Claimed { sent: BootInstant, answer: Answer<Claim> },
    /// The store was asked who leads.
    Observed { answer: Answer<Observation> },
    /// The store reports a change, or that its watch failed.
    Changed(Answer<()>),
    /// The store saw something that may have ended the lease.
    Doubted,
    /// The store answered a renewal, perhaps with the operators' orders.
    Renewed { sent: BootInstant, answer: Answer<Renewal>, orders: Option<Directives> },
    /// The store answered a release.
    Released { answer: Answer<Release> },
    /// The operators' orders were read.
    Ordered { answer: Answer<Directives> },
    /// The run was booked, or the job is done already.
    Booked { term: Term, answer: Answer<Booking> },
    /// The end of the run was written into the ledger.
    Settled { term: Term, answer: Answer<()> },
    /// Something happened to COMMAND or its descendants.
    Tree(TreeEvent),
    /// The worst lateness of guard and backstop has changed to this.
    Late(Late),
    /// A time of the schedule has come at which a leader hands over.
    RotationDue,
    /// The number of other candidates that wait for the shard; None if it cannot be known.
    Counted { answer: Answer<Option<usize>> },
    /// The candidate got this signal to stop.
    Asked { signal: i32 },
    /// After [`Action::StopStandbyTasks`](super::Action::StopStandbyTasks): the standby tasks are shown to be dead.
    StandbyTasksDead,
}

/// What the ledger says about a run that is about to start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Booking {
    /// The run is booked.
    Booked(Booked),
    /// The run is not needed.
    Done(Skipped),
}

/// A run that is in the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Booked {
    /// The variables that tell COMMAND about it.
    pub variables: Vec<(&'static str, String)>,
    /// Another run may follow if this one fails.
    pub again: bool,
    /// What a person who starts it by hand has to know.
    pub counts_as: Option<String>,
}

/// Why a job does not run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Skipped {
    /// Who ran it, and when, and how to run it again.
    pub said: String,
    /// The exit status. It says that the job was done only if it succeeded, or if a later period is another chance.
    pub status: u8,
    /// No run of the job succeeded, and none may follow.
    pub failed: bool,
}

/// What the operators' orders mean for one candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Directives {
    pub pause: Option<Pause>,
    pub handover: Option<Handover>,
}

/// An order that nobody leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pause {
    /// A leader that runs COMMAND goes on.
    pub keep: bool,
    /// None: until an operator ends it.
    pub left: Option<Duration>,
    /// Who ordered it, and why.
    pub said: String,
}

/// An order that a term ends and another candidate leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handover {
    pub term: Term,
    /// This candidate may lead next. Another one waits, at most for `hold`.
    pub welcome: bool,
    pub hold: Duration,
    /// Who ordered it, and to whom.
    pub said: String,
}

/// What happens to COMMAND and its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TreeEvent {
    /// COMMAND was not started; [`TreeEvent::Dead`] follows.
    NotStarted(StartError),
    /// COMMAND will not be started, because its hook ended like this; [`TreeEvent::Dead`] follows.
    Unready(HookEnd),
    /// COMMAND was started.
    Started,
    /// COMMAND itself ended. Its descendants may live until [`TreeEvent::Dead`].
    Ended(CommandEnd),
    /// COMMAND runs, and its health check failed.
    Unhealthy(Unhealthy),
    /// COMMAND ended soon after a signal of the keyboard, with whatever status.
    Interrupted(Interrupt),
    /// COMMAND has run for as long as it may, and the guard stops it.
    Overran,
    /// The guard reached its `term_at`: it stops the tree, or does not start COMMAND.
    DeadlineReached,
    /// The guard failed. The tree is being killed without it, and [`TreeEvent::Dead`] follows.
    GuardFailed,
    /// No process of the tree is left. This is shown, not assumed.
    Dead,
}

/// A signal of the keyboard that COMMAND has obeyed: it ended soon after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Interrupt {
    pub signal: i32,
    /// The candidate's process group has not got it.
    pub command_alone: bool,
}

/// How COMMAND ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
pub enum CommandEnd {
    #[strum(to_string = "exited with {0}")]
    Exited(i32),
    #[strum(to_string = "ended by signal {0}")]
    Signalled(i32),
}

impl CommandEnd {
    /// As a shell shows it.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Exited(status) => exit::low_byte(status),
            Self::Signalled(signal) => exit::of_signal(signal),
        }
    }
}
