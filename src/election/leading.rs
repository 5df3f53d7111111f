//! A candidate that holds the lease.
//!
//! The hazard: several things may end a leadership, in any order or at once: COMMAND ends, a signal comes, an operator
//! orders it, the lease is lost, its deadline comes, the guard dies. Then the tree takes time to die. The first cause
//! says how the leadership ended, a certain loss makes the stop hurry, and only [`TreeEvent::Dead`] ends the
//! leadership.

use super::job_gate::{Entry, Permit};
use super::restart::Runs;
use super::rotation::Rotation;
use super::state::{LEAST_PAUSE, Leadership, Reading, Releasing, Settling, State, Then, Tree};
use super::{
    Action, CommandEnd, Core, Directives, Ended, HeldBack, Hold, Loss, Next, Notice, OnLoss, Outcome, Patience, Ran,
    STOPPED, Stop, TreeEvent, WITHDRAWAL,
};
use crate::store::{Answer, Grant, Renewal};
use crate::time::BootInstant;
use std::time::Duration;

/// How long a killed tree has to die before a log line says that it does not.
const UNDYING_AFTER: Duration = Duration::from_secs(10);

impl Core {
    /// Does what is due while the candidate leads: requests first, and then what the time means for the tree.
    pub(super) fn pass_leading(&mut self, now: BootInstant, leadership: &mut Leadership) -> Next {
        if let Tree::Idle { not_before } = &mut leadership.tree
            && not_before.is_some_and(|not_before| now >= not_before)
        {
            *not_before = None;
            self.prepare_start(now, leadership);
        }
        self.renew_if_due(now, leadership);
        if now >= leadership.reading_due() {
            leadership.reading.in_flight = Some(now);
            leadership.reading.next = BootInstant::NEVER;
            self.actions.push(Action::ReadOrders);
        }
        if now >= leadership.entry_due() {
            leadership.entry.in_flight = true;
            leadership.entry.begun = true;
            self.actions.push(Action::Book { term: leadership.term, behind: self.behind.clone() });
        }
        if now >= leadership.rotation_due() {
            leadership.rotation.counting = true;
            leadership.rotation.next = BootInstant::NEVER;
            self.actions.push(Action::CountStandbys);
        }
        let deadline = self.deadline(leadership);
        match leadership.tree {
            Tree::Idle { .. } if now >= deadline.kill_at => return self.lost(now, leadership, Loss::DeadlinePassed),
            Tree::Idle { not_before } => {
                // Starts COMMAND as soon as everything allows it.
                if not_before.is_none()
                    && leadership.reading.cleared
                    && leadership.entry.permit != Permit::Missing
                    && self.standby_tasks.are_dead()
                    && leadership.valid_until.since(now) >= self.least_to_start()
                {
                    let begins = now.plus(self.settings.timing.hooks.pre_start);
                    let overrun_at = self.settings.max_run.map_or(BootInstant::NEVER, |most| begins.plus(most));
                    leadership.tree = Tree::Alive { seize_at: BootInstant::NEVER, overrun_at };
                    leadership.begin_run(now);
                    self.actions.push(Action::Start { term: leadership.term, deadline, takeover: leadership.takeover });
                }
            }
            Tree::Alive { seize_at, overrun_at } => {
                // Kills the tree without the guard when the guard is late.
                let backstop_at = self.backstop_at(leadership);
                if now >= backstop_at.min(seize_at) {
                    leadership.tree = Tree::Seized { tell_at: now.plus(UNDYING_AFTER) };
                    self.actions.push(Action::Seize);
                }
                if now >= backstop_at {
                    return self.lost(now, leadership, Loss::DeadlinePassed);
                }
                if leadership.ending.is_none() {
                    if now >= deadline.term_at {
                        return self.lost(now, leadership, Loss::DeadlinePassed);
                    }
                    if now >= overrun_at {
                        self.overran(now, leadership);
                    }
                }
            }
            Tree::Seized { tell_at } => {
                if now >= tell_at {
                    leadership.tree = Tree::Seized { tell_at: BootInstant::NEVER };
                    self.say(Notice::Undying(UNDYING_AFTER));
                }
            }
        }
        None
    }

