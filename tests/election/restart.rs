//! COMMAND that is started again under the same lease.

use super::*;
use leaderrun::internals::election::{Interrupt, Restart, RestartWhen};

const FAILED: CommandEnd = CommandEnd::Exited(3);

pub(super) const RESTART: Restart =
    Restart { when: RestartWhen::OnFailure, limit: 2, delay: Duration::from_secs(1), healthy: Duration::from_mins(1) };

fn restarting(change: impl FnOnce(&mut Settings)) -> Play {
    Play::leading(|settings| {
        settings.restart = Some(RESTART);
        change(settings);
    })
}

/// The same, where a pause takes so many seconds.
fn restarting_after(seconds: u64) -> Play {
    let delay = Duration::from_secs(seconds);
    restarting(|settings| settings.restart = Some(Restart { delay, ..RESTART }))
}

/// COMMAND ends, and its tree is dead.
fn ends(play: &mut Play, end: CommandEnd) -> Vec<Action> {
    assert_eq!(play.tell(Event::Tree(TreeEvent::Ended(end))), []);
    play.tell(Event::Tree(TreeEvent::Dead))
}

fn fails(play: &mut Play, number: u32) -> Duration {
    let actions = ends(play, FAILED);
    match actions[..] {
        [Action::Say(Notice::Restarting { end: FAILED, pause, restart, limit: 2 })] if restart == number => pause,
        _ => panic!("{actions:?}"),
    }
}

fn starts(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Start { term: TERM, .. })).count()
}

fn ended(how: Ended) -> Action {
    Action::Ended { term: TERM, how }
}

#[test]
fn a_command_that_fails_is_started_again_in_its_term_after_pauses_that_double() {
    let mut play = restarting(|_| {});
    let mut bounds = [(0.75, 1.0), (1.5, 2.0)].into_iter();
    for number in 1..=2 {
        let pause = fails(&mut play, number).as_secs_f64();
        let (least, most) = bounds.next().unwrap();
        assert!((least..=most).contains(&pause), "{pause}");
        let due = play.now.as_secs_f64() + pause;
        assert_eq!(play.election.view(None).role, Role::Restarting { term: TERM, end: FAILED });
        assert_eq!(starts(&play.renewing_until(due - 0.01)), 0);
        assert_eq!(starts(&play.renewing_until(due + 0.01)), 1);
        assert_eq!(play.election.view(None).role, Role::Leader(TERM));
    }
}

#[test]
fn the_lease_is_renewed_while_nothing_runs() {
    let mut play = restarting_after(40);
    fails(&mut play, 1);
    let actions = play.renewing_until(29.0);
    assert!((5..=6).contains(&renewals(&actions)), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Extend(_))), "there is no guard to be told");
    assert_eq!(starts(&play.renewing_until(41.0)), 1);
}

/// It looks now and then, and sees the shard free.
pub fn claims_only_after(play: &mut Play, seconds: f64) {
    let begun = play.now.as_secs_f64();
    let mut looks = 0;
    loop {
        let actions = play.until(play.now.as_secs_f64() + 0.1);
        if has(&actions, &Action::Claim) {
            break;
        }
        if has(&actions, &Action::Observe) {
            looks += 1;
            play.tell(Event::Observed { answer: Ok(Observation::Free) });
        }
        assert!(play.now.as_secs_f64() < begun + seconds + 1.0, "it never claims");
    }
    let waited = play.now.as_secs_f64() - begun;
    assert!((seconds..seconds + 0.2).contains(&waited) && looks > 1 && looks < 100, "{waited} {looks}");
}

#[test]
fn with_no_wait_the_last_status_is_what_is_left() {
    let mut play = restarting(|settings| {
        settings.restart = Some(Restart { limit: 0, ..RESTART });
        settings.patience = Patience::Once;
    });
    shows(&ends(&mut play, FAILED), &RELEASE);
    play.leaves(Outcome::Ended(FAILED));
}

