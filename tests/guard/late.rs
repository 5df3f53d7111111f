//! Guard and backstop know how late they are woken. A tracer that stops them stands for a scheduler that does not run
//! them: nothing but the clock shows that they stood still.

use crate::slay;
use crate::support::prelude::*;
use crate::support::redis::Server;
use crate::support::server::is_gone;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};

const PAUSE: Duration = Duration::from_secs(2);

struct Leader {
    place: Place,
    guard: Pid,
    backstop: Pid,
}

impl Leader {
    fn with_lease(lease: &str) -> Self {
        let mut place = Place::remote(Box::new(Server::forgetful()));
        place.launch_with("one", &["--lease", lease, "--renew", "1s", "--kill-after", "1s"], &[]);
        place.fleet.leader();
        let [backstop, guard] = helpers_of(place.fleet.pid("one"));
        Self { place, guard, backstop }
    }

    /// None while it does not lead.
    fn guard_now(&self) -> Option<Pid> {
        let backstop = *children_of(self.place.fleet.pid("one").as_raw()).first()?;
        children_of(backstop).first().copied().map(Pid::from_raw)
    }

    fn wait_for_another_guard(&self, than: Pid) {
        let leads = |guard: Pid| guard != than && !children_of(guard.as_raw()).is_empty();
        wait_until_or("another guard runs", || self.place.fleet.logs(), || self.guard_now().is_some_and(leads));
    }

    fn why(&self) -> String {
        self.place.ask(&["why", "shard"]).out
    }

    /// The worst of guard and backstop so far, as the candidate knows it.
    fn lateness(&self) -> Duration {
        let said = self.why();
        let told =
            said.lines().find_map(|line| line.trim_start().strip_prefix("one: the guard or the backstop was woken "));
        let late = told.and_then(|told| told.split(" late").next());
        late.map_or(Duration::ZERO, |late| humantime::parse_duration(late).expect("a duration"))
    }

    fn wait_for(&self, said: &str) {
        wait_until_or(said, || format!("{}\n{}", self.why(), self.place.fleet.logs()), || self.why().contains(said));
    }
}

fn stop(pid: Pid) {
    ptrace::seize(pid, ptrace::Options::empty()).expect("we may trace it");
    ptrace::interrupt(pid).expect("it runs");
    waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it stops");
    std::thread::sleep(PAUSE);
    ptrace::detach(pid, None).expect("it is stopped");
}

#[test]
fn a_late_guard_makes_the_deadline_earlier_and_leads_on() {
    let leader = Leader::with_lease("60s");
    // ps(1) may show their numbers alone.
    leader.wait_for(&format!("its backstop is process {}, its guard process {}\n", leader.backstop, leader.guard));
    for process in [leader.guard, leader.backstop] {
        stop(process);
        leader.wait_for("one: the guard or the backstop was woken ");
        leader.wait_for(" late, so the command is stopped ");
    }
    assert!(!leader.place.fleet.logs().contains("lost"), "{}", leader.place.fleet.logs());
    assert!(!leader.place.fleet.logs().contains("outside the guarantee"), "{}", leader.place.fleet.logs());
}

/// The kernel takes a moment to close the line of a candidate that is killed, and the tree may be dead before.
#[test]
fn the_lease_of_a_candidate_that_is_killed_with_its_guard_is_given_back() {
    // Where a busy machine lets a second pass, the candidate counts as frozen.
    assert!((0..5).any(|_| is_given_back(Leader::with_lease("60s"))));
}

fn is_given_back(mut leader: Leader) -> bool {
    // It does not hang up, as one that is dying.
    leader.place.fleet.signal("one", Signal::SIGSTOP);
    slay(leader.guard);
    wait_until("the tree is dead", || children_of(leader.backstop.as_raw()).is_empty());
    std::thread::sleep(Duration::from_millis(100));
    leader.place.fleet.kill("one");
    wait_until("the backstop ends", || is_gone(leader.backstop.as_raw()));
    leader.place.fleet.logs().contains("released after it was killed")
}

/// The next guard has measured nothing when its candidate is frozen, which would otherwise kill the tree early by what it
/// remembers itself. Half of the outage that the timing allows is some seven seconds.
#[test]
fn the_first_deadline_of_the_next_guard_is_earlier_by_what_the_last_one_measured() {
    // Where the machine of the test is itself late, the deadline is early before anything is done to a guard.
    let told = (0..4).any(|_| is_told_of_the_first_deadline_of_the_next_guard(&Leader::with_lease("20s")));
    assert!(told, "this machine is late all the time");
}

/// False where the machine was late.
fn is_told_of_the_first_deadline_of_the_next_guard(leader: &Leader) -> bool {
    let lasts_alone = || {
        let guard = leader.guard_now().expect("it leads");
        leader.place.fleet.signal("one", Signal::SIGSTOP);
        let begun = Instant::now();
        wait_until_or("the guard ends", || leader.place.fleet.logs(), || is_gone(guard.as_raw()));
        leader.place.fleet.signal("one", Signal::SIGCONT);
        begun.elapsed()
    };
    let first = lasts_alone();
    leader.wait_for_another_guard(leader.guard);
    if leader.lateness() > Duration::from_millis(500) {
        return false;
    }
    let guard = leader.guard_now().expect("it leads");
    stop(guard);
    leader.wait_for(" late, so the command is stopped ");
    kill(guard, Signal::SIGKILL).expect("it is there");
    leader.wait_for_another_guard(guard);
    let next = lasts_alone();
    assert!(next + Duration::from_secs(3) < first, "{next:?}, at first {first:?}\n{}", leader.place.fleet.logs());
    true
}

#[test]
fn a_guard_that_is_too_late_for_the_lease_is_warned_of_once_and_leads_on() {
    let leader = Leader::with_lease("10s");
    for _ in 0..2 {
        stop(leader.guard);
        leader.wait_for("late, which is outside the guarantee: raise --lease or the CPU limit");
    }
    let logs = leader.place.fleet.logs();
    assert_eq!(logs.matches("outside the guarantee").count(), 1, "{logs}");
    assert!(!logs.contains("lost"), "{logs}");
}
