//! What the guard does when: a pure machine without a clock.
//!
//! The hazard: two reasons to stop can come in any order and at once (an orderly stop that drains for hours, the
//! lease slipping away during it, the candidate dying, COMMAND leaving children behind). COMMAND must get the
//! stop signal exactly once (a second one makes many programs quit without their drain), and the earliest of all
//! the reasons to kill must win.
//!
//! Hooks make a stop longer, never later: the one before the signal and the one after the tree's end have their boxes
//! within the deadline, and what is left of a tree is killed early enough for the second. A hook is a descendant like
//! any other, so what it leaves behind belongs to the tree.

use super::hooks::{Boxes, Reason};
use crate::election::HookEnd;
use crate::lease::Deadline;
use crate::time::BootInstant;
use std::time::Duration;

/// From the kill to the second one, where no deadline says it.
const PATIENCE_WITHOUT_DEADLINE: Duration = Duration::from_millis(300);

/// From the candidate to the guard; [`Order::Extend`] goes to the backstop as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The lease was prolonged.
    Extend(Deadline),
    /// An orderly stop: the stop signal, and SIGKILL `kill_after` that where there is one.
    Stop { kill_after: Option<Duration> },
    /// The lease is lost for certain: the stop signal, and SIGKILL after the grace.
    Lose,
    /// SIGKILL now.
    Kill,
    /// Pass this signal on to COMMAND.
    Signal(i32),
    /// Let COMMAND go on that the terminal had stopped.
    Continue,
    /// Why the next orderly stop comes, for hooks.
    Because(Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    Order(Order),
    CandidateGone,
    /// As [`Effect::Start`] said.
    CommandStarted,
    CommandNotStarted(Reason),
    /// COMMAND itself was reaped; its descendants may live on.
    CommandEnded,
    /// The hook that runs was reaped, or could not be started; its descendants may live on.
    HookEnded(HookEnd),
    /// No descendant is left, hooks included.
    Empty,
    /// Time has passed.
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start COMMAND: the hook before it allows it.
    Start,
    /// COMMAND will not be started, for its hook ended so.
    ReportUnready(HookEnd),
    RunLosing,
    RunLost,
    /// SIGKILL to the hook that runs and all below it: its box is over.
    KillHook,
    /// The stop signal to everything in the tree, and SIGCONT after it, so that what is stopped can obey.
    AskTree,
    /// SIGKILL to everything in the tree, again and again until nothing is left.
    KillTree,
    ReportDeadline,
    Signal(i32),
    Continue,
    /// Nothing runs any more, and nothing will.
    Finish,
}

/// What one input leads to, in its order. It takes no memory but its own: none may be left when a kill is due.
#[derive(Clone, Copy, Debug)]
pub struct Effects {
    list: [Effect; Self::MOST],
    length: usize,
}

impl Effects {
    /// Four is the most that is known: a deadline is reported, COMMAND unready, the tree asked and killed.
    const MOST: usize = 6;

    fn push(&mut self, effect: Effect) {
        assert!(self.length < Self::MOST, "an input leads to few effects: {self:?}");
        self.list[self.length] = effect;
        self.length += 1;
    }

    fn extend<const N: usize>(&mut self, effects: [Effect; N]) {
        for effect in effects {
            self.push(effect);
        }
    }
}

impl Default for Effects {
    fn default() -> Self {
        // What stands behind the length is never seen.
        Self { list: [Effect::Finish; Self::MOST], length: 0 }
    }
}

impl std::ops::Deref for Effects {
    type Target = [Effect];

    fn deref(&self) -> &[Effect] {
        &self.list[..self.length]
    }
}

