//! The guard's decisions: a pure machine without a clock.
//!
//! The hazard: reasons to stop can come in any order and at once: an orderly stop that drains for hours, the lease
//! being lost meanwhile, the candidate dying, COMMAND leaving children behind. COMMAND must get the stop signal exactly
//! once, because a second one makes many programs quit without their drain. And the earliest of all reasons to kill
//! must win.
//!
//! Hooks make a stop start earlier, never end later. The pre-stop hook (before the stop signal) and the post-stop hook
//! (after the tree's end) have their timeouts within the deadline, and the tree is killed early enough for the
//! post-stop hook. A hook is a descendant like any other, so what it leaves behind belongs to the tree.

pub mod checks;

use super::lateness::Caution;
use crate::election::{HookEnd, Reason, Stop, TreeEvent};
use crate::lease::{Deadline, TimeForHooks};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// From `kill_at` to `backstop_at` when there is no deadline.
const PATIENCE_WITHOUT_DEADLINE: Duration = Duration::from_millis(300);

/// An order from the candidate to the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Order {
    /// The lease was prolonged.
    Extend(Deadline),
    /// Stop, for this reason: the stop signal, and SIGKILL `kill_after` that, if given.
    Stop { reason: Reason, kill_after: Option<Duration> },
    /// SIGKILL now.
    Kill,
    /// Pass this signal on to COMMAND.
    Signal(i32),
    /// Let COMMAND continue after the terminal stopped it.
    Continue,
    /// The worst lateness of guard and backstop. The backstop gets this as well.
    Late(Duration),
}

