//! What `leaderctl why` says, with real candidates and real servers: who leads and for how long, what is ordered, and what
//! the candidates of this host say themselves, also while the store is away or lets nobody in.

use crate::support::fleet::{ANNOUNCED, leaderctl, leaderrun, stamp_program, wait_until, wait_until_or};
use crate::support::place::{Place, usual_but};
use crate::support::said::Runs as _;
use crate::support::squatting::{NOBODY, Squatter, as_nobody};
use crate::support::world::TIMING;
use leaderrun::internals::observe::query_socket;
use leaderrun::internals::store::Location;
use leaderrun::internals::time::BootInstant;
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

impl Place {
    /// A candidate for [`Place::shard`], with a lease that a machine that stands still for a while does not lose.
    fn start_here(&mut self, owner: &str) {
        self.start_here_with(owner, &["--lease", "30s"]);
    }

    /// `flags` are some of [`TIMING`].
    fn start_here_with(&mut self, owner: &str, flags: &[&str]) {
        let mut command = leaderrun();
        command.args(usual_but(&TIMING, flags)).args(["-q", "--owner", owner, "--store", &self.url]);
        command.args([&self.shard(), "--"]).arg(stamp_program()).arg(self.path("stamps"));
        command.envs(self.environment.iter().copied().chain([ANNOUNCED]));
        self.fleet.launch(owner, command);
    }

    /// Its standard output, once that has all of `signs` in it.
    #[track_caller]
    fn why(&self, words: &[&str], signs: &[&str]) -> String {
        let mut said = String::new();
        // A busy machine takes its time, and each slot of DynamoDB is a request.
        let words = [&["--request-timeout", "30s", "why"], words].concat();
        let explain = || format!("{words:?}: {signs:?}\n{}\n{}", self.order(&words), self.fleet.logs());
        wait_until_or("it says so", explain, || {
            said = self.order(&words);
            signs.iter().all(|sign| said.contains(sign))
        });
        said
    }
}

fn here() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

fn why_tells_who_leads_what_is_ordered_and_what_candidates_of_this_host_wait_for(mut place: Place) {
    let (here, name) = (here(), place.shard());
    let shard = name.as_str();
    let said = place.why(&[shard], &["nobody has ever led", &format!("no candidate for it runs on {here}")]);
    assert!(said.starts_with(&format!("{shard}: {here} does not lead\n")), "{said}");

    place.start_here("c0");
    let leader = place.fleet.leader();
    place.start_here("c1");
    let (led_by, processes) =
        (format!("c0 (term {})", leader.term), ["c0", "c1"].map(|owner| place.fleet.pid(owner).to_string()));
    let said = place.why(
        &[shard],
        &[
            &format!("{shard}: {here} leads\n"),
            &format!("{led_by} leads on {here} since 20"),
            &format!("the candidate c0 (process {}) is leader, term {}\n", processes[0], leader.term),
            &format!("the candidate c1 (process {}) is standby: {led_by} leads\n", processes[1]),
        ],
    );
    let ends = said.lines().nth(1).unwrap().contains("s to go unless it renews");
    assert_eq!(ends, place.server.is_some(), "a kernel's lease has no end: {said}");
    assert!(!said.contains("paused") && !said.contains("trouble") && !said.contains("standby of"), "{said}");

    let metered = place.is_metered();
    let unknown = if metered { "is not known: that store was not asked" } else { "no standby of elsewhere" };
    let said = place.why(&[shard, "--host", "elsewhere"], &[": elsewhere does not lead\n", &led_by, unknown]);
    assert!(!said.contains("the candidate"), "{said}");

    place.order(&["step-down", shard, "--to", "nobody", "--for", "1h", "--force"]);
    let handed_over = format!("handover of term {} to nobody, by ", leader.term);
    place.why(
        &[shard],
        &[&handed_over, "nobody leads; the last term was ", "c1 (process", "is standby: handed over to nobody by "],
    );

    place.order(&["pause", shard, "--for", "1h", "--reason", "a 'migration'"]);
    let said = place.why(&[shard], &["paused by ", "is standby: paused by "]);
    let paused = said.lines().find(|line| line.starts_with("  paused by ")).unwrap();
    let (_, left) = paused.split_once(", for another ").unwrap();
    let left = humantime::parse_duration(left.strip_suffix(": a 'migration'").unwrap()).unwrap();
    // A store whose clock is known to two seconds may show so much more, to who writes and again to who reads.
    assert!(left > Duration::from_mins(55) && left < Duration::from_mins(61), "{said}");
    let answer = place.object(&["why", shard, "--json"]);
    assert_eq!((&answer["leads"], &answer["host"]), (&false.into(), &here.as_str().into()), "{answer}");
    place.fleet.conclude();
}

