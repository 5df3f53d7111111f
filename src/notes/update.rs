//! Changes a note that others may change at the same time: read, edit, and write if nothing has changed since.
//!
//! The hazard: a write may be applied although its answer was lost. A second write would be refused, or would change
//! what another writer has put there since. So [`update`] returns the error, or reads the note again and applies the
//! edit to what is there now. Each edit recognises its own work, and leaves it.

use crate::lease::Shard;
use crate::store::{Answer, ErrorKind, Note, Notes, Page, StoreError};

/// The most attempts while others keep changing the note.
const MOST_ATTEMPTS: usize = 10;

pub enum Edit<T> {
    Leave(T),
    /// None removes the note.
    Replace(Option<Note>, T),
}

pub enum Start {
    Read,
    /// Does not read first, because the note probably has this text, or is absent (None).
    Expect(Option<String>),
    /// As `Read`, for changes that nobody repeats: after an unknown outcome the note is read again.
    ReadAndMakeSure,
}

/// Applies `edit` to the note on `page`, again whenever the note has changed. `what` names the note in messages. The
/// error is `Unknown` if any write may have been applied, whatever became of the last attempt.
pub async fn update<T>(
    store: &dyn Notes,
    shard: &Shard,
    page: &Page,
    what: &str,
    start: Start,
    mut edit: impl FnMut(Option<&Note>) -> Answer<Edit<T>>,
) -> Answer<T> {
    let makes_sure = matches!(start, Start::ReadAndMakeSure);
    let mut expected = if let Start::Expect(text) = start { Some(text) } else { None };
    let mut doubt: Option<StoreError> = None;
    for _ in 0..MOST_ATTEMPTS {
        let standing = match expected.take() {
            Some(text) => Ok(text.map(Note::for_ever)),
            None => store.read(shard, page).await,
        };
        let edited = standing.and_then(|standing| Ok((edit(standing.as_ref())?, standing)));
        let (draft, answer, standing) = match edited {
            Ok((Edit::Leave(answer), _)) => return Ok(answer),
            Ok((Edit::Replace(draft, answer), standing)) => (draft, answer, standing),
            Err(error) => return Err(doubt.unwrap_or(error)),
        };
        let before = standing.as_ref().map(|note| note.text.as_str());
        match store.replace(shard, page, before, draft.as_ref()).await {
            Ok(true) => return Ok(answer),
            Ok(false) => {}
            Err(error) if makes_sure && error.kind == ErrorKind::Unknown => doubt = Some(error),
            Err(error) => return Err(doubt.unwrap_or(error)),
        }
    }
    Err(doubt.unwrap_or_else(|| StoreError::not_applied(format!("others keep changing the {what} of shard {shard}"))))
}

pub async fn remove(store: &dyn Notes, shard: &Shard, page: &Page, what: &str) -> Answer<()> {
    update(store, shard, page, what, Start::Read, |standing| {
        Ok(if standing.is_some() { Edit::Replace(None, ()) } else { Edit::Leave(()) })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::lease_store::LeaseStore;
    use std::sync::Mutex;
    use std::time::Duration;

    /// A store that applies writes, and loses the answers to the first few.
    #[derive(Default)]
    struct Lossy {
        memory: LeaseStore,
        /// How many answers it still loses.
        losses: Mutex<usize>,
        reads: Mutex<usize>,
        /// After this many reads it denies them.
        denied_after: Option<usize>,
    }

    #[async_trait::async_trait]
    impl Notes for Lossy {
        async fn read(&self, shard: &Shard, page: &Page) -> Answer<Option<Note>> {
            let reads = {
                let mut reads = self.reads.lock().unwrap();
                *reads += 1;
                *reads
            };
            if self.denied_after.is_some_and(|most| reads > most) {
                return Err(StoreError::denied("no"));
            }
            self.memory.read(shard, page).await
        }

        async fn replace(
            &self,
            shard: &Shard,
            page: &Page,
            expected: Option<&str>,
            draft: Option<&Note>,
        ) -> Answer<bool> {
            let answer = self.memory.replace(shard, page, expected, draft).await;
            let mut losses = self.losses.lock().unwrap();
            if *losses > 0 {
                *losses -= 1;
                return Err(StoreError::unknown("the answer was lost"));
            }
            answer
        }

        async fn standbys(&self, prefix: &str) -> Answer<Vec<(Shard, Note)>> {
            self.memory.standbys(prefix).await
        }
    }

    /// Appends an x to a text without one.
    async fn append(store: &Lossy, start: Start) -> Answer<()> {
        let edit = |standing: Option<&Note>| {
            let text = standing.map_or("", |note| note.text.as_str());
            let more = || Edit::Replace(Some(Note::for_ever(format!("{text}x"))), ());
            Ok(if text.contains('x') { Edit::Leave(()) } else { more() })
        };
        update(store, &"db".parse().unwrap(), &Page::History, "history", start, edit).await
    }

    async fn text(store: &Lossy) -> Option<String> {
        store.memory.read(&"db".parse().unwrap(), &Page::History).await.unwrap().map(|note| note.text)
    }

    #[tokio::test]
    async fn a_write_whose_answer_was_lost_is_found_and_not_made_again() {
        let store = Lossy { losses: Mutex::new(1), ..Lossy::default() };
        append(&store, Start::ReadAndMakeSure).await.unwrap();
        assert_eq!((text(&store).await.as_deref(), *store.reads.lock().unwrap()), (Some("x"), 2));
        let store = Lossy { losses: Mutex::new(1), ..Lossy::default() };
        assert_eq!(append(&store, Start::Read).await.unwrap_err().kind, ErrorKind::Unknown);
    }

    #[tokio::test]
    async fn an_outcome_stays_unknown_if_the_note_cannot_be_read_again() {
        let store = Lossy { losses: Mutex::new(1), denied_after: Some(1), ..Lossy::default() };
        assert_eq!(append(&store, Start::ReadAndMakeSure).await.unwrap_err().kind, ErrorKind::Unknown);
        let store = Lossy { denied_after: Some(0), ..Lossy::default() };
        assert_eq!(append(&store, Start::ReadAndMakeSure).await.unwrap_err().kind, ErrorKind::Denied);
    }

    #[tokio::test]
    async fn a_guess_that_is_right_needs_no_read_and_one_that_is_wrong_changes_nothing() {
        let store = Lossy::default();
        append(&store, Start::Expect(None)).await.unwrap();
        assert_eq!((text(&store).await.as_deref(), *store.reads.lock().unwrap()), (Some("x"), 0));
        append(&store, Start::Expect(Some("y".to_owned()))).await.unwrap();
        assert_eq!((text(&store).await.as_deref(), *store.reads.lock().unwrap()), (Some("x"), 1));
    }

    #[tokio::test]
    async fn attempts_have_an_end() {
        let (store, shard) = (Lossy { losses: Mutex::new(usize::MAX), ..Lossy::default() }, "db".parse().unwrap());
        let mut count = 0;
        let edit = |_: Option<&Note>| {
            count += 1;
            let ends = Some(Duration::from_mins(1));
            Ok(Edit::Replace(Some(Note::lasting("x".to_owned(), ends)), ()))
        };
        let error = update(&store, &shard, &Page::Orders, "orders", Start::ReadAndMakeSure, edit).await.unwrap_err();
        assert_eq!((error.kind, count), (ErrorKind::Unknown, MOST_ATTEMPTS));
    }
}
