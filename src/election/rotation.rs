//! A leader hands over of itself, and whoever gave the lease up of itself lets others go first.
//!
//! The hazards:
//!
//! - Where nobody else is there, a handover is an outage and nothing more. So those who wait are counted before, where
//!   that can be known; who was counted may be gone by then, so whoever handed over leads again after a while. A candidate
//!   that may not count would never hand over, so it does as where nobody can know.
//! - The times of a schedule are the hosts' own, and their clocks differ. Whoever takes over at such a time must not take
//!   it for due once more, so a leadership that has only begun passes it over.
//! - What was given up may still be in the store, under our own name: only another term shows that somebody has led.

use super::state::{Ending, LEAST_PAUSE, Leadership, Request, Standby, State, Then, Tree, Waiting};
use super::{Action, Core, Ended, Hold, Next, Notice, Obstacle, Outcome, Patience, Stop, StopReason};
use crate::lease::Term;
use crate::store::{ErrorKind, Holder, StoreError};
use crate::time::BootInstant;
use std::time::Duration;

/// When nobody was there to take over: from one count to the next.
const COUNT_AGAIN: Duration = Duration::from_mins(1);
/// When the store could not say who is there.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Of two clocks that a schedule goes by, none is this wrong.
const YOUNG: Duration = Duration::from_secs(30);
/// Whoever waits has claimed a free lease by then.
const LEAST_HOLD: Duration = Duration::from_secs(2);

/// How long one leadership is to last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    began: BootInstant,
    /// When to count those who could take over.
    next: BootInstant,
    counting: bool,
    /// Whether to count again when there is nobody, or to wait for the next time of a schedule.
    insists: bool,
}

impl Turn {
    pub(super) fn begun(now: BootInstant, lasts: Option<Duration>) -> Self {
        let next = lasts.map_or(BootInstant::NEVER, |lasts| now.plus(lasts));
        Self { began: now, next, counting: false, insists: lasts.is_some() }
    }
}

/// Whether those who wait may be counted, as far as was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Counting {
    Allowed,
    Denied,
}

/// We gave the lease up, and others go first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StandingBack {
    /// Ours: any other is somebody else's.
    term: Term,
    until: BootInstant,
}

impl Leadership {
    pub(super) fn turn_due(&self) -> BootInstant {
        let goes_on = self.has_begun() && self.ending.is_none() && self.asked.is_none();
        if goes_on && !self.turn.counting { self.turn.next } else { BootInstant::NEVER }
    }

    pub(super) fn count_standbys(&mut self, actions: &mut Vec<Action>) {
        self.turn.counting = true;
        self.turn.next = BootInstant::NEVER;
        actions.push(Action::CountStandbys);
    }
}

/// A time of the schedule has come.
pub(super) fn turn_over(now: BootInstant, state: &mut State) {
    match state {
        State::Leading(leadership) => {
            if now.since(leadership.turn.began) >= YOUNG {
                leadership.turn.next = now;
            }
        }
        State::Standby(_) | State::Withdrawing { .. } | State::Releasing(_) | State::Ended => {}
    }
}

