//! Members of this very process.

use crate::support::prelude::*;
use crate::{LEASE, LONG, Place};
use leaderrun::{Ending, Error, Leader, Overrun, Role, Roles};
use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// By then it has happened, unless it waits for the end of a lease.
const SOON: Duration = Duration::from_secs(3);

async fn wait_for(roles: &mut Roles, is: impl Fn(&Role) -> bool) -> Role {
    let mut role = roles.current();
    while !is(&role) {
        role = roles.changed().await.expect("it has not left");
    }
    role
}

async fn roles_follow_each_other_and_terms_rise(place: Place) {
    let first = place.join("first").await;
    let mut roles = first.watch();
    let stands_by = |role: &Role| matches!(role, Role::Standby { .. });
    let Role::Leading { term } = wait_for(&mut roles, |role| !stands_by(role)).await else {
        panic!("nobody else is there");
    };
    let second = place.join("second").await;
    let waits = |role: &Role| match role {
        Role::Standby { leader: Some(leader), waiting_for: Some(why), .. } => {
            leader.owner == "first" && leader.term == Some(term) && why.contains("first")
        }
        _ => false,
    };
    let mut others = second.watch();
    wait_for(&mut others, waits).await;
    let named = |leader: Option<Leader>| leader.map(|leader| leader.owner);
    assert_eq!(named(first.leader()), named(second.leader()));
    assert!(first.is_leader() && !second.is_leader() && second.try_leadership().is_none());

    let begun = Instant::now();
    first.stop().await.unwrap();
    // A watcher may see that it is a standby for a moment.
    let mut last = None;
    while let Some(role) = roles.changed().await {
        last = Some(role);
    }
    assert_eq!(last, Some(Role::Stopped));
    let next = match wait_for(&mut others, |role| !stands_by(role)).await {
        Role::Leading { term } => term,
        role => panic!("{role:?}"),
    };
    assert!(next > term && begun.elapsed() < LONG / 2, "{term} {next} after {:?}", begun.elapsed());
    let found = second.find_leader().await.unwrap().unwrap();
    assert_eq!((found.owner.as_str(), found.term, found.pid), ("second", Some(next), Some(std::process::id())));
    assert_eq!(first.find_leader().await, Err(Error::Stopped));
    assert_eq!(first.leadership().await.unwrap_err(), Error::Stopped);
    second.stop().await.unwrap();
}

async fn nobody_else_leads_while_a_leadership_is_held(place: Place) {
    let lease = 2 * LEASE;
    let first = place.builder("first").lease(lease).join().await.unwrap();
    let leadership = first.leadership().await.unwrap();
    let second = place.join("second").await;
    let stopping = tokio::spawn(async move { first.stop().await });
    assert_eq!(leadership.ending().await, Ending::Asked);
    // The lease is renewed for as long as it takes.
    tokio::time::sleep(lease + SOON).await;
    assert!(leadership.is_valid() && !second.is_leader() && !stopping.is_finished());
    drop(leadership);
    // It is released.
    stopping.await.unwrap().unwrap();
    second.leadership().await.unwrap();
}

async fn a_member_that_is_dropped_leaves(place: Place) {
    let first = place.join("first").await;
    let leadership = first.leadership().await.unwrap();
    let second = place.join("second").await;
    drop(first);
    assert_eq!(leadership.ending().await, Ending::Asked);
    drop(leadership);
    let begun = Instant::now();
    second.leadership().await.unwrap();
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
}

async fn callbacks_hear_of_the_beginning_and_the_end(place: Place) {
    let (heard, at_work) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let (led, lost, works) = (Arc::clone(&heard), Arc::clone(&heard), Arc::clone(&at_work));
    let builder = place.builder("one").on_losing(move |term, why| lost.lock().unwrap().push((term, Some(why))));
    let builder = builder.on_leading(move |leadership| {
        led.lock().unwrap().push((leadership.term(), None));
        works.store(true, Ordering::SeqCst);
        while leadership.why_ending().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500));
        works.store(false, Ordering::SeqCst);
    });
    let member = builder.join().await.unwrap();
    wait_until("the callback runs", || at_work.load(Ordering::SeqCst));
    assert!(member.is_leader());
    member.stop().await.unwrap();
    assert!(!at_work.load(Ordering::SeqCst), "it has left before the callback returned");
    wait_until("both were called", || heard.lock().unwrap().len() == 2);
    let heard = heard.lock().unwrap();
    assert!(heard[0].1.is_none() && heard[1] == (heard[0].0, Some(Ending::Asked)), "{heard:?}");
}

fn order(place: &Place, verb: &str) {
    let mut leaderctl = leaderctl();
    leaderctl.args(["--store", &place.url, verb, "shard"]).env("TERM", "dumb");
    assert!(leaderctl.output().unwrap().status.success(), "{verb}");
}

