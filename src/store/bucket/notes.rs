//! Notes: the operators' orders in the shard's own object, and the others as objects beside it: `note/SHARD/history`,
//! `note/SHARD/runs`, `note/SHARD/once=JOB`, `standby/SHARD/SESSION`.
//!
//! The hazard: a bucket compares, but knows no time while it does so. So the end of a note is written from the upper
//! bound of the server's clock (`server_clock`), and judged by the lower bound: no note ends early, and each may stay
//! for some seconds more. In those seconds two hosts may disagree on whether the note has ended. Writes are compared
//! and swapped all the same.
//!
//! Deletions are not conditional everywhere. So a note that is removed becomes one without a text. Only announcements
//! of standbys are deleted, which the next one of the same session replaces.

use super::objects::{Condition, Listed, Outcome, Version, unique};
use super::record::{Found, Kept, Record, name_of, shard_of};
use super::{Bucket, MOST_ATTEMPTS};
use crate::lease::Shard;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::expiry::ServerTime;
use crate::store::{Note, Notes, Page, StoreError, parallel};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// Where the notes beside the shards are.
pub const NOTES: &str = "note/";
/// Where the announcements of standbys are.
pub const STANDBYS: &str = "standby/";
/// The most ended announcements that one look at all deletes: its caller must not wait for a crowd.
const MOST_SWEPT: usize = 50;
/// For how long an announcement stays that has ended. Its standby may come back with another one.
const SWEPT_AFTER: Duration = Duration::from_mins(10);

/// The object of a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Leaf {
    /// Another one in each write.
    write: String,
    /// None: the note was removed.
    note: Option<Kept>,
}

/// What this process last wrote into a note, or read from it.
#[derive(Clone, Debug)]
pub struct Standing {
    note: Option<Kept>,
    version: Version,
}

/// The key of a note beside the shard. None for orders.
fn key(shard: &Shard, page: &Page) -> Option<String> {
    let name = name_of(shard.as_str());
    Some(match page {
        Page::Orders => return None,
        Page::History => format!("{NOTES}{name}/history"),
        Page::Runs => format!("{NOTES}{name}/runs"),
        Page::Once(job) => format!("{NOTES}{name}/once={job}"),
        Page::Standby(session) => format!("{STANDBYS}{name}/{}", session.as_str()),
    })
}

#[async_trait::async_trait]
impl Notes for Bucket {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        let kept = match key(shard, page) {
            None => self.look(shard).await?.and_then(|found| found.record.orders),
            Some(key) => self.look_at_note(&key).await?.and_then(|standing| standing.note),
        };
        // The answer has shown what time it is.
        Ok(kept.and_then(|kept| kept.note(self.objects.least_server_millis())))
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        match key(shard, page) {
            None => self.replace_orders(shard, expected, draft).await,
            Some(key) => {
                let is_announcement = matches!(page, Page::Standby(_));
                self.replace_note(&key, expected, draft, is_announcement).await
            }
        }
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let listed = self.list_all(&format!("{STANDBYS}{}", name_of(prefix))).await?;
        let looks = listed.into_iter().map(|listed| async move {
            let standing = self.look_at_note(&listed.key).await?;
            Ok((listed, standing))
        });
        let looked = parallel::answers(looks).await?;
        let now_millis = self.objects.least_server_millis();
        let (mut standbys, mut ended) = (Vec::new(), Vec::new());
        for (listed, standing) in looked {
            let shard = listed.key.strip_prefix(STANDBYS).and_then(|rest| rest.rsplit_once('/'));
            let (Some(shard), Some(standing)) = (shard.and_then(|(name, _)| shard_of(name)), standing) else {
                continue;
            };
            match standing.note.and_then(|note| note.note(now_millis)) {
                Some(note) => standbys.push((shard, note)),
                None => ended.push(listed),
            }
        }
        // A user who may only read leaves them there.
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(now_millis);
        let old = ended.iter().filter(|listed| now.duration_since(listed.written).is_ok_and(|age| age > SWEPT_AFTER));
        for listed in old.take(MOST_SWEPT) {
            if self.objects.delete(&listed.key).await.is_err() {
                break;
            }
        }
        Ok(standbys)
    }
}

