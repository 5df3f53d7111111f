//! A candidate that gives its lease back, after its tree is dead.
//!
//! The hazard: the store may be away, and somebody waits for us to leave. So it is tried until the lease has ended by
//! itself, or somebody who asks again does not want to wait; and a lease that was not released is told, for a standby
//! then waits for its end.

use super::state::{Releasing, Settling, State, Then};
use super::{Action, Election, Notice, Ran, WITHDRAWAL};
use crate::lease::Term;
use crate::store::{ErrorKind, Release, StoreError};
use crate::time::BootInstant;
use std::time::Duration;

impl Election {
    pub(super) fn pass_releasing(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        if let State::Releasing(Releasing { settling: Some(settling), .. }) = &self.state
            && now >= settling.give_up
        {
            self.unsettled(now, "the store did not answer in time".to_owned(), actions);
        }
        let State::Releasing(releasing) = &mut self.state else { return };
        if now >= releasing.give_up {
            let then = releasing.then.clone();
            let why = "the store did not answer; the lease ends by itself".to_owned();
            not_released(why, actions);
            self.go_on(now, then, actions);
        } else if !releasing.in_flight && now >= releasing.next {
            releasing.in_flight = true;
            let term = releasing.term.unwrap_or(Term(0));
            actions.push(match &releasing.settling {
                Some(Settling { ran, .. }) => Action::Settle { term, ran: ran.clone() },
                None => Action::Release { term },
            });
        }
    }

    pub(super) fn release(&mut self, now: BootInstant, term: Option<Term>, then: Then, at_most: Duration) {
        let give_up = now.plus(at_most.max(WITHDRAWAL));
        self.state = State::Releasing(Releasing {
            term,
            settling: None,
            ours: true,
            then,
            give_up,
            in_flight: false,
            next: now,
            failures: 0,
        });
    }

    /// Before the release that was just begun, or instead of it.
    pub(super) fn settle_first(&mut self, now: BootInstant, ran: Option<Ran>, ours: bool) {
        let State::Releasing(releasing) = &mut self.state else { unreachable!("a release was begun") };
        let half = releasing.give_up.since(now) / 2;
        let give_up = now.plus(half.max(WITHDRAWAL).min(self.settings.timing.lease));
        releasing.settling = Some(Settling { ran, give_up, asked: false });
        releasing.ours = ours;
    }

    pub(super) fn released(
        &mut self,
        now: BootInstant,
        answer: Result<Release, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        match &mut self.state {
            State::Releasing(releasing) if releasing.settling.is_none() => {
                releasing.in_flight = false;
                let then = releasing.then.clone();
                match answer {
                    Ok(Release::Released | Release::NotHeld) => {
                        self.claim_in_doubt = false;
                        if let Some(term) = releasing.term {
                            actions.push(Action::Say(Notice::Released(term)));
                            actions.push(Action::ReleaseOver { failed: None });
                        }
                        self.go_on(now, then, actions);
                    }
                    Err(error) => match error.kind {
                        ErrorKind::NotApplied | ErrorKind::Unknown => {
                            releasing.failures += 1;
                            let pause = self.random.backoff(releasing.failures, self.settings.timing.retry_interval);
                            releasing.next = now.plus(pause);
                            self.in_trouble(now, error.message, true, actions);
                        }
                        ErrorKind::Denied | ErrorKind::Misconfigured => {
                            not_released(error.message, actions);
                            self.go_on(now, then, actions);
                        }
                    },
                }
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => {}
        }
    }
}

/// The lease ends by itself.
pub(super) fn not_released(why: String, actions: &mut Vec<Action>) {
    actions.push(Action::Say(Notice::NotReleased(why.clone())));
    actions.push(Action::ReleaseOver { failed: Some(why) });
}
