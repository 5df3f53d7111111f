//! Leaders are spread over the hosts, with real candidates: six shards on three hosts, and what goes wrong meanwhile.
//! Whatever happens, no two trees of a shard run at once, and nobody is left.

use crate::support::evidence::Evidence;
use crate::support::prelude::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Child;

fn owner(host: u32, shard: u32) -> String {
    format!("web{host}-{shard}")
}

impl Place {
    fn start_on(&mut self, host: u32, shard: u32) {
        let mut command = leaderrun();
        command.args(["--owner", &owner(host, shard), "--host", &format!("web{host}"), "--store", &self.url]);
        command.args(TIMING).arg(format!("queue/{shard}")).arg("--").arg(stamp_program());
        command.arg(self.path(&format!("stamps.{shard}"))).arg("slowly");
        command.envs(self.environment.iter().copied()).envs([ANNOUNCED]);
        self.fleet.launch(&owner(host, shard), command);
    }

    /// Starts a candidate of each shard on each host. The first host leads all of them.
    fn lopsided(&mut self, hosts: u32, shards: u32) {
        (1..=shards).for_each(|shard| self.start_on(1, shard));
        self.wait_until("the first host leads", || self.led() == BTreeMap::from([(1, shards)]));
        for host in 2..=hosts {
            (1..=shards).for_each(|shard| self.start_on(host, shard));
        }
        self.age(shards);
        let waiting = u64::from((hosts - 1) * shards);
        let ready = || self.waiting() == waiting && self.plan()["left_alone"].as_array().unwrap().is_empty();
        wait_until_or("all may move", || format!("{}\n{}", self.plan(), self.fleet.logs()), ready);
    }

    /// Leaders are left alone for a minute, which is over then.
    fn age(&self, shards: u32) {
        for shard in 1..=shards {
            let record = self.path(&format!("store/queue={shard}.json"));
            let mut fields: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            let since = fields["since_millis"].as_u64().expect("milliseconds since 1970");
            fields["since_millis"] = (since - 60_000).into();
            fs::write(&record, fields.to_string()).unwrap();
        }
    }

    /// What the standbys of a host that is dead have announced ends after a minute, which is over then.
    fn age_standbys_of(&self, host: u32) {
        for path in fs::read_dir(self.path("store")).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            // Those that lead by now withdraw theirs meanwhile.
            let is_of_host = |text: String| text.contains(&format!("web{host}-"));
            if name.contains("+standby+") && fs::read_to_string(&path).is_ok_and(is_of_host) {
                let _ = fs::remove_file(path);
            }
        }
    }

    fn plan(&self) -> Value {
        self.object(&["balance", "queue/", "--dry-run", "--json"])
    }

    fn rows(&self) -> Vec<Value> {
        self.objects(&["list", "queue/", "--json"])
    }

    fn waiting(&self) -> u64 {
        self.rows().iter().filter_map(|row| row["standbys"].as_u64()).sum()
    }

    fn host_of(&self, shard: u32) -> Option<String> {
        let rows = self.rows();
        let row = rows.iter().find(|row| row["shard"] == format!("queue/{shard}"))?;
        row["host"].as_str().map(str::to_owned)
    }

    fn led(&self) -> BTreeMap<u32, u32> {
        let mut led = BTreeMap::new();
        for row in self.rows() {
            if let Some(host) = row["leader"]["host"].as_str().or(row["host"].as_str()) {
                *led.entry(host.trim_start_matches("web").parse().unwrap()).or_default() += 1;
            }
        }
        led
    }

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
    place.wait_until("the others lead", || {
        let led = place.led();
        !led.contains_key(&target) && led.values().sum::<u32>() == 6
    });
    place.age(6);
    place.age_standbys_of(target);
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