#[test]
fn whose_tells_for_which_shard_a_process_of_this_host_runs() {
    let mut place = Place::local();
    let name = place.shard();
    place.start_here("c0");
    let leader = place.fleet.leader();
    let candidate = place.fleet.pid("c0").as_raw();
    let said = place.why(&[&name], &["its backstop is process "]);
    let line = said.lines().find(|line| line.contains("its backstop is process ")).unwrap();
    let mut helpers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<i32>().ok());
    let guard = helpers.next_back().unwrap();
    let backstop = helpers.next_back().unwrap();
    let children = fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).unwrap();
    let command: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    // No store is asked, and none is named.
    let ask = |words: &[&str]| leaderctl().arg("whose").args(words).said();
    for (pid, role, words) in [
        (candidate, "leaderrun", format!("process {candidate}, c0, leads with term {}", leader.term)),
        (backstop, "backstop", format!("process {backstop}, the backstop of process {candidate}, c0, leads")),
        (guard, "guard", format!("process {guard}, the guard of process {candidate}, c0, leads")),
        (command, "tree", format!("process {command}, in the tree of process {candidate}, c0, leads")),
    ] {
        // On a busy machine a candidate may answer too late.
        let told_of = |flags: &[&str]| {
            let number = pid.to_string();
            let words = [flags, &[&number]].concat();
            let mut said = ask(&words);
            wait_until_or(
                role,
                || format!("{:?}", ask(&words)),
                || {
                    if said.code == 66 {
                        said = ask(&words);
                    }
                    said.code != 66
                },
            );
            said
        };
        let said = told_of(&[]).out;
        assert!(said.starts_with(&format!("{name}: {words}")), "{role}: {said}");
        let answer = told_of(&["--json"]).json();
        let told = (&answer["role"], &answer["shard"], &answer["leaderrun"], &answer["owner"], &answer["term"]);
        let expected = (role.into(), name.as_str().into(), candidate.into(), "c0".into(), leader.term.into());
        assert_eq!(told, (&expected.0, &expected.1, &expected.2, &expected.3, &expected.4), "{answer}");
    }
    // A standby has no helpers yet.
    place.start_here("c1");
    place.why(&[&name], &["the candidate c1 "]);
    for nobody in [std::process::id(), 0] {
        ask(&[&nobody.to_string()]).ended(66).tells("belongs to no candidate of this host that answers");
    }
    place.fleet.conclude();
}

fn why_tells_since_when_a_candidate_of_this_host_has_not_reached_the_store(mut place: Place) {
    let name = place.shard();
    let shard = name.as_str();
    place.start_here_with("c0", &[]);
    let leader = place.fleet.leader();
    let begun = BootInstant::now();
    place.server().freeze();
    let ask = || place.ask(&["--request-timeout", "1s", "why", shard]);
    let mut asked = ask();
    wait_until_or("the candidate says so", String::new, || {
        asked = ask();
        asked.out.contains("c0 has had trouble with the store for ")
    });
    let most = BootInstant::now().since(begun);
    let said = asked.ended(69).out;
    assert!(said.contains("\n  the store does not answer here\n"), "{said}");
    assert!(said.contains(&format!("the candidate c0 (process {})", place.fleet.pid("c0"))), "{said}");
    let (_, lasting) = said.split_once("c0 has had trouble with the store for ").unwrap();
    let (lasting, _) = lasting.split_once(": ").unwrap();
    let lasting = humantime::parse_duration(lasting).unwrap();
    assert!(lasting <= most, "{lasting:?} of {most:?}: {said}");
    place.server().thaw();
    place.fleet.leader_where(|life| life.term >= leader.term);
    wait_until_or(
        "it is over",
        || place.fleet.logs(),
        || {
            let asked = place.ask(&["why", shard]);
            asked.code == 0 && !asked.out.contains("trouble")
        },
    );
    place.fleet.conclude();
}

on_two_stores!(
    [why_tells_since_when_a_candidate_of_this_host_has_not_reached_the_store,]:
    why_tells_who_leads_what_is_ordered_and_what_candidates_of_this_host_wait_for,
);
on_a_metered_store!(why_tells_who_leads_what_is_ordered_and_what_candidates_of_this_host_wait_for);