    /// COMMAND need not wait any longer.
    pub(super) fn prepare_start(&self, now: BootInstant, leadership: &mut Leadership) {
        leadership.reading.begin_again(now);
        if leadership.valid_until.since(now) < self.least_to_start() {
            leadership.next_renewal = leadership.next_renewal.min(now);
        }
    }

    fn renew_if_due(&mut self, now: BootInstant, leadership: &mut Leadership) {
        if now >= leadership.valid_until {
            // Nothing is left to renew. Without this, the loop would spin while a tree that is hard to kill dies.
            leadership.next_renewal = BootInstant::NEVER;
        }
        if now < leadership.renewal_due() {
            return;
        }
        // One renewal without an answer may just be slow. After two, the orders that they would have brought are read.
        if leadership.in_flight > 1 {
            leadership.read_orders_soon(now);
        }
        leadership.in_flight += 1;
        leadership.sequence += 1;
        leadership.last_sent = now;
        leadership.next_renewal = now.plus(self.patience(now, leadership));
        self.actions.push(Action::Renew { term: leadership.term, sequence: leadership.sequence });
    }

    pub(super) fn lead(&mut self, now: BootInstant, sent: BootInstant, grant: &Grant) -> Leadership {
        let timing = self.settings.timing;
        let valid_until = if self.settings.expires { sent.plus(timing.lease) } else { BootInstant::NEVER };
        let not_before = grant.start_after.filter(|&not_before| now < not_before);
        // After a slow answer too little of the lease may be left: then renew at once, and start after that.
        let next_renewal =
            if valid_until.since(now) < self.least_to_start() { now } else { sent.plus(timing.renew_interval) };
        self.store_answered();
        self.standing_back = None;
        self.say(Notice::Leading(grant.term));
        if let Some(not_before) = not_before {
            self.say(Notice::HoldingBack(grant.takeover.into(), not_before.since(now)));
        }
        Leadership {
            term: grant.term,
            takeover: grant.takeover,
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
            rotation: Rotation::begun(now, self.settings.relinquish_after),
            ending: None,
            lost: None,
            ordered: None,
            asked: None,
            end: None,
            unready: false,
            interrupted: None,
        }
    }

    pub(super) fn renewed(
        &mut self,
        now: BootInstant,
        leadership: &mut Leadership,
        sent: BootInstant,
        answer: Answer<Renewal>,
        orders: Option<Directives>,
    ) -> Next {
        leadership.in_flight = leadership.in_flight.saturating_sub(1);
        match answer {
            Ok(Renewal::Renewed) => {
                self.prolong(now, leadership, sent);
                self.store_answered();
                self.renewal_brought(now, leadership, sent, orders)
            }
            // The later one brings the orders.
            Ok(Renewal::Overtaken) => None,
            Ok(Renewal::Lost(holder)) => self.lost(now, leadership, holder.map_or(Loss::RecordGone, Loss::TakenBy)),
            Ok(Renewal::Revoked) => self.lost(now, leadership, Loss::Revoked),
            Err(error) => {
                leadership.failures += 1;
                let most = self.longest_pause(now, leadership, 4);
                let pause = self.random.backoff(leadership.failures, most);
                leadership.next_renewal = leadership.next_renewal.min(now.plus(pause));
                self.in_trouble(now, error.message, leadership.failures > 1);
                leadership.read_orders_soon(now);
                None
            }
        }
    }

    /// The longest time between two attempts to renew. An outage may end shortly before the stop signal is due, so this
    /// is at most one of `parts` of the time until then.
    pub(super) fn longest_pause(&self, now: BootInstant, leadership: &Leadership, parts: u32) -> Duration {
        let most = self.settings.timing.renew_interval.min(self.settings.timing.retry_interval);
        let left = self.until_stop(now, leadership);
        if left.is_zero() { most } else { most.min((left / parts).max(LEAST_PAUSE)) }
    }

