//! Tests without a keeper and without an election: the answers depend on the clock alone.

use super::*;
use crate::store::lease_store::memory::reference;
use crate::{Member, Roles};
use std::cell::Cell;
use std::task::{Context, Waker};

const GRACE: Duration = Duration::from_millis(100);

type Told = mpsc::UnboundedReceiver<Event>;

fn shared(overrun: Overrun) -> (Arc<Shared>, Told) {
    Shared::new(Candidate::example(), GRACE, overrun, None).unwrap()
}

fn leading(overrun: Overrun, deadline: Deadline) -> (Arc<Shared>, Told) {
    let (shared, told) = shared(overrun);
    let store: Arc<dyn Store> = Arc::new(reference());
    shared.begin(Term(5), deadline, &store);
    (shared, told)
}

/// A deadline for work that has to end in `millis` milliseconds.
fn ending_in(millis: u64) -> Deadline {
    let term_at = BootInstant::now().plus(Duration::from_millis(millis));
    let kill_at = term_at.plus(GRACE);
    Deadline { term_at, kill_at, backstop_at: kill_at.plus(GRACE) }
}

/// A leadership whose deadline comes soon. Tries again where a busy machine is too slow to take it before that.
fn held_for_a_moment() -> (Arc<Shared>, Told, Leadership, Deadline) {
    loop {
        let deadline = ending_in(500);
        let (shared, told) = leading(Overrun::Warn, deadline);
        if let Some(leadership) = shared.hold() {
            return (shared, told, leadership, deadline);
        }
        assert!(BootInstant::now() >= deadline.term_at, "it is not held");
    }
}

fn sleep_until(instant: BootInstant) {
    std::thread::sleep(instant.since(BootInstant::now()));
    assert!(BootInstant::now() >= instant);
}

fn next(told: &mut Told) -> Option<TreeEvent> {
    match told.try_recv() {
        Ok(Event::Tree(event)) => Some(event),
        Ok(event) => panic!("{event:?}"),
        Err(_) => None,
    }
}

#[test]
fn without_a_keeper_the_clock_alone_ends_it() {
    let (shared, _told, leadership, deadline) = held_for_a_moment();
    let leads = shared.is_leader() && leadership.why_ending().is_none();
    assert!(leads || BootInstant::now() >= deadline.term_at, "{leadership:?}");
    assert!(leadership.remaining() <= Duration::from_millis(600), "{leadership:?}");
    sleep_until(deadline.term_at);
    assert!(!shared.is_leader() && shared.hold().is_none());
    assert_eq!(leadership.why_ending(), Some(Ending::Late));
    sleep_until(deadline.kill_at);
    assert!(!leadership.is_valid(), "{leadership:?}");
    assert_eq!(shared.leader(), None);
}

#[test]
fn work_that_wakes_after_its_end_does_not_go_on_before_the_keeper_runs() {
    let wakes = Cell::new(0);
    let work = |_| {
        poll_fn(|_| {
            wakes.set(wakes.get() + 1);
            Poll::<()>::Pending
        })
    };
    let mut context = Context::from_waker(Waker::noop());
    let deadline = ending_in(500);
    let (shared, _told) = leading(Overrun::Warn, deadline);
    let member = Member { shared };
    let mut running = pin!(member.run(work));
    assert!(running.as_mut().poll(&mut context).is_pending());
    let woke_in_time = wakes.get();
    assert!(woke_in_time == 1 || BootInstant::now() >= deadline.term_at, "it does not work");
    sleep_until(deadline.term_at);
    assert!(running.as_mut().poll(&mut context).is_pending());
    assert_eq!(wakes.get(), woke_in_time);
}

