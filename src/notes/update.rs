//! Changes a note that others may change at the same time: read, edit, and write if nothing has changed since.
//!
//! The hazard: a write may be applied although its answer was lost. To write again blindly would then be refused, or
//! would change what another writer has put there since. So after an unknown outcome the note is read again, and the
//! edit is applied to what is there now. Each edit recognises its own work, and leaves it.

use crate::lease::Shard;
use crate::store::{ErrorKind, Note, Notes, Page, StoreError};

/// The most attempts while others keep changing the note. After that the caller gets an error.
const MOST_ATTEMPTS: usize = 10;

/// What an edit does with a note. Both variants carry the answer for the caller.
pub enum Edit<T> {
    Leave(T),
    /// The new note. None removes the note.
    Replace(Option<Note>, T),
}

/// The text that the first attempt starts from.
pub enum Start {
    Read,
    /// The note probably has this text (None: it is absent), so it is not read first.
    Expect(Option<String>),
}

/// Applies `edit` to the note on `page`. Calls `edit` again with the present note whenever the note has changed, or may
/// have. `what` names the note in messages.
///
/// # Errors
/// Those of `edit`, and as [`Notes::replace`]; not applied where others keep changing the note.
pub async fn update<S: Notes + ?Sized, T>(
    store: &S,
    shard: &Shard,
    page: &Page,
    what: &str,
    start: Start,
    mut edit: impl FnMut(Option<&Note>) -> Result<Edit<T>, StoreError>,
) -> Result<T, StoreError> {
    let mut expected = match start {
        Start::Read => None,
        Start::Expect(text) => Some(text.map(Note::for_ever)),
    };
    let mut doubt = None;
    for _ in 0..MOST_ATTEMPTS {
        let (standing, is_read) = match expected.take() {
            Some(expected) => (expected, false),
            None => (store.read(shard, page).await?, true),
        };
        let (draft, answer) = match edit(standing.as_ref())? {
            Edit::Leave(answer) => return Ok(answer),
            Edit::Replace(draft, answer) => (draft, answer),
        };
        // An earlier attempt wrote it, and its answer was lost.
        if is_read && stands(standing.as_ref(), draft.as_ref()) {
            return Ok(answer);
        }
        let before = standing.as_ref().map(|note| note.text.as_str());
        match store.replace(shard, page, before, draft.as_ref()).await {
            Ok(true) => return Ok(answer),
            Ok(false) => {}
            Err(error) if error.kind == ErrorKind::Unknown => doubt = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(doubt.unwrap_or_else(|| StoreError::not_applied(format!("others keep changing the {what} of shard {shard}"))))
}

/// Whether nothing is left to write. A note that ends is written again, because that makes it end later.
fn stands(standing: Option<&Note>, draft: Option<&Note>) -> bool {
    match (standing, draft) {
        (None, None) => true,
        (Some(standing), Some(draft)) => standing.text == draft.text && draft.lasts.is_none(),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Memory;
    use std::sync::Mutex;
    use std::time::Duration;

    /// A store that applies writes, and loses the answers to the first few.
    #[derive(Default)]
    struct Lossy {
        memory: Memory,
        /// How many answers it still loses.
        losses: Mutex<usize>,
        reads: Mutex<usize>,
    }

    #[async_trait::async_trait]
    impl Notes for Lossy {
        async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
            *self.reads.lock().unwrap() += 1;
            self.memory.read(shard, page).await
        }

        async fn replace(
            &self,
            shard: &Shard,
            page: &Page,
            expected: Option<&str>,
            draft: Option<&Note>,
        ) -> Result<bool, StoreError> {
            let answer = self.memory.replace(shard, page, expected, draft).await;
            let mut losses = self.losses.lock().unwrap();
            if *losses > 0 {
                *losses -= 1;
                return Err(StoreError::unknown("the answer was lost"));
            }
            answer
        }

        async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
            self.memory.standbys(prefix).await
        }
    }

    async fn append(store: &Lossy, start: Start) -> Result<(), StoreError> {
        update(store, &"db".parse().unwrap(), &Page::History, "history", start, |standing| {
            let text = standing.map_or("", |note| note.text.as_str());
            let text = if text.contains('x') { text.to_owned() } else { format!("{text}x") };
            Ok(Edit::Replace(Some(Note::for_ever(text)), ()))
        })
        .await
    }

    async fn text(store: &Lossy) -> Option<String> {
        store.memory.read(&"db".parse().unwrap(), &Page::History).await.unwrap().map(|note| note.text)
    }

    #[tokio::test]
    async fn a_write_whose_answer_was_lost_is_found_and_not_made_again() {
        let store = Lossy { losses: Mutex::new(1), ..Lossy::default() };
        append(&store, Start::Read).await.unwrap();
        assert_eq!((text(&store).await.as_deref(), *store.reads.lock().unwrap()), (Some("x"), 2));
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
    async fn a_note_that_changes_without_end_is_given_up_and_an_unknown_outcome_stays_one() {
        let (store, shard) = (Lossy::default(), "db".parse().unwrap());
        let mut count = 0;
        let wrong = async |store: &Lossy| {
            update(store, &shard, &Page::Orders, "orders", Start::Read, |_| {
                count += 1;
                let ends = Some(Duration::from_mins(1));
                Ok(Edit::Replace(Some(Note::lasting("x".to_owned(), ends)), ()))
            })
            .await
        };
        *store.losses.lock().unwrap() = usize::MAX;
        let error = {
            let mut wrong = wrong;
            wrong(&store).await.unwrap_err()
        };
        assert_eq!((error.kind, count), (ErrorKind::Unknown, MOST_ATTEMPTS));
    }
}
