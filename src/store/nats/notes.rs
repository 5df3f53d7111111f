//! Notes as keys of the bucket: `=note.orders.KEY`, `=note.history.KEY`, `=note.standby.SESSION.KEY`.
//!
//! The hazard: nothing vanishes from a bucket by itself. So a note says how long it lasts, and has ended when so much
//! time has passed by the server's clock since it was stored. Two servers of a cluster may have told the two times;
//! then more time must pass, so that no note ends early. A write replaces an ended note, or the mark of a deletion, as
//! if there were nothing. Nobody writes a standby's note again, so listing the standbys also removes the ended ones.

use super::address::{note_of, standby_of};
use super::bucket::Put;
use super::jetstream::{Entry, Info, Stamp};
use super::{Nats, slack};
use crate::lease::Shard;
use crate::store::notes::unless_store_fails;
use crate::store::{Note, NoteRead, Notes, Page, StoreError, parallel};
use crate::time::{BootInstant, millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The content of a key. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub text: String,
    /// How long the note lasts from when the server stored it. None: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts_ms: Option<u64>,
}

impl Kept {
    fn of(note: &Note) -> Self {
        Self { text: note.text.clone(), lasts_ms: note.lasts.map(millis) }
    }

    fn encoded(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a note is plain data")
    }

    /// The note at this age. None if it has ended.
    fn note(self, age: Duration) -> Option<Note> {
        let lasts = self.lasts_ms.map(|lasts| Duration::from_millis(lasts).saturating_sub(age));
        (lasts != Some(Duration::ZERO)).then_some(Note { text: self.text, lasts })
    }
}

/// The server's time, and when we heard it.
struct Clock {
    time: Stamp,
    slack: Duration,
    heard: BootInstant,
}

impl Clock {
    /// The age of what was stored then, at least.
    fn age(&self, stored: Stamp) -> Duration {
        self.time.since(stored).saturating_sub(self.slack).saturating_add(BootInstant::now().since(self.heard))
    }
}

impl Nats {
    async fn clock(&self, info: &Info) -> Result<Clock, StoreError> {
        let time = self.bucket.time(info).await?;
        Ok(Clock { time, slack: slack(info), heard: BootInstant::now() })
    }

    /// The content, ended or not. None if the key holds nothing.
    pub(super) fn kept(&self, key: &str, entry: &Entry) -> Result<Option<Kept>, StoreError> {
        let Some(value) = &entry.value else { return Ok(None) };
        let foreign = |_| {
            let bucket = &self.bucket.address().bucket;
            StoreError::misconfigured(format!(
                "the note {key} of bucket {bucket} in {} was written by something else: delete it (nats kv del {bucket} \
                 {key})",
                self.bucket.address().server()
            ))
        };
        serde_json::from_slice(value).map(Some).map_err(foreign)
    }

    /// The note at present. Asks for the server's time only if that matters.
    async fn standing(&self, key: &str, entry: &Entry) -> Result<Option<Note>, StoreError> {
        let Some(kept) = self.kept(key, entry)? else { return Ok(None) };
        if kept.lasts_ms.is_none() {
            return Ok(kept.note(Duration::ZERO));
        }
        let info = self.bucket.info().await?.ok_or_else(|| self.bucket.missing())?;
        Ok(kept.note(self.clock(&info).await?.age(entry.stamp)))
    }

    /// Reads many notes. Most shards have none, so it asks first which there are.
    pub(super) async fn read_many(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        let mut notes = vec![Ok(None); wanted.len()];
        if wanted.is_empty() {
            return Ok(notes);
        }
        let (_, keys) = self.bucket.keys().await?;
        let mut reads = Vec::new();
        for (place, (shard, page)) in wanted.iter().enumerate() {
            if keys.contains(&note_of(shard, page)) {
                reads.push(async move { Ok((place, unless_store_fails(self.read(shard, page).await)?)) });
            }
        }
        for (place, note) in parallel::answers(reads).await? {
            notes[place] = note;
        }
        Ok(notes)
    }
}

