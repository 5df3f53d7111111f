//! What verbs say of a shard that the store has never seen, and soon where the store is away. (What they say to programs is in
//! tests/golden.)

use crate::support::fleet::{leaderctl, wait_until};
use crate::support::place::Place;
use crate::support::said::Runs as _;
use crate::support::verbs::ASKING;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Nobody gets more unasked.
#[cfg(feature = "dynamodb")]
fn where_requests_cost_money_a_list_has_the_lease_alone(mut place: Place) {
    place.launch("c0", &[]);
    place.fleet.leader();
    let members = |words: &[&str]| -> std::collections::BTreeSet<String> {
        place.object(words).as_object().expect("an object").keys().cloned().collect()
    };
    let all = members(&["status", "--json", "shard"]);
    for words in [&["list", "--json"][..], &["list", "--standbys", "--json", "sh"]] {
        let more: Vec<String> = all.difference(&members(words)).cloned().collect();
        let of_notes = ["handover", "jobs", "last_run", "led_slots", "parent_pause", "pause", "paused", "waiting"];
        assert_eq!(more, of_notes, "{words:?}");
        assert_eq!(members(&[words, &["--orders"]].concat()), all, "{words:?}");
    }
    place.fleet.conclude();
}

/// Verbs about what has been, which a mistyped name must not carry out in silence.
const OF_WHAT_HAS_BEEN: &[&[&str]] = &[
    &["step-down", "shrad"],
    &["step-down", "--force", "--json", "shrad"],
    &["step-down", "--cancel", "shrad"],
    &["revoke", "--term", "1", "shrad"],
    &["resume", "shrad"],
    &["resume", "--json", "shrad"],
    &["resume", "--prefix", "shrad"],
    &["forget", "shrad"],
    &["forget", "--json", "shrad"],
    &["history", "shrad"],
    &["history", "--json", "shrad"],
    &["history", "--timeline", "shrad"],
    &["jobs", "shrad"],
    &["jobs", "--json", "shrad"],
    &["jobs", "shrad", "id"],
    &["jobs", "--json", "shrad", "id"],
    &["jobs", "--clear", "id", "shrad"],
    &["wait", "--free", "shrad"],
    &["wait", "--free", "--json", "--timeout", "1h", "shrad"],
];

/// The advice where no name is near.
const SEE_THE_LIST: &str = "; leaderctl list shows the shards that were led";

#[track_caller]
fn assert_says(place: &Place, words: &[&str], status: i32, told: &str, said: &str) {
    let output = place.ask(words);
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (status, told, said), "{words:?}");
}

fn a_shard_that_the_store_has_never_seen_is_a_miss_with_the_nearest_name(mut place: Place) {
    place.launch("c0", &[]);
    place.fleet.leader();
    let meant = if place.is_metered() { SEE_THE_LIST } else { "; did you mean shard?" };
    let line = format!("leaderctl: nobody has led shrad so far{meant}\n");
    // That a store is metered is asked in one place.
    let words = if place.is_metered() { &OF_WHAT_HAS_BEEN[..1] } else { OF_WHAT_HAS_BEEN };
    for words in words {
        if words.contains(&"--prefix") {
            let line = "leaderctl: no shard is known whose name begins with \"shrad\"\n";
            assert_says(&place, words, 66, "", line);
        } else {
            assert_says(&place, words, 66, "", &line);
        }
    }
    // Before the first leader of a shard these are right.
    let still = format!("{line}leaderctl: shrad: still nobody leads after 2s\n");
    assert_says(&place, &["wait", "--timeout", "2s", "shrad"], 75, "", &still);
    let said = if place.is_metered() { "" } else { &line };
    assert_says(&place, &["status", "shrad"], 0, "shrad: never led\n", said);
    let known = |shard: &str| place.object(&["status", "--json", shard])["known"].clone();
    assert_eq!((known("shrad"), known("shard")), (false.into(), true.into()));
    let listed = place.order(&["list", "--orders"]);
    assert!(!listed.contains("shrad"), "nothing of it was written: {listed}");

    assert_says(&place, &["pause", "shrad"], 0, "shrad: paused until it is resumed; nobody leads\n", &line);
    assert_says(&place, &["wait", "--free", "shrad"], 0, "shrad: nobody leads\n", "");
    assert_eq!(known("shrad"), true);
    place.ask(&["status", "shrad"]).tells("shrad: paused, never led\n");
    place.order(&["resume", "shrad"]);
    assert_says(&place, &["resume", "shrad"], 66, "", &line);
    place.fleet.conclude();
}