/// Two front ends, whose clocks are an hour apart.
#[cfg(feature = "dynamodb")]
#[test]
fn why_tells_that_the_clock_of_dynamodb_is_known_badly() {
    use crate::support::dynamo::{Fate, Proxy, Server, set_date};
    let server = Server::durable();
    let proxy = Proxy::before(&server);
    let mut place = Place::remote(Box::new(server));
    let direct =
        std::mem::replace(&mut place.url, format!("dynamodb://locks?region=eu-west-1&endpoint={}", proxy.endpoint()));
    place.start_here("c0");
    place.fleet.leader();
    place.url = direct;
    let shard = place.shard();
    place.why(&[&shard], &["is leader, term "]);
    assert!(!place.order(&["why", &shard]).contains("clock"), "as it should be");
    let mut number = 0;
    proxy.rule(move |_| {
        number += 1;
        let seconds = if number % 2 == 0 { 3600 } else { 0 };
        Fate::Rewrite(Box::new(move |response| set_date(response, seconds)))
    });
    place.why(&[&shard], &["c0: the dates of the store's answers disagree: a takeover may come a lease later"]);
    proxy.pass();
    place.fleet.conclude();
}

/// Of a store that answers and lets nobody in: that is not silence.
#[track_caller]
fn assert_is_denied(leaderctl: &mut Command, shard: &str, sign: &str) {
    let said = leaderctl.args(["why", shard]).said().ended(77).tells("\n  the store denied this\n");
    assert!(!said.all().contains("does not answer"), "{said:?}");
    // Once: a terminal shows both. And what runs here is told all the same.
    assert!(said.err.contains(sign) && !said.out.contains(sign), "{said:?}");
    assert!(said.out.contains("the candidate c0 (process "), "{said:?}");
}

#[cfg(feature = "redis")]
#[test]
fn a_store_that_denies_has_answered() {
    let mut place = Place::remote(Box::new(crate::support::redis::Server::start()));
    place.start_here("c0");
    place.fleet.leader();
    let url = place.url.replace("redis://", "redis://:wrong@");
    assert_ne!(url, place.url);
    let said = leaderctl().args(["--store", &url, "why", &place.shard()]).said().ended(78);
    said.tells("\n  the store cannot be used\n … has no password");

    let port = place.server().address().port();
    assert_eq!(crate::support::redis::cli(port, &["ACL", "SETUSER", "nobody", "on", ">x", "~*", "+ping"]), "OK");
    let url = place.url.replace("redis://", "redis://nobody:x@");
    assert_is_denied(leaderctl().args(["--store", &url]), &place.shard(), "denied user nobody");
    place.fleet.conclude();
}

#[test]
fn a_directory_that_denies_has_answered() {
    let mut place = Place::local();
    place.start_here("c0");
    place.fleet.leader();
    fs::set_permissions(place.path("store"), fs::Permissions::from_mode(0o700)).unwrap();
    let (_programs, mut command) = as_nobody(env!("CARGO_BIN_EXE_leaderctl"));
    assert_is_denied(command.args(["--store", &place.url]), &place.shard(), "permission denied");
    place.fleet.conclude();
}

/// Names of a candidate's sockets.
fn names(place: &Place, shard: &str, count: usize) -> Vec<String> {
    let store = Location::from_url(&place.url).unwrap();
    let beginning = query_socket::beginning(&shard.parse().unwrap(), &store);
    (0..count).map(|number| format!("{beginning}{number}")).collect()
}

/// A candidate and leaderctl beside `squatter`.
fn start_beside(squatter: &Squatter, place: &mut Place, owner: &str) {
    let mut command = squatter.beside(env!("CARGO_BIN_EXE_leaderrun"));
    command.args(TIMING).args(["-q", "--owner", owner, "--store", &place.url, &place.shard(), "--"]);
    command.arg(stamp_program()).arg(place.path("stamps"));
    place.fleet.launch(owner, command);
    place.fleet.leader();
}

fn why_beside(squatter: &Squatter, place: &Place, words: &[&str]) -> String {
    let mut command = squatter.beside(env!("CARGO_BIN_EXE_leaderctl"));
    command.args(["--store", &place.url, "why", &place.shard()]).args(words).said().good()
}

#[test]
fn sockets_that_never_answer_hide_no_candidate_and_are_counted() {
    for word in ["silence", "endless", "rubbish"] {
        let mut place = Place::local();
        let names = [names(&place, &place.shard(), 30), names(&place, "another", 7)].concat();
        let squatter = Squatter::start_apart(NOBODY, word, &names);
        start_beside(&squatter, &mut place, "c0");
        let candidate = format!("the candidate c0 (process {}) is leader, term ", place.fleet.pid("c0"));
        let here = here();
        let silent = format!(
            "30 sockets of its candidates on {here} did not answer: these are frozen, or another program's\n  \
             7 sockets of candidates for other shards, or in other stores, did not answer on {here}\n"
        );
        // On a busy machine the candidate may answer too late, and not all of the others have been asked in time.
        let mut least = Duration::MAX;
        wait_until_or(
            word,
            || why_beside(&squatter, &place, &[]),
            || {
                let begun = Instant::now();
                let said = why_beside(&squatter, &place, &[]);
                least = least.min(begun.elapsed());
                said.contains(&candidate) && said.contains(&silent)
            },
        );
        // One after the other they would take a minute.
        assert!(least < Duration::from_secs(30), "{word}: {least:?}");
        let answer = || serde_json::from_str::<Value>(&why_beside(&squatter, &place, &["--json"])).unwrap();
        wait_until_or(word, || answer().to_string(), || answer()["silent"] == 30);
        place.fleet.conclude();
    }
}

