//! The history of a shard's last leaderships: a note beside the lease that answers "what happened last night?".
//!
//! The hazard: writing the history must never delay an election or make it fail. So the driver writes it in a task of
//! its own, in bounded time, and an entry that could not be written is missing. A leadership that has a successor but
//! no recorded end crashed with its host, or was cut off from the store.
//!
//! Operators also write who ordered that a leadership ends. The leader does not know that when it writes its entry
//! again, so what operators wrote is kept. An order may be taken back, or come too late, so it explains an end only if
//! the end is of its kind.

use super::orders::operator;
use super::update::{Edit, Start, update};
use crate::election::{CommandEnd, Ended, Reason};
use crate::lease::{Candidate, JobId, Shard, Term};
use crate::store::{Answer, Note, Notes, Page, StoreError, notes};
use crate::text::on_one_line;
use crate::time::wall_clock_millis;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The most leaderships in a history. Long names leave room for fewer.
const MOST: usize = 16;
const LONGEST_END: usize = 200;
/// Letters of an operator's reason, or of a name.
const LONGEST_REASON: usize = 100;

/// One leadership. Fields are added, never renamed or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub term: Term,
    pub owner: String,
    pub host: String,
    pub pid: u32,
    /// Milliseconds since 1970, by the leader's own clock.
    pub from_millis: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_millis: Option<u64>,
    /// In words. None while the leadership lasts, or if nobody recorded its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// A word of [`Reason`], or of a later version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Some if COMMAND exited, whatever made it do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The last order of an operator that this leadership ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<Ordered>,
    /// The name of the job, if it runs once.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

pub const PAUSE: &str = "pause";
pub const STEP_DOWN: &str = "step-down";
pub const REVOKE: &str = "revoke";

impl Ordered {
    pub fn now(what: &str, reason: Option<&str>, to: Option<&str>) -> Self {
        let short = |text: &str| text.chars().take(LONGEST_REASON).collect();
        let reason = reason.map(short);
        let to = to.map(short);
        Self { what: what.to_owned(), by: operator(), at_millis: wall_clock_millis(), reason, to }
    }
}

impl Entry {
    pub fn begun(term: Term, owner: String, host: String, pid: u32, from_millis: u64) -> Self {
        Self { term, owner, host, pid, from_millis, ..Self::default() }
    }

    /// None if no end is recorded, or for a reason that this version does not know.
    pub fn known_reason(&self) -> Option<Reason> {
        self.reason.as_deref()?.parse().ok()
    }

    pub fn is_success(&self) -> bool {
        self.known_reason() == Some(Reason::Ended) && self.exit_status == Some(0)
    }

    pub fn cause(&self) -> Option<&Ordered> {
        self.ordered.as_ref().filter(|ordered| match (ordered.what.as_str(), self.known_reason()) {
            (PAUSE, reason) => reason == Some(Reason::Paused),
            (STEP_DOWN, reason) => reason == Some(Reason::SteppedDown),
            // A revoked lease has ended, even if its leader is frozen and never says so.
            (REVOKE, None) => self.reason.is_none(),
            // Not every store tells the leader why its record is gone.
            (REVOKE, Some(reason)) => matches!(reason, Reason::Revoked | Reason::Lost),
            _ => false,
        })
    }

    pub fn close(&mut self, millis: u64, how: &Ended, command: Option<CommandEnd>) {
        let words = on_one_line(how.to_string()).chars().take(LONGEST_END).collect();
        self.close_with(millis, words, how.reason());
        match command.or(how.command_end()) {
            Some(CommandEnd::Exited(status)) => self.exit_status = Some(status),
            Some(CommandEnd::Signalled(signal)) => self.signal = Some(signal),
            None => {}
        }
    }

    pub fn close_killed(&mut self, millis: u64) {
        self.close_with(millis, "leaderrun was killed".to_owned(), Reason::Killed);
    }

    fn close_with(&mut self, millis: u64, words: String, reason: Reason) {
        self.to_millis = Some(millis);
        self.ended = Some(words);
        self.reason = Some(reason.to_string());
    }
}

#[cfg(test)]
impl Entry {
    pub(crate) fn example(term: u64) -> Self {
        let (owner, host) = ("me".to_owned(), "db1".to_owned());
        Self::begun(Term(term), owner, host, 7, 1)
    }
}

pub async fn read(store: &dyn Notes, shard: &Shard) -> Answer<Vec<Entry>> {
    entries(shard, store.read(shard, &Page::History).await?.as_ref())
}

