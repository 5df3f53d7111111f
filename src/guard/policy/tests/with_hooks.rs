//! Tests of the policy with hooks.

use super::super::*;
use super::DEADLINE;
use crate::election::StartError;
use crate::time::at;
use proptest::prelude::*;

const GRACE: Duration = Duration::from_secs(5);
const HOOK_TIMEOUT: Duration = Duration::from_secs(2);
const ALL: TimeForHooks = TimeForHooks { pre_start: HOOK_TIMEOUT, pre_stop: HOOK_TIMEOUT, post_stop: HOOK_TIMEOUT };
const AROUND: TimeForHooks = TimeForHooks { pre_start: Duration::ZERO, ..ALL };
const OK: Input = Input::HookEnded(HookEnd::Exited(0));
const STOP: Input = Input::Order(Order::Stop { reason: Reason::Asked, kill_after: None });

fn unready(end: HookEnd) -> Effect {
    Effect::Report(TreeEvent::Unready(end))
}

/// A deadline with room for two hook timeouts and the grace.
fn until(kill_at: u64) -> Deadline {
    Deadline { term_at: at(kill_at.saturating_sub(9)), kill_at: at(kill_at), backstop_at: at(kill_at + 1) }
}

fn policy(hooks: TimeForHooks) -> Policy {
    let mut policy = Policy::with_hooks(until(20), GRACE, hooks);
    if hooks.pre_start.is_zero() {
        assert_eq!(policy.handle(at(1), Input::Begin), [Effect::Start]);
        assert_eq!(policy.handle(at(1), Input::CommandStarted), []);
    } else {
        assert_eq!(policy.handle(at(1), Input::Begin), [Effect::RunPreStart]);
    }
    policy
}

#[test]
fn neither_command_nor_a_hook_is_started_after_an_order_to_stop() {
    for (order, effect) in [(Input::CandidateGone, Effect::AskTree), (Input::Order(Order::Kill), Effect::KillTree)] {
        for hooks in [TimeForHooks::default(), ALL] {
            let mut policy = Policy::with_hooks(until(20), GRACE, hooks);
            assert_eq!(policy.handle(at(1), order), [unready(HookEnd::Cut), effect]);
            assert_eq!(policy.handle(at(1), Input::Begin), []);
            assert_eq!(policy.handle(at(1), Input::Empty), [Effect::Finish]);
        }
    }
}

#[test]
fn a_command_that_has_not_begun_is_stopped_without_a_hook() {
    let mut policy = Policy::with_hooks(until(20), GRACE, AROUND);
    assert_eq!(policy.handle(at(1), Input::Begin), [Effect::Start]);
    assert_eq!(policy.handle(at(1), STOP), [Effect::AskTree]);
    assert_eq!(policy.handle(at(1), Input::CommandNotStarted(Reason::Asked)), [Effect::KillTree]);
    assert_eq!(policy.handle(at(1), Input::Empty), [Effect::Finish]);
}

#[test]
fn a_pre_start_hook_that_fails_or_times_out_starts_nothing_and_the_post_stop_hook_runs() {
    let ends = [HookEnd::Exited(3), HookEnd::Signalled(9)];
    let failing = ends.map(|end| (at(2), Input::HookEnded(end), end));
    for (now, input, end) in failing.into_iter().chain([(at(3), Input::Tick, HookEnd::TimedOut)]) {
        let mut policy = policy(ALL);
        assert_eq!(policy.handle(now, input), [unready(end), Effect::KillTree]);
        assert_eq!(policy.handle(now, Input::Empty), [Effect::RunPostStop]);
        assert_eq!(policy.reason(), Some(Reason::Failed));
        assert_eq!(policy.handle(at(4), OK), [Effect::KillTree]);
        assert_eq!(policy.handle(at(4), Input::Empty), [Effect::Finish]);
    }
}

#[test]
fn after_a_pre_start_hook_that_never_started_no_post_stop_hook_runs() {
    let mut policy = policy(ALL);
    let end = HookEnd::NotStarted(StartError(2));
    assert_eq!(policy.handle(at(2), Input::HookEnded(end)), [unready(end), Effect::KillTree]);
    assert_eq!(policy.handle(at(2), Input::Empty), [Effect::Finish]);
}

#[test]
fn after_a_command_that_could_not_become_its_program_no_post_stop_hook_runs() {
    let mut policy = policy(AROUND);
    assert_eq!(policy.handle(at(2), Input::CommandNotStarted(Reason::NotStarted)), [Effect::KillTree]);
    assert_eq!(policy.handle(at(2), Input::Empty), [Effect::Finish]);
    assert_eq!(policy.reason(), Some(Reason::NotStarted));
}

