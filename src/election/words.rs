//! What goes into an election, what comes out of it, and how that reads in a log.

use super::hooks::HookEnd;
use crate::lease::{Deadline, Term, Timing, show, show_seconds};
use crate::store::{Claim, Delivery, Holder, Observation, Release, Renewal, StoreError};
use crate::time::BootInstant;
use nix::errno::Errno;
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
    /// How long COMMAND may run; None is for ever.
    pub max_run: Option<Duration>,
    /// COMMAND is a job: its run is entered into a ledger before it starts, and one process runs it once at the most.
    pub books: bool,
    /// None: when COMMAND has ended, so has its leadership.
    pub restart: Option<Restart>,
    /// A leader hands over after so long, if somebody else is there.
    pub relinquish_after: Option<Duration>,
    /// Something runs beside a standby, and must be dead before COMMAND starts.
    pub attendants: bool,
}

/// When COMMAND is started again that has ended by itself, under the same lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Restart {
    pub when: RestartWhen,
    /// So often in a row; then the lease is given up.
    pub limit: u32,
    /// Before the first of them. The pauses double.
    pub delay: Duration,
    /// A run that lasted so long begins a new row.
    pub healthy: Duration,
    /// COMMAND has our terminal: whoever interrupts it there means all of us.
    pub at_terminal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestartWhen {
    OnFailure,
    Always,
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
    /// What operators want was read.
    Ordered {
        answer: Result<Mandate, StoreError>,
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

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ran {
    pub how: Ended,
    /// Some where COMMAND itself was reaped.
    pub end: Option<CommandEnd>,
}

/// What operators' orders mean for one candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mandate {
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

/// What orders keep a candidate from leading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bar {
    Paused {
        said: String,
        left: Option<Duration>,
    },
    /// Others go first, for so long.
    HandedOver {
        term: Term,
        said: String,
        left: Duration,
    },
    /// We gave this term up of ourselves. Others go first, until somebody has led or for so long.
    StandingBack {
        term: Term,
        said: String,
        left: Duration,
    },
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
    /// Read what operators want.
    ReadOrders,
    /// Ask who else waits for the shard.
    CountStandbys,
    /// A leadership has begun that came after this handover: it is done.
    ForgetHandover {
        term: Term,
    },
    /// Enter into the ledger that COMMAND is about to run.
    Book {
        term: Term,
    },
    /// Write down there how that went, or (None) that it was not started.
    Settle {
        term: Term,
        ran: Option<Ran>,
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
    /// We are a standby: what runs beside one may, from here on until it is dismissed.
    Attend,
    /// Have that stopped, or stopped faster; [`Event::Dismissed`] follows, also where nothing runs.
    Dismiss(Stop),
    /// Its guards took too long: kill them, and then what they guard, by our own hand.
    SeizeAttendants,
    /// A standby sees somebody lead, or (None) knows that nobody does: once for each.
    LeaderChanged(Option<Holder>),
    /// A leadership whose COMMAND was started is over, and how that came.
    Ended {
        term: Term,
        how: Ended,
    },
    Say(Notice),
    End(Outcome),
}

/// How a leadership ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    ByItself(CommandEnd),
    NotStarted(StartError),
    /// COMMAND was not started, for the hook before it ended so.
    Unready(HookEnd),
    /// Somebody asked us to, by this signal.
    Asked(i32),
    Paused,
    SteppedDown,
    /// It ran for as long as it may.
    Overran,
    /// COMMAND kept ending by itself, at last so.
    GaveUp {
        end: CommandEnd,
        restarts: u32,
    },
    /// It was others' turn.
    Relinquished,
    Lost(Loss),
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
    /// Operators want it.
    SteppingDown(Bar),
    Barred(Bar),
    OrdersUnread {
        message: String,
        /// COMMAND was started.
        running: bool,
    },
    /// The ledger cannot be written, and COMMAND waits for that.
    NotEntered(String),
    /// Nobody will know how this run ended.
    NotSettled(String),
    Killing,
    /// The hook before COMMAND ended so.
    Unready(HookEnd),
    /// COMMAND has run for so long, and may not for longer.
    Overran(Duration),
    /// COMMAND has ended by itself, and will be started again.
    Restarting {
        end: CommandEnd,
        pause: Duration,
        /// How often it was, with this one.
        restart: u32,
        limit: u32,
    },
    /// It has too often.
    GaveUp {
        end: CommandEnd,
        restarts: u32,
    },
    /// It is others' turn.
    Relinquishing,
    /// It would be, but for this.
    Staying(String),
    /// Nobody may say who waits.
    Uncounted(String),
    Lost(Loss),
    Released(Term),
    NotReleased(String),
}

/// How things stand, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub role: Role,
    /// The store's, and since when.
    pub trouble: Option<(String, BootInstant)>,
    /// What makes a takeover slow.
    pub hindrance: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nobody was heard to be in the way yet, or somebody is.
    Standby(Option<Obstacle>),
    /// It holds the lease; whether COMMAND runs its tree tells.
    Leader(Term),
    /// It holds the lease, and COMMAND, which has ended so, will be started again.
    Restarting { term: Term, end: CommandEnd },
    /// It is about to leave, or to stand by again.
    Leaving,
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
    /// The job of this slot, or of this name, is none any more.
    Done(Skipped),
}

