//! Notes: the operators' orders in the shard's own document where the server has a clock, the others beside it.
//!
//! The hazard: a server that only compares looks at no clock. So the end of a note is written from the upper bound of
//! the server's time, and judged by the lower: no note ends early, and each may stay some seconds longer. And a
//! deletion cannot be conditional everywhere. So a note is removed by writing an empty text. Only announcements of
//! standbys are deleted: if a deletion comes late, the standby's next announcement repairs it; and, by `forget`, notes
//! that cannot be read.

use super::document::{LedMark, Orders};
use super::documents::{Content, Draft, Ends, Found, Key, Life, List, Listed, Over, Part};
use super::marker::{Reader, lasting};
use super::{LeaseStore, MOST_ATTEMPTS};
use crate::lease::Shard;
use crate::store::{Note, NoteRead, Notes, Page, StoreError, parallel};
use crate::time::millis;
use std::time::Duration;

/// The most ended announcements that one list of standbys deletes: its caller must not wait long.
const MOST_SWEPT: usize = 50;
/// How long an ended announcement stays: its standby may announce itself again.
const SWEPT_AFTER: Duration = Duration::from_mins(10);

#[async_trait::async_trait]
impl Notes for LeaseStore {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        if self.is_in_document(page) {
            return Ok(self.orders_in(&self.look(shard, false, false, Reader::Look).await?));
        }
        let found = self.get_one(Key::Note(shard, page)).await?;
        self.known_notes.lock().insert((shard.clone(), page.clone()), found.clone());
        self.note_in(Key::Note(shard, page), &found)
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        if self.is_in_document(page) {
            return self.replace_orders(shard, expected, draft).await;
        }
        self.replace_note(shard, page, draft, |standing| standing == expected).await
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let (mut standbys, mut ended) = (Vec::new(), Vec::new());
        let mut each = |listed: Vec<Listed>| {
            let now_millis = self.documents.least_server_millis();
            for listed in listed {
                match (note(&listed.found, now_millis), listed.found.ours().map(|ours| ours.life)) {
                    (Some(note), _) => standbys.push((listed.shard, note)),
                    (None, Some(Life::Ends(ends))) if now_millis.saturating_sub(ends) > millis(SWEPT_AFTER) => {
                        if let Part::Note(page) = listed.part {
                            ended.push((listed.shard, page));
                        }
                    }
                    (None, _) => {}
                }
            }
        };
        self.documents.list(List::Standbys(prefix), &mut each).await?;
        for (shard, page) in ended.iter().take(MOST_SWEPT) {
            // A user may have no right to delete.
            if self.documents.remove(Key::Note(shard, page)).await.is_err() {
                break;
            }
        }
        Ok(standbys)
    }
}

/// The note in a document. None if it was removed, or has ended at `now_millis`, the earliest time that the server's
/// clock may show.
fn note(found: &Found, now_millis: u64) -> Option<Note> {
    let ours = found.ours().filter(|ours| !ours.text.is_empty())?;
    let lasts = match ours.life {
        Life::ForEver => None,
        Life::Ends(ends) => Some(Duration::from_millis(ends.saturating_sub(now_millis))),
        Life::Left { at_most } => Some(at_most),
        Life::Over | Life::Unchanged { .. } => Some(Duration::ZERO),
    };
    (lasts != Some(Duration::ZERO)).then(|| Note::lasting(ours.text.clone(), lasts))
}

impl LeaseStore {
    /// Orders are a part of the shard's own document, except on a server without a clock, which ends notes by itself.
    fn is_in_document(&self, page: &Page) -> bool {
        *page == Page::Orders && self.properties.has_clock
    }

    pub(super) fn note_in(&self, key: Key<'_>, found: &Found) -> Result<Option<Note>, StoreError> {
        match &found.content {
            Content::Foreign { .. } => Err(self.strange(key, "it is no note")),
            Content::Unreadable(why) => Err(self.strange(key, why)),
            // The answer has shown what time it is.
            Content::Absent | Content::Ours(_) => Ok(note(found, self.documents.least_server_millis())),
        }
    }

