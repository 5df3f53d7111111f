//! The snapshot of all shards of a store, which `serve` and `top` keep and show.
//!
//! The hazard: a snapshot outlives the store's answers. So it says when it was read, and since when the store has not
//! answered. Then it shows what was last known, and never turns silence into "nobody leads".

pub mod reader;

use super::prelude::*;
use crate::election::Reason;
use crate::lease::JobId;
use crate::notes::history::Entry;
use crate::notes::jobs::index::Indexed;
use crate::notes::jobs::period::Turn;
use parking_lot::Mutex;
use std::collections::HashMap;

/// A leader is late once it has used more of its lease than this since its last renewal.
const LATE: f64 = 0.6;

/// The most hosts that have a number. Containers may have a new name each time.
const MOST_HOSTS: usize = 4096;

pub type Fleet = Mutex<Snapshot>;

#[derive(Debug, Default)]
pub struct Snapshot {
    pub shards: BTreeMap<Shard, Seen>,
    pub reading: Option<Reading>,
    /// Some while the store does not answer.
    pub trouble: Option<Trouble>,
    pub errors: HashMap<ErrorKind, u64>,
    pub readings: u64,
    /// A number for each host, in the order in which they were seen.
    hosts_seen: HashMap<String, usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub at: BootInstant,
    pub at_millis: u64,
    pub took: Duration,
}

#[derive(Clone, Debug)]
pub struct Trouble {
    pub since: BootInstant,
    pub since_millis: u64,
    pub message: String,
}

#[derive(Debug, Default)]
pub struct Seen {
    pub shown: Shown,
    pub history: Vec<Entry>,
    /// Milliseconds since 1970: since when nobody leads, if known.
    pub free_since: Option<u64>,
    pub counters: Counters,
    /// When the lease was last seen to change. None: not since the first reading.
    changed: Option<BootInstant>,
    noted: Option<BootInstant>,
}

/// In the order of urgency. The name is also a class of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::VariantArray)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Condition {
    Led,
    Idle,
    #[strum(serialize = "no_standby")]
    Alone,
    /// Nobody leads or waits: the last COMMAND has ended.
    Free,
    Paused,
    Failed,
    Late,
    /// Nobody leads, although the shard should have a leader.
    #[strum(serialize = "no_leader")]
    Leaderless,
}

impl Condition {
    pub fn word(self) -> String {
        self.into_str().replace('_', " ")
    }

    pub fn needs_attention(self) -> bool {
        self >= Self::Failed
    }
}

impl Seen {
    pub fn holder(&self) -> Option<&Holder> {
        self.shown.report.holder.as_ref()
    }

    /// The term of the leader.
    pub fn leads(&self) -> Option<Term> {
        self.holder().and_then(|holder| holder.term)
    }

    /// The same, or the last one.
    pub fn term(&self) -> Option<Term> {
        self.leads().or(self.shown.report.last_term)
    }

    pub fn is_called(&self, shard: &Shard, words: &str) -> bool {
        let words = words.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&words);
        let of_holder = |holder: &Holder| has(&holder.owner) || holder.host.as_deref().is_some_and(has);
        has(shard.as_str()) || self.holder().is_some_and(of_holder)
    }

    fn last_run_failed(&self) -> bool {
        let Shown { ledger, jobs, report, .. } = &self.shown;
        let periodic = ledger.as_ref().map(Indexed::of_period);
        let last = periodic.iter().chain(jobs).max_by_key(|job| job.from_millis);
        last.is_some_and(|job| job.status != Some(0) && !report.leads(job.term))
    }

    fn is_told(&self) -> bool {
        let Shown { report, .. } = &self.shown;
        let term = report.holder.as_ref().map_or(report.last_term, |holder| holder.term);
        term.is_none_or(|term| self.history.last().is_some_and(|entry| entry.term >= term))
    }

    pub fn condition(&self) -> Condition {
        if let Some(holder) = self.holder() {
            return match (lateness(holder), self.shown.standbys) {
                (Some(late), _) if late > LATE => Condition::Late,
                _ if self.shown.is_paused() => Condition::Paused,
                (_, Some(0)) if !self.shown.is_job() => Condition::Alone,
                _ => Condition::Led,
            };
        }
        if self.shown.is_paused() {
            return Condition::Paused;
        }
        if self.shown.is_job() {
            return if self.last_run_failed() { Condition::Failed } else { Condition::Idle };
        }
        let crashed = self.history.last().is_some_and(|last| {
            let reason = last.known_reason();
            last.ended.is_none() || matches!(reason, Some(Reason::Lost | Reason::Revoked | Reason::Killed))
        });
        let waited_for = self.shown.standbys.is_some_and(|count| count > 0);
        if crashed || waited_for { Condition::Leaderless } else { Condition::Free }
    }

    /// By some host's clock.
    pub fn since(&self) -> Option<u64> {
        self.holder().map_or(self.free_since, |holder| holder.since_millis)
    }
}

