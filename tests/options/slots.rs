//! `--slots N`: several leaders of one shard, with real candidates and real servers. No two trees ever run in one slot, no
//! candidate has two, and a leader that is gone from a slot is followed there.

mod adapter;

use crate::support::prelude::*;
use crate::support::slots::{SLOTS, conclude, leader_of, leaders, successor};

/// Outlasts a stall of the machine, and is soon over where its end is waited for.
const LEASE: [&str; 2] = ["--lease", "12s"];

impl Place {
    fn join_in_slots(&mut self, owner: &str) {
        let flags = [&usual_but(&TIMING, &LEASE), &["-v", "--slots", "2", "--store", &self.url][..]].concat();
        self.fleet.start(owner, &flags, &["daemon"], &[self.environment, &[ANNOUNCED]].concat());
    }

    /// Both slots are led then.
    fn crew(&mut self) -> [Life; 2] {
        for owner in ["c0", "c1", "c2", "c3", "c4"] {
            self.join_in_slots(owner);
        }
        self.leaders()
    }

    fn leaders(&self) -> [Life; 2] {
        leaders(&self.fleet)
    }

    fn status(&self, shard: &str) -> Value {
        self.object(&["status", shard, "--standbys", "--json"])
    }
}

fn of_five_candidates_two_lead_and_those_that_are_gone_are_followed_in_their_slots(mut place: Place) {
    let [one, two] = place.crew();
    assert_ne!(one.owner, two.owner);
    place.fleet.kill(&one.owner);
    let next = successor(&place.fleet, 1, &one);
    assert_eq!(leader_of(&place.fleet, 2, |_| true).term, two.term, "the other slot has nothing to do with it");
    place.join_in_slots(&one.owner);
    if place.server.is_some() {
        place.fleet.signal(&two.owner, Signal::SIGSTOP);
        let third = successor(&place.fleet, 2, &two);
        place.fleet.signal(&two.owner, Signal::SIGCONT);
        std::thread::sleep(Duration::from_secs(3));
        let now = place.leaders();
        assert_eq!([now[0].term, now[1].term], [next.term, third.term]);
    }
    // In order: a release is heard of.
    place.fleet.stop(&next.owner);
    successor(&place.fleet, 1, &next);
    let lives = conclude(&mut place.fleet);
    assert!(lives[0].len() >= 3, "{lives:?}");
}

fn orders_of_the_shard_are_for_all_slots_and_those_of_a_slot_for_one(mut place: Place) {
    let [one, two] = place.crew();
    wait_until("the standbys are known", || place.status("shard")["standbys"] == 3);
    let list = place.order(&["list", "shard#"]);
    assert!(list.contains("shard#1 ") && list.contains("shard#2 ") && list.lines().count() == 3, "{list}");

    let said = place.order(&["step-down", "shard#1", "--wait"]);
    assert!(said.contains("no longer leads"), "{said}");
    let next = successor(&place.fleet, 1, &one);
    assert_ne!(next.owner, one.owner);
    assert_eq!(leader_of(&place.fleet, 2, |_| true).term, two.term);

    place.order(&["pause", "shard", "--wait"]);
    let paused = BootInstant::now().as_nanos();
    std::thread::sleep(Duration::from_secs(3));
    for slot in SLOTS {
        let lives = place.fleet.lives_in_slot(slot);
        assert!(lives.iter().all(|life| life.last <= paused), "{paused} {lives:?}\n{}", place.fleet.logs());
        assert_eq!(place.status(&format!("shard#{slot}"))["held"], false);
    }
    place.order(&["resume", "shard"]);
    let [one, two] = place.leaders();

    place.order(&["pause", "shard#2", "--wait"]);
    let paused = BootInstant::now().as_nanos();
    // Everybody has been barred from slot 2 by now, and is free to lead slot 1.
    std::thread::sleep(Duration::from_secs(5));
    place.fleet.stop(&one.owner);
    let next = successor(&place.fleet, 1, &one);
    let lives = place.fleet.lives_in_slot(2);
    assert!(lives.iter().all(|life| life.last <= paused), "{paused} {lives:?}\n{}", place.fleet.logs());
    let tries = place.fleet.logs().matches("shard#2").count();
    assert!(tries < 60, "they keep trying: {tries}\n{}", place.fleet.logs());
    place.order(&["resume", "shard#2"]);
    successor(&place.fleet, 2, &two);
    assert_eq!(leader_of(&place.fleet, 1, |_| true).term, next.term);
    // There were four. One that could not be written in time is missing, and a busy machine makes a store slow.
    let history = || place.order(&["history", "shard#1"]);
    let explain = || format!("{}{}", history(), place.fleet.logs());
    wait_until_or("leaderships are written down", explain, || history().lines().count() >= 3);
    conclude(&mut place.fleet);
}

