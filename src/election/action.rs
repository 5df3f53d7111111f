//! The actions of an election: what it wants done.

use super::{CommandEnd, Ended, Notice, Outcome, Reason};
use crate::lease::{Deadline, Session, Term};
use crate::store::{Holder, Takeover};
use std::time::Duration;

/// How a run of COMMAND went.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ran {
    pub how: Ended,
    /// Some if COMMAND itself was reaped.
    pub end: Option<CommandEnd>,
}

/// Whom a candidate has waited behind first; empty if nobody led.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Behind {
    pub session: Option<Session>,
    /// The first term that was reported.
    pub term: Option<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Claim the lease.
    Claim,
    /// Look who leads.
    Observe,
    /// Renew the lease.
    Renew { term: Term, sequence: u64 },
    /// Give the lease back.
    Release { term: Term },
    /// Read the operators' orders.
    ReadOrders,
    /// Ask how many other candidates wait for the shard.
    CountStandbys,
    /// Remove the order of this handover: a later leadership has begun.
    ForgetHandover { term: Term },
    /// Enter the run that is about to start into the ledger.
    Book { term: Term, behind: Behind },
    /// Write into the ledger how the run ended, or (None) that it was not started.
    Settle { term: Term, ran: Option<Ran> },
    /// Start the guard, which starts COMMAND.
    Start { term: Term, deadline: Deadline, takeover: Takeover },
    /// Tell the guard the deadline after a renewal.
    Extend(Deadline),
    /// Have the guard stop the tree.
    Stop(Stop),
    /// Kill the guard, which missed its deadline, and then the tree, from this process.
    Seize,
    /// Ignore answers to renewals: the leadership is over.
    ForgetRenewals,
    /// Run the standby tasks, until they are stopped.
    StartStandbyTasks,
    /// Stop the standby tasks: the stop signal, and SIGKILL after `kill_after`.
    /// [`Event::StandbyTasksDead`](super::Event::StandbyTasksDead) follows, even if none runs.
    StopStandbyTasks { kill_after: Duration },
    /// SIGKILL to the standby tasks, now.
    KillStandbyTasks,
    /// Kill the guards of the standby tasks, which took too long, and then the tasks, from this process.
    SeizeStandbyTasks,
    /// Report to the standby tasks who leads, or (None) that nobody does. Sent once for each leader.
    LeaderChanged(Option<Holder>),
    /// Record how a leadership ended whose COMMAND was started.
    Ended { term: Term, how: Ended },
    /// Report the end of a release: the lease was given back, or (why) it was not, and ends by itself.
    ReleaseOver { failed: Option<String> },
    /// Log a line for people. No decision depends on it.
    Say(Notice),
    /// The election is over.
    End(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// Stop signal, and SIGKILL after `kill_after` if it is given.
    Orderly { reason: Reason, kill_after: Option<Duration> },
    /// Stop signal, and SIGKILL after the grace or at the deadline, whichever is first. A loss is certain if the store
    /// said so. Otherwise the lease could not be renewed in time.
    Losing { reason: Reason, certain: bool },
    /// SIGKILL now.
    Kill,
}
