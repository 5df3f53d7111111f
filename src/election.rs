//! The election: a pure machine. Events go in, actions come out; it does no I/O, reads no clock and draws its
//! random numbers from a seed, so the same inputs give the same outputs.
//!
//! The hazards it is built around:
//!
//! - An answer may be lost after its request was applied. A claim or renewal without an answer is therefore
//!   neither a leadership nor a loss: the machine asks again (the store recognises the session), and before it
//!   leaves for good after a doubtful claim it releases, in case it had been granted.
//! - An answer may be late. A renewal counts from when it was *sent*; a later answer never moves the end of the
//!   lease backwards.
//! - The lease may be granted to us while we are asked to stop. Then COMMAND is not started; the lease goes back.
//! - Orders of operators are no part of the lease, and a read of them may be as old as the request for it. So they are
//!   read *after* every grant and before COMMAND starts: a pause that was written while nobody led lets nobody lead.
//! - A job's run is entered into a ledger before COMMAND starts, and how it ended before the release (`books`).
//! - What runs beside a standby (`attendants`) must be dead before COMMAND starts, though the lease is granted before.
//! - The lease may be released only when the tree is known to be dead. There is one place that goes to
//!   `Releasing` from a leadership with a tree, and it handles [`TreeEvent::Dead`].

mod attendants;
mod books;
mod hooks;
mod orders;
mod random;
mod restart;
mod state;
mod turns;
mod words;

pub use hooks::HookEnd;
pub use words::{
    Action, Bar, Booking, CommandEnd, Ended, Event, Handover, Loss, Mandate, Notice, Obstacle, OnLoss, Outcome,
    Patience, Pause, Ran, Restart, RestartWhen, Role, Settings, Skipped, StartError, Stop, TreeEvent, View,
};

use crate::lease::{Deadline, Term};
use crate::store::{Claim, Conclusion, Delivery, Grant, Holder, Observation, Release, Renewal, StoreError};
use crate::time::BootInstant;
use attendants::Attendants;
use books::Entry;
use random::Random;
use restart::Runs;
use state::{
    Ending, GUARD_PATIENCE, LEAST_PAUSE, Leadership, MOST_RENEWALS_IN_FLIGHT, Reading, Releasing, Request, Settling,
    Standby, State, Then, Tree, Trouble, Waiting,
};
use std::time::Duration;
use turns::{StandingBack, Turn};

/// How long somebody who wants to leave waits for the answer to a claim that is under way.
const WITHDRAWAL: Duration = Duration::from_secs(1);
/// When, after the end of a lease, a standby looks whether it was renewed: at any time from the first to the second of
/// these. All standbys know the same end, and a thousand of them must not look at once.
const LOOK_AFTER_EXPIRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(820));
/// Between two lines about the same trouble.
const TROUBLE_EVERY: Duration = Duration::from_secs(30);
/// How COMMAND ended where operators had it stopped and nobody could say.
const STOPPED: CommandEnd = CommandEnd::Signalled(15);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Election {
    settings: Settings,
    random: Random,
    state: State,
    /// True once the store has answered: from then on a denied permission is an outage like any other.
    worked: bool,
    /// True from a claim without an answer to the next answer: we may hold the lease without knowing it.
    claim_in_doubt: bool,
    /// True once orders were read.
    orders_worked: bool,
    /// The last handover that barred us, and until when.
    yielding: Option<(Term, BootInstant)>,
    /// Some once we gave a lease up of ourselves, until others have had their turn.
    standing_back: Option<StandingBack>,
    /// How often in a row the hook before COMMAND has failed.
    unready: u32,
    waiting: Waiting,
    trouble: Option<Trouble>,
    attendants: Attendants,
}

impl Election {
    #[must_use]
    pub fn new(settings: Settings, now: BootInstant, seed: u64) -> Self {
        assert!(!settings.books || settings.restart.is_none(), "a job's run is entered once");
        let mut election = Self {
            settings,
            random: Random(seed),
            state: State::Ended,
            worked: false,
            claim_in_doubt: false,
            orders_worked: false,
            yielding: None,
            standing_back: None,
            unready: 0,
            waiting: Waiting { until: BootInstant::NEVER, error: None, holder: None, bar: None },
            trouble: None,
            attendants: Attendants::AWAY,
        };
        election.become_standby(now);
        election
    }

