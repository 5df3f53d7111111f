//! The election: a pure machine. Events go in, actions come out; it does no I/O, reads no clock and draws its
//! random numbers from a seed, so the same inputs give the same outputs.
//!
//! `state` has the states. `standby`, `leading` and `releasing` say what follows each of them; `orders`, `job_gate`,
//! `restart`, `hooks`, `health`, `rotation`, `standing_back` and `standby_tasks` each add one rule.
//!
//! The hazards it is built around, besides those that the rules answer:
//!
//! - An answer may be lost after its request was applied. So a claim or renewal without an answer is neither a
//!   leadership nor a loss: the machine asks again, and the store recognises the session. A candidate that leaves after
//!   such a claim releases first, in case the claim was granted.
//! - An answer may be late. A renewal counts from when it was *sent*, and an answer never moves the end of the lease
//!   backwards.
//! - The lease may be granted while the candidate is asked to stop. Then COMMAND is not started, and the lease is
//!   released.
//! - The lease may be released only when the tree is known to be dead. Only [`TreeEvent::Dead`] leads from a leadership
//!   with a tree to a release.

mod action;
mod event;
mod health;
mod hooks;
mod job_gate;
mod leading;
mod log_event;
mod notice;
mod orders;
mod outcome;
mod random;
mod reason;
mod releasing;
mod restart;
mod rotation;
mod settings;
mod standby;
mod standby_tasks;
mod standing_back;
mod state;
mod view;

pub use crate::exit::StartError;
pub use action::{Action, Behind, Ran, Stop};
pub use event::{Booked, Booking, CommandEnd, Directives, Event, Handover, Interrupt, Pause, Skipped, TreeEvent};
pub use health::Unhealthy;
pub use hooks::HookEnd;
pub use log_event::LogEvent;
pub use notice::Notice;
pub use outcome::{Ended, Loss, Outcome, Why};
pub use reason::Reason;
pub use settings::{OnLoss, Patience, Restart, RestartWhen, Settings};
pub(crate) use state::GUARD_PATIENCE;
pub use view::{HeldBack, Hold, Obstacle, Role, View};

use crate::lease::{Deadline, Late, Term};
use crate::store::{Answer, Claim, Delivery, ErrorKind};
use crate::time::BootInstant;
use random::Random;
use standby_tasks::StandbyTasks;
use state::{LEAST_PAUSE, Leadership, Releasing, Request, Standby, State, Then, Tree, Trouble, Waiting, log_is_due};
use std::mem::take;
use std::time::Duration;

/// How long a candidate that leaves waits for the answer to its claim.
const WITHDRAWAL: Duration = Duration::from_secs(1);
/// How a COMMAND that was stopped counts as ended if its exit status is not known, or must not count as success.
const STOPPED: CommandEnd = CommandEnd::Signalled(15);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Election {
    core: Core,
    state: State,
}

/// The state that follows; None while the present one goes on.
type Next = Option<State>;

/// What a candidate keeps from one state to the next. Its methods get the state that they work on, and return the state
/// that follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "what became known, in any order")]
struct Core {
    settings: Settings,
    /// What the present event leads to, so far. Empty between two events.
    actions: Vec<Action>,
    random: Random,
    /// True once the store has answered. From then on a denied permission is handled as an outage.
    worked: bool,
    /// True from a claim without an answer to the next answer: the candidate may hold the lease without knowing it.
    claim_in_doubt: bool,
    /// True once orders have been read.
    orders_worked: bool,
    /// When it was last logged that a lease is given back because they cannot be read.
    given_back_unread: Option<BootInstant>,
    /// The last handover that held us back, and until when.
    yielding: Option<(Term, BootInstant)>,
    behind: Behind,
    /// The term whose lease we gave up by ourselves, and until when we stand back. None once another candidate has led:
    /// any other term is that of another one.
    standing_back: Option<(Term, BootInstant)>,
    /// The log has said that the store denies counting the standbys.
    uncounted: bool,
    /// How many times in a row the hook before COMMAND has failed.
    unready: u32,
    /// How many leaderships in a row ended because COMMAND was unhealthy.
    unhealthy: u32,
    waiting: Waiting,
    trouble: Option<Trouble>,
    /// How many times in a row the store could not wait for a change, and when it was last.
    unwatched: (u32, BootInstant),
    standby_tasks: StandbyTasks,
    /// How late guard and backstop were woken, also those of the leadership before.
    late: Late,
}

