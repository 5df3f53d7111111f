//! What the checker itself sees.

use crate::support::evidence::Evidence;
use crate::support::fleet::Life;
use std::time::Duration;

const MS: u64 = 1_000_000;

fn life(term: u64, first: u64, last: u64) -> Life {
    Life { owner: "somebody".to_owned(), term, first: first * MS, last: last * MS }
}

#[test]
fn an_overlap_of_any_two_lives_is_a_breach() {
    // The first outlives the second, so the third overlaps with one that is not its neighbour.
    let evidence = Evidence::of(&[life(1, 0, 30), life(2, 10, 12), life(3, 25, 40)], 100 * MS, 0, 0);
    assert_eq!(evidence.overlap, Duration::from_millis(2 + 5));
    assert_eq!(evidence.breach().unwrap(), "two at once for 7 ms");
    let moment = Evidence::of(&[life(1, 0, 10), life(2, 10, 12)], 100 * MS, 0, 0);
    assert!(moment.breach().is_some(), "{moment:?}");
}