impl<const N: usize> PartialEq<[Effect; N]> for Effects {
    fn eq(&self, other: &[Effect; N]) -> bool {
        **self == other[..]
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::iter::Take<std::array::IntoIter<Effect, { Self::MOST }>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().take(self.length)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    deadline: Deadline,
    grace: Duration,
    boxes: Boxes,
    phase: Phase,
    /// The first that ended it.
    reason: Option<Reason>,
    /// What an orderly stop will have for a reason.
    because: Reason,
    /// The hook before COMMAND was started. Then, or once COMMAND was, the hook after the end is run as well.
    opened: bool,
    /// COMMAND was started.
    ran: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The hook before COMMAND runs, or is killed at `until`.
    Opening {
        until: BootInstant,
    },
    Running,
    /// The hook before the stop signal runs beside COMMAND, and is killed at `until`. The signal follows, and SIGKILL
    /// `kill_after` that.
    Losing {
        until: BootInstant,
        kill_after: Option<Duration>,
    },
    /// The stop signal was sent. SIGKILL follows at `kill_at`, or at the deadline if that is earlier.
    Stopping {
        kill_at: BootInstant,
    },
    Killing,
    /// Nothing is left of the tree. The hook after it runs, and is killed at `until`.
    Closing {
        until: BootInstant,
    },
    /// What that hook left behind is being killed.
    Clearing,
    Finished,
}

impl Policy {
    /// Of a COMMAND that is started at once, without hooks.
    #[must_use]
    pub fn new(deadline: Deadline, grace: Duration) -> Self {
        Self {
            deadline,
            grace,
            boxes: Boxes::default(),
            phase: Phase::Running,
            reason: None,
            because: Reason::Asked,
            opened: false,
            ran: true,
        }
    }

    /// Where there is a box before COMMAND its hook starts now; else COMMAND does.
    #[must_use]
    pub fn with_hooks(now: BootInstant, deadline: Deadline, grace: Duration, boxes: Boxes) -> Self {
        let phase = boxes.lead.map_or(Phase::Running, |most| Phase::Opening { until: now.plus(most) });
        Self { boxes, phase, opened: boxes.lead.is_some(), ran: false, ..Self::new(deadline, grace) }
    }

    /// When [`Input::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> BootInstant {
        match self.phase {
            Phase::Opening { until } => until.min(self.deadline.term_at).min(self.kill_by()),
            Phase::Running => self.deadline.term_at.min(self.kill_by()),
            Phase::Losing { until, .. } => until.min(self.ask_by()).min(self.kill_by()),
            Phase::Stopping { kill_at } => kill_at.min(self.kill_by()),
            Phase::Closing { until } => until.min(self.deadline.kill_at),
            Phase::Killing | Phase::Clearing | Phase::Finished => BootInstant::NEVER,
        }
    }

    /// Until when COMMAND may be started.
    #[must_use]
    pub fn start_by(&self) -> BootInstant {
        self.deadline.term_at
    }

    /// Until when the hook after the tree's end may be started.
    #[must_use]
    pub fn end_by(&self) -> BootInstant {
        self.deadline.kill_at
    }

    /// When nobody trusts the guard any more.
    #[must_use]
    pub fn backstop_at(&self) -> BootInstant {
        self.deadline.backstop_at
    }

    /// Why it ends, once it does.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// When the tree is killed, as things stand, and when whoever sees it alive then kills it without asking anybody.
    #[must_use]
    pub fn ends_at(&self) -> (BootInstant, BootInstant) {
        let kill_at = match self.phase {
            Phase::Opening { .. } | Phase::Running | Phase::Losing { .. } => self.kill_by(),
            Phase::Stopping { kill_at } => kill_at.min(self.kill_by()),
            Phase::Killing | Phase::Closing { .. } | Phase::Clearing | Phase::Finished => BootInstant::from_nanos(0),
        };
        let patience = match self.deadline {
            Deadline::NONE => PATIENCE_WITHOUT_DEADLINE,
            Deadline { kill_at, backstop_at, .. } => backstop_at.since(kill_at),
        };
        (kill_at, kill_at.plus(patience))
    }

