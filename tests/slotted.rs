//! `--slots N`: several leaders of one shard, with real candidates and real servers. No two trees ever run in one slot, no
//! candidate has two, and whoever is gone from a slot is followed there.

#[macro_use]
mod support;

#[path = "slotted/adapter.rs"]
mod adapter;

use leaderrun::time::BootInstant;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::evidence::{Evidence, common};
use support::fleet::{Fleet, Life, leaderrun, wait_until, wait_until_or};
use support::place::Place;
use support::world::{LEASE, TIMING};

const SLOTS: [u32; 2] = [1, 2];

impl Place {
    fn start(&mut self, owner: &str) {
        let flags = [&TIMING, &["-v", "--slots", "2", "--announce", "always", "--store", &self.url][..]].concat();
        self.fleet.start(owner, &flags, &["daemon"], self.environment);
    }

    /// Both slots are led then.
    fn crew(&mut self) -> [Life; 2] {
        for owner in ["c0", "c1", "c2", "c3", "c4"] {
            self.start(owner);
        }
        self.leaders()
    }

    fn leaders(&self) -> [Life; 2] {
        SLOTS.map(|slot| leader_of(&self.fleet, slot, |_| true))
    }

    fn status(&self, shard: &str) -> Value {
        serde_json::from_str(&self.order(&["status", shard, "--standbys", "--json"])).unwrap()
    }
}

/// Waits until a tree that fits is alive in a slot.
fn leader_of(fleet: &Fleet, slot: u32, fits: impl Fn(&Life) -> bool) -> Life {
    let (mut found, begun) = (None, BootInstant::now().as_nanos());
    let look = || {
        found = fleet.lives_in_slot(slot).into_iter().rfind(|life| life.last > begun && fits(life));
        found.is_some()
    };
    wait_until_or(&format!("somebody leads slot {slot}"), || fleet.logs(), look);
    found.unwrap()
}

fn successor(fleet: &Fleet, slot: u32, last: &Life) -> Life {
    leader_of(fleet, slot, |life| life.term > last.term)
}

/// Ends everything, and checks what must hold after every story.
fn conclude(mut fleet: Fleet) -> [Vec<Life>; 2] {
    let until = BootInstant::now().as_nanos();
    let (without, evidence) = fleet.end();
    assert!(without.is_empty() && evidence.orphans == 0, "{without:?} {evidence:?}\n{}", fleet.logs());
    assert!(!fleet.scratch.path().join("stamps.3").exists(), "{}", fleet.logs());
    let lives = SLOTS.map(|slot| fleet.lives_in_slot(slot));
    for lives in &lives {
        assert_eq!(Evidence::of(lives, until, 0).breach(), None, "{lives:?}\n{}", fleet.logs());
    }
    for one in &lives[0] {
        let twice = lives[1].iter().find(|other| one.owner == other.owner && !common(one, other).is_zero());
        assert!(twice.is_none(), "one candidate had two trees: {one:?} {twice:?}\n{}", fleet.logs());
    }
    lives
}

fn of_five_candidates_two_lead_and_those_that_are_gone_are_followed_in_their_slots(mut place: Place) {
    let [one, two] = place.crew();
    assert_ne!(one.owner, two.owner);
    place.fleet.kill(&one.owner);
    let next = successor(&place.fleet, 1, &one);
    assert_eq!(leader_of(&place.fleet, 2, |_| true).term, two.term, "the other slot has nothing to do with it");
    place.start(&one.owner);
    if place.server.is_some() {
        place.fleet.signal(&two.owner, Signal::SIGSTOP);
        std::thread::sleep(2 * LEASE);
        let third = successor(&place.fleet, 2, &two);
        place.fleet.signal(&two.owner, Signal::SIGCONT);
        std::thread::sleep(LEASE / 2);
        let now = place.leaders();
        assert_eq!([now[0].term, now[1].term], [next.term, third.term]);
    }
    // In order: a release is heard of.
    place.fleet.stop(&next.owner);
    successor(&place.fleet, 1, &next);
    let lives = conclude(place.fleet);
    assert!(lives[0].len() >= 3, "{lives:?}");
}