impl Core {
    pub(super) fn counted(
        &mut self,
        now: BootInstant,
        state: &mut State,
        answer: Result<Option<usize>, StoreError>,
        actions: &mut Vec<Action>,
    ) -> Next {
        match state {
            State::Leading(leadership) if leadership.turn.counting => {
                leadership.turn.counting = false;
                match answer {
                    Ok(Some(0)) => {
                        if leadership.turn.insists {
                            leadership.turn.next = now.plus(self.random.about(COUNT_AGAIN));
                        }
                        actions.push(Action::Say(Notice::Staying("nobody else is there".to_owned())));
                        None
                    }
                    // While the store denies everything, COMMAND goes on for as long as its lease lasts.
                    Err(error) if error.kind == ErrorKind::Denied && leadership.failures == 0 => {
                        if self.counting == Counting::Allowed {
                            self.counting = Counting::Denied;
                            actions.push(Action::Say(Notice::Uncounted(error.message)));
                        }
                        self.relinquish(now, leadership, actions)
                    }
                    Err(error) => {
                        leadership.turn.next = now.plus(self.random.about(ASK_AGAIN));
                        actions.push(Action::Say(Notice::Staying(error.message)));
                        None
                    }
                    Ok(Some(_) | None) => self.relinquish(now, leadership, actions),
                }
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => {
                None
            }
        }
    }

    fn relinquish(&mut self, now: BootInstant, leadership: &mut Leadership, actions: &mut Vec<Action>) -> Next {
        let (drain, hooks) = (self.settings.drain, self.settings.timing.hooks.around_a_stop());
        if leadership.ending.is_some() || leadership.asked.is_some() {
            // COMMAND may be started again after this, and then it is still our turn to go.
            leadership.turn.next = now;
            return None;
        }
        let term = leadership.term;
        match leadership.tree {
            Tree::Idle { .. } => {
                actions.push(Action::Say(Notice::Relinquishing));
                let hold = self.after_turn(term);
                self.ends_between_runs(now, leadership, Ended::Relinquished, actions);
                return Some(self.give_back(now, leadership, Then::Held(hold), actions));
            }
            Tree::Alive { .. } => {
                actions.push(Action::Say(Notice::Relinquishing));
                if let Some(drain) = drain {
                    leadership.seize_after(now, drain.saturating_add(hooks));
                }
                leadership.ending = Some(Ending::Relinquished);
                actions.push(Action::Stop(Stop::Orderly { reason: StopReason::Relinquished, kill_after: drain }));
            }
            Tree::Seized => {}
        }
        None
    }

    pub(super) fn after_turn(&self, term: Term) -> Hold {
        let left = (4 * self.settings.timing.retry_interval).max(LEAST_HOLD);
        Hold::StandingBack { term, said: "after this one's turn".to_owned(), left }
    }

    /// Nobody else may be there, or COMMAND may fail everywhere: this is then the pause between two rows of restarts.
    pub(super) fn after_restarts(&self, term: Term, restarts: u32) -> Hold {
        let timing = self.settings.timing;
        let left = (2 * timing.lease).max(4 * timing.retry_interval);
        Hold::StandingBack { term, said: format!("after {restarts} restarts in vain"), left }
    }

    /// The lease was released, so others may have it from now on.
    pub(super) fn stand_back(
        &mut self,
        now: BootInstant,
        hold: Hold,
        term: Term,
        left: Duration,
        actions: &mut Vec<Action>,
    ) -> State {
        self.standing_back = Some(StandingBack { term, until: now.plus(left) });
        let next = self.next_claim(now);
        if self.settings.patience == Patience::Once {
            return self.leave_for_good(now, Outcome::NotAcquired(Some(Obstacle::Hold(hold))), actions);
        }
        actions.push(Action::Say(Notice::Held(hold.clone())));
        self.waiting = Waiting { until: self.waiting.until, error: None, holder: None, hold: Some(hold) };
        State::Standby(Standby::about_to(Request::Claim, next))
    }

    pub(super) fn stands_back(&self, now: BootInstant) -> bool {
        self.standing_back.as_ref().is_some_and(|back| now < back.until)
    }

    /// When to claim what was seen free. Before that it is looked whether somebody else has led.
    pub(super) fn next_claim(&mut self, now: BootInstant) -> BootInstant {
        match &self.standing_back {
            Some(back) if now < back.until => {
                let pause = self.random.about(self.settings.timing.retry_interval);
                now.plus(pause.max(LEAST_PAUSE)).min(back.until)
            }
            Some(_) | None => now,
        }
    }

    /// Somebody else who leads has had the turn that we left.
    pub(super) fn turn_taken(&mut self, holder: &Holder) {
        self.standing_back.take_if(|back| holder.term != Some(back.term));
    }
}
