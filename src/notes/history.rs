//! The history of a shard's last leaderships: a note beside the lease that answers "what happened last night?".
//!
//! The hazard: writing the history must never delay an election or make it fail. So the driver writes it in a task of
//! its own, in bounded time, and an entry that could not be written is missing. A leadership that has a successor but
//! no end stopped without a word: its host crashed, or was cut off from the store.
//!
//! Operators write, too: who ordered that a leadership ends. The leader does not know of that when it writes its entry
//! again, so what operators wrote is kept. An order may be taken back, or come too late: it explains an end only if the
//! end is of its kind.

use super::orders::operator;
use super::update::{Edit, Start, update};
use crate::election::Ended;
use crate::lease::{Candidate, JobId, Shard, Term};
use crate::mutex::Mutex;
use crate::store::{Note, Notes, Page, StoreError, notes};
use crate::text::on_one_line;
use crate::time::wall_clock_millis;
use serde::{Deserialize, Serialize};

/// How many leaderships the history keeps unless more are asked for. It keeps fewer where their names are long.
pub const USUAL: usize = 16;
/// The most that may be asked for.
pub const MOST: usize = 200;
/// The most bytes of a history for which more than the usual leaderships were asked. Every store takes a note of this
/// length, and a leader writes it twice in a leadership.
const LONGEST: usize = 32 * 1024;
/// The most letters of how a leadership ended.
const LONGEST_END: usize = 200;
/// The most letters of an operator's reason, and of a name.
const LONGEST_REASON: usize = 100;

/// One leadership. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub term: Term,
    pub owner: String,
    pub host: String,
    pub pid: u32,
    /// Milliseconds since 1970, by the leader's own clock.
    pub from_millis: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_millis: Option<u64>,
    /// None while the leadership lasts, or where nobody could say how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The last order of an operator that this leadership ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<Ordered>,
    /// The name of the job that ran once, if it was one: its run has a page of its own, which nobody could list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// An operator's order that a leadership ends. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    /// One of [`PAUSE`], [`STEP_DOWN`] and [`REVOKE`], or a word of a later version.
    pub what: String,
    pub by: String,
    /// Milliseconds since 1970, by the clock of the operator's host.
    pub at_millis: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who was to lead next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

pub const PAUSE: &str = "pause";
pub const STEP_DOWN: &str = "step-down";
pub const REVOKE: &str = "revoke";

impl Ordered {
    /// A new order of the operator who runs this process.
    #[must_use]
    pub fn now(what: &str, reason: Option<&str>, to: Option<&str>) -> Self {
        let short = |text: &str| text.chars().take(LONGEST_REASON).collect();
        let (reason, to) = (reason.map(short), to.map(short));
        Self { what: what.to_owned(), by: operator(), at_millis: wall_clock_millis(), reason, to }
    }

    /// Whether it can be the cause of such an end.
    fn explains(&self, end: End) -> bool {
        match self.what.as_str() {
            PAUSE => end == End::Paused,
            STEP_DOWN => end == End::SteppedDown,
            REVOKE => end == End::Lost,
            _ => false,
        }
    }
}

/// How a leadership ended whose candidate was killed. The orphan release writes this.
pub const CRASHED: &str = "leaderrun was killed";

/// The kind of an end. An entry has it in words, which [`Ended`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// COMMAND exited with 0.
    Succeeded,
    /// COMMAND failed, was not started, or did not pass its health check. Words that this version does not know count
    /// as this, too.
    Failed,
    /// A signal ended COMMAND, or it ran for too long.
    Killed,
    /// A signal asked leaderrun to stop.
    Asked,
    Paused,
    SteppedDown,
    Relinquished,
    Lost,
    Crashed,
}

impl End {
    fn of(words: &str) -> Self {
        let is = |end: &Ended| words == end.to_string();
        match words {
            CRASHED => Self::Crashed,
            "exited with 0" => Self::Succeeded,
            _ if is(&Ended::Paused) => Self::Paused,
            _ if is(&Ended::SteppedDown) => Self::SteppedDown,
            _ if is(&Ended::Relinquished) => Self::Relinquished,
            _ if is(&Ended::Overran) || words.starts_with("ended by signal ") => Self::Killed,
            _ if words.starts_with("stopped on signal ") => Self::Asked,
            _ if words.starts_with("lost: ") => Self::Lost,
            _ => Self::Failed,
        }
    }
}