    /// The next instant at which [`Event::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> BootInstant {
        self.due().min(self.attendants.wake_at())
    }

    fn due(&self) -> BootInstant {
        match &self.state {
            State::Standby(standby) => {
                let next = if standby.request.is_some() { BootInstant::NEVER } else { standby.next };
                next.min(self.waiting.until)
            }
            State::Withdrawing { until, .. } => *until,
            State::Leading(leadership) => {
                let deadline = self.deadline(leadership);
                match leadership.tree {
                    Tree::Idle { not_before } => {
                        let start = not_before.unwrap_or(BootInstant::NEVER);
                        leadership
                            .renewal_due()
                            .min(start)
                            .min(leadership.reading_due())
                            .min(leadership.entry_due())
                            .min(leadership.turn_due())
                            .min(deadline.kill_at)
                    }
                    Tree::Alive { seize_at, overrun_at } => {
                        let going_on = leadership.ending.is_none();
                        let losing = if going_on { deadline.term_at.min(overrun_at) } else { BootInstant::NEVER };
                        let renewal = leadership.renewal_due().min(leadership.turn_due());
                        renewal.min(losing).min(deadline.backstop_at).min(seize_at)
                    }
                    Tree::Seized => leadership.renewal_due(),
                }
            }
            State::Releasing(releasing) => {
                let next = if releasing.in_flight { BootInstant::NEVER } else { releasing.next };
                let settling = releasing.settling.as_ref().map_or(BootInstant::NEVER, |settling| settling.give_up);
                next.min(settling).min(releasing.give_up)
            }
            State::Ended => BootInstant::NEVER,
        }
    }

    /// Whether to begin waiting for the store's news ([`Event::Changed`]), unless that has begun already: only once
    /// a claim was refused, for until then there is nothing to wait for.
    #[must_use]
    pub fn wants_news(&self) -> bool {
        match &self.state {
            State::Standby(standby) => {
                self.settings.delivery != Delivery::Poll
                    && standby.request.is_none()
                    && standby.intent == Request::Look
                    // A store that is away is asked by the looks, which pause in between.
                    && standby.failures == 0
                    && self.waiting.holder.is_some()
            }
            State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => false,
        }
    }

    #[must_use]
    pub fn is_standby(&self) -> bool {
        matches!(self.state, State::Standby(_))
    }

    /// A standby that was heard not to be the first in line.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.is_standby() && (self.waiting.holder.is_some() || self.waiting.bar.is_some())
    }

    #[must_use]
    pub fn view(&self, hindrance: Option<String>) -> View {
        let role = match &self.state {
            State::Standby(_) => Role::Standby(self.waiting.obstacle()),
            State::Leading(leadership) => leadership
                .runs
                .waiting
                .map_or(Role::Leader(leadership.term), |end| Role::Restarting { term: leadership.term, end }),
            State::Withdrawing { .. } | State::Releasing(_) | State::Ended => Role::Leaving,
        };
        let trouble = self.trouble.as_ref().map(|trouble| (trouble.message.clone(), trouble.since));
        View { role, trouble, hindrance }
    }

    /// Whether [`Event::Doubted`] would be heard.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        matches!(self.state, State::Leading(_))
    }

    /// Takes in one event at `now` and answers what is to be done, in this order.
    #[must_use]
    pub fn handle(&mut self, now: BootInstant, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.attendants_heard(now, &event, &mut actions);
        match event {
            Event::Tick | Event::Dismissed => {}
            Event::Claimed { sent, answer } => self.claimed(now, sent, answer, &mut actions),
            Event::Observed { answer } => self.observed(now, answer, &mut actions),
            Event::Changed(news) => self.changed(now, news, &mut actions),
            Event::Doubted => self.doubted(now),
            Event::Renewed { sent, answer } => self.renewed(now, sent, answer, &mut actions),
            Event::Released { answer } => self.released(now, answer, &mut actions),
            Event::Ordered { answer } => self.ordered(now, answer, &mut actions),
            Event::Booked { term, answer } => self.booked(now, term, answer, &mut actions),
            Event::Settled { term, answer } => self.settled(now, term, answer, &mut actions),
            Event::Tree(event) => self.tree(now, &event, &mut actions),
            Event::TurnOver => self.turn_over(now),
            Event::Counted { answer } => self.counted(now, answer, &mut actions),
            Event::Asked { signal } => self.asked(now, signal, &mut actions),
        }
        self.pass_time(now, &mut actions);
        self.attend(now, &mut actions);
        actions
    }

    fn pass_time(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        let stands_back = self.stands_back(now);
        match &mut self.state {
            State::Standby(standby) => {
                if now >= self.waiting.until {
                    let outcome = self.waiting_in_vain();
                    self.leave(now, outcome, actions);
                } else if standby.request.is_none() && now >= standby.next {
                    if standby.intent == Request::Claim && stands_back {
                        standby.intent = Request::Look;
                    }
                    standby.request = Some(standby.intent);
                    actions.push(match standby.intent {
                        Request::Claim => Action::Claim,
                        Request::Look => Action::Observe,
                        Request::Orders => Action::ReadOrders,
                    });
                }
            }
            State::Withdrawing { outcome, until } => {
                if now >= *until {
                    let outcome = outcome.clone();
                    actions.push(Action::Say(Notice::NotReleased(
                        "a claim went unanswered; what it may have got ends by itself".to_owned(),
                    )));
                    self.end(outcome, actions);
                }
            }
            State::Leading(_) => self.pass_leading(now, actions),
            State::Releasing(_) => self.pass_releasing(now, actions),
            State::Ended => {}
        }
    }

    fn pass_leading(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        let timing = self.settings.timing;
        let State::Leading(leadership) = &mut self.state else { unreachable!("only a leader comes here") };
        let deadline = if self.settings.expires { timing.deadline(leadership.valid_until) } else { Deadline::NONE };
        let lost = matches!(leadership.ending, Some(Ending::Lost(Loss::TakenBy(_) | Loss::RecordGone)));
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
            leadership.beat += 1;
            leadership.last_sent = now;
            leadership.next_renewal = now.plus(leadership.pause(timing, now, 2));
            actions.push(Action::Renew { term: leadership.term, beat: leadership.beat });
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
                    && self.attendants.are_away()
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

    fn pass_releasing(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        if let State::Releasing(Releasing { settling: Some(settling), .. }) = &self.state
            && now >= settling.give_up
        {
            self.unsettled(now, "the store did not answer in time".to_owned(), actions);
        }
        let State::Releasing(releasing) = &mut self.state else { return };
        if now >= releasing.give_up {
            let then = releasing.then.clone();
            let why = "the store did not answer; the lease ends by itself".to_owned();
            actions.push(Action::Say(Notice::NotReleased(why)));
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

    fn claimed(
        &mut self,
        now: BootInstant,
        sent: BootInstant,
        answer: Result<Claim, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        self.claim_in_doubt = matches!(&answer, Err(error) if error.conclusion == Conclusion::Unknown)
            || (self.claim_in_doubt && answer.is_err());
        match &mut self.state {
            State::Standby(standby) => {
                standby.request = None;
                match answer {
                    Ok(Claim::Granted(grant)) => self.lead(now, sent, &grant, actions),
                    Ok(Claim::Refused(holder)) => self.held_by(now, holder, actions),
                    Err(error) => self.standby_failed(now, Request::Claim, error, actions),
                }
            }
            State::Withdrawing { outcome, .. } => {
                let outcome = outcome.clone();
                match answer {
                    Ok(Claim::Granted(grant)) => self.release(now, Some(grant.term), Then::End(outcome), WITHDRAWAL),
                    Ok(Claim::Refused(_)) => self.end(outcome, actions),
                    Err(_) => self.leave_for_good(now, outcome, actions),
                }
            }
            // Only a standby claims, and it stays one until the claim is answered or given up.
            State::Leading(_) | State::Releasing(_) | State::Ended => {}
        }
    }

    fn observed(&mut self, now: BootInstant, answer: Result<Observation, StoreError>, actions: &mut Vec<Action>) {
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

    fn changed(&mut self, now: BootInstant, news: Result<(), StoreError>, actions: &mut Vec<Action>) {
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

    /// Only the store knows whether the lease was lost: the next renewal asks it, at once.
    fn doubted(&mut self, now: BootInstant) {
        match &mut self.state {
            State::Leading(leadership) => {
                let soonest = now.max(leadership.last_sent.plus(LEAST_PAUSE));
                leadership.next_renewal = leadership.next_renewal.min(soonest);
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Releasing(_) | State::Ended => {}
        }
    }

    fn renewed(
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

    fn released(&mut self, now: BootInstant, answer: Result<Release, StoreError>, actions: &mut Vec<Action>) {
        match &mut self.state {
            State::Releasing(releasing) if releasing.settling.is_none() => {
                releasing.in_flight = false;
                let then = releasing.then.clone();
                match answer {
                    Ok(Release::Released | Release::NotHeld) => {
                        self.claim_in_doubt = false;
                        if let Some(term) = releasing.term {
                            actions.push(Action::Say(Notice::Released(term)));
                        }
                        self.go_on(now, then, actions);
                    }
                    Err(error) => match error.conclusion {
                        Conclusion::NotApplied | Conclusion::Unknown => {
                            releasing.failures += 1;
                            let pause = self.random.backoff(releasing.failures, self.settings.timing.retry_interval);
                            releasing.next = now.plus(pause);
                            self.in_trouble(now, error.message, true, actions);
                        }
                        Conclusion::Denied | Conclusion::Misconfigured => {
                            actions.push(Action::Say(Notice::NotReleased(error.message)));
                            self.go_on(now, then, actions);
                        }
                    },
                }
            }
            State::Standby(_) | State::Withdrawing { .. } | State::Leading(_) | State::Releasing(_) | State::Ended => {}
        }
    }

    /// A leadership without a tree ends before it has begun.
    fn give_back(&mut self, now: BootInstant, then: Then, actions: &mut Vec<Action>) {
        let State::Leading(leadership) = &self.state else { unreachable!("only a leader can give it back") };
        let (term, left, entered) = (leadership.term, leadership.valid_until.since(now), leadership.entry.begun);
        self.end_leadership(actions);
        self.release(now, Some(term), then, left);
        if entered {
            self.settle_first(now, None, true);
        }
    }

    fn tree(&mut self, now: BootInstant, event: &TreeEvent, actions: &mut Vec<Action>) {
        let stop_time = self.settings.timing.stop_time();
        match &mut self.state {
            State::Leading(leadership) => match *event {
                TreeEvent::NotStarted(error) => {
                    leadership.ending.get_or_insert(Ending::NotStarted(error));
                }
                TreeEvent::Ended(end) => {
                    leadership.end = Some(end);
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

    fn asked(&mut self, now: BootInstant, signal: i32, actions: &mut Vec<Action>) {
        let (drain, hooks) = (self.settings.drain, self.settings.timing.hooks);
        match &mut self.state {
            State::Standby(_) => self.leave(now, Outcome::Interrupted(signal), actions),
            State::Withdrawing { outcome, .. } => {
                let outcome = outcome.clone();
                self.end(outcome, actions);
            }
            State::Leading(leadership) => {
                let again = leadership.asked.is_some();
                leadership.asked = Some(signal);
                match leadership.tree {
                    Tree::Idle { .. } => {
                        let outcome = leadership.runs.waiting.map_or(Outcome::Interrupted(signal), Outcome::Ended);
                        self.ends_between_runs(now, Ended::Asked(signal), actions);
                        self.give_back(now, Then::End(outcome), actions);
                    }
                    Tree::Alive { .. } if again => {
                        actions.push(Action::Say(Notice::Killing));
                        actions.push(Action::Stop(Stop::Kill));
                        leadership.seize_after(now, hooks.lost);
                    }
                    Tree::Alive { .. } => {
                        actions.push(Action::Say(Notice::Stopping { signal }));
                        if let Some(drain) = drain {
                            leadership.seize_after(now, drain.saturating_add(hooks.around_a_stop()));
                        }
                        if leadership.ending.is_none() {
                            leadership.ending = Some(Ending::Asked);
                            actions.push(Action::Stop(Stop::Orderly { kill_after: drain }));
                        }
                    }
                    Tree::Seized => {}
                }
            }
            State::Releasing(Releasing { settling: Some(settling), then: Then::End(_), .. }) if !settling.asked => {
                // What was done would be done again. That takes a moment, unless the store is away.
                settling.asked = true;
            }
            State::Releasing(releasing) => match releasing.then.clone() {
                // Somebody who asks while the lease is being given back does not want to wait for that.
                Then::End(outcome) => {
                    actions.push(Action::Say(Notice::NotReleased(
                        "asked to leave at once; the lease ends by itself".to_owned(),
                    )));
                    self.end(outcome, actions);
                }
                Then::Standby { .. } | Then::Barred(_) => releasing.then = Then::End(Outcome::Interrupted(signal)),
            },
            State::Ended => {}
        }
    }

    /// A leadership is over: what a standby waits for begins anew.
    fn begin_waiting(&mut self, now: BootInstant) {
        let until = match self.settings.patience {
            Patience::Forever | Patience::Once => BootInstant::NEVER,
            Patience::AtMost(wait) => now.plus(wait),
        };
        self.waiting = Waiting { until, error: None, holder: None, bar: None };
    }

    fn become_standby(&mut self, now: BootInstant) {
        self.begin_waiting(now);
        self.state = State::Standby(Standby::about_to(Request::Claim, now));
    }

    fn lead(&mut self, now: BootInstant, sent: BootInstant, grant: &Grant, actions: &mut Vec<Action>) {
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
            beat: 0,
            tree: Tree::Idle { not_before },
            entry: Entry::due_at(now, self.settings.books),
            reading: Reading::due_at(now),
            runs: Runs::none_yet(),
            turn: Turn::begun(now, self.settings.relinquish_after),
            ending: None,
            asked: None,
            end: None,
            unready: false,
        });
    }

    fn held_by(&mut self, now: BootInstant, holder: Holder, actions: &mut Vec<Action>) {
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
        self.waiting = Waiting { until: self.waiting.until, error: None, holder: Some(holder), bar: None };
    }

    /// A crash is told by nobody, so a standby looks when the lease has ended that it saw: not much later, so that a
    /// takeover is not, and not all standbys at once. A leader that lives has renewed by then, so this is one look a
    /// lease where the lease is a multiple of the renewal interval, and never much more.
    fn after_expiry(&mut self, holder: &Holder) -> Duration {
        let lease = self.settings.timing.lease;
        let left = holder.expires_in.unwrap_or(lease).min(lease);
        left + self.random.between(LOOK_AFTER_EXPIRY)
    }

    fn standby_failed(&mut self, now: BootInstant, asked: Request, error: StoreError, actions: &mut Vec<Action>) {
        let final_word = match error.conclusion {
            Conclusion::Denied | Conclusion::Misconfigured => !self.worked,
            Conclusion::NotApplied | Conclusion::Unknown => false,
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

    fn waiting_in_vain(&self) -> Outcome {
        match &self.waiting.error {
            Some(error) => Outcome::Unreachable(error.message.clone()),
            None if !self.worked => Outcome::Unreachable("the store did not answer in time".to_owned()),
            None => Outcome::NotAcquired(self.waiting.obstacle()),
        }
    }

    fn lost(&mut self, now: BootInstant, loss: Loss, actions: &mut Vec<Action>) {
        let stop_time = self.settings.timing.stop_time();
        let State::Leading(leadership) = &self.state else { unreachable!("only a leader loses") };
        let restarts = matches!(leadership.ending, Some(Ending::ByItself(end)) if self.would_restart(end));
        let State::Leading(leadership) = &mut self.state else { unreachable!("only a leader loses") };
        let definite = matches!(loss, Loss::TakenBy(_) | Loss::RecordGone);
        let known = matches!(leadership.ending, Some(Ending::Lost(Loss::TakenBy(_) | Loss::RecordGone)));
        if known {
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
                    leadership.seize_after(now, stop_time);
                    actions.push(Action::Stop(Stop::Losing));
                }
            }
        }
    }

    /// As timeout(1) does: the stop signal, and SIGKILL after the grace. The lease is renewed until COMMAND has ended.
    fn overran(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        let (grace, stop_time) = (self.settings.timing.stop_grace, self.settings.timing.stop_time());
        let State::Leading(leadership) = &mut self.state else { unreachable!("only a leader runs a command") };
        actions.push(Action::Say(Notice::Overran(self.settings.max_run.unwrap_or_default())));
        leadership.seize_after(now, stop_time);
        leadership.ending = Some(Ending::Overran);
        actions.push(Action::Stop(Stop::Orderly { kill_after: Some(grace) }));
    }

    fn tree_dead(&mut self, now: BootInstant, actions: &mut Vec<Action>) {
        if self.restarts(now, actions) {
            return;
        }
        let State::Leading(leadership) = &mut self.state else { unreachable!("only a leadership has a tree") };
        let ending = leadership.ending.take().unwrap_or(Ending::Lost(Loss::GuardFailed));
        let (term, asked, end) = (leadership.term, leadership.asked, leadership.end);
        let entered = leadership.entry.begun;
        // An entry without a run is withdrawn.
        let has_run = entered && !leadership.unready;
        let left = leadership.valid_until.since(now);
        let when_asked = asked.map(|signal| Outcome::Ended(end.unwrap_or(CommandEnd::Signalled(signal))));
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
                (when_asked.map_or_else(|| Then::Barred(self.after_unready(term, failed)), Then::End), true)
            }
            Ending::GaveUp { end, .. } if self.settings.patience == Patience::Once => {
                (Then::End(Outcome::Ended(end)), true)
            }
            Ending::GaveUp { restarts, .. } => {
                self.begin_waiting(now);
                (Then::Barred(self.after_restarts(term, restarts)), true)
            }
            Ending::Relinquished => {
                self.begin_waiting(now);
                (when_asked.map_or_else(|| Then::Barred(self.after_turn(term)), Then::End), true)
            }
            Ending::Ordered(_) if has_run => (Then::End(Outcome::Ended(end.unwrap_or(STOPPED))), true),
            Ending::Ordered(bar) => {
                if let Bar::HandedOver { term, left, .. } = bar {
                    // Others have that long from now, however long COMMAND took to end.
                    self.yielding = Some((term, now.plus(left)));
                }
                self.begin_waiting(now);
                (when_asked.map_or(Then::Barred(bar), Then::End), true)
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

    fn after_loss(&mut self, loss: Loss) -> Then {
        match self.settings.on_loss {
            // Something here kills guards: somebody else shall try, and we not in a hot loop.
            OnLoss::Standby if loss == Loss::GuardFailed => {
                Then::Standby { pause: self.random.about(self.settings.timing.retry_interval) }
            }
            OnLoss::Standby => Then::Standby { pause: Duration::ZERO },
            OnLoss::Exit => Then::End(Outcome::Lost(loss)),
        }
    }

    fn end_leadership(&mut self, actions: &mut Vec<Action>) {
        self.trouble = None;
        actions.push(Action::ForgetRenewals);
    }

    fn release(&mut self, now: BootInstant, term: Option<Term>, then: Then, at_most: Duration) {
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
    fn settle_first(&mut self, now: BootInstant, ran: Option<Ran>, ours: bool) {
        let State::Releasing(releasing) = &mut self.state else { unreachable!("a release was begun") };
        let half = releasing.give_up.since(now) / 2;
        let give_up = now.plus(half.max(WITHDRAWAL).min(self.settings.timing.lease));
        releasing.settling = Some(Settling { ran, give_up, asked: false });
        releasing.ours = ours;
    }

    fn go_on(&mut self, now: BootInstant, then: Then, actions: &mut Vec<Action>) {
        match then {
            Then::End(outcome) => self.end(outcome, actions),
            Then::Standby { pause } => {
                self.become_standby(now);
                if let State::Standby(standby) = &mut self.state {
                    standby.next = now.plus(pause);
                }
            }
            Then::Barred(Bar::StandingBack { term, said, left }) => {
                self.stand_back(now, Bar::StandingBack { term, said, left }, term, left, actions);
            }
            Then::Barred(bar) => {
                self.state = State::Standby(Standby::about_to(Request::Orders, now));
                self.barred(now, bar, actions);
            }
        }
    }

    /// A standby leaves: at once, unless a claim of ours is under way or in doubt.
    fn leave(&mut self, now: BootInstant, outcome: Outcome, actions: &mut Vec<Action>) {
        let State::Standby(standby) = &self.state else { unreachable!("only a standby just leaves") };
        if standby.request == Some(Request::Claim) {
            self.state = State::Withdrawing { outcome, until: now.plus(WITHDRAWAL) };
        } else {
            self.leave_for_good(now, outcome, actions);
        }
    }

    fn leave_for_good(&mut self, now: BootInstant, outcome: Outcome, actions: &mut Vec<Action>) {
        if self.claim_in_doubt {
            self.release(now, None, Then::End(outcome), WITHDRAWAL);
        } else {
            self.end(outcome, actions);
        }
    }

    fn store_answered(&mut self, actions: &mut Vec<Action>) {
        self.worked = true;
        if self.trouble.take().is_some_and(|trouble| trouble.said.is_some()) {
            actions.push(Action::Say(Notice::TroubleOver));
        }
    }

    fn in_trouble(&mut self, now: BootInstant, message: String, say: bool, actions: &mut Vec<Action>) {
        let trouble = self.trouble.get_or_insert(Trouble { since: now, said: None, message: String::new() });
        trouble.message.clone_from(&message);
        let due = trouble.said.is_none_or(|said| now.since(said) >= TROUBLE_EVERY);
        if say && due {
            trouble.said = Some(now);
            actions.push(Action::Say(Notice::Trouble { message, lasting: now.since(trouble.since) }));
        }
    }

    fn deadline(&self, leadership: &Leadership) -> Deadline {
        if self.settings.expires { self.settings.timing.deadline(leadership.valid_until) } else { Deadline::NONE }
    }
}