impl Election {
    pub fn new(settings: Settings, now: BootInstant, seed: u64) -> Self {
        assert!(!settings.job_gate || settings.restart.is_none(), "a job's run is booked once");
        let mut core = Core {
            settings,
            actions: Vec::new(),
            random: Random(seed),
            worked: false,
            claim_in_doubt: false,
            orders_worked: false,
            given_back_unread: None,
            yielding: None,
            behind: Behind::default(),
            standing_back: None,
            uncounted: false,
            unready: 0,
            unhealthy: 0,
            waiting: Waiting { until: BootInstant::NEVER, error: None, holder: None, hold: None },
            trouble: None,
            unwatched: (0, now),
            standby_tasks: StandbyTasks::DEAD,
            late: Late::default(),
        };
        core.begin_waiting(now);
        Self { core, state: State::Standby(Standby::about_to(Request::Claim, now)) }
    }

    /// The next instant at which [`Event::Tick`] is due.
    pub fn wake_at(&self) -> BootInstant {
        self.due().min(self.core.standby_tasks.wake_at())
    }

    fn due(&self) -> BootInstant {
        match &self.state {
            State::Standby(standby) => {
                let next = if standby.request.is_some() { BootInstant::NEVER } else { standby.next };
                next.min(self.core.waiting.until)
            }
            State::Withdrawing { until, .. } => *until,
            State::Leading(leadership) => {
                let deadline = self.core.deadline(leadership);
                let tree = match leadership.tree {
                    Tree::Idle { not_before } => deadline.kill_at.min(not_before.unwrap_or(BootInstant::NEVER)),
                    Tree::Alive { seize_at, overrun_at } => {
                        let going_on = leadership.ending.is_none();
                        let losing = if going_on { deadline.term_at.min(overrun_at) } else { BootInstant::NEVER };
                        losing.min(self.core.backstop_at(leadership)).min(seize_at)
                    }
                    Tree::Seized { tell_at } => tell_at,
                };
                let request = leadership.renewal_due().min(leadership.reading_due()).min(leadership.entry_due());
                tree.min(request).min(leadership.rotation_due())
            }
            State::Releasing(releasing) => {
                let next = if releasing.in_flight { BootInstant::NEVER } else { releasing.next };
                let settling = releasing.settling.as_ref().map_or(BootInstant::NEVER, |settling| settling.give_up);
                next.min(settling).min(releasing.give_up)
            }
            State::Ended => BootInstant::NEVER,
        }
    }

    /// Whether to wait for a change in the store ([`Event::Changed`]). True only after a claim was refused: before that
    /// there is nothing to wait for.
    pub fn wants_change(&self) -> bool {
        let State::Standby(standby) = &self.state else { return false };
        self.core.settings.delivery != Delivery::Poll
            && standby.request.is_none()
            && standby.intent == Request::Look
            // While the store is unreachable, the standby asks it now and then instead.
            && standby.failures == 0
            && self.core.waiting.holder.is_some()
    }

    pub fn is_standby(&self) -> bool {
        matches!(self.state, State::Standby(_))
    }

    /// True for a standby that knows what it waits for.
    pub fn is_waiting(&self) -> bool {
        self.is_standby() && self.core.waiting.obstacle().is_some()
    }

    pub fn view(&self, takeover_warning: Option<String>) -> View {
        let role = match &self.state {
            State::Standby(_) => Role::Standby(self.core.waiting.obstacle()),
            State::Leading(leadership) => leadership
                .runs
                .waiting
                .map_or(Role::Leader(leadership.term), |end| Role::Restarting { term: leadership.term, end }),
            State::Withdrawing { .. } | State::Releasing(_) | State::Ended => Role::Leaving,
        };
        let trouble = self.core.trouble.as_ref().map(|trouble| (trouble.message.clone(), trouble.since));
        View { role, trouble, takeover_warning, late: self.core.late }
    }

    /// True from a grant until the leadership is over and its tree is dead.
    pub fn is_leading(&self) -> bool {
        matches!(self.state, State::Leading(_))
    }