impl Bucket {
    /// All names that begin with `prefix`, letter by letter.
    pub(super) async fn list_all(&self, prefix: &str) -> Result<Vec<Listed>, StoreError> {
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let (page, next) = self.objects.list(prefix, from).await?;
            all.extend(page);
            if all.len() > MOST_LISTED {
                return Err(allowance::too_long(self.objects.server()));
            }
            from = next;
            if from.is_none() {
                return Ok(all);
            }
        }
    }

    /// Reads the object of a note, and forgets what this process wrote into it. None if there is none.
    async fn look_at_note(&self, key: &str) -> Result<Option<Standing>, StoreError> {
        let standing = match self.objects.get(key).await? {
            Some((bytes, version)) => {
                let leaf = serde_json::from_slice::<Leaf>(&bytes);
                let leaf = leaf.map_err(|error| self.objects.foreign(key, &error.to_string()))?;
                Some(Standing { note: leaf.note, version })
            }
            None => None,
        };
        self.keep_note(key, None);
        Ok(standing)
    }

    /// Remembers what this process wrote, so that its next write of the same note need not read it.
    fn keep_note(&self, key: &str, standing: Option<Standing>) {
        let mut notes = self.notes.lock();
        match standing {
            Some(standing) => drop(notes.insert(key.to_owned(), standing)),
            None => drop(notes.remove(key)),
        }
    }

    async fn replace_orders(
        &self,
        shard: &Shard,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let found = self.look(shard).await?;
            let (mut record, version) =
                found.map_or_else(|| (Record::new(shard), None), |Found { record, version }| (record, Some(version)));
            let now_millis = self.objects.least_server_millis();
            let standing = record.orders.as_ref().and_then(|orders| orders.note(now_millis)).map(|note| note.text);
            if standing.as_deref() != expected {
                return Ok(false);
            }
            if expected.is_none() && draft.is_none() {
                return Ok(true);
            }
            record.orders = draft.map(|draft| self.kept(draft));
            let condition = version.as_ref().map_or(Condition::Absent, Condition::Unchanged);
            if self.write(shard, &record, condition).await? {
                return Ok(true);
            }
        }
        Err(StoreError::unknown(format!("the object of shard {shard} changes faster than its orders can be written")))
    }

    async fn replace_note(
        &self,
        key: &str,
        expected: Option<&str>,
        draft: Option<&Note>,
        is_announcement: bool,
    ) -> Result<bool, StoreError> {
        let mut known = self.notes.lock().remove(key);
        for _ in 0..MOST_ATTEMPTS {
            let (found, is_fresh) = match known.take() {
                Some(known) => (Some(known), false),
                None => (self.look_at_note(key).await?, true),
            };
            let now_millis = self.objects.least_server_millis();
            let standing = found.as_ref().and_then(|found| Some(found.note.as_ref()?.note(now_millis)?.text));
            if standing.as_deref() != expected {
                if is_fresh {
                    return Ok(false);
                }
                // Another process may have written it since.
                continue;
            }
            if draft.is_none() && expected.is_none() && is_fresh {
                return Ok(true);
            }
            if draft.is_none() && is_announcement {
                return self.objects.delete(key).await.map(|()| true);
            }
            let leaf = Leaf { write: unique()?, note: draft.map(|draft| self.kept(draft)) };
            let bytes = serde_json::to_vec(&leaf).expect("a note is plain data");
            let condition = found.as_ref().map_or(Condition::Absent, |found| Condition::Unchanged(&found.version));
            match self.objects.put(key, bytes, condition).await {
                Ok(Outcome::Done(version)) => {
                    self.keep_note(key, version.map(|version| Standing { note: leaf.note, version }));
                    return Ok(true);
                }
                Ok(Outcome::Refused) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::unknown(format!("the object {}{key} changes faster than it can be written", self.objects.name)))
    }

    fn kept(&self, draft: &Note) -> Kept {
        // The end is counted from when the store receives it.
        let now_millis = self.objects.expiry(BootInstant::now(), Duration::ZERO);
        Kept::new(draft, now_millis)
    }
}
