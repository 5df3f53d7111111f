//! What goes into an election.

use super::{HookEnd, StartError};
use crate::lease::Term;
use crate::store::{Claim, Observation, Release, Renewal, StoreError};
use crate::time::BootInstant;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed: the instant of [`wake_at`](super::Election::wake_at) was reached, or any other.
    Tick,
    Claimed {
        sent: BootInstant,
        answer: Result<Claim, StoreError>,
    },
    Observed {
        answer: Result<Observation, StoreError>,
    },
    /// The store says that something changed (or that it could not go on watching).
    Changed(Result<(), StoreError>),
    /// The store saw something that may have ended our lease.
    Doubted,
    Renewed {
        sent: BootInstant,
        answer: Result<Renewal, StoreError>,
    },
    Released {
        answer: Result<Release, StoreError>,
    },
    /// What operators want was read.
    Ordered {
        answer: Result<Directives, StoreError>,
    },
    /// The run was entered into the ledger, or the job is done.
    Booked {
        term: Term,
        answer: Result<Booking, StoreError>,
    },
    /// How it ended was written down.
    Settled {
        term: Term,
        answer: Result<(), StoreError>,
    },
    Tree(TreeEvent),
    /// A time has come at which a leader is to hand over.
    TurnOver,
    /// How many others wait for the shard; None where that cannot be known.
    Counted {
        answer: Result<Option<usize>, StoreError>,
    },
    /// Somebody asked us to stop, by this signal.
    Asked {
        signal: i32,
    },
    /// Shown, after [`Action::Dismiss`]: nothing that ran beside a standby is left.
    Dismissed,
}

/// What the ledger says to a run that is about to start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Booking {
    /// It stands there.
    Booked,
    /// There is to be none.
    Done(Skipped),
}

/// Why a job is not run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Skipped {
    /// By whom it was done, and when.
    pub said: String,
    /// What to leave with: 0, or who goes on after us would take for done what has failed.
    pub status: u8,
}

/// What operators' orders mean for one candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Directives {
    pub pause: Option<Pause>,
    pub handover: Option<Handover>,
}

/// Nobody is to lead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pause {
    /// But who leads goes on.
    pub keep: bool,
    /// None: until somebody ends it.
    pub left: Option<Duration>,
    /// Who ordered it, and why.
    pub said: String,
}

/// A term is to end, and others to lead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handover {
    pub term: Term,
    /// We may lead next. Whoever may not waits for `hold` at most.
    pub welcome: bool,
    pub hold: Duration,
    /// Who ordered it, and to whom.
    pub said: String,
}

/// What becomes of COMMAND and its descendants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TreeEvent {
    /// COMMAND was not started; [`TreeEvent::Dead`] follows.
    NotStarted(StartError),
    /// COMMAND will not be started, for the hook before it ended so; [`TreeEvent::Dead`] follows.
    Unready(HookEnd),
    /// COMMAND was started.
    Started,
    /// COMMAND itself ended. What descended from it may live on until [`TreeEvent::Dead`].
    Ended(CommandEnd),
    /// The guard reached its `term_at` and sent the stop signal.
    DeadlineReached,
    /// The guard did not do its work; the tree is being killed without it, and [`TreeEvent::Dead`] follows.
    GuardFailed,
    /// Shown: no process of the tree is left.
    Dead,
}

/// How COMMAND ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandEnd {
    Exited(i32),
    Signalled(i32),
}

impl fmt::Display for CommandEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited with {status}"),
            Self::Signalled(signal) => write!(f, "ended by signal {signal}"),
        }
    }
}