    /// The time from a renewal that is not answered to the next: half of what is left until the stop signal is due. The
    /// next one helps only if the first was lost with its connection. A server that was frozen has to answer both, and
    /// those of all other leaders at the same moment, so there are few.
    fn patience(&self, now: BootInstant, leadership: &Leadership) -> Duration {
        let left = self.until_stop(now, leadership);
        if left.is_zero() {
            return self.longest_pause(now, leadership, 2);
        }
        self.settings.timing.renew_interval.min((left / 2).max(LEAST_PAUSE))
    }

    /// The time until the stop signal is due. A guard that is woken late sends it earlier.
    fn until_stop(&self, now: BootInstant, leadership: &Leadership) -> Duration {
        self.deadline(leadership).earlier(self.late.extra).term_at.since(now)
    }

    /// The renewal that was sent at `sent` was granted.
    fn prolong(&mut self, now: BootInstant, leadership: &mut Leadership, sent: BootInstant) {
        let timing = self.settings.timing;
        // Leaders that start together, or come out of one outage, renew at the same moment. Without a random pause they
        // would do so from then on.
        let pause = if leadership.failures > 0 || leadership.sequence == 1 {
            self.random.between((timing.renew_interval / 4, timing.renew_interval))
        } else {
            timing.renew_interval
        };
        leadership.failures = 0;
        if self.settings.expires {
            leadership.valid_until = leadership.valid_until.max(sent.plus(timing.lease));
        }
        leadership.next_renewal = sent.plus(pause);
        if leadership.in_flight > 0 {
            // Later renewals that are under way set the pace.
            let patience = self.patience(now, leadership);
            leadership.next_renewal = leadership.next_renewal.max(leadership.last_sent.plus(patience));
        }
        if self.settings.expires && matches!(leadership.tree, Tree::Alive { .. }) {
            self.actions.push(Action::Extend(timing.deadline(leadership.valid_until)));
        }
    }

    pub(super) fn tree(&mut self, now: BootInstant, state: &mut State, event: &TreeEvent) -> Next {
        let Some(leadership) = state.leading() else {
            assert!(*event != TreeEvent::Dead, "only a leadership has a tree");
            return None;
        };
        match *event {
            TreeEvent::NotStarted(error) => {
                leadership.ending.get_or_insert(Ended::NotStarted(error));
            }
            TreeEvent::Ended(end) => {
                leadership.end = Some(end);
                leadership.runs.ended.get_or_insert(now);
                leadership.seize_after(now, self.settings.timing.stop_time());
                leadership.ending.get_or_insert(Ended::ByItself(end));
            }
            TreeEvent::Started => self.command_started(now, leadership),
            TreeEvent::Unready(end) => self.unready(now, leadership, end),
            TreeEvent::Unhealthy(unhealthy) => self.unhealthy(now, leadership, unhealthy),
            TreeEvent::Interrupted(interrupt) => leadership.interrupted = Some(interrupt),
            TreeEvent::Overran if leadership.ending.is_none() => self.overran(now, leadership),
            TreeEvent::Overran => {}
            TreeEvent::DeadlineReached => return self.lost(now, leadership, Loss::DeadlinePassed),
            TreeEvent::GuardFailed => {
                // The backstop kills the tree now, if it does not fail as well.
                leadership.seize_after(now, Duration::ZERO);
                if leadership.lost.is_none() {
                    leadership.lost = Some(Loss::GuardFailed);
                    self.say(Notice::Lost(Loss::GuardFailed));
                }
                leadership.ending.get_or_insert(Ended::Lost(Loss::GuardFailed));
            }
            TreeEvent::Dead => return self.tree_dead(now, leadership),
        }
        None
    }

    fn lost(&mut self, now: BootInstant, leadership: &mut Leadership, loss: Loss) -> Next {
        // It is said once, and once more when it becomes certain.
        if leadership.is_lost_for_certain() || (leadership.lost.is_some() && !loss.is_certain()) {
            return None;
        }
        leadership.lost = Some(loss.clone());
        self.say(Notice::Lost(loss.clone()));
        match leadership.tree {
            Tree::Idle { .. } => {
                let then = self.after_loss(loss.clone());
                let then = self.ends_between_runs(now, leadership, Ended::Lost(loss), then);
                self.end_leadership();
                Some(self.release(now, leadership, then, None, self.settings.shares_lock))
            }
            Tree::Alive { .. } | Tree::Seized { .. } => {
                self.lost_with_a_tree(now, leadership, loss);
                None
            }
        }
    }

