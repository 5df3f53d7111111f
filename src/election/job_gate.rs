//! The job gate: COMMAND starts only when its run is in the ledger.
//!
//! The hazard: the next leader reads the ledger at once, and must not repeat the job. So the run is booked *after* the
//! grant and the orders and before the start. The entry is settled, or withdrawn if nothing started, *before* the
//! release.
//!
//! A job that may fail several times is repeated by any candidate that waits, and otherwise by the one whose run failed.
//! That one is the first to know that the lease is free, so it stands back.

use super::state::{Leadership, Releasing, State, Then, Tree, log_is_due};
use super::{Action, Booking, Core, Next, Notice, Outcome};
use crate::lease::Term;
use crate::store::{ErrorKind, StoreError};
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
        state: &mut State,
        term: Term,
        answer: Result<Booking, StoreError>,
        actions: &mut Vec<Action>,
    ) -> Next {
        let timing = self.settings.timing;
        match state {
            State::Leading(leadership) if leadership.term == term && leadership.entry.in_flight => {
                leadership.entry.in_flight = false;
                match answer {
                    Ok(Booking::Booked(booked)) => {
                        leadership.entry.permit = if booked.again { Permit::Again } else { Permit::Once };
                        None
                    }
                    Ok(Booking::Done(skipped)) => {
                        leadership.entry.begun = false;
                        Some(self.give_back(now, leadership, Then::End(Outcome::Done(skipped)), actions))
                    }
                    Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
                        Some(self.give_back(now, leadership, Then::End(Outcome::Refused(error)), actions))
                    }
                    Err(error) => {
                        leadership.entry.failures += 1;
                        let most = leadership.pause(timing, now, 4);
                        leadership.entry.next = now.plus(self.random.backoff(leadership.entry.failures, most));
                        let entry = &mut leadership.entry;
                        if entry.failures > 1 && log_is_due(entry.logged_at, now) {
                            entry.logged_at = Some(now);
                            actions.push(Action::Say(Notice::NotEntered(error.message)));
                        }
                        None
                    }
                }
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => {
                None
            }
        }
    }

    pub(super) fn settled(
        &mut self,
        now: BootInstant,
        state: &mut State,
        term: Term,
        answer: Result<(), StoreError>,
        actions: &mut Vec<Action>,
    ) -> Next {
        match state {
            State::Releasing(releasing) if releasing.term == Some(term) && releasing.settling.is_some() => {
                releasing.in_flight = false;
                match answer {
                    Ok(()) => self.release_settled(now, releasing, actions),
                    Err(error) => match error.kind {
                        ErrorKind::NotApplied | ErrorKind::Unknown => {
                            releasing.failures += 1;
                            let most = self.settings.timing.retry_interval;
                            releasing.next = now.plus(self.random.backoff(releasing.failures, most));
                            self.in_trouble(now, error.message, true, actions);
                            None
                        }
                        ErrorKind::Denied | ErrorKind::Misconfigured => {
                            self.unsettled(now, releasing, error.message, actions)
                        }
                    },
                }
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => {
                None
            }
        }
    }

    /// The entry stays as it is, and the release goes on.
    pub(super) fn unsettled(
        &mut self,
        now: BootInstant,
        releasing: &mut Releasing,
        why: String,
        actions: &mut Vec<Action>,
    ) -> Next {
        actions.push(Action::Say(Notice::NotSettled(why)));
        self.release_settled(now, releasing, actions)
    }

    fn release_settled(&mut self, now: BootInstant, releasing: &mut Releasing, actions: &mut Vec<Action>) -> Next {
        releasing.settling = None;
        releasing.in_flight = false;
        releasing.failures = 0;
        releasing.next = now;
        (!releasing.ours).then(|| self.go_on(now, releasing.then.clone(), actions))
    }
}

impl Leadership {
    pub(super) fn entry_due(&self) -> BootInstant {
        let may_start = matches!(self.tree, Tree::Idle { not_before: None }) && self.reading.cleared;
        let due = may_start && self.entry.permit == Permit::Missing && !self.entry.in_flight;
        if due { self.entry.next } else { BootInstant::NEVER }
    }
}
