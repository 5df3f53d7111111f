//! The election machine alone: time is an argument here, nothing is waited for.

#[path = "election/health.rs"]
mod health;
#[path = "election/restart.rs"]
mod restart;
#[path = "election/rotation.rs"]
mod rotation;

use leaderrun::internals::election::{
    Action, Behind, Booked, Booking, CommandEnd, Directives, Election, Ended, Event, Handover, HeldBack, Hold, HookEnd,
    LogEvent, Loss, Notice, Obstacle, Outcome, Patience, Pause, Ran, Reason, Restart, RestartWhen, Role, Settings,
    StartError, Stop, TreeEvent, Unhealthy,
};
use leaderrun::internals::lease::{Term, TimeForHooks, Timing, TimingRequest};
use leaderrun::internals::store::{
    Claim, Delivery, Doubt, Grant, Holder, Observation, Release, Renewal, StoreError, Takeover,
};
use leaderrun::internals::time::BootInstant;
use std::time::Duration;

#[path = "election/standby_tasks.rs"]
mod standby_tasks;

const TERM: Term = Term(7);
const LOSING: Action = Action::Stop(Stop::Losing { reason: Reason::Lost, certain: true });
const RELEASED: Action = Action::ReleaseOver { failed: None };

fn orderly(reason: Reason) -> Action {
    Action::Stop(Stop::Orderly { reason, kill_after: None })
}

/// An election of 15 s leases (renew 5 s, grace 5 s, margin 1.85 s), and its clock.
struct Play {
    election: Election,
    now: Duration,
    /// What orders are read whenever they are; None leaves that to the test.
    orders: Option<Result<Directives, StoreError>>,
}

impl Play {
    fn new(change: impl FnOnce(&mut Settings)) -> Self {
        Self::seeded(42, change)
    }

    fn seeded(seed: u64, change: impl FnOnce(&mut Settings)) -> Self {
        let timing = TimingRequest { stop_grace: Duration::from_secs(5), ..TimingRequest::default() };
        let mut settings = Settings::new(Timing::new(timing).unwrap(), true, Delivery::Poll);
        change(&mut settings);
        let election = Election::new(settings, BootInstant::from_nanos(0), seed);
        Self { election, now: Duration::ZERO, orders: Some(Ok(Directives::default())) }
    }

    fn at(&self) -> BootInstant {
        BootInstant::from_nanos(0).plus(self.now)
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.election.handle(self.at(), event);
        if let Some(answer) = self.orders.clone()
            && has(&actions, &Action::ReadOrders)
        {
            actions.retain(|action| *action != Action::ReadOrders);
            actions.extend(self.tell(Event::Ordered { answer }));
        }
        actions
    }

    fn ordered(&mut self, directives: Directives) -> Vec<Action> {
        self.tell(Event::Ordered { answer: Ok(directives) })
    }

    /// Lets time pass, waking the machine whenever it wants to be.
    fn until(&mut self, seconds: f64) -> Vec<Action> {
        let end = Duration::from_secs_f64(seconds);
        let mut actions = Vec::new();
        for _ in 0..10_000 {
            let wake = self.election.wake_at().since(BootInstant::from_nanos(0));
            if wake > end {
                self.now = end;
                return actions;
            }
            self.now = self.now.max(wake);
            actions.extend(self.tell(Event::Tick));
        }
        panic!("it spins at {:?}: {actions:?}", self.now);
    }

    fn claimed(&mut self, answer: Result<Claim, StoreError>) -> Vec<Action> {
        let sent = self.at();
        self.tell(Event::Claimed { sent, answer })
    }

    fn renewed(&mut self, answer: Result<Renewal, StoreError>) -> Vec<Action> {
        let sent = self.at();
        self.tell(Event::Renewed { sent, answer, orders: None })
    }

    /// Time passes until then, and a renewal is answered so.
    fn answered(&mut self, seconds: f64, answer: Result<Renewal, StoreError>) -> Vec<Action> {
        self.until(seconds);
        self.renewed(answer)
    }

    fn released(&mut self) -> Vec<Action> {
        self.tell(Event::Released { answer: Ok(Release::Released) })
    }

    /// The same, after which it ends so.
    #[track_caller]
    fn leaves(&mut self, outcome: Outcome) {
        let actions = self.released();
        assert_eq!(actions.last(), Some(&Action::End(outcome)), "{actions:?}");
    }

    /// Time passes until then, and the renewal that is due is answered without orders.
    fn renewed_at(&mut self, seconds: f64) -> Vec<Action> {
        assert!(renewals(&self.until(seconds)) > 0, "no renewal is due");
        self.renewed(Ok(Renewal::Renewed))
    }

    /// Until then every renewal is answered.
    fn renewing_until(&mut self, seconds: f64) -> Vec<Action> {
        let mut all = Vec::new();
        while self.now < Duration::from_secs_f64(seconds) {
            let actions = self.until((self.now.as_secs_f64() + 0.05).min(seconds));
            for _ in 0..renewals(&actions) {
                all.extend(self.renewed(Ok(Renewal::Renewed)));
            }
            all.extend(actions);
        }
        all
    }

    /// The answer to a renewal that was sent at `sent` brings these orders.
    fn brought(&mut self, sent: f64, orders: Directives) -> Vec<Action> {
        let sent = BootInstant::from_nanos(0).plus(Duration::from_secs_f64(sent));
        self.tell(Event::Renewed { sent, answer: Ok(Renewal::Renewed), orders: Some(orders) })
    }

    /// Starts, and has claimed the lease.
    fn asking(change: impl FnOnce(&mut Settings)) -> Self {
        let mut play = Self::new(change);
        assert_eq!(play.tell(Event::Tick), [Action::Claim]);
        play
    }

    /// Has seen that [`other`] leads.
    fn refused(change: impl FnOnce(&mut Settings)) -> Self {
        let mut play = Self::asking(change);
        play.claimed(Ok(Claim::Refused(other())));
        play
    }

    /// Starts, is granted the lease at 0 s, and runs COMMAND.
    fn leading(change: impl FnOnce(&mut Settings)) -> Self {
        Self::new(change).led()
    }

    fn led(self) -> Self {
        let mut play = self;
        assert_eq!(play.tell(Event::Tick), [Action::Claim]);
        let actions = play.claimed(Ok(granted()));
        assert!(matches!(actions[..], [Action::Say(Notice::Leading(TERM)), Action::Start { term: TERM, .. }]));
        play
    }

    /// What follows when the tree is dead, but for how that is told.
    fn dead(&mut self) -> Vec<Action> {
        let mut actions = self.tell(Event::Tree(TreeEvent::Dead));
        actions.retain(|action| !matches!(action, Action::Ended { .. }));
        actions
    }
}

fn granted() -> Claim {
    granted_in(TERM, None)
}

fn granted_in(term: Term, start_after: Option<BootInstant>) -> Claim {
    Claim::Granted(Grant { term, start_after, takeover: Takeover::Expired })
}

