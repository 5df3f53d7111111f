//! `--relinquish`: a leader hands over of itself, with real candidates and real stores. No two trees run at once, and
//! the shard is not left alone.

use crate::support::prelude::*;

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

on_two_stores!(candidates_take_turns);
