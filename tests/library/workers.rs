//! Programs that use the library, killed, frozen and cut off. What they do is taken for work from its first sign to its
//! last one, so one sign of another's in between would be two at work.

use crate::support::fleet::example_program;
use crate::support::prelude::*;
use crate::{LEASE, Place};
use std::os::unix::process::ExitStatusExt;
use std::thread::sleep;

/// By then it has happened, unless it waits for the end of a lease.
const SOON: Duration = Duration::from_secs(3);

fn other_than(leader: &str) -> &'static str {
    if leader == "one" { "two" } else { "one" }
}

impl Place {
    fn worker(&mut self, owner: &str, flags: &[&str]) {
        let mut command = Command::new(example_program("worker"));
        command.args([&self.url, owner]).arg(self.fleet.scratch.path().join("stamps")).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.fleet.launch(owner, command);
    }

    fn two(&mut self, flags: &[&str]) -> (String, String) {
        self.worker("one", flags);
        self.worker("two", flags);
        let leader = self.fleet.leader().owner;
        let other = other_than(&leader).to_owned();
        (leader, other)
    }

    /// Waits until one tree has lived for so long. A machine that stalls for longer than the lease allows may end one or
    /// another before.
    fn leads_for(&self, time: Duration) -> String {
        let lasted = |life: &Life| Duration::from_nanos(life.last - life.first);
        self.fleet.leader_where(|life| lasted(life) >= time).owner
    }

    fn taken_over_by(&self, owner: &str) {
        self.fleet.leader_where(|life| life.owner == owner);
    }
}

fn one_works_and_the_other_takes_over_when_it_is_killed(mut place: Place) {
    place.two(&[]);
    let leader = place.leads_for(LEASE + SOON);
    place.fleet.kill(&leader);
    place.taken_over_by(other_than(&leader));
    place.fleet.conclude();
}

fn programs_under_leaderrun_take_part_in_the_same_election(mut place: Place) {
    let url = place.url.clone();
    let timing = crate::support::world::TIMING;
    place.worker("one", &[]);
    place.taken_over_by("one");
    place.fleet.start("two", &[&timing[..], &["--store", &url]].concat(), &[], &[]);
    sleep(SOON);
    assert!(place.fleet.stop("one").success());
    place.taken_over_by("two");
    place.worker("one", &[]);
    sleep(SOON);
    place.fleet.stop("two");
    place.taken_over_by("one");
    place.fleet.conclude();
}

on_two_stores!(
    one_works_and_the_other_takes_over_when_it_is_killed,
    programs_under_leaderrun_take_part_in_the_same_election,
);

/// Where a lease expires, whatever became of its holder.
#[cfg(feature = "redis")]
mod network {
    use super::*;

    #[test]
    fn a_program_that_is_frozen_for_longer_than_its_lease_never_works_again() {
        for flags in [&["block", "hold"][..], &[]] {
            let mut place = Place::redis();
            let (leader, other) = place.two(flags);
            place.fleet.signal(&leader, Signal::SIGSTOP);
            // Nobody has continued it, and the kernel has killed it all the same.
            let ended = place.fleet.end_of(&leader);
            assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32), "{ended}");
            place.taken_over_by(&other);
            if !flags.is_empty() {
                place.fleet.kill(&other);
            }
            place.fleet.conclude();
        }
    }

    #[test]
    fn work_that_does_not_end_in_time_is_aborted_with_its_process() {
        let until_its_end = |flags: &[&str]| {
            let mut place = Place::redis();
            place.worker("one", flags);
            let leader = place.fleet.leader();
            place.server().freeze();
            let ended = place.fleet.end_of("one");
            (place, leader, ended.signal())
        };
        for flags in [&["block", "hold"][..], &["hold"]] {
            // The kernel's own timer follows 300 ms later, and says nothing. On a busy machine it may be first.
            let mut tries = (0..3).map(|_| until_its_end(flags));
            let aborted = tries.find(|(.., signal)| *signal == Some(Signal::SIGABRT as i32));
            let (mut place, leader, _) = aborted.expect("it is aborted");
            assert!(
                place.fleet.logs().contains("leaderrun: the lease on shard is about to end"),
                "{}",
                place.fleet.logs()
            );
            place.server().thaw();
            place.worker("two", &[]);
            place.fleet.leader_where(|life| life.term > leader.term);
            place.fleet.conclude();
        }
    }
}