fn other() -> Holder {
    Holder { owner: "other".to_owned(), ..Holder::default() }
}

fn away() -> StoreError {
    StoreError::unknown("the store is away")
}

fn has(actions: &[Action], wanted: &Action) -> bool {
    actions.contains(wanted)
}

#[track_caller]
fn shows(actions: &[Action], wanted: &Action) {
    assert!(has(actions, wanted), "{actions:?}");
}

fn renewals(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Renew { .. })).count()
}

#[test]
fn a_lease_counts_from_when_the_request_was_sent() {
    let mut play = Play::asking(|_| {});
    let sent = play.at();
    play.now = Duration::from_secs(3);
    let actions = play.tell(Event::Claimed { sent, answer: Ok(granted()) });
    let Some(Action::Start { deadline, .. }) = actions.last() else { panic!("{actions:?}") };
    assert_eq!(deadline.kill_at, BootInstant::from_nanos(13_150_000_000));
}

#[test]
fn with_too_little_of_the_lease_left_it_renews_before_it_starts() {
    let mut play = Play::asking(|_| {});
    let sent = play.at();
    play.now = Duration::from_secs(5);
    let actions = play.tell(Event::Claimed { sent, answer: Ok(granted()) });
    assert_eq!(actions, [Action::Say(Notice::Leading(TERM)), Action::Renew { term: TERM, sequence: 1 }]);
    assert!(matches!(play.renewed(Ok(Renewal::Renewed))[..], [Action::Start { .. }]));
}

#[test]
fn a_renewal_that_hangs_is_followed_by_others() {
    let mut play = Play::leading(|_| {});
    // At 5 and 6.6 s, then denser and denser; the stop signal goes out at 8.15 s, and renewing goes on after that.
    assert_eq!(renewals(&play.until(6.7)), 2);
    let dense = renewals(&play.until(8.14));
    assert!((3..=6).contains(&dense), "{dense}");
    shows(&play.until(8.15), &Action::Say(Notice::Lost(Loss::DeadlinePassed)));
    let later = renewals(&play.until(12.9));
    assert!((2..=3).contains(&later), "{later}");
    assert!(has(&play.until(13.5), &Action::Seize));
}

#[test]
fn an_answer_after_two_and_a_half_seconds_every_time_loses_nothing() {
    let mut play = Play::leading(|settings| {
        let timing = TimingRequest {
            lease: Duration::from_secs(6),
            renew_interval: Duration::from_secs(1),
            retry_interval: Duration::from_secs(1),
            stop_grace: Duration::from_secs(1),
            ..TimingRequest::default()
        };
        settings.timing = Timing::new(timing).unwrap();
    });
    let mut sent: Vec<Duration> = Vec::new();
    let mut writes = 0;
    for tick in 1..600 {
        let now = f64::from(tick) / 10.0;
        let actions = play.until(now);
        let begun = renewals(&actions);
        writes += begun;
        sent.extend(std::iter::repeat_n(play.now, begun));
        assert!(!actions.iter().any(|action| matches!(action, Action::Say(_) | Action::Seize)), "{now}: {actions:?}");
        while sent.first().is_some_and(|&sent| play.now - sent >= Duration::from_millis(2500)) {
            let sent = BootInstant::from_nanos(0).plus(sent.remove(0));
            let actions = play.tell(Event::Renewed { sent, answer: Ok(Renewal::Renewed), orders: None });
            writes += renewals(&actions);
        }
    }
    assert!(writes <= 120, "{writes} writes in a minute");
}

#[test]
fn an_outage_that_ends_before_the_deadline_disturbs_nothing() {
    let mut play = Play::leading(|_| {});
    play.until(5.0);
    for tenth in 51..92 {
        let actions = play.renewed(Err(away()));
        assert!(
            actions.iter().all(|action| matches!(action, Action::Renew { .. } | Action::Say(Notice::Trouble { .. })))
        );
        play.until(f64::from(tenth) / 10.0);
    }
    shows(&play.renewed(Ok(Renewal::Renewed)), &Action::Say(Notice::TroubleOver));
    assert_eq!(play.until(9.5), []);
}

#[test]
fn leaders_that_renew_together_do_not_do_so_from_then_on() {
    let began_together = |play: &mut Play| assert_eq!(renewals(&play.until(5.0)), 1);
    let after_an_outage = |play: &mut Play| {
        play.answered(5.0, Err(away()));
        assert_eq!(renewals(&play.until(6.6)), 1);
    };
    let ways: [&dyn Fn(&mut Play); 2] = [&began_together, &after_an_outage];
    for renew in ways {
        let mut seconds = [0; 5];
        for seed in 0..100 {
            let mut play = Play::seeded(seed, |_| {}).led();
            renew(&mut play);
            play.renewed(Ok(Renewal::Renewed));
            let pause = play.election.wake_at().since(play.at());
            assert!((1.25..=5.0).contains(&pause.as_secs_f64()), "{pause:?}");
            seconds[usize::try_from(pause.as_secs()).unwrap().min(4)] += 1;
        }
        assert!(seconds.iter().all(|&leaders| leaders <= 40), "{seconds:?}");
    }
    // And no sooner than ever after that.
    let mut play = Play::leading(|_| {});
    play.renewed_at(5.0);
    let due = play.election.wake_at().since(BootInstant::from_nanos(0)).as_secs_f64();
    assert_eq!(renewals(&play.until(due)), 1);
    play.renewed(Ok(Renewal::Renewed));
    assert_eq!(play.until(due + 4.9), []);
}

/// Beside a lock of other programs it ends with a release.
#[test]
fn a_definite_loss_stops_the_tree_and_waits_for_its_end_before_it_claims_again() {
    for (answer, loss) in [
        (Renewal::Lost(Some(other())), Loss::TakenBy(other())),
        (Renewal::Lost(None), Loss::RecordGone),
        (Renewal::Revoked, Loss::Revoked),
    ] {
        for (shares_lock, next) in [(false, Action::Claim), (true, RELEASE)] {
            let mut play = Play::leading(|settings| settings.shares_lock = shares_lock);
            play.until(5.0);
            let losing = Action::Stop(Stop::Losing { reason: loss.reason(), certain: true });
            assert_eq!(play.renewed(Ok(answer.clone())), [Action::Say(Notice::Lost(loss.clone())), losing]);
            assert_eq!(play.until(7.0), [], "nothing is renewed, and nothing claimed while the tree lives");
            assert_eq!(play.dead(), [Action::ForgetRenewals, next]);
        }
    }
}

#[test]
fn a_guard_that_does_not_stop_a_lost_tree_is_passed_over() {
    let mut play = Play::leading(|_| {});
    play.answered(5.0, Ok(Renewal::Lost(None)));
    assert_eq!(play.until(10.9), []);
    assert_eq!(play.until(11.0), [Action::Seize]);
    assert_eq!(play.until(60.0), [Action::Say(Notice::Undying(Duration::from_secs(10)))], "it is told once");
}

