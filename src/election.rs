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

mod action;
mod event;
mod hooks;
mod job_gate;
mod leading;
mod notice;
mod orders;
mod outcome;
mod random;
mod releasing;
mod restart;
mod rotation;
mod settings;
mod standby;
mod standby_tasks;
mod state;
mod view;

pub use crate::exit::StartError;
pub use action::{Action, Dismissal, Ran, Stop, StopReason};
pub use event::{Booking, CommandEnd, Directives, Event, Handover, Pause, Skipped, TreeEvent};
pub use hooks::HookEnd;
pub use notice::Notice;
pub use outcome::{Ended, Loss, Outcome};
pub use settings::{OnLoss, Patience, Restart, RestartWhen, Settings};
pub(crate) use state::GUARD_PATIENCE;
pub use view::{Hold, Obstacle, Role, View};

use crate::lease::{Deadline, Term};
use crate::store::{Claim, Delivery, ErrorKind, StoreError};
use crate::time::BootInstant;
use random::Random;
use releasing::not_released;
use rotation::{Counting, StandingBack};
use standby_tasks::StandbyTasks;
use state::{Ending, Leadership, Releasing, Request, Standby, State, Then, Tree, Trouble, Waiting};
use std::time::Duration;

/// How long somebody who wants to leave waits for the answer to a claim that is under way.
const WITHDRAWAL: Duration = Duration::from_secs(1);
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
    counting: Counting,
    /// How often in a row the hook before COMMAND has failed.
    unready: u32,
    waiting: Waiting,
    trouble: Option<Trouble>,
    standby_tasks: StandbyTasks,
}

impl Election {
    #[must_use]
    pub fn new(settings: Settings, now: BootInstant, seed: u64) -> Self {
        assert!(!settings.job_gate || settings.restart.is_none(), "a job's run is entered once");
        let mut election = Self {
            settings,
            random: Random(seed),
            state: State::Ended,
            worked: false,
            claim_in_doubt: false,
            orders_worked: false,
            yielding: None,
            standing_back: None,
            counting: Counting::Allowed,
            unready: 0,
            waiting: Waiting { until: BootInstant::NEVER, error: None, holder: None, hold: None },
            trouble: None,
            standby_tasks: StandbyTasks::AWAY,
        };
        election.become_standby(now);
        election
    }

    /// The next instant at which [`Event::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> BootInstant {
        self.due().min(self.standby_tasks.wake_at())
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
        self.is_standby() && (self.waiting.holder.is_some() || self.waiting.hold.is_some())
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
        self.standby_tasks_heard(now, &event, &mut actions);
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
                    not_released("a claim went unanswered; what it may have got ends by itself".to_owned(), actions);
                    self.end(outcome, actions);
                }
            }
            State::Leading(_) => self.pass_leading(now, actions),
            State::Releasing(_) => self.pass_releasing(now, actions),
            State::Ended => {}
        }
    }

    fn claimed(
        &mut self,
        now: BootInstant,
        sent: BootInstant,
        answer: Result<Claim, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        self.claim_in_doubt = matches!(&answer, Err(error) if error.kind == ErrorKind::Unknown)
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

    fn asked(&mut self, now: BootInstant, signal: i32, actions: &mut Vec<Action>) {
        let (drain, hooks) = (self.settings.drain, self.settings.timing.hooks);
        match &mut self.state {
            State::Standby(_) => self.leave(now, Outcome::Interrupted(signal), actions),
            State::Withdrawing { until, .. } => *until = now,
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
                            actions.push(Action::Stop(Stop::Orderly { reason: StopReason::Asked, kill_after: drain }));
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
                    not_released("asked to leave at once; the lease ends by itself".to_owned(), actions);
                    self.end(outcome, actions);
                }
                Then::Standby { .. } | Then::Held(_) => releasing.then = Then::End(Outcome::Interrupted(signal)),
            },
            State::Ended => {}
        }
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
            Then::Held(Hold::StandingBack { term, said, left }) => {
                self.stand_back(now, Hold::StandingBack { term, said, left }, term, left, actions);
            }
            Then::Held(hold) => {
                self.state = State::Standby(Standby::about_to(Request::Orders, now));
                self.barred(now, hold, actions);
            }
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
