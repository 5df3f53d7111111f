//! A candidate that gives its lease back, after its tree is dead.
//!
//! The hazard: the store may be away while an operator waits for the candidate to leave. So it tries until the lease
//! has ended by itself, or until a second signal. It reports a lease that was not released, because a standby then has
//! to wait for the end of the lease.

use super::state::{Releasing, Settling, Then};
use super::{Action, Core, Next, Notice, Outcome, WITHDRAWAL};
use crate::lease::Term;
use crate::store::{Answer, Release};
use crate::time::BootInstant;
use std::time::Duration;

impl Releasing {
    pub(super) fn begun(now: BootInstant, term: Option<Term>, then: Then, at_most: Duration) -> Self {
        Self {
            term,
            settling: None,
            ours: true,
            then,
            give_up: now.plus(at_most.max(WITHDRAWAL)),
            in_flight: false,
            next: now,
            failures: 0,
            error: None,
        }
    }
}

impl Core {
    pub(super) fn pass_releasing(&mut self, now: BootInstant, releasing: &mut Releasing) -> Next {
        if releasing.settling.as_ref().is_some_and(|settling| now >= settling.give_up) {
            let why = releasing.error.clone().unwrap_or_else(|| "the store did not answer in time".to_owned());
            let next = self.unsettled(now, releasing, why);
            if next.is_some() {
                return next;
            }
        }
        if now >= releasing.give_up {
            let error = releasing.error.as_deref().unwrap_or("the store did not answer");
            let why = format!("{error}; the lease ends by itself");
            // Then it says so at its end, and whether there is a lease is not known.
            if matches!((releasing.term, &releasing.then), (None, Then::End(Outcome::Unreachable(_)))) {
                self.actions.push(Action::ReleaseOver { failed: Some(why) });
            } else {
                self.not_released(why);
            }
            return Some(self.go_on(now, releasing.then.clone()));
        }
        if !releasing.in_flight && now >= releasing.next {
            releasing.in_flight = true;
            let term = releasing.term.unwrap_or(Term(0));
            self.actions.push(match &releasing.settling {
                Some(Settling { ran, .. }) => Action::Settle { term, ran: ran.clone() },
                None => Action::Release { term },
            });
        }
        None
    }

    pub(super) fn released(&mut self, now: BootInstant, releasing: &mut Releasing, answer: Answer<Release>) -> Next {
        if releasing.settling.is_some() {
            return None;
        }
        match answer {
            Ok(release) => {
                self.store_answered();
                self.claim_in_doubt = false;
                if releasing.term.is_some() {
                    self.say(Notice::Released(release));
                    self.actions.push(Action::ReleaseOver { failed: None });
                }
                Some(self.go_on(now, releasing.then.clone()))
            }
            Err(error) if error.kind.is_final() => {
                self.not_released(error.message);
                Some(self.go_on(now, releasing.then.clone()))
            }
            Err(error) => {
                self.release_failed(now, releasing, error.message);
                None
            }
        }
    }

    /// A request of the release failed, and is made again soon.
    pub(super) fn release_failed(&mut self, now: BootInstant, releasing: &mut Releasing, message: String) {
        releasing.in_flight = false;
        releasing.failures += 1;
        releasing.error = Some(message.clone());
        releasing.next = now.plus(self.random.backoff(releasing.failures, self.settings.timing.retry_interval));
        self.in_trouble(now, message, true);
    }

    /// Reports that the lease was not released and ends by itself.
    pub(super) fn not_released(&mut self, why: String) {
        self.say(Notice::NotReleased(why.clone()));
        self.actions.push(Action::ReleaseOver { failed: Some(why) });
    }
}
