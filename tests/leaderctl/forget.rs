//! `leaderctl forget`: all that a store keeps of a shard is gone, and never while it is led or may still have a tree.

use crate::support::prelude::*;
use crate::support::random::Random;
use std::thread::{sleep, spawn};

impl Place {
    fn forgetting(&self, shard: &str) -> Command {
        // At least that of the candidates that are started here.
        self.ctl(&["--request-timeout", "30s", "forget", "--lease", "6s", shard])
    }

    #[track_caller]
    fn forget(&self, shard: &str) -> Said {
        self.forgetting(shard).said()
    }

    #[track_caller]
    fn assert_knows_nothing_of(&self, shard: &str) {
        let status = self.object(&["status", "--json", shard]);
        for member in ["last_term", "holder", "owner", "term", "pause", "handover", "last_run"] {
            assert!(status.get(member).is_none_or(Value::is_null), "{member}: {status}");
        }
        assert!(status["held"] == false && status["paused"] == false, "{status}");
        self.ask(&["history", shard]).ended(66);
        let list = self.order(&["list", "--json", shard]);
        assert!(!list.contains(&format!("\"{shard}\"")), "{list}");
    }

    fn run_once(&mut self, owner: &str) -> Life {
        self.launch(owner, &[]);
        let leader = self.fleet.leader_where(|life| life.owner == owner);
        self.fleet.stop(owner);
        leader
    }
}

fn what_is_led_is_kept_and_what_is_free_is_forgotten_and_terms_go_on_rising(mut place: Place) {
    place.launch("c0", &[]);
    let leader = place.fleet.leader();
    place.forget("shard").refused(75, "c0 (term  … stop its candidates");
    place.fleet.stop("c0");
    place.order(&["pause", "shard", "--reason", "it goes"]);

    assert_eq!(place.forget("shard").good(), "shard: forgotten\n");
    place.assert_knows_nothing_of("shard");
    place.forget("shard").ended(66).tells("nobody has led shard so far");
    place.assert_knows_nothing_of("shard");

    let next = place.run_once("c1");
    assert!(next.term > leader.term, "{next:?} after {leader:?}");
    place.fleet.conclude();
}

fn the_slots_of_a_shard_are_forgotten_with_it_and_a_led_one_keeps_it(mut place: Place) {
    for owner in ["c0", "c1"] {
        place.launch_with(owner, &["-v", "--slots", "2"], &[]);
    }
    wait_until("both slots are led", || [1, 2].iter().all(|&slot| !place.fleet.lives_in_slot(slot).is_empty()));
    let led_in = |slot| place.fleet.lives_in_slot(slot).last().unwrap().owner.clone();
    let (one, two) = (led_in(1), led_in(2));
    place.fleet.stop(&one);
    place.forget("shard").refused(75, &format!("{two} … shard#2"));
    // What was free was given back.
    assert!(place.object(&["status", "--json", "shard#1"])["last_term"].is_u64());
    place.fleet.stop(&two);
    assert_eq!(place.forget("shard").good(), "shard: forgotten, as are shard#1, shard#2\n");
    for shard in ["shard", "shard#1", "shard#2"] {
        place.assert_knows_nothing_of(shard);
    }
    place.fleet.end_all();
}

fn a_crashed_leader_keeps_its_shard_until_its_lease_has_ended(mut place: Place) {
    place.launch("c0", &[]);
    let leader = place.fleet.leader();
    // Nobody is left who could release it.
    let others = helpers_of(place.fleet.pid("c0"));
    for &pid in &others {
        kill(pid, Signal::SIGSTOP).unwrap();
    }
    place.fleet.kill("c0");
    for &pid in &others {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    place.forget("shard").refused(75, "c0 (term  … if it is not renewed");
    wait_until("its lease has ended", || place.forget("shard").code == 0);
    place.assert_knows_nothing_of("shard");
    let next = place.run_once("c1");
    assert!(next.term > leader.term, "{next:?} after {leader:?}");
    place.fleet.conclude();
}

fn a_lease_that_was_taken_away_keeps_its_shard_until_its_tree_is_dead(mut place: Place) {
    place.launch("c0", &[]);
    let leader = place.fleet.leader();
    wait_until("it is written down", || !place.ask(&["history", "shard"]).out.is_empty());
    place.fleet.signal("c0", Signal::SIGSTOP);
    place.order(&["revoke", "--force", "--term", &leader.term.to_string(), "shard"]);
    let history = place.order(&["history", "shard"]);
    assert!(history.contains(" to ?: term ") && history.contains("; an operator revoked the lease, by "), "{history}");
    // It is no leader, but what it runs is not over.
    place.ask(&["wait", "shard", "--timeout", "1s"]).refused(75, "leaderctl: shard: still nobody leads after 1s");
    let why = place.order(&["why", "shard"]);
    assert!(why.contains(": the lease was revoked") && !why.contains("forgotten"), "{why}");
    let refusal = place.ask(&["pause", "shard", "--wait=0s"]).refused(75, "").err;
    assert!(refusal.contains("a leader whose lease was revoked has not stopped"), "{refusal}");
    let said = place.forget("shard").refused(75, "").err;
    assert!(said.contains("may live for") || said.contains("has the lease, for"), "{said}");
    place.fleet.signal("c0", Signal::SIGCONT);
    place.fleet.conclude();
}

fn candidates_that_race_with_forgetting_never_run_two_at_once(mut place: Place) {
    let mut random = Random::new(11);
    let owners = ["c0", "c1", "c2"];
    for owner in owners {
        place.launch(owner, &[]);
    }
    let mut forgotten = 0;
    for _ in 0..3 {
        let leader = place.fleet.leader();
        let mut verb = place.forgetting("shard");
        let wait = random.millis(0, 60);
        // The lease is free for a moment between two leaders, and this one asks again and again.
        let asking = spawn(move || {
            sleep(wait);
            (0..6).filter(|_| verb.output().unwrap().status.success()).count()
        });
        place.fleet.stop(&leader.owner);
        place.launch(&leader.owner, &[]);
        forgotten += asking.join().unwrap();
    }
    // Those who led meanwhile have terms that rise, and ran alone.
    println!("forgotten {forgotten} times");
    place.fleet.leader();
    place.fleet.conclude();
}

#[test]
#[cfg(feature = "redis")]
fn another_program_that_has_the_lock_is_no_candidate() {
    let mut place = Place::remote(Box::new(crate::support::redis::Server::start()));
    place.url += "?lock_key=its/key";
    crate::support::redis::cli(place.server().port(), &["SET", "its/key", "backend-7", "PX", "600000"]);
    place.forget("shard").refused(75, "backend-7 (holds the key its/key) has the lease … : stop it on its host, then");
}

on_two_stores!(
    [
        a_crashed_leader_keeps_its_shard_until_its_lease_has_ended,
        a_lease_that_was_taken_away_keeps_its_shard_until_its_tree_is_dead,
    ]:
    what_is_led_is_kept_and_what_is_free_is_forgotten_and_terms_go_on_rising,
    the_slots_of_a_shard_are_forgotten_with_it_and_a_led_one_keeps_it,
    candidates_that_race_with_forgetting_never_run_two_at_once,
);
