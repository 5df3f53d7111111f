//! What the stamps of a fault show: whether two trees were ever alive at once, and how long none was.
//!
//! The hazard: a check that sees too little passes. Between two stamps a tree may be alive but not scheduled. So a life
//! counts without gaps from its first stamp to its last, and one stamp of another term in between is an overlap. And if
//! nobody led, nothing was measured, and the verdict is not `Held`.

use crate::time::millis;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

/// From the first to the last stamp of one term's tree, on `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    pub owner: String,
    pub term: u64,
    pub first: u64,
    pub last: u64,
}

/// The file that every COMMAND writes to. It grows by 500 lines a second, so only its new part is read each time.
#[derive(Debug)]
pub struct Stamps {
    pub path: PathBuf,
    read: u64,
    lives: BTreeMap<(u64, String), Life>,
}

impl Stamps {
    pub fn new(path: PathBuf) -> io::Result<Self> {
        File::options().append(true).create(true).open(&path)?;
        Ok(Self { path, read: 0, lives: BTreeMap::new() })
    }

    /// In the order of their beginnings.
    pub fn lives(&mut self) -> io::Result<Vec<Life>> {
        let mut text = String::new();
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read))?;
        file.read_to_string(&mut text)?;
        for line in text.split_inclusive('\n').take_while(|line| line.ends_with('\n')) {
            self.read += line.len() as u64;
            self.take(line).ok_or_else(|| io::Error::other("another program wrote into the file of stamps"))?;
        }
        let mut lives: Vec<Life> = self.lives.values().cloned().collect();
        lives.sort_by_key(|life| life.first);
        Ok(lives)
    }

    /// `OWNER TERM PID BOOT_NANOSECONDS`
    fn take(&mut self, stamp: &str) -> Option<()> {
        let words: Vec<&str> = stamp.trim_end().split(' ').collect();
        let [owner, term, _, at] = words[..] else { return None };
        let (term, at) = (term.parse().ok()?, at.parse().ok()?);
        let life = Life { owner: owner.to_owned(), term, first: at, last: at };
        let life = self.lives.entry((term, owner.to_owned())).or_insert(life);
        life.first = life.first.min(at);
        life.last = life.last.max(at);
        Some(())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    pub terms: usize,
    pub terms_rise: bool,
    pub overlap: Duration,
    /// Processes of trees that outlived all candidates.
    pub orphans: usize,
    /// From the last stamp of each life to the first of the next.
    pub gaps: Vec<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Held,
    Failed(String),
    NotRun(String),
}

#[derive(Debug)]
pub enum TestError {
    /// Leaderrun did not do what it should.
    Failed(String),
    /// The fault is impossible here.
    Impossible(String),
    /// Nothing can be measured any more.
    System(io::Error),
}

impl From<io::Error> for TestError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Evidence {
    /// `lives` are in the order of their beginnings. What begins after `until` belongs to the end of the test, and does
    /// not count. Every term must be above `floor`, the highest of earlier faults.
    pub fn of(lives: &[Life], until: u64, orphans: usize, floor: u64) -> Self {
        let pairs = || lives.windows(2).map(|pair| (&pair[0], &pair[1]));
        let above = lives.first().is_none_or(|life| life.term > floor);
        let terms_rise = above && pairs().all(|(one, next)| one.term < next.term);
        let gaps = pairs().filter(|(_, next)| next.first <= until);
        let gaps = gaps.map(|(one, next)| Duration::from_nanos(next.first.saturating_sub(one.last))).collect();
        let terms = lives.iter().filter(|life| life.first <= until).count();
        Self { terms, terms_rise, overlap: overlap(lives), orphans, gaps }
    }

    /// The longest time without a tree. None if nobody took over.
    pub fn handover(&self) -> Option<Duration> {
        self.gaps.iter().max().copied()
    }

    /// What must hold after every fault, and does not.
    pub fn breach(&self) -> Option<String> {
        let breaches = [
            (!self.overlap.is_zero()).then(|| format!("two at once for {} ms", millis(self.overlap))),
            (!self.terms_rise).then(|| "terms do not rise".to_owned()),
            (self.orphans > 0).then(|| format!("{} processes are left", self.orphans)),
            (self.terms == 0).then(|| "nobody ever led".to_owned()),
        ];
        let breaches: Vec<String> = breaches.into_iter().flatten().collect();
        (!breaches.is_empty()).then(|| breaches.join("; "))
    }

