//! Leaders are spread over the hosts, with real candidates: six shards on three hosts, and what goes wrong meanwhile.
//! Whatever happens, no two trees of a shard run at once, and nobody is left.

use crate::support::evidence::Evidence;
use crate::support::fleet::{ANNOUNCED, leaderrun, stamp_program, wait_until_or};
use crate::support::place::Place;
use crate::support::said::{Runs as _, Said};
use crate::support::world::TIMING;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What each candidate is called.
fn owner(host: u32, shard: u32) -> String {
    format!("web{host}-{shard}")
}

impl Place {
    fn start_on(&mut self, host: u32, shard: u32) {
        self.start_on_with(host, shard, &[], &[ANNOUNCED]);
    }

    fn start_on_with(&mut self, host: u32, shard: u32, flags: &[&str], environment: &[(&str, &str)]) {
        let mut command = leaderrun();
        command.args(["--owner", &owner(host, shard), "--host", &format!("web{host}"), "--store", &self.url]);
        command.args(TIMING).args(flags).arg(format!("queue/{shard}")).arg("--").arg(stamp_program());
        command.arg(self.path(&format!("stamps.{shard}"))).arg("slowly");
        command.envs(self.environment.iter().copied()).envs(environment.iter().copied());
        self.fleet.launch(&owner(host, shard), command);
    }

    /// Starts a candidate of each shard on each host. The first host leads all of them, for as long as leaders are left
    /// alone.
    fn lopsided(&mut self, hosts: u32, shards: u32) {
        (1..=shards).for_each(|shard| self.start_on(1, shard));
        wait_until_or("the first host leads", || self.fleet.logs(), || self.led() == BTreeMap::from([(1, shards)]));
        for host in 2..=hosts {
            (1..=shards).for_each(|shard| self.start_on(host, shard));
        }
        // Leaders are left alone for a minute.
        std::thread::sleep(std::time::Duration::from_secs(50));
        // The first are older than that then, and all standbys have announced themselves.
        let waiting = u64::from((hosts - 1) * shards);
        let ready = || self.waiting() == waiting && self.plan()["left_alone"].as_array().unwrap().is_empty();
        wait_until_or("all may move", || format!("{}\n{}", self.plan(), self.fleet.logs()), ready);
    }

    fn plan(&self) -> Value {
        self.object(&["balance", "queue/", "--dry-run", "--json"])
    }

    fn rows(&self) -> Vec<Value> {
        self.objects(&["list", "queue/", "--json"])
    }

    /// How many standbys have announced themselves.
    fn waiting(&self) -> u64 {
        self.rows().iter().filter_map(|row| row["standbys"].as_u64()).sum()
    }

    /// Who leads a shard.
    fn host_of(&self, shard: u32) -> Option<String> {
        let rows = self.rows();
        let row = rows.iter().find(|row| row["shard"] == format!("queue/{shard}"))?;
        row["host"].as_str().map(str::to_owned)
    }

    /// How many shards each host leads.
    fn led(&self) -> BTreeMap<u32, u32> {
        let mut led = BTreeMap::new();
        for row in self.rows() {
            if let Some(host) = row["leader"]["host"].as_str().or(row["host"].as_str()) {
                *led.entry(host.trim_start_matches("web").parse().unwrap()).or_default() += 1;
            }
        }
        led
    }

    /// Ends everything, and checks each shard.
    fn conclude(mut self, shards: u32) {
        let (until, orphans) = self.fleet.end_all();
        assert_eq!(orphans, 0, "{}", self.fleet.logs());
        for shard in 1..=shards {
            let lives = self.fleet.lives_in_slot(shard);
            assert_eq!(Evidence::of(&lives, until, 0, 0).breach(), None, "{shard}: {lives:?}\n{}", self.fleet.logs());
        }
    }
}

fn begin(place: &Place, flags: &[&str]) -> Child {
    place.ctl(&[&["balance", "queue/"], flags].concat()).spawn().unwrap()
}

