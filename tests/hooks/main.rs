//! Hooks of a leadership, and checks of COMMAND's health, with real candidates and servers: in their order, in their
//! time, and dead with the tree.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;
mod health;

use support::prelude::*;

const LEASE: Duration = Duration::from_secs(9);
/// For [`LEASE`], with room for two hooks of a second.
const TIMING: &str = "--lease 9s --renew 1s --kill-after 1s --retry 500ms --stop-timeout 1s --hook-timeout 1s";

/// Where neither an expiry nor the end of a hook's time is waited for: a slow machine has time for everything.
const PATIENT: &str = "--lease 100s --renew 1s --kill-after 20s --retry 500ms --stop-timeout 20s --hook-timeout 20s";

/// `flags`, and of the `usual` ones those that they do not set.
fn timing<'a>(usual: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    usual_but(&usual.split(' ').collect::<Vec<_>>(), flags)
}

impl Process {
    fn status(&mut self) -> Option<i32> {
        self.ends().code()
    }
}

impl Place {
    fn diary(&self) -> PathBuf {
        self.path("diary")
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.diary()).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn wait_for(&self, line: &str) {
        let explain = || format!("{:?}\n{}", self.lines(), self.log());
        wait_until_or(line, explain, || self.lines().iter().any(|known| known == line));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn with(&self, name: &str, flags: &[&str], script: &str) -> Command {
        self.with_timing(PATIENT, name, flags, script)
    }

    /// `usual`: what `flags` may say otherwise.
    fn with_timing(&self, usual: &str, name: &str, flags: &[&str], script: &str) -> Command {
        let log = fs::File::options().append(true).create(true).open(self.path("log")).unwrap();
        let mut command = leaderrun();
        command.args(timing(usual, flags)).args(["--store", &self.url, "--owner", name]).args(["shard", "-c", script]);
        command
            .envs(self.environment.iter().copied())
            .env("DIARY", self.diary())
            .env("PLACE", self.fleet.scratch.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    fn start(&self, name: &str, flags: &[&str], script: &str) -> Process {
        Process::start(&mut self.with(name, flags, script))
    }

    fn history(&self) -> String {
        self.ask(&["history", "shard"]).out
    }
}

/// A hook that writes a line: whose, which, why, and how COMMAND ended.
const LINE: &str =
    r"set -- $LEADERRUN_CANDIDATE $LEADERRUN_EVENT $LEADERRUN_REASON $LEADERRUN_EXIT_STATUS; echo $* >> $DIARY";
const LINES: [&str; 6] = ["--pre-start", LINE, "--pre-stop", LINE, "--post-stop", LINE];
const COMMAND: &str = r"trap 'echo $LEADERRUN_CANDIDATE term >> $DIARY; exit 5' TERM; echo $LEADERRUN_CANDIDATE command >> $DIARY
                        while :; do sleep 0.02; done";

fn hooks_come_in_their_order_and_a_standbys_first_after_the_leaders_last(place: &Place) {
    // What COMMAND leaves behind hides in a session of its own, and ignores the stop signal.
    let stubborn = r#"setsid -f sh -c 'trap "" TERM; echo $$ > $PLACE/stray; while :; do sleep 1; done'
                      while ! test -s $PLACE/stray; do sleep 0.02; done"#;
    let lost = format!("kill -0 $(cat $PLACE/stray) && echo alive >> $DIARY; cat; sleep 0.5; {LINE}");
    let flags = ["--pre-start", LINE, "--pre-stop", LINE, "--post-stop", &lost, "--kill-after", "3s"];
    let mut one = place.start("one", &flags, &format!("{stubborn}; {COMMAND}"));
    place.wait_for("one command");
    let mut two = place.start("two", &LINES, COMMAND);
    std::thread::sleep(Duration::from_secs(1));
    one.signal(Signal::SIGTERM);
    assert_eq!(one.status(), Some(5));
    place.wait_for("two command");
    two.signal(Signal::SIGTERM);
    assert_eq!(two.status(), Some(5));
    let expected = |name: &str| {
        ["pre-start", "command", "pre-stop asked", "term", "post-stop asked 5"]
            .map(|line| format!("{name} {line}"))
            .to_vec()
    };
    assert_eq!(place.lines(), [expected("one"), expected("two")].concat(), "{}", place.log());
    assert!(!place.log().contains("hook"), "{}", place.log());
}

fn a_host_whose_hook_fails_gives_way_to_others(place: &Place) {
    let failing = format!("{LINE}; exit 3");
    let flags = ["--pre-start", &failing, "--pre-stop", LINE, "--post-stop", LINE];
    let output = place.with("none", &[&flags[..], &["-n"]].concat(), COMMAND).status().unwrap();
    assert_eq!(output.code(), Some(75), "{}", place.log());
    assert_eq!(place.lines(), ["none pre-start", "none post-stop failed"]);
    assert!(place.log().contains("the --pre-start hook exited with 3: giving the lease back"), "{}", place.log());
    assert!(place.history().contains("not started: the --pre-start hook exited with 3"), "{}", place.history());
    let begun = BootInstant::now();
    let mut one = place.start("one", &flags, COMMAND);
    place.wait_for("one post-stop failed");
    let mut two = place.start("two", &LINES, COMMAND);
    place.wait_for("two command");
    // It does not storm the store, and its time comes again.
    let tries = place.lines().iter().filter(|line| *line == "one pre-start").count();
    let elapsed = BootInstant::now().since(begun);
    assert!(tries <= 1 + usize::try_from(elapsed.as_secs()).unwrap(), "{tries} in {elapsed:?}");
    two.signal(Signal::SIGTERM);
    assert_eq!(two.status(), Some(5));
    let before = place.lines().iter().filter(|line| *line == "one pre-start").count();
    wait_until("it tries again", || place.lines().iter().filter(|line| *line == "one pre-start").count() > before);
    one.signal(Signal::SIGTERM);
    one.status();
    assert!(!place.lines().iter().any(|line| line == "one command" || line == "one pre-stop"), "{:?}", place.lines());
}

fn hooks_happen_also_when_the_candidate_is_killed(place: &Place) {
    let begun = BootInstant::now();
    let mut one = place.start("one", &LINES, COMMAND);
    place.wait_for("one command");
    let started = BootInstant::now().since(begun);
    let _two = place.start("two", &LINES, COMMAND);
    std::thread::sleep(Duration::from_secs(1));
    one.end();
    place.wait_for("two command");
    let lines = place.lines();
    let expected = [
        "one pre-start",
        "one command",
        "one pre-stop killed",
        "one term",
        "one post-stop killed 5",
        "two pre-start",
        "two command",
    ];
    assert_eq!(lines, expected, "{started:?} {}", place.log());
}

/// A lease whose end is waited for; COMMAND and the hooks still have a while.
const SHORT: [&str; 6] = ["--lease", "15s", "--kill-after", "3s", "--hook-timeout", "3s"];

fn a_frozen_candidate_keeps_no_hook_from_its_time(place: &Place) {
    let one = place.start("one", &[&LINES[..], &SHORT].concat(), COMMAND);
    place.wait_for("one command");
    let _two = place.start("two", &LINES, COMMAND);
    one.signal(Signal::SIGSTOP);
    place.wait_for("two command");
    one.signal(Signal::SIGCONT);
    let expected = [
        "one pre-start",
        "one command",
        "one pre-stop lost",
        "one term",
        "one post-stop lost 5",
        "two pre-start",
        "two command",
    ];
    assert_eq!(place.lines()[..7], expected, "{}", place.log());
}

/// A hook that never ends by itself, forks away, and ignores the stop signal; as COMMAND's, its stamps show that no two
/// terms overlap.
fn stubborn_hook(fleet: &Fleet) -> String {
    format!("{} {} ignore-term daemon", stamp_program().display(), fleet.scratch.path().join("stamps").display())
}

fn the_store_is_frozen_until_the_deadline_and_stubborn_hooks_are_dead_by_then(place: &Place) {
    let mut fleet = Fleet::new();
    let stubborn = stubborn_hook(&fleet);
    let server = place.server.as_ref().expect("it is a remote one");
    let flags = timing(TIMING, &["--store", &place.url, "--pre-stop", &stubborn, "--post-stop", &stubborn]);
    fleet.start("one", &flags, &["ignore-term", "daemon"], place.environment);
    fleet.start("two", &flags, &["ignore-term", "daemon"], place.environment);
    let leader = fleet.leader();
    std::thread::sleep(Duration::from_secs(2));
    server.freeze();
    let frozen = BootInstant::now();
    // While the machine stands still nobody kills.
    let (mut stood, mut seen) = (Duration::ZERO, frozen);
    while seen.since(frozen) < LEASE + Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(2));
        let now = BootInstant::now();
        stood = stood.max(now.since(seen));
        seen = now;
    }
    let last = fleet.lives().iter().map(|life| life.last).max().unwrap();
    let alive = BootInstant::from_nanos(last).since(frozen);
    // Hooks had their time, and no instant more than the lease had left. A guard that is woken late begins earlier, by half
    // of the outage at most.
    assert!(alive > Duration::from_secs(3), "{alive:?}\n{}", fleet.logs());
    assert!(alive < LEASE - Duration::from_millis(100) + stood, "{alive:?}\n{}", fleet.logs());
    server.thaw();
    fleet.leader_where(|life| life.term > leader.term);
    assert!(fleet.logs().contains("the --pre-stop hook took longer than --hook-timeout"), "{}", fleet.logs());
    fleet.conclude();
}

fn whatever_is_killed_while_a_hook_runs_nothing_is_left(place: &Place) {
    for victim in ["candidate", "backstop", "guard"] {
        for hook in ["--pre-start", "--pre-stop", "--post-stop"] {
            let mut fleet = Fleet::new();
            let marker = fleet.scratch.path().join("hook");
            let stubborn = format!("echo up > {}; {}", marker.display(), stubborn_hook(&fleet));
            let more = ["--store", &place.url, hook, &stubborn, "--hook-timeout", "5s", "--lease", "12s"];
            fleet.start("one", &timing(TIMING, &more), &["daemon"], place.environment);
            let candidate = fleet.pid("one");
            if hook != "--pre-start" {
                fleet.leader();
                fleet.signal("one", Signal::SIGTERM);
            }
            wait_until_or("the hook runs", || fleet.logs(), || marker.exists());
            let [backstop, guard] = helpers_of(candidate);
            let pid = match victim {
                "candidate" => candidate,
                "backstop" => backstop,
                _ => guard,
            };
            kill(pid, Signal::SIGKILL).unwrap();
            if victim == "candidate" {
                fleet.kill("one");
            }
            // Its successor has no hooks, and its stamps must not overlap with what is left.
            fleet.start("two", &timing(TIMING, &["--store", &place.url]), &[], place.environment);
            fleet.leader_where(|life| life.owner == "two");
            fleet.conclude();
        }
    }
}

#[test]
fn what_the_first_hook_leaves_behind_belongs_to_the_tree() {
    let place = Place::local();
    let helper = "(trap 'echo helper >> $DIARY; exit' TERM; echo up >> $DIARY; while :; do sleep 0.02; done) & 
                  while ! test -s $DIARY; do sleep 0.02; done";
    let mut one = place.start("one", &["--pre-start", helper, "--post-stop", LINE], COMMAND);
    place.wait_for("one command");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.status(), Some(5));
    let lines = place.lines();
    assert!(lines[2..4].contains(&"helper".to_owned()) && lines[4..] == ["one post-stop asked 5"], "{lines:?}");
}

on_two_stores!(
    [
        &a_frozen_candidate_keeps_no_hook_from_its_time,
        &the_store_is_frozen_until_the_deadline_and_stubborn_hooks_are_dead_by_then,
        &whatever_is_killed_while_a_hook_runs_nothing_is_left,
    ]:
    &hooks_come_in_their_order_and_a_standbys_first_after_the_leaders_last,
    &a_host_whose_hook_fails_gives_way_to_others,
    &hooks_happen_also_when_the_candidate_is_killed,
);