    fn lost_with_a_tree(&mut self, now: BootInstant, leadership: &mut Leadership, loss: Loss) {
        let definite = loss.is_certain();
        let reason = loss.reason();
        let first = leadership.ending.is_none();
        // An orderly stop that is followed by a loss keeps its exit status, but has to hurry.
        let is_lost = match leadership.ending {
            None => true,
            // Without this, COMMAND would be started again once its tree is dead.
            Some(Ended::ByItself(end)) => definite && self.would_restart(leadership, end),
            Some(Ended::Lost(_)) => definite,
            Some(_) => false,
        };
        if is_lost {
            leadership.ending = Some(Ended::Lost(loss));
        }
        // The guard sees the deadline by itself, unless it is late and reads a later deadline first.
        if definite || first {
            leadership.seize_after(now, self.settings.timing.stop_time());
            self.actions.push(Action::Stop(Stop::Losing { reason, certain: definite }));
        }
    }

    /// As timeout(1) does: the stop signal, and SIGKILL after the grace. The lease is renewed until COMMAND has ended.
    /// The guard counts as well, and does this without the order if the candidate is stopped.
    fn overran(&mut self, now: BootInstant, leadership: &mut Leadership) {
        self.say(Notice::Overran(self.settings.max_run.unwrap_or_default()));
        self.stop_in_order(now, leadership, Ended::Overran, Some(self.settings.timing.stop_grace));
    }

    /// Has the guard stop a tree whose lease goes on. If it does not by `kill_after` and the time of the hooks, the
    /// tree is killed without it.
    pub(super) fn stop_in_order(
        &mut self,
        now: BootInstant,
        leadership: &mut Leadership,
        cause: Ended,
        kill_after: Option<Duration>,
    ) {
        if let Some(kill_after) = kill_after {
            leadership.seize_after(now, kill_after.saturating_add(self.settings.timing.hooks.around_a_stop()));
        }
        self.actions.push(Action::Stop(Stop::Orderly { reason: cause.reason(), kill_after }));
        leadership.ending = Some(cause);
    }

    fn tree_dead(&mut self, now: BootInstant, leadership: &mut Leadership) -> Next {
        if self.restarts(now, leadership) {
            return None;
        }
        let ours = self.settings.shares_lock || !leadership.is_lost_for_certain();
        let ending = leadership.ending.take().unwrap_or(Ended::Lost(Loss::GuardFailed));
        // The entry of a run that never started is removed.
        let has_run = leadership.entry.begun && !leadership.unready;
        if has_run && leadership.end == Some(CommandEnd::Exited(0)) && !matches!(ending, Ended::ByItself(_)) {
            // A COMMAND that was stopped may exit with 0. That does not mean that the job is done.
            leadership.end = Some(leadership.asked.map_or(STOPPED, CommandEnd::Signalled));
        }
        if !matches!(ending, Ended::Unhealthy(_)) {
            self.unhealthy = 0;
        }
        self.end_leadership();
        self.actions.push(Action::Ended { term: leadership.term, how: ending.clone() });
        let then = self.after_end(now, ending.clone(), leadership, has_run);
        let ran = has_run.then_some(Ran { how: ending, end: leadership.end });
        Some(self.release(now, leadership, then, ran, ours))
    }

