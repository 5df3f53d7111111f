//! A leader that hands over of itself, and stands back.

use super::restart::claims_only_after;
use super::*;

const TURN: Duration = Duration::from_secs(4);

fn count(play: &mut Play, answer: Result<Option<usize>, StoreError>) -> Vec<Action> {
    play.tell(Event::Counted { answer })
}

/// Its turn is over, and it counts those who wait.
fn counting() -> Play {
    let mut play = Play::leading(|settings| settings.relinquish_after = Some(TURN));
    assert_eq!(play.until(3.9), []);
    assert_eq!(play.until(4.0), [Action::CountStandbys]);
    play
}

#[test]
fn a_turn_that_is_over_goes_to_a_standby() {
    for known in [Some(1), None] {
        let mut play = counting();
        let actions = count(&mut play, Ok(known));
        let stop = orderly(Reason::Relinquished);
        assert_eq!(actions, [Action::Say(Notice::Relinquishing), stop]);
        assert_eq!(renewals(&play.until(6.0)), 1, "it is renewed while COMMAND drains");
        play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(0))));
        let actions = play.tell(Event::Tree(TreeEvent::Dead));
        let how = Action::Ended { term: TERM, how: Ended::Relinquished };
        assert_eq!(actions, [Action::ForgetRenewals, how, RELEASE]);
        let actions = play.released();
        assert!(
            matches!(&actions[..], [.., Action::Say(Notice::Held(Hold { why: HeldBack::StandingBack(_), .. }))]),
            "{actions:?}"
        );
        claims_only_after(&mut play, 8.0);
    }
}

fn standing_back() -> Play {
    let mut play = counting();
    count(&mut play, Ok(Some(1)));
    play.dead();
    play.released();
    play
}

fn sees(play: &mut Play, holder: Holder) {
    let actions = play.until(play.now.as_secs_f64() + 3.0);
    assert_eq!(actions, [Action::Observe]);
    play.tell(Event::Observed { answer: Ok(Observation::Held(holder)) });
}

#[test]
fn once_another_has_led_it_claims_like_any_candidate() {
    let mut play = standing_back();
    sees(&mut play, Holder { term: Some(Term(TERM.0 + 1)), ..other() });
    let actions = play.until(play.now.as_secs_f64() + 3.0);
    assert_eq!(actions, [Action::Observe]);
    assert_eq!(play.tell(Event::Observed { answer: Ok(Observation::Free) }), [Action::Claim]);
}

#[test]
fn a_candidate_that_stands_back_leaves_when_asked_and_with_no_wait() {
    let mut play = standing_back();
    let actions = play.tell(Event::Asked { signal: 15 });
    assert_eq!(actions, [Action::End(Outcome::Interrupted(15))]);

    let mut play = Play::leading(|settings| {
        settings.relinquish_after = Some(TURN);
        settings.patience = Patience::Once;
    });
    play.until(4.0);
    count(&mut play, Ok(None));
    play.dead();
    let actions = play.released();
    // It has led, and says what came of it.
    assert_eq!(actions.last(), Some(&Action::End(Outcome::Ended(CommandEnd::Signalled(15)))));
}

#[test]
fn a_count_that_comes_while_command_ends_is_made_again_when_it_was_restarted() {
    let restart = super::restart::RESTART;
    let mut play = Play::leading(|settings| {
        settings.relinquish_after = Some(TURN);
        settings.restart = Some(restart);
    });
    assert_eq!(play.until(4.0), [Action::CountStandbys]);
    assert_eq!(play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(3)))), []);
    assert_eq!(count(&mut play, Ok(Some(1))), []);
    shows(&play.tell(Event::Tree(TreeEvent::Dead)), &Action::CountStandbys);
    assert!(has(&count(&mut play, Ok(Some(1))), &Action::Say(Notice::Relinquishing)));
}

/// A candidate that may not count would otherwise never hand over.
#[test]
fn where_counting_is_denied_it_hands_over_as_where_nobody_can_know_and_says_so_once() {
    let denied = || StoreError::denied("no permission to count");
    let uncounted = Action::Say(Notice::Uncounted("no permission to count".to_owned()));
    let mut play = counting();
    let actions = count(&mut play, Err(denied()));
    let stop = orderly(Reason::Relinquished);
    assert_eq!(actions, [uncounted.clone(), Action::Say(Notice::Relinquishing), stop]);
    play.dead();
    let actions = play.released();
    assert!(
        matches!(&actions[..], [.., Action::Say(Notice::Held(Hold { why: HeldBack::StandingBack(_), .. }))]),
        "{actions:?}"
    );
    claims_only_after(&mut play, 8.0);
    play.claimed(Ok(granted()));
    let over = play.now.as_secs_f64() + TURN.as_secs_f64();
    assert!(has(&play.until(over), &Action::CountStandbys));
    let actions = count(&mut play, Err(denied()));
    assert!(has(&actions, &Action::Say(Notice::Relinquishing)) && !has(&actions, &uncounted), "{actions:?}");
}

#[test]
fn a_time_of_the_schedule_is_passed_over_by_a_leadership_that_has_just_begun_or_by_nobody() {
    let mut play = Play::leading(|_| {});
    assert_eq!(play.tell(Event::RotationDue), []);
    play.renewing_until(35.0);
    assert_eq!(play.tell(Event::RotationDue), [Action::CountStandbys]);
    assert!(matches!(count(&mut play, Ok(Some(0)))[..], [Action::Say(Notice::Staying(_))]));
    let actions = play.renewing_until(195.0);
    assert!(!has(&actions, &Action::CountStandbys), "it waits for the next time: {actions:?}");
    assert_eq!(play.tell(Event::RotationDue), [Action::CountStandbys]);
}

#[test]
fn a_stop_that_was_asked_for_is_not_turned_into_a_handover() {
    let mut play = counting();
    play.tell(Event::Asked { signal: 15 });
    assert_eq!(count(&mut play, Ok(Some(1))), []);
    play.dead();
    let actions = play.released();
    assert!(matches!(actions.last(), Some(Action::End(Outcome::Ended(_)))), "{actions:?}");
}
