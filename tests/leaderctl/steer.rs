//! Operators steer: pause and resume, step down, revoke, with real candidates and real servers. Whatever they order, no
//! two trees run at once, and nobody is left.

use crate::support::prelude::*;
use std::io::{BufRead, BufReader};

impl Place {
    fn crew(&mut self) -> Life {
        self.crew_with(&LONG)
    }

    fn crew_with(&mut self, flags: &[&str]) -> Life {
        for owner in ["c0", "c1", "c2"] {
            self.launch(owner, flags);
        }
        self.fleet.leader()
    }

    #[track_caller]
    fn refused(&self, words: &[&str]) -> String {
        self.ask(words).refused(75, "").err
    }

    /// Backstop and guard, and then the candidate.
    fn kill_all_of(&mut self, owner: &str) {
        for process in children_of(self.fleet.pid(owner).as_raw()) {
            for pid in children_of(process).into_iter().chain([process]) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        self.fleet.kill(owner);
    }

    fn status(&self) -> Value {
        self.object(&["status", "shard", "--standbys", "--json"])
    }
}

/// Where the end of no lease is waited for: a machine that stands still for a while loses none.
const LONG: [&str; 2] = ["--lease", "20s"];

fn now() -> u64 {
    BootInstant::now().as_nanos()
}

/// Time is the subject: a candidate that would break an order has that long to do it.
const A_WHILE: Duration = Duration::from_secs(3);

fn a_pause_outlasts_candidates_and_the_store(mut place: Place) {
    place.crew();
    // The time that it says is the one that was given, and not what was left of it.
    let refusal = place.refused(&["pause", "shard", "--wait=1ms"]);
    assert!(refusal.contains(" has not stopped after 1ms; the order stays in force"), "{refusal}");
    let said = place.order(&["pause", "shard", "--force", "--reason", "two 'words'", "--wait"]);
    assert!(said.contains("paused until it is resumed; nobody leads"), "{said}");
    let paused = now();
    for owner in ["c0", "c1"] {
        place.fleet.kill(owner);
        place.launch(owner, &[]);
    }
    if let Some(server) = &mut place.server {
        server.kill();
        server.start_again();
    }
    place.launch("c3", &[]);
    std::thread::sleep(A_WHILE);
    wait_until("the store tells of the pause", || place.ask(&["status", "shard"]).code == 0);
    let status = place.status();
    assert_eq!((&status["paused"], &status["pause"]["reason"]), (&true.into(), &"two 'words'".into()), "{status}");
    // A server that was started again may show somebody whom it may have forgotten, and who has no term. A candidate
    // that was started has the lease until it has read the orders.
    wait_until("nobody has the lease", || place.status()["term"].is_null());
    let resumed = now();
    let said = place.order(&["resume", "shard"]);
    assert!(said.contains("resumed; it was paused by "), "{said}");
    place.fleet.leader();
    let said = place.order(&["resume", "shard"]);
    assert!(said.contains("not paused"), "{said}");
    let lives = place.fleet.conclude();
    assert!(lives.iter().all(|life| life.last <= paused || life.first >= resumed), "{paused} {resumed} {lives:?}");
}

fn a_leader_that_steps_down_is_followed_by_whom_it_names(mut place: Place) {
    let leader = place.crew();
    wait_until("both standbys are known", || place.status()["standbys"] == 2);
    let named = ["c0", "c1", "c2"].into_iter().find(|owner| *owner != leader.owner).unwrap();
    let refusal = place.refused(&["step-down", "shard", "--to", &leader.owner]);
    assert!(refusal.contains("already leads"), "{refusal}");
    let said = place.order(&["step-down", "shard", "--to", named, "--wait"]);
    assert!(said.contains("no longer leads; ") && said.contains(named), "{said}");
    let second = place.fleet.leader_where(|life| life.term > leader.term);
    assert_eq!(second.owner, named);
    wait_until("the handover is done with", || place.status()["handover"].is_null());

    // Without a name anybody else leads, and with the name of nobody the others in the end.
    let said = place.order(&["step-down", "shard", "--wait=1m"]);
    assert!(said.contains("no longer leads; "), "{said}");
    let third = place.fleet.leader_where(|life| life.term > second.term);
    assert_ne!(third.owner, second.owner);
    let forced = place.ask(&["step-down", "shard", "--to", "nobody", "--for", "2s", "--force"]);
    forced.ended(0).tells("no standby is called \"nobody\"");
    let fourth = place.fleet.leader_where(|life| life.term > third.term);
    assert!(fourth.first - third.last >= 1_900_000_000, "{third:?} {fourth:?}");
    let lives = place.fleet.conclude();
    let owners: Vec<&str> = lives.iter().take(2).map(|life| life.owner.as_str()).collect();
    assert_eq!(owners, [&leader.owner, named], "nobody else started in between: {lives:?}");
}

fn an_order_for_a_name_that_no_standby_has_is_refused_with_the_names_there_are(mut place: Place) {
    place.launch("c0", &LONG);
    let leader = place.fleet.leader();
    let order = ["step-down", "shard", "--to", "nobody", "--for", "1h"];
    let refusal = place.refused(&["step-down", "shard", "--for", "3s"]);
    assert!(refusal.contains("no standby has announced itself, so nobody would lead"), "{refusal}");
    place.launch("c1", &LONG);
    wait_until("it is known", || place.status()["standbys"] == 1);
    let refusal = place.refused(&order);
    assert!(refusal.contains("there are c1 on ") && !refusal.contains("c0"), "{refusal}");
    assert_eq!((place.status()["handover"].is_null(), place.fleet.leader().term), (true, leader.term));
    place.order(&[&order[..], &["--force"]].concat());
    wait_until("it steps down", || place.status()["held"] == false);
    let said = place.order(&["step-down", "shard", "--cancel"]);
    assert!(said.contains("cancelled the order of ") && said.contains("had already ended"), "{said}");
    // Nobody waits for an hour.
    place.fleet.leader_where(|life| life.term > leader.term);
    let said = place.order(&["step-down", "shard", "--cancel"]);
    assert!(said.contains("nobody has ordered it to step down"), "{said}");
    place.fleet.conclude();
}

fn a_lease_that_is_renewed_is_ended_by_force_alone_and_nobody_starts_early(mut place: Place) {
    let leader = place.crew_with(&[]);
    let term = leader.term.to_string();
    let refusal = place.refused(&["revoke", "shard", "--term", "1"]);
    assert!(refusal.contains("term 1 does not lead"), "{refusal}");
    if place.server.is_none() {
        place.ask(&["revoke", "shard", "--term", &term, "--force"]).ended(78).tells("is held open by");
    } else {
        let refusal = place.refused(&["revoke", "shard", "--term", &term]);
        assert!(refusal.contains("renews its lease"), "{refusal}");
        assert_eq!(place.fleet.leader().term, leader.term);
        let said = place.order(&["revoke", "shard", "--term", &term, "--force"]);
        assert!(said.contains("starts nothing before"), "{said}");
        let second = place.fleet.leader_where(|life| life.term > leader.term);
        // All of a host is gone: nobody renews.
        place.kill_all_of(&second.owner);
        place.fleet.leader_where(|life| life.term > second.term);
    }
    place.fleet.conclude();
}

/// Nobody sees a renewal while the store is away, and nobody renews.
fn a_lease_that_nobody_could_see_is_not_ended(mut place: Place) {
    // It renews when this is over.
    place.launch("c0", &["--lease", "90s", "--renew", "30s"]);
    let leader = place.fleet.leader();
    let term = leader.term.to_string();
    let words = ["--request-timeout", "3s", "revoke", "shard", "--term", &term, "--for", "11s"];
    let mut release = place.ctl(&words).spawn().unwrap();
    let mut lines = BufReader::new(release.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("watching for 11s whether "), "{first}");
    place.server().freeze();
    // It ends while nobody answers.
    let status = release.wait().unwrap();
    place.server().thaw();
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(status.code() == Some(69) && said.len() == 2 && said[0].ends_with("; retrying"), "{status}: {said:?}");
    std::thread::sleep(A_WHILE * 2);
    assert_eq!(place.fleet.leader().term, leader.term);
    place.fleet.conclude();
}

fn a_leader_that_never_obeyed_is_not_said_to_have_stepped_down(mut place: Place) {
    let leader = place.crew_with(&[]);
    place.fleet.signal(&leader.owner, Signal::SIGSTOP);
    let said = place.order(&["step-down", "shard", "--wait"]);
    assert!(said.contains(" no longer leads; ") && !said.contains("stepped down"), "{said}");
    place.fleet.signal(&leader.owner, Signal::SIGCONT);
    place.fleet.conclude();
}

#[test]
fn a_wait_ends_when_its_order_does() {
    let mut place = Place::local();
    place.launch("c0", &LONG);
    place.fleet.leader();
    // It keeps its lease, and obeys nothing.
    place.fleet.signal("c0", Signal::SIGSTOP);
    let wait = |order: &[&str], shown: &str, taken_back: &[&str]| {
        let waiting = place.ctl(&[order, &["--wait=1m"]].concat()).spawn().unwrap();
        wait_until("it is ordered", || !place.status()[shown].is_null());
        place.order(taken_back);
        Said::from(waiting.wait_with_output().unwrap())
    };
    let resumed = wait(&["pause", "shard"], "pause", &["resume", "shard"]);
    resumed.refused(75, "leaderctl: shard: paused until it is resumed, but the pause ended during the wait: ");
    let cancelled = wait(&["step-down", "shard", "--force"], "handover", &["step-down", "shard", "--cancel"]);
    cancelled.ended(75).tells("the order ended before another candidate was seen to lead: it was cancelled");
    let refusal = place.refused(&["pause", "shard", "--for", "1s", "--wait=1m"]);
    assert!(refusal.contains("paused for 1s, but the pause ended during the wait: its time is over"), "{refusal}");
    place.fleet.signal("c0", Signal::SIGCONT);
    place.fleet.conclude();
}

on_two_stores!(
    a_pause_outlasts_candidates_and_the_store,
    a_leader_that_steps_down_is_followed_by_whom_it_names,
    an_order_for_a_name_that_no_standby_has_is_refused_with_the_names_there_are,
    a_lease_that_is_renewed_is_ended_by_force_alone_and_nobody_starts_early,
);

#[cfg(feature = "redis")]
remote_stories!(
    of_one_server,
    crate::support::redis::Server::start(),
    [a_lease_that_nobody_could_see_is_not_ended, a_leader_that_never_obeyed_is_not_said_to_have_stepped_down]
);
