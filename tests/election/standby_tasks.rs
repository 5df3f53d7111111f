//! What runs beside a standby: when it begins, when it is stopped, and what waits for that.

use super::*;

/// A standby that has seen `other` lead, at 0 s.
fn with_standby_tasks(change: impl FnOnce(&mut Settings)) -> Play {
    let mut play = Play::new(|settings| {
        settings.standby_tasks = true;
        change(settings);
    });
    assert_eq!(play.tell(Event::Tick), [Action::Claim]);
    let actions = play.claimed(Ok(Claim::Refused(other())));
    assert!(actions.ends_with(&[Action::StartStandbyTasks, Action::LeaderChanged(Some(other()))]), "{actions:?}");
    play
}

const STOP_TASKS: Action = Action::StopStandbyTasks { kill_after: Duration::from_secs(5) };

/// It was granted the lease at 2.5 s, at the latest.
fn granted_with_standby_tasks() -> Play {
    let mut play = with_standby_tasks(|_| {});
    assert_eq!(play.until(2.5), [Action::Observe]);
    assert_eq!(play.tell(Event::Observed { answer: Ok(Observation::Free) }), [Action::Claim]);
    let actions = play.claimed(Ok(granted()));
    assert!(has(&actions, &STOP_TASKS) && !starts(&actions), "{actions:?}");
    play
}

#[test]
fn what_runs_beside_a_standby_begins_once_it_is_known_that_others_lead_and_not_before() {
    let mut leader = Play::asking(|settings| settings.standby_tasks = true);
    let actions = leader.claimed(Ok(granted()));
    assert!(starts(&actions) && !has(&actions, &Action::StartStandbyTasks), "{actions:?}");

    let mut cut_off = Play::asking(|settings| settings.standby_tasks = true);
    let actions = cut_off.claimed(Err(away()));
    assert_eq!(actions.last(), Some(&Action::StartStandbyTasks), "who leads is not known: {actions:?}");

    let mut patient = Play::asking(|settings| (settings.standby_tasks, settings.patience) = (true, Patience::Once));
    assert!(matches!(patient.claimed(Ok(Claim::Refused(other())))[..], [Action::End(Outcome::NotAcquired(_))]));
}

#[test]
fn a_standby_tells_of_each_leader_once() {
    let mut play = with_standby_tasks(|_| {});
    let seen = |play: &mut Play, holder: &Holder| {
        play.until(play.now.as_secs_f64() + 2.5);
        play.tell(Event::Observed { answer: Ok(Observation::Held(holder.clone())) })
    };
    assert_eq!(seen(&mut play, &other()), []);
    let next = Holder { owner: "next".to_owned(), term: Some(Term(8)), ..Holder::default() };
    assert!(has(&seen(&mut play, &next), &Action::LeaderChanged(Some(next.clone()))));
    assert_eq!(seen(&mut play, &next), []);
    let again = Holder { term: Some(Term(9)), ..next };
    assert!(has(&seen(&mut play, &again), &Action::LeaderChanged(Some(again.clone()))));
    play.until(play.now.as_secs_f64() + 2.5);
    let actions = play.tell(Event::Observed { answer: Err(away()) });
    assert!(!actions.iter().any(|action| matches!(action, Action::LeaderChanged(_))), "{actions:?}");
    assert_eq!(seen(&mut play, &again), [Action::Say(Notice::TroubleOver)]);
    // A store that cannot name the quicker one.
    let actions = seen(&mut play, &Holder::default());
    assert!(!actions.iter().any(|action| matches!(action, Action::LeaderChanged(_))), "{actions:?}");
}

#[test]
fn command_starts_on_a_renewed_lease_where_that_took_long() {
    let mut play = granted_with_standby_tasks();
    let begun = play.now.as_secs_f64();
    play.until(begun + 5.1);
    let actions = play.tell(Event::StandbyTasksDead);
    assert!(!starts(&actions), "too little is left: {actions:?}");
    let actions = [play.until(begun + 5.3), play.renewed(Ok(Renewal::Renewed))].concat();
    assert!(starts(&actions), "{actions:?}");
}

#[test]
fn guards_that_do_not_stop_what_runs_beside_a_standby_are_passed_over() {
    let mut play = granted_with_standby_tasks();
    let begun = play.now.as_secs_f64();
    let mut actions = play.until(begun + 5.9);
    assert!(!has(&actions, &Action::SeizeStandbyTasks), "{actions:?}");
    play.renewed(Ok(Renewal::Renewed));
    actions = play.until(begun + 6.0);
    assert!(has(&actions, &Action::SeizeStandbyTasks) && !starts(&actions), "{actions:?}");
    actions = play.until(begun + 6.5);
    assert!(!has(&actions, &Action::SeizeStandbyTasks), "once is enough: {actions:?}");
    assert!(starts(&play.tell(Event::StandbyTasksDead)));
}

