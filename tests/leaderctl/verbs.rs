//! What verbs say of a shard that the store has never seen, and soon where the store is away. (What they say to programs is in
//! tests/golden.)

use crate::support::prelude::*;
use crate::support::verbs::ASKING;

/// Verbs about what has been, which a mistyped name must not carry out in silence.
const OF_WHAT_HAS_BEEN: &[&[&str]] = &[
    &["step-down", "shrad"],
    &["step-down", "--cancel", "shrad"],
    &["revoke", "--term", "1", "shrad"],
    &["resume", "shrad"],
    &["resume", "--prefix", "shrad"],
    &["forget", "shrad"],
    &["history", "shrad"],
    &["jobs", "shrad"],
    &["jobs", "shrad", "id"],
    &["jobs", "--clear", "id", "shrad"],
    &["wait", "--free", "shrad"],
];

#[track_caller]
fn assert_says(place: &Place, words: &[&str], status: i32, told: &str, said: &str) {
    let output = place.ask(words);
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (status, told, said), "{words:?}");
}

fn a_shard_that_the_store_has_never_seen_is_a_miss_with_the_nearest_name(mut place: Place) {
    place.launch("c0", &[]);
    place.fleet.leader();
    let line = "leaderctl: nobody has led shrad so far; did you mean shard?\n";
    for words in OF_WHAT_HAS_BEEN {
        if words.contains(&"--prefix") {
            let line = "leaderctl: no shard is known whose name begins with \"shrad\"\n";
            assert_says(&place, words, 66, "", line);
        } else {
            assert_says(&place, words, 66, "", line);
        }
    }
    // Before the first leader of a shard these are right.
    let still = format!("{line}leaderctl: shrad: still nobody leads after 2s\n");
    assert_says(&place, &["wait", "--timeout", "2s", "shrad"], 75, "", &still);
    assert_says(&place, &["status", "shrad"], 0, "shrad: never led\n", line);
    let known = |shard: &str| place.object(&["status", "--json", shard])["known"].clone();
    assert_eq!((known("shrad"), known("shard")), (false.into(), true.into()));
    let listed = place.order(&["list", "--orders"]);
    assert!(!listed.contains("shrad"), "nothing of it was written: {listed}");

    assert_says(&place, &["pause", "shrad"], 0, "shrad: paused until it is resumed; nobody leads\n", line);
    assert_says(&place, &["wait", "--free", "shrad"], 0, "shrad: nobody leads\n", "");
    assert_eq!(known("shrad"), true);
    place.ask(&["status", "shrad"]).tells("shrad: paused, never led\n");
    place.order(&["resume", "shrad"]);
    assert_says(&place, &["resume", "shrad"], 66, "", line);
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

#[test]
#[cfg(feature = "redis")]
fn of_several_who_resume_at_once_only_one_is_sure_that_it_did() {
    let place = Place::remote(Box::new(crate::support::redis::Server::start()));
    for _ in 0..3 {
        place.order(&["pause", "shard"]);
        let resume = |_| place.ctl(&["resume", "shard"]).spawn().unwrap();
        let resumes: Vec<_> = (0..8).map(resume).collect();
        let said = resumes.into_iter().map(|verb| Said::from(verb.wait_with_output().unwrap()).out);
        let said: Vec<String> = said.collect();
        assert_eq!(said.iter().filter(|said| said.contains(": resumed; ")).count(), 1, "{said:?}");
    }
}

#[test]
fn the_standbys_of_another_shard_are_not_those_of_slots() {
    let place = Place::local();
    let start = |host: &str, words: &[&str]| {
        let mut command = leaderrun();
        command.args(["-q", "--host", host, "--store", &place.url]).args(words).args(["--", "sleep", "1000"]);
        Process::start(command.env(ANNOUNCED.0, ANNOUNCED.1).stdin(Stdio::null()))
    };
    let led = |shard: &str| place.object(&["status", "--json", shard])["held"] == true;
    let _leaders = [&["--slots", "2", "db"][..], &["--slots", "2", "db"], &["db2"]].map(|words| start("web1", words));
    wait_until("they lead", || ["db#1", "db#2", "db2"].into_iter().all(led));
    let _standby = start("web2", &["db2"]);
    wait_until("it waits", || place.object(&["status", "--json", "db2"])["standbys"] == 1);
    assert_eq!(place.ask(&["list", "db#"]).ended(0).err, "");
}

on_two_stores!(
    [every_verb_says_soon_that_the_store_is_away,]:
    a_shard_that_the_store_has_never_seen_is_a_miss_with_the_nearest_name,
);