fn entries(shard: &Shard, note: Option<&Note>) -> Answer<Vec<Entry>> {
    note.map_or(Ok(Vec::new()), |note| serde_json::from_str(&note.text)).map_err(|error| {
        StoreError::misconfigured(format!("the history of shard {shard} was written by another program ({error})"))
    })
}

pub async fn close_killed(store: &dyn Notes, shard: &Shard, term: Term) -> Answer<()> {
    amend(store, shard, term, |entry| {
        let is_open = entry.ended.is_none();
        if is_open {
            entry.close_killed(wall_clock_millis());
        }
        is_open
    })
    .await
}

/// Records who ordered that `term` ends.
pub async fn order(store: &dyn Notes, shard: &Shard, term: Term, ordered: &Ordered) -> Answer<()> {
    amend(store, shard, term, |entry| entry.ordered.replace(ordered.clone()).as_ref() != Some(ordered)).await
}

/// Changes the entry of `term`, if the history has one (yet). `edit` returns false if nothing needs to change.
async fn amend(store: &dyn Notes, shard: &Shard, term: Term, edit: impl Fn(&mut Entry) -> bool) -> Answer<()> {
    update(store, shard, &Page::History, "history", Start::Read, |standing| {
        let history = entries(shard, standing)?;
        let mut entry = history.iter().find(|entry| entry.term == term).cloned();
        let changed = entry.as_mut().is_some_and(&edit);
        Ok(match entry.filter(|_| changed) {
            Some(entry) => Edit::Replace(Some(Note::for_ever(with_entry(history, &entry))), ()),
            None => Edit::Leave(()),
        })
    })
    .await
}

#[derive(Debug)]
pub struct History {
    /// The name of the job, if COMMAND runs once.
    job: Option<JobId>,
    entry: Mutex<Option<Entry>>,
    /// How COMMAND ended. None while it runs.
    command_end: Mutex<Option<CommandEnd>>,
    /// What we wrote last, which is probably still there. The writer holds the lock.
    written: tokio::sync::Mutex<Option<String>>,
}

impl History {
    pub fn new(job: Option<JobId>) -> Self {
        let (entry, command_end) = (Mutex::default(), Mutex::default());
        Self { job, entry, command_end, written: tokio::sync::Mutex::default() }
    }

    /// Records that COMMAND starts. False if it has started before in this leadership.
    pub fn open(&self, candidate: &Candidate, term: Term) -> bool {
        *self.command_end.lock() = None;
        if self.entry.lock().as_ref().is_some_and(|entry| entry.term == term) {
            return false;
        }
        let Candidate { owner, host, pid, .. } = candidate;
        let begun = Entry::begun(term, owner.clone(), host.clone(), *pid, wall_clock_millis());
        *self.entry.lock() = Some(Entry { job: self.job.as_ref().map(JobId::to_string), ..begun });
        true
    }

    pub fn command_ended(&self, end: CommandEnd) {
        *self.command_end.lock() = Some(end);
    }

    pub fn close(&self, term: Term, how: &Ended) {
        if let Some(entry) = self.entry.lock().as_mut().filter(|entry| entry.term == term) {
            entry.close(wall_clock_millis(), how, *self.command_end.lock());
        }
    }

    pub async fn save(&self, store: &dyn Notes, shard: &Shard) -> Answer<()> {
        let mut written = self.written.lock().await;
        let Some(entry) = self.entry.lock().clone() else { return Ok(()) };
        let start = written.take().map_or(Start::Read, |text| Start::Expect(Some(text)));
        let text = update(store, shard, &Page::History, "history", start, |standing| {
            let history = entries(shard, standing)?;
            let text = with_entry(history, &entry);
            Ok(Edit::Replace(Some(Note::for_ever(text.clone())), text))
        });
        *written = Some(text.await?);
        Ok(())
    }
}

