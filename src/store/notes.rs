//! Small texts beside the leases: what operators ordered of a shard, how its last leaderships went, who waits for it,
//! and which of its jobs have run.
//!
//! The hazard: whoever writes may be one of many, and may never hear that it was written. So a note is replaced only
//! where exactly the text stands that its writer had read; and what a lost answer leaves behind is told by reading
//! again, for a text that somebody writes names who wrote it, or when. No note takes part in deciding who holds a
//! lease: a store that forgets them all forgets orders and jobs, and lets nobody lead beside another.

use super::StoreError;
use crate::lease::{JobId, Session, Shard};
use std::time::Duration;

/// Bytes in a text, at most: some stores charge by the kilobyte.
pub const LONGEST: usize = 4096;

/// Which of the notes about a shard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Page {
    /// What operators want of its candidates.
    Orders,
    /// How its last leaderships went.
    History,
    /// That a candidate waits for it.
    Standby(Session),
    /// The last run of a job that runs once a slot of time.
    Runs,
    /// The run of a job that runs once. A page for each, so that none is forgotten to make room for others.
    Once(JobId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Not empty, and not longer than [`LONGEST`].
    pub text: String,
    /// In a draft, how long it lasts from when the store receives it; of what was read, how much is left of that. By
    /// the store's clock, and some seconds longer where that is known no better. None: for ever.
    pub lasts: Option<Duration>,
}

impl Note {
    #[must_use]
    pub fn lasting(text: String, lasts: Option<Duration>) -> Self {
        Self { text, lasts }
    }

    #[must_use]
    pub fn for_ever(text: impl Into<String>) -> Self {
        Self { text: text.into(), lasts: None }
    }
}

/// What can be done with notes. As with leases, to drop a future may leave its request applied.
#[async_trait::async_trait]
pub trait Notes: Send + Sync {
    /// None where nothing stands there, or no more; strongly consistent. A text that something else wrote is an error
    /// (misconfigured) or, where it cannot be told from ours, read.
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError>;

    /// Puts `draft` (None: nothing) where exactly the text `expected` stands (None: nothing). False where something else
    /// does, also when that is so because an earlier attempt of this very write was applied.
    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError>;

    /// The notes of all that wait for shards whose names begin with `prefix`, letter by letter: a shard as often as there
    /// are some, in the order of shards.
    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError>;
}