    /// Handles one event at `now`, and returns the actions to carry out, in this order.
    #[must_use]
    pub fn handle(&mut self, now: BootInstant, event: Event) -> Vec<Action> {
        let Self { core, state } = self;
        core.standby_tasks_heard(now, state, &event);
        if let Some(next) = core.take_in(now, state, event) {
            *state = next;
        }
        if let Some(next) = core.pass_time(now, state) {
            *state = next;
        }
        core.start_or_stop_standby_tasks(now, state);
        take(&mut core.actions)
    }
}

impl Core {
    fn say(&mut self, notice: Notice) {
        self.actions.push(Action::Say(notice));
    }

    fn take_in(&mut self, now: BootInstant, state: &mut State, event: Event) -> Next {
        match event {
            Event::Tick | Event::StandbyTasksDead => None,
            Event::Claimed { sent, answer } => self.claimed(now, state, sent, answer),
            Event::Observed { answer } => self.observed(now, state, answer),
            Event::Changed(reported) => self.changed(now, state.standby()?, reported),
            Event::Doubted => {
                // Only the store knows whether the lease was lost.
                let leadership = state.leading()?;
                let soonest = now.max(leadership.last_sent.plus(LEAST_PAUSE));
                leadership.next_renewal = leadership.next_renewal.min(soonest);
                None
            }
            Event::Renewed { sent, answer, orders } => self.renewed(now, state.leading()?, sent, answer, orders),
            Event::Released { answer } => self.released(now, state.releasing()?, answer),
            Event::Ordered { answer } => self.ordered(now, state, answer),
            Event::Booked { term, answer } => self.booked(now, state.leading()?, term, answer),
            Event::Settled { term, answer } => self.settled(now, state.releasing()?, term, answer),
            Event::Tree(event) => self.tree(now, state, &event),
            Event::Late(late) => {
                let before = std::mem::replace(&mut self.late, late);
                if self.late.beyond && !before.beyond {
                    self.say(Notice::Late(self.late));
                }
                None
            }
            Event::RotationDue => {
                state.leading()?.rotation.time_has_come(now);
                None
            }
            Event::Counted { answer } => self.counted(now, state.leading()?, answer),
            Event::Asked { signal } => self.asked(now, state, signal),
        }
    }

    fn pass_time(&mut self, now: BootInstant, state: &mut State) -> Next {
        match state {
            State::Standby(standby) => self.pass_standby(now, standby),
            State::Withdrawing { outcome, until } => {
                if now < *until {
                    return None;
                }
                self.not_released("a claim was not answered; a lease that it may have got ends by itself".to_owned());
                Some(self.end(outcome.clone()))
            }
            State::Leading(leadership) => self.pass_leading(now, leadership),
            State::Releasing(releasing) => self.pass_releasing(now, releasing),
            State::Ended => None,
        }
    }

    fn claimed(&mut self, now: BootInstant, state: &mut State, sent: BootInstant, answer: Answer<Claim>) -> Next {
        self.claim_in_doubt = matches!(&answer, Err(error) if error.kind == ErrorKind::Unknown)
            || (self.claim_in_doubt && answer.is_err());
        match state {
            State::Standby(standby) => {
                standby.request = None;
                match answer {
                    Ok(Claim::Granted(grant)) => Some(State::Leading(self.lead(now, sent, &grant))),
                    Ok(Claim::Refused(holder)) => Some(self.held_by(now, standby, holder)),
                    Err(error) => self.standby_failed(now, standby, Request::Claim, error),
                }
            }
            State::Withdrawing { outcome, .. } => {
                let outcome = outcome.clone();
                Some(match answer {
                    Ok(Claim::Granted(grant)) => {
                        State::Releasing(Releasing::begun(now, Some(grant.term), Then::End(outcome), WITHDRAWAL))
                    }
                    Ok(Claim::Refused(_)) => self.end(outcome),
                    Err(_) => self.leave_for_good(now, outcome),
                })
            }
            // Only a standby claims, and it stays a standby until the claim is answered or given up.
            State::Leading(_) | State::Releasing(_) | State::Ended => None,
        }
    }

