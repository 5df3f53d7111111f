//! Operators steer: pause and resume, step down, revoke, with real candidates and real servers. Whatever they order, no
//! two trees run at once, and nobody is left.

use crate::support::fleet::{Life, children_of, wait_until, wait_until_or};
use crate::support::place::Place;
#[cfg(feature = "redis")]
use crate::support::proxy::{NetworkFault, Proxy};
use leaderrun::internals::time::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::time::Duration;

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

    /// What it says where it has to leave things as they are.
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
    let said = place.order(&["pause", "shard", "--reason", "two 'words'", "--wait"]);
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

fn a_pause_that_keeps_the_leader_bars_its_successors_until_it_ends_by_itself(mut place: Place) {
    let leader = place.crew();
    let ordered = now();
    let said = place.order(&["pause", "shard", "--keep", "--for", "8s"]);
    assert!(said.contains("paused for 8s") && said.contains("continues, and nobody follows"), "{said}");
    std::thread::sleep(A_WHILE);
    assert_eq!(place.fleet.leader().term, leader.term, "it goes on");
    place.fleet.kill(&leader.owner);
    let next = place.fleet.leader_where(|life| life.term > leader.term);
    assert!(next.first - ordered >= 8_000_000_000, "{ordered} {next:?}");
    // Where the store evaluates no clock, a process that has just begun knows its time less well than a candidate does.
    wait_until("everybody sees that it is over", || place.status()["paused"] == false);
    place.fleet.conclude();
}

