//! Counters over a shard's history and its jobs, for metrics.
//!
//! The hazard: a history keeps only its last entries, and is read again and again. So each leadership is counted once,
//! by its term, and not while it may yet get an end.

use crate::election::Reason;
use crate::lease::{JobId, Term};
use crate::notes::history::Entry;
use crate::notes::jobs::index::Indexed;
use crate::notes::jobs::period::Turn;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Counters {
    /// By the place in [`Reason::ALL`]. Without ends before the first reading, or for reasons of later versions.
    pub ends: [u64; Reason::ALL.len()],
    /// The last counted term. None before the first reading.
    counted: Option<Term>,
    /// None: the job with a period.
    pub jobs: BTreeMap<Option<JobId>, Job>,
}

#[derive(Debug)]
pub struct Job {
    pub last: Indexed,
    pub period: Option<Turn>,
    /// The end of the last success, in milliseconds since 1970.
    pub succeeded: Option<u64>,
}

impl Counters {
    /// Counts what is new in `history`. `is_final`: an end that is still missing will not come.
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
                // A leader without a recorded end crashed with its host, or was cut off.
                let reason = if entry.ended.is_none() { Some(Reason::Lost) } else { entry.known_reason() };
                let place = Reason::ALL.iter().position(|&known| Some(known) == reason);
                if let Some(place) = place {
                    self.ends[place] += 1;
                }
            }
        }
        self.counted = Some(counted);
    }

    pub fn take_in(&mut self, last: Indexed, period: Option<Turn>) {
        let name = last.job.once().cloned();
        let before = self.jobs.get(&name).and_then(|job| job.succeeded);
        let succeeded = if last.status == Some(0) { last.to_millis.max(before) } else { before };
        self.jobs.insert(name, Job { last, period, succeeded });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::{CommandEnd, Ended, Loss};

    fn entry(term: u64, ended: Option<&Ended>) -> Entry {
        let mut entry = Entry::example(term);
        if let Some(how) = ended {
            entry.close(term, how, None);
        }
        entry
    }

    fn ends(counters: &Counters) -> Vec<(&'static str, u64)> {
        let counts = Reason::ALL.iter().zip(counters.ends);
        counts.filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.into_str(), count)).collect()
    }

    #[test]
    fn each_end_counts_once_and_not_before_it_is_known() {
        let mut counters = Counters::default();
        counters.count(&[entry(1, Some(&Ended::Paused)), entry(2, None)], Some(Term(2)), true);
        assert_eq!(ends(&counters), [], "it was there before");
        let exited = |status| Ended::ByItself(CommandEnd::Exited(status));
        let later = [entry(2, Some(&exited(0))), entry(3, Some(&Ended::SteppedDown)), entry(4, None)];
        counters.count(&later, None, false);
        counters.count(&later, None, false);
        assert_eq!(ends(&counters), [("stepped-down", 1), ("ended", 1)], "term 4 may yet get an end");
        counters.count(&later, None, true);
        counters.count(&later, None, true);
        assert_eq!(ends(&counters), [("stepped-down", 1), ("lost", 1), ("ended", 1)], "it crashed");
        let lost = Ended::Lost(Loss::DeadlinePassed);
        counters.count(&[entry(5, Some(&exited(3))), entry(6, Some(&lost))], None, false);
        assert_eq!(ends(&counters), [("stepped-down", 1), ("lost", 2), ("ended", 2)]);
        let mut killed = entry(7, None);
        killed.close_killed(7);
        let mut unknown = entry(8, Some(&lost));
        unknown.reason = Some("melted".to_owned());
        counters.count(&[killed, unknown], None, false);
        assert_eq!(ends(&counters), [("stepped-down", 1), ("lost", 2), ("killed", 1), ("ended", 2)]);
    }
}