#[test]
fn nothing_starts_where_the_lease_is_lost_before_what_ran_beside_the_standby_is_dead() {
    let mut play = granted_with_standby_tasks();
    let actions = play.answered(play.now.as_secs_f64() + 5.0, Ok(Renewal::Lost(Some(other()))));
    assert!(has(&actions, &Action::Claim) && !starts(&actions), "{actions:?}");
    let actions = play.claimed(Ok(Claim::Refused(other())));
    assert!(!has(&actions, &Action::StartStandbyTasks), "what was there before still dies: {actions:?}");
    assert_eq!(play.tell(Event::StandbyTasksDead), [Action::StartStandbyTasks, Action::LeaderChanged(Some(other()))]);
}

#[test]
fn nothing_starts_on_a_lease_that_ended_while_the_store_was_away() {
    let mut play = granted_with_standby_tasks();
    let end = play.now.as_secs_f64() + 15.0;
    let mut actions = Vec::new();
    while play.now.as_secs_f64() < end {
        actions.extend(play.until((play.now.as_secs_f64() + 0.5).min(end)));
        if renewals(&actions) > 0 {
            actions.extend(play.renewed(Err(away())));
        }
    }
    assert!(has(&actions, &Action::Say(Notice::Lost(Loss::DeadlinePassed))) && !starts(&actions), "{actions:?}");
    let actions = play.tell(Event::StandbyTasksDead);
    assert!(!starts(&actions), "{actions:?}");
}

#[test]
fn it_comes_back_after_a_leadership_when_its_tree_is_dead_and_others_lead() {
    let mut play = granted_with_standby_tasks();
    assert!(starts(&play.tell(Event::StandbyTasksDead)));
    let mut actions = play.answered(play.now.as_secs_f64() + 5.0, Ok(Renewal::Lost(Some(other()))));
    assert!(!has(&actions, &Action::StartStandbyTasks));
    actions = play.dead();
    assert!(!has(&actions, &Action::StartStandbyTasks) && has(&actions, &Action::Claim), "{actions:?}");
    actions = play.claimed(Ok(Claim::Refused(other())));
    assert!(actions.ends_with(&[Action::StartStandbyTasks, Action::LeaderChanged(Some(other()))]), "{actions:?}");
}

#[test]
fn a_pause_that_was_ordered_lets_it_run_and_tells_that_nobody_leads() {
    let mut play = with_standby_tasks(|_| {});
    play.orders = None;
    play.until(2.5);
    play.tell(Event::Observed { answer: Ok(Observation::Free) });
    assert!(has(&play.claimed(Ok(granted())), &STOP_TASKS));
    let pause = Pause { keep: false, left: None, said: "by me".to_owned() };
    shows(&play.ordered(Directives { pause: Some(pause), handover: None }), &Action::Release { term: TERM });
    let actions = play.released();
    assert!(!has(&actions, &Action::StartStandbyTasks), "{actions:?}");
    assert_eq!(play.tell(Event::StandbyTasksDead), [Action::StartStandbyTasks, Action::LeaderChanged(None)]);
}

#[test]
fn who_leaves_waits_for_what_runs_beside_it_and_who_is_asked_again_does_not() {
    let mut play = with_standby_tasks(|_| {});
    assert_eq!(play.tell(Event::Asked { signal: 15 }), [STOP_TASKS]);
    assert_eq!(play.until(5.9), []);
    assert_eq!(play.until(6.0), [Action::SeizeStandbyTasks]);
    assert_eq!(play.tell(Event::StandbyTasksDead), [Action::End(Outcome::Interrupted(15))]);

    let mut hurried = with_standby_tasks(|_| {});
    hurried.tell(Event::Asked { signal: 15 });
    assert_eq!(hurried.tell(Event::Asked { signal: 15 }), [Action::KillStandbyTasks]);
    assert_eq!(hurried.until(0.9), []);
    assert_eq!(hurried.until(1.0), [Action::SeizeStandbyTasks]);
    assert_eq!(hurried.tell(Event::StandbyTasksDead), [Action::End(Outcome::Interrupted(15))]);

    let mut timed = with_standby_tasks(|settings| settings.patience = Patience::AtMost(Duration::from_secs(1)));
    assert_eq!(timed.until(1.0), [STOP_TASKS]);
    assert!(matches!(timed.tell(Event::StandbyTasksDead)[..], [Action::End(Outcome::NotAcquired(Some(_)))]));
}

#[test]
fn a_leader_that_is_asked_before_command_starts_gives_the_lease_back_and_leaves_when_all_is_dead() {
    let mut play = granted_with_standby_tasks();
    let actions = play.tell(Event::Asked { signal: 15 });
    assert_eq!(actions, [Action::ForgetRenewals, Action::Release { term: TERM }]);
    let actions = play.released();
    assert_eq!(actions, [Action::Say(Notice::Released(Release::Released)), RELEASED]);
    assert_eq!(play.tell(Event::StandbyTasksDead), [Action::End(Outcome::Interrupted(15))]);
}

#[test]
fn a_leader_that_the_store_may_have_forgotten_is_not_named() {
    let mut play = Play::asking(|settings| settings.standby_tasks = true);
    let holder = Holder { doubt: Some(Doubt::Forgotten), ..other() };
    let actions = play.claimed(Ok(Claim::Refused(holder)));
    assert!(!actions.iter().any(|action| matches!(action, Action::LeaderChanged(_))), "{actions:?}");
}
