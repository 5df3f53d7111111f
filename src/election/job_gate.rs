//! The job gate: COMMAND starts only when its run is in the ledger.
//!
//! The hazard: the next leader reads the ledger at once, and must not repeat the job. So the run is booked *after* the
//! grant and the orders and before the start. The entry is settled, or withdrawn if nothing started, *before* the
//! release.
//!
//! A job that may fail several times is repeated by any candidate that waits, and otherwise by the one whose run
//! failed. That one is the first to know that the lease is free, so it stands back.

use super::state::{Leadership, Releasing, Then, Tree, log_is_due};
use super::{Booking, Core, Next, Notice, Outcome};
use crate::lease::Term;
use crate::store::Answer;
use crate::time::BootInstant;

/// The entry of one leadership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub in_flight: bool,
    /// The earliest time to make it.
    pub next: BootInstant,
    failures: u32,
    /// When it was last logged that it cannot be made.
    logged_at: Option<BootInstant>,
    /// It was requested, so the ledger may hold it.
    pub begun: bool,
    pub permit: Permit,
}

/// What the ledger allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Permit {
    Missing,
    /// COMMAND may start.
    Once,
    /// COMMAND may start, and again if this run fails.
    Again,
}

impl Entry {
    pub fn due_at(now: BootInstant, needed: bool) -> Self {
        let permit = if needed { Permit::Missing } else { Permit::Once };
        Self { in_flight: false, next: now, failures: 0, logged_at: None, begun: false, permit }
    }
}

impl Core {
    pub(super) fn booked(
        &mut self,
        now: BootInstant,
        leadership: &mut Leadership,
        term: Term,
        answer: Answer<Booking>,
    ) -> Next {
        if leadership.term != term || !std::mem::take(&mut leadership.entry.in_flight) {
            return None;
        }
        match answer {
            Ok(Booking::Booked(booked)) => {
                leadership.entry.permit = if booked.again { Permit::Again } else { Permit::Once };
                None
            }
            Ok(Booking::Done(skipped)) => {
                leadership.entry.begun = false;
                Some(self.give_back(now, leadership, Then::End(Outcome::Done(skipped))))
            }
            Err(error) if error.kind.is_final() => {
                Some(self.give_back(now, leadership, Then::End(Outcome::Refused(error))))
            }
            Err(error) => {
                let most = self.longest_pause(now, leadership, 4);
                let entry = &mut leadership.entry;
                entry.failures += 1;
                entry.next = now.plus(self.random.backoff(entry.failures, most));
                if entry.failures > 1 && log_is_due(entry.logged_at, now) {
                    entry.logged_at = Some(now);
                    self.say(Notice::NotEntered(error.message));
                }
                None
            }
        }
    }

    pub(super) fn settled(
        &mut self,
        now: BootInstant,
        releasing: &mut Releasing,
        term: Term,
        answer: Answer<()>,
    ) -> Next {
        if releasing.term != Some(term) {
            return None;
        }
        let has_run = releasing.settling.as_ref()?.ran.is_some();
        match answer {
            Ok(()) => {
                self.store_answered();
                self.release_settled(now, releasing)
            }
            Err(error) if error.kind.is_final() && !has_run => self.unsettled(now, releasing, error.message),
            // A permission may be missing for a moment only, and the job would be done again.
            Err(error) => {
                self.release_failed(now, releasing, error.message);
                None
            }
        }
    }

    /// The entry stays as it is, and the release goes on.
    pub(super) fn unsettled(&mut self, now: BootInstant, releasing: &mut Releasing, why: String) -> Next {
        self.say(Notice::NotSettled(why));
        self.release_settled(now, releasing)
    }

    fn release_settled(&mut self, now: BootInstant, releasing: &mut Releasing) -> Next {
        releasing.settling = None;
        releasing.in_flight = false;
        releasing.failures = 0;
        releasing.error = None;
        releasing.next = now;
        (!releasing.ours).then(|| self.go_on(now, releasing.then.clone()))
    }
}

impl Leadership {
    pub(super) fn entry_due(&self) -> BootInstant {
        let may_start = matches!(self.tree, Tree::Idle { not_before: None }) && self.reading.cleared;
        let due = may_start && self.entry.permit == Permit::Missing && !self.entry.in_flight;
        if due { self.entry.next } else { BootInstant::NEVER }
    }
}
