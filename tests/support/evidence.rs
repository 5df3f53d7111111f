//! The evidence in the stamps of a story: whether two trees were ever alive at once, how long no tree was alive, and
//! which processes were left.
//!
//! The stamps are read, and overlaps found, in the same way as in `leaderctl selftest`.

use super::fleet::Life;
use super::note::note;
use leaderrun::internals::cli::leaderctl::selftest::evidence;
pub use leaderrun::internals::cli::leaderctl::selftest::evidence::common;
pub use leaderrun::internals::time::millis;
use std::fmt::Write as _;
use std::time::Duration;

/// What became of a story.
#[derive(Debug, Default)]
pub struct Evidence {
    pub lives: usize,
    /// How long two were alive at once, of all pairs together.
    pub overlap: Duration,
    /// Processes that outlived all the candidates.
    pub orphans: usize,
    /// From the last stamp of a life to the first of the next.
    pub gaps: Vec<Duration>,
    pub terms_rise: bool,
}

impl Evidence {
    /// Of lives in the order of their beginnings. A handover after `until` is the end of the test, and no gap.
    pub fn of(lives: &[Life], until: u64, orphans: usize) -> Self {
        let (overlap, gaps) = (evidence::overlap(lives), evidence::gaps(lives, until).collect());
        let terms_rise = evidence::terms_rise(lives);
        Self { lives: lives.len(), overlap, orphans, gaps, terms_rise }
    }

    /// Of two slots together.
    pub fn and(mut self, other: Self) -> Self {
        self.lives += other.lives;
        self.overlap += other.overlap;
        self.orphans += other.orphans;
        self.gaps.extend(other.gaps);
        self.terms_rise &= other.terms_rise;
        self
    }

    /// What must hold after every story. Says what does not.
    pub fn breach(&self) -> Option<String> {
        let mut breach = String::new();
        if self.lives == 0 {
            breach += "nobody ever led; ";
        }
        if !self.overlap.is_zero() {
            let _ = write!(breach, "two at once for {:?}; ", self.overlap);
        }
        if !self.terms_rise {
            breach += "terms do not rise; ";
        }
        if self.orphans > 0 {
            let _ = write!(breach, "{} processes are left; ", self.orphans);
        }
        (!breach.is_empty()).then(|| breach.trim_end_matches("; ").to_owned())
    }

    /// Notes `faults STORE FAULT LIVES OVERLAP_MS ORPHANS GAP_MEDIAN_MS GAP_WORST_MS`.
    pub fn publish(&self, store: &str, fault: &str) {
        let (median, worst) = median_and_worst(&self.gaps);
        let (lives, overlap, orphans) = (self.lives, millis(self.overlap), self.orphans);
        note(&format!("faults\t{store}\t{fault}\t{lives}\t{overlap}\t{orphans}\t{median}\t{worst}"));
    }
}

/// In milliseconds, and `-` where there is none.
pub fn median_and_worst(gaps: &[Duration]) -> (String, String) {
    let mut gaps = gaps.to_vec();
    gaps.sort();
    let Some(worst) = gaps.last() else { return ("-".to_owned(), "-".to_owned()) };
    let median = (gaps[(gaps.len() - 1) / 2] + gaps[gaps.len() / 2]) / 2;
    (millis(median).to_string(), millis(*worst).to_string())
}
