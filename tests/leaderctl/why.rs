//! What `leaderctl why` says, with real candidates and real servers: who leads and for how long, what is ordered, and what
//! the candidates of this host say themselves, also while the store is away or lets nobody in.

use crate::support::prelude::*;
use crate::support::squatting::{NOBODY, Squatter, as_nobody};
use leaderrun::internals::observe::query_socket;
use leaderrun::internals::store::Location;

impl Place {
    /// A candidate for [`Place::shard`], with a lease that a machine that stands still for a while does not lose.
    fn start_here(&mut self, owner: &str) {
        let mut command = leaderrun();
        command.args(usual_but(&TIMING, &["--lease", "30s"])).args(["-q", "--owner", owner, "--store", &self.url]);
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

    let signs = [": elsewhere does not lead\n", &led_by, "no standby of elsewhere"];
    let said = place.why(&[shard, "--host", "elsewhere"], &signs);
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
            wait_until(role, || {
                if said.code == 66 {
                    said = ask(&words);
                }
                said.code != 66
            });
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

on_two_stores!(why_tells_who_leads_what_is_ordered_and_what_candidates_of_this_host_wait_for);

#[test]
fn a_directory_that_denies_has_answered() {
    let mut place = Place::local();
    place.start_here("c0");
    place.fleet.leader();
    fs::set_permissions(place.path("store"), fs::Permissions::from_mode(0o700)).unwrap();
    let (_programs, mut command) = as_nobody(env!("CARGO_BIN_EXE_leaderctl"));
    let said = command.args(["--store", &place.url, "why", &place.shard()]).said();
    let said = said.ended(77).tells("\n  the store denied this\n");
    assert!(!said.all().contains("does not answer"), "{said:?}");
    // Once: a terminal shows both. And what runs here is told all the same.
    let sign = "permission denied";
    assert!(said.err.contains(sign) && !said.out.contains(sign), "{said:?}");
    assert!(said.out.contains("the candidate c0 (process "), "{said:?}");
    place.fleet.conclude();
}

/// Names of a candidate's sockets.
fn names(place: &Place, shard: &str, count: usize) -> Vec<String> {
    let store = Location::from_url(&place.url).unwrap();
    let beginning = query_socket::beginning(&shard.parse().unwrap(), &store);
    (0..count).map(|number| format!("{beginning}{number}")).collect()
}

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