fn orders_of_the_shard_are_for_all_slots_and_those_of_a_slot_for_one(mut place: Place) {
    let [one, two] = place.crew();
    wait_until("the standbys are known", || place.status("shard")["standbys"] == 3);
    let list = place.order(&["list", "shard/"]);
    assert!(list.contains("shard/1 ") && list.contains("shard/2 ") && list.lines().count() == 3, "{list}");

    let said = place.order(&["step-down", "shard/1", "--wait"]);
    assert!(said.contains("stepped down"), "{said}");
    let next = successor(&place.fleet, 1, &one);
    assert_ne!(next.owner, one.owner);
    assert_eq!(leader_of(&place.fleet, 2, |_| true).term, two.term);

    place.order(&["pause", "shard", "--wait"]);
    let paused = BootInstant::now().as_nanos();
    std::thread::sleep(Duration::from_secs(3));
    for slot in SLOTS {
        let lives = place.fleet.lives_in_slot(slot);
        assert!(lives.iter().all(|life| life.last <= paused), "{paused} {lives:?}\n{}", place.fleet.logs());
        assert_eq!(place.status(&format!("shard/{slot}"))["held"], false);
    }
    place.order(&["resume", "shard"]);
    let [one, two] = place.leaders();

    place.order(&["pause", "shard/2", "--wait"]);
    let paused = BootInstant::now().as_nanos();
    // Everybody has been barred from slot 2 by now, and is free to lead slot 1.
    std::thread::sleep(Duration::from_secs(5));
    place.fleet.stop(&one.owner);
    let next = successor(&place.fleet, 1, &one);
    let lives = place.fleet.lives_in_slot(2);
    assert!(lives.iter().all(|life| life.last <= paused), "{paused} {lives:?}\n{}", place.fleet.logs());
    let tries = place.fleet.logs().matches("shard/2").count();
    assert!(tries < 60, "they keep trying: {tries}\n{}", place.fleet.logs());
    place.order(&["resume", "shard/2"]);
    successor(&place.fleet, 2, &two);
    assert_eq!(leader_of(&place.fleet, 1, |_| true).term, next.term);
    wait_until("each leadership is written down", || place.order(&["history", "shard/1"]).lines().count() >= 4);
    conclude(place.fleet);
}

fn a_single_candidate_that_steps_down_takes_the_other_slot(mut place: Place) {
    place.start("c0");
    let (mut at, begun) = (0, BootInstant::now().as_nanos());
    let look = || {
        let leads = |slot: &&u32| place.fleet.lives_in_slot(**slot).iter().any(|life| life.last > begun);
        at = SLOTS.iter().find(leads).copied().unwrap_or_default();
        at > 0
    };
    wait_until("it leads", look);
    place.order(&["step-down", &format!("shard/{at}"), "--for", "60s"]);
    let moved = leader_of(&place.fleet, 3 - at, |_| true);
    place.order(&["step-down", &format!("shard/{}", 3 - at), "--for", "2s"]);
    leader_of(&place.fleet, 3 - at, |life| life.term > moved.term);
    conclude(place.fleet);
}

/// What COMMAND prints that runs in a slot.
fn printed(place: &Place, slots: &str, script: &str) -> String {
    let mut command = leaderrun();
    command.args(TIMING).args(["--slots", slots, "--store", &place.url, "db/main", "-c", script]);
    command.envs(place.environment.iter().copied()).env("CTL", env!("CARGO_BIN_EXE_leaderctl"));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "as every story")]
