//! What goes into an election, what comes out of it, and how that reads in a log.

use crate::lease::{Deadline, Term, Timing, show};
use crate::store::{Claim, Delivery, Holder, Observation, Release, Renewal, StoreError};
use crate::time::BootInstant;
use std::fmt;
use std::time::Duration;

/// What an election is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    pub timing: Timing,
    /// False where the lease lasts while it is held open (see `Store::expires`).
    pub expires: bool,
    pub delivery: Delivery,
    pub patience: Patience,
    pub on_loss: OnLoss,
    /// How long COMMAND may take in an orderly stop; None is for ever.
    pub drain: Option<Duration>,
}

/// How long a standby waits for its leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    Forever,
    /// One answer decides.
    Once,
    AtMost(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnLoss {
    /// Become a standby again.
    Standby,
    Exit,
}

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
    Tree(TreeEvent),
    /// Somebody asked us to stop, by this signal.
    Asked {
        signal: i32,
    },
}

/// What becomes of COMMAND and its descendants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TreeEvent {
    /// COMMAND was not started; [`TreeEvent::Dead`] follows.
    NotStarted(StartError),
    /// COMMAND itself ended. What descended from it may live on until [`TreeEvent::Dead`].
    Ended(CommandEnd),
    /// The guard reached its `term_at` and sent the stop signal.
    DeadlineReached,
    /// The guard did not do its work; the tree is being killed without it, and [`TreeEvent::Dead`] follows.
    GuardFailed,
    /// Shown: no process of the tree is left.
    Dead,
}

/// Why COMMAND was not started: the kernel's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StartError(pub i32);

/// How COMMAND ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandEnd {
    Exited(i32),
    Signalled(i32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Claim,
    Observe,
    Renew {
        term: Term,
        beat: u64,
    },
    Release {
        term: Term,
    },
    /// Start the guard, and with it COMMAND.
    Start {
        term: Term,
        deadline: Deadline,
    },
    /// Tell the guard that the lease was prolonged.
    Extend(Deadline),
    /// Have the guard stop the tree.
    Stop(Stop),
    /// The guard missed its deadline: kill it, and then the tree, by our own hand.
    Seize,
    /// A leadership is over: answers to its renewals are of no interest any more.
    ForgetRenewals,
    Say(Notice),
    End(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Stop signal, and SIGKILL after `kill_after` where there is one.
    Orderly { kill_after: Option<Duration> },
    /// Stop signal, and SIGKILL after the grace or at the deadline, whichever is first.
    Losing,
    /// SIGKILL now.
    Kill,
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

/// What people may want to read about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    Waiting(Holder),
    Leading(Term),
    /// The lease is ours, but a tree of an earlier leadership may be alive for so long.
    HoldingBack(Duration),
    Trouble {
        message: String,
        lasting: Duration,
    },
    TroubleOver,
    Stopping {
        signal: i32,
    },
    Killing,
    Lost(Loss),
    Released(Term),
    NotReleased(String),
}

/// How the election ended, for the exit status.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Ended(CommandEnd),
    NotStarted(StartError),
    /// Stopped by this signal before COMMAND was started.
    Interrupted(i32),
    NotAcquired(Option<Holder>),
    Unreachable(String),
    Refused(StoreError),
    Lost(Loss),
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

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(holder) => write!(f, "waiting: {holder} leads"),
            Self::Leading(_) => f.write_str("leading"),
            Self::HoldingBack(wait) => write!(
                f,
                "holding the lease and starting the command in {}: the store cannot show that the last one was stopped",
                show(*wait)
            ),
            Self::Trouble { message, lasting } if lasting.is_zero() => write!(f, "{message}; retrying"),
            Self::Trouble { message, lasting } => write!(f, "{message}; retrying since {}", show(*lasting)),
            Self::TroubleOver => f.write_str("the store answers again"),
            Self::Stopping { signal } => write!(f, "stopping on signal {signal}"),
            Self::Killing => f.write_str("asked again to stop: killing the command"),
            Self::Lost(loss) => write!(f, "lost: {loss}"),
            Self::Released(_) => f.write_str("released"),
            Self::NotReleased(why) => write!(f, "not released: {why}"),
        }
    }
}