impl Entry {
    /// None if no end is recorded.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.ended.as_deref().map(End::of)
    }

    /// The order that ended this leadership.
    #[must_use]
    pub fn cause(&self) -> Option<&Ordered> {
        let end = self.end()?;
        self.ordered.as_ref().filter(|ordered| ordered.explains(end))
    }
}

#[cfg(test)]
impl Entry {
    pub(crate) fn example(term: u64) -> Self {
        let (owner, host) = ("me".to_owned(), "db1".to_owned());
        let (to_millis, ended, ordered, job) = (None, None, None, None);
        Self { term: Term(term), owner, host, pid: 7, from_millis: 1, to_millis, ended, ordered, job }
    }
}

/// The history, oldest leadership first.
///
/// # Errors
/// As [`Notes::read`]; misconfigured where another program wrote the note.
pub async fn read<S: Notes + ?Sized>(store: &S, shard: &Shard) -> Result<Vec<Entry>, StoreError> {
    entries(store.read(shard, &Page::History).await?.as_ref()).map_err(|error| foreign(shard, &error))
}

fn entries(note: Option<&Note>) -> serde_json::Result<Vec<Entry>> {
    note.map_or(Ok(Vec::new()), |note| serde_json::from_str(&note.text))
}

/// Records how `term` ended, on behalf of another process than its leader.
pub async fn close<S: Notes + ?Sized>(store: &S, shard: &Shard, term: Term, how: &str) -> Result<(), StoreError> {
    update(store, shard, &Page::History, "history", Start::Read, |standing| {
        let Ok(history) = entries(standing) else { return Ok(Edit::Leave(())) };
        let open = history.iter().find(|entry| entry.term == term && entry.ended.is_none());
        let Some(mut entry) = open.cloned() else { return Ok(Edit::Leave(())) };
        entry.to_millis = Some(wall_clock_millis());
        entry.ended = Some(how.to_owned());
        Ok(Edit::Replace(Some(Note::for_ever(with_entry(history, &entry, MOST))), ()))
    })
    .await
}

/// Records who ordered that `term` ends. False if the history does not have that leadership, or not yet.
///
/// # Errors
/// As [`Notes::replace`]; misconfigured where another program wrote the note.
pub async fn order<S: Notes + ?Sized>(
    store: &S,
    shard: &Shard,
    term: Term,
    ordered: &Ordered,
) -> Result<bool, StoreError> {
    update(store, shard, &Page::History, "history", Start::Read, |standing| {
        let history = entries(standing).map_err(|error| foreign(shard, &error))?;
        let Some(entry) = history.iter().find(|entry| entry.term == term) else { return Ok(Edit::Leave(false)) };
        let entry = Entry { ordered: Some(ordered.clone()), ..entry.clone() };
        Ok(Edit::Replace(Some(Note::for_ever(with_entry(history, &entry, MOST))), true))
    })
    .await
}

/// Writes one candidate's part of the history.
#[derive(Debug)]
pub struct History {
    /// How many leaderships it keeps.
    keep: usize,
    /// The name of the job, if COMMAND runs once.
    job: Option<JobId>,
    entry: Mutex<Option<Entry>>,
    /// The text that we wrote last. It is probably still there. The writer holds the lock.
    written: tokio::sync::Mutex<Option<String>>,
}

impl History {
    /// One that keeps `keep` leaderships, of COMMANDs that are runs of `job` if there is one.
    #[must_use]
    pub fn new(keep: usize, job: Option<JobId>) -> Self {
        Self { keep, job, entry: Mutex::default(), written: tokio::sync::Mutex::default() }
    }

