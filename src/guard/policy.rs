//! What the guard does when: a pure machine without a clock.
//!
//! The hazard: two reasons to stop can come in any order and at once (an orderly stop that drains for hours, the
//! lease slipping away during it, the candidate dying, COMMAND leaving children behind). COMMAND must get the
//! stop signal exactly once (a second one makes many programs quit without their drain), and the earliest of all
//! the reasons to kill must win.

use crate::lease::Deadline;
use crate::time::BootInstant;
use std::time::Duration;

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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    Order(Order),
    CandidateGone,
    /// COMMAND itself was reaped; its descendants may live on.
    CommandEnded,
    /// Time has passed.
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The stop signal to everything in the tree, and SIGCONT after it, so that what is stopped can obey.
    AskTree,
    /// SIGKILL to everything in the tree, again and again until nothing is left.
    KillTree,
    ReportDeadline,
    Signal(i32),
    Continue,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    deadline: Deadline,
    grace: Duration,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Running,
    /// The stop signal was sent. SIGKILL follows at `kill_at`, or at the deadline if that is earlier.
    Stopping {
        kill_at: BootInstant,
    },
    Killing,
}

impl Policy {
    #[must_use]
    pub fn new(deadline: Deadline, grace: Duration) -> Self {
        Self { deadline, grace, phase: Phase::Running }
    }

    /// When [`Input::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> BootInstant {
        match self.phase {
            Phase::Running => self.deadline.term_at.min(self.deadline.kill_at),
            Phase::Stopping { kill_at } => kill_at.min(self.deadline.kill_at),
            Phase::Killing => BootInstant::NEVER,
        }
    }

    #[must_use]
    pub fn handle(&mut self, now: BootInstant, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        let in_grace = now.plus(self.grace);
        match input {
            Input::Order(Order::Extend(deadline)) => {
                // Messages keep their order, and the candidate never shortens; a deadline that has passed stays.
                if now < self.deadline.kill_at && deadline.kill_at > self.deadline.kill_at {
                    self.deadline = deadline;
                }
            }
            Input::Order(Order::Stop { kill_after }) => {
                self.stop(kill_after.map_or(BootInstant::NEVER, |after| now.plus(after)), &mut effects);
            }
            Input::Order(Order::Lose) | Input::CandidateGone | Input::CommandEnded => {
                self.stop(in_grace, &mut effects);
            }
            Input::Order(Order::Kill) => self.kill(&mut effects),
            Input::Order(Order::Signal(signal)) => effects.push(Effect::Signal(signal)),
            Input::Order(Order::Continue) => effects.push(Effect::Continue),
            Input::Tick => {}
        }
        self.pass_time(now, &mut effects);
        effects
    }

    fn pass_time(&mut self, now: BootInstant, effects: &mut Vec<Effect>) {
        if now >= self.deadline.kill_at {
            self.kill(effects);
        }
        match self.phase {
            Phase::Running if now >= self.deadline.term_at => {
                effects.push(Effect::ReportDeadline);
                self.stop(now.plus(self.grace), effects);
            }
            Phase::Stopping { kill_at } if now >= kill_at => self.kill(effects),
            Phase::Running | Phase::Stopping { .. } | Phase::Killing => {}
        }
    }

    fn stop(&mut self, kill_at: BootInstant, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Running => {
                self.phase = Phase::Stopping { kill_at };
                effects.push(Effect::AskTree);
            }
            Phase::Stopping { kill_at: before } => self.phase = Phase::Stopping { kill_at: before.min(kill_at) },
            Phase::Killing => {}
        }
    }

    fn kill(&mut self, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Running | Phase::Stopping { .. } => {
                self.phase = Phase::Killing;
                effects.push(Effect::KillTree);
            }
            Phase::Killing => {}
        }
    }
}

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
    fn the_tree_is_asked_at_term_at_and_killed_at_kill_at() {
        let mut policy = Policy::new(until(10), GRACE);
        assert_eq!(policy.handle(at(4), Input::Tick), []);
        assert_eq!(policy.wake_at(), at(5));
        assert_eq!(policy.handle(at(5), Input::Tick), [Effect::ReportDeadline, Effect::AskTree]);
        assert_eq!(policy.wake_at(), at(10));
        assert_eq!(policy.handle(at(10), Input::Tick), [Effect::KillTree]);
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
