//! A candidate that holds the lease.
//!
//! The hazard: what ends a leadership comes in any order and at once (COMMAND ends, somebody asks, operators order, the
//! lease is lost, its deadline comes, the guard dies), and then the tree takes its time to die. The first of them says
//! how it ended, a definite loss makes it hurry, and only [`TreeEvent::Dead`] ends it.

use super::job_gate::Entry;
use super::restart::Runs;
use super::rotation::Turn;
use super::state::{Ending, LEAST_PAUSE, Leadership, MOST_RENEWALS_IN_FLIGHT, Reading, State, Then, Tree};
use super::{
    Action, CommandEnd, Election, Ended, Hold, Loss, Notice, OnLoss, Outcome, Patience, Ran, STOPPED, Stop, StopReason,
    TreeEvent,
};
use crate::lease::Deadline;
use crate::store::{Grant, Renewal, StoreError};
use crate::time::BootInstant;
use std::time::Duration;

impl Election {
    pub(super) fn pass_leading(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        let timing = self.settings.timing;
        let State::Leading(leadership) = &mut self.state else { unreachable!("only a leader comes here") };
        let deadline = if self.settings.expires { timing.deadline(leadership.valid_until) } else { Deadline::NONE };
        let lost = leadership.is_lost_for_certain();
        if let Tree::Idle { not_before } = &mut leadership.tree
            && not_before.is_some_and(|not_before| now >= not_before)
        {
            *not_before = None;
            leadership.reading.begin_anew(now);
            if leadership.valid_until.since(now) < timing.least_to_start() {
                leadership.next_renewal = now;
            }
        }
        if !lost
            && now >= leadership.next_renewal
            && now < leadership.valid_until
            && leadership.in_flight < MOST_RENEWALS_IN_FLIGHT
        {
            leadership.in_flight += 1;
            leadership.sequence += 1;
            leadership.last_sent = now;
            leadership.next_renewal = now.plus(leadership.pause(timing, now, 2));
            actions.push(Action::Renew { term: leadership.term, sequence: leadership.sequence });
            if leadership.reading.cleared && leadership.ending.is_none() {
                leadership.reading.next = now;
            }
        }
        if now >= leadership.reading_due() {
            leadership.reading.in_flight = true;
            leadership.reading.next = BootInstant::NEVER;
            actions.push(Action::ReadOrders);
        }
        if now >= leadership.entry_due() {
            leadership.entry.in_flight = true;
            leadership.entry.begun = true;
            actions.push(Action::Book { term: leadership.term });
        }
        if now >= leadership.turn_due() {
            leadership.count_standbys(actions);
        }
        if now >= leadership.valid_until {
            // Nothing is left to renew; and who waits for a tree that is hard to kill must not spin.
            leadership.next_renewal = BootInstant::NEVER;
        }
        match &mut leadership.tree {
            Tree::Idle { not_before } => {
                if now >= deadline.kill_at {
                    self.lost(now, Loss::DeadlinePassed, actions);
                } else if not_before.is_none()
                    && leadership.reading.cleared
                    && leadership.entry.stands
                    && self.standby_tasks.are_away()
                    && leadership.valid_until.since(now) >= timing.least_to_start()
                {
                    let overrun_at =
                        self.settings.max_run.map_or(BootInstant::NEVER, |most| now.plus(timing.hooks.lead).plus(most));
                    leadership.tree = Tree::Alive { seize_at: BootInstant::NEVER, overrun_at };
                    leadership.begin_run(now);
                    actions.push(Action::Start { term: leadership.term, deadline });
                }
            }
            Tree::Alive { seize_at, overrun_at } => {
                let overran = now >= *overrun_at;
                if now >= deadline.backstop_at.min(*seize_at) {
                    leadership.tree = Tree::Seized;
                    actions.push(Action::Seize);
                }
                if now >= deadline.term_at && leadership.ending.is_none() {
                    self.lost(now, Loss::DeadlinePassed, actions);
                } else if overran && leadership.ending.is_none() {
                    self.overran(now, actions);
                }
            }
            Tree::Seized => {}
        }
    }