    /// Records that COMMAND starts. False if it has started before in this leadership.
    pub fn open(&self, candidate: &Candidate, term: Term) -> bool {
        if self.entry.lock().as_ref().is_some_and(|entry| entry.term == term) {
            return false;
        }
        let Candidate { owner, host, pid, .. } = candidate;
        *self.entry.lock() = Some(Entry {
            term,
            owner: owner.clone(),
            host: host.clone(),
            pid: *pid,
            from_millis: wall_clock_millis(),
            to_millis: None,
            ended: None,
            ordered: None,
            job: self.job.as_ref().map(JobId::to_string),
        });
        true
    }

    /// Records that the leadership is over.
    pub fn close(&self, term: Term, how: &Ended) {
        if let Some(entry) = self.entry.lock().as_mut().filter(|entry| entry.term == term) {
            entry.to_millis = Some(wall_clock_millis());
            entry.ended = Some(on_one_line(how.to_string()).chars().take(LONGEST_END).collect());
        }
    }

    /// Writes what is known of the leadership so far.
    pub async fn save<S: Notes + ?Sized>(&self, store: &S, shard: &Shard) -> Result<(), StoreError> {
        let mut written = self.written.lock().await;
        let Some(entry) = self.entry.lock().clone() else { return Ok(()) };
        let start = written.take().map_or(Start::Read, |text| Start::Expect(Some(text)));
        let text = update(store, shard, &Page::History, "history", start, |standing| {
            let history = entries(standing).map_err(|error| foreign(shard, &error))?;
            let text = with_entry(history, &entry, self.keep);
            Ok(Edit::Replace(Some(Note::for_ever(text.clone())), text))
        });
        *written = Some(text.await?);
        Ok(())
    }
}

fn foreign(shard: &Shard, error: &serde_json::Error) -> StoreError {
    StoreError::misconfigured(format!("the history of shard {shard} was written by something else ({error})"))
}