#[test]
fn a_candidate_that_is_stopped_is_named_with_what_lets_it_go_on() {
    let mut place = Place::local();
    // Where no other test stops a candidate.
    let alone = Squatter::start_apart(NOBODY, "silence", &[]);
    start_beside(&alone, &mut place, "c0");
    let process = place.fleet.pid("c0");
    kill(process, Signal::SIGSTOP).unwrap();
    let line =
        format!("process {process}, the leader, does not answer: it is stopped: kill -CONT {process} lets it go on");
    wait_until("it is known to be stopped", || why_beside(&alone, &place, &[]).contains(&line));
    let said = why_beside(&alone, &place, &[]);
    assert!(!said.contains("did not answer"), "{said}");
    let answer: Value = serde_json::from_str(&why_beside(&alone, &place, &["--json"])).unwrap();
    assert_eq!(answer["silent"], 1, "{answer}");
    kill(process, Signal::SIGCONT).unwrap();
    let goes_on =
        || why_beside(&alone, &place, &[]).contains(&format!("the candidate c0 (process {process}) is leader"));
    wait_until("it answers again", goes_on);
    place.fleet.conclude();
}

#[test]
fn only_candidates_for_this_shard_in_this_store_are_shown_as_its_own() {
    let mut place = Place::local();
    let alone = Squatter::start_apart(NOBODY, "silence", &[]);
    start_beside(&alone, &mut place, "c0");
    let elsewhere = format!("file:{}", place.path("elsewhere").display());
    for (owner, store, shard) in [("other-shard", &place.url, "another"), ("other-store", &elsewhere, &place.shard())] {
        let mut command = alone.beside(env!("CARGO_BIN_EXE_leaderrun"));
        command.args(TIMING).args(["-q", "--owner", owner, "--store", store, shard, "sleep", "1000"]);
        place.fleet.launch(owner, command);
    }
    let [own, shard, store] = ["c0", "other-shard", "other-store"].map(|owner| place.fleet.pid(owner));
    let mut said = String::new();
    let of_another =
        format!("the candidate other-store (process {store}), whose store has another URL ({elsewhere}), is ");
    wait_until("that of another store answers", || {
        said = why_beside(&alone, &place, &[]);
        said.contains(&of_another)
    });
    assert!(said.contains(&format!("the candidate c0 (process {own}) is leader")), "{said}");
    assert!(!said.contains("other-shard") && !said.contains("no candidate"), "{said}");
    // One that is stopped before it listens is not there for anybody.
    let sockets = || fs::read_to_string(format!("/proc/{own}/net/unix")).unwrap_or_default();
    wait_until_or("all three listen", sockets, || sockets().matches(" @leaderrun-").count() >= 3);
    for process in [shard, store] {
        kill(process, Signal::SIGSTOP).unwrap();
    }
    let counted =
        format!("2 sockets of candidates for other shards, or in other stores, did not answer on {}\n", here());
    wait_until_or(
        "both are stopped",
        || why_beside(&alone, &place, &[]),
        || {
            said = why_beside(&alone, &place, &[]);
            said.contains(&counted)
        },
    );
    assert!(!said.contains("kill -CONT") && !said.contains("other-"), "{said}");
    for process in [shard, store] {
        kill(process, Signal::SIGCONT).unwrap();
    }
    place.fleet.conclude();
}

#[test]
fn a_process_of_another_user_is_shown_as_what_it_is_and_not_as_what_it_says() {
    let mut place = Place::local();
    let forged = serde_json::json!({"shard": place.shard(), "store": "a store", "owner": "c0", "pid": 1,
        "standing": {"role": "leader"}, "containment": "a method"});
    let names = names(&place, &place.shard(), 1);
    let squatter = Squatter::start_apart(NOBODY, &forged.to_string(), &names);
    start_beside(&squatter, &mut place, "c0");
    let said = why_beside(&squatter, &place, &[]);
    let (own, its) = (place.fleet.pid("c0"), squatter.pid());
    assert!(said.contains(&format!("the candidate c0 (process {own}) is leader, term ")), "{said}");
    assert!(said.contains(&format!("the candidate c0 (process {its} of user {NOBODY}) is leader\n")), "{said}");
    assert!(!said.contains("process 1)") && !said.contains("did not answer"), "{said}");
    place.fleet.conclude();
}