    pub(super) fn lead(&mut self, now: BootInstant, sent: BootInstant, grant: &Grant, actions: &mut Vec<Action>) {
        let timing = self.settings.timing;
        let valid_until = if self.settings.expires { sent.plus(timing.lease) } else { BootInstant::NEVER };
        let not_before = grant.start_after.filter(|&not_before| now < not_before);
        // Too little may be left when the answer was slow: then renew at once, and start on that.
        let next_renewal =
            if valid_until.since(now) < timing.least_to_start() { now } else { sent.plus(timing.renew_interval) };
        self.store_answered(actions);
        self.standing_back = None;
        actions.push(Action::Say(Notice::Leading(grant.term)));
        if let Some(not_before) = not_before {
            actions.push(Action::Say(Notice::HoldingBack(not_before.since(now))));
        }
        self.state = State::Leading(Leadership {
            term: grant.term,
            valid_until,
            next_renewal,
            last_sent: sent,
            in_flight: 0,
            failures: 0,
            sequence: 0,
            tree: Tree::Idle { not_before },
            entry: Entry::due_at(now, self.settings.job_gate),
            reading: Reading::due_at(now),
            runs: Runs::none_yet(),
            turn: Turn::begun(now, self.settings.relinquish_after),
            ending: None,
            asked: None,
            end: None,
            unready: false,
        });
    }