/// The history with `entry` in it, in the order of terms, cut to `keep` leaderships and to the length that a note may
/// have.
fn with_entry(mut history: Vec<Entry>, entry: &Entry, keep: usize) -> String {
    let mut entry = entry.clone();
    if let Some(known) = history.iter().find(|known| known.term == entry.term) {
        entry.ordered = entry.ordered.or_else(|| known.ordered.clone());
    }
    history.retain(|known| known.term != entry.term);
    history.push(entry);
    history.sort_by_key(|entry| entry.term);
    loop {
        let text = serde_json::to_string(&history).expect("a history is plain data");
        let longest = if keep > USUAL { LONGEST } else { notes::LONGEST };
        if (history.len() <= keep && text.len() <= longest) || history.len() <= 1 {
            return text;
        }
        history.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::{CheckEnd, CommandEnd, HookEnd, Loss, Unhealthy};
    use crate::fuzz;

    fn entry(term: u64, owner: &str) -> Entry {
        Entry { owner: owner.to_owned(), ..Entry::example(term) }
    }

    #[test]
    fn a_history_is_bounded_in_leaderships_and_bytes_and_keeps_the_latest() {
        for owner in ["short", &"é".repeat(120)] {
            let mut history = Vec::new();
            for term in 1..100 {
                let text = with_entry(history, &entry(term, owner), USUAL);
                assert!(text.len() <= notes::LONGEST, "{}", text.len());
                history = serde_json::from_str(&text).unwrap();
                assert!(history.len() <= USUAL && history.last().unwrap().term == Term(term));
            }
            assert!(history.len() > 5, "{}", history.len());
        }
        for (keep, owner, least) in [(3, "short", 3), (100, "short", 100), (MOST, &"é".repeat(120), 60)] {
            let mut history = Vec::new();
            for term in 1..250 {
                let text = with_entry(history, &entry(term, owner), keep);
                assert!(text.len() <= LONGEST, "{}", text.len());
                history = serde_json::from_str(&text).unwrap();
                assert!(history.len() <= keep && history.last().unwrap().term == Term(term));
            }
            assert!(history.len() >= least, "{keep}: {}", history.len());
        }
    }

    #[test]
    fn the_end_of_a_leadership_that_comes_after_its_successor_is_put_in_its_place() {
        let history = vec![entry(1, "a"), entry(2, "b"), entry(3, "c")];
        let late = Entry { ended: Some("lost".to_owned()), ..entry(2, "b") };
        let history: Vec<Entry> = serde_json::from_str(&with_entry(history, &late, USUAL)).unwrap();
        let ends: Vec<_> = history.iter().map(|entry| entry.ended.as_deref()).collect();
        assert_eq!(ends, [None, Some("lost"), None]);
    }

    #[tokio::test]
    async fn an_order_is_kept_when_its_leader_writes_and_explains_an_end_of_its_kind() {
        let (store, candidate) = (crate::store::memory::Memory::default(), Candidate::example());
        let shard = candidate.shard.clone();
        let ordered = Ordered::now(PAUSE, Some("a reason"), None);
        assert!(!order(&store, &shard, Term(3), &ordered).await.unwrap(), "nobody leads");
        let history = History::new(USUAL, None);
        history.open(&candidate, Term(3));
        history.save(&store, &shard).await.unwrap();
        assert!(order(&store, &shard, Term(3), &ordered).await.unwrap());
        assert!(!order(&store, &shard, Term(4), &ordered).await.unwrap());
        assert_eq!(read(&store, &shard).await.unwrap()[0].cause(), None, "it leads");
        history.close(Term(3), &Ended::Paused);
        history.save(&store, &shard).await.unwrap();
        let entries = read(&store, &shard).await.unwrap();
        assert_eq!((entries.len(), entries[0].cause()), (1, Some(&ordered)));
        for (what, ended, explains) in [
            (PAUSE, "stepped down", false),
            (STEP_DOWN, "stepped down", true),
            (REVOKE, "lost: the store has no record of it any more", true),
            (REVOKE, "exited with 0", false),
            ("later", "paused", false),
        ] {
            let entry =
                Entry { ended: Some(ended.to_owned()), ordered: Some(Ordered::now(what, None, None)), ..entry(1, "a") };
            assert_eq!(entry.cause().is_some(), explains, "{what}: {ended}");
        }
    }

    #[test]
    fn the_kind_of_an_end_is_known_from_the_recorded_words() {
        let exited = CommandEnd::Exited;
        for (ended, end) in [
            (Ended::ByItself(exited(0)), End::Succeeded),
            (Ended::ByItself(exited(3)), End::Failed),
            (Ended::ByItself(CommandEnd::Signalled(9)), End::Killed),
            (Ended::Unready(HookEnd::TimedOut), End::Failed),
            (Ended::Asked(15), End::Asked),
            (Ended::Paused, End::Paused),
            (Ended::SteppedDown, End::SteppedDown),
            (Ended::Overran, End::Killed),
            (Ended::GaveUp { end: exited(0), restarts: 5 }, End::Failed),
            (Ended::Relinquished, End::Relinquished),
            (Ended::Unhealthy(Unhealthy { last: CheckEnd(HookEnd::TimedOut), failures: 3 }), End::Failed),
            (Ended::Lost(Loss::DeadlinePassed), End::Lost),
        ] {
            let entry = Entry { ended: Some(ended.to_string()), ..entry(1, "a") };
            assert_eq!(entry.end(), Some(end), "{ended}");
        }
        assert_eq!(End::of(CRASHED), End::Crashed);
        assert_eq!(entry(1, "a").end(), None);
    }

    #[test]
    fn a_million_notes_are_a_history_or_refused() {
        let ours = with_entry(vec![entry(1, "a"), entry(u64::MAX, "b")], &entry(7, "c"), USUAL);
        fuzz::bent_text("history", &[&ours, "[]"], |text, _| {
            let read = entries(Some(&Note::for_ever(text)));
            if let Ok(history) = &read {
                let again: Vec<Entry> =
                    serde_json::from_str(&with_entry(history.clone(), &entry(7, "d"), USUAL)).unwrap();
                assert!(again.is_sorted_by_key(|entry| entry.term) && again.len() <= USUAL);
            }
            (&read).into()
        });
    }
}