#[test]
fn the_lease_is_released_only_after_the_tree_is_dead() {
    let mut play = Play::leading(|_| {});
    let actions = play.tell(Event::Asked { signal: 15 });
    assert_eq!(actions, [Action::Say(Notice::Stopping { signal: 15 }), orderly(Reason::Asked)]);
    // It goes on renewing while COMMAND drains, for as long as that takes.
    let actions = play.renewing_until(100.0);
    assert!(!actions.iter().any(|action| matches!(action, Action::Release { .. } | Action::Seize)), "{actions:?}");
    assert!((20..=27).contains(&renewals(&actions)), "{actions:?}");
    assert_eq!(play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(3)))), []);
    assert_eq!(play.dead(), [Action::ForgetRenewals, Action::Release { term: TERM }]);
    let actions = play.released();
    let end = Action::End(Outcome::Ended(CommandEnd::Exited(3)));
    assert_eq!(actions, [Action::Say(Notice::Released(Release::Released)), RELEASED, end]);
}

#[test]
fn a_second_stop_kills_and_a_third_leaves_the_lease() {
    let mut play = Play::leading(|_| {});
    play.tell(Event::Asked { signal: 15 });
    let actions = play.tell(Event::Asked { signal: 15 });
    assert_eq!(actions, [Action::Say(Notice::Killing), Action::Stop(Stop::Kill)]);
    play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Signalled(9))));
    play.dead();
    shows(&play.tell(Event::Asked { signal: 15 }), &Action::End(Outcome::Ended(CommandEnd::Signalled(9))));
}

#[test]
fn a_release_is_tried_until_the_lease_has_ended() {
    let mut play = Play::leading(|_| {});
    play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(0))));
    play.dead();
    let mut said = play.tell(Event::Released { answer: Err(away()) });
    let mut tries = 0;
    for tenth in 1..150 {
        let actions = play.until(f64::from(tenth) / 10.0);
        if actions.contains(&Action::Release { term: TERM }) {
            tries += 1;
            said.extend(play.tell(Event::Released { answer: Err(away()) }));
        }
        said.extend(actions);
    }
    assert!((7..30).contains(&tries), "{tries} tries in 15 s");
    let gives_up = |action: &Action| matches!(action, Action::Say(Notice::NotReleased(_)));
    assert!(!said.iter().any(gives_up), "{said:?}");
    let actions = play.until(15.0);
    assert_eq!(actions.iter().filter(|action| gives_up(action)).count(), 1, "{actions:?}");
    assert!(has(&actions, &Action::End(Outcome::Ended(CommandEnd::Exited(0)))));
}

#[test]
fn a_grant_that_comes_while_leaving_is_given_back_unused() {
    let mut play = Play::asking(|_| {});
    assert_eq!(play.tell(Event::Asked { signal: 2 }), []);
    assert_eq!(play.claimed(Ok(granted())), [Action::Release { term: TERM }]);
    play.leaves(Outcome::Interrupted(2));
}

#[test]
fn a_candidate_that_does_not_wait_for_the_answer_to_a_claim_says_what_may_be_left() {
    let mut play = Play::asking(|_| {});
    assert_eq!(play.tell(Event::Asked { signal: 2 }), []);
    let actions = play.tell(Event::Asked { signal: 2 });
    assert!(
        matches!(
            &actions[..],
            [Action::Say(Notice::NotReleased(_)), Action::ReleaseOver { failed: Some(_) }, Action::End(_)]
        ),
        "{actions:?}"
    );
}

#[test]
fn a_lease_that_was_no_longer_held_is_not_called_released() {
    let mut play = Play::leading(|_| {});
    play.tell(Event::Asked { signal: 15 });
    play.dead();
    let actions = play.tell(Event::Released { answer: Ok(Release::NotHeld) });
    let [Action::Say(notice), RELEASED, Action::End(_)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((notice.to_string().as_str(), notice.event()), ("the lease was no longer held", LogEvent::NotReleased));
}

#[test]
fn a_claim_in_doubt_is_released_before_leaving() {
    let mut play = Play::asking(|settings| settings.patience = Patience::Once);
    assert_eq!(play.claimed(Err(away())), [Action::Release { term: Term(0) }]);
    let actions = play.tell(Event::Released { answer: Ok(Release::NotHeld) });
    assert_eq!(actions, [Action::End(Outcome::Unreachable("the store is away".to_owned()))]);
}

#[test]
fn waiting_is_bounded_by_what_was_asked() {
    let mut play = Play::refused(|settings| settings.patience = Patience::AtMost(Duration::from_secs(10)));
    let mut looks = 0;
    for tenth in 1..100 {
        let actions = play.until(f64::from(tenth) / 10.0);
        if has(&actions, &Action::Observe) {
            looks += 1;
            play.tell(Event::Observed { answer: Ok(Observation::Held(other())) });
        }
    }
    assert!((4..=7).contains(&looks), "{looks} looks in 10 s at 2 s each");
    assert_eq!(play.until(10.0), [Action::End(Outcome::NotAcquired(Some(Obstacle::Holder(other()))))]);
}

#[test]
fn denied_permission_ends_a_beginner_and_is_an_outage_for_who_has_worked() {
    let denied = StoreError::denied("no");
    let mut play = Play::asking(|_| {});
    assert_eq!(play.claimed(Err(denied.clone())), [Action::End(Outcome::Refused(denied.clone()))]);

    let mut play = Play::leading(|_| {});
    play.until(5.0);
    assert_eq!(play.renewed(Err(denied)), []);
    assert_eq!(renewals(&play.until(6.0)), 1);
}

#[test]
fn a_store_that_cannot_vouch_for_the_last_tree_makes_the_leader_wait() {
    let mut play = Play::asking(|_| {});
    let start_after = Some(BootInstant::from_nanos(13_000_000_000));
    let actions = play.claimed(Ok(granted_in(TERM, start_after)));
    assert!(!actions.iter().any(|action| matches!(action, Action::Start { .. })), "{actions:?}");
    assert!(!starts(&play.renewing_until(12.9)));
    assert!(starts(&play.renewing_until(13.0)));
}

#[test]
fn news_that_come_during_a_look_are_newer_than_its_answer() {
    let mut play = Play::refused(|settings| settings.delivery = Delivery::Push);
    assert!(play.election.wants_change());
    assert_eq!(play.until(16.25), [], "a store that pushes is not polled");
    assert_eq!(play.until(17.1), [Action::Observe]);
    assert_eq!(play.tell(Event::Changed(Ok(()))), []);
    assert_eq!(play.tell(Event::Observed { answer: Ok(Observation::Held(other())) }), [Action::Claim]);
}

#[test]
fn a_standby_of_a_store_that_pushes_looks_when_the_lease_would_end() {
    let mut play = Play::asking(|settings| settings.delivery = Delivery::Push);
    let left = |seconds| Holder { expires_in: Some(Duration::from_secs(seconds)), ..other() };
    play.claimed(Ok(Claim::Refused(left(10))));
    assert_eq!(play.until(10.0), []);
    assert_eq!(play.until(10.9), [Action::Observe]);
    // It was renewed meanwhile; a crashed one is found out at its end, and so on.
    play.tell(Event::Observed { answer: Ok(Observation::Held(left(15))) });
    assert_eq!(play.until(25.9), []);
    assert_eq!(play.until(26.8), [Action::Observe]);
    assert_eq!(play.tell(Event::Observed { answer: Ok(Observation::Free) }), [Action::Claim]);
}

#[test]
fn a_store_that_cannot_tell_is_not_asked_to_again_before_it_has_answered() {
    let mut play = Play::refused(|settings| settings.delivery = Delivery::Push);
    assert!(play.election.wants_change());
    play.tell(Event::Changed(Err(away())));
    assert!(!play.election.wants_change());
    assert_eq!(play.until(0.2), [Action::Observe]);
    play.tell(Event::Observed { answer: Ok(Observation::Held(other())) });
    assert!(play.election.wants_change());
}

#[test]
fn a_doubt_of_the_store_is_settled_by_a_renewal_at_once() {
    let mut play = Play::leading(|_| {});
    play.now = Duration::from_secs(1);
    assert!(matches!(play.tell(Event::Doubted)[..], [Action::Renew { term: TERM, .. }]));
    // But not by a storm of them.
    assert_eq!(play.tell(Event::Doubted), []);
    assert_eq!(play.until(1.09), []);
    assert!(matches!(play.until(1.11)[..], [Action::Renew { term: TERM, .. }]));
    let mut standby = Play::asking(|_| {});
    assert_eq!(standby.tell(Event::Doubted), []);
}

fn paused() -> Directives {
    Directives { pause: Some(Pause { keep: false, left: None, said: "by me".to_owned() }), handover: None }
}

fn handed_over(term: Term, welcome: bool) -> Directives {
    let hold = Duration::from_secs(30);
    Directives { pause: None, handover: Some(Handover { term, welcome, hold, said: "by me".to_owned() }) }
}

fn on_hold(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Say(Notice::Held(_))))
}