#[test]
fn a_stop_before_command_ends_the_pre_start_hook_and_runs_no_pre_stop_hook() {
    for (now, input, reported, killed) in [
        (at(2), STOP, vec![], vec![]),
        (at(2), Input::Order(Order::Stop { reason: Reason::Lost, kill_after: Some(GRACE) }), vec![], vec![]),
        (at(2), Input::CandidateGone, vec![], vec![]),
        // Its timeout has passed as well.
        (at(11), OK, vec![DEADLINE], vec![Effect::KillTree]),
    ] {
        let mut policy = policy(ALL);
        let effects = policy.handle(now, input);
        let stopped = vec![unready(HookEnd::Cut), Effect::AskTree];
        let killed_at_once = !killed.is_empty();
        assert!(effects.into_iter().eq([reported, stopped, killed].concat()), "{effects:?}");
        // Even a stop that would wait for COMMAND without limit.
        assert!(policy.wake_at() <= at(16) || killed_at_once, "{policy:?}");
        assert_eq!(policy.handle(at(12), Input::Empty), [Effect::RunPostStop]);
    }
}

#[test]
fn a_lease_that_slips_away_leaves_each_part_of_the_stop_its_time() {
    let mut policy = policy(AROUND);
    assert_eq!(policy.handle(at(11), Input::Tick), [DEADLINE, Effect::RunPreStop]);
    assert_eq!(policy.handle(at(13), Input::Tick), [Effect::KillHook, Effect::AskTree]);
    // The end of a killed hook is not the end of COMMAND.
    assert_eq!(policy.handle(at(13), Input::HookEnded(HookEnd::Signalled(9))), []);
    assert_eq!(policy.handle(at(17), Input::Tick), []);
    assert_eq!(policy.handle(at(18), Input::Tick), [Effect::KillTree]);
    assert_eq!(policy.handle(at(18), Input::Empty), [Effect::RunPostStop]);
    assert_eq!(policy.handle(at(20), Input::Tick), [Effect::KillHook, Effect::KillTree]);
}

#[test]
fn a_hook_that_was_killed_does_not_shorten_an_orderly_stop() {
    let mut policy = Policy::with_hooks(Deadline::NONE, GRACE, AROUND);
    assert_eq!(policy.handle(at(1), Input::Begin), [Effect::Start]);
    assert_eq!(policy.handle(at(1), Input::CommandStarted), []);
    assert_eq!(policy.handle(at(1), STOP), [Effect::RunPreStop]);
    assert_eq!(policy.handle(at(3), Input::Tick), [Effect::KillHook, Effect::AskTree]);
    assert_eq!(policy.handle(at(3), Input::HookEnded(HookEnd::Signalled(9))), []);
    assert_eq!(policy.wake_at(), BootInstant::NEVER);
}

#[test]
fn a_guard_that_wakes_late_gives_the_grace_to_command_and_not_to_the_hook() {
    let mut late = policy(AROUND);
    assert_eq!(late.handle(at(12), Input::Tick), [DEADLINE, Effect::RunPreStop]);
    assert_eq!(late.wake_at(), at(13));
    let mut later = policy(AROUND);
    assert_eq!(later.handle(at(14), Input::Tick), [DEADLINE, Effect::AskTree]);
    let mut too_late = policy(AROUND);
    assert_eq!(too_late.handle(at(21), Input::Tick), [DEADLINE, Effect::KillTree]);
    assert_eq!(too_late.handle(at(21), Input::Empty), [Effect::Finish]);
}

#[test]
fn a_pre_stop_hook_that_ends_command_may_finish() {
    let mut policy = policy(AROUND);
    assert_eq!(policy.handle(at(2), STOP), [Effect::RunPreStop]);
    assert_eq!(policy.handle(at(3), Input::CommandEnded), []);
    assert_eq!(policy.handle(at(3), OK), [Effect::AskTree]);
    assert_eq!(policy.wake_at(), at(8));
}

/// What is alive below a guard, as far as the policy can know.
#[derive(Debug, Default)]
struct Below {
    hook: bool,
    command: bool,
    rest: bool,
    seen: Vec<Effect>,
}

impl Below {
    fn is_empty(&self) -> bool {
        !(self.hook || self.command || self.rest)
    }

    fn count(&self, effect: Effect) -> usize {
        self.seen.iter().filter(|&&seen| seen == effect).count()
    }

