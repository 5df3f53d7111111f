//! Users who may not write the directory disturb nobody: they get no lock that counts and no name that counts.

use super::*;

#[test]
fn a_stranger_gets_no_hold_on_any_file_of_ours() {
    let place = open_place();
    place.run(&[], &["true"]).good();
    end_of(&mut place.ctl(&["pause", "shard"])).good();
    end_of(&mut place.ctl(&["resume", "shard"])).good();
    // An administrator may open the directory to strangers.
    set_mode(&place.directory(), 0o755);
    let files: Vec<String> = fs::read_dir(place.directory())
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .collect();
    assert!(files.len() > 2, "{files:?}");
    let mut stranger = Stranger::does(["lock"].into_iter().chain(files.iter().map(String::as_str)));
    for file in &files {
        assert_eq!(stranger.says(), "refused: Permission denied", "{file}");
    }
    place.run(&["-n"], &["true"]).good();
}

#[test]
fn a_read_lock_on_a_file_that_everybody_may_read_keeps_nobody_from_leading() {
    let place = open_place();
    lay_out_readable(&place);
    place.run(&[], &["true"]).good();
    lay_out_again(&place, "shard.lock");
    let lock = place.directory().join("shard.lock");
    let mut stranger = Stranger::does(["lock", lock.to_str().unwrap()]);
    assert_eq!(stranger.says(), "locked");
    let status = end_of(&mut place.ctl(&["status", "--json", "shard"]));
    assert!(status.out.contains("\"held\":false"), "{status:?}");
    place.run(&["-n"], &["true"]).good();
    assert_eq!(mode_of(&lock), 0o600);
}

/// As a backup may leave it behind.
fn lay_out_again(place: &Place, name: &str) {
    let path = place.directory().join(name);
    let _ = fs::remove_file(&path);
    fs::write(&path, "").unwrap();
    set_mode(&path, 0o644);
}

#[test]
fn a_standby_follows_though_a_stranger_gets_the_lock_in_between() {
    let mut place = open_place();
    lay_out_readable(&place);
    let lock = place.directory().join("shard.lock");
    // It has the file open from before somebody of us came.
    let mut stranger = Stranger::does(["open", lock.to_str().unwrap()]);
    assert_eq!(stranger.says(), "open");
    place.start("one", &[]);
    let leader = place.fleet.leader();
    stranger.goes_on();
    assert_eq!(stranger.says(), "waits");
    // Those who wait are served in their order.
    wait_until("the stranger sleeps", || is_waiting_for_a_lock(&stranger));
    place.start("two", &[]);
    place.fleet.stop("one");
    place.fleet.leader_where(|life| life.term > leader.term);
    drop(stranger);
    place.fleet.conclude();
}

fn is_waiting_for_a_lock(stranger: &Stranger) -> bool {
    let table = fs::read_to_string("/proc/locks").unwrap();
    let pid = stranger.child.id().to_string();
    table.lines().any(|line| line.contains("->") && line.split_whitespace().any(|word| word == pid))
}

#[test]
fn a_stranger_on_the_names_of_a_leader_keeps_nobody_from_leading_or_leaving() {
    let mut place = open_place();
    place.start("one", &[]);
    place.fleet.leader();
    let seats = seats_of(place.fleet.pid("one").as_raw());
    assert!(!seats.is_empty());
    place.fleet.stop("one");
    let _stranger = Stranger::fills("squat", &seats);
    place.run(&["-n"], &["true"]).good();
    place.start("two", &[]);
    place.fleet.leader_where(|life| life.owner == "two");
    place.fleet.stop("two");
    place.fleet.conclude();
}

#[test]
fn a_candidate_that_waits_for_a_leader_whose_sockets_are_flooded_leaves_when_it_is_asked_to() {
    let mut place = open_place();
    // Nothing is renewed for as long as this lasts, so the leader does not notice.
    place.fleet.start("one", &["--store", &place.url, "--lease", "2h", "--renew", "1h"], &[], &[]);
    let leader = place.fleet.leader();
    let seats = seats_of(place.fleet.pid("one").as_raw());
    let _stranger = Stranger::fills("flood", &seats);
    fs::remove_dir_all(place.directory()).unwrap();
    let ran = place.run(&["-n"], &["true"]);
    assert!(ran.code == 75 && ran.err.contains("not started: "), "{ran:?}");
    let mut waiting =
        Process::start(leaderrun().args(["--store", &place.url, "-v", "shard", "true"]).stderr(Stdio::piped()));
    let mut log = BufReader::new(waiting.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waiting") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended");
    }
    waiting.signal(Signal::SIGTERM);
    assert_eq!(waiting.ends().code(), Some(143));
    assert_eq!(place.fleet.leader().term, leader.term);
    place.fleet.conclude();
}

#[test]
fn a_stranger_who_asks_how_things_stand_is_denied_in_one_line() {
    let place = open_place();
    let is_denied = |verb: &[&str], why: &str| {
        let (_programs, mut command) = as_nobody(env!("CARGO_BIN_EXE_leaderctl"));
        end_of(command.args(["--store", &place.url]).args(verb)).refused(77, why);
    };
    for verb in [&["status", "shard"][..], &["list"]] {
        is_denied(verb, "cannot create the directory");
    }
    place.run(&[], &["true"]).good();
    for mode in [0o700, 0o755] {
        set_mode(&place.directory(), mode);
        for verb in [&["status", "shard"][..], &["list"], &["history", "shard"]] {
            is_denied(verb, "permission denied");
        }
    }
}
