//! A candidate that waits to lead.
//!
//! The hazard: what a standby knows may be out of date. If the store reports a change while a look is under way, the
//! answer to the look may be older than the change. And a claim without an answer may have been granted. So the standby
//! remembers the change until the answer has come, and a candidate that leaves after a claim in doubt releases the
//! lease that it may hold.

use super::state::{Releasing, Request, Standby, State, Then, Waiting};
use super::{Action, Behind, Core, Next, Notice, Obstacle, Outcome, Patience, WITHDRAWAL};
use crate::lease::kept;
use crate::store::{Answer, Delivery, Holder, Observation, StoreError};
use crate::time::BootInstant;
use std::time::Duration;

/// How long after the end of a lease a standby looks whether it was renewed: a random time between these two. All
/// standbys know the same end, and a thousand of them must not look at once.
const LOOK_AFTER_EXPIRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(820));

/// A wait for a change that lasts this long has worked.
const WATCH_LASTS: Duration = Duration::from_mins(1);
/// After this many failures in a row, the log says that the store cannot wait for a change.
const UNWATCHED: u32 = 3;

impl Core {
    pub(super) fn pass_standby(&mut self, now: BootInstant, standby: &mut Standby) -> Next {
        if now >= self.waiting.until {
            let outcome = match &self.waiting.error {
                Some(error) => Outcome::Unreachable(error.message.clone()),
                None if !self.worked => Outcome::Unreachable("the store did not answer in time".to_owned()),
                None => Outcome::NotAcquired(self.waiting.obstacle()),
            };
            return Some(self.leave(now, standby, outcome));
        }
        if standby.request.is_none() && now >= standby.next {
            let stands_back = self.standing_back.is_some_and(|(_, until)| now < until);
            if standby.intent == Request::Claim && stands_back {
                standby.intent = Request::Look;
            }
            standby.request = Some(standby.intent);
            self.actions.push(match standby.intent {
                Request::Claim => Action::Claim,
                Request::Look => Action::Observe,
                Request::Orders => Action::ReadOrders,
            });
        }
        None
    }

    pub(super) fn observed(&mut self, now: BootInstant, state: &mut State, answer: Answer<Observation>) -> Next {
        let next_claim = self.next_claim(now);
        let standby = state.standby()?;
        standby.request = None;
        match answer {
            Ok(Observation::Free) => {
                self.store_answered();
                Some(State::Standby(Standby::about_to(Request::Claim, next_claim)))
            }
            Ok(Observation::Held(holder)) => Some(self.held_by(now, standby, holder)),
            Err(error) => self.standby_failed(now, standby, Request::Look, error),
        }
    }

    pub(super) fn changed(&mut self, now: BootInstant, standby: &mut Standby, reported: Answer<()>) -> Next {
        match reported {
            Ok(()) if standby.request.is_some() => {
                standby.changed_meanwhile = true;
                None
            }
            Ok(()) if standby.intent == Request::Orders => None,
            Ok(()) => Some(State::Standby(Standby::about_to(Request::Claim, now))),
            Err(error) => self.watch_failed(now, standby, error),
        }
    }

    /// The store cannot wait for a change: not now, or never, for instance because the user may not subscribe. Until it
    /// can, the standby looks now and then. The log says so once, because the store may answer everything else.
    fn watch_failed(&mut self, now: BootInstant, standby: &mut Standby, error: StoreError) -> Next {
        let (before, at) = self.unwatched;
        let failures = if now.since(at) < WATCH_LASTS { before + 1 } else { 1 };
        self.unwatched = (failures, now);
        if failures == UNWATCHED {
            self.say(Notice::Unwatched { message: error.message, every: self.settings.timing.retry_interval });
        }
        self.ask_later(now, standby, Request::Look, failures);
        None
    }

    fn ask_later(&mut self, now: BootInstant, standby: &mut Standby, asked: Request, failures: u32) {
        standby.failures = failures;
        standby.changed_meanwhile = false;
        standby.intent = asked;
        standby.next = now.plus(self.random.backoff(failures, self.settings.timing.retry_interval));
    }

