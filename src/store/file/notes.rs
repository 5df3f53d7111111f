//! Notes as files beside the leases: `DIR/SHARD+orders`, `DIR/SHARD+history`, `DIR/SHARD+runs`, `DIR/SHARD+jobs`,
//! `DIR/SHARD+standby+SESSION`, and `DIR/SHARD+once/JOB`, which is a folder because the names of a shard and of a job
//! together are too long for one file name.
//!
//! One process writes at a time, under the lock `DIR/+lock`. The hazard: that process may be frozen. So a writer tries
//! the lock and does not wait in the kernel. Reading needs no lock, because a note is replaced as a whole (rename).

use super::lock::{self, Lock};
use super::{FileStore, explain, files};
use crate::lease::Shard;
use crate::store::{Note, Notes, Page, StoreError};
use crate::time::{wall_clock_millis, whole_millis};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// After a shard's name, which cannot contain it.
const MARK: char = '+';
const STANDBY: &str = "standby";
const ONCE: &str = "once";
const LOCK: &str = "+lock";
/// The pause between two tries: a writer holds the lock for a few system calls.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Serialize, Deserialize)]
struct Kept {
    text: String,
    /// When the note ends, in milliseconds since 1970. All users of the directory share this machine's clock.
    until_millis: Option<u64>,
}

impl Kept {
    fn of(note: &Note) -> Self {
        // Rounded up: part of the present millisecond is over.
        let until_millis =
            note.lasts.map(|lasts| wall_clock_millis().saturating_add(whole_millis(lasts)).saturating_add(1));
        Self { text: note.text.clone(), until_millis }
    }

    fn note(self) -> Option<Note> {
        let now = wall_clock_millis();
        let lasts = self.until_millis.map(|until| Duration::from_millis(until.saturating_sub(now)));
        (lasts != Some(Duration::ZERO)).then_some(Note { text: self.text, lasts })
    }
}

impl FileStore {
    fn note_path(&self, shard: &Shard, page: &Page) -> PathBuf {
        let name = page.name(if matches!(page, Page::Once(_)) { '/' } else { MARK });
        self.directory.join(format!("{}{MARK}{name}", shard.as_str().replace('/', "=")))
    }

    fn read_note(path: &Path) -> Result<Option<Note>, StoreError> {
        let Some(text) = files::read(path)? else { return Ok(None) };
        let foreign = |error: serde_json::Error| {
            let path = path.display();
            StoreError::misconfigured(format!("the note {path} was written by another program ({error}): remove it"))
        };
        serde_json::from_slice(&text).map(Kept::note).map_err(foreign)
    }

    pub(super) async fn forget_notes(&self, shard: &Shard) -> Result<(), StoreError> {
        let _lock = self.lock_notes().await?;
        let beginning = format!("{}{MARK}", shard.as_str().replace('/', "="));
        let once = self.directory.join(format!("{beginning}{ONCE}"));
        let unreadable = |error: io::Error| explain("cannot read the directory", &self.directory, &error);
        for entry in fs::read_dir(&self.directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if !entry.file_name().to_str().is_some_and(|name| name.starts_with(&beginning)) {
                continue;
            }
            let path = entry.path();
            // It may be gone, because a process that counts standbys also removes notes.
            let removed = if path == once { fs::remove_dir_all(&path) } else { files::remove(&path).map(drop) };
            removed.map_err(|error| explain("cannot remove", &path, &error))?;
        }
        Ok(())
    }

    /// Closing the file unlocks them.
    async fn lock_notes(&self) -> Result<File, StoreError> {
        let path = self.directory.join(LOCK);
        loop {
            match self.in_directory(|| lock::take(&path))? {
                Lock::Ours(file) => return Ok(file),
                Lock::Theirs => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

#[async_trait::async_trait]
impl Notes for FileStore {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        Self::read_note(&self.note_path(shard, page))
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let path = self.note_path(shard, page);
        let _lock = self.lock_notes().await?;
        if Self::read_note(&path)?.map(|note| note.text).as_deref() != expected {
            return Ok(false);
        }
        let written = match draft {
            Some(draft) => {
                // Only the holder of the lock writes, so one name is enough for the draft.
                let new = self.directory.join(format!("{LOCK}.new"));
                let text = serde_json::to_vec(&Kept::of(draft)).expect("a note is plain data");
                let directory = match page {
                    Page::Once(_) => path.parent().map_or(Ok(()), files::make_folder),
                    Page::Orders | Page::History | Page::Standby(_) | Page::Runs | Page::Jobs => Ok(()),
                };
                directory.and_then(|()| files::replace(&path, &new, &text))
            }
            None => files::remove(&path).map(drop),
        };
        written.map_err(|error: io::Error| explain("cannot write", &path, &error))?;
        Ok(true)
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let mut standbys = Vec::new();
        for name in self.names()? {
            let parts = name.split_once(&format!("{MARK}{STANDBY}{MARK}"));
            let shard = parts.and_then(|(shard, _)| shard.replace('=', "/").parse::<Shard>().ok());
            let Some(shard) = shard.filter(|shard| shard.as_str().starts_with(prefix)) else { continue };
            let path = self.directory.join(&name);
            match Self::read_note(&path)? {
                Some(note) => standbys.push((shard, note)),
                // Nobody writes this note again: a session is used once.
                None => drop(fs::remove_file(&path)),
            }
        }
        Ok(standbys)
    }
}
