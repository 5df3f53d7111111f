//! What a standby holds, and what runs beside it: while it does not lead, and never while its COMMAND is alive.

use crate::support::prelude::*;
use std::collections::BTreeMap;

impl Place {
    /// With a standby command that writes stamps, and does what `flags` say.
    fn launch_with_stamps(&mut self, owner: &str, flags: &str) {
        let stamp = self.stamp(flags);
        self.launch_for_long(owner, &["--standby", &stamp]);
    }

    /// With a lease that outlasts a stall of the machine: nobody waits for its end.
    fn launch_for_long(&mut self, owner: &str, flags: &[&str]) {
        self.launch_with(owner, &[&["--lease", "30s"], flags].concat(), &[]);
    }

    fn stamp(&self, flags: &str) -> String {
        format!("exec {} {} {flags}", stamp_program().display(), self.path("beside").display())
    }

    fn beside(&self) -> Vec<Life> {
        lives(&self.path("beside"))
    }

    /// Waits until something runs beside this standby, and answers its process.
    fn wait_for(&self, owner: &str) -> Life {
        let begun = BootInstant::now().as_nanos();
        let mut found = None;
        self.wait_until(&format!("something runs beside {owner}"), || {
            found = self.beside().into_iter().rfind(|life| life.owner == owner && life.last > begun);
            found.is_some()
        });
        found.unwrap()
    }

    /// So many have announced themselves. One that waits does so a moment later.
    fn wait_until_announced(&self, count: u64) {
        let announced = || self.object(&["status", "--json", "--standbys", "shard"])["standbys"].as_u64();
        self.wait_until("they have announced themselves", || announced() >= Some(count));
    }

    fn step_down(&self) {
        // Whoever follows has that long, on a machine that stalls.
        self.step_down_for("1m");
    }

    fn step_down_for(&self, hold: &str) {
        self.wait_until_announced(1);
        self.order(&["step-down", "--for", hold, "shard"]);
    }

    /// Ends everything: no two trees at once, nobody left, and nothing ran beside a candidate whose COMMAND was alive.
    fn conclude(mut self) {
        let (_, evidence) = self.fleet.end();
        let (beside, commands) = (self.beside(), lives(&self.path("stamps")));
        let logs = self.fleet.logs();
        assert_eq!(evidence.breach(), None, "{commands:?}\n{logs}");
        for life in beside.iter().chain(&lives(&self.path("hooks"))) {
            let at_once =
                |other: &&Life| other.owner == life.owner && other.first <= life.last && life.first <= other.last;
            let other = commands.iter().find(at_once);
            assert!(other.is_none(), "{life:?} and {other:?} at once\n{logs}");
        }
    }
}

/// One process each: its number is where a term would be.
fn lives(path: &Path) -> Vec<Life> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lives: BTreeMap<(String, u64), Life> = BTreeMap::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        let [owner, _, pid, at] = words[..] else { panic!("not a stamp: {line}") };
        let (owner, term, at) = (owner.to_owned(), pid.parse().unwrap(), at.parse().unwrap());
        let life = lives.entry((owner.clone(), term)).or_insert(Life { owner, term, first: at, last: at });
        life.last = at;
    }
    let mut lives: Vec<Life> = lives.into_values().collect();
    lives.sort_by_key(|life| life.first);
    lives
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn pid(life: &Life) -> Pid {
    Pid::from_raw(i32::try_from(life.term).unwrap())
}

fn is_alive(pid: Pid) -> bool {
    kill(pid, None).is_ok()
}

fn slay(pid: Pid) {
    kill(pid, Signal::SIGKILL).expect("it is there");
}

/// With a daemon beside it that ignores SIGTERM, each hands over to the other, and gets it back, twice.
fn it_is_dead_before_command_starts_however_often_leadership_changes(mut place: Place) {
    for owner in ["one", "two"] {
        place.launch_with_stamps(owner, "ignore-term daemon");
    }
    let mut leader = place.fleet.leader();
    for _ in 0..4 {
        let standby = if leader.owner == "one" { "two" } else { "one" };
        place.wait_for(standby);
        place.step_down();
        let next = place.fleet.leader_where(|life| life.term > leader.term);
        assert_eq!(next.owner, standby);
        // It comes back beside the leader of that time.
        place.wait_for(&leader.owner);
        leader = next;
    }
    place.conclude();
}