    /// Begins a new wait.
    pub(super) fn begin_waiting(&mut self, now: BootInstant) {
        let until = match self.settings.patience {
            Patience::Forever | Patience::Once => BootInstant::NEVER,
            Patience::AtMost(wait) => now.plus(wait),
        };
        self.waiting = Waiting { until, error: None, holder: None, hold: None };
    }

    pub(super) fn held_by(&mut self, now: BootInstant, standby: &Standby, holder: Holder) -> State {
        self.store_answered();
        self.standing_back.take_if(|(term, _)| holder.term != Some(*term));
        self.waits_behind(&holder);
        // A candidate that does not wait behind another one still waits while nobody may start.
        if self.settings.patience == Patience::Once && holder.doubt.is_none() {
            return self.leave(now, standby, Outcome::NotAcquired(Some(Obstacle::from(holder))));
        }
        // No event reports a crash, so a standby looks shortly after the end of the lease that it saw. A live leader has
        // renewed by then, so this costs about one look per lease.
        let lease = kept(self.settings.timing.lease);
        let after_expiry = holder.expires_in.unwrap_or(lease).min(lease) + self.random.between(LOOK_AFTER_EXPIRY);
        // The hook that learns who leads has to look, where a standby would not otherwise.
        let kernel = self.settings.standby_tasks.then(|| self.random.about(self.settings.timing.retry_interval));
        let pause = match self.settings.delivery {
            Delivery::Poll => Some(self.random.about(self.settings.timing.retry_interval)),
            Delivery::Push => Some(after_expiry),
            Delivery::Kernel => kernel,
        };
        let next = if standby.changed_meanwhile {
            Standby::about_to(Request::Claim, now)
        } else {
            Standby::about_to(Request::Look, pause.map_or(BootInstant::NEVER, |pause| now.plus(pause)))
        };
        let known = self.waiting.holder.as_ref();
        if known.map(|known| (&known.owner, known.term)) != Some((&holder.owner, holder.term)) {
            self.say(Notice::Waiting(holder.clone()));
        }
        self.waiting = Waiting { until: self.waiting.until, error: None, holder: Some(holder), hold: None };
        State::Standby(next)
    }

    /// A store may report a leader before it knows the term.
    fn waits_behind(&mut self, holder: &Holder) {
        if self.settings.job_gate && holder.doubt.is_none() {
            let Behind { session, term } = &mut self.behind;
            *term = term.or(holder.term);
            if session.is_none() {
                session.clone_from(&holder.session);
            }
        }
    }

    pub(super) fn standby_failed(
        &mut self,
        now: BootInstant,
        standby: &mut Standby,
        asked: Request,
        error: StoreError,
    ) -> Next {
        if error.kind.is_final() && !self.worked {
            return Some(self.leave(now, standby, Outcome::Refused(error)));
        }
        if self.settings.patience == Patience::Once {
            return Some(self.leave(now, standby, Outcome::Unreachable(error.message)));
        }
        self.ask_later(now, standby, asked, standby.failures + 1);
        self.waiting.error = Some(error.clone());
        self.in_trouble(now, error.message, true);
        None
    }

    /// A standby leaves: at once, unless its claim is under way or in doubt.
    pub(super) fn leave(&mut self, now: BootInstant, standby: &Standby, outcome: Outcome) -> State {
        if standby.request == Some(Request::Claim) {
            State::Withdrawing { outcome, until: now.plus(WITHDRAWAL) }
        } else {
            self.leave_for_good(now, outcome)
        }
    }

    pub(super) fn leave_for_good(&mut self, now: BootInstant, outcome: Outcome) -> State {
        if self.claim_in_doubt {
            State::Releasing(Releasing::begun(now, None, Then::End(outcome), WITHDRAWAL))
        } else {
            self.end(outcome)
        }
    }
}
