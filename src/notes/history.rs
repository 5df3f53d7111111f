//! How the last leaderships of a shard went: a note beside the lease that answers what happened last night.
//!
//! The hazard: writing it must never hold up an election, nor fail one. So it is written beside everything else, in
//! bounded time, and what could not be written is missing. A leadership without an end whose successor is there ended
//! without a word: its host crashed, or was cut off.

use crate::election::Ended;
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Note, Notes, Page, StoreError, notes};
use crate::text::on_one_line;
use crate::time::wall_clock_millis;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many leaderships are remembered, or fewer where their names are long.
const MOST: usize = 16;
/// Others may write at the same time: the leader before, and the one after.
const MOST_ATTEMPTS: usize = 5;
/// Letters of how it ended, at most.
const LONGEST_END: usize = 200;

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
    /// None while it lasts, or where nobody could say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// The oldest first.
///
/// # Errors
/// As [`Notes::read`]; misconfigured where something else wrote it.
pub async fn read<S: Notes + ?Sized>(store: &S, shard: &Shard) -> Result<Vec<Entry>, StoreError> {
    chapters(store.read(shard, &Page::History).await?.as_ref()).map_err(|error| {
        StoreError::misconfigured(format!("the history of shard {shard} was written by something else ({error})"))
    })
}

fn chapters(note: Option<&Note>) -> serde_json::Result<Vec<Entry>> {
    note.map_or(Ok(Vec::new()), |note| serde_json::from_str(&note.text))
}

/// How `term` ended, told by somebody else than its leader.
///
/// # Errors
/// As [`Notes::replace`].
pub async fn close<S: Notes + ?Sized>(store: &S, shard: &Shard, term: Term, how: &str) -> Result<(), StoreError> {
    for _ in 0..MOST_ATTEMPTS {
        let Some(standing) = store.read(shard, &Page::History).await? else { return Ok(()) };
        let Ok(history) = chapters(Some(&standing)) else { return Ok(()) };
        let open = history.iter().find(|chapter| chapter.term == term && chapter.ended.is_none());
        let Some(mut chapter) = open.cloned() else { return Ok(()) };
        chapter.to_millis = Some(wall_clock_millis());
        chapter.ended = Some(how.to_owned());
        let draft = Note::for_ever(told(history, &chapter));
        if store.replace(shard, &Page::History, Some(&standing.text), Some(&draft)).await? {
            return Ok(());
        }
    }
    Err(StoreError::not_applied(format!("others keep changing the history of shard {shard}")))
}

/// Writes one candidate's part of the history.
#[derive(Debug, Default)]
pub struct History {
    chapter: Mutex<Option<Entry>>,
    /// What we wrote last: likely to stand there still. Locked by whoever writes.
    written: tokio::sync::Mutex<Option<String>>,
}

impl History {
    /// COMMAND is started. False where this is not the first time in this leadership.
    pub fn open(&self, candidate: &Candidate, term: Term) -> bool {
        if self.chapter().as_ref().is_some_and(|chapter| chapter.term == term) {
            return false;
        }
        let Candidate { owner, host, pid, .. } = candidate;
        *self.chapter() = Some(Entry {
            term,
            owner: owner.clone(),
            host: host.clone(),
            pid: *pid,
            from_millis: wall_clock_millis(),
            to_millis: None,
            ended: None,
        });
        true
    }

    /// It is over.
    pub fn close(&self, term: Term, how: &Ended) {
        if let Some(chapter) = self.chapter().as_mut().filter(|chapter| chapter.term == term) {
            chapter.to_millis = Some(wall_clock_millis());
            chapter.ended = Some(on_one_line(how.to_string()).chars().take(LONGEST_END).collect());
        }
    }

    fn chapter(&self) -> MutexGuard<'_, Option<Entry>> {
        self.chapter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what is known of it by now.
    ///
    /// # Errors
    /// As [`Notes::replace`].
    pub async fn save<S: Notes + ?Sized>(&self, store: &S, shard: &Shard) -> Result<(), StoreError> {
        let mut written = self.written.lock().await;
        let Some(chapter) = self.chapter().clone() else { return Ok(()) };
        for _ in 0..MOST_ATTEMPTS {
            let standing = match written.take() {
                Some(written) => Some(written),
                None => store.read(shard, &Page::History).await?.map(|note| note.text),
            };
            let history = chapters(standing.clone().map(Note::for_ever).as_ref());
            let Ok(history) = history else {
                return Err(StoreError::misconfigured(format!(
                    "the history of shard {shard} was written by something else"
                )));
            };
            let draft = Note::for_ever(told(history, &chapter));
            if store.replace(shard, &Page::History, standing.as_deref(), Some(&draft)).await? {
                *written = Some(draft.text);
                return Ok(());
            }
        }
        Err(StoreError::not_applied(format!("others keep changing the history of shard {shard}")))
    }
}

/// With `chapter` in it, in the order of terms, and no longer than may be.
fn told(mut history: Vec<Entry>, chapter: &Entry) -> String {
    history.retain(|known| known.term != chapter.term);
    history.push(chapter.clone());
    history.sort_by_key(|chapter| chapter.term);
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
    use crate::fuzz;

    fn chapter(term: u64, owner: &str) -> Entry {
        Entry {
            term: Term(term),
            owner: owner.to_owned(),
            host: "db1".to_owned(),
            pid: 7,
            from_millis: 1,
            to_millis: None,
            ended: None,
        }
    }

    #[test]
    fn a_history_is_bounded_in_leaderships_and_bytes_and_keeps_the_latest() {
        for owner in ["short", &"é".repeat(120)] {
            let mut history = Vec::new();
            for term in 1..100 {
                let text = told(history, &chapter(term, owner));
                assert!(text.len() <= notes::LONGEST, "{}", text.len());
                history = serde_json::from_str(&text).unwrap();
                assert!(history.len() <= MOST && history.last().unwrap().term == Term(term));
            }
            assert!(history.len() > 5, "{}", history.len());
        }
    }

    #[test]
    fn the_end_of_a_leadership_that_comes_after_its_successor_is_put_in_its_place() {
        let history = vec![chapter(1, "a"), chapter(2, "b"), chapter(3, "c")];
        let late = Entry { ended: Some("lost".to_owned()), ..chapter(2, "b") };
        let history: Vec<Entry> = serde_json::from_str(&told(history, &late)).unwrap();
        let ends: Vec<_> = history.iter().map(|chapter| chapter.ended.as_deref()).collect();
        assert_eq!(ends, [None, Some("lost"), None]);
    }

    #[test]
    fn a_million_notes_are_a_history_or_refused() {
        let ours = told(vec![chapter(1, "a"), chapter(u64::MAX, "b")], &chapter(7, "c"));
        fuzz::bent_text("history", &[&ours, "[]"], |text, _| {
            let read = chapters(Some(&Note::for_ever(text)));
            if let Ok(history) = &read {
                let again: Vec<Entry> = serde_json::from_str(&told(history.clone(), &chapter(7, "d"))).unwrap();
                assert!(again.is_sorted_by_key(|chapter| chapter.term) && again.len() <= MOST);
            }
            (&read).into()
        });
    }
}
