//! What people read about an election. Nothing decides by it.

use super::{CommandEnd, Hold, HookEnd, Loss};
use crate::lease::{Term, show};
use crate::store::Holder;
use std::fmt;
use std::time::Duration;

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
    SteppingDown(Hold),
    Held(Hold),
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
            Self::SteppingDown(hold) => write!(f, "stopping: {hold}"),
            Self::Held(hold) => write!(f, "waiting: {hold}"),
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