async fn a_callback_that_panics_makes_the_member_leave(place: Place) {
    let member = place.builder("one").on_leading(|_| panic!("as this test wants it")).join().await.unwrap();
    wait_for(&mut member.watch(), |role| *role == Role::Stopped).await;
    // So does one that hears of an ending.
    let heard = Arc::new(AtomicU64::new(0));
    let ears = Arc::clone(&heard);
    let builder = place.builder("one").on_losing(move |_, _| {
        ears.fetch_add(1, Ordering::SeqCst);
        panic!("as this test wants it")
    });
    let member = builder.join().await.unwrap();
    drop(member.leadership().await.unwrap());
    order(&place, "pause");
    wait_for(&mut member.watch(), |role| *role == Role::Stopped).await;
    assert_eq!(heard.load(Ordering::SeqCst), 1);
}

on_two_stores!(
    async a_callback_that_panics_makes_the_member_leave,
    async roles_follow_each_other_and_terms_rise,
    async nobody_else_leads_while_a_leadership_is_held,
    async a_member_that_is_dropped_leaves,
    async callbacks_hear_of_the_beginning_and_the_end,
);

/// Where a lease expires, and can be lost.
#[cfg(feature = "redis")]
mod network {
    use super::*;

    #[tokio::test]
    async fn a_leader_without_a_store_stops_leading_before_its_lease_has_ended() {
        // A member that outstays the grace ends this very program, and with it every other test: it outlasts a stall of the
        // machine.
        const GRACE: Duration = Duration::from_secs(10);
        const LEASE: Duration = Duration::from_secs(17);
        let place = Place::redis();
        let member = place.builder("one").lease(LEASE).kill_after(GRACE).join().await.unwrap();
        let leadership = member.leadership().await.unwrap();
        assert!(leadership.remaining() <= LEASE);
        place.server().freeze();
        let frozen = Instant::now();
        let mut least = Duration::MAX;
        while member.is_leader() {
            assert!(frozen.elapsed() < LEASE, "it leads on");
            let left = leadership.remaining();
            assert!(left <= LEASE && left <= least.saturating_add(Duration::from_secs(3)), "{left:?} {least:?}");
            least = left;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(leadership.ending().await, Ending::Late);
        assert!(leadership.is_valid() && leadership.remaining() <= GRACE, "{leadership:?}");
        let term = leadership.term();
        drop(leadership);
        assert!(frozen.elapsed() < LEASE && member.try_leadership().is_none());
        wait_until("its trouble is told", || member.trouble().is_some());
        place.server().thaw();
        assert!(member.leadership().await.unwrap().term() > term);
        assert_eq!(member.trouble(), None);
        member.stop().await.unwrap();
    }

    struct Droppable(Arc<AtomicU64>);
    impl Drop for Droppable {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn work_is_dropped_when_the_lease_is_lost_and_starts_again() {
        let mut place = Place::redis();
        let losses = Arc::new(Mutex::new(Vec::new()));
        let lost = Arc::clone(&losses);
        let builder = place.builder("one").lease(2 * LEASE);
        let member = builder.on_losing(move |_, why| lost.lock().unwrap().push(why)).join().await.unwrap();
        let (begun, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let work = |leadership: leaderrun::Leadership| {
            let (begun, droppable) = (Arc::clone(&begun), Droppable(Arc::clone(&dropped)));
            async move {
                let _droppable = droppable;
                if begun.fetch_add(1, Ordering::SeqCst) == 0 {
                    pending::<()>().await;
                }
                leadership.term()
            }
        };
        let remove = async {
            let first = member.leadership().await.unwrap().term();
            while begun.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            place.server.as_mut().expect("it is behind a network").remove_lock("shard");
            first
        };
        let (term, first) = tokio::join!(member.run(work), remove);
        assert!(term.unwrap() > first);
        assert_eq!((begun.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst)), (2, 2));
        assert_eq!(*losses.lock().unwrap(), [Ending::Lost]);
        member.stop().await.unwrap();
    }

    #[tokio::test]
    async fn work_that_may_overrun_hears_that_it_is_not_valid() {
        const LEASE: Duration = Duration::from_secs(10);
        let place = Place::redis();
        let builder = place.builder("one").lease(LEASE);
        let member = builder.on_overrun(Overrun::Warn).join().await.unwrap();
        let leadership = member.leadership().await.unwrap();
        place.server().freeze();
        let frozen = Instant::now();
        // The time is taken before each look.
        let mut at = Instant::now();
        while leadership.is_valid() {
            assert!(at.duration_since(frozen) < LEASE, "{at:?} {frozen:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
            at = Instant::now();
        }
        assert!(leadership.remaining().is_zero() && !member.is_leader());
        tokio::time::sleep((LEASE + SOON).saturating_sub(frozen.elapsed())).await;
        place.server().thaw();
        // The lease may be renewed late, for the work goes on. That does not make the leadership valid again.
        tokio::time::sleep(SOON).await;
        assert!(!leadership.is_valid());
        let term = leadership.term();
        drop(leadership);
        assert!(member.leadership().await.unwrap().term() > term);
        member.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_store_that_is_away_is_left_without_a_release() {
        let place = Place::redis();
        let member = place.builder("one").lease(LEASE).join().await.unwrap();
        drop(member.leadership().await.unwrap());
        place.server().freeze();
        let error = member.stop().await.unwrap_err();
        assert!(matches!(error, Error::NotReleased(_)), "{error:?}");
        place.server().thaw();
    }
}