    /// Reads many notes. One that cannot be read does not keep the others from being read.
    pub(super) async fn read_many_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        let keys: Vec<Key<'_>> = wanted
            .iter()
            .map(|(shard, page)| if self.is_in_document(page) { Key::Shard(shard) } else { Key::Note(shard, page) })
            .collect();
        let found = self.documents.get(&keys, false).await?;
        let notes = keys.iter().zip(found).map(|(key, found)| async move {
            let Key::Shard(shard) = key else { return self.note_in(*key, &found) };
            let standing = self.with_led_mark(shard, self.understand(shard, found)?).await?;
            Ok(self.orders_in(&standing))
        });
        let notes = parallel::all(notes).await.into_iter().map(|note| match note {
            // It is not about one note alone.
            Err(error) if !error.kind.is_final() => Err(error),
            note => Ok(note),
        });
        notes.collect()
    }

    async fn replace_orders(
        &self,
        shard: &Shard,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let standing = self.look(shard, false, false, Reader::Writer).await?;
            if self.orders_in(&standing).map(|note| note.text).as_deref() != expected {
                return Ok(false);
            }
            if expected.is_none() && draft.is_none() {
                return Ok(true);
            }
            let orders = draft.map(|draft| Orders::new(draft, &*self.documents));
            if let (Content::Foreign { .. }, Some(over)) = (&standing.found.content, &standing.led) {
                // While another program leads, the led mark alone has them.
                let mut mark = LedMark::read(over);
                mark.shared.orders = orders;
                if self.put_led_mark(shard, &mark, over).await? {
                    return Ok(true);
                }
                continue;
            }
            let mut document = self.continued(shard, &standing);
            document.orders = orders;
            let is_new = matches!(standing.found.content, Content::Absent);
            let ends = if is_new { Ends::Never } else { Ends::Keep };
            if self.rewrite(shard, &document, 0, ends, Over::Text(&standing.found)).await?.is_some() {
                if self.properties.is_shared {
                    let kept = self.keep_orders(shard, document.orders.as_ref()).await;
                    kept.map_err(StoreError::after_a_part)?;
                }
                return Ok(true);
            }
        }
        Err(self.too_fast(Key::Shard(shard)))
    }

    /// Copies the orders of the document into the led mark: `written`, if the document is gone by now.
    async fn keep_orders(&self, shard: &Shard, written: Option<&Orders>) -> Result<(), StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            // In this order, so that of two writers the one that writes the mark last has seen the other's orders.
            let found = self.get_one(Key::Led(shard)).await?;
            let standing = self.look(shard, false, false, Reader::Writer).await?;
            let mut mark = LedMark::read(&found);
            let orders = standing.document.as_ref().map_or(written, |document| document.orders.as_ref());
            mark.shared.orders = orders.cloned();
            if self.put_led_mark(shard, &mark, &found).await? {
                return Ok(());
            }
        }
        Err(self.too_fast(Key::Led(shard)))
    }

    async fn replace_note(
        &self,
        shard: &Shard,
        page: &Page,
        draft: Option<&Note>,
        is_expected: impl Fn(Option<&str>) -> bool,
    ) -> Result<bool, StoreError> {
        let (key, place) = (Key::Note(shard, page), (shard.clone(), page.clone()));
        let mut known = self.known_notes.lock().remove(&place);
        for _ in 0..MOST_ATTEMPTS {
            let (found, is_fresh) = match known.take() {
                Some(known) => (known, false),
                None => (self.get_one(key).await?, true),
            };
            let standing = self.note_in(key, &found)?.map(|note| note.text);
            if !is_expected(standing.as_deref()) {
                if is_fresh {
                    return Ok(false);
                }
                // Another process may have written it since.
                continue;
            }
            if draft.is_none() && standing.is_none() && is_fresh {
                return Ok(true);
            }
            if draft.is_none() && matches!(page, Page::Standby(_)) {
                return self.documents.remove(key).await.map(|()| true);
            }
            let ends = draft.map_or(Ends::Now, |draft| draft.lasts.map_or(Ends::Never, Ends::In));
            let text = draft.map_or("", |draft| &draft.text);
            let draft = Draft { ends, ..lasting(text) };
            if let Some(written) = self.documents.put(key, draft, Over::Exactly(&found)).await? {
                self.known_notes.lock().insert(place, written);
                return Ok(true);
            }
        }
        Err(self.too_fast(key))
    }

    pub(super) async fn remove_notes(&self, shard: &Shard) -> Result<(), StoreError> {
        let mut notes = Vec::new();
        self.documents.list(List::Notes(shard), &mut |listed| notes.extend(listed)).await?;
        for Listed { part, found, .. } in notes {
            let Part::Note(page) = part else { continue };
            match &found.content {
                // Nothing is written over what cannot be read.
                Content::Unreadable(_) => self.documents.remove(Key::Note(shard, &page)).await?,
                Content::Ours(ours) if !ours.text.is_empty() => {
                    self.known_notes.lock().insert((shard.clone(), page.clone()), found);
                    self.replace_note(shard, &page, None, |_| true).await?;
                }
                Content::Absent | Content::Ours(_) | Content::Foreign { .. } => {}
            }
        }
        Ok(())
    }
}