#[test]
fn one_that_is_interrupted_tells_of_the_move_that_it_began() {
    let mut place = Place::local();
    place.lopsided(2, 1);
    // It keeps its lease, and obeys nothing.
    place.fleet.signal(&owner(1, 1), Signal::SIGSTOP);
    let moves = place.ctl(&["step-down", "--host", "web1"]).spawn().unwrap();
    place.wait_until("it is ordered", || !place.rows()[0]["handover"].is_null());
    kill(Pid::from_raw(moves.id().cast_signed()), Signal::SIGINT).unwrap();
    let stopped = Said::from(moves.wait_with_output().unwrap());
    stopped.ended(75).tells("asked it to stop; a move that has begun goes on; 0 moves were made; web1 stays held back");
    place.fleet.signal(&owner(1, 1), Signal::SIGCONT);
    place.wait_until("it moves", || place.led() == BTreeMap::from([(2, 1)]));
    place.conclude(1);
}

#[cfg(feature = "redis")]
#[test]
fn a_host_is_emptied_and_leads_nothing_until_it_is_resumed() {
    let mut place = Place::remote(Box::new(crate::support::redis::Server::start()));
    (1..=4).for_each(|shard| place.start_on(1, shard));
    place.wait_until("the first host leads", || place.led() == BTreeMap::from([(1, 4)]));
    for (host, shard) in [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)] {
        place.start_on(host, shard);
    }
    place.wait_until("they stand by", || place.waiting() == 6);
    // A host whose name is mistyped may have no candidate yet, so this is no error.
    let mistyped = place.ask(&["step-down", "--host", "wbe1", "--for", "1h"]).ended(0);
    assert_eq!(mistyped.err, "leaderctl: no candidate of wbe1 is known; did you mean web1?\n");
    let elsewhere = place.ask(&["step-down", "--host", "web2", "--prefix", "other/", "--for", "1h"]).ended(0);
    assert!(
        elsewhere
            .err
            .starts_with("leaderctl: no candidate of web2 is known for a shard whose name begins with \"other/\"; "),
        "{elsewhere:?}"
    );
    // What another operator needs for longer stays.
    let shorter = place.ask(&["step-down", "--host", "web2", "--prefix", "other/", "--for", "1m"]).ended(0);
    assert!(shorter.err.contains(" already holds it back for "), "{shorter:?}");
    assert!(!shorter.out.contains("held back for 1m"), "{shorter:?}");
    place.order(&["resume", "--host", "web2"]);

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
    place.wait_until("it stands by", || place.waiting() == 6);
    assert!(!place.plan()["moves"].to_string().contains(r#""to":"web1""#), "{}", place.plan());
    for _ in 0..2 {
        let leader = place.host_of(1).expect("somebody leads").trim_start_matches("web").parse().unwrap();
        assert_ne!(leader, 1);
        place.fleet.kill(&owner(leader, 1));
        if place.fleet.is_running(&owner(5 - leader, 1)) {
            let follows = || place.host_of(1) == Some(format!("web{}", 5 - leader));
            place.wait_until("the other one leads", follows);
        }
    }
    place.wait_until("nobody leads", || place.host_of(1).is_none());
    let trees = place.fleet.lives_in_slot(1).len();
    std::thread::sleep(A_WHILE);
    assert_eq!(place.fleet.lives_in_slot(1).len(), trees, "a host that is held back starts nothing");
    assert!(place.fleet.logs().contains("paused on web1 by "), "{}", place.fleet.logs());

    let forced = place.ask(&["step-down", "--host", "web1", "--prefix", "queue/", "--for", "1h", "--force"]);
    forced.ended(0).tells("queue/4: web1-4 (term  … : the shard may have no leader");
    place.wait_until("it stops", || place.host_of(4).is_none());
    let resumed = place.order(&["resume", "--host", "web1"]);
    assert!(resumed.starts_with("web1: resumed; it was held back by "), "{resumed}");
    assert_eq!(place.order(&["resume", "--host", "web1"]), "web1: not held back\n");
    place.wait_until("it leads again", || place.host_of(1).as_deref() == Some("web1"));
    place.conclude(4);
}

#[cfg(feature = "redis")]
/// Time is the subject: a candidate that would not obey has that long to do it.
const A_WHILE: std::time::Duration = std::time::Duration::from_secs(4);