    /// Only the store knows whether the lease was lost: the next renewal asks it, at once.
    pub(super) fn doubted(&mut self, now: BootInstant) {
        match &mut self.state {
            State::Leading(leadership) => {
                let soonest = now.max(leadership.last_sent.plus(LEAST_PAUSE));
                leadership.next_renewal = leadership.next_renewal.min(soonest);
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Releasing(_) | State::Ended => {}
        }
    }

    pub(super) fn renewed(
        &mut self,
        now: BootInstant,
        sent: BootInstant,
        answer: Result<Renewal, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let timing = self.settings.timing;
        let expires = self.settings.expires;
        match &mut self.state {
            State::Leading(leadership) => {
                leadership.in_flight = leadership.in_flight.saturating_sub(1);
                match answer {
                    Ok(Renewal::Renewed) => {
                        leadership.failures = 0;
                        if expires {
                            leadership.valid_until = leadership.valid_until.max(sent.plus(timing.lease));
                        }
                        // While later renewals are under way the pace is theirs.
                        let due = sent.plus(timing.renew_interval);
                        leadership.next_renewal = if leadership.in_flight > 0 {
                            due.max(leadership.last_sent.plus(leadership.pause(timing, now, 2)))
                        } else {
                            due
                        };
                        if expires && matches!(leadership.tree, Tree::Alive { .. }) {
                            actions.push(Action::Extend(timing.deadline(leadership.valid_until)));
                        }
                        self.store_answered(actions);
                    }
                    Ok(Renewal::Overtaken) => {}
                    Ok(Renewal::Lost(holder)) => {
                        self.lost(now, holder.map_or(Loss::RecordGone, Loss::TakenBy), actions);
                    }
                    Err(error) => {
                        leadership.failures += 1;
                        let most = leadership.pause(timing, now, 4);
                        let pause = self.random.backoff(leadership.failures, most);
                        leadership.next_renewal = leadership.next_renewal.min(now.plus(pause));
                        let say = leadership.failures > 1;
                        self.in_trouble(now, error.message, say, actions);
                    }
                }
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Releasing(_) | State::Ended => {}
        }
    }

    pub(super) fn tree(&mut self, now: BootInstant, event: &TreeEvent, actions: &mut Vec<Action>) {
        let stop_time = self.settings.timing.stop_time();
        match &mut self.state {
            State::Leading(leadership) => match *event {
                TreeEvent::NotStarted(error) => {
                    leadership.ending.get_or_insert(Ending::NotStarted(error));
                }
                TreeEvent::Ended(end) => {
                    leadership.end = Some(end);
                    leadership.runs.end_of_run(now);
                    leadership.seize_after(now, stop_time);
                    leadership.ending.get_or_insert(Ending::ByItself(end));
                }
                TreeEvent::Started => self.command_started(now),
                TreeEvent::Unready(end) => self.unready(now, end, actions),
                TreeEvent::DeadlineReached => {
                    if leadership.ending.is_none() {
                        self.lost(now, Loss::DeadlinePassed, actions);
                    }
                }
                TreeEvent::GuardFailed => {
                    leadership.tree = Tree::Seized;
                    if leadership.ending.is_none() {
                        leadership.ending = Some(Ending::Lost(Loss::GuardFailed));
                        actions.push(Action::Say(Notice::Lost(Loss::GuardFailed)));
                    }
                }
                TreeEvent::Dead => self.tree_dead(now, actions),
            },
            State::Standby(_) | State::Withdrawing { .. } | State::Releasing(_) | State::Ended => {
                assert!(*event != TreeEvent::Dead, "only a leadership has a tree");
            }
        }
    }

    pub(super) fn lost(&mut self, now: BootInstant, loss: Loss, actions: &mut Vec<Action>) {
        let stop_time = self.settings.timing.stop_time();
        let State::Leading(leadership) = &self.state else { unreachable!("only a leader loses") };
        let restarts = matches!(leadership.ending, Some(Ending::ByItself(end)) if self.would_restart(end));
        let State::Leading(leadership) = &mut self.state else { unreachable!("only a leader loses") };
        let definite = loss.is_certain();
        if leadership.is_lost_for_certain() {
            return;
        }
        actions.push(Action::Say(Notice::Lost(loss.clone())));
        match leadership.tree {
            Tree::Idle { .. } => {
                self.ends_between_runs(now, Ended::Lost(loss.clone()), actions);
                let State::Leading(leadership) = &self.state else { unreachable!("only a leader loses") };
                let (term, left, entered) =
                    (leadership.term, leadership.valid_until.since(now), leadership.entry.begun);
                self.end_leadership(actions);
                let then = self.after_loss(loss);
                if entered {
                    self.release(now, Some(term), then, left);
                    self.settle_first(now, None, false);
                } else {
                    self.go_on(now, then, actions);
                }
            }
            Tree::Alive { .. } | Tree::Seized => {
                let first = leadership.ending.is_none();
                // An orderly stop that is overtaken by a loss stays a stop for the exit status, but has to hurry.
                match &mut leadership.ending {
                    None => leadership.ending = Some(Ending::Lost(loss)),
                    // What is left of its tree dies, and then it would be started again.
                    Some(Ending::ByItself(_)) if restarts && definite => leadership.ending = Some(Ending::Lost(loss)),
                    Some(Ending::Lost(cause)) if definite => *cause = loss,
                    Some(
                        Ending::Lost(_)
                        | Ending::ByItself(_)
                        | Ending::NotStarted(_)
                        | Ending::Unready(_)
                        | Ending::Asked
                        | Ending::Overran
                        | Ending::Ordered(_)
                        | Ending::GaveUp { .. }
                        | Ending::Relinquished,
                    ) => {}
                }
                if definite {
                    leadership.next_renewal = BootInstant::NEVER;
                }
                // The guard sees the deadline by itself, unless it is late and first hears of a later one.
                if definite || first {
                    leadership.seize_after(now, stop_time);
                    actions.push(Action::Stop(Stop::Losing { certain: definite }));
                }
            }
        }
    }

    /// As timeout(1) does: the stop signal, and SIGKILL after the grace. The lease is renewed until COMMAND has ended.
    pub(super) fn overran(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        let (grace, stop_time) = (self.settings.timing.stop_grace, self.settings.timing.stop_time());
        let State::Leading(leadership) = &mut self.state else { unreachable!("only a leader runs a command") };
        actions.push(Action::Say(Notice::Overran(self.settings.max_run.unwrap_or_default())));
        leadership.seize_after(now, stop_time);
        leadership.ending = Some(Ending::Overran);
        actions.push(Action::Stop(Stop::Orderly { reason: StopReason::Overran, kill_after: Some(grace) }));
    }

    pub(super) fn tree_dead(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        if self.restarts(now, actions) {
            return;
        }
        let State::Leading(leadership) = &mut self.state else { unreachable!("only a leadership has a tree") };
        let ending = leadership.ending.take().unwrap_or(Ending::Lost(Loss::GuardFailed));
        let (term, asked, mut end) = (leadership.term, leadership.asked, leadership.end);
        let entered = leadership.entry.begun;
        // An entry without a run is withdrawn.
        let has_run = entered && !leadership.unready;
        if has_run && end == Some(CommandEnd::Exited(0)) && !matches!(ending, Ending::ByItself(_)) {
            // A COMMAND that was stopped in order may say 0: the work of a job is not done for that.
            end = Some(asked.map_or(STOPPED, CommandEnd::Signalled));
        }
        let left = leadership.valid_until.since(now);
        let unready = leadership.unready;
        let when_asked = asked.map(|signal| match end {
            Some(end) => Outcome::Ended(end),
            None if unready => Outcome::Interrupted(signal),
            None => Outcome::Ended(CommandEnd::Signalled(signal)),
        });
        self.end_leadership(actions);
        let how = ending.told(asked);
        actions.push(Action::Ended { term, how: how.clone() });
        let (then, ours) = match ending {
            Ending::ByItself(end) => (Then::End(Outcome::Ended(end)), true),
            Ending::NotStarted(error) => (Then::End(Outcome::NotStarted(error)), true),
            Ending::Asked => (Then::End(when_asked.expect("asked is set before the ending")), true),
            Ending::Overran => (Then::End(Outcome::Overran), true),
            Ending::Unready(failed) => {
                self.begin_waiting(now);
                (when_asked.map_or_else(|| Then::Held(self.after_unready(term, failed)), Then::End), true)
            }
            Ending::GaveUp { end, .. } if self.settings.patience == Patience::Once => {
                (Then::End(Outcome::Ended(end)), true)
            }
            Ending::GaveUp { restarts, .. } => {
                self.begin_waiting(now);
                (Then::Held(self.after_restarts(term, restarts)), true)
            }
            // Who does not wait has led, and leaves with what came of it.
            Ending::Relinquished if self.settings.patience == Patience::Once => {
                (Then::End(Outcome::Ended(end.unwrap_or(STOPPED))), true)
            }
            Ending::Relinquished => {
                self.begin_waiting(now);
                (when_asked.map_or_else(|| Then::Held(self.after_turn(term)), Then::End), true)
            }
            Ending::Ordered(_) if has_run => (Then::End(Outcome::Ended(end.unwrap_or(STOPPED))), true),
            Ending::Ordered(hold) => {
                if let Hold::HandedOver { term, left, .. } = hold {
                    // Others have that long from now, however long COMMAND took to end.
                    self.yielding = Some((term, now.plus(left)));
                }
                self.begin_waiting(now);
                (when_asked.map_or(Then::Held(hold), Then::End), true)
            }
            Ending::Lost(loss) => {
                let ours = matches!(loss, Loss::DeadlinePassed | Loss::GuardFailed);
                let then = when_asked.map(Then::End);
                // Its run is over, whoever may try again.
                let then = then.or_else(|| has_run.then(|| Then::End(Outcome::Lost(loss.clone()))));
                (then.unwrap_or_else(|| self.after_loss(loss)), ours)
            }
        };
        if ours || entered {
            self.release(now, Some(term), then, left);
            if entered {
                self.settle_first(now, has_run.then_some(Ran { how, end }), ours);
            }
        } else {
            self.go_on(now, then, actions);
        }
    }

    pub(super) fn after_loss(&mut self, loss: Loss) -> Then {
        match self.settings.on_loss {
            // Something here kills guards: somebody else shall try, and we not in a hot loop.
            OnLoss::Standby if loss == Loss::GuardFailed => {
                Then::Standby { pause: self.random.about(self.settings.timing.retry_interval) }
            }
            OnLoss::Standby => Then::Standby { pause: Duration::ZERO },
            OnLoss::Exit => Then::End(Outcome::Lost(loss)),
        }
    }

    /// A leadership without a tree ends before it has begun.
    pub(super) fn give_back(&mut self, now: BootInstant, then: Then, actions: &mut Vec<Action>) {
        let State::Leading(leadership) = &self.state else { unreachable!("only a leader can give it back") };
        let (term, left, entered) = (leadership.term, leadership.valid_until.since(now), leadership.entry.begun);
        self.end_leadership(actions);
        self.release(now, Some(term), then, left);
        if entered {
            self.settle_first(now, None, true);
        }
    }

    pub(super) fn end_leadership(&mut self, actions: &mut Vec<Action>) {
        self.trouble = None;
        actions.push(Action::ForgetRenewals);
    }
}