/// The history with `entry` in it, in the order of terms, without the oldest entries if it is too long.
fn with_entry(mut history: Vec<Entry>, entry: &Entry) -> String {
    let mut entry = entry.clone();
    if let Some(known) = history.iter().find(|known| known.term == entry.term) {
        entry.ordered = entry.ordered.or_else(|| known.ordered.clone());
    }
    history.retain(|known| known.term != entry.term);
    history.push(entry);
    history.sort_by_key(|entry| entry.term);
    loop {
        let text = serde_json::to_string(&history).expect("a history is plain data");
        if (history.len() <= MOST && text.len() <= notes::LONGEST) || history.len() <= 1 {
            return text;
        }
        history.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::{HookEnd, Loss};

    fn entry(term: u64, owner: &str) -> Entry {
        Entry { owner: owner.to_owned(), ..Entry::example(term) }
    }

    #[test]
    fn a_history_is_bounded_in_leaderships_and_bytes_and_keeps_the_latest() {
        for owner in ["short", &"é".repeat(120)] {
            let mut history = Vec::new();
            for term in 1..100 {
                let text = with_entry(history, &entry(term, owner));
                assert!(text.len() <= notes::LONGEST, "{}", text.len());
                history = serde_json::from_str(&text).unwrap();
                assert!(history.len() <= MOST && history.last().unwrap().term == Term(term));
            }
            assert!(history.len() > 5, "{}", history.len());
        }
    }

    #[test]
    fn the_end_of_a_leadership_that_comes_after_its_successor_is_put_in_its_place() {
        let history = vec![entry(1, "a"), entry(2, "b"), entry(3, "c")];
        let late = Entry { ended: Some("lost".to_owned()), ..entry(2, "b") };
        let history: Vec<Entry> = serde_json::from_str(&with_entry(history, &late)).unwrap();
        let ends: Vec<_> = history.iter().map(|entry| entry.ended.as_deref()).collect();
        assert_eq!(ends, [None, Some("lost"), None]);
    }

    #[test]
    fn an_order_explains_an_end_of_its_kind_and_a_revocation_an_end_that_nobody_tells() {
        for (what, ended, explains) in [
            (PAUSE, Some(Ended::Paused), true),
            (PAUSE, Some(Ended::SteppedDown), false),
            (PAUSE, None, false),
            (STEP_DOWN, Some(Ended::SteppedDown), true),
            (STEP_DOWN, None, false),
            (REVOKE, Some(Ended::Lost(Loss::RecordGone)), true),
            (REVOKE, Some(Ended::ByItself(CommandEnd::Exited(0))), false),
            (REVOKE, None, true),
            ("later", Some(Ended::Paused), false),
            ("later", None, false),
        ] {
            let mut entry = Entry { ordered: Some(Ordered::now(what, None, None)), ..entry(1, "a") };
            if let Some(how) = &ended {
                entry.close(2, how, None);
            }
            assert_eq!(entry.cause().is_some(), explains, "{what}: {ended:?}");
        }
    }

    #[test]
    fn an_entry_has_the_end_in_words_and_in_a_reason_a_status_and_a_signal_of_its_own() {
        let (exited, signalled) = (CommandEnd::Exited, CommandEnd::Signalled);
        for (how, command, expected) in [
            (Ended::ByItself(exited(3)), Some(exited(3)), ("ended", Some(3), None)),
            (Ended::Asked(15), Some(exited(7)), ("asked", Some(7), None)),
            (Ended::Asked(2), Some(signalled(2)), ("interrupted", None, Some(2))),
            (Ended::Asked(1), None, ("hangup", None, None)),
            (Ended::Paused, Some(signalled(15)), ("paused", None, Some(15))),
            (Ended::Overran, Some(signalled(9)), ("max-run", None, Some(9))),
            (Ended::GaveUp { end: exited(0), restarts: 5 }, Some(exited(0)), ("gave-up", Some(0), None)),
            (Ended::Unready(HookEnd::TimedOut), None, ("failed", None, None)),
        ] {
            let mut entry = entry(3, "a");
            entry.close(4, &how, command);
            let found = (entry.reason.as_deref().unwrap(), entry.exit_status, entry.signal);
            assert_eq!((entry.ended.as_ref(), found), (Some(&how.to_string()), expected));
        }
    }

    #[test]
    fn the_reason_of_a_later_version_is_shown_and_means_nothing() {
        let text = r#"[{"term":1,"owner":"a","host":"h","pid":1,"from_millis":1,"ended":"melted","reason":"melted"}]"#;
        let mut entry = entries(&"a".parse().unwrap(), Some(&Note::for_ever(text.to_owned()))).unwrap().remove(0);
        assert_eq!((entry.reason.as_deref(), entry.known_reason()), (Some("melted"), None));
        entry.ordered = Some(Ordered::now(REVOKE, None, None));
        assert!(entry.cause().is_none() && !entry.is_success());
    }
}