fn starts(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Start { .. }))
}

#[test]
fn a_command_is_not_started_before_orders_were_read_that_are_newer_than_the_grant() {
    let mut play = Play::new(|_| {});
    play.orders = None;
    assert_eq!(play.tell(Event::Tick), [Action::Claim]);
    assert_eq!(play.claimed(Ok(granted())), [Action::Say(Notice::Leading(TERM)), Action::ReadOrders]);
    assert_eq!(play.until(4.0), []);
    // It is asked again, and the lease is renewed meanwhile.
    assert_eq!(play.tell(Event::Ordered { answer: Err(away()) }), []);
    let actions = play.until(5.0);
    assert!(has(&actions, &Action::ReadOrders) && renewals(&actions) == 1 && !starts(&actions), "{actions:?}");
    assert!(play.renewed(Ok(Renewal::Renewed)).is_empty());
    assert!(starts(&play.ordered(Directives::default())));
}

#[test]
fn a_grant_of_a_paused_shard_goes_back_and_nothing_is_claimed_before_the_pause_is_over() {
    let mut play = Play::asking(|_| {});
    play.orders = Some(Ok(paused()));
    let actions = play.claimed(Ok(granted()));
    assert_eq!(actions[1..], [Action::ForgetRenewals, Action::Release { term: TERM }]);
    let actions = play.released();
    assert!(on_hold(&actions), "{actions:?}");
    let actions = play.until(3600.0);
    assert!(!has(&actions, &Action::Claim) && !on_hold(&actions), "{actions:?}");
    // The store is away for a while: that lets nobody lead.
    play.orders = Some(Err(away()));
    assert!(!has(&play.until(3800.0), &Action::Claim));
    play.orders = Some(Ok(Directives::default()));
    shows(&play.until(3820.0), &Action::Claim);
    assert!(starts(&play.claimed(Ok(granted()))));
}

#[test]
fn orders_are_read_when_a_renewal_does_not_bring_them_or_fails_or_hangs() {
    let mut play = Play::leading(|_| {});
    play.orders = None;
    assert_eq!(play.until(5.0), [Action::Renew { term: TERM, sequence: 1 }]);
    let actions = play.renewed(Ok(Renewal::Renewed));
    assert!(has(&actions, &Action::ReadOrders), "it brought none: {actions:?}");
    play.ordered(Directives::default());
    assert_eq!(play.until(10.0), [Action::Renew { term: TERM, sequence: 2 }]);
    assert_eq!(play.renewed(Err(away())), [Action::ReadOrders], "it failed");
    play.ordered(Directives::default());
    // It hangs: the next one does not wait for it, nor do the orders.
    let actions = play.until(11.7);
    assert!(renewals(&actions) == 2 && !has(&actions, &Action::ReadOrders), "{actions:?}");
    let actions = play.until(12.7);
    assert!(renewals(&actions) > 0 && has(&actions, &Action::ReadOrders), "{actions:?}");
    let actions = play.ordered(paused());
    assert!(actions.last() == Some(&orderly(Reason::Paused)), "{actions:?}");
}

#[test]
fn an_answer_that_comes_late_brings_no_order_back_that_was_over_and_takes_none_back() {
    // The renewal of 5 s hangs; it saw a pause that was over when those of 6.5 s and later were applied.
    let mut play = Play::leading(|_| {});
    play.until(7.0);
    play.brought(6.5, Directives::default());
    let actions = play.brought(5.0, paused());
    assert!(!actions.iter().any(|action| matches!(action, Action::Stop(_))), "{actions:?}");
    let actions = play.brought(6.5, paused());
    assert_eq!(actions.last(), Some(&orderly(Reason::Paused)), "it is no older");
    // The same for a request for them that was sent before.
    let mut play = Play::leading(|_| {});
    play.orders = None;
    play.until(5.0);
    assert!(has(&play.renewed(Ok(Renewal::Renewed)), &Action::ReadOrders));
    play.until(10.0);
    play.brought(10.0, Directives::default());
    assert_eq!(play.ordered(paused()), []);
}

#[test]
fn orders_that_come_with_a_renewal_start_nothing_and_a_pause_among_them_gives_the_lease_back() {
    let mut play = Play::asking(|_| {});
    play.orders = None;
    play.claimed(Ok(granted()));
    play.until(5.0);
    let actions = play.brought(5.0, Directives::default());
    assert_eq!(actions, [], "they were not asked for after the grant");
    play.until(10.0);
    let actions = play.brought(10.0, paused());
    assert!(has(&actions, &Action::Release { term: TERM }) && !starts(&actions), "{actions:?}");
}