    /// What the candidate does after a leadership that ended like this.
    fn after_end(&mut self, now: BootInstant, ending: Ended, leadership: &Leadership, has_run: bool) -> Then {
        let term = leadership.term;
        let end = leadership.end;
        let once = self.settings.patience == Patience::Once && !leadership.unready;
        let stopped = Then::End(Outcome::Ended(end.unwrap_or(STOPPED)));
        let left_on = |signal| {
            Then::End(match end {
                Some(end) => Outcome::Ended(end),
                None if leadership.unready => Outcome::Interrupted(signal),
                None => Outcome::Ended(CommandEnd::Signalled(signal)),
            })
        };
        let asked = leadership.asked.map(left_on);
        let again = has_run
            && end != Some(CommandEnd::Exited(0))
            && leadership.entry.permit == Permit::Again
            && asked.is_none()
            && !once
            && leadership.interrupted.is_none();
        // A job leaves after its last run, whatever ended that.
        let has_run = has_run && !again;
        let hold = match ending {
            Ended::ByItself(_) | Ended::Overran | Ended::Unhealthy(_) if again => {
                Hold::standing_back(term, "after a run that failed", self.turn())
            }
            Ended::ByItself(end) => {
                return Then::End(match leadership.interrupted {
                    Some(interrupt) if end == CommandEnd::Signalled(interrupt.signal) => Outcome::EndedByKey(interrupt),
                    Some(_) | None => Outcome::Ended(end),
                });
            }
            Ended::NotStarted(error) => return Then::End(Outcome::NotStarted(error)),
            Ended::Asked(signal) => return left_on(signal),
            Ended::Overran => return Then::End(Outcome::Overran),
            // With `-n`, a candidate that has led leaves with COMMAND's status. So does a job, which has had its run.
            Ended::GaveUp { end, .. } if once => return Then::End(Outcome::Ended(end)),
            Ended::Relinquished if once => return stopped,
            Ended::Unhealthy(_) if once || has_run => {
                let failed = end.filter(|end| *end != CommandEnd::Exited(0));
                return Then::End(Outcome::Ended(failed.unwrap_or(STOPPED)));
            }
            Ended::Paused | Ended::SteppedDown if once || has_run => return stopped,
            Ended::Lost(loss) => {
                // The job's run is over, even if another candidate tries again.
                let left = asked.or_else(|| (once || has_run).then(|| Then::End(Outcome::Lost(loss.clone()))));
                return left.unwrap_or_else(|| self.after_loss(loss));
            }
            Ended::GaveUp { restarts, .. } => self.after_restarts(term, restarts),
            Ended::Unready(failed) => self.after_unready(term, failed),
            Ended::Relinquished => self.after_rotation(term),
            Ended::Unhealthy(_) => self.after_unhealthy(term),
            Ended::Paused | Ended::SteppedDown => {
                let hold = leadership.ordered.clone().expect("an order has ended it");
                if let Hold { why: HeldBack::HandedOver(term), left: Some(left), .. } = hold {
                    // Other candidates have this long from now, however long COMMAND took to end.
                    self.yielding = Some((term, now.plus(left)));
                }
                hold
            }
        };
        asked.unwrap_or_else(|| {
            self.begin_waiting(now);
            Then::Held(hold)
        })
    }

    fn after_loss(&mut self, loss: Loss) -> Then {
        match self.settings.on_loss {
            // Something on this host kills guards: let another host try, and do not loop without a pause.
            OnLoss::Standby if loss == Loss::GuardFailed => {
                Then::Standby { pause: self.random.about(self.settings.timing.retry_interval) }
            }
            OnLoss::Standby => Then::Standby { pause: Duration::ZERO },
            OnLoss::Exit => Then::End(Outcome::Lost(loss)),
        }
    }

    /// Releases the lease of a leadership without a tree.
    pub(super) fn give_back(&mut self, now: BootInstant, leadership: &Leadership, then: Then) -> State {
        self.end_leadership();
        self.release(now, leadership, then, None, true)
    }

    /// Begins the release, if the lease is `ours`. A run that may be booked is settled first.
    fn release(
        &mut self,
        now: BootInstant,
        leadership: &Leadership,
        then: Then,
        ran: Option<Ran>,
        ours: bool,
    ) -> State {
        let booked = leadership.entry.begun;
        if !ours && !booked {
            return self.go_on(now, then);
        }
        let mut releasing = Releasing::begun(now, Some(leadership.term), then, leadership.valid_until.since(now));
        releasing.ours = ours;
        if booked {
            let time = (releasing.give_up.since(now) / 2).max(WITHDRAWAL).min(self.settings.timing.lease);
            releasing.settling = Some(Settling { ran, give_up: now.plus(time), asked: false });
        }
        State::Releasing(releasing)
    }

    fn end_leadership(&mut self) {
        self.actions.push(Action::ForgetRenewals);
    }
}
