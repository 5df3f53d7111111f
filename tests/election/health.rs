//! A leader whose COMMAND is unhealthy: it stops it in order, and stands back.

use super::*;

pub const UNHEALTHY: Unhealthy = Unhealthy { last: HookEnd::TimedOut, failures: 3 };
const ZERO: CommandEnd = CommandEnd::Exited(0);
const TERMINATED: CommandEnd = CommandEnd::Signalled(15);
const GRACE: Duration = Duration::from_secs(5);

fn stop(kill_after: Duration) -> Action {
    Action::Stop(Stop::Orderly { reason: Reason::Unhealthy, kill_after: Some(kill_after) })
}

fn told(play: &mut Play) -> Vec<Action> {
    play.tell(Event::Tree(TreeEvent::Unhealthy(UNHEALTHY)))
}

/// COMMAND is unhealthy, ends, and the lease is released.
fn ended(play: &mut Play) -> Vec<Action> {
    play.tell(Event::Tree(TreeEvent::Started));
    assert_eq!(told(play)[0], Action::Say(Notice::Unhealthy(UNHEALTHY)));
    play.tell(Event::Tree(TreeEvent::Ended(ZERO)));
    let actions = play.tell(Event::Tree(TreeEvent::Dead));
    assert!(has(&actions, &Action::Ended { term: TERM, how: Ended::Unhealthy(UNHEALTHY) }), "{actions:?}");
    assert!(has(&actions, &RELEASE), "{actions:?}");
    play.released()
}

#[test]
fn an_unhealthy_command_is_stopped_in_order_and_killed_if_it_does_not_obey() {
    let stop_timeout = Duration::from_mins(1);
    for (limit, kill_after) in [(None, GRACE), (Some(stop_timeout), stop_timeout)] {
        let mut play = Play::leading(|settings| settings.stop_timeout = limit);
        assert_eq!(told(&mut play), [Action::Say(Notice::Unhealthy(UNHEALTHY)), stop(kill_after)]);
        assert_eq!(told(&mut play), [], "once");
        // A guard that does nothing has as long as it needs, and no longer.
        let over = kill_after.as_secs_f64() + 1.0;
        assert!(!has(&play.renewing_until(over - 0.1), &Action::Seize));
        shows(&play.renewing_until(over), &Action::Seize);
    }
}

#[test]
fn a_host_whose_command_is_unhealthy_lets_others_lead_first_and_longer_each_time() {
    // It is not restarted: what a restart could mend is for another host to show.
    let restart =
        Restart { when: RestartWhen::Always, limit: 5, delay: Duration::from_secs(1), healthy: Duration::from_mins(1) };
    let play = Play::leading(|settings| settings.restart = Some(restart));
    lets_others_lead_first_and_longer_each_time(play, ended, "first because the command was unhealthy here");
}

#[test]
fn what_ends_a_leadership_before_or_after_keeps_its_word() {
    let first = |event: Event, how: Ended| {
        let mut play = Play::leading(|_| {});
        play.tell(event);
        assert_eq!(told(&mut play), []);
        play.tell(Event::Tree(TreeEvent::Ended(TERMINATED)));
        let actions = play.tell(Event::Tree(TreeEvent::Dead));
        assert!(has(&actions, &Action::Ended { term: TERM, how: how.clone() }), "{how:?}: {actions:?}");
    };
    first(Event::Asked { signal: 15 }, Ended::Asked(15));
    first(Event::Tree(TreeEvent::Ended(ZERO)), Ended::ByItself(ZERO));
    first(Event::Tree(TreeEvent::DeadlineReached), Ended::Lost(Loss::DeadlinePassed));
    // A loss makes it hurry, and a signal makes it leave.
    let mut play = Play::leading(|settings| settings.stop_timeout = Some(Duration::from_mins(1)));
    told(&mut play);
    shows(&play.renewed(Ok(Renewal::Lost(Some(other())))), &LOSING);
    play.tell(Event::Asked { signal: 2 });
    play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Signalled(2))));
    let actions = play.tell(Event::Tree(TreeEvent::Dead));
    shows(&actions, &Action::Ended { term: TERM, how: Ended::Unhealthy(UNHEALTHY) });
    shows(&actions, &Action::End(Outcome::Ended(CommandEnd::Signalled(2))));
}