/// It cannot be told what is near, but that nobody led it.
#[test]
#[cfg(feature = "redis")]
fn a_shard_never_seen_is_a_miss_also_where_the_store_denies_a_list() {
    use crate::support::redis::{Server, cli};
    let mut place = Place::remote(Box::new(Server::start()));
    place.launch("c0", &[]);
    place.fleet.leader();
    let port = place.server().address().port();
    let denied = ["ACL", "SETUSER", "reader", "on", ">x", "~*", "&*", "+@all", "-scan", "-keys"];
    assert_eq!(cli(port, &denied), "OK");
    let all = std::mem::take(&mut place.url);
    place.url = all.replace("redis://", "redis://reader:x@");
    place.ask(&["list"]).ended(77);
    // What to say is asked in one place.
    let line = format!("leaderctl: nobody has led shrad so far{SEE_THE_LIST}\n");
    assert_says(&place, OF_WHAT_HAS_BEEN[0], 66, "", &line);
    place.url = all;
    place.fleet.conclude();
}

/// One request takes a second at most, of a verb that gives up then; this machine may be busy.
const SOON: Duration = Duration::from_secs(30);

/// Some at once: each waits for its time to be over.
fn assert_all_say_that_it_is_away(url: &str, when: &str) {
    // One goes on, and the others also say what became of the lease that they wanted for themselves.
    let verbs: Vec<_> = ASKING.iter().filter(|verb| !["serve", "balance", "selftest"].contains(&verb[0])).collect();
    for some in verbs.chunks(7) {
        std::thread::scope(|scope| {
            for verb in some {
                scope.spawn(|| assert_says_that_it_is_away(url, when, verb));
            }
        });
    }
}

fn assert_says_that_it_is_away(url: &str, when: &str, verb: &[&str]) {
    let begun = Instant::now();
    let mut command = leaderctl();
    command.args(["--store", url, "--request-timeout", "1s"]).args(verb).stdin(Stdio::null());
    let said = command.said().ended(69);
    assert!(begun.elapsed() < SOON, "{when}: {verb:?} took {:?}", begun.elapsed());
    assert!(said.err.lines().count() == 1 && said.err.starts_with("leaderctl: "), "{when}: {verb:?}: {said:?}");
    assert!(said.out.is_empty() || verb[0] == "why", "{when}: {verb:?}: {said:?}");
    if verb[0] == "why" {
        let text = said.out;
        assert!(text.contains("the store does not answer here"), "{text}");
        // What it could not ask it does not tell.
        assert!(!text.contains("has announced itself"), "{text}");
    }
}

fn every_verb_says_soon_that_the_store_is_away(mut place: Place) {
    place.server().freeze();
    assert_all_say_that_it_is_away(&place.url, "frozen");
    place.server().thaw();
    wait_until("it answers again", || place.ask(&["status", "shard"]).code == 0);
    place.server.as_mut().expect("it has a server").kill();
    assert_all_say_that_it_is_away(&place.url, "killed");
    place.server.as_mut().expect("it has a server").start_again();
    // Nothing came of what was ordered in vain.
    let mut said = place.ask(&["status", "shard"]);
    wait_until("it answers again", || {
        said = place.ask(&["status", "--json", "shard"]);
        said.code == 0
    });
    let status = said.json();
    assert!(status["paused"] == false && status["handover"].is_null() && status["held"] == false, "{status}");
}

on_two_stores!(
    [every_verb_says_soon_that_the_store_is_away,]:
    a_shard_that_the_store_has_never_seen_is_a_miss_with_the_nearest_name,
);
on_a_metered_store!(
    where_requests_cost_money_a_list_has_the_lease_alone,
    a_shard_that_the_store_has_never_seen_is_a_miss_with_the_nearest_name,
);