    #[must_use]
    pub fn handle(&mut self, now: BootInstant, input: Input) -> Effects {
        let mut effects = Effects::default();
        self.pass_deadline(now, &mut effects);
        match input {
            Input::Order(Order::Extend(deadline)) => {
                // Messages keep their order, and the candidate never shortens; a deadline that has passed stays.
                if now < self.deadline.kill_at && deadline.kill_at > self.deadline.kill_at {
                    self.deadline = deadline;
                }
            }
            Input::Order(Order::Stop { kill_after }) => self.stop(now, self.because, kill_after, &mut effects),
            Input::Order(Order::Lose) => self.stop(now, Reason::Lost, Some(self.grace), &mut effects),
            Input::CandidateGone => self.stop(now, Reason::Killed, Some(self.grace), &mut effects),
            Input::Order(Order::Kill) => self.kill(self.because, &mut effects),
            Input::Order(Order::Signal(signal)) => effects.push(Effect::Signal(signal)),
            Input::Order(Order::Continue) => effects.push(Effect::Continue),
            Input::Order(Order::Because(reason)) => self.because = reason,
            Input::CommandStarted => self.ran = true,
            Input::CommandNotStarted(reason) => self.kill(reason, &mut effects),
            Input::CommandEnded => self.command_ended(now, &mut effects),
            Input::HookEnded(end) => self.hook_ended(now, end, &mut effects),
            Input::Empty => self.empty(now, &mut effects),
            Input::Tick => {}
        }
        self.pass_time(now, &mut effects);
        effects
    }

    /// Before anything else is heard: who was frozen until after the deadline must not ask a frozen tree to end, for
    /// what is asked is continued, and would run beside its successor for a moment.
    fn pass_deadline(&mut self, now: BootInstant, effects: &mut Effects) {
        if now >= self.kill_by() {
            self.kill(Reason::Lost, effects);
        }
    }

    fn pass_time(&mut self, now: BootInstant, effects: &mut Effects) {
        self.pass_deadline(now, effects);
        match self.phase {
            Phase::Opening { .. } | Phase::Running if now >= self.deadline.term_at => {
                effects.push(Effect::ReportDeadline);
                self.stop(now, Reason::Lost, Some(self.grace), effects);
            }
            Phase::Opening { until } if now >= until => {
                effects.push(Effect::ReportUnready(HookEnd::TimedOut));
                self.kill(Reason::Failed, effects);
            }
            Phase::Losing { until, kill_after } if now >= until.min(self.ask_by()) => {
                effects.push(Effect::KillHook);
                self.ask(now, kill_after, effects);
            }
            Phase::Closing { until } if now >= until.min(self.deadline.kill_at) => {
                self.phase = Phase::Clearing;
                effects.extend([Effect::KillHook, Effect::KillTree]);
            }
            Phase::Opening { .. }
            | Phase::Running
            | Phase::Losing { .. }
            | Phase::Stopping { .. }
            | Phase::Killing
            | Phase::Closing { .. }
            | Phase::Clearing
            | Phase::Finished => {}
        }
        // Also where it was only now asked, and has no time.
        if let Phase::Stopping { kill_at } = self.phase
            && now >= kill_at
        {
            self.kill(Reason::Lost, effects);
        }
    }

    /// The stop signal, `kill_after` before SIGKILL; and before it its hook, if COMMAND runs and there is time for one.
    fn stop(&mut self, now: BootInstant, reason: Reason, kill_after: Option<Duration>, effects: &mut Effects) {
        match self.phase {
            Phase::Opening { until } => {
                self.reason.get_or_insert(reason);
                effects.extend([Effect::ReportUnready(HookEnd::Cut), Effect::AskTree]);
                // However long COMMAND might have drained, its hook has its box.
                let kill_at = kill_after.map_or(BootInstant::NEVER, |after| now.plus(after));
                self.phase = Phase::Stopping { kill_at: kill_at.min(until) };
            }
            Phase::Running => {
                self.reason.get_or_insert(reason);
                match self.boxes.losing {
                    Some(most) if now < self.ask_by() => {
                        self.phase = Phase::Losing { until: now.plus(most), kill_after };
                        effects.push(Effect::RunLosing);
                    }
                    Some(_) | None => self.ask(now, kill_after, effects),
                }
            }
            Phase::Losing { until, kill_after: before } => {
                let kill_after = sooner(before, kill_after);
                self.phase = Phase::Losing { until, kill_after };
            }
            Phase::Stopping { kill_at: before } => {
                let kill_at = kill_after.map_or(BootInstant::NEVER, |after| now.plus(after));
                self.phase = Phase::Stopping { kill_at: before.min(kill_at) };
            }
            Phase::Killing | Phase::Closing { .. } | Phase::Clearing | Phase::Finished => {}
        }
    }