#[test]
fn who_steps_down_waits_for_others_from_when_it_released() {
    let mut play = Play::leading(|_| {});
    play.orders = Some(Ok(handed_over(TERM, false)));
    let actions = play.renewed_at(5.0);
    assert!(matches!(actions.last(), Some(Action::Stop(Stop::Orderly { .. }))), "{actions:?}");
    // COMMAND takes long.
    play.renewing_until(99.0);
    assert!(has(&play.dead(), &Action::Release { term: TERM }));
    let actions = play.released();
    assert!(on_hold(&actions), "{actions:?}");
    let actions = play.until(128.9);
    assert!(!has(&actions, &Action::Claim), "{actions:?}");
    assert!(has(&play.until(130.0), &Action::Claim));
    // It may lead again, and says that the handover is over.
    let actions = play.claimed(Ok(granted_in(Term(9), None)));
    assert!(starts(&actions) && has(&actions, &Action::ForgetHandover { term: TERM }), "{actions:?}");
}

#[test]
fn a_handover_to_another_goes_back_once_and_bars_for_a_bounded_time() {
    let mut play = Play::asking(|_| {});
    play.orders = Some(Ok(handed_over(Term(6), false)));
    let actions = play.claimed(Ok(granted()));
    assert!(has(&actions, &Action::Release { term: TERM }) && !starts(&actions), "{actions:?}");
    play.released();
    assert!(!has(&play.until(29.9), &Action::Claim));
    assert!(has(&play.until(31.0), &Action::Claim));
    assert!(starts(&play.claimed(Ok(granted_in(Term(8), None)))));
}

#[test]
fn whom_a_handover_names_leads_at_once_and_an_old_handover_stops_nobody() {
    let mut play = Play::asking(|_| {});
    play.orders = Some(Ok(handed_over(Term(6), true)));
    let actions = play.claimed(Ok(granted()));
    assert!(starts(&actions) && has(&actions, &Action::ForgetHandover { term: Term(6) }), "{actions:?}");
    play.orders = Some(Ok(handed_over(Term(6), false)));
    let actions = play.renewed_at(5.0);
    assert!(!actions.iter().any(|action| matches!(action, Action::Stop(_))), "{actions:?}");
    assert!(has(&actions, &Action::ForgetHandover { term: Term(6) }), "{actions:?}");
}

#[test]
fn who_does_not_wait_behind_another_waits_while_nobody_may_start() {
    let mut play = Play::asking(|settings| settings.patience = Patience::Once);
    let start_after = Some(play.at().plus(Duration::from_secs(3)));
    let grant = Grant { term: TERM, start_after, takeover: Takeover::First };
    let actions = play.claimed(Ok(Claim::Granted(grant)));
    let said = Action::Say(Notice::HoldingBack(Doubt::FirstUse, Duration::from_secs(3)));
    assert!(has(&actions, &said) && !has(&actions, &RELEASE), "{actions:?}");
    assert!(!starts(&play.until(2.9)));
    assert!(starts(&play.until(3.1)));
    // The store does not grant it before.
    let mut play = Play::asking(|settings| settings.patience = Patience::Once);
    let forgotten = Holder { doubt: Some(Doubt::Forgotten), expires_in: Some(Duration::from_secs(3)), ..other() };
    let actions = play.claimed(Ok(Claim::Refused(forgotten.clone())));
    assert_eq!(actions, [Action::Say(Notice::Waiting(forgotten))]);
    assert!(has(&play.until(4.0), &Action::Observe));
    let actions = play.tell(Event::Observed { answer: Ok(Observation::Held(other())) });
    let led = Outcome::NotAcquired(Some(Obstacle::Holder(other())));
    assert_eq!(actions, [Action::End(led.clone())], "another one was faster");
    let doubt = Outcome::NotAcquired(Some(Obstacle::Doubt(Doubt::FirstUse, Duration::from_secs(1))));
    let paused =
        Outcome::NotAcquired(Some(Obstacle::Hold(Hold { why: HeldBack::Paused, said: String::new(), left: None })));
    let foreign = Holder { foreign_lock: Some("a key".to_owned()), ..other() };
    let foreign = Outcome::NotAcquired(Some(Obstacle::Holder(foreign)));
    let none = Outcome::NotAcquired(None);
    assert_eq!([led, paused, doubt, foreign, none].map(|end| end.exit_status(0)), [0, 0, 75, 75, 75]);
}

#[test]
fn orders_that_may_not_be_read_end_a_candidate_before_it_starts_anything() {
    let denied = StoreError::denied("no permission");
    let mut play = Play::asking(|_| {});
    play.orders = Some(Err(denied.clone()));
    let actions = play.claimed(Ok(granted()));
    assert!(has(&actions, &Action::Release { term: TERM }) && !starts(&actions), "{actions:?}");
    play.leaves(Outcome::Refused(denied.clone()));
    // Once it has worked it is an outage like any other, and COMMAND goes on.
    let mut play = Play::leading(|_| {});
    play.orders = Some(Err(denied));
    let actions = play.renewed_at(5.0);
    assert!(!actions.iter().any(|action| matches!(action, Action::Stop(_) | Action::End(_))), "{actions:?}");
    // Now and then, not with each renewal.
    let told = [actions, play.renewing_until(64.0)].concat();
    let lines = told.iter().filter(|action| matches!(action, Action::Say(Notice::OrdersUnread { running: true, .. })));
    assert!((1..=3).contains(&lines.count()), "{told:?}");
}

/// Otherwise nobody leads, and nobody says why.
#[test]
fn a_candidate_that_gives_the_lease_back_because_it_cannot_read_its_orders_says_so_now_and_then() {
    let mut play = Play::leading(|_| {});
    play.answered(5.0, Ok(Renewal::Lost(None)));
    shows(&play.dead(), &Action::Claim);
    play.orders = Some(Err(StoreError::misconfigured("another program wrote them")));
    let mut said = Vec::new();
    while play.now < Duration::from_mins(2) {
        let actions = play.claimed(Ok(granted()));
        shows(&actions, &RELEASE);
        said.extend(actions.into_iter().filter(|action| matches!(action, Action::Say(Notice::OrdersUnread { .. }))));
        play.released();
        shows(&play.until(play.now.as_secs_f64() + 5.0), &Action::Claim);
    }
    assert!((3..=5).contains(&said.len()), "{said:?}");
}

#[test]
fn a_stop_that_was_asked_for_while_a_pause_stops_the_command_ends_the_candidate() {
    let mut play = Play::leading(|_| {});
    play.orders = Some(Ok(paused()));
    play.renewed_at(5.0);
    play.tell(Event::Asked { signal: 15 });
    assert!(has(&play.dead(), &Action::Release { term: TERM }));
    play.leaves(Outcome::Ended(CommandEnd::Signalled(15)));
}

