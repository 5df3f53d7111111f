//! Where an election stands.
//!
//! The hazard: a leadership goes on while it is being ended, and its lease while its tree dies. So what ends it
//! (`Ending`), what is left of the tree (`Tree`) and the lease's end are kept apart, and none follows from another.

use super::hooks::HookEnd;
use super::job_gate::Entry;
use super::restart::Runs;
use super::rotation::Turn;
use super::{CommandEnd, Ended, Hold, Loss, Obstacle, Outcome, Ran, StartError};
use crate::lease::{Term, Timing};
use crate::store::{Holder, StoreError};
use crate::time::BootInstant;
use std::time::Duration;

/// At the most so many renewals are under way at once. Later ones overtake those that hang on a dead connection.
pub(super) const MOST_RENEWALS_IN_FLIGHT: u32 = 16;
/// Attempts get denser as the deadline comes nearer, but not denser than this.
pub(super) const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// How much later than it should have a guard may do as it was told before it is passed over.
pub(crate) const GUARD_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Standby(Standby),
    /// We are leaving, and a claim is under way that may yet be granted.
    Withdrawing {
        outcome: Outcome,
        until: BootInstant,
    },
    Leading(Leadership),
    Releasing(Releasing),
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Standby {
    /// Some while a request is under way.
    pub(super) request: Option<Request>,
    /// What to ask next, at `next`.
    pub(super) intent: Request,
    pub(super) next: BootInstant,
    pub(super) failures: u32,
    /// News came while a request was under way: its answer may be older than they are.
    pub(super) news: bool,
}

impl Standby {
    pub(super) fn about_to(intent: Request, next: BootInstant) -> Self {
        Self { request: None, intent, next, failures: 0, news: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Claim,
    Look,
    /// What bars us.
    Orders,
}

/// One wait for leadership, from becoming a standby to leading or leaving.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    /// When `-w` runs out.
    pub(super) until: BootInstant,
    /// The last answer, if it was an error.
    pub(super) error: Option<StoreError>,
    pub(super) holder: Option<Holder>,
    /// Some while orders keep us from claiming.
    pub(super) hold: Option<Hold>,
}

impl Waiting {
    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        let hold = self.hold.clone().map(Obstacle::Hold);
        hold.or_else(|| self.holder.clone().map(Obstacle::Holder))
    }
}

/// The reading of orders by a leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reading {
    pub(super) in_flight: bool,
    /// When to read them, unless the next renewal comes first.
    pub(super) next: BootInstant,
    pub(super) failures: u32,
    /// When it was told last that they cannot be read.
    pub(super) said: Option<BootInstant>,
    /// They were read after the grant, or before a later start, and let us lead.
    pub(super) cleared: bool,
    /// What is under way was asked too early to clear us.
    pub(super) stale: bool,
}

impl Reading {
    pub(super) fn due_at(now: BootInstant) -> Self {
        Self { in_flight: false, next: now, failures: 0, said: None, cleared: false, stale: false }
    }