#[test]
fn of_two_at_once_one_moves_and_a_host_that_dies_meanwhile_ends_it_and_the_next_one_spreads_what_is_left() {
    let mut place = Place::local();
    place.lopsided(3, 6);
    let listed = place.ask(&["list", "queue/"]).err;
    assert_eq!(listed, "leaderctl: uneven: web1 leads 6 of 6, web2 none, web3 none\n");
    let plan = place.plan();
    let even: BTreeMap<String, u32> = (1..=3).map(|host| (format!("web{host}"), 2)).collect();
    assert_eq!((&plan["result"], &plan["after"]), (&"planned".into(), &serde_json::json!(even)), "{plan}");
    assert_eq!(plan["moves"].as_array().unwrap().len(), 4, "{plan}");
    let shown = place.order(&["balance", "queue/", "--dry-run"]);
    assert!(shown.starts_with("now web1 leads 6 of 6, web2 none, web3 none\nqueue/"), "{shown}");
    assert!(shown.ends_with("\nthen web1 leads 2 of 6, web2 2, web3 2\n"), "{shown}");
    assert_eq!(place.led(), BTreeMap::from([(1, 6)]), "a dry run moves nothing");
    let target = plan["moves"][2]["to"].as_str().unwrap().trim_start_matches("web").parse().unwrap();
    let mut first = begin(&place, &["--wait", "4s"]);
    let mut moves = BufReader::new(first.stdout.take().unwrap()).lines();
    moves.next().expect("a move").unwrap();
    // It makes no other move while the host dies.
    let process = Pid::from_raw(first.id().cast_signed());
    kill(process, Signal::SIGSTOP).unwrap();
    place.ask(&["balance", "queue/"]).refused(75, "leaderctl: leaderctl-balance- …  is balancing already\n");
    for shard in 1..=6 {
        place.fleet.kill(&owner(target, shard));
    }
    kill(process, Signal::SIGCONT).unwrap();
    let stopped = Said::from(first.wait_with_output().unwrap());
    assert_eq!(stopped.code, 75, "{stopped:?}\n{}", place.fleet.logs());
    assert!(stopped.err.contains(" moves were made") || stopped.err.contains(" move was made"), "{stopped:?}");
    wait_until_or(
        "the others lead",
        || place.fleet.logs(),
        || {
            let led = place.led();
            !led.contains_key(&target) && led.values().sum::<u32>() == 6
        },
    );
    // What the dead host announced ends by itself, and new leaders are old enough a minute later.
    std::thread::sleep(std::time::Duration::from_secs(50));
    wait_until_or(
        "the plan is for those that live",
        || place.plan().to_string(),
        || {
            let plan = place.plan();
            plan["before"].get(format!("web{target}")).is_none() && plan["left_alone"].as_array().unwrap().is_empty()
        },
    );
    place.order(&["balance", "queue/"]);
    assert!(place.led().values().all(|&led| led == 3), "{:?}", place.led());
    place.conclude(6);
}