#[test]
fn a_command_that_runs_for_too_long_is_stopped_in_order_and_its_lease_released() {
    let mut play = Play::leading(|settings| settings.max_run = Some(Duration::from_secs(12)));
    assert!(renewals(&play.until(5.0)) == 1 && play.renewed(Ok(Renewal::Renewed)).len() == 1);
    assert!(renewals(&play.until(10.0)) == 1 && play.renewed(Ok(Renewal::Renewed)).len() == 1);
    assert_eq!(play.until(11.9), []);
    let kill_after = Some(Duration::from_secs(5));
    let stop = Action::Stop(Stop::Orderly { reason: Reason::MaxRun, kill_after });
    assert_eq!(play.until(12.0), [Action::Say(Notice::Overran(Duration::from_secs(12))), stop]);
    assert_eq!(renewals(&play.until(15.0)), 1, "it is renewed meanwhile");
    let actions = play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(0))));
    assert_eq!(actions, []);
    let actions = play.tell(Event::Tree(TreeEvent::Dead));
    assert!(has(&actions, &Action::Ended { term: TERM, how: Ended::Overran }), "{actions:?}");
    assert!(has(&actions, &Action::Release { term: TERM }), "{actions:?}");
    play.leaves(Outcome::Overran);
}

/// Is granted the lease at 0 s, and about to enter the run of a job.
fn entering() -> Play {
    entering_with(|_| {})
}

fn entering_with(change: impl FnOnce(&mut Settings)) -> Play {
    let mut play = Play::new(|settings| {
        settings.job_gate = true;
        change(settings);
    });
    assert_eq!(play.tell(Event::Tick), [Action::Claim]);
    let actions = play.claimed(Ok(granted()));
    assert_eq!(actions, [Action::Say(Notice::Leading(TERM)), Action::Book { term: TERM, behind: Behind::default() }]);
    play
}

fn running_a_job() -> Play {
    let mut play = entering();
    let actions = play.tell(booked(Ok(Booking::Booked(Booked::default()))));
    assert!(matches!(actions[..], [Action::Start { term: TERM, .. }]), "{actions:?}");
    play
}

fn booked(answer: Result<Booking, StoreError>) -> Event {
    Event::Booked { term: TERM, answer }
}

fn settled(answer: Result<(), StoreError>) -> Event {
    Event::Settled { term: TERM, answer }
}

fn ran(how: Ended, end: Option<CommandEnd>) -> Action {
    Action::Settle { term: TERM, ran: Some(Ran { how, end }) }
}

const RELEASE: Action = Action::Release { term: TERM };

#[test]
fn a_job_that_was_made_to_end_is_not_done_whatever_its_command_says() {
    for (event, how) in [
        (Event::Asked { signal: 2 }, Ended::Asked(2)),
        (Event::Tick, Ended::Overran),
        (Event::Tree(TreeEvent::Unhealthy(health::UNHEALTHY)), Ended::Unhealthy(health::UNHEALTHY)),
        (Event::Tree(TreeEvent::DeadlineReached), Ended::Lost(Loss::DeadlinePassed)),
    ] {
        let mut play = entering_with(|settings| settings.max_run = Some(Duration::from_secs(1)));
        play.tell(booked(Ok(Booking::Booked(Booked::default()))));
        play.tell(Event::Tree(TreeEvent::Started));
        if matches!(event, Event::Tick) {
            play.until(1.0);
        } else {
            play.tell(event);
        }
        play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(0))));
        let signal = if how == Ended::Asked(2) { 2 } else { 15 };
        shows(&play.dead(), &ran(how, Some(CommandEnd::Signalled(signal))));
        play.tell(settled(Ok(())));
        let actions = play.released();
        assert!(!has(&actions, &Action::End(Outcome::Ended(CommandEnd::Exited(0)))), "{actions:?}");
    }
}

#[test]
fn a_job_that_may_fail_again_lets_others_go_first_and_is_then_repeated() {
    let again = || booked(Ok(Booking::Booked(Booked { again: true, ..Booked::default() })));
    let failed = CommandEnd::Exited(3);
    let fails = |play: &mut Play, end| {
        play.tell(Event::Tree(TreeEvent::Started));
        play.tell(Event::Tree(TreeEvent::Ended(end)));
        play.dead();
        play.tell(settled(Ok(())));
        play.released()
    };
    let leaves = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::End(_)));
    let mut play = entering();
    play.tell(again());
    let actions = fails(&mut play, failed);
    let first =
        |action: &Action| matches!(action, Action::Say(Notice::Held(Hold { why: HeldBack::StandingBack(_), .. })));
    assert!(actions.iter().any(first) && !leaves(&actions), "{actions:?}");
    // It looks whether another one leads, and claims in the end.
    let mut actions = Vec::new();
    while !has(&actions, &Action::Claim) {
        actions = play.until(play.now.as_secs_f64() + 1.0);
        if has(&actions, &Action::Observe) {
            actions = play.tell(Event::Observed { answer: Ok(Observation::Free) });
        }
    }
    assert!(play.now >= Duration::from_secs(8), "{:?}", play.now);
    assert!(has(&play.claimed(Ok(granted())), &Action::Book { term: TERM, behind: Behind::default() }));
    assert!(starts(&play.tell(booked(Ok(Booking::Booked(Booked::default()))))));
    // No run is left.
    shows(&fails(&mut play, CommandEnd::Exited(4)), &Action::End(Outcome::Ended(CommandEnd::Exited(4))));

    let mut done = entering();
    done.tell(again());
    assert!(leaves(&fails(&mut done, CommandEnd::Exited(0))));
    let mut hurried = entering_with(|settings| settings.patience = Patience::Once);
    hurried.tell(again());
    assert!(has(&fails(&mut hurried, failed), &Action::End(Outcome::Ended(failed))), "with -n it does not wait");
    let mut asked = entering();
    asked.tell(again());
    asked.tell(Event::Asked { signal: 15 });
    assert!(leaves(&fails(&mut asked, CommandEnd::Signalled(15))));
}

#[test]
fn a_job_is_not_started_before_it_is_entered() {
    let mut play = entering();
    assert_eq!(play.tell(booked(Err(away()))), []);
    let actions = play.until(4.0);
    assert_eq!(actions, [Action::Book { term: TERM, behind: Behind::default() }]);
    let actions = play.tell(booked(Err(away())));
    assert!(matches!(&actions[..], [Action::Say(Notice::NotEntered(_))]), "{actions:?}");
    assert!(has(&play.until(9.0), &Action::Book { term: TERM, behind: Behind::default() }));
    let actions = play.tell(booked(Err(StoreError::denied("no"))));
    // It may stand there by now.
    assert_eq!(actions, [Action::ForgetRenewals, Action::Settle { term: TERM, ran: None }]);
    assert_eq!(play.tell(settled(Ok(()))), [RELEASE]);
}

