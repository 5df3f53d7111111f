//! Something else in the place of our files: it is named, at once and with little memory, and never waited for.

use super::*;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::os::unix::fs::symlink;

/// One that reads what it should not read runs out of memory instead.
fn within_memory(place: &Place, program: &str, words: &[&str]) -> Said {
    let mut command = Command::new("prlimit");
    command.args(["--as=1500000000", program, "--store", &place.url]).args(words);
    end_of(command.env("LEADERRUN_CONFIG", "/dev/null"))
}

fn run(place: &Place, flags: &[&str]) -> Said {
    within_memory(place, env!("CARGO_BIN_EXE_leaderrun"), &[&["-q"], flags, &["shard", "true"]].concat())
}

fn ctl(place: &Place, words: &[&str]) -> Said {
    within_memory(place, env!("CARGO_BIN_EXE_leaderctl"), words)
}

type Plant = fn(&Path);

const PLANTS: [(&str, Plant); 4] = [
    ("is larger than any file of leaderrun", |path| fs::File::create(path).unwrap().set_len(3 << 30).unwrap()),
    ("is not a regular file", |path| mkfifo(path, Mode::from_bits_truncate(0o644)).unwrap()),
    ("is not a regular file", |path| symlink("/dev/zero", path).unwrap()),
    ("is not a regular file", |path| fs::create_dir(path).unwrap()),
];

#[test]
fn in_place_of_the_record() {
    for (sign, plant) in PLANTS {
        let place = open_place();
        fs::create_dir(place.directory()).unwrap();
        plant(&place.directory().join("shard.json"));
        let expected = format!("{}/shard.json {sign}", place.directory().display());
        run(&place, &[]).refused(78, &expected);
        run(&place, &["-n"]).refused(78, &expected);
        ctl(&place, &["status", "shard"]).refused(78, &expected);
        let list = ctl(&place, &["list"]);
        list.ended(0).tells("another_program");
    }
}

#[test]
fn in_place_of_a_lock_or_a_note() {
    for (sign, plant) in PLANTS {
        for (name, verb) in [("shard.lock", "status"), ("shard+orders", "pause"), ("+lock", "pause")] {
            // How long a lock is does not matter.
            if sign.contains("larger") && name.ends_with("lock") {
                continue;
            }
            let place = open_place();
            fs::create_dir(place.directory()).unwrap();
            plant(&place.directory().join(name));
            let expected = format!("{}/{name} {sign}", place.directory().display());
            // A leader does without the notes that it cannot write.
            if name != "+lock" {
                run(&place, &[]).refused(78, &expected);
            }
            ctl(&place, &[verb, "shard"]).refused(78, &expected);
        }
    }
}

#[test]
fn in_place_of_drafts_it_is_removed_and_what_it_leads_to_stays_as_it_was() {
    for (_, plant) in &PLANTS[..2] {
        let place = open_place();
        fs::create_dir(place.directory()).unwrap();
        for name in ["shard.json.new", "+lock.new", "shard.lock.new"] {
            plant(&place.directory().join(name));
        }
        run(&place, &[]).good();
        ctl(&place, &["pause", "shard"]).good();
    }
    let place = open_place();
    fs::create_dir(place.directory()).unwrap();
    let precious = place.path("precious");
    fs::write(&precious, "precious").unwrap();
    for name in ["shard.json.new", "+lock.new", "shard.lock.new"] {
        symlink(&precious, place.directory().join(name)).unwrap();
    }
    run(&place, &[]).good();
    ctl(&place, &["pause", "shard"]).good();
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}

#[test]
fn beside_a_leader_it_keeps_nobody_from_leaving() {
    for name in ["shard.json", "shard+orders", "shard+history"] {
        let mut place = open_place();
        place.start("one", &[]);
        place.fleet.leader();
        let path = place.directory().join(name);
        let _ = fs::remove_file(&path);
        mkfifo(&path, Mode::from_bits_truncate(0o644)).unwrap();
        place.fleet.stop("one");
        place.fleet.conclude();
    }
}

#[test]
fn in_place_of_the_lock_of_a_leader_it_ends_the_leadership() {
    let mut place = open_place();
    place.start("one", &["--after-loss", "exit"]);
    place.fleet.leader();
    for name in ["shard.lock", "shard.json"] {
        let path = place.directory().join(name);
        fs::remove_file(&path).unwrap();
        mkfifo(&path, Mode::from_bits_truncate(0o644)).unwrap();
    }
    assert_eq!(place.fleet.end_of("one").code(), Some(79));
    place.fleet.conclude();
}

#[test]
fn forgetting_removes_drafts_as_well_and_no_directory_of_another() {
    let place = open_place();
    run(&place, &["--once", "job"]).good();
    for name in ["shard.json.new", "shard.lock.new", "shard.lock.old"] {
        fs::write(place.directory().join(name), "").unwrap();
    }
    ctl(&place, &["forget", "shard"]).good();
    let left: Vec<_> = fs::read_dir(place.directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["+lock"]);
    run(&place, &["--once", "job"]).good();
    let precious = place.directory().join("shard+backup");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("precious"), "").unwrap();
    let refused = ctl(&place, &["forget", "shard"]);
    assert!(refused.code == 78 && refused.err.contains("shard+backup"), "{refused:?}");
    assert!(precious.join("precious").exists());
}
