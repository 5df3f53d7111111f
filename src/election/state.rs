//! The states of an election.
//!
//! The hazard: a leadership lasts while it is being ended, and its lease while its tree dies. So the cause of the end
//! (`ending`), what is left of the tree (`Tree`) and the end of the lease are kept apart, and none follows from
//! another.

use super::job_gate::Entry;
use super::restart::Runs;
use super::rotation::Rotation;
use super::{CommandEnd, Ended, Hold, Interrupt, Loss, Obstacle, Outcome, Ran};
use crate::lease::Term;
use crate::store::{Holder, StoreError, Takeover};
use crate::time::BootInstant;
use std::time::Duration;

/// The most renewals under way at once. Later ones overtake those that hang on a dead connection.
pub(super) const MOST_RENEWALS_IN_FLIGHT: u32 = 16;
/// The least time between two attempts. They get denser as the deadline comes nearer.
pub(super) const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// The time between two log lines about the same trouble.
const TROUBLE_EVERY: Duration = Duration::from_secs(30);
/// How late a guard may be before the candidate acts without it.
pub(crate) const GUARD_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "there is one")]
pub(super) enum State {
    Standby(Standby),
    /// The candidate leaves, and its claim may still be granted.
    Withdrawing {
        outcome: Outcome,
        until: BootInstant,
    },
    Leading(Leadership),
    Releasing(Releasing),
    Ended,
}

impl State {
    pub(super) fn standby(&mut self) -> Option<&mut Standby> {
        if let Self::Standby(standby) = self { Some(standby) } else { None }
    }

    pub(super) fn leading(&mut self) -> Option<&mut Leadership> {
        if let Self::Leading(leadership) = self { Some(leadership) } else { None }
    }