#[test]
fn a_run_that_lasted_long_enough_begins_a_new_row() {
    let mut play = restarting(|_| {});
    fails(&mut play, 1);
    assert_eq!(starts(&play.renewing_until(10.0)), 1);
    fails(&mut play, 2);
    assert_eq!(starts(&play.renewing_until(15.0)), 1);
    assert_eq!(starts(&play.renewing_until(80.0)), 0);
    fails(&mut play, 1);
}

#[test]
fn what_ends_as_it_should_is_not_started_again_unless_that_is_wanted() {
    let always = Some(Restart { when: RestartWhen::Always, ..RESTART });
    let on_failure = Some(RESTART);
    for (restart, end, again) in [
        (on_failure, CommandEnd::Exited(0), false),
        (on_failure, CommandEnd::Signalled(15), true),
        (on_failure, CommandEnd::Signalled(2), true),
        (always, CommandEnd::Exited(0), true),
        (always, CommandEnd::Signalled(2), true),
        (None, CommandEnd::Exited(1), false),
    ] {
        let mut play = restarting(|settings| settings.restart = restart);
        let actions = ends(&mut play, end);
        assert_eq!(has(&actions, &RELEASE), !again, "{end:?}: {actions:?}");
    }
}

#[test]
fn a_request_while_nothing_runs_gets_the_lease_back_at_once_and_the_last_status() {
    let mut play = restarting(|_| {});
    fails(&mut play, 1);
    let actions = play.tell(Event::Asked { signal: 15 });
    assert_eq!(actions, [ended(Ended::Asked(15)), Action::ForgetRenewals, RELEASE]);
    play.leaves(Outcome::Ended(FAILED));
}

#[test]
fn a_command_that_was_asked_to_stop_is_not_started_again() {
    let mut play = restarting(|_| {});
    play.tell(Event::Asked { signal: 15 });
    assert!(has(&ends(&mut play, FAILED), &RELEASE));
    // It ended by itself, and what it left is still dying.
    let mut play = restarting(|_| {});
    play.tell(Event::Tree(TreeEvent::Ended(FAILED)));
    play.tell(Event::Asked { signal: 15 });
    assert!(has(&play.dead(), &RELEASE));
}

#[test]
fn a_command_that_the_keyboard_ended_is_not_started_again_whatever_its_status() {
    let interrupt = Interrupt { signal: 2, command_alone: true };
    for end in [CommandEnd::Exited(0), FAILED, CommandEnd::Exited(130), CommandEnd::Signalled(2)] {
        for key_first in [true, false] {
            let mut play =
                restarting(|settings| settings.restart = Some(Restart { when: RestartWhen::Always, ..RESTART }));
            let mut events = [TreeEvent::Interrupted(interrupt), TreeEvent::Ended(end)];
            if !key_first {
                events.reverse();
            }
            for event in events {
                assert_eq!(play.tell(Event::Tree(event)), []);
            }
            assert!(has(&play.dead(), &RELEASE), "{end:?}");
            let actions = play.released();
            let by_key = end == CommandEnd::Signalled(2);
            let outcome = if by_key { Outcome::EndedByKey(interrupt) } else { Outcome::Ended(end) };
            assert!(has(&actions, &Action::End(outcome)), "{actions:?}");
        }
    }
}

#[test]
fn a_loss_while_what_it_left_is_dying_is_a_loss() {
    let mut play = restarting(|_| {});
    play.until(5.0);
    play.tell(Event::Tree(TreeEvent::Ended(FAILED)));
    play.renewed(Ok(Renewal::Lost(Some(other()))));
    let actions = play.tell(Event::Tree(TreeEvent::Dead));
    let how = ended(Ended::Lost(Loss::TakenBy(other())));
    assert_eq!(actions, [Action::ForgetRenewals, how, Action::Claim]);
}

#[test]
fn a_loss_while_nothing_runs_ends_the_leadership() {
    let mut play = restarting_after(40);
    fails(&mut play, 1);
    let actions = play.answered(5.0, Ok(Renewal::Lost(Some(other()))));
    assert!(has(&actions, &ended(Ended::Lost(Loss::TakenBy(other())))), "{actions:?}");
    assert!(has(&actions, &Action::Claim), "{actions:?}");

    let mut play = restarting_after(40);
    fails(&mut play, 1);
    let actions = play.until(13.15);
    assert!(has(&actions, &ended(Ended::Lost(Loss::DeadlinePassed))), "{actions:?}");
    assert_eq!(starts(&actions), 0);
}