    /// A breach outweighs how the fault went.
    pub fn judge(&self, told: Result<(), TestError>) -> io::Result<Verdict> {
        Ok(match (told, self.breach()) {
            (Err(TestError::System(error)), _) => return Err(error),
            (Err(TestError::Failed(message)), None) => Verdict::Failed(message),
            (Err(TestError::Failed(message)), Some(breach)) => Verdict::Failed(format!("{breach}; {message}")),
            (Err(TestError::Impossible(why)), None) => Verdict::NotRun(why),
            (_, Some(breach)) => Verdict::Failed(breach),
            (Ok(()), None) => Verdict::Held,
        })
    }
}

pub fn overlap(lives: &[Life]) -> Duration {
    let pairs =
        lives.iter().enumerate().flat_map(|(index, one)| lives[index + 1..].iter().map(move |other| (one, other)));
    pairs.map(|(one, other)| common(one, other)).sum()
}

pub fn common(one: &Life, other: &Life) -> Duration {
    let (begin, end) = (one.first.max(other.first), one.last.min(other.last));
    // A single stamp inside another life counts as a moment.
    if begin <= end { Duration::from_nanos((end - begin).max(1)) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// Lines in milliseconds, as COMMANDs write them.
    fn seen(lines: &[(&str, u64, u64)]) -> Vec<Life> {
        let scratch = tempfile::TempDir::new().unwrap();
        let mut stamps = Stamps::new(scratch.path().join("stamps")).unwrap();
        let mut file = File::options().append(true).open(&stamps.path).unwrap();
        for (owner, term, at) in lines {
            writeln!(file, "{owner} {term} 7 {}", at * 1_000_000).unwrap();
            stamps.lives().unwrap();
        }
        // Half a line is one that is still being written.
        write!(file, "a 9 7 1").unwrap();
        stamps.lives().unwrap()
    }

    fn judged(lines: &[(&str, u64, u64)], orphans: usize) -> Verdict {
        Evidence::of(&seen(lines), 100_000_000, orphans, 0).judge(Ok(())).unwrap()
    }

    fn failed(message: &str) -> Verdict {
        Verdict::Failed(message.to_owned())
    }

    #[test]
    fn two_trees_of_one_term_terms_that_fall_and_processes_that_are_left_fail() {
        assert_eq!(judged(&[("a", 2, 0), ("b", 2, 5)], 0), failed("terms do not rise"));
        assert_eq!(judged(&[("a", 2, 0), ("b", 1, 5)], 0), failed("terms do not rise"));
        assert_eq!(judged(&[("a", 2, 0)], 3), failed("3 processes are left"));
        assert_eq!(judged(&[], 0), failed("nobody ever led"));
        let after_term_7 = Evidence::of(&seen(&[("a", 7, 0)]), 100_000_000, 0, 7);
        assert_eq!(after_term_7.judge(Ok(())).unwrap(), failed("terms do not rise"));
    }

    #[test]
    fn a_breach_outweighs_what_could_not_be_run() {
        let breach = Evidence::of(&seen(&[("a", 1, 0), ("b", 2, 5), ("a", 1, 9)]), 100_000_000, 0, 0);
        let told = || Err(TestError::Impossible("no way".to_owned()));
        assert_eq!(breach.judge(told()).unwrap(), failed("two at once for 1 ms"));
        let late = Err(TestError::Failed("nobody took over".to_owned()));
        assert_eq!(breach.judge(late).unwrap(), failed("two at once for 1 ms; nobody took over"));
        // The first outlives the second, so the third is at once with one that is not its neighbour.
        let outlived = [("a", 1, 0), ("b", 2, 10), ("b", 2, 12), ("c", 3, 25), ("a", 1, 30), ("c", 3, 40)];
        assert_eq!(judged(&outlived, 0), failed("two at once for 7 ms"));
        let moment = Evidence::of(&seen(&[("a", 1, 0), ("a", 1, 10), ("b", 2, 10), ("b", 2, 12)]), 100_000_000, 0, 0);
        assert!(moment.breach().is_some(), "{moment:?}");
        let sound = Evidence::of(&seen(&[("a", 1, 0)]), 100_000_000, 0, 0);
        assert_eq!(sound.judge(told()).unwrap(), Verdict::NotRun("no way".to_owned()));
    }
}