    pub(super) fn releasing(&mut self) -> Option<&mut Releasing> {
        if let Self::Releasing(releasing) = self { Some(releasing) } else { None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Standby {
    /// Some while a request is under way.
    pub(super) request: Option<Request>,
    /// What to ask next, at `next`.
    pub(super) intent: Request,
    pub(super) next: BootInstant,
    pub(super) failures: u32,
    /// The store reported a change while a request was under way: the answer may be older than the change.
    pub(super) changed_meanwhile: bool,
}

impl Standby {
    pub(super) fn about_to(intent: Request, next: BootInstant) -> Self {
        Self { request: None, intent, next, failures: 0, changed_meanwhile: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Claim,
    Look,
    /// What holds us back.
    Orders,
}

/// One wait to lead, from becoming a standby to leading or leaving.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    /// When `-w` runs out.
    pub(super) until: BootInstant,
    /// The last answer, if it was an error.
    pub(super) error: Option<StoreError>,
    pub(super) holder: Option<Holder>,
    /// Some while orders, or our own turn to stand back, keep us from claiming.
    pub(super) hold: Option<Hold>,
}

impl Waiting {
    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        let hold = self.hold.clone().map(Obstacle::Hold);
        hold.or_else(|| self.holder.clone().map(Obstacle::from))
    }
}

/// The reading of orders by a leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reading {
    /// Some while a request for them is under way: when it was sent.
    pub(super) in_flight: Option<BootInstant>,
    /// When the request was sent whose answer had the latest orders. An answer to an earlier one is out of date.
    pub(super) heard: BootInstant,
    /// When to read them. A renewal makes this due if it does not bring them.
    pub(super) next: BootInstant,
    pub(super) failures: u32,
    /// When it was last logged that they cannot be read.
    pub(super) logged_at: Option<BootInstant>,
    /// They were read after the grant, or before a later start, and allow the start.
    pub(super) cleared: bool,
    /// The request under way was sent too early to allow the start.
    pub(super) stale: bool,
}

impl Reading {
    pub(super) fn due_at(now: BootInstant) -> Self {
        Self { in_flight: None, heard: now, next: now, failures: 0, logged_at: None, cleared: false, stale: false }
    }

    /// COMMAND had to wait, and may be started now. What was read before may be out of date.
    pub(super) fn begin_again(&mut self, now: BootInstant) {
        self.cleared = false;
        self.stale = self.in_flight.is_some();
        self.next = now;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leadership {
    pub(super) term: Term,
    pub(super) takeover: Takeover,
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
    pub(super) rotation: Rotation,
    pub(super) tree: Tree,
    /// The first cause of its end; None while it goes on.
    pub(super) ending: Option<Ended>,
    /// Some once the lease is being lost, whatever the first cause is.
    pub(super) lost: Option<Loss>,
    /// The operators' order that ends it, if one does. It also keeps us from leading again.
    pub(super) ordered: Option<Hold>,
    /// Some once a signal to stop has come: the candidate leaves when the tree is dead.
    pub(super) asked: Option<i32>,
    /// Some once COMMAND itself has been reaped.
    pub(super) end: Option<CommandEnd>,
    /// The guard reported that COMMAND will not be started, because of its hook.
    pub(super) unready: bool,
    /// Some if the keyboard ended the present run.
    pub(super) interrupted: Option<Interrupt>,
}

impl Leadership {
    /// Whether the store has said that the lease is lost. No later answer changes that.
    pub(super) fn is_lost_for_certain(&self) -> bool {
        self.lost.as_ref().is_some_and(Loss::is_certain)
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

    /// Has the orders read by a request of their own, unless one is due before COMMAND starts anyway.
    pub(super) fn read_orders_soon(&mut self, now: BootInstant) {
        if self.reading.cleared && self.ending.is_none() {
            self.reading.next = now;
        }
    }

    pub(super) fn reading_due(&self) -> BootInstant {
        if self.reading.in_flight.is_some() { BootInstant::NEVER } else { self.reading.next }
    }

    /// Gives the guard this long, and some patience, to show that the tree is dead.
    pub(super) fn seize_after(&mut self, now: BootInstant, time: Duration) {
        if let Tree::Alive { seize_at, .. } = &mut self.tree {
            *seize_at = (*seize_at).min(now.plus(time).plus(GUARD_PATIENCE));
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Tree {
    /// COMMAND was not started, or waits for a restart. It may start from this instant on (None: it has passed).
    Idle { not_before: Option<BootInstant> },
    Alive {
        /// A guard that works has stopped the tree by then.
        seize_at: BootInstant,
        /// When COMMAND will have run for as long as it may.
        overrun_at: BootInstant,
    },
    /// The tree is being killed without the guard: nothing more can be done.
    Seized {
        /// When to say that it does not die.
        tell_at: BootInstant,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Releasing {
    pub(super) term: Option<Term>,
    /// Some while the ledger has to be written first.
    pub(super) settling: Option<Settling>,
    /// False if another candidate has the lease by now, and only the ledger has to be written.
    pub(super) ours: bool,
    pub(super) then: Then,
    /// When the lease has ended by itself.
    pub(super) give_up: BootInstant,
    pub(super) in_flight: bool,
    pub(super) next: BootInstant,
    pub(super) failures: u32,
    /// Why the last request failed.
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Settling {
    /// None: COMMAND was not started.
    pub(super) ran: Option<Ran>,
    /// When to go on to the release, which needs time as well.
    pub(super) give_up: BootInstant,
    /// A signal came meanwhile. The next one means not to wait.
    pub(super) asked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Then {
    End(Outcome),
    Standby {
        pause: Duration,
    },
    /// Become a standby that waits until orders let it lead, or until another candidate has led.
    Held(Hold),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Trouble {
    pub(super) since: BootInstant,
    /// None if it was not worth a line yet.
    pub(super) logged_at: Option<BootInstant>,
    pub(super) message: String,
}

/// Whether a trouble that goes on is worth another log line.
pub(super) fn log_is_due(logged_at: Option<BootInstant>, now: BootInstant) -> bool {
    logged_at.is_none_or(|logged_at| now.since(logged_at) >= TROUBLE_EVERY)
}
