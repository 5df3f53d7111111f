//! What the checker itself sees.

use crate::support::evidence::{Evidence, median_and_worst};
use crate::support::fleet::Life;
use std::time::Duration;

const MS: u64 = 1_000_000;

fn life(term: u64, first: u64, last: u64) -> Life {
    Life { owner: "somebody".to_owned(), term, first: first * MS, last: last * MS }
}

#[test]
fn an_overlap_of_any_two_lives_is_a_breach() {
    // The first outlives the second, so the third overlaps with one that is not its neighbour.
    let evidence = Evidence::of(&[life(1, 0, 30), life(2, 10, 12), life(3, 25, 40)], 100 * MS, 0);
    assert_eq!(evidence.overlap, Duration::from_millis(2 + 5));
    assert_eq!(evidence.breach().unwrap(), "two at once for 7ms");
    let moment = Evidence::of(&[life(1, 0, 10), life(2, 10, 12)], 100 * MS, 0);
    assert!(moment.breach().is_some(), "{moment:?}");
}

#[test]
fn a_term_that_does_not_rise_and_a_process_that_is_left_are_breaches() {
    assert_eq!(Evidence::of(&[life(2, 0, 1), life(2, 2, 3)], 0, 0).breach().unwrap(), "terms do not rise");
    assert_eq!(Evidence::of(&[life(2, 0, 1)], 0, 3).breach().unwrap(), "3 processes are left");
    assert_eq!(Evidence::of(&[], 0, 0).breach().unwrap(), "nobody ever led");
}

#[test]
fn gaps_are_those_of_the_story_and_not_of_its_end() {
    let lives = [life(1, 0, 10), life(5, 14, 20), life(6, 22, 30), life(7, 31, 32)];
    let evidence = Evidence::of(&lives, 30 * MS, 0);
    assert_eq!(evidence.gaps, [4, 2].map(Duration::from_millis));
    assert_eq!(median_and_worst(&evidence.gaps), ("3".to_owned(), "4".to_owned()));
    assert_eq!(evidence.breach(), None);
}