    fn ask(&mut self, now: BootInstant, kill_after: Option<Duration>, effects: &mut Effects) {
        self.phase = Phase::Stopping { kill_at: kill_after.map_or(BootInstant::NEVER, |after| now.plus(after)) };
        effects.push(Effect::AskTree);
    }

    fn kill(&mut self, reason: Reason, effects: &mut Effects) {
        match self.phase {
            Phase::Opening { .. } | Phase::Running | Phase::Losing { .. } | Phase::Stopping { .. } => {
                if matches!(self.phase, Phase::Opening { .. }) && reason != Reason::Failed {
                    effects.push(Effect::ReportUnready(HookEnd::Cut));
                }
                self.reason.get_or_insert(reason);
                self.phase = Phase::Killing;
                effects.push(Effect::KillTree);
            }
            // The last hook has its box, and nothing else is left.
            Phase::Killing | Phase::Closing { .. } | Phase::Clearing | Phase::Finished => {}
        }
    }

    /// What it leaves behind has the grace. Nothing is stopped that a hook would have to be told of.
    fn command_ended(&mut self, now: BootInstant, effects: &mut Effects) {
        self.reason.get_or_insert(Reason::Ended);
        if self.phase == Phase::Running {
            self.ask(now, Some(self.grace), effects);
        } else {
            self.stop(now, Reason::Ended, Some(self.grace), effects);
        }
    }

