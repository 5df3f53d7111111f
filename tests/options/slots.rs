//! `--slots N`: several leaders of one shard, with real candidates and real servers. No two trees ever run in one slot, no
//! candidate has two, and a leader that is gone from a slot is followed there.

mod adapter;

use crate::support::claims::eventually;
use crate::support::fleet::{ANNOUNCED, Life, leaderrun, stamp_program, wait_until, wait_until_or};
use crate::support::place::{Place, usual_but};
use crate::support::said::Runs as _;
use crate::support::slots::{SLOTS, conclude, leader_of, leaders, successor};
use crate::support::world::TIMING;
use leaderrun::internals::lease::{Candidate, Session};
use leaderrun::internals::notes::standbys;
use leaderrun::internals::time::BootInstant;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Outlasts a stall of the machine, and is soon over where its end is waited for.
const LEASE: [&str; 2] = ["--lease", "12s"];

impl Place {
    fn join_in_slots(&mut self, owner: &str) {
        let flags = [&usual_but(&TIMING, &LEASE), &["-v", "--slots", "2", "--store", &self.url][..]].concat();
        self.fleet.start(owner, &flags, &["daemon"], &[self.environment, &[ANNOUNCED]].concat());
    }

    /// The same, of another shard than usual.
    fn join_in_slots_of(&mut self, owner: &str, shard: &str) {
        let mut command = leaderrun();
        command.args(usual_but(&TIMING, &LEASE)).args(["--owner", owner, "--slots", "2", "--store", &self.url]);
        command.args([shard, "--"]).arg(stamp_program()).arg(self.path("stamps"));
        command.envs(self.environment.iter().copied().chain([ANNOUNCED]));
        self.fleet.launch(owner, command);
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

fn a_question_for_a_shard_names_its_slots_and_one_for_a_slot_its_shard(mut place: Place) {
    let here = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let name = place.shard();
    let (shard, slots) = (name.as_str(), SLOTS.map(|slot| format!("{name}#{slot}")));
    for owner in ["c0", "c1", "c2", "c3", "c4"] {
        place.join_in_slots_of(owner, shard);
    }
    let leaders = place.leaders();
    wait_until("the standbys are known", || place.status(shard)["standbys"] == 3);
    let status = place.status(shard);
    assert_eq!(status["led_slots"], serde_json::json!(slots), "{status}");
    assert!(status["held"] == false && status["parent_pause"].is_null(), "{status}");
    let text = place.order(&["status", shard]);
    assert_eq!(text.lines().next(), Some(&*format!("{shard}: led as {shard}#1, {shard}#2: use one of these names")));
    let refusal = format!("nobody leads it as a whole; {shard}#1, {shard}#2 are led: use one of these names\n");
    place.ask(&["step-down", shard]).ended(75).tells(&refusal);

    // A candidate that waits for a shard waits for each of its slots.
    for (slot, leader) in slots.iter().zip(&leaders) {
        let status = place.status(slot);
        assert!(status["standbys"] == 3 && status["led_slots"].is_null(), "{status}");
        for prefix in ["", shard, &format!("{shard}#"), slot] {
            let lines = place.objects(&["list", "--standbys", "--json", prefix]);
            let line = lines.iter().find(|line| line["shard"] == slot.as_str()).unwrap();
            assert_eq!((&line["standbys"], &line["owner"]), (&3.into(), &leader.owner.as_str().into()), "{lines:?}");
        }
    }

    let why = |words: &[&str]| place.order(&[&["why"], words].concat());
    let mut all = String::new();
    wait_until("all five answer", || {
        all = why(&[shard]);
        all.matches("the candidate ").count() == 5
    });
    assert!(all.starts_with(&format!("{shard}: {here} leads\n")), "{all}");
    for (slot, Life { owner, term, .. }) in SLOTS.iter().zip(&leaders) {
        assert!(all.contains(&format!("  {owner} (term {term}) leads {shard}#{slot} on {here} since 20")), "{all}");
        assert!(all.contains(&format!("is leader of {shard}#{slot}, term {term}\n")), "{all}");
    }
    assert!(
        !all.contains("nobody") && !all.contains("no candidate") && all.matches("is standby: ").count() == 3,
        "{all}"
    );
    let mut one = String::new();
    wait_until("all five answer again", || {
        one = why(&[&slots[1]]);
        one.matches("the candidate ").count() == 5
    });
    let Life { owner, term, .. } = &leaders[0];
    assert!(one.contains(&format!("the candidate {owner} (process {})", place.fleet.pid(owner))), "{one}");
    assert!(one.contains(&format!("is leader of {shard}#1, term {term}\n")), "{one}");
    assert!(one.contains(&format!("is leader, term {}\n", leaders[1].term)), "{one}");
    let elsewhere = why(&[shard, "--host", "elsewhere"]);
    assert!(elsewhere.starts_with(&format!("{shard}: elsewhere does not lead\n")), "{elsewhere}");
    announce_at(&place, shard, "elsewhere");
    for shard in [shard, &slots[1]] {
        let elsewhere = why(&[shard, "--host", "elsewhere"]);
        assert!(elsewhere.contains("a standby of elsewhere has announced itself\n"), "{elsewhere}");
    }

    place.order(&["pause", shard, "--keep", "--reason", "for all"]);
    let status = place.status(&slots[1]);
    assert!(status["parent_pause"]["reason"] == "for all" && status["parent_pause"]["shard"] == shard, "{status}");
    assert!(status["paused"] == false && status["pause"].is_null(), "{status}");
    for told in [place.order(&["status", &slots[1]]), why(&[&slots[1]])] {
        let line = told.lines().find(|line| line.ends_with(": for all")).expect("it tells of the pause");
        assert!(line.contains(&format!("all slots of {shard}, by ")) && line.contains("paused"), "{told}");
    }
    let status = place.object(&["pause", shard, "--force", "--json"]);
    assert!(status["paused"] == true && status["led_slots"].is_array(), "{status}");
    place.order(&["pause", shard, "--force", "--wait"]);
    // A standby may be granted a slot once more, until it has read the orders.
    wait_until("all know of the pause", || why(&[shard]).matches(" is standby: paused ").count() == 5);
    let why = why(&[shard]);
    assert!(why.contains(&format!("nobody leads; there were leaders of {shard}#1, {shard}#2\n")), "{why}");
    let text = place.order(&["status", shard]);
    assert!(text.starts_with(&format!("{shard}: paused\n")), "{text}");
    assert_eq!(place.status(shard)["led_slots"], serde_json::json!([]));
    conclude(&mut place.fleet);
}

/// That somebody waits on another host.
fn announce_at(place: &Place, shard: &str, host: &str) {
    let location = leaderrun::internals::store::Location::from_url(&place.url).unwrap();
    let (shard, session) = (shard.parse().unwrap(), Session::random().unwrap());
    let candidate = Candidate {
        shard,
        owner: host.to_owned(),
        session,
        host: host.to_owned(),
        pid: 1,
        lease: Duration::from_secs(6),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let patience = Duration::from_secs(30);
    runtime.block_on(async {
        let store = location.open(patience).await.unwrap();
        let is_announced = async || {
            let announced = standbys::announced(&*store, candidate.shard.as_str()).await.unwrap();
            announced.standbys.iter().any(|(_, standby)| standby.session == candidate.session)
        };
        // It goes on until it is dropped.
        tokio::select! {
            () = standbys::announce(&*store, &candidate, patience, |trouble| panic!("{trouble}")) => unreachable!(),
            () = eventually("it is announced", is_announced) => {}
        }
    });
}

/// What COMMAND prints that runs in a slot.
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
    a_question_for_a_shard_names_its_slots_and_one_for_a_slot_its_shard,
    a_command_gets_its_slot_and_can_verify_it,
);

/// Operators who may look at a shard by its name, and not list.
#[cfg(feature = "redis")]
mod without_lists {
    use super::{BootInstant, Duration, Place, SLOTS, conclude};
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
    fn a_pause_is_waited_for() {
        let mut place = Place::remote(Box::new(Server::start()));
        let ctl = operator(&place, "~leaderrun:*");
        let leaders = place.crew();
        // They go on, however long the question takes.
        let told = ctl(&["pause", "shard", "--keep"]).ended(0).all();
        assert!(!told.contains("nobody leads"), "{told}");
        for (slot, leader) in leaders.iter().enumerate() {
            assert!(told.contains(&format!("{} (term {}) of shard#{}", leader.owner, leader.term, slot + 1)), "{told}");
        }
        ctl(&["pause", "shard", "--force", "--wait"]).ended(0).tells("nobody leads");
        let paused = BootInstant::now().as_nanos();
        std::thread::sleep(Duration::from_secs(3));
        for slot in SLOTS {
            let lives = place.fleet.lives_in_slot(slot);
            assert!(lives.iter().all(|life| life.last <= paused), "{paused} {lives:?}");
            assert_eq!(place.status(&format!("shard#{slot}"))["held"], false);
        }
        place.order(&["resume", "shard"]);
        place.leaders();
        conclude(&mut place.fleet);
    }

    #[test]
    fn where_slots_cannot_be_looked_for_nobody_says_that_nobody_leads() {
        let mut place = Place::remote(Box::new(Server::start()));
        let ctl = operator(&place, "~leaderrun:{leases}:store ~leaderrun:{leases}:*:shard");
        let leaders = place.crew();
        let unknown = "whether its slots are led is not known: ";
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

#[test]
fn a_store_url_that_allows_one_leader_is_refused_before_anything_is_asked() {
    let urls: &[&str] = &[
        #[cfg(feature = "redis")]
        "redis://127.0.0.1:1?lock_key=k",
        #[cfg(feature = "postgres")]
        "postgres://u@127.0.0.1:1/db?advisory_lock=7",
        #[cfg(feature = "nats")]
        "nats://127.0.0.1:1/locks?lock_key=k",
        #[cfg(feature = "kubernetes")]
        "kubernetes:?lease=k",
    ];
    for url in urls {
        let (_, option) = url.split_once('?').unwrap();
        let (option, _) = option.split_once('=').unwrap();
        let named =
            format!("does not work with {option}= in the store URL, which allows one leader: leave one of them out");
        leaderrun().args(["--store", url, "--slots", "2", "s", "--", "true"]).said().refused(64, &named);
    }
}