#[test]
fn it_is_not_started_with_too_little_of_the_lease_left() {
    let mut play = restarting_after(8);
    fails(&mut play, 1);
    let actions = play.until(9.0);
    assert!(starts(&actions) == 0 && renewals(&actions) > 1, "no renewal was answered: {actions:?}");
    assert_eq!(starts(&play.renewed(Ok(Renewal::Renewed))), 1);
}

#[test]
fn orders_that_were_asked_for_before_the_pause_was_over_start_nothing() {
    let mut play = restarting(|_| {});
    play.orders = None;
    play.until(4.5);
    let due = 4.5 + fails(&mut play, 1).as_secs_f64();
    assert_eq!(renewals(&play.until(due - 0.01)), 1);
    shows(&play.renewed(Ok(Renewal::Renewed)), &Action::ReadOrders);
    assert_eq!(play.until(due + 0.1), []);
    assert_eq!(play.ordered(Directives::default()), [Action::ReadOrders]);
    assert_eq!(starts(&play.ordered(Directives::default())), 1);
}

#[test]
fn what_cannot_be_executed_or_ran_for_too_long_is_not_started_again() {
    let mut play = restarting(|_| {});
    play.tell(Event::Tree(TreeEvent::NotStarted(StartError(2))));
    assert!(has(&play.dead(), &RELEASE));
    let mut play = restarting(|settings| settings.max_run = Some(Duration::from_secs(2)));
    play.until(3.0);
    assert!(has(&ends(&mut play, FAILED), &RELEASE));
}

#[test]
fn hooks_before_a_run_and_what_it_leaves_behind_do_not_make_it_healthy() {
    let mut play =
        restarting(|settings| settings.restart = Some(Restart { healthy: Duration::from_secs(2), ..RESTART }));
    // Started at 0 s: its hook takes 3 s, it runs for 1 s, and what it leaves behind for 3 s.
    play.renewing_until(3.0);
    play.tell(Event::Tree(TreeEvent::Started));
    play.renewing_until(4.0);
    play.tell(Event::Tree(TreeEvent::Ended(FAILED)));
    play.renewing_until(7.0);
    let actions = play.tell(Event::Tree(TreeEvent::Dead));
    assert!(matches!(actions[..], [Action::Say(Notice::Restarting { restart: 1, .. })]), "{actions:?}");
    let actions = play.renewing_until(9.0);
    assert_eq!(starts(&actions), 1, "{actions:?}");
    play.tell(Event::Tree(TreeEvent::Started));
    play.tell(Event::Tree(TreeEvent::Ended(FAILED)));
    let actions = play.tell(Event::Tree(TreeEvent::Dead));
    assert!(matches!(actions[..], [Action::Say(Notice::Restarting { restart: 2, .. })]), "{actions:?}");
}

#[test]
fn with_no_wait_a_candidate_that_has_led_leaves_with_what_came_of_it() {
    let once = |settings: &mut Settings| settings.patience = Patience::Once;
    let lost = Outcome::Lost(Loss::RecordGone);
    let mut play = Play::leading(once);
    play.brought(0.0, paused());
    play.tell(Event::Tree(TreeEvent::Ended(FAILED)));
    play.dead();
    play.leaves(Outcome::Ended(FAILED));
    let mut play = Play::leading(once);
    play.renewed(Ok(Renewal::Lost(None)));
    assert_eq!(play.dead().last(), Some(&Action::End(lost.clone())));
    // Between two runs as well.
    let mut play = restarting(once);
    fails(&mut play, 1);
    play.brought(0.0, paused());
    play.leaves(Outcome::Ended(FAILED));
    let mut play = restarting(once);
    fails(&mut play, 1);
    assert_eq!(play.renewed(Ok(Renewal::Lost(None))).last(), Some(&Action::End(lost)));
}