fn it_is_started_again_after_it_ends(mut place: Place) {
    place.launch_for_long("one", &[]);
    place.fleet.leader();
    let counted = place.path("counted");
    // What it leaves behind is no reason not to, and is not left behind.
    let stamp = place.stamp("ignore-term");
    let script =
        format!("echo $$ >> {}; (setsid {}) & sleep 0.1; exit 3", counted.display(), stamp.trim_start_matches("exec "));
    place.launch_for_long("two", &["--standby", &script]);
    place.wait_until("it was started three times", || lines(&counted).len() >= 3);
    let beside = place.beside();
    assert!(beside.windows(2).all(|pair| pair[0].last < pair[1].first), "one at a time: {beside:?}");
    let logs = place.fleet.logs();
    assert!(logs.contains("the standby command exited with 3; starting it again in 1s"), "{logs}");
    assert!(logs.contains("the standby command exited with 3; starting it again in 2s"), "{logs}");
    // It waits for its next start when COMMAND is to start.
    place.step_down();
    let leader = place.fleet.leader_where(|life| life.owner == "two");
    let starts = lines(&counted).len();
    std::thread::sleep(Duration::from_millis(4500));
    assert_eq!(lines(&counted).len(), starts, "none starts beside a leader");
    assert_eq!(place.fleet.leader().term, leader.term);
    place.conclude();
}

fn a_killed_candidate_takes_it_along(mut place: Place) {
    place.launch_for_long("one", &[]);
    place.fleet.leader();
    place.launch_with_stamps("two", "ignore-term daemon");
    place.wait_for("two");
    place.fleet.kill("two");
    let beside = place.path("beside");
    place.wait_until("nobody is left", || processes_naming(&beside).is_empty());
    place.conclude();
}

/// A candidate that is frozen while it is stopped starts no COMMAND on a lease that has ended.
#[cfg(feature = "redis")]
#[test]
fn a_candidate_that_is_frozen_between_its_grant_and_its_command_starts_none_too_late() {
    let mut place = Place::remote(Box::new(crate::support::redis::Server::start()));
    place.launch_for_long("one", &[]);
    let first = place.fleet.leader();
    let stamp = place.stamp("ignore-term daemon");
    place.launch_with("two", &["-vv", "--standby", &stamp, "--lease", "12s", "--kill-after", "6s"], &[]);
    place.wait_for("two");
    // Long enough for the other one to be granted the lease, and soon over.
    place.step_down_for("20s");
    // Its standby command lives for the grace now, in which it is frozen here.
    place.wait_until("it was granted", || place.fleet.logs().contains("stopping the standby command"));
    place.fleet.signal("two", Signal::SIGSTOP);
    let next = place.fleet.leader_where(|life| life.term > first.term);
    assert_eq!(next.owner, "one", "its lease ended");
    let beside = place.beside();
    assert!(!beside.iter().map(pid).any(is_alive), "its guard needs nobody to tell it of the grace");
    place.fleet.signal("two", Signal::SIGCONT);
    place.wait_for("two");
    place.conclude();
}

/// What is killed is started again; what is frozen is passed over when the lease is there.
fn no_harm_to_guards_lets_it_meet_command(mut place: Place) {
    place.launch_with_stamps("one", "ignore-term daemon");
    let mut leader = place.fleet.leader();
    place.launch_with_stamps("two", "ignore-term daemon");
    for frozen in [false, true] {
        let standby = if leader.owner == "one" { "two" } else { "one" };
        place.wait_for(standby);
        let [backstop, guard] = helpers_of(place.fleet.pid(standby));
        if frozen {
            kill(backstop, Signal::SIGSTOP).unwrap();
            kill(guard, Signal::SIGSTOP).unwrap();
        } else {
            let before = place.beside().len();
            slay(backstop);
            place.wait_until("it was started again", || place.beside().len() >= before + 2);
            place.wait_for(standby);
        }
        place.step_down();
        let next = place.fleet.leader_where(|life| life.term > leader.term);
        assert_eq!(next.owner, standby);
        leader = next;
    }
    place.conclude();
}