#[test]
fn an_entry_is_withdrawn_where_nothing_was_started() {
    let mut play = entering();
    let actions = play.tell(Event::Asked { signal: 15 });
    assert_eq!(actions, [Action::ForgetRenewals, Action::Settle { term: TERM, ran: None }]);
    assert_eq!(play.tell(booked(Ok(Booking::Booked(Booked::default())))), [], "nobody waits for it");
    assert_eq!(play.tell(settled(Ok(()))), [RELEASE]);

    let mut play = entering();
    shows(&play.renewed(Ok(Renewal::Lost(Some(other())))), &Action::Settle { term: TERM, ran: None });
    assert_eq!(play.tell(settled(Ok(()))), [Action::Claim], "it is not ours to release");
}

#[test]
fn the_release_waits_for_the_ledger_for_a_while() {
    let mut play = running_a_job();
    let end = CommandEnd::Exited(0);
    play.tell(Event::Tree(TreeEvent::Ended(end)));
    play.dead();
    assert!(play.tell(settled(Err(away()))).iter().all(|action| matches!(action, Action::Say(Notice::Trouble { .. }))));
    assert!(has(&play.until(7.0), &ran(Ended::ByItself(end), Some(end))));
    let actions = play.until(8.0);
    assert!(matches!(&actions[..], [Action::Say(Notice::NotSettled(_)), RELEASE]), "{actions:?}");
    assert_eq!(play.tell(settled(Ok(()))), [], "too late");
    play.leaves(Outcome::Ended(end));
}

#[test]
fn the_end_of_a_run_is_recorded_although_the_store_denies_that_for_a_moment() {
    let end = CommandEnd::Exited(0);
    let ends = |play: &mut Play| {
        play.tell(Event::Tree(TreeEvent::Ended(end)));
        play.dead();
        play.tell(settled(Err(StoreError::denied("no"))))
    };
    let mut play = running_a_job();
    assert!(matches!(&ends(&mut play)[..], [Action::Say(Notice::Trouble { .. })]));
    assert!(has(&play.until(1.0), &ran(Ended::ByItself(end), Some(end))));
    assert_eq!(play.tell(settled(Ok(()))), [Action::Say(Notice::TroubleOver), RELEASE]);

    // And not for ever.
    let mut play = running_a_job();
    ends(&mut play);
    let actions = play.until(8.0);
    assert!(matches!(&actions[..], [.., Action::Say(Notice::NotSettled(_)), RELEASE]), "{actions:?}");
}

#[test]
fn a_first_signal_does_not_cut_the_ledger_short() {
    let mut play = running_a_job();
    play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(0))));
    play.dead();
    assert_eq!(play.tell(Event::Asked { signal: 15 }), []);
    shows(&play.tell(Event::Asked { signal: 15 }), &Action::End(Outcome::Ended(CommandEnd::Exited(0))));
}

#[test]
fn a_job_is_run_once_by_one_process_whatever_ends_it() {
    let mut play = running_a_job();
    play.renewed(Ok(Renewal::Lost(Some(other()))));
    let actions = play.dead();
    assert_eq!(actions, [Action::ForgetRenewals, ran(Ended::Lost(Loss::TakenBy(other())), None)]);
    assert_eq!(play.tell(settled(Ok(()))), [Action::End(Outcome::Lost(Loss::TakenBy(other())))]);

    let mut play = running_a_job();
    play.orders = None;
    play.renewed_at(5.0);
    play.ordered(paused());
    let end = CommandEnd::Signalled(15);
    play.tell(Event::Tree(TreeEvent::Ended(end)));
    assert_eq!(play.dead(), [Action::ForgetRenewals, ran(Ended::Paused, Some(end))]);
    assert_eq!(play.tell(settled(Ok(()))), [RELEASE]);
    play.leaves(Outcome::Ended(end));
}

const FAILED: HookEnd = HookEnd::Exited(3);

fn unready(play: &mut Play) -> Vec<Action> {
    let actions = play.tell(Event::Tree(TreeEvent::Unready(FAILED)));
    assert_eq!(actions, [Action::Say(Notice::Unready(FAILED))]);
    let actions = play.tell(Event::Tree(TreeEvent::Dead));
    assert!(has(&actions, &Action::Ended { term: TERM, how: Ended::Unready(FAILED) }), "{actions:?}");
    assert!(has(&actions, &RELEASE), "{actions:?}");
    play.released()
}

/// How long until it claims again while the store says that nobody leads.
fn stood_back(play: &mut Play) -> Duration {
    let begun = play.now;
    for _ in 0..1_000 {
        play.now = play.election.wake_at().since(BootInstant::from_nanos(0));
        let mut actions = play.tell(Event::Tick);
        // What pushes news may tell of our own release.
        assert_eq!(play.tell(Event::Changed(Ok(()))), []);
        while has(&actions, &Action::Observe) {
            actions = play.tell(Event::Observed { answer: Ok(Observation::Free) });
        }
        if has(&actions, &Action::Claim) {
            return play.now.saturating_sub(begun);
        }
    }
    panic!("it stands back for ever");
}

/// A host that `fails` again and again stands back, and says why.
fn lets_others_lead_first_and_longer_each_time(mut play: Play, fails: impl Fn(&mut Play) -> Vec<Action>, why: &str) {
    let held = |action: &Action| match action {
        Action::Say(Notice::Held(hold)) => Some(hold.to_string()),
        _ => None,
    };
    let mut last = Duration::ZERO;
    for failure in 0..8 {
        let said = fails(&mut play).iter().find_map(held).expect("it says why it waits");
        assert!(said.contains(why), "{said}");
        assert!(!play.election.wants_change());
        let pause = stood_back(&mut play);
        assert!(pause > last || failure > 4, "{failure}: {last:?} {pause:?}");
        assert!((4..=76).contains(&pause.as_secs()), "{failure}: {pause:?}");
        last = pause;
        assert!(play.claimed(Ok(granted())).iter().any(|action| matches!(action, Action::Start { .. })));
    }
    assert!(last > Duration::from_secs(40), "{last:?}");
    // A leadership that ends in another way ends the row.
    assert_eq!(play.tell(Event::Tree(TreeEvent::Started)), []);
    play.renewed(Ok(Renewal::Lost(Some(other()))));
    assert!(has(&play.dead(), &Action::Claim));
    play.claimed(Ok(granted()));
    fails(&mut play);
    assert!(stood_back(&mut play) < Duration::from_secs(6));
}

#[test]
fn a_host_whose_hook_failed_lets_others_lead_first_and_longer_each_time() {
    let why = "first because the --pre-start hook exited with 3 here";
    lets_others_lead_first_and_longer_each_time(Play::leading(|_| {}), unready, why);
}

#[test]
fn who_does_not_wait_leaves_when_its_hook_failed() {
    let mut play = Play::leading(|settings| settings.patience = Patience::Once);
    let actions = unready(&mut play);
    let Some(Action::End(Outcome::NotAcquired(Some(obstacle)))) = actions.last() else { panic!("{actions:?}") };
    assert!(
        obstacle.to_string().starts_with("other candidates go first because the --pre-start hook exited with 3 here"),
        "{obstacle}"
    );
    // A candidate that was asked to leave leaves.
    let mut play = Play::leading(|_| {});
    play.tell(Event::Asked { signal: 15 });
    assert_eq!(play.tell(Event::Tree(TreeEvent::Unready(HookEnd::Cut))), []);
    assert!(has(&play.dead(), &RELEASE));
    play.leaves(Outcome::Interrupted(15));
}