    fn asked(&mut self, now: BootInstant, state: &mut State, signal: i32) -> Next {
        match state {
            State::Standby(standby) => Some(self.leave(now, standby, Outcome::Interrupted(signal))),
            State::Withdrawing { until, .. } => {
                *until = now;
                None
            }
            State::Leading(leadership) => self.leader_asked(now, leadership, signal),
            State::Releasing(Releasing { settling: Some(settling), then: Then::End(_), .. }) if !settling.asked => {
                // Without this entry the job would be repeated. It takes a moment, unless the store is unreachable.
                settling.asked = true;
                None
            }
            State::Releasing(releasing) => match releasing.then.clone() {
                // A signal during the release means: do not wait for it.
                Then::End(outcome) => {
                    self.not_released("asked to leave at once; the lease ends by itself".to_owned());
                    Some(self.end(outcome))
                }
                Then::Standby { .. } | Then::Held(_) => {
                    releasing.then = Then::End(Outcome::Interrupted(signal));
                    None
                }
            },
            State::Ended => None,
        }
    }

    fn leader_asked(&mut self, now: BootInstant, leadership: &mut Leadership, signal: i32) -> Next {
        let stop_timeout = self.settings.stop_timeout;
        let hooks = self.settings.timing.hooks;
        let again = leadership.asked.replace(signal).is_some();
        if let Some(Ended::Asked(last)) = &mut leadership.ending {
            *last = signal;
        }
        match leadership.tree {
            Tree::Idle { .. } => {
                let outcome = leadership.runs.waiting.map_or(Outcome::Interrupted(signal), Outcome::Ended);
                let then = self.ends_between_runs(now, leadership, Ended::Asked(signal), Then::End(outcome));
                return Some(self.give_back(now, leadership, then));
            }
            Tree::Alive { .. } if again => {
                self.say(Notice::Killing);
                self.actions.push(Action::Stop(Stop::Kill));
                leadership.seize_after(now, hooks.post_stop);
            }
            Tree::Alive { .. } => {
                self.say(Notice::Stopping { signal });
                if leadership.ending.is_none() {
                    self.stop_in_order(now, leadership, Ended::Asked(signal), stop_timeout);
                } else if let Some(stop_timeout) = stop_timeout {
                    leadership.seize_after(now, stop_timeout.saturating_add(hooks.around_a_stop()));
                }
            }
            Tree::Seized { .. } => {}
        }
        None
    }

    fn go_on(&mut self, now: BootInstant, then: Then) -> State {
        match then {
            Then::End(outcome) => self.end(outcome),
            Then::Standby { pause } => {
                self.begin_waiting(now);
                State::Standby(Standby::about_to(Request::Claim, now.plus(pause)))
            }
            Then::Held(hold) => match hold.why {
                HeldBack::StandingBack(term) => {
                    // The lease was released, so other candidates can take it from now on.
                    self.standing_back = Some((term, now.plus(hold.left.unwrap_or_default())));
                    let next = self.next_claim(now);
                    self.wait_on(now, hold, Standby::about_to(Request::Claim, next))
                }
                HeldBack::Paused | HeldBack::HandedOver(_) => self.wait_on_hold(now, hold),
            },
        }
    }

    fn store_answered(&mut self) {
        self.worked = true;
        if self.trouble.take().is_some_and(|trouble| trouble.logged_at.is_some()) {
            self.say(Notice::TroubleOver);
        }
    }

    fn in_trouble(&mut self, now: BootInstant, message: String, say: bool) {
        let trouble = self.trouble.get_or_insert(Trouble { since: now, logged_at: None, message: String::new() });
        trouble.message.clone_from(&message);
        if say && log_is_due(trouble.logged_at, now) {
            trouble.logged_at = Some(now);
            let lasting = now.since(trouble.since);
            self.say(Notice::Trouble { message, lasting });
        }
    }

    /// The least rest of a lease with which COMMAND may start: the guard of a late host begins a stop earlier.
    fn least_to_start(&self) -> Duration {
        self.settings.timing.least_to_start() + self.late.extra
    }

    /// When this process kills the tree itself. Where guard and backstop are woken late, it is woken late as well. But
    /// it gives the lease up no earlier for that: it may not have read the answer to a renewal yet, and the guard stops
    /// the tree by itself.
    fn backstop_at(&self, leadership: &Leadership) -> BootInstant {
        self.deadline(leadership).backstop_at.minus(self.late.extra)
    }

    fn deadline(&self, leadership: &Leadership) -> Deadline {
        if self.settings.expires { self.settings.timing.deadline(leadership.valid_until) } else { Deadline::NONE }
    }
}