    /// COMMAND was to wait, and may be started now: what was read meanwhile may be out of date.
    pub(super) fn begin_anew(&mut self, now: BootInstant) {
        self.cleared = false;
        self.stale = self.in_flight;
        self.next = now;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leadership {
    pub(super) term: Term,
    /// Sent plus lease of the latest granted request. Never goes back.
    pub(super) valid_until: BootInstant,
    pub(super) next_renewal: BootInstant,
    pub(super) last_sent: BootInstant,
    pub(super) in_flight: u32,
    pub(super) failures: u32,
    pub(super) sequence: u64,
    pub(super) reading: Reading,
    pub(super) entry: Entry,
    pub(super) runs: Runs,
    pub(super) turn: Turn,
    pub(super) tree: Tree,
    /// The first thing that ended it; None while it goes on.
    pub(super) ending: Option<Ending>,
    /// Some once somebody asked us to stop: we leave when the tree is dead.
    pub(super) asked: Option<i32>,
    /// Some once COMMAND itself has been reaped.
    pub(super) end: Option<CommandEnd>,
    /// COMMAND was not started and will not be: the guard said so.
    pub(super) unready: bool,
}

impl Leadership {
    /// The most between two attempts to renew: an outage may end shortly before the stop signal is due, so of the time
    /// until then one attempt waits for one part.
    pub(super) fn pause(&self, timing: Timing, now: BootInstant, parts: u32) -> Duration {
        let most = timing.renew_interval.min(timing.retry_interval);
        let left = timing.deadline(self.valid_until).term_at.since(now);
        if left.is_zero() { most } else { most.min((left / parts).max(LEAST_PAUSE)) }
    }

    /// Nothing that the store may still answer changes it.
    pub(super) fn is_lost_for_certain(&self) -> bool {
        matches!(&self.ending, Some(Ending::Lost(loss)) if loss.is_certain())
    }

    pub(super) fn renewal_due(&self) -> BootInstant {
        if !self.is_lost_for_certain()
            && self.in_flight < MOST_RENEWALS_IN_FLIGHT
            && self.next_renewal < self.valid_until
        {
            self.next_renewal
        } else {
            BootInstant::NEVER
        }
    }

    pub(super) fn reading_due(&self) -> BootInstant {
        if self.reading.in_flight { BootInstant::NEVER } else { self.reading.next }
    }

    /// The guard has so long to show that the tree is dead.
    pub(super) fn seize_after(&mut self, now: BootInstant, time: Duration) {
        if let Tree::Alive { seize_at, .. } = &mut self.tree {
            *seize_at = (*seize_at).min(now.plus(time).plus(GUARD_PATIENCE));
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Tree {
    /// COMMAND was not started, or waits to be started again; it may be from this instant on (None: it has passed).
    Idle { not_before: Option<BootInstant> },
    Alive {
        /// A guard that was told to stop the tree, and works, has done so before this.
        seize_at: BootInstant,
        /// When COMMAND has run for as long as it may.
        overrun_at: BootInstant,
    },
    /// The guard was told to kill, or passed over: nothing more can be asked for.
    Seized,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ending {
    ByItself(CommandEnd),
    NotStarted(StartError),
    /// The hook before COMMAND ended so.
    Unready(HookEnd),
    /// By this signal, the last of them.
    Asked(i32),
    Overran,
    /// By operators, who bar us from leading again.
    Ordered(Hold),
    /// It ended by itself, once more than it is restarted in a row.
    GaveUp {
        end: CommandEnd,
        restarts: u32,
    },
    /// It was others' turn.
    Relinquished,
    Lost(Loss),
}

impl Ending {
    pub(super) fn told(&self) -> Ended {
        match self {
            Self::ByItself(end) => Ended::ByItself(*end),
            Self::NotStarted(error) => Ended::NotStarted(*error),
            Self::Unready(end) => Ended::Unready(*end),
            Self::Asked(signal) => Ended::Asked(*signal),
            Self::Overran => Ended::Overran,
            Self::Ordered(Hold::Paused { .. }) => Ended::Paused,
            Self::Ordered(Hold::HandedOver { .. } | Hold::StandingBack { .. }) => Ended::SteppedDown,
            Self::GaveUp { end, restarts } => Ended::GaveUp { end: *end, restarts: *restarts },
            Self::Relinquished => Ended::Relinquished,
            Self::Lost(loss) => Ended::Lost(loss.clone()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Releasing {
    pub(super) term: Option<Term>,
    /// Some while the ledger is to be told first.
    pub(super) settling: Option<Settling>,
    /// False where the lease is somebody else's by now, and only the ledger is to be told.
    pub(super) ours: bool,
    pub(super) then: Then,
    /// The lease has ended by itself then.
    pub(super) give_up: BootInstant,
    pub(super) in_flight: bool,
    pub(super) next: BootInstant,
    pub(super) failures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Settling {
    /// None: COMMAND was not started.
    pub(super) ran: Option<Ran>,
    /// The release must have its time as well.
    pub(super) give_up: BootInstant,
    /// Somebody does not want to wait for this.
    pub(super) asked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Then {
    End(Outcome),
    Standby {
        pause: Duration,
    },
    /// We wait on as a standby for orders to let us lead, or for others to have their turn.
    Held(Hold),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Trouble {
    pub(super) since: BootInstant,
    pub(super) said: Option<BootInstant>,
    pub(super) message: String,
}
