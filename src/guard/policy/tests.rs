//! Tests of the policy without hooks. Those with hooks are in [`with_hooks`].

mod with_hooks;

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
fn after_the_deadline_the_tree_is_killed_without_a_stop_signal_whatever_comes_first() {
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
fn a_guard_that_is_late_may_still_kill_after_the_others_have_begun_to() {
    let mut policy = Policy::new(until(10), GRACE);
    assert_eq!(policy.kill_timer_at(false), at(11).plus(Duration::from_millis(500)));
    let _ = policy.handle(at(2), Input::Order(Order::Extend(until(20))));
    assert_eq!(policy.kill_timer_at(false), at(21).plus(Duration::from_millis(500)));
    assert_eq!(policy.kill_timer_at(true), at(21), "the kernel kills the whole tree with it");
    assert_eq!(Policy::new(Deadline::NONE, GRACE).kill_timer_at(false), BootInstant::NEVER);
}

#[test]
fn the_earliest_reason_to_kill_decides_the_end() {
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
fn a_lease_that_does_not_expire_has_no_end_until_it_is_lost() {
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
fn a_drain_overtaken_by_the_deadline_gets_one_stop_signal() {
    let mut policy = Policy::new(until(10), GRACE);
    let _ = policy.handle(at(1), Input::Order(Order::Stop { kill_after: None }));
    assert_eq!(policy.handle(at(5), Input::Tick), []);
    assert_eq!(policy.handle(at(6), Input::CandidateGone), []);
    assert_eq!(policy.handle(at(10), Input::Tick), [Effect::KillTree]);
}

#[test]
fn a_tree_without_a_candidate_gets_the_grace() {
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
fn an_order_to_kill_during_a_stop_kills_at_once() {
    let mut policy = Policy::new(Deadline::NONE, GRACE);
    let _ = policy.handle(at(1), Input::Order(Order::Stop { kill_after: None }));
    assert_eq!(policy.handle(at(2), Input::Order(Order::Kill)), [Effect::KillTree]);
}

fn inputs() -> impl Strategy<Value = (u64, Input)> {
    let order = prop_oneof![
        (6_u64..60).prop_map(|kill_at| Order::Extend(until(kill_at))),
        proptest::option::of(0_u64..20).prop_map(|after| Order::Stop { kill_after: after.map(Duration::from_secs) }),
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
            // A guard that the kernel schedules wakes when it asked to.
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