/// What kept a candidate from leading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    Holder(Holder),
    Bar(Bar),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holder(holder) => write!(f, "{holder} leads"),
            Self::Bar(bar) => bar.fmt(f),
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused { said, left: None } => write!(f, "paused {said}"),
            Self::Paused { said, left: Some(left) } => write!(f, "paused {said}, for another {}", show_seconds(*left)),
            Self::HandedOver { said, left, .. } => write!(f, "handed over {said}, for another {}", show_seconds(*left)),
            Self::StandingBack { said, left, .. } => {
                write!(f, "others go first {said}, for another {}", show_seconds(*left))
            }
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByItself(end) => end.fmt(f),
            Self::NotStarted(StartError(number)) => write!(f, "not started: {}", Errno::from_raw(*number).desc()),
            Self::Unready(end) => write!(f, "not started: the --on-lead hook {end}"),
            Self::Asked(signal) => write!(f, "stopped on signal {signal}"),
            Self::Paused => f.write_str("paused"),
            Self::SteppedDown => f.write_str("stepped down"),
            Self::Overran => f.write_str("stopped after --max-run"),
            Self::GaveUp { end, restarts } => write!(f, "{end}, after {restarts} restarts in a row"),
            Self::Relinquished => f.write_str("relinquished"),
            Self::Lost(loss) => write!(f, "lost: {loss}"),
        }
    }
}

impl fmt::Display for CommandEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited with {status}"),
            Self::Signalled(signal) => write!(f, "ended by signal {signal}"),
        }
    }
}

impl Loss {
    /// The store has said so.
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
            Self::SteppingDown(bar) => write!(f, "stopping: {bar}"),
            Self::Barred(bar) => write!(f, "waiting: {bar}"),
            Self::OrdersUnread { message, running: true } => {
                write!(f, "cannot read what operators have ordered: {message}; the command goes on")
            }
            Self::OrdersUnread { message, running: false } => {
                write!(f, "cannot read what operators have ordered: {message}; the command waits for that")
            }
            Self::Overran(most) => write!(f, "stopping: the command has run for {}", show(*most)),
            Self::Restarting { end, pause, restart, limit } => {
                let pause = show(Duration::from_millis(pause.as_millis().try_into().unwrap_or(u64::MAX)));
                write!(f, "the command {end}; restarting in {pause} ({restart} of {limit})")
            }
            Self::GaveUp { end, restarts } => {
                write!(f, "the command {end} after {restarts} restarts in a row; giving the lease up for others to try")
            }
            Self::Relinquishing => f.write_str("stopping: it is others' turn"),
            Self::Staying(why) => write!(f, "not handing over: {why}"),
            Self::Uncounted(why) => {
                write!(f, "handing over without knowing whether somebody waits, for they cannot be counted: {why}")
            }
            Self::NotEntered(why) => {
                write!(f, "cannot enter this run into the ledger: {why}; the command waits for that")
            }
            Self::NotSettled(why) => write!(f, "how this run ended is not written down, so it counts as failed: {why}"),
            Self::Unready(end) => write!(f, "the --on-lead hook {end}: giving the lease back"),
            Self::Killing => f.write_str("asked again to stop: killing the command"),
            Self::Lost(loss) => write!(f, "lost: {loss}"),
            Self::Released(_) => f.write_str("released"),
            Self::NotReleased(why) => write!(f, "not released: {why}"),
        }
    }
}
