//! What is counted over a shard's history and its jobs, for metrics.
//!
//! The hazard: a history keeps its last entries only, and is read again and again. So each leadership is counted once,
//! by its term, and one that may yet get an end is not counted before its end is known.

use crate::lease::{JobId, Term};
use crate::notes::history::{End, Entry};
use crate::notes::jobs::Ledger;
use std::collections::BTreeMap;

/// Why leaderships end, in few words: each is a label of a metric of each shard.
pub const CAUSES: [&str; 4] = ["ended", "ordered", "failed", "lost"];

#[derive(Debug, Default)]
pub struct Tally {
    /// By the place in [`CAUSES`]. Leaderships that ended before the first reading do not count.
    pub ends: [u64; CAUSES.len()],
    /// The last term that was counted; None before the first reading.
    counted: Option<Term>,
    /// By the name of a job that runs once; None for the one that runs every period.
    pub jobs: BTreeMap<Option<JobId>, Job>,
}

/// The last run of a job. Times are milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Job {
    pub started: u64,
    pub ended: Option<u64>,
    pub status: Option<u8>,
    /// Of the last success; a failure that follows does not change it.
    pub succeeded: Option<u64>,
    pub due: Option<u64>,
    pub every: Option<u64>,
}

impl Tally {
    /// Counts what `history` has that it had not before. `is_final`: an end that is still missing will not come.
    pub fn count(&mut self, history: &[Entry], leads: Option<Term>, is_final: bool) {
        let first = self.counted.is_none();
        let mut counted = self.counted.unwrap_or(Term(0));
        for (index, entry) in history.iter().enumerate() {
            if entry.term <= counted && !first {
                continue;
            }
            if entry.ended.is_none() && leads == Some(entry.term) {
                break;
            }
            if entry.ended.is_none() && !is_final && index + 1 == history.len() {
                break;
            }
            counted = entry.term;
            if !first {
                self.ends[cause(entry.end())] += 1;
            }
        }
        self.counted = Some(counted);
    }

    pub fn take_in(&mut self, job: Option<JobId>, ledger: &Ledger) {
        let run = ledger.counting();
        let before = self.jobs.get(&job).and_then(|job| job.succeeded);
        let succeeded = if run.is_success() { run.to_millis.max(before) } else { before };
        let (due, every) = (ledger.due_millis, ledger.every_millis);
        let (started, ended) = (run.from_millis, run.to_millis);
        self.jobs.insert(job, Job { started, ended, status: run.status, succeeded, due, every });
    }
}

/// The place in [`CAUSES`] of an end that is known.
fn cause(end: Option<End>) -> usize {
    match end {
        Some(End::Succeeded | End::Asked | End::Relinquished) => 0,
        Some(End::Paused | End::SteppedDown) => 1,
        Some(End::Failed | End::Killed) => 2,
        None | Some(End::Lost | End::Crashed) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::history::CRASHED;

    fn entry(term: u64, ended: Option<&str>) -> Entry {
        Entry { to_millis: ended.map(|_| term), ended: ended.map(str::to_owned), ..Entry::example(term) }
    }

    #[test]
    fn each_end_counts_once_and_not_before_it_is_known() {
        let mut tally = Tally::default();
        tally.count(&[entry(1, Some("paused")), entry(2, None)], Some(Term(2)), true);
        assert_eq!(tally.ends, [0; 4], "it was there before");
        let later = [entry(2, Some("exited with 0")), entry(3, Some("stepped down")), entry(4, None)];
        tally.count(&later, None, false);
        tally.count(&later, None, false);
        assert_eq!(tally.ends, [1, 1, 0, 0], "term 4 may yet get an end");
        tally.count(&later, None, true);
        tally.count(&later, None, true);
        assert_eq!(tally.ends, [1, 1, 0, 1], "it crashed");
        tally.count(&[entry(5, Some("exited with 3")), entry(6, Some("lost: x"))], None, false);
        assert_eq!(tally.ends, [1, 1, 1, 2]);
        tally.count(&[entry(7, Some(CRASHED))], None, false);
        assert_eq!(tally.ends, [1, 1, 1, 3], "the release after its death tells of it");
    }
}