    fn hook_ended(&mut self, now: BootInstant, end: HookEnd, effects: &mut Effects) {
        match self.phase {
            // Nobody starts what is to be stopped at once.
            Phase::Opening { .. } if end == HookEnd::Exited(0) && now >= self.deadline.term_at.min(self.kill_by()) => {}
            Phase::Opening { .. } if end == HookEnd::Exited(0) => {
                self.phase = Phase::Running;
                effects.push(Effect::Start);
            }
            Phase::Opening { .. } => {
                // What never ran needs no end.
                self.opened = !matches!(end, HookEnd::NotStarted(_));
                effects.push(Effect::ReportUnready(end));
                self.kill(Reason::Failed, effects);
            }
            Phase::Losing { kill_after, .. } => self.ask(now, kill_after, effects),
            // What the hook before COMMAND leaves behind has the grace, as what COMMAND does.
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
            Phase::Opening { .. } | Phase::Running | Phase::Losing { .. } | Phase::Stopping { .. } | Phase::Killing => {
                match self.boxes.lost {
                    Some(most) if (self.opened || self.ran) && now < self.deadline.kill_at => {
                        self.phase = Phase::Closing { until: now.plus(most) };
                        effects.push(Effect::RunLost);
                    }
                    Some(_) | None => self.finish(effects),
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

    /// When the tree is killed, so that the hook after it has its box.
    fn kill_by(&self) -> BootInstant {
        self.deadline.kill_at.minus(self.boxes.lost.unwrap_or_default())
    }

    /// When the stop signal is sent, so that the tree has its grace.
    fn ask_by(&self) -> BootInstant {
        self.kill_by().minus(self.grace)
    }
}

/// None is never.
fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod with_hooks;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRACE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    fn until(kill_at: u64) -> Deadline {
        Deadline { term_at: at(kill_at - 5), kill_at: at(kill_at), backstop_at: at(kill_at + 1) }
    }

    #[test]
    fn after_the_deadline_nothing_is_asked_and_so_continued_whatever_comes_first() {
        for input in [
            Input::Order(Order::Lose),
            Input::Order(Order::Stop { kill_after: None }),
            Input::CandidateGone,
            Input::CommandEnded,
            Input::Tick,
        ] {
            let mut policy = Policy::new(until(10), GRACE);
            let effects = policy.handle(at(10), input);
            assert_eq!(effects, [Effect::KillTree], "{input:?}");
        }
    }

    #[test]
    fn the_tree_is_asked_at_term_at_and_killed_at_kill_at() {
        let mut policy = Policy::new(until(10), GRACE);
        assert_eq!(policy.handle(at(4), Input::Tick), []);
        assert_eq!(policy.wake_at(), at(5));
        assert_eq!(policy.handle(at(5), Input::Tick), [Effect::ReportDeadline, Effect::AskTree]);
        assert_eq!(policy.wake_at(), at(10));
        assert_eq!(policy.handle(at(10), Input::Tick), [Effect::KillTree]);
    }

    #[test]
    fn the_end_is_the_earliest_of_all_that_would_kill() {
        let mut policy = Policy::new(until(10), GRACE);
        assert_eq!(policy.ends_at(), (at(10), at(11)));
        let _ = policy.handle(at(1), Input::Order(Order::Stop { kill_after: None }));
        assert_eq!(policy.ends_at(), (at(10), at(11)));
        let _ = policy.handle(at(2), Input::Order(Order::Extend(until(20))));
        assert_eq!(policy.ends_at(), (at(20), at(21)));
        let _ = policy.handle(at(3), Input::Order(Order::Lose));
        assert_eq!(policy.ends_at(), (at(8), at(9)));
        let _ = policy.handle(at(4), Input::Order(Order::Kill));
        assert!(policy.ends_at().1 < at(4));
    }

    #[test]
    fn what_does_not_expire_has_no_end_before_it_is_lost() {
        let mut policy = Policy::new(Deadline::NONE, GRACE);
        assert_eq!(policy.ends_at(), (BootInstant::NEVER, BootInstant::NEVER));
        let _ = policy.handle(at(3), Input::Order(Order::Lose));
        assert_eq!(policy.ends_at(), (at(8), at(8).plus(PATIENCE_WITHOUT_DEADLINE)));
    }

    #[test]
    fn a_guard_that_wakes_after_the_deadline_kills_at_once() {
        let mut policy = Policy::new(until(10), GRACE);
        assert_eq!(policy.handle(at(11), Input::Tick), [Effect::KillTree]);
    }

    #[test]
    fn an_extension_that_arrives_too_late_saves_nothing() {
        let mut policy = Policy::new(until(10), GRACE);
        assert_eq!(policy.handle(at(10), Input::Tick), [Effect::KillTree]);
        assert_eq!(policy.handle(at(11), Input::Order(Order::Extend(until(20)))), []);
        assert_eq!(policy.wake_at(), BootInstant::NEVER);
    }

    #[test]
    fn an_extension_that_arrives_at_the_deadline_is_too_late() {
        let mut policy = Policy::new(until(10), GRACE);
        assert_eq!(policy.handle(at(10), Input::Order(Order::Extend(until(20)))), [Effect::KillTree]);
    }

    #[test]
    fn an_older_extension_does_not_shorten_the_lease() {
        let mut policy = Policy::new(until(20), GRACE);
        assert_eq!(policy.handle(at(1), Input::Order(Order::Extend(until(10)))), []);
        assert_eq!(policy.wake_at(), at(15));
    }

    #[test]
    fn an_orderly_stop_drains_for_as_long_as_the_lease_is_renewed() {
        let mut policy = Policy::new(until(10), GRACE);
        assert_eq!(policy.handle(at(1), Input::Order(Order::Stop { kill_after: None })), [Effect::AskTree]);
        for second in 2..100 {
            assert_eq!(policy.handle(at(second), Input::Order(Order::Extend(until(second + 9)))), []);
        }
        assert_eq!(policy.handle(at(108), Input::Tick), [Effect::KillTree]);
    }

    #[test]
    fn a_drain_that_is_overtaken_by_the_deadline_is_asked_only_once() {
        let mut policy = Policy::new(until(10), GRACE);
        let _ = policy.handle(at(1), Input::Order(Order::Stop { kill_after: None }));
        assert_eq!(policy.handle(at(5), Input::Tick), []);
        assert_eq!(policy.handle(at(6), Input::CandidateGone), []);
        assert_eq!(policy.handle(at(10), Input::Tick), [Effect::KillTree]);
    }

    #[test]
    fn a_tree_without_a_candidate_has_the_grace() {
        let mut policy = Policy::new(Deadline::NONE, GRACE);
        assert_eq!(policy.handle(at(1), Input::CandidateGone), [Effect::AskTree]);
        assert_eq!(policy.wake_at(), at(6));
        assert_eq!(policy.handle(at(6), Input::Tick), [Effect::KillTree]);
    }

    #[test]
    fn what_command_leaves_behind_has_the_grace() {
        let mut policy = Policy::new(Deadline::NONE, GRACE);
        let _ = policy.handle(at(1), Input::Order(Order::Stop { kill_after: None }));
        assert_eq!(policy.handle(at(2), Input::CommandEnded), []);
        assert_eq!(policy.handle(at(7), Input::Tick), [Effect::KillTree]);
    }

    #[test]
    fn an_impatient_stop_kills_at_once() {
        let mut policy = Policy::new(Deadline::NONE, GRACE);
        let _ = policy.handle(at(1), Input::Order(Order::Stop { kill_after: None }));
        assert_eq!(policy.handle(at(2), Input::Order(Order::Kill)), [Effect::KillTree]);
    }

    fn inputs() -> impl Strategy<Value = (u64, Input)> {
        let order = prop_oneof![
            (6_u64..60).prop_map(|kill_at| Order::Extend(until(kill_at))),
            proptest::option::of(0_u64..20)
                .prop_map(|after| Order::Stop { kill_after: after.map(Duration::from_secs) }),
            Just(Order::Lose),
            Just(Order::Continue),
            Just(Order::Signal(1)),
        ];
        let input = prop_oneof![
            order.prop_map(Input::Order),
            Just(Input::CandidateGone),
            Just(Input::CommandEnded),
            Just(Input::Tick),
        ];
        (0_u64..5, input)
    }

    proptest! {
        #[test]
        fn whatever_happens_the_tree_is_asked_at_most_once_and_killed_by_its_deadline(
            steps in proptest::collection::vec(inputs(), 1..40)
        ) {
            let mut policy = Policy::new(until(10), GRACE);
            let (mut now, mut kill_at, mut asked, mut killed) = (0, 10, 0, false);
            for (pause, input) in steps {
                // A guard that is scheduled wakes when it asked to.
                let next = now + pause;
                while policy.wake_at() < at(next) {
                    let wake = policy.wake_at();
                    for effect in policy.handle(wake, Input::Tick) {
                        asked += usize::from(effect == Effect::AskTree);
                        killed |= effect == Effect::KillTree;
                    }
                    prop_assert!(killed || policy.wake_at() > wake, "it would spin");
                }
                now = next;
                if let Input::Order(Order::Extend(deadline)) = input && !killed && now < kill_at {
                    kill_at = kill_at.max(deadline.kill_at.as_nanos() / 1_000_000_000);
                }
                for effect in policy.handle(at(now), input) {
                    asked += usize::from(effect == Effect::AskTree);
                    killed |= effect == Effect::KillTree;
                }
                prop_assert!(asked <= 1);
                prop_assert!(killed || now < kill_at, "alive at {now}, deadline {kill_at}");
            }
        }
    }
}