#[async_trait::async_trait]
impl Notes for Nats {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        let key = note_of(shard, page);
        match self.bucket.get(&key).await? {
            Some(entry) => self.standing(&key, &entry).await,
            None => Ok(None),
        }
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let key = note_of(shard, page);
        let entry = self.bucket.get(&key).await?;
        let standing = match &entry {
            Some(entry) => self.standing(&key, entry).await?,
            None => None,
        };
        if standing.map(|note| note.text).as_deref() != expected {
            return Ok(false);
        }
        let revision = entry.as_ref().map_or(0, |entry| entry.revision);
        let put = match draft {
            Some(draft) => self.bucket.put(&key, Kept::of(draft).encoded(), revision).await?,
            // There is only the mark of a deletion or an ended note, which needs no other mark.
            None if expected.is_none() => return Ok(true),
            None => self.bucket.delete(&key, revision).await?,
        };
        Ok(put != Put::Conflict)
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let (info, keys) = self.bucket.keys().await?;
        // Asked once, before any note is read: a note that is written after that has just begun.
        let clock = self.clock(&info).await?;
        let found = keys.into_iter().filter_map(|key| Some((standby_of(&key)?.0, key)));
        let found = found.filter(|(shard, _)| shard.as_str().starts_with(prefix));
        let looks = found.map(|(shard, key)| async move { Ok((self.bucket.get(&key).await?, shard, key)) });
        let (mut standbys, mut gone) = (Vec::new(), Vec::new());
        for (entry, shard, key) in parallel::answers(looks).await? {
            let Some(entry) = entry else { continue };
            match self.kept(&key, &entry)?.and_then(|kept| kept.note(clock.age(entry.stamp))) {
                Some(note) => standbys.push((shard, note)),
                None => gone.push((key, entry.revision)),
            }
        }
        // A user who only reads may lack the permission. So the first one is tried alone.
        let mut gone = gone.into_iter().map(|(key, revision)| async move { self.bucket.sweep(&key, revision).await });
        if let Some(first) = gone.next()
            && first.await.is_ok()
        {
            let _ = parallel::answers(gone).await;
        }
        Ok(standbys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn a_note_ends_with_its_time_and_one_without_never() {
        let lasting = |lasts| Kept::of(&Note::lasting("x".to_owned(), lasts));
        let second = Duration::from_secs(1);
        assert_eq!(lasting(None).note(Duration::MAX), Some(Note::for_ever("x")));
        let left = lasting(Some(second)).note(Duration::from_millis(999));
        assert_eq!(left, Some(Note::lasting("x".to_owned(), Some(Duration::from_millis(1)))));
        assert_eq!(lasting(Some(second)).note(second), None);
        assert_eq!(lasting(Some(Duration::MAX)).lasts_ms, Some(u64::MAX));
    }

    #[test]
    fn a_million_notes_are_read_as_they_were_written_or_not_understood() {
        let ours = [Kept::of(&Note::for_ever("{\"a\":1}")), Kept { text: "x".to_owned(), lasts_ms: Some(15_000) }];
        fuzz::bent("note of nats://", &[&ours[0].encoded(), &ours[1].encoded()], |value, source| {
            let read = serde_json::from_slice::<Kept>(value);
            if let Ok(kept) = &read {
                assert_eq!(serde_json::from_slice::<Kept>(&kept.encoded()).ok().as_ref(), Some(kept));
                let age = source.duration();
                let left = kept.clone().note(age).map(|note| note.lasts);
                let lasts = kept.lasts_ms.map(Duration::from_millis);
                assert_eq!(left.is_some(), lasts.is_none_or(|lasts| age < lasts));
                assert!(left.flatten() <= lasts);
            }
            (&read.ok()).into()
        });
    }
}