fn a_command_is_told_of_its_slot_and_can_verify_it(place: Place) {
    let script =
        "\"$CTL\" verify && LEADERRUN_SOCKET= \"$CTL\" --store $URL verify && echo $LEADERRUN_SHARD:$LEADERRUN_SLOT";
    let script = script.replace("$URL", &format!("'{}'", place.url));
    assert_eq!(printed(&place, "1", &script), "db/main/1:1\n");
    let told = printed(&place, "64", &script);
    let (shard, slot) = told.trim().split_once(':').unwrap();
    assert_eq!(shard, format!("db/main/{slot}"));
}

everywhere!(
    of_five_candidates_two_lead_and_those_that_are_gone_are_followed_in_their_slots,
    orders_of_the_shard_are_for_all_slots_and_those_of_a_slot_for_one,
    a_single_candidate_that_steps_down_takes_the_other_slot,
    a_command_is_told_of_its_slot_and_can_verify_it,
);

/// Where each candidate has its own way to the server.
#[cfg(feature = "redis")]
mod ways {
    use super::{conclude, leader_of, successor};
    use crate::support::proxy::Weather;
    use crate::support::world::{LEASE, Story, TIMING, World};

    fn world() -> World {
        let story = Story {
            store: "redis",
            fault: "slots",
            start: || Box::new(crate::support::redis::Server::start()),
            equipped: false,
        };
        let mut world = World::empty(story, &[&TIMING[..], &["--slots", "2"]].concat(), &["ignore-term", "daemon"]);
        world.crew(5);
        world
    }

    #[test]
    fn a_leader_that_is_cut_off_is_followed_in_its_slot_and_the_other_goes_on() {
        let world = world();
        let (one, two) = (leader_of(&world.fleet, 1, |_| true), leader_of(&world.fleet, 2, |_| true));
        world.set(&one.owner, Weather::BlackHole);
        let next = successor(&world.fleet, 1, &one);
        std::thread::sleep(LEASE);
        world.set(&one.owner, Weather::Fair);
        std::thread::sleep(LEASE / 2);
        assert_eq!(leader_of(&world.fleet, 1, |_| true).term, next.term);
        assert_eq!(leader_of(&world.fleet, 2, |_| true).term, two.term);
        conclude(world.fleet);
    }

    #[test]
    fn everybody_is_cut_off_again_and_again_and_no_slot_has_two() {
        let world = world();
        for round in 0..6_u64 {
            leader_of(&world.fleet, 1, |_| true);
            leader_of(&world.fleet, 2, |_| true);
            world.set_all(if round % 2 == 0 { Weather::BlackHole } else { Weather::Storm });
            std::thread::sleep(LEASE / 4 * u32::try_from(round + 1).unwrap());
            world.set_all(Weather::Fair);
        }
        let (one, two) = (leader_of(&world.fleet, 1, |_| true), leader_of(&world.fleet, 2, |_| true));
        assert_ne!(one.owner, two.owner);
        conclude(world.fleet);
    }
}

fn refused(flags: &[&str]) -> String {
    let mut command: Command = leaderrun();
    let output = command.args(flags).args(["--", "true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{flags:?}: {said}");
    assert!(said.starts_with("leaderrun: ") && said.lines().count() == 1, "{flags:?}: {said}");
    said
}

#[test]
fn what_does_not_go_together_is_refused_before_anything_is_asked() {
    for number in ["0", "65", "-1", "two", ""] {
        assert!(refused(&["--slots", number, "s"]).contains("1 to 64"), "{number}");
    }
    assert!(refused(&["--slots", "2", "--every", "1h", "s"]).contains("--every"));
    assert!(refused(&["--slots", "2", "--once", "job", "s"]).contains("--once"));
    assert!(refused(&["--slots", "2", "--on-leader-change", "true", "s"]).contains("--on-leader-change"));
    let long = "x".repeat(199);
    assert!(refused(&["--slots", "9", &long]).contains("201 bytes"), "{long}");
    #[cfg(feature = "postgres")]
    {
        let url = "postgres://u@127.0.0.1:1/db?advisory_lock=7";
        assert!(refused(&["--store", url, "--slots", "2", "s"]).contains("advisory_lock="));
    }
}
