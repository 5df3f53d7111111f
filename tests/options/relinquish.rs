//! `--relinquish`: a leader hands over of itself, with real candidates and real stores. No two trees run at once, and
//! the shard is not left alone.

use crate::support::fleet::ANNOUNCED;
use crate::support::place::Place;
use crate::support::world::wall_clock;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TURNS: &[&str] = &["-vv", "--relinquish", "3s", "--lease", "60s"];

fn candidates_take_turns(mut place: Place) {
    for owner in ["c0", "c1", "c2"] {
        place.launch_with(owner, TURNS, &[ANNOUNCED]);
    }
    let first = place.fleet.leader();
    let second = place.fleet.leader_where(|life| life.term > first.term);
    assert_ne!(first.owner, second.owner, "{}", place.fleet.logs());
    let third = place.fleet.leader_where(|life| life.term > second.term);
    assert_ne!(second.owner, third.owner, "{}", place.fleet.logs());
    let history = place.order(&["history", "shard"]);
    assert!(history.contains("relinquished"), "{history}");
    let lives = place.fleet.conclude();
    assert!(lives.windows(2).all(|pair| pair[0].owner != pair[1].owner), "{lives:?}");
    let gap = Duration::from_nanos(third.first - lives.iter().find(|life| life.term == second.term).unwrap().last);
    assert!(gap < Duration::from_secs(30), "{gap:?}");
}

/// The hosts' clocks are at 45 seconds before midnight, and one of them is two seconds behind. A leadership younger than
/// thirty seconds ignores the schedule.
#[test]
fn at_a_time_of_the_schedule_it_hands_over_once() {
    let mut place = Place::local();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let to_midnight = i64::try_from(86_400 - now % 86_400).unwrap();
    for (owner, late) in [("c0", 0), ("c1", 2)] {
        let file = place.path(&format!("{owner}.clock"));
        fs::write(&file, (to_midnight - 45 - late).to_string()).unwrap();
        let environment = [("LD_PRELOAD", wall_clock()), ("WALLCLOCK_FILE", file.to_str().unwrap()), ("TZ", "UTC")];
        place.launch_with(owner, &["-vv", "--relinquish", "@daily"], &environment);
        if owner == "c0" {
            place.fleet.leader();
        }
    }
    let second = place.fleet.leader_where(|life| life.owner == "c1");
    std::thread::sleep(Duration::from_secs(5));
    let now = place.fleet.leader();
    assert_eq!((now.owner.as_str(), now.term), ("c1", second.term), "{}", place.fleet.logs());
    let lives = place.fleet.conclude();
    let first = Duration::from_nanos(lives[0].last - lives[0].first);
    assert!(first > Duration::from_secs(30) && first < Duration::from_mins(1), "{first:?}");
}

on_two_stores!(candidates_take_turns);