fn a_host_is_emptied_and_leads_nothing_until_it_is_resumed(mut place: Place) {
    (1..=4).for_each(|shard| place.start_on(1, shard));
    wait_until_or("the first host leads", || place.fleet.logs(), || place.led() == BTreeMap::from([(1, 4)]));
    for (host, shard) in [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)] {
        place.start_on(host, shard);
    }
    wait_until_or("they stand by", || place.fleet.logs(), || place.waiting() == 6);
    let emptied = place.ask(&["step-down", "--host", "web1", "--prefix", "queue/", "--for", "1h"]);
    assert_eq!(emptied.code, 75, "{emptied:?}\n{}", place.fleet.logs());
    assert_eq!(emptied.err, "leaderctl: queue/4: stays on web1: no other standby\n");
    assert_eq!(emptied.out.lines().count(), 4, "{emptied:?}");
    let led = place.led();
    assert!(led[&1] == 1 && led[&2].abs_diff(led[&3]) == 1 && led.values().sum::<u32>() == 4, "{led:?}");
    assert_eq!(place.host_of(4).as_deref(), Some("web1"), "it goes on");
    // The order for some shards is not one for all.
    let other = place.ask(&["step-down", "--host", "web1", "--for", "1h"]);
    other.ended(75).tells("; leaderctl resume --host web1 ends that");

    let why = place.order(&["why", "--host", "web1", "queue/1"]);
    assert!(
        why.contains("\n  web1 is held back from queue/* by ") && why.contains(": leaderctl resume --host"),
        "{why}"
    );

    let listed = place.ask(&["list", "queue/"]).err;
    assert!(listed.contains(" of 4, ") && listed.contains("; web1 is held back from queue/* by "), "{listed}");

    // The former leader stands by again, and follows nobody.
    wait_until_or("it stands by", || place.fleet.logs(), || place.waiting() == 6);
    assert!(!place.plan()["moves"].to_string().contains(r#""to":"web1""#), "{}", place.plan());
    for _ in 0..2 {
        let leader = place.host_of(1).expect("somebody leads").trim_start_matches("web").parse().unwrap();
        assert_ne!(leader, 1);
        place.fleet.kill(&owner(leader, 1));
        if place.fleet.is_running(&owner(5 - leader, 1)) {
            let follows = || place.host_of(1) == Some(format!("web{}", 5 - leader));
            wait_until_or("the other one leads", || place.fleet.logs(), follows);
        }
    }
    wait_until_or("nobody leads", || place.fleet.logs(), || place.host_of(1).is_none());
    let trees = place.fleet.lives_in_slot(1).len();
    std::thread::sleep(A_WHILE);
    assert_eq!(place.fleet.lives_in_slot(1).len(), trees, "a host that is held back starts nothing");
    assert!(place.fleet.logs().contains("paused on web1 by "), "{}", place.fleet.logs());

    let forced = place.ask(&["step-down", "--host", "web1", "--prefix", "queue/", "--for", "1h", "--force"]);
    forced.ended(0).tells("queue/4: web1-4 (term  … : the shard may have no leader");
    wait_until_or("it stops", || place.fleet.logs(), || place.host_of(4).is_none());
    let resumed = place.order(&["resume", "--host", "web1"]);
    assert!(resumed.starts_with("web1: resumed; it was held back by "), "{resumed}");
    assert_eq!(place.order(&["resume", "--host", "web1"]), "web1: not held back\n");
    wait_until_or("it leads again", || place.fleet.logs(), || place.host_of(1).as_deref() == Some("web1"));
    place.conclude(4);
}

/// Time is the subject: a candidate that would not obey has that long to do it.
const A_WHILE: std::time::Duration = std::time::Duration::from_secs(4);

on_two_stores!(a_host_is_emptied_and_leads_nothing_until_it_is_resumed);

/// As cron on two hosts runs it in the same minute.
#[test]
fn the_crontab_of_the_manual_spreads_them_and_only_the_host_that_does_it_prints_something() {
    let mut place = Place::local();
    place.lopsided(2, 4);
    let page = include_str!("../../man/leaderctl.1");
    let block = page.split(".Bd -literal").find(|block| block.contains("*/10 * * * * ")).expect("a crontab");
    let file = place.path("url");
    fs::write(&file, &place.url).unwrap();
    let block = block.replace("/etc/leaderrun/store", file.to_str().unwrap());
    let (name, value) = block.lines().find_map(|line| line.split_once('=')).expect("a setting");
    let line = block.lines().find_map(|line| line.strip_prefix("*/10 * * * * ")).expect("a line");
    let run = || {
        let mut shell = Command::new("sh");
        let programs = Path::new(env!("CARGO_BIN_EXE_leaderctl")).parent().unwrap();
        shell.args(["-c", line]).env_clear().env(name, value).env("LEADERRUN_CONFIG", "/dev/null");
        shell.env("PATH", format!("{}:/usr/bin:/bin", programs.display())).env("HOME", place.fleet.scratch.path());
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mail = |children: [Child; 2]| {
        let mails = children.map(|child| {
            let said = Said::from(child.wait_with_output().unwrap());
            assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", place.fleet.logs());
            said.out
        });
        mails.concat()
    };
    let told = mail([run(), run()]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "two moves and what came of them: {told}");
    assert!(lines[..2].iter().all(|line| line.contains(" stepped down; web")), "{told}");
    assert!(told.ends_with("before web1 leads 4 of 4, web2 none; now web1 leads 2 of 4, web2 2\n"), "{told}");
    assert_eq!(place.led(), BTreeMap::from([(1, 2), (2, 2)]));
    let again = place.order(&["balance", "queue/", "--dry-run"]);
    assert!(again.starts_with("even enough: web1 leads 2 of 4, web2 2\nqueue/"), "{again}");
    assert!(again.contains(": stays: it has had this leader for less than 1m\n"), "{again}");
    let even = place.object(&["balance", "queue/", "--json"]);
    assert_eq!((&even["result"], &even["moves"]), (&"even".into(), &serde_json::json!([])), "{even}");
    assert_eq!(mail([run(), run()]), "", "no mail where nothing is to be done");
    place.conclude(4);
}

#[test]
fn what_is_left_alone_is_told_and_shards_of_jobs_and_the_own_one_are_not_counted() {
    let mut place = Place::local();
    place.start_on(1, 1);
    place.start_on(1, 2);
    place.start_on_with(2, 3, &["--every", "1h"], &[]);
    place.start_on_with(1, 4, &["--slots", "2"], &[]);
    place.start_on_with(3, 4, &["--slots", "2"], &[]);
    place.start_on_with(2, 4, &["--slots", "2"], &[]);
    wait_until_or("all lead", || place.fleet.logs(), || place.led().values().sum::<u32>() == 5);
    place.order(&["pause", "queue/2", "--keep"]);
    let told = |shard: &str| -> Value {
        let mut plan = place.ctl(&["balance", "queue/", "--dry-run", "--json"]);
        plan.env("LEADERRUN_SHARD", shard).said().json()
    };
    let plan = told("other");
    let slots = ["queue/4#1", "queue/4#2"];
    let counted: u64 = plan["before"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(counted, 4, "{plan}");
    let left: BTreeMap<&str, &str> = plan["left_alone"]
        .as_array()
        .unwrap()
        .iter()
        .map(|left| (left["shard"].as_str().unwrap(), left["why"].as_str().unwrap()))
        .collect();
    assert_eq!(left.keys().copied().collect::<Vec<_>>(), [&["queue/1", "queue/2"][..], &slots].concat(), "{plan}");
    assert!(left["queue/2"].starts_with("paused by ") && left["queue/1"].contains("for less than 1m"), "{plan}");
    for (own, counted) in [("queue/1", 3), ("queue/4", 2)] {
        let plan = told(own);
        let before: u64 = plan["before"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(before, counted, "{own}: {plan}");
        assert!(!plan["left_alone"].to_string().contains(own), "{own}: {plan}");
    }
    place.order(&["resume", "queue/2"]);
    place.fleet.end_all();
}

#[cfg(feature = "dynamodb")]
#[test]
fn where_no_standby_announces_itself_it_says_what_to_set() {
    let mut place = Place::remote(Box::new(crate::support::dynamo::Server::durable()));
    for (host, shard) in [(1, 1), (1, 2), (1, 3), (2, 4)] {
        place.start_on_with(host, shard, &[], &[]);
    }
    wait_until_or("all are led", || place.fleet.logs(), || place.led() == BTreeMap::from([(1, 3), (2, 1)]));
    place.start_on_with(2, 1, &[], &[]);
    let said = place.ask(&["balance", "queue/"]).ended(0);
    said.tells(" they announce themselves only with leaderrun --announce always\n");
    let told = place.object(&["balance", "queue/", "--json"]);
    assert_eq!((&told["result"], &told["before"]["web1"]), (&"impossible".into(), &3.into()), "{told}");
    place.fleet.end_all();
}