fn printed(place: &Place, slots: &str, script: &str) -> String {
    let mut command = leaderrun();
    command.args(TIMING).args(["--slots", slots, "--store", &place.url, "db/main", "-c", script]);
    command.envs(place.environment.iter().copied()).env("CTL", env!("CARGO_BIN_EXE_leaderctl"));
    command.stdin(Stdio::null()).said().good()
}

#[expect(clippy::needless_pass_by_value, reason = "as every story")]
fn a_command_gets_its_slot_and_can_verify_it(place: Place) {
    let script =
        "\"$CTL\" verify && LEADERRUN_SOCKET= \"$CTL\" --store $URL verify && echo $LEADERRUN_SHARD:$LEADERRUN_SLOT";
    let script = script.replace("$URL", &format!("'{}'", place.url));
    assert_eq!(printed(&place, "1", &script), "db/main#1:1\n");
    let told = printed(&place, "64", &script);
    let (shard, slot) = told.trim().split_once(':').unwrap();
    assert_eq!(shard, format!("db/main#{slot}"));
}

on_two_stores!(
    of_five_candidates_two_lead_and_those_that_are_gone_are_followed_in_their_slots,
    orders_of_the_shard_are_for_all_slots_and_those_of_a_slot_for_one,
    a_command_gets_its_slot_and_can_verify_it,
);

#[test]
fn slots_that_are_led_beside_the_shard_are_told() {
    let place = Place::local();
    let start = |words: &[&str]| {
        let mut command = leaderrun();
        command.args(["-q", "--store", &place.url]).args(words).args(["shard", "sleep", "1000"]);
        Process::start(command.stdin(Stdio::null()))
    };
    let _leaders = [start(&[]), start(&["--slots", "1"])];
    wait_until("both lead", || ["shard", "shard#1"].iter().all(|name| place.status(name)["held"] == true));
    place.ask(&["status", "shard"]).ended(0).tells("shard: shard#1 is led besides, because candidates with --slots");
    assert_eq!(place.status("shard")["led_slots"], serde_json::json!(["shard#1"]));
}

/// Operators who may look at a shard by its name, and not list.
#[cfg(feature = "redis")]
mod without_lists {
    use super::{Place, conclude};
    use crate::support::fleet::leaderctl;
    use crate::support::redis::{Server, cli};
    use crate::support::said::{Runs as _, Said};

    const MAY: &str = "+time +info +hmget +exists +eval +evalsha +hset";

    /// A user who may read and write these keys, and not list.
    fn operator(place: &Place, keys: &str) -> impl Fn(&[&str]) -> Said + use<> {
        let rules = format!("ACL SETUSER operator reset on >x {keys} {MAY}");
        let rules: Vec<&str> = rules.split(' ').collect();
        assert_eq!(cli(place.server().address().port(), &rules), "OK");
        let url = place.url.replace("redis://", "redis://operator:x@");
        move |words: &[&str]| leaderctl().args(["--store", &url]).args(words).said()
    }

    #[test]
    fn where_slots_cannot_be_looked_for_nobody_says_that_nobody_leads() {
        let mut place = Place::remote(Box::new(Server::start()));
        let ctl = operator(&place, "~leaderrun:{leases}:store ~leaderrun:{leases}:*:shard");
        let leaders = place.crew();
        let unknown = "cannot tell whether its slots are led: ";
        let told = ctl(&["pause", "shard", "--keep"]).tells(&format!("{unknown} … denied user operator")).good();
        assert!(!told.contains("nobody leads\n"), "{told}");
        let parts = format!("{unknown} … the pause stays in force … denied user operator");
        ctl(&["pause", "shard", "--force", "--wait"]).refused(77, &parts);
        assert_eq!(place.status("shard")["paused"], true);
        for words in [&["step-down", "shard"][..], &["status", "shard", "--json"], &["why", "shard"]] {
            let said = ctl(words);
            assert!(said.all().contains(unknown) || said.code == 77, "{said:?}");
        }
        place.order(&["resume", "shard"]);
        let next = place.leaders();
        assert!(next[0].term >= leaders[0].term, "{next:?}");
        conclude(&mut place.fleet);
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_store_url_that_allows_one_leader_is_refused_before_anything_is_asked() {
    leaderrun()
        .args(["--store", "redis://127.0.0.1:1?lock_key=k", "--slots", "2", "s", "--", "true"])
        .said()
        .refused(64, "does not work with lock_key= in the store URL, which allows one leader: leave one of them out");
}
