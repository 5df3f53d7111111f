//! Tests of the policy without hooks. Those with hooks are in [`with_hooks`].

mod with_hooks;

use super::*;
use crate::guard::lateness::{Lateness, Measure};
use crate::lease::{TimeForHooks, Timing, TimingRequest};
use crate::time::at;
use proptest::prelude::*;

const GRACE: Duration = Duration::from_secs(5);
const DEADLINE: Effect = Effect::Report(TreeEvent::DeadlineReached);

fn stop(kill_after: Option<Duration>) -> Input {
    Input::Order(Order::Stop { reason: Reason::Asked, kill_after })
}

fn until(kill_at: u64) -> Deadline {
    Deadline { term_at: at(kill_at - 5), kill_at: at(kill_at), backstop_at: at(kill_at + 1) }
}

#[test]
fn after_the_deadline_the_tree_is_killed_without_a_stop_signal_whatever_comes_first() {
    for input in [stop(Some(GRACE)), stop(None), Input::CandidateGone, Input::CommandEnded, Input::Tick] {
        let mut policy = Policy::new(until(10), GRACE);
        assert_eq!(policy.handle(at(10), input), [DEADLINE, Effect::KillTree], "{input:?}");
    }
}

#[test]
fn a_drain_without_limit_ends_when_the_command_has_run_for_as_long_as_it_may() {
    let max_run = Some(Duration::from_secs(20));
    let mut policy = Policy { max_run, ..Policy::new(Deadline::NONE, GRACE) };
    let _ = policy.handle(at(1), Input::CommandStarted);
    assert_eq!(policy.handle(at(3), stop(None)), [Effect::AskTree]);
    assert_eq!(policy.wake_at(), at(26));
    assert_eq!(policy.handle(at(26), Input::Tick), [Effect::KillTree]);
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
    let _ = policy.handle(at(1), stop(None));
    assert_eq!(policy.ends_at(), (at(10), at(11)));
    let _ = policy.handle(at(2), Input::Order(Order::Extend(until(20))));
    assert_eq!(policy.ends_at(), (at(20), at(21)));
    let _ = policy.handle(at(3), stop(Some(GRACE)));
    assert_eq!(policy.ends_at(), (at(8), at(9)));
    let _ = policy.handle(at(4), Input::Order(Order::Kill));
    assert!(policy.ends_at().1 < at(4));
}

#[test]
fn a_lease_that_does_not_expire_has_no_end_until_it_is_lost() {
    let mut policy = Policy::new(Deadline::NONE, GRACE);
    assert_eq!(policy.ends_at(), (BootInstant::NEVER, BootInstant::NEVER));
    let _ = policy.handle(at(3), stop(Some(GRACE)));
    assert_eq!(policy.ends_at(), (at(8), at(8).plus(PATIENCE_WITHOUT_DEADLINE)));
}

#[test]
fn an_extension_that_arrives_too_late_saves_nothing() {
    let mut policy = Policy::new(until(10), GRACE);
    assert_eq!(policy.handle(at(10), Input::Tick), [DEADLINE, Effect::KillTree]);
    assert_eq!(policy.handle(at(11), Input::Order(Order::Extend(until(20)))), []);
    assert_eq!(policy.wake_at(), BootInstant::NEVER);
    // Nor does one that arrives at the deadline.
    let mut policy = Policy::new(until(10), GRACE);
    assert_eq!(policy.handle(at(10), Input::Order(Order::Extend(until(20)))), [DEADLINE, Effect::KillTree]);
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
    assert_eq!(policy.handle(at(1), stop(None)), [Effect::AskTree]);
    for second in 2..100 {
        assert_eq!(policy.handle(at(second), Input::Order(Order::Extend(until(second + 9)))), []);
    }
    // The deadline that overtakes it brings no other stop signal.
    assert_eq!(policy.handle(at(103), Input::Tick), []);
    assert_eq!(policy.handle(at(104), Input::CandidateGone), []);
    assert_eq!(policy.handle(at(108), Input::Tick), [DEADLINE, Effect::KillTree]);
}

