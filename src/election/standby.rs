//! A candidate that waits for its turn.
//!
//! The hazard: a standby knows what was so when somebody looked. News may come while a look is under way whose answer is
//! older than they are, and a claim that nobody answers may have been granted. So news are kept until the answer is
//! there, and whoever leaves after a claim in doubt gives back what it may hold.

use super::state::{Request, Standby, State, Then, Waiting};
use super::{Action, Election, Notice, Obstacle, Outcome, Patience, WITHDRAWAL};
use crate::store::{Delivery, ErrorKind, Holder, Observation, StoreError};
use crate::time::BootInstant;
use std::time::Duration;

/// When, after the end of a lease, a standby looks whether it was renewed: at any time from the first to the second of
/// these. All standbys know the same end, and a thousand of them must not look at once.
const LOOK_AFTER_EXPIRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(820));

impl Election {
    pub(super) fn observed(
        &mut self,
        now: BootInstant,
        answer: Result<Observation, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let next_claim = self.next_claim(now);
        match &mut self.state {
            State::Standby(standby) => {
                standby.request = None;
                match answer {
                    Ok(Observation::Free) => {
                        *standby = Standby::about_to(Request::Claim, next_claim);
                        self.store_answered(actions);
                    }
                    Ok(Observation::Held(holder)) => self.held_by(now, holder, actions),
                    Err(error) => self.standby_failed(now, Request::Look, error, actions),
                }
            }
            State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => {}
        }
    }

    pub(super) fn changed(&mut self, now: BootInstant, news: Result<(), StoreError>, actions: &mut Vec<Action>) {
        match &mut self.state {
            State::Standby(standby) => match news {
                Ok(()) if standby.request.is_some() => standby.news = true,
                Ok(()) if standby.intent == Request::Orders => {}
                Ok(()) => *standby = Standby::about_to(Request::Claim, now),
                Err(error) => self.standby_failed(now, Request::Look, error, actions),
            },
            State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => {}
        }
    }

    /// A leadership is over: what a standby waits for begins anew.
    pub(super) fn begin_waiting(&mut self, now: BootInstant) {
        let until = match self.settings.patience {
            Patience::Forever | Patience::Once => BootInstant::NEVER,
            Patience::AtMost(wait) => now.plus(wait),
        };
        self.waiting = Waiting { until, error: None, holder: None, hold: None };
    }

    pub(super) fn become_standby(&mut self, now: BootInstant) {
        self.begin_waiting(now);
        self.state = State::Standby(Standby::about_to(Request::Claim, now));
    }

    pub(super) fn held_by(&mut self, now: BootInstant, holder: Holder, actions: &mut Vec<Action>) {
        self.store_answered(actions);
        self.turn_taken(&holder);
        if self.settings.patience == Patience::Once {
            return self.leave(now, Outcome::NotAcquired(Some(Obstacle::Holder(holder))), actions);
        }
        let after_expiry = self.after_expiry(&holder);
        let kernel = self.look_for_leader();
        let State::Standby(standby) = &mut self.state else { unreachable!("only a standby is refused") };
        let pause = match self.settings.delivery {
            Delivery::Poll => Some(self.random.about(self.settings.timing.retry_interval)),
            Delivery::Push => Some(after_expiry),
            Delivery::Kernel => kernel,
        };
        *standby = match pause {
            _ if standby.news => Standby::about_to(Request::Claim, now),
            Some(pause) => Standby::about_to(Request::Look, now.plus(pause)),
            None => Standby::about_to(Request::Look, BootInstant::NEVER),
        };
        let known = self.waiting.holder.as_ref();
        if known.map(|known| (&known.owner, known.term)) != Some((&holder.owner, holder.term)) {
            actions.push(Action::Say(Notice::Waiting(holder.clone())));
        }
        self.waiting = Waiting { until: self.waiting.until, error: None, holder: Some(holder), hold: None };
    }

    /// A crash is told by nobody, so a standby looks when the lease has ended that it saw: not much later, so that a
    /// takeover is not, and not all standbys at once. A leader that lives has renewed by then, so this is one look a
    /// lease where the lease is a multiple of the renewal interval, and never much more.
    pub(super) fn after_expiry(&mut self, holder: &Holder) -> Duration {
        let lease = self.settings.timing.lease;
        let left = holder.expires_in.unwrap_or(lease).min(lease);
        left + self.random.between(LOOK_AFTER_EXPIRY)
    }

    pub(super) fn standby_failed(
        &mut self,
        now: BootInstant,
        asked: Request,
        error: StoreError,
        actions: &mut Vec<Action>,
    ) {
        let final_word = match error.kind {
            ErrorKind::Denied | ErrorKind::Misconfigured => !self.worked,
            ErrorKind::NotApplied | ErrorKind::Unknown => false,
        };
        if final_word {
            return self.leave(now, Outcome::Refused(error), actions);
        }
        if self.settings.patience == Patience::Once {
            return self.leave(now, Outcome::Unreachable(error.message), actions);
        }
        let State::Standby(standby) = &mut self.state else { unreachable!("only a standby asks this") };
        standby.failures += 1;
        standby.news = false;
        standby.intent = asked;
        standby.next = now.plus(self.random.backoff(standby.failures, self.settings.timing.retry_interval));
        self.waiting.error = Some(error.clone());
        self.in_trouble(now, error.message, true, actions);
    }

    pub(super) fn waiting_in_vain(&self) -> Outcome {
        match &self.waiting.error {
            Some(error) => Outcome::Unreachable(error.message.clone()),
            None if !self.worked => Outcome::Unreachable("the store did not answer in time".to_owned()),
            None => Outcome::NotAcquired(self.waiting.obstacle()),
        }
    }

    /// A standby leaves: at once, unless a claim of ours is under way or in doubt.
    pub(super) fn leave(&mut self, now: BootInstant, outcome: Outcome, actions: &mut Vec<Action>) {
        let State::Standby(standby) = &self.state else { unreachable!("only a standby just leaves") };
        if standby.request == Some(Request::Claim) {
            self.state = State::Withdrawing { outcome, until: now.plus(WITHDRAWAL) };
        } else {
            self.leave_for_good(now, outcome, actions);
        }
    }

    pub(super) fn leave_for_good(&mut self, now: BootInstant, outcome: Outcome, actions: &mut Vec<Action>) {
        if self.claim_in_doubt {
            self.release(now, None, Then::End(outcome), WITHDRAWAL);
        } else {
            self.end(outcome, actions);
        }
    }
}