fn a_hook_that_hangs_is_killed_and_keeps_no_command_waiting(mut place: Place) {
    place.launch_for_long("one", &[]);
    let first = place.fleet.leader();
    let stamp = place.stamp("ignore-term daemon");
    place.launch_for_long("two", &["--on-leader-change", &stamp, "--hook-timeout", "6s"]);
    place.wait_until("it is killed", || place.fleet.logs().contains("it took longer than 6s"));
    let beside = place.path("beside");
    assert_eq!(processes_naming(&beside).len(), 1, "the candidate's own line has its path");
    let life = &place.beside()[0];
    assert!(life.last - life.first < 20_000_000_000, "{life:?}");

    // As long as a day: our own leadership is what ends it.
    place.launch_for_long("three", &["--on-leader-change", &stamp, "--hook-timeout", "1d"]);
    place.wait_for("three");
    place.fleet.stop("two");
    // Its guard does not kill it then, so the candidate has to, and COMMAND to wait for that.
    for helper in helpers_of(place.fleet.pid("three")) {
        kill(helper, Signal::SIGSTOP).unwrap();
    }
    place.step_down();
    let next = place.fleet.leader_where(|life| life.term > first.term);
    assert_eq!(next.owner, "three");
    place.conclude();
}

/// The tree of a guard that was killed lands on the candidate, beside the other's guard.
fn the_hooks_tree_and_the_other_are_not_mixed_up(mut place: Place) {
    place.launch_for_long("one", &[]);
    let first = place.fleet.leader();
    let (stamp, hook) = (place.stamp("ignore-term daemon"), place.path("hooks"));
    let hook = format!("exec {} {} ignore-term daemon", stamp_program().display(), hook.display());
    place.launch_for_long("two", &["--standby", &stamp, "--on-leader-change", &hook, "--hook-timeout", "1d"]);
    place.wait_for("two");
    let hooks = || lives(&place.path("hooks"));
    place.wait_until("the hook runs", || hooks().len() == 2);
    place.wait_until("the daemon of the other runs", || place.beside().len() == 2);
    let candidate = place.fleet.pid("two").as_raw();
    let backstops = children_of(candidate);
    assert_eq!(backstops.len(), 2);
    let ours: Vec<i32> = hooks().iter().map(|life| pid(life).as_raw()).collect();
    let has_hook =
        |backstop: &i32| children_of(*backstop).into_iter().flat_map(children_of).any(|it| ours.contains(&it));
    let of_hook = backstops.into_iter().find(has_hook).unwrap();
    let before: Vec<Pid> = place.beside().iter().map(pid).collect();
    slay(Pid::from_raw(of_hook));
    place.wait_until("the hook's tree is dead", || !hooks().iter().map(pid).any(is_alive));
    place.wait_until("its guard is reaped", || children_of(candidate).len() == 1);
    assert!(before.iter().copied().all(is_alive), "the standby command has nothing to do with it");
    slay(Pid::from_raw(children_of(candidate)[0]));
    place.wait_until("it was started again", || place.beside().len() == 4);
    assert!(!before.into_iter().any(is_alive));
    place.step_down();
    place.fleet.leader_where(|life| life.term > first.term);
    place.conclude();
}

fn one_that_cannot_be_started_is_not_said_to_have_been_killed(mut place: Place) {
    place.launch_for_long("one", &[]);
    place.fleet.leader();
    let script = "mount --bind /dev/null /bin/sh && exec \"$0\" \"$@\"";
    let mut standby = Command::new("unshare");
    standby.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_leaderrun")]);
    standby.args(["--store", &place.url, "-w", "2s", "--standby", "true", "shard", "true"]);
    standby.envs(place.environment.iter().copied());
    let said = standby.said().ended(75).tells("the standby command could not be started: ");
    assert!(!said.err.contains("killed"), "{said:?}");
    place.conclude();
}

on_two_stores!(
    [
        one_that_cannot_be_started_is_not_said_to_have_been_killed,
        it_is_started_again_after_it_ends,
        a_killed_candidate_takes_it_along,
        a_hook_that_hangs_is_killed_and_keeps_no_command_waiting,
        the_hooks_tree_and_the_other_are_not_mixed_up,
    ]:
    it_is_dead_before_command_starts_however_often_leadership_changes,
    no_harm_to_guards_lets_it_meet_command,
);
