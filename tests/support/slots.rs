//! Candidates of a shard with two slots: which one leads in each slot, and what must be true in each.

use super::evidence::{Evidence, common};
use super::fleet::{Fleet, Life};

pub const SLOTS: [u32; 2] = [1, 2];

/// Waits until a tree that fits is alive in a slot.
pub fn leader_of(fleet: &Fleet, slot: u32, fits: impl Fn(&Life) -> bool) -> Life {
    fleet.leader_in(&format!("stamps.{slot}"), fits)
}

pub fn leaders(fleet: &Fleet) -> [Life; 2] {
    SLOTS.map(|slot| leader_of(fleet, slot, |_| true))
}

pub fn successor(fleet: &Fleet, slot: u32, last: &Life) -> Life {
    leader_of(fleet, slot, |life| life.term > last.term)
}

pub fn conclude(fleet: &mut Fleet) -> [Vec<Life>; 2] {
    let (until, orphans) = fleet.end_all();
    let lives = SLOTS.map(|slot| fleet.lives_in_slot(slot));
    let [mut one, two] = [&lives[0], &lives[1]].map(|lives| Evidence::of(lives, until, orphans, 0));
    let breaches = [one.breach(), two.breach()];
    (one.terms, one.overlap) = (one.terms + two.terms, one.overlap + two.overlap);
    one.gaps.extend(two.gaps);
    fleet.publish(&one);
    let without = fleet.lives();
    assert!(without.is_empty() && orphans == 0, "{orphans} {without:?}\n{}", fleet.logs());
    assert!(!fleet.scratch.path().join("stamps.3").exists(), "{}", fleet.logs());
    assert_eq!(breaches, [None, None], "{lives:?}\n{}", fleet.logs());
    for one in &lives[0] {
        let twice = lives[1].iter().find(|other| one.owner == other.owner && !common(one, other).is_zero());
        assert!(twice.is_none(), "one candidate had two trees: {one:?} {twice:?}\n{}", fleet.logs());
    }
    lives
}