fn a_leader_that_steps_down_is_followed_by_whom_it_names(mut place: Place) {
    let leader = place.crew();
    wait_until("both standbys are known", || place.status()["standbys"] == 2);
    let named = ["c0", "c1", "c2"].into_iter().find(|owner| *owner != leader.owner).unwrap();
    let refusal = place.refused(&["step-down", "shard", "--to", &leader.owner]);
    assert!(refusal.contains("already leads"), "{refusal}");
    let said = place.order(&["step-down", "shard", "--to", named, "--wait"]);
    assert!(said.contains("stepped down; ") && said.contains(named), "{said}");
    let second = place.fleet.leader_where(|life| life.term > leader.term);
    assert_eq!(second.owner, named);
    wait_until("the handover is done with", || place.status()["handover"].is_null());

    // Without a name anybody else leads, and with the name of nobody the others in the end.
    let said = place.order(&["step-down", "shard", "--wait=1m"]);
    assert!(said.contains("stepped down; "), "{said}");
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

/// Where standbys announce themselves only if they are told to, nobody can know.
fn an_order_for_a_name_that_no_standby_has_is_refused_with_the_names_there_are(mut place: Place) {
    place.launch("c0", &LONG);
    let leader = place.fleet.leader();
    let order = ["step-down", "shard", "--to", "nobody", "--for", "1h"];
    if place.is_metered() {
        place.ask(&order).ended(0).tells("no standby is called \"nobody\" (on this store");
    } else {
        let refusal = place.refused(&order);
        assert!(
            refusal.contains("no standby is called \"nobody\": no standby has announced itself; --force"),
            "{refusal}"
        );
        let refusal = place.refused(&["step-down", "shard", "--for", "3s"]);
        assert!(refusal.contains("no standby has announced itself, so nobody would lead"), "{refusal}");
        place.launch("c1", &LONG);
        wait_until("it is known", || place.status()["standbys"] == 1);
        let refusal = place.refused(&order);
        assert!(refusal.contains("there are c1 on ") && !refusal.contains("c0"), "{refusal}");
        assert_eq!((place.status()["handover"].is_null(), place.fleet.leader().term), (true, leader.term));
        place.order(&[&order[..], &["--force"]].concat());
    }
    wait_until("it steps down", || place.status()["held"] == false);
    let said = place.order(&["step-down", "shard", "--cancel"]);
    assert!(said.contains("cancelled the order of ") && said.contains("had already ended"), "{said}");
    // Nobody waits for an hour.
    place.fleet.leader_where(|life| life.term > leader.term);
    let said = place.order(&["step-down", "shard", "--cancel"]);
    assert!(said.contains("nobody has ordered it to step down"), "{said}");
    place.fleet.conclude();
}

fn an_order_that_is_taken_back_in_time_is_not_carried_out(mut place: Place) {
    // It reads orders when it renews.
    place.launch("c0", &["--lease", "60s", "--renew", "8s"]);
    let leader = place.fleet.leader();
    place.order(&["step-down", "shard", "--force"]);
    let said = place.order(&["step-down", "shard", "--cancel"]);
    assert!(said.contains("to hand over; c0 (term ") && said.contains("if it has read it already"), "{said}");
    assert!(place.status()["handover"].is_null());
    let term = leader.term.to_string();
    // Time is the subject: at its next renewal the leader would read the order.
    std::thread::sleep(A_WHILE * 4);
    assert_eq!((place.status()["term"].to_string(), place.fleet.lives().len()), (term, 1));
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

/// Who renews seldom is not dead between two renewals.
fn a_leader_that_renews_seldom_keeps_its_lease_without_force(mut place: Place) {
    place.launch("c0", &["--lease", "20s", "--renew", "12s"]);
    let leader = place.fleet.leader();
    let said = place.ask(&["revoke", "shard", "--term", &leader.term.to_string()]);
    said.ended(75).tells("leaderctl: watching for  … renews its lease");
    // It would have to be told that the lease is lost.
    std::thread::sleep(A_WHILE);
    assert_eq!(place.fleet.leader().term, leader.term);
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

fn a_lease_that_nobody_renews_is_over_when_it_was_watched(mut place: Place) {
    place.launch("c0", &[]);
    let leader = place.fleet.leader();
    // It would see its guard gone, and release, before it is killed itself.
    place.fleet.signal("c0", Signal::SIGSTOP);
    place.kill_all_of("c0");
    let said = place.order(&["revoke", "shard", "--term", &leader.term.to_string()]);
    assert!(said.contains("has ended by itself"), "{said}");
    // Whose clock is told by the second may see it a little later.
    wait_until("it is free", || place.status()["held"] == false);
    place.fleet.conclude();
}

/// The leader has stopped before the operator's next request.
#[cfg(feature = "redis")]
fn a_history_says_who_paused_a_leader_that_obeyed_at_once(mut place: Place) {
    place.launch("c0", &LONG);
    place.fleet.leader();
    let proxy = Proxy::to(place.server().address());
    proxy.set(NetworkFault::Slow(Duration::from_millis(600)));
    let fast = std::mem::take(&mut place.url);
    place.url = place.server().url(proxy.address);
    let said = place.order(&["--request-timeout", "30s", "pause", "shard"]);
    assert!(said.ends_with("; nobody leads\n"), "{said}");
    place.url = fast;
    let history = place.objects(&["history", "shard", "--json"]);
    assert_eq!(
        (&history[0]["ended"], &history[0]["ordered"]["what"]),
        (&"paused".into(), &"pause".into()),
        "{history:?}"
    );
    place.fleet.end_all();
}

fn a_history_tells_how_each_leadership_ended(mut place: Place) {
    let read = |place: &Place| place.objects(&["history", "shard", "--json"]);
    let wait = |place: &Place, wanted: &dyn Fn(&[Value]) -> bool| {
        let explain = || format!("{:?}\n{}", read(place), place.fleet.logs());
        wait_until_or("it is written down", explain, || wanted(&read(place)));
    };
    place.launch("c0", &LONG);
    let first = place.fleet.leader();
    place.fleet.stop("c0");
    assert_eq!(read(&place)[0]["ended"], "stopped on signal 15");
    place.launch("c1", &LONG);
    let second = place.fleet.leader_where(|life| life.term > first.term);
    wait(&place, &|lines| lines.len() == 2);
    place.fleet.kill("c1");
    place.launch("c2", &LONG);
    let third = place.fleet.leader_where(|life| life.term > second.term);
    wait(&place, &|lines| lines.len() == 3 && lines[1]["ended"].is_string());
    let lines = read(&place);
    let terms: Vec<_> = lines.iter().map(|line| line["term"].as_u64()).collect();
    assert_eq!(terms, [first.term, second.term, third.term].map(Some));
    let killed = lines[1]["ended"].as_str().unwrap();
    assert!(killed == "leaderrun was killed" || killed.starts_with("killed or cut off, or its host"), "{killed}");
    assert!(lines[2]["ended"].is_null() && lines[2]["to"].is_null(), "{lines:?}");
    assert_eq!(lines[2]["owner"], "c2");
    let text = place.order(&["history", "shard"]);
    assert!(text.lines().count() == 3 && text.trim_end().ends_with(": leads"), "{text}");
    for (line, (owner, told)) in text.lines().zip(["c0", "c1", "c2"].into_iter().zip(&lines)) {
        let host = told["host"].as_str().unwrap();
        assert!(line.contains(&format!(", {owner} on {host}: ")), "{line}");
    }

    // Who ordered it, where somebody did.
    let by = |line: &Value, what: &str| {
        let ordered = &line["ordered"];
        ordered["what"] == what
            && ordered["by"].as_str().is_some_and(|by| by.contains('@'))
            && ordered["at"].is_string()
    };
    assert!(lines.iter().all(|line| line["ordered"].is_null()), "{lines:?}");
    place.order(&["pause", "shard", "--reason", "a 'good' reason", "--wait"]);
    wait(&place, &|lines| lines[2]["ended"] == "paused" && by(&lines[2], "pause"));
    assert_eq!(read(&place)[2]["ordered"]["reason"], "a 'good' reason");
    let text = place.order(&["history", "shard"]);
    assert!(text.contains(": paused, by ") && text.trim_end().ends_with(": a 'good' reason"), "{text}");
    place.order(&["resume", "shard"]);
    wait(&place, &|lines| lines.len() == 4);
    place.order(&["step-down", "shard", "--for", "1s", "--force"]);
    wait(&place, &|lines| lines[3]["ended"] == "stepped down" && by(&lines[3], "step-down"));

    let said = place.ask(&["history", "another"]).refused(66, "");
    assert_eq!(said.err, "leaderctl: nobody has led another so far; leaderctl list shows the shards that were led\n");
    place.fleet.conclude();
}

on_two_stores!(
    [
        a_leader_that_renews_seldom_keeps_its_lease_without_force,
        a_lease_that_nobody_renews_is_over_when_it_was_watched,
    ]:
    a_pause_outlasts_candidates_and_the_store,
    a_pause_that_keeps_the_leader_bars_its_successors_until_it_ends_by_itself,
    a_leader_that_steps_down_is_followed_by_whom_it_names,
    an_order_for_a_name_that_no_standby_has_is_refused_with_the_names_there_are,
    an_order_that_is_taken_back_in_time_is_not_carried_out,
    a_lease_that_is_renewed_is_ended_by_force_alone_and_nobody_starts_early,
    a_history_tells_how_each_leadership_ended,
);
on_a_metered_store!(an_order_for_a_name_that_no_standby_has_is_refused_with_the_names_there_are);

#[cfg(feature = "redis")]
remote_stories!(
    of_one_server,
    crate::support::redis::Server::start(),
    [a_lease_that_nobody_could_see_is_not_ended, a_history_says_who_paused_a_leader_that_obeyed_at_once]
);

/// A user who may read items alone, as the table in examples/infrastructure has it, and nobody has paid for more.
#[cfg(feature = "dynamodb")]
#[test]
fn dynamodb_is_asked_for_no_standbys_by_default() {
    use crate::support::dynamo::{Proxy, Server};
    use crate::support::said::Runs as _;
    let server = Server::durable();
    let proxy = Proxy::before(&server);
    proxy.deny(|action| action != "GetItem");
    let mut place = Place::remote(Box::new(server));
    for owner in ["c0", "c1"] {
        place.launch_with(owner, &["-v"], &[]);
    }
    place.fleet.leader();
    wait_until("the other one waits", || place.fleet.logs().contains("waiting: "));
    std::thread::sleep(A_WHILE);
    assert_eq!(place.status()["standbys"], 0, "nobody announces itself unasked");
    let url = format!("dynamodb://locks?region=eu-west-1&endpoint={}", proxy.endpoint());
    let look = |words: &[&str]| {
        let mut command = crate::support::fleet::leaderctl();
        command.args(["--store", &url]).args(words).envs(place.environment.iter().copied()).said().ended(0)
    };
    for shard in ["shard", "shard#2", "free"] {
        let status = look(&["status", "--json", shard]).json();
        assert!(status["standbys"].is_null() && status["held"] == (shard == "shard"), "{status}");
        look(&["why", shard]);
        if shard == "shard" {
            look(&["history", shard]);
        }
    }
    place.fleet.conclude();
}

/// Users with the permissions of a candidate, as the manual lists them: without SCAN, so they cannot count standbys.
#[cfg(feature = "redis")]
mod without_scan {
    use super::{LONG, Place, wait_until};
    use crate::support::fleet::leaderctl;
    use crate::support::redis::{Server, cli};
    use crate::support::said::{Runs as _, Said, objects};

    const CANDIDATE: &str = "~leaderrun:* &leaderrun:* +time +info +hmget +exists +hset +del +eval +evalsha \
                             +publish +subscribe";

    fn place() -> (Place, impl Fn(&[&str]) -> Said) {
        let place = Place::remote(Box::new(Server::start()));
        let mut rules = vec!["ACL", "SETUSER", "cand", "reset", "on", ">x"];
        rules.extend(CANDIDATE.split_whitespace());
        assert_eq!(cli(place.server().address().port(), &rules), "OK");
        let url = place.url.replace("redis://", "redis://cand:x@");
        (place, move |words: &[&str]| leaderctl().args(["--store", &url]).args(words).said())
    }

    fn only_line(said: Said) -> String {
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
        said.err
    }

    const DENIED: &str = "denied user cand: this user has no permissions to run the 'scan' command";

    #[test]
    fn an_order_without_a_name_is_given_with_a_warning_and_one_with_a_name_is_refused() {
        let (mut place, ctl) = place();
        place.launch("c0", &LONG);
        let leader = place.fleet.leader();
        let said = only_line(ctl(&["step-down", "shard", "--to", "nobody"]).ended(77));
        assert!(said.starts_with("leaderctl: shard: the standbys cannot be read: ") && said.contains(DENIED), "{said}");
        assert!(said.ends_with("; --force orders it anyway\n") && place.status()["handover"].is_null(), "{said}");

        for words in [&["step-down", "shard", "--for", "1s"][..], &["step-down", "shard", "--to", "nobody", "--force"]]
        {
            let term = place.fleet.leader().term;
            let said = only_line(ctl(words).ended(0));
            let warning = "leaderctl: shard: the standbys cannot be read: ";
            assert!(said.starts_with(warning) && said.contains(DENIED), "{words:?}: {said}");
            assert!(said.ends_with(": the shard may have no leader until --for is over\n"), "{words:?}: {said}");
            wait_until("it steps down", || place.fleet.leader().term > term || place.status()["held"] == false);
            place.order(&["step-down", "shard", "--cancel"]);
            place.fleet.leader_where(|life| life.term > term);
        }
        assert!(place.fleet.leader().term > leader.term);
        place.fleet.conclude();
    }

    #[test]
    fn a_status_has_all_but_the_standbys_and_names_the_missing_permission() {
        let (mut place, ctl) = place();
        place.launch("c0", &LONG);
        let leader = place.fleet.leader();
        let json = ctl(&["status", "--json", "shard", "another"]).ended(0);
        let lines = objects(&json.out);
        let said = only_line(json);
        assert!(said.starts_with("leaderctl: standbys are not shown: ") && said.contains(DENIED), "{said}");
        assert_eq!((&lines[0]["term"], &lines[1]["held"]), (&leader.term.into(), &false.into()), "{lines:?}");
        assert!(lines.iter().all(|line| line["standbys"].is_null() && line["waiting"].is_null()), "{lines:?}");
        let text = ctl(&["status", "shard"]).ended(0);
        assert!(text.out.starts_with("shard: led by c0\n") && !text.out.contains("standby"), "{text:?}");
        assert!(only_line(text).contains(DENIED));
        place.fleet.conclude();
    }
}