#[test]
fn a_forked_process_does_not_lead_and_does_not_touch_what_it_shares() {
    let (mut shared, mut told) = leading(Overrun::Abort, Deadline::NONE);
    let leadership = shared.hold().unwrap();
    assert!(leadership.is_valid() && shared.is_leader());
    drop(leadership);
    Arc::get_mut(&mut shared).unwrap().pid += 1;
    let leadership = Leadership { shared: Arc::clone(&shared), term: Term(5) };
    assert!(!leadership.is_valid());
    // As in a child that was forked while another thread had the lock.
    let locked = shared.state.lock();
    assert!(!leadership.is_valid() && leadership.why_ending() == Some(Ending::Lost));
    assert!(!shared.is_leader() && shared.hold().is_none());
    assert_eq!((shared.leader(), shared.trouble()), (None, None));
    assert_eq!(shared.farewell(), Some(Err(Error::Stopped)), "nothing waits there for ever");
    shared.ask();
    drop(leadership.clone());
    drop(leadership);
    drop(locked);
    assert_eq!(next(&mut told), None);
}

#[test]
fn an_extension_that_comes_too_late_does_not_take_the_end_back() {
    let (shared, mut told, leadership, deadline) = held_for_a_moment();
    sleep_until(deadline.term_at);
    shared.extend(ending_in(10_000));
    assert_eq!(leadership.why_ending(), Some(Ending::Late));
    assert!(!shared.is_leader());
    // The election has to learn that the work was told to end.
    assert_eq!(next(&mut told), Some(TreeEvent::DeadlineReached));
    drop(leadership);
    assert_eq!(next(&mut told), Some(TreeEvent::Dead));
}

#[test]
fn a_leadership_that_begins_after_its_end_is_not_handed_out() {
    let late = BootInstant::now().minus(Duration::from_secs(1));
    let (shared, mut told) = leading(Overrun::Abort, Deadline { term_at: late, kill_at: late, backstop_at: late });
    assert!(shared.hold().is_none());
    assert_eq!(next(&mut told), Some(TreeEvent::DeadlineReached));
    assert_eq!(next(&mut told), Some(TreeEvent::Dead));
}

#[test]
fn a_certain_loss_may_follow_a_late_renewal() {
    let (shared, _told) = leading(Overrun::Warn, ending_in(10_000));
    let leadership = shared.hold().unwrap();
    shared.stop(Stop::Losing { reason: Reason::Lost, certain: false });
    assert!(leadership.why_ending() == Some(Ending::Late) && leadership.is_valid(), "{leadership:?}");
    shared.stop(Stop::Losing { reason: Reason::Lost, certain: true });
    assert!(leadership.why_ending() == Some(Ending::Lost) && !leadership.is_valid(), "{leadership:?}");
}

#[test]
fn after_a_failed_election_no_leadership_is_valid() {
    let (shared, _told) = leading(Overrun::Warn, Deadline::NONE);
    let leadership = shared.hold().unwrap();
    shared.over(Err(Error::Failed("a test".to_owned())));
    assert!(!leadership.is_valid() && !shared.is_leader() && shared.hold().is_none());
    assert_eq!(shared.farewell(), None, "work is left");
    drop(leadership);
    assert_eq!(shared.farewell(), Some(Err(Error::Failed("a test".to_owned()))));
    assert_eq!(Roles::new(shared.watch()).current(), Role::Stopped);
}

#[cfg(feature = "cli")]
#[test]
fn an_overrun_is_logged_without_holding_the_lock() {
    let (shared, _told) = leading(Overrun::Warn, Deadline::NONE);
    let _leadership = shared.hold().unwrap();
    let (asked, is_free) = (Arc::downgrade(&shared), Arc::new(Mutex::new(Vec::new())));
    let heard = Arc::clone(&is_free);
    let log = tracing_subscriber::fmt().with_writer(move || {
        heard.lock().push(asked.upgrade().unwrap().state.try_lock().is_some());
        io::sink()
    });
    tracing::subscriber::with_default(log.finish(), || shared.stop(Stop::Kill));
    assert_eq!(*is_free.lock(), [true]);
}