/// The part of its lease that a leader has used since its last renewal, up to 1. None where leases do not expire.
pub fn lateness(holder: &Holder) -> Option<f64> {
    let (ago, left) = (holder.renewed_ago?.as_secs_f64(), holder.expires_in?.as_secs_f64());
    (ago + left > 0.0).then(|| ago / (ago + left))
}

/// Counters over a shard's history and its jobs, for metrics.
///
/// The hazard: a history keeps only its last entries, and is read again and again. So each leadership is counted once,
/// by its term, and not while it may yet get an end.
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
        let before = self.counted;
        let mut counted = before.unwrap_or(Term(0));
        for (index, entry) in history.iter().enumerate() {
            if before.is_some() && entry.term <= counted {
                continue;
            }
            let may_end = leads == Some(entry.term) || !is_final && index + 1 == history.len();
            if entry.ended.is_none() && may_end {
                break;
            }
            counted = entry.term;
            // A leader without a recorded end crashed with its host, or was cut off.
            let reason = if entry.ended.is_none() { Some(Reason::Lost) } else { entry.known_reason() };
            let place = Reason::ALL.iter().position(|&known| Some(known) == reason);
            if let Some(place) = place.filter(|_| before.is_some()) {
                self.ends[place] += 1;
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

impl Snapshot {
    fn count(&mut self, kind: ErrorKind) {
        *self.errors.entry(kind).or_default() += 1;
    }

    pub fn fail(&mut self, error: &StoreError) {
        self.count(error.kind);
        let trouble = self.trouble.get_or_insert_with(|| Trouble {
            since: BootInstant::now(),
            since_millis: wall_clock_millis(),
            message: String::new(),
        });
        trouble.message.clone_from(&error.message);
    }

    fn see_hosts(&mut self, shard: &Shard) {
        let Some(seen) = self.shards.get(shard) else { return };
        let led = seen.holder().and_then(|holder| holder.host.as_deref());
        for host in seen.history.iter().map(|entry| entry.host.as_str()).chain(led) {
            let number = self.hosts_seen.len();
            if number < MOST_HOSTS && !self.hosts_seen.contains_key(host) {
                self.hosts_seen.insert(host.to_owned(), number);
            }
        }
    }

    /// A host keeps its number as long as this process runs.
    pub fn number_of(&self, host: &str) -> usize {
        self.hosts_seen.get(host).copied().unwrap_or_default()
    }

    pub fn hosts(&self) -> BTreeMap<&str, Vec<&Shard>> {
        let mut hosts: BTreeMap<&str, Vec<&Shard>> = BTreeMap::new();
        for (shard, seen) in &self.shards {
            if let Some(holder) = seen.holder() {
                hosts.entry(holder.host.as_deref().unwrap_or("?")).or_default().push(shard);
            }
        }
        hosts
    }

    pub fn counts(&self) -> BTreeMap<Condition, usize> {
        let mut counts = BTreeMap::new();
        for seen in self.shards.values() {
            *counts.entry(seen.condition()).or_insert(0) += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::{CommandEnd, Ended, Loss};
    use crate::store::Report;

    fn led(renewed_ago: u64, expires_in: u64) -> Holder {
        let [renewed_ago, expires_in] = [renewed_ago, expires_in].map(|seconds| Some(Duration::from_secs(seconds)));
        Holder { term: Some(Term(7)), renewed_ago, expires_in, ..Holder::default() }
    }

    fn condition(holder: Option<Holder>, standbys: usize, last: Option<Entry>) -> Condition {
        let report = Report { holder, last_term: None };
        let shown = Shown { report, standbys: Some(standbys), ..Shown::default() };
        Seen { shown, history: last.into_iter().collect(), ..Seen::default() }.condition()
    }

    #[test]
    fn the_first_word_of_a_status_follows_from_lease_standbys_and_history() {
        assert_eq!(condition(Some(led(5, 10)), 1, None), Condition::Led);
        assert_eq!(condition(Some(led(5, 10)), 0, None), Condition::Alone);
        assert_eq!(condition(Some(led(10, 5)), 1, None), Condition::Late);
        let ended = |how: &Ended| {
            let mut entry = Entry::example(6);
            entry.close(2, how, None);
            Some(entry)
        };
        let mut killed = Entry::example(6);
        killed.close_killed(2);
        let (good, lost) = (Ended::ByItself(CommandEnd::Exited(0)), Ended::Lost(Loss::DeadlinePassed));
        assert_eq!(condition(None, 0, ended(&good)), Condition::Free);
        assert_eq!(condition(None, 1, ended(&good)), Condition::Leaderless);
        assert_eq!(condition(None, 0, ended(&lost)), Condition::Leaderless);
        assert_eq!(condition(None, 0, Some(Entry::example(6))), Condition::Leaderless);
        assert_eq!(condition(None, 0, Some(killed)), Condition::Leaderless);
    }

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