#[test]
fn what_command_leaves_behind_has_the_grace() {
    let mut policy = Policy::new(Deadline::NONE, GRACE);
    let _ = policy.handle(at(1), stop(None));
    assert_eq!(policy.handle(at(2), Input::CommandEnded), []);
    assert_eq!(policy.handle(at(7), Input::Tick), [Effect::KillTree]);
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The policy of a guard for `most` of one second.
fn cautious() -> Policy {
    let measure = Measure { every: millis(250), most: millis(1000), presumed: Duration::ZERO, under_a_quota: false };
    Policy { caution: measure.into(), ..Policy::new(until(10), GRACE) }
}

#[test]
fn a_guard_that_is_woken_late_acts_earlier_and_so_does_its_kill_timer() {
    let mut policy = cautious();
    assert_eq!(policy.handle(at(1), Input::Late(millis(100))), []);
    assert_eq!(policy.wake_at(), at(5).minus(millis(400)));
    assert_eq!(policy.start_by(), at(5).minus(millis(400)));
    assert_eq!(policy.kill_timer_at(true), at(11).minus(millis(400)));
    assert_eq!(policy.ends_at(), (at(10).minus(millis(400)), at(11).minus(millis(400))));
    let _ = policy.handle(at(1), Input::Order(Order::Late(millis(200))));
    assert_eq!(policy.wake_at(), at(5).minus(millis(800)), "the backstop is woken later than the guard");
    let _ = policy.handle(at(1), Input::Order(Order::Late(millis(9000))));
    assert_eq!(policy.wake_at(), at(4), "there is a bound");
    assert_eq!(policy.handle(at(4), Input::Tick), [Effect::Report(TreeEvent::DeadlineReached), Effect::AskTree]);
    assert_eq!(policy.handle(at(9), Input::Tick), [Effect::KillTree]);
}

#[test]
fn a_guard_that_is_woken_late_looks_for_processes_to_ask_only_if_that_leaves_it_time_to_kill() {
    let mut policy = cautious();
    let _ = policy.handle(at(1), stop(Some(millis(500))));
    let kill_at = at(1).plus(millis(500));
    assert_eq!(policy.asks_until(), kill_at);
    let _ = policy.handle(at(1), Input::Late(millis(50)));
    assert_eq!(policy.asks_until(), kill_at.minus(millis(200)));
    let _ = policy.handle(at(1), Input::Order(Order::Late(millis(9000))));
    assert_eq!(policy.asks_until(), kill_at.minus(millis(1000)), "there is no time");
}

#[test]
fn lateness_that_is_over_gives_the_time_back() {
    let mut policy = cautious();
    let _ = policy.handle(at(1), Input::Late(millis(200)));
    let _ = policy.handle(at(2), Input::Late(Duration::ZERO));
    assert_eq!(policy.wake_at(), at(5));
    let mut never = Policy::new(Deadline::NONE, GRACE);
    let _ = never.handle(at(1), Input::Late(millis(200)));
    assert_eq!(never.wake_at(), BootInstant::NEVER);
}

#[test]
fn an_extension_that_only_the_guards_lateness_kept_is_in_time_until_the_deadline_of_the_lease() {
    let mut policy = cautious();
    let _ = policy.handle(at(1), Input::Late(millis(250)));
    let after = at(9).plus(millis(500));
    assert_eq!(policy.handle(after, Input::Order(Order::Extend(until(20)))), []);
    let mut policy = cautious();
    let _ = policy.handle(at(1), Input::Late(millis(250)));
    assert_eq!(policy.handle(at(10), Input::Order(Order::Extend(until(20)))), [DEADLINE, Effect::KillTree]);
}

/// A timing that is accepted.
fn timings() -> impl Strategy<Value = Timing> {
    let parts = (1500_u64..120_000, 1_u64..60, 0_u64..60, proptest::option::of(1_u64..20));
    parts.prop_filter_map("there is room", |(lease, renew, grace, post_stop)| {
        let part = |percent: u64| millis(lease * percent / 100);
        let hooks = TimeForHooks { post_stop: post_stop.map_or(Duration::ZERO, part), ..TimeForHooks::default() };
        let (renew_interval, stop_grace) = (part(renew), part(grace));
        Timing::new(TimingRequest { lease: millis(lease), renew_interval, stop_grace, hooks, ..Default::default() })
            .ok()
    })
}

proptest! {
    #[test]
    fn no_sequence_of_lateness_ends_a_leadership_whose_renewals_are_answered_and_half_of_the_outage_remains(
        timing in timings(),
        presumed in 0_u64..100_000,
        under_a_quota: bool,
        answers in proptest::collection::vec(0.0_f64..1.0, 1..20),
        late in proptest::collection::vec((0_u64..100_000, 0_u64..100_000), 1..60),
    ) {
        let half = timing.outage() / 2;
        let measure = Measure { presumed: millis(presumed), under_a_quota, ..Measure::of(&timing) };
        let first = at(1_000);
        let mut heard = timing.deadline(first.plus(timing.lease));
        let policy = Policy::with_hooks(heard, timing.stop_grace, timing.hooks);
        let mut policy = Policy { caution: measure.into(), ..policy };
        let _ = policy.handle(first, Input::CommandStarted);
        let renewals = answers.iter().zip(1..).map(|(part, number)| {
            let sent = first.plus(timing.renew_interval * number);
            (sent, sent.plus(half.mul_f64(*part)), timing.deadline(sent.plus(timing.lease)))
        });
        let mut renewals = renewals.collect::<Vec<_>>().into_iter().peekable();
        let mut lateness = Lateness::new(first, measure.presumed);
        let (mut now, mut late) = (first, late.iter().cycle());
        while let Some((sent, arrives, _)) = renewals.peek().copied() {
            prop_assert!(policy.wake_at() >= sent.plus(half), "half of the outage remains");
            let wanted = arrives.min(policy.wake_at()).max(now);
            let (guards, backstops) = late.next().unwrap();
            // A guard that is not even woken before the deadline of the lease refuses what it hears.
            let latest = heard.kill_at.minus(timing.hooks.post_stop).minus(Duration::from_nanos(1));
            now = wanted.plus(millis(*guards)).min(latest);
            lateness.add(now, now.since(wanted));
            let mut inputs = Vec::new();
            while let Some((_, _, deadline)) = renewals.next_if(|(_, arrives, _)| *arrives <= now) {
                heard = deadline;
                inputs.push(Input::Order(Order::Extend(deadline)));
            }
            inputs.push(Input::Order(Order::Late(millis(*backstops))));
            inputs.push(Input::Late(lateness.worst(now)));
            // What the last renewal does not cover is not the guard's fault.
            if renewals.peek().is_none() && now >= heard.term_at.minus(half) {
                break;
            }
            inputs.push(Input::Tick);
            for input in inputs {
                prop_assert_eq!(policy.handle(now, input), [], "{:?} at {:?}", input, now);
            }
        }
    }
}