impl Order {
    /// The order of a candidate whose tree has `grace` when the lease is being lost.
    pub fn of(stop: Stop, grace: Duration) -> Self {
        match stop {
            Stop::Orderly { reason, kill_after } => Self::Stop { reason, kill_after },
            Stop::Losing { reason, .. } => Self::Stop { reason, kill_after: Some(grace) },
            Stop::Kill => Self::Kill,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    Order(Order),
    CandidateGone,
    /// The orders that had arrived were read, so the pre-start hook may run, or COMMAND start.
    Begin,
    /// COMMAND has become its program, after [`Effect::Start`].
    CommandStarted,
    /// COMMAND has not become its program, and will not.
    CommandNotStarted(Reason),
    /// COMMAND itself was reaped. Its descendants may live on.
    CommandEnded,
    /// The running hook was reaped, or could not be started. Its descendants may live on.
    HookEnded(HookEnd),
    /// No descendant is left, hooks included.
    Empty,
    /// The guard has measured its worst lateness, which is this now.
    Late(Duration),
    /// Time has passed.
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start COMMAND: the pre-start hook succeeded, if there is one.
    Start,
    /// Tell the candidate.
    Report(TreeEvent),
    RunPreStart,
    RunPreStop,
    RunPostStop,
    /// SIGKILL to the running hook and all its descendants: its timeout is over.
    KillHook,
    /// The stop signal to everything in the tree, and SIGCONT after it, because a stopped process cannot obey.
    AskTree,
    /// SIGKILL to everything in the tree, repeated until nothing is left.
    KillTree,
    Signal(i32),
    Continue,
    /// Nothing runs, and nothing will be started.
    Finish,
}

/// The effects of one input, in order. It allocates nothing: no memory may be left when a kill is due.
///
/// The known maximum is four: the deadline is reported, COMMAND is reported unready, the tree is asked to stop and
/// killed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effects([Option<Effect>; 6]);

impl Effects {
    fn push(&mut self, effect: Effect) {
        let free = self.0.iter_mut().find(|place| place.is_none());
        *free.expect("an input leads to few effects") = Some(effect);
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<Effect>, 6>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

#[cfg(test)]
impl<const N: usize> PartialEq<[Effect; N]> for Effects {
    fn eq(&self, other: &[Effect; N]) -> bool {
        self.into_iter().eq(other.iter().copied())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// As the lease has it. See [`Policy::deadline`].
    deadline: Deadline,
    /// How much earlier it acts for its lateness.
    pub(super) caution: Caution,
    pub(super) grace: Duration,
    hooks: TimeForHooks,
    phase: Phase,
    /// The first reason to end. Some once it ends.
    reason: Option<Reason>,
    /// The pre-start hook was started. If it was, or if COMMAND was, the post-stop hook runs at the end.
    opened: bool,
    /// COMMAND was started.
    ran: bool,
    /// It has become its program.
    begun: bool,
    /// The longest that COMMAND may run, and when it will have run that long. The guard counts, because the candidate
    /// may be stopped.
    pub(super) max_run: Option<Duration>,
    overrun_at: BootInstant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The pre-start hook runs, or is about to, or COMMAND is. The hook is killed at `until`.
    Opening {
        until: BootInstant,
    },
    Running,
    /// The pre-stop hook runs beside COMMAND. It is killed at `until`. Then comes the stop signal, and SIGKILL
    /// `kill_after` that.
    PreStop {
        until: BootInstant,
        kill_after: Option<Duration>,
    },
    /// The stop signal was sent. SIGKILL follows at `kill_at`, or at the deadline if that is earlier.
    Stopping {
        kill_at: BootInstant,
    },
    Killing,
    /// The tree is dead. The post-stop hook runs, and is killed at `until`.
    Closing {
        until: BootInstant,
    },
    /// What the post-stop hook left behind is being killed.
    Clearing,
    Finished,
}

impl Policy {
    /// The policy for a COMMAND that starts at once, without hooks.
    pub fn new(deadline: Deadline, grace: Duration) -> Self {
        Self {
            deadline,
            caution: Caution::default(),
            grace,
            hooks: TimeForHooks::default(),
            phase: Phase::Running,
            reason: None,
            opened: false,
            ran: true,
            begun: true,
            max_run: None,
            overrun_at: BootInstant::NEVER,
        }
    }

    /// The policy with hooks, until [`Input::Begin`].
    pub fn with_hooks(deadline: Deadline, grace: Duration, hooks: TimeForHooks) -> Self {
        let phase = Phase::Opening { until: BootInstant::NEVER };
        Self { hooks, phase, ran: false, begun: false, ..Self::new(deadline, grace) }
    }

    /// When [`Input::Tick`] is due.
    pub fn wake_at(&self) -> BootInstant {
        match self.phase {
            Phase::Opening { until } => until.min(self.deadline().term_at).min(self.kill_by()),
            Phase::Running => self.deadline().term_at.min(self.kill_by()).min(self.overrun_at),
            Phase::PreStop { until, .. } => until.min(self.ask_by()).min(self.kill_by()),
            Phase::Stopping { kill_at } => kill_at.min(self.kill_by()),
            Phase::Closing { until } => until.min(self.deadline().kill_at),
            Phase::Killing | Phase::Clearing | Phase::Finished => BootInstant::NEVER,
        }
    }

    /// Until when the guard may look for processes to ask. Among busy processes, one that has used a processor waits
    /// many times as long for its next turn, and the kill must not be that late.
    pub fn asks_until(&self) -> BootInstant {
        self.wake_at().minus(self.caution.extra())
    }

    /// The latest instant at which COMMAND may be started.
    pub fn start_by(&self) -> BootInstant {
        self.deadline().term_at
    }

    /// The latest instant at which the post-stop hook may be started.
    pub fn end_by(&self) -> BootInstant {
        self.deadline().kill_at
    }

    /// When the kernel kills a guard that has not begun to kill the tree. If the whole tree dies with it (`whole`),
    /// that is `backstop_at`. Otherwise only COMMAND does, and a guard that is late may be the last process that can
    /// kill the rest, so it has half of the time that is left. Killing one process is quick.
    pub fn kill_timer_at(&self, whole: bool) -> BootInstant {
        let Deadline { kill_at, backstop_at, .. } = self.deadline();
        if whole { backstop_at } else { backstop_at.plus(backstop_at.since(kill_at) / 2) }
    }

    /// True while COMMAND runs and nothing stops it.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running && self.ran
    }

    /// True while everything in the tree is to be killed.
    pub fn kills(&self) -> bool {
        matches!(self.phase, Phase::Killing | Phase::Clearing)
    }

    /// Why the leadership ends. Some once it does.
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// When the guard kills the tree, as things stand, and when the other processes kill it without waiting for the
    /// guard.
    pub fn ends_at(&self) -> (BootInstant, BootInstant) {
        let kill_at = match self.phase {
            Phase::Opening { .. } | Phase::Running | Phase::PreStop { .. } => self.kill_by(),
            Phase::Stopping { kill_at } => kill_at.min(self.kill_by()),
            Phase::Killing | Phase::Closing { .. } | Phase::Clearing | Phase::Finished => BootInstant::from_nanos(0),
        };
        let patience = match self.deadline() {
            Deadline::NONE => PATIENCE_WITHOUT_DEADLINE,
            Deadline { kill_at, backstop_at, .. } => backstop_at.since(kill_at),
        };
        (kill_at, kill_at.plus(patience))
    }

    #[must_use]
    pub fn handle(&mut self, now: BootInstant, input: Input) -> Effects {
        let mut effects = Effects::default();
        // Among the orders that a late guard finds there may be an extension that was sent in time: that it was late
        // must not end a leadership. So until it has read them all, only the kill that the lease itself demands is due.
        let has_read = !matches!(input, Input::Order(_) | Input::CommandStarted);
        self.pass_deadline(now, has_read, &mut effects);
        match input {
            Input::Order(Order::Extend(deadline)) => {
                // Messages arrive in order, and the candidate never shortens a deadline. A deadline that has passed
                // stays.
                if now < self.deadline.kill_at && deadline.kill_at > self.deadline.kill_at {
                    self.deadline = deadline;
                }
            }
            Input::Order(Order::Late(worst)) => self.caution.told(worst),
            Input::Late(worst) => self.caution.measured(worst),
            Input::Order(Order::Stop { reason, kill_after }) => self.stop(now, reason, kill_after, &mut effects),
            Input::CandidateGone => self.stop(now, Reason::Killed, Some(self.grace), &mut effects),
            Input::Order(Order::Kill) => self.kill(Reason::Lost, &mut effects),
            Input::Order(Order::Signal(signal)) => effects.push(Effect::Signal(signal)),
            Input::Order(Order::Continue) => effects.push(Effect::Continue),
            Input::Begin => self.begin(now, &mut effects),
            Input::CommandStarted => {
                self.begun = true;
                self.overrun_at = after(now, self.max_run);
            }
            Input::CommandNotStarted(reason) => {
                self.ran = false;
                self.kill(reason, &mut effects);
            }
            Input::CommandEnded => self.command_ended(now, &mut effects),
            Input::HookEnded(end) => self.hook_ended(now, end, &mut effects),
            Input::Empty => self.empty(now, &mut effects),
            Input::Tick => {}
        }
        self.pass_time(now, has_read, &mut effects);
        effects
    }

    /// Kills the tree if its time is over. This comes before any input: a guard that was frozen past the deadline must
    /// not send the stop signal, because SIGCONT follows it. A frozen tree would wake and run beside its successor for
    /// a moment.
    fn pass_deadline(&mut self, now: BootInstant, has_read: bool, effects: &mut Effects) {
        let deadline = if has_read { self.deadline() } else { self.deadline };
        if now >= self.kill_by_of(deadline) {
            let is_over =
                matches!(self.phase, Phase::Killing | Phase::Closing { .. } | Phase::Clearing | Phase::Finished);
            // At `term_at` it was reported, unless something else had stopped COMMAND before.
            if !is_over && self.reason != Some(Reason::Lost) {
                effects.push(Effect::Report(TreeEvent::DeadlineReached));
            }
            self.kill(Reason::Lost, effects);
        }
    }

    fn pass_time(&mut self, now: BootInstant, has_read: bool, effects: &mut Effects) {
        self.pass_deadline(now, has_read, effects);
        match self.phase {
            Phase::Opening { .. } | Phase::Running if has_read && now >= self.deadline().term_at => {
                effects.push(Effect::Report(TreeEvent::DeadlineReached));
                self.stop(now, Reason::Lost, Some(self.grace), effects);
            }
            // As timeout(1) does. The lease is renewed until COMMAND has ended.
            Phase::Running if now >= self.overrun_at => {
                effects.push(Effect::Report(TreeEvent::Overran));
                self.stop(now, Reason::MaxRun, Some(self.grace), effects);
            }
            Phase::Opening { until } if now >= until => {
                effects.push(Effect::Report(TreeEvent::Unready(HookEnd::TimedOut)));
                self.kill(Reason::Failed, effects);
            }
            Phase::PreStop { until, kill_after } if now >= until.min(self.ask_by()) => {
                effects.push(Effect::KillHook);
                self.ask(now, kill_after, effects);
            }
            Phase::Closing { until } if now >= until.min(self.deadline().kill_at) => {
                self.phase = Phase::Clearing;
                effects.push(Effect::KillHook);
                effects.push(Effect::KillTree);
            }
            Phase::Opening { .. }
            | Phase::Running
            | Phase::PreStop { .. }
            | Phase::Stopping { .. }
            | Phase::Killing
            | Phase::Closing { .. }
            | Phase::Clearing
            | Phase::Finished => {}
        }
        // This includes a stop that begins now and has no time left.
        if let Phase::Stopping { kill_at } = self.phase
            && now >= kill_at
        {
            self.kill(Reason::Lost, effects);
        }
    }

    /// Begins a stop: the pre-stop hook if COMMAND runs and there is time for it, then the stop signal, and SIGKILL
    /// `kill_after` that.
    fn stop(&mut self, now: BootInstant, reason: Reason, kill_after: Option<Duration>, effects: &mut Effects) {
        match self.phase {
            Phase::Opening { until } => {
                self.reason.get_or_insert(reason);
                effects.push(Effect::Report(TreeEvent::Unready(HookEnd::Cut)));
                effects.push(Effect::AskTree);
                // COMMAND might have drained without limit. The pre-start hook keeps its own timeout.
                self.phase = Phase::Stopping { kill_at: after(now, kill_after).min(until) };
            }
            Phase::Running => {
                self.reason.get_or_insert(reason);
                // A COMMAND that has not begun would begin beside the hook.
                if self.hooks.pre_stop.is_zero() || !self.begun || now >= self.ask_by() {
                    self.ask(now, kill_after, effects);
                } else {
                    self.phase = Phase::PreStop { until: now.plus(self.hooks.pre_stop), kill_after };
                    effects.push(Effect::RunPreStop);
                }
            }
            Phase::PreStop { until, kill_after: before } => {
                let shorter = [before, kill_after].into_iter().flatten().min();
                self.phase = Phase::PreStop { until, kill_after: shorter };
            }
            Phase::Stopping { kill_at } => {
                self.phase = Phase::Stopping { kill_at: kill_at.min(after(now, kill_after)) };
            }
            Phase::Killing | Phase::Closing { .. } | Phase::Clearing | Phase::Finished => {}
        }
    }

    /// A drain without limit ends when COMMAND has run for as long as it may, and the grace is over.
    fn ask(&mut self, now: BootInstant, kill_after: Option<Duration>, effects: &mut Effects) {
        let overran = self.overrun_at.max(now).plus(self.grace);
        self.phase = Phase::Stopping { kill_at: after(now, kill_after).min(overran) };
        effects.push(Effect::AskTree);
    }

    fn kill(&mut self, reason: Reason, effects: &mut Effects) {
        match self.phase {
            Phase::Opening { .. } | Phase::Running | Phase::PreStop { .. } | Phase::Stopping { .. } => {
                if matches!(self.phase, Phase::Opening { .. }) && reason != Reason::Failed {
                    effects.push(Effect::Report(TreeEvent::Unready(HookEnd::Cut)));
                }
                self.reason.get_or_insert(reason);
                self.phase = Phase::Killing;
                effects.push(Effect::KillTree);
            }
            // At most the post-stop hook is left, and it keeps its timeout.
            Phase::Killing | Phase::Closing { .. } | Phase::Clearing | Phase::Finished => {}
        }
    }

    /// Gives what COMMAND leaves behind the grace. Nothing is being stopped, so no pre-stop hook runs.
    fn command_ended(&mut self, now: BootInstant, effects: &mut Effects) {
        self.reason.get_or_insert(Reason::Ended);
        if self.phase == Phase::Running {
            self.ask(now, Some(self.grace), effects);
        } else {
            self.stop(now, Reason::Ended, Some(self.grace), effects);
        }
    }

    fn begin(&mut self, now: BootInstant, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Opening { .. }) {
            return;
        }
        if self.hooks.pre_start.is_zero() {
            self.hook_ended(now, HookEnd::Exited(0), effects);
        } else if now < self.deadline().term_at.min(self.kill_by()) {
            self.opened = true;
            self.phase = Phase::Opening { until: now.plus(self.hooks.pre_start) };
            effects.push(Effect::RunPreStart);
        }
    }

    fn hook_ended(&mut self, now: BootInstant, end: HookEnd, effects: &mut Effects) {
        match self.phase {
            // Do not start a COMMAND that would be stopped at once.
            Phase::Opening { .. }
                if end == HookEnd::Exited(0) && now >= self.deadline().term_at.min(self.kill_by()) => {}
            Phase::Opening { .. } if end == HookEnd::Exited(0) => {
                self.phase = Phase::Running;
                self.ran = true;
                self.overrun_at = after(now, self.max_run);
                effects.push(Effect::Start);
            }
            Phase::Opening { .. } => {
                // A pre-start hook that never ran needs no post-stop hook.
                self.opened = !matches!(end, HookEnd::NotStarted(_));
                effects.push(Effect::Report(TreeEvent::Unready(end)));
                self.kill(Reason::Failed, effects);
            }
            Phase::PreStop { kill_after, .. } => self.ask(now, kill_after, effects),
            // What the pre-start hook leaves behind has the grace, as what COMMAND leaves behind.
            Phase::Stopping { .. } if !self.ran => self.stop(now, Reason::Ended, Some(self.grace), effects),
            Phase::Closing { .. } => {
                self.phase = Phase::Clearing;
                effects.push(Effect::KillTree);
            }
            Phase::Running | Phase::Stopping { .. } | Phase::Killing | Phase::Clearing | Phase::Finished => {}
        }
    }

    fn empty(&mut self, now: BootInstant, effects: &mut Effects) {
        match self.phase {
            Phase::Opening { .. }
            | Phase::Running
            | Phase::PreStop { .. }
            | Phase::Stopping { .. }
            | Phase::Killing => {
                let has_hook = !self.hooks.post_stop.is_zero() && (self.opened || self.ran);
                if has_hook && now < self.deadline().kill_at {
                    self.phase = Phase::Closing { until: now.plus(self.hooks.post_stop) };
                    effects.push(Effect::RunPostStop);
                } else {
                    self.finish(effects);
                }
            }
            Phase::Closing { .. } | Phase::Clearing => self.finish(effects),
            Phase::Finished => {}
        }
    }

    fn finish(&mut self, effects: &mut Effects) {
        self.phase = Phase::Finished;
        effects.push(Effect::Finish);
    }

    /// The deadline, moved for a guard that may be woken late.
    fn deadline(&self) -> Deadline {
        self.deadline.earlier(self.caution.extra())
    }

    /// When the tree is killed, so that the post-stop hook has its timeout.
    fn kill_by(&self) -> BootInstant {
        self.kill_by_of(self.deadline())
    }

    fn kill_by_of(&self, deadline: Deadline) -> BootInstant {
        deadline.kill_at.minus(self.hooks.post_stop)
    }

    /// The latest time for the stop signal that leaves the tree its grace.
    fn ask_by(&self) -> BootInstant {
        self.kill_by().minus(self.grace)
    }
}

/// The end of a wait. None is a wait without end.
fn after(now: BootInstant, wait: Option<Duration>) -> BootInstant {
    wait.map_or(BootInstant::NEVER, |wait| now.plus(wait))
}

#[cfg(test)]
mod tests;
