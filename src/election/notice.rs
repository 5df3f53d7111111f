//! Log lines about an election, for people. No decision depends on them.

use super::{CommandEnd, Ended, Hold, HookEnd, LogEvent, Loss, Obstacle, Reason, Unhealthy};
use crate::lease::{Late, Term, show};
use crate::store::{Doubt, Holder, Release};
use std::fmt;
use std::time::Duration;

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    Waiting(Holder),
    Leading(Term),
    /// The lease is held, but a tree of an earlier leadership may be alive for this long.
    HoldingBack(Doubt, Duration),
    Trouble {
        message: String,
        lasting: Duration,
    },
    TroubleOver,
    /// The store answers, but cannot report changes: the standby looks this often.
    Unwatched {
        message: String,
        every: Duration,
    },
    Stopping {
        signal: i32,
    },
    /// An operator ordered it.
    SteppingDown(Hold),
    Held(Hold),
    OrdersUnread {
        message: String,
        /// COMMAND was started.
        running: bool,
    },
    /// The run cannot be booked, and COMMAND waits.
    NotEntered(String),
    /// The end of this run could not be written into the ledger.
    NotSettled(String),
    Killing,
    /// The tree was killed this long ago, and is not dead.
    Undying(Duration),
    /// The hook before COMMAND failed like this.
    Unready(HookEnd),
    /// COMMAND's health check failed.
    Unhealthy(Unhealthy),
    /// COMMAND has run for its longest time, which is this.
    Overran(Duration),
    /// COMMAND ended by itself, and will be started again.
    Restarting {
        end: CommandEnd,
        pause: Duration,
        /// The number of restarts in a row, with this one.
        restart: u32,
        limit: u32,
    },
    /// COMMAND ended by itself after its last restart.
    GaveUp {
        end: CommandEnd,
        restarts: u32,
    },
    /// It is another candidate's turn.
    Relinquishing,
    /// A handover is due, but the leader goes on for this reason.
    Staying(String),
    /// The store denies counting the standbys, for this reason.
    Uncounted(String),
    /// Guard or backstop is woken too late for the lease.
    Late(Late),
    Lost(Loss),
    /// The answer to the release.
    Released(Release),
    NotReleased(String),
}

impl Notice {
    pub fn event(&self) -> LogEvent {
        match self {
            Self::Waiting(_) | Self::Held(_) => LogEvent::Waiting,
            Self::Leading(_) => LogEvent::Leading,
            Self::HoldingBack(..) => LogEvent::HoldingBack,
            Self::Trouble { .. } | Self::Unwatched { .. } => LogEvent::Trouble,
            Self::TroubleOver => LogEvent::TroubleOver,
            Self::Stopping { .. }
            | Self::SteppingDown(_)
            | Self::Unhealthy(_)
            | Self::Overran(_)
            | Self::Relinquishing => LogEvent::Stopping,
            Self::OrdersUnread { .. } => LogEvent::OrdersUnread,
            Self::NotEntered(_) | Self::NotSettled(_) => LogEvent::LedgerUnwritten,
            Self::Late(_) => LogEvent::Warning,
            Self::Killing | Self::Undying(_) => LogEvent::Killing,
            Self::Unready(_) => LogEvent::HookFailed,
            Self::Restarting { .. } => LogEvent::Restarting,
            Self::GaveUp { .. } => LogEvent::GaveUp,
            Self::Staying(_) => LogEvent::Staying,
            Self::Uncounted(_) => LogEvent::Uncounted,
            Self::Lost(_) => LogEvent::Lost,
            Self::Released(Release::Released) => LogEvent::Released,
            Self::Released(Release::NotHeld) | Self::NotReleased(_) => LogEvent::NotReleased,
        }
    }

    /// Why the leadership ends. None if this does not end it.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Stopping { signal } => Some(Reason::of_signal(*signal)),
            Self::SteppingDown(hold) => Some(Ended::ordered(hold).reason()),
            Self::Unready(_) => Some(Reason::Failed),
            Self::Unhealthy(_) => Some(Reason::Unhealthy),
            Self::Overran(_) => Some(Reason::MaxRun),
            Self::GaveUp { .. } => Some(Reason::GaveUp),
            Self::Relinquishing => Some(Reason::Relinquished),
            Self::Lost(loss) => Some(loss.reason()),
            _ => None,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(holder) => write!(f, "waiting: {}", Obstacle::from(holder.clone())),
            Self::Leading(_) => f.write_str("leading"),
            Self::HoldingBack(doubt, wait) => {
                let why = match doubt {
                    Doubt::FirstUse => "first use of this store, which may have lost a lease",
                    Doubt::Forgotten => "the store cannot show that the previous one was stopped",
                    Doubt::Revoked => "an operator revoked the lease of the previous one, which may still run",
                };
                write!(f, "holding the lease and starting the command in {}: {why}", show(*wait))
            }
            Self::Trouble { message, lasting } if lasting.is_zero() => write!(f, "{message}; retrying"),
            Self::Trouble { message, lasting } => write!(f, "{message}; retrying since {}", show(*lasting)),
            Self::TroubleOver => f.write_str("the store answers again"),
            Self::Unwatched { message, every } => {
                write!(f, "the store does not report changes ({message}): checking every {} instead", show(*every))
            }
            Self::Stopping { signal } => write!(f, "stopping on signal {signal}"),
            Self::SteppingDown(hold) => write!(f, "stopping: {hold}"),
            Self::Held(hold) => write!(f, "waiting: {hold}"),
            Self::OrdersUnread { message, running: true } => {
                write!(f, "cannot read the operators' orders: {message}; the command goes on")
            }
            Self::OrdersUnread { message, running: false } => {
                write!(f, "cannot read the operators' orders: {message}; the command waits for them")
            }
            Self::Overran(most) => write!(f, "stopping: the command has run for {}", show(*most)),
            Self::Restarting { end, pause, restart, limit } => {
                write!(f, "the command {end}; restarting in {} ({restart} of {limit})", show(*pause))
            }
            Self::GaveUp { end, restarts } => {
                write!(
                    f,
                    "the command {end} after {restarts} restarts in a row; giving the lease up so that another host can try"
                )
            }
            Self::Relinquishing => f.write_str("stopping: it is another candidate's turn"),
            Self::Staying(why) => write!(f, "not handing over: {why}"),
            Self::Uncounted(why) => {
                write!(f, "handing over although the standbys cannot be counted: {why}")
            }
            Self::NotEntered(why) => {
                write!(f, "cannot enter this run into the ledger: {why}; the command waits")
            }
            Self::NotSettled(why) => write!(f, "cannot record how this run ended, so it may count as failed: {why}"),
            Self::Unready(end) => write!(f, "the --pre-start hook {end}: giving the lease back"),
            Self::Unhealthy(unhealthy) => {
                write!(f, "stopping: {unhealthy}; giving the lease up so that another host can try")
            }
            Self::Killing => f.write_str("asked again to stop: killing the command"),
            Self::Undying(since) => write!(
                f,
                "the command was killed {} ago, and it or what it started is not dead: look for a process that waits in \
                 the kernel (state D in ps), that is frozen, or that leaderrun may not signal",
                show(*since)
            ),
            Self::Late(late) => late.fmt(f),
            Self::Lost(loss) => write!(f, "lost: {loss}"),
            Self::Released(Release::Released) => f.write_str("released"),
            // It ended before, or an earlier request has released it, whose answer was lost.
            Self::Released(Release::NotHeld) => f.write_str("the lease was no longer held"),
            Self::NotReleased(why) => write!(f, "not released: {why}"),
        }
    }
}
