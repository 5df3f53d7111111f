//! What comes out of an election.

use super::{CommandEnd, Ended, Notice, Outcome};
use crate::lease::{Deadline, Term};
use crate::store::Holder;
use std::time::Duration;

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ran {
    pub how: Ended,
    /// Some where COMMAND itself was reaped.
    pub end: Option<CommandEnd>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Claim,
    Observe,
    Renew {
        term: Term,
        sequence: u64,
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
    /// Have that stopped, or stopped faster; [`Event::Dismissed`](super::Event::Dismissed) follows, also where nothing runs.
    Dismiss(Dismissal),
    /// Its guards took too long: kill them, and then what they guard, by our own hand.
    SeizeStandbyTasks,
    /// A standby sees somebody lead, or (None) knows that nobody does: once for each.
    LeaderChanged(Option<Holder>),
    /// A leadership whose COMMAND was started is over, and how that came.
    Ended {
        term: Term,
        how: Ended,
    },
    /// A release is over: the lease was given back, or (why) it was not and ends by itself.
    ReleaseOver {
        failed: Option<String>,
    },
    /// A line for people. Nothing else reads it.
    Say(Notice),
    End(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Stop signal, and SIGKILL after `kill_after` where there is one.
    Orderly { reason: StopReason, kill_after: Option<Duration> },
    /// Stop signal, and SIGKILL after the grace or at the deadline, whichever is first. The loss is certain once the store
    /// has said so; until then the lease only could not be renewed in time.
    Losing { certain: bool },
    /// SIGKILL now.
    Kill,
}

/// Why COMMAND is stopped in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// By a signal.
    Asked,
    /// An operator paused the shard.
    Paused,
    /// An operator wants another candidate to lead.
    SteppedDown,
    /// It is another candidate's turn.
    Relinquished,
    /// COMMAND ran for as long as it may.
    Overran,
}

/// How what runs beside a standby is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// Stop signal, and SIGKILL after `kill_after`.
    Orderly { kill_after: Duration },
    /// SIGKILL now.
    Kill,
}