/// A guard that is late may hear of a later deadline before it sees the one that has passed.
#[test]
fn a_deadline_that_has_passed_stops_command_whatever_the_guard_has_seen() {
    let mut play = Play::leading(|_| {});
    let actions = play.until(8.1);
    assert!(!has(&actions, &Action::Say(Notice::Lost(Loss::DeadlinePassed))), "{actions:?}");
    let actions = play.until(8.2);
    assert!(has(&actions, &Action::Say(Notice::Lost(Loss::DeadlinePassed))), "{actions:?}");
    assert!(has(&actions, &Action::Stop(Stop::Losing { reason: Reason::Lost, certain: false })), "{actions:?}");
    // A renewal that is answered after that takes nothing back.
    let actions = play.renewed(Ok(Renewal::Renewed));
    assert!(actions.iter().all(|action| matches!(action, Action::Extend(_))), "{actions:?}");
    // Where the guard does nothing, the candidate stops it.
    shows(&play.renewing_until(19.5), &Action::Seize);
}

#[test]
fn a_job_whose_hook_failed_is_withdrawn_and_tried_again() {
    for signal in [None, Some(15)] {
        let mut play = running_a_job();
        if let Some(signal) = signal {
            play.tell(Event::Asked { signal });
        }
        play.tell(Event::Tree(TreeEvent::Unready(FAILED)));
        assert_eq!(play.dead(), [Action::ForgetRenewals, Action::Settle { term: TERM, ran: None }]);
        assert_eq!(play.tell(settled(Ok(()))), [RELEASE]);
        let actions = play.released();
        assert_eq!(actions.iter().any(|action| matches!(action, Action::End(_))), signal.is_some(), "{actions:?}");
    }
}

#[test]
fn hooks_around_a_stop_have_their_time_before_a_guard_is_passed_over() {
    let second = Duration::from_secs(1);
    let hooks = TimeForHooks { pre_start: 30 * second, pre_stop: 2 * second, post_stop: 2 * second };
    let lease = 60 * second;
    let play = |max_run| {
        Play::leading(move |settings| {
            let timing = TimingRequest { hooks, lease, stop_grace: 5 * second, ..TimingRequest::default() };
            settings.timing = Timing::new(timing).unwrap();
            settings.stop_timeout = Some(3 * second);
            settings.max_run = max_run;
        })
    };
    // From the stop timeout, or the grace, both hook_timeouts and a second.
    let mut asked = play(None);
    asked.tell(Event::Asked { signal: 15 });
    assert!(!has(&asked.until(7.9), &Action::Seize) && has(&asked.until(8.0), &Action::Seize));
    let mut lost = play(None);
    lost.renewed(Ok(Renewal::Lost(Some(other()))));
    assert!(!has(&lost.until(9.9), &Action::Seize) && has(&lost.until(10.0), &Action::Seize));
    // How long COMMAND runs counts from its start, or from the latest that this can be.
    let overran = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Say(Notice::Overran(_))));
    let mut slow = play(Some(4 * second));
    assert!(!overran(&slow.until(33.9)) && overran(&slow.until(34.0)));
    let mut begun = play(Some(4 * second));
    begun.until(1.0);
    begun.tell(Event::Tree(TreeEvent::Started));
    assert!(!overran(&begun.until(4.9)) && overran(&begun.until(5.0)));
}

#[test]
fn a_loss_during_an_orderly_stop_is_said_once_and_is_not_the_cause() {
    let lost = |loss| Action::Say(Notice::Lost(loss));
    for (event, loss) in
        [(TreeEvent::DeadlineReached, Loss::DeadlinePassed), (TreeEvent::GuardFailed, Loss::GuardFailed)]
    {
        let mut play = asked_to_stop();
        assert_eq!(play.tell(Event::Tree(event)), [lost(loss.clone())]);
        assert!(!has(&play.until(14.0), &lost(Loss::DeadlinePassed)));
        play.dead();
        play.leaves(Outcome::Ended(CommandEnd::Signalled(15)));
    }
    shows(&asked_to_stop().until(14.0), &lost(Loss::DeadlinePassed));
}

fn asked_to_stop() -> Play {
    let mut play = Play::leading(|_| {});
    play.tell(Event::Asked { signal: 15 });
    play
}

#[test]
fn a_lease_that_is_lost_for_certain_during_an_orderly_stop_is_neither_renewed_nor_released() {
    let mut play = asked_to_stop();
    play.until(6.7);
    shows(&play.renewed(Ok(Renewal::Lost(None))), &LOSING);
    assert_eq!(play.renewed(Ok(Renewal::Lost(None))), [], "it is said once");
    play.renewed(Err(away()));
    play.tell(Event::Doubted);
    assert_eq!(renewals(&play.until(8.0)), 0);
    assert_eq!(play.dead().last(), Some(&Action::End(Outcome::Ended(CommandEnd::Signalled(15)))));
}

#[test]
fn a_store_that_answers_the_release_answers_again() {
    let mut play = asked_to_stop();
    play.answered(6.7, Err(away()));
    shows(
        &play.renewed(Err(away())),
        &Action::Say(Notice::Trouble { message: "the store is away".to_owned(), lasting: Duration::ZERO }),
    );
    play.dead();
    assert_eq!(play.released().first(), Some(&Action::Say(Notice::TroubleOver)));
}

#[test]
fn what_is_left_of_a_pause_is_as_it_was_heard_last() {
    let pause = |left| Directives {
        pause: Some(Pause { keep: false, left: Some(Duration::from_secs(left)), said: "by me".to_owned() }),
        handover: None,
    };
    let mut play = Play::leading(|_| {});
    play.brought(0.0, pause(5));
    play.brought(0.0, pause(1));
    play.dead();
    let actions = play.released();
    let left = |action: &Action| matches!(action, Action::Say(Notice::Held(hold)) if hold.left == Some(Duration::from_secs(1)));
    assert!(actions.iter().any(left), "{actions:?}");
}

#[test]
fn a_leader_whose_command_was_killed_does_not_say_that_it_goes_on() {
    let mut play = Play::leading(|_| {});
    play.orders = None;
    play.until(6.7);
    play.renewed(Err(away()));
    play.tell(Event::Tree(TreeEvent::Ended(CommandEnd::Exited(0))));
    let actions = play.tell(Event::Ordered { answer: Err(StoreError::denied("no")) });
    assert!(!actions.iter().any(|action| matches!(action, Action::Say(Notice::OrdersUnread { .. }))), "{actions:?}");
}