    /// Feeds `policy` and carries out its effects, as a guard does.
    fn feed(&mut self, policy: &mut Policy, now: BootInstant, input: Input) -> Result<(), TestCaseError> {
        for effect in policy.handle(now, input) {
            self.seen.push(effect);
            match effect {
                Effect::Start => {
                    prop_assert!(!self.hook && self.count(Effect::AskTree) + self.count(Effect::KillTree) == 0);
                    prop_assert!(now < policy.deadline.term_at, "started too late");
                    self.command = true;
                    self.feed(policy, now, Input::CommandStarted)?;
                }
                Effect::RunPreStart => {
                    prop_assert!(self.seen == [Effect::RunPreStart]);
                    self.hook = true;
                }
                Effect::RunPreStop => {
                    prop_assert!(self.command && self.count(Effect::AskTree) == 0);
                    self.hook = true;
                }
                Effect::RunPostStop => {
                    prop_assert!(self.is_empty() && now < policy.deadline.kill_at);
                    self.hook = true;
                }
                Effect::KillHook => self.hook = false,
                Effect::KillTree => {
                    (self.hook, self.command, self.rest) = (false, false, false);
                }
                Effect::Finish => prop_assert!(self.is_empty()),
                Effect::Report(TreeEvent::Unready(_)) => prop_assert!(self.count(Effect::Start) == 0),
                Effect::AskTree | Effect::Report(_) | Effect::Signal(_) | Effect::Continue => {}
            }
        }
        if self.is_empty() && input != Input::Empty && self.count(Effect::Finish) == 0 && !self.seen.is_empty() {
            self.feed(policy, now, Input::Empty)?;
        }
        for once in [Effect::Start, Effect::RunPreStop, Effect::AskTree, Effect::RunPostStop, Effect::Finish] {
            prop_assert!(self.count(once) <= 1, "{:?}", self.seen);
        }
        prop_assert!(now < policy.deadline.kill_at || self.is_empty(), "alive at {now:?}: {self:?} {policy:?}");
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Order(Order),
    CandidateGone,
    HookEnds(i32),
    CommandEnds { leaves: bool },
    RestEnds,
    Nothing,
}

fn steps() -> impl Strategy<Value = (u64, Step)> {
    let step = prop_oneof![
        (9_u64..60).prop_map(|kill_at| Step::Order(Order::Extend(until(kill_at)))),
        proptest::option::of(0_u64..20).prop_map(|after| Step::Order(Order::Stop {
            reason: Reason::Asked,
            kill_after: after.map(Duration::from_secs)
        })),
        Just(Step::Order(Order::Stop { reason: Reason::Lost, kill_after: Some(GRACE) })),
        Just(Step::Order(Order::Kill)),
        Just(Step::CandidateGone),
        (0_i32..2).prop_map(Step::HookEnds),
        any::<bool>().prop_map(|leaves| Step::CommandEnds { leaves }),
        Just(Step::RestEnds),
        Just(Step::Nothing),
    ];
    (0_u64..4, step)
}

fn hooks() -> impl Strategy<Value = TimeForHooks> {
    let most = || prop_oneof![Just(Duration::ZERO), Just(HOOK_TIMEOUT)];
    let all = (most(), most(), most());
    all.prop_map(|(pre_start, pre_stop, post_stop)| TimeForHooks { pre_start, pre_stop, post_stop })
}

proptest! {
    #[test]
    fn whatever_happens_hooks_keep_their_order_and_nothing_lives_at_the_deadline(
        hooks in hooks(), script in proptest::collection::vec(steps(), 1..40)
    ) {
        let mut policy = Policy::with_hooks(until(20), GRACE, hooks);
        let mut below = Below::default();
        below.feed(&mut policy, at(1), Input::Begin)?;
        let mut now = 1;
        for (pause, step) in script.into_iter().chain([(100, Step::Nothing)]) {
            // A guard that the kernel schedules wakes when it asked to.
            let next = now + pause;
            while policy.wake_at() < at(next) {
                let wake = policy.wake_at();
                below.feed(&mut policy, wake, Input::Tick)?;
                prop_assert!(policy.wake_at() > wake, "it would spin: {policy:?}");
            }
            now = next;
            match step {
                Step::Order(order) => below.feed(&mut policy, at(now), Input::Order(order))?,
                Step::CandidateGone => below.feed(&mut policy, at(now), Input::CandidateGone)?,
                Step::HookEnds(status) if below.hook => {
                    below.hook = false;
                    below.feed(&mut policy, at(now), Input::HookEnded(HookEnd::Exited(status)))?;
                }
                Step::CommandEnds { leaves } if below.command => {
                    (below.command, below.rest) = (false, leaves);
                    below.feed(&mut policy, at(now), Input::CommandEnded)?;
                }
                Step::RestEnds if below.rest => {
                    below.rest = false;
                    below.feed(&mut policy, at(now), Input::Tick)?;
                }
                Step::HookEnds(_) | Step::CommandEnds { .. } | Step::RestEnds | Step::Nothing => {
                    below.feed(&mut policy, at(now), Input::Tick)?;
                }
            }
        }
        prop_assert_eq!(below.count(Effect::Finish), 1);
        prop_assert_eq!(below.count(Effect::RunPostStop), usize::from(!hooks.post_stop.is_zero()));
    }
}
