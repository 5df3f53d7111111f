//! Small texts beside the leases: operators' orders for a shard, the history of its leaderships, its standbys, and the
//! runs of its jobs.
//!
//! The hazard: a writer may be one of many, and may never hear that its write was applied. So a write replaces a note
//! only if the note still has exactly the text that the writer read. After a lost answer the writer reads the note
//! again: the text names its writer or its time, so the writer recognises its own. No note decides who holds a lease. A
//! store that forgets all notes forgets orders and jobs, but never lets two candidates lead at once.

use super::StoreError;
use crate::lease::{JobId, Session, Shard};
use std::time::Duration;

/// The most bytes in a text: some stores charge by the kilobyte.
pub const LONGEST: usize = 4096;

/// One of the notes about a shard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Page {
    Orders,
    History,
    Standby(Session),
    /// The last run of a job that runs once a period.
    Runs,
    /// The index of the jobs that run once.
    Jobs,
    /// The run of a job that runs once. Each job has a page of its own, so that none is forgotten to make room for
    /// others.
    Once(JobId),
}

impl Page {
    /// The word, and the session or job that it is of.
    pub(super) fn words(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Orders => ("orders", None),
            Self::History => ("history", None),
            Self::Standby(session) => ("standby", Some(session.as_str())),
            Self::Runs => ("runs", None),
            Self::Jobs => ("jobs", None),
            Self::Once(job) => ("once", Some(job.as_str())),
        }
    }

    /// The page of these words. Orders have none: such words beside a shard are from another program.
    pub(super) fn of_words(word: &str, of: Option<&str>) -> Option<Self> {
        match (word, of) {
            ("history", None) => Some(Self::History),
            ("standby", Some(session)) => Some(Self::Standby(Session::from_record(session))),
            ("runs", None) => Some(Self::Runs),
            ("jobs", None) => Some(Self::Jobs),
            ("once", Some(job)) => job.parse().ok().map(Self::Once),
            _ => None,
        }
    }

    pub(super) fn name(&self, mark: char) -> String {
        let (word, of) = self.words();
        of.map_or(word.to_owned(), |of| format!("{word}{mark}{of}"))
    }

    pub(super) fn of_name(name: &str, mark: char) -> Option<Self> {
        let (word, of) = name.split_once(mark).map_or((name, None), |(word, of)| (word, Some(of)));
        Self::of_words(word, of)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The text: not empty, and not longer than [`LONGEST`].
    pub text: String,
    /// In a draft: how long the note lasts from when the store receives it. In a note that was read: how much of that
    /// is left. It counts by the store's clock, and lasts some seconds longer where that clock is not known better.
    /// None: for ever.
    pub lasts: Option<Duration>,
}

impl Note {
    pub fn lasting(text: String, lasts: Option<Duration>) -> Self {
        Self { text, lasts }
    }

    pub fn for_ever(text: impl Into<String>) -> Self {
        Self { text: text.into(), lasts: None }
    }
}

pub type NoteRead = Result<Option<Note>, StoreError>;

/// Operations on notes. As with leases, the request of a future that was dropped may have been applied.
#[async_trait::async_trait]
pub trait Notes: Send + Sync {
    /// Reads a note; strongly consistent. None if there is no such note, or it has ended. A text that another program
    /// wrote is an error (misconfigured), or is returned if it looks like one of ours.
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError>;

    /// Writes `draft` (None: removes the note) if the note has exactly the text `expected` (None: if there is no note).
    /// False if it has another text, even if an earlier attempt of this same write put it there.
    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError>;

    /// The notes of all standbys of shards whose names begin with `prefix`, letter by letter: in any order, a shard
    /// once for each of its standbys.
    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError>;
}
