//! The evidence in the stamps of a story is that of `leaderctl selftest`; and the table of docs/evidence.md that it goes to.

use super::note::note;
pub use leaderrun::internals::cli::leaderctl::selftest::evidence::{Evidence, common};
pub use leaderrun::internals::time::millis;
use std::time::Duration;

/// Notes `faults STORE FAULT LIVES OVERLAP_MS ORPHANS GAP_MEDIAN_MS GAP_WORST_MS`.
pub fn publish(Evidence { terms, overlap, orphans, gaps, .. }: &Evidence, store: &str, fault: &str) {
    let (median, worst) = median_and_worst(gaps);
    let overlap = millis(*overlap);
    note(&format!("faults\t{store}\t{fault}\t{terms}\t{overlap}\t{orphans}\t{median}\t{worst}"));
}

/// In milliseconds, and `-` where there is none.
pub fn median_and_worst(gaps: &[Duration]) -> (String, String) {
    let mut gaps = gaps.to_vec();
    gaps.sort();
    let Some(worst) = gaps.last() else { return ("-".to_owned(), "-".to_owned()) };
    let median = (gaps[(gaps.len() - 1) / 2] + gaps[gaps.len() / 2]) / 2;
    (millis(median).to_string(), millis(*worst).to_string())
}
