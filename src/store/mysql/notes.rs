//! Notes in a table beside the table of leases, judged by the server's clock.
//!
//! The hazards:
//!
//! - A read may be behind (see `statement`). So the expected text is in the condition of the write, byte for byte: this
//!   database takes a text and the same one with a space behind it for equal. An INSERT that meets a row replaces it
//!   only if that note has ended.
//! - A candidate that crashed never removes its note. So writing a new note of a standby also removes notes that have
//!   ended, by their names and in their order: two writers that remove the same notes do not wait for each other in a
//!   circle.

use super::Mysql;
use super::connection::{Outcome, Row};
use super::server::Answer;
use super::statement::{MARKER, NOW, after, begins, micros, millis, text};
use crate::lease::Shard;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::rows::{FOR_EVER, LIST_PAGE, MOST_SWEPT, STANDBY, foreign_note, page_name};
use crate::store::{Note, NoteRead, Notes, Page, StoreError};
use std::collections::HashMap;

pub const NAMES: &str = "shard, page, text, expires_at, changes";
/// The condition that the note of a row `n` has not ended.
const STANDS: &str = "(n.expires_at IS NULL OR n.expires_at > UTC_TIMESTAMP(6))";
/// The text, and what is left of its time.
const COLUMNS: &str = "n.text, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), n.expires_at)";

/// When a draft ends.
fn end(draft: &Note) -> String {
    draft.lasts.map(millis).filter(|&millis| millis < FOR_EVER).map_or("NULL".to_owned(), after)
}

/// The statements about one note.
pub struct OneNote {
    table: String,
    shard: String,
    page: String,
}

impl OneNote {
    pub fn of(table: &str, shard: &str, page: &str) -> Self {
        Self { table: table.to_owned(), shard: text(shard), page: text(page) }
    }

    fn read(&self) -> String {
        let Self { table, shard, page } = self;
        format!("SELECT {COLUMNS} FROM {table} AS n WHERE n.shard = {shard} AND n.page = {page} AND {STANDS}")
    }

    pub fn add(&self, draft: &Note) -> String {
        let Self { table, shard, page } = self;
        let (words, end) = (text(&draft.text), end(draft));
        // The end is set last, because the others depend on it.
        format!(
            "INSERT INTO {table} ({NAMES}) VALUES ({shard}, {page}, {words}, {end}, 0) ON DUPLICATE KEY UPDATE \
             text = IF(expires_at <= {NOW}, {words}, text), \
             changes = IF(expires_at <= {NOW}, changes + 1, changes), \
             expires_at = IF(expires_at <= {NOW}, {end}, expires_at)"
        )
    }

    /// The condition that the note has this text.
    fn has(&self, expected: &str) -> String {
        let Self { shard, page, .. } = self;
        let expected = text(expected);
        format!(
            "n.shard = {shard} AND n.page = {page} AND CAST(n.text AS BINARY) = CAST({expected} AS BINARY) AND {STANDS}"
        )
    }

    pub fn change(&self, expected: &str, draft: &Note) -> String {
        let (table, has, words, end) = (&self.table, self.has(expected), text(&draft.text), end(draft));
        format!("UPDATE {table} AS n SET n.text = {words}, n.expires_at = {end}, n.changes = n.changes + 1 WHERE {has}")
    }

    pub fn remove(&self, expected: &str) -> String {
        let (table, has) = (&self.table, self.has(expected));
        format!("DELETE n FROM {table} AS n WHERE {has}")
    }
}

impl Mysql {
    async fn ask_for_notes(&self, statements: &str) -> Result<Answer, StoreError> {
        self.server.ask(&self.server.notes, statements).await
    }

    fn note_of(&self, shard: &Shard, page: &Page) -> OneNote {
        OneNote::of(&self.server.notes.table, shard.as_str(), &page_name(page))
    }

    /// Reads notes in one request.
    pub(super) async fn read_page(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        let names = wanted.iter().map(|(shard, page)| (shard.as_str().to_owned(), page_name(page)));
        let names: Vec<(String, String)> = names.collect();
        let listed: Vec<String> =
            names.iter().map(|(shard, page)| format!("({}, {})", text(shard), text(page))).collect();
        let question = format!(
            "SELECT {COLUMNS}, n.shard, n.page FROM {} AS n WHERE (n.shard, n.page) IN ({}) AND {STANDS}",
            self.server.notes.table,
            listed.join(", ")
        );
        let answer = self.ask_for_notes(&question).await?;
        let rows = answer.outcomes.first().map(|outcome| outcome.rows.as_slice()).unwrap_or_default();
        let read = |row: &Row| Some(((row.words(2)?, row.words(3)?), self.note(row).map(Some)));
        let mut found: HashMap<(String, String), NoteRead> = rows.iter().filter_map(read).collect();
        Ok(names.iter().map(|name| found.remove(name).unwrap_or(Ok(None))).collect())
    }

    pub(super) async fn forget_notes(&self, shard: &Shard) -> Result<(), StoreError> {
        let delete = format!("DELETE FROM {} WHERE shard = {}", self.server.notes.table, text(shard.as_str()));
        self.ask_for_notes(&delete).await.map(drop)
    }

    /// Statements that read the orders of these shards, behind others.
    pub(super) fn orders_of(&self, shards: &[Shard]) -> String {
        shards.iter().map(|shard| "; ".to_owned() + &self.note_of(shard, &Page::Orders).read()).collect()
    }

    /// The answers to [`Mysql::orders_of`], from the answer `first` on. None if they are missing, or another program
    /// wrote them.
    pub(super) fn orders_in(answer: &Answer, first: usize, shards: usize) -> Option<Vec<Option<Note>>> {
        let note = |outcome: &Outcome| match outcome.rows.first() {
            None => Some(None),
            Some(row) => read(row).map(Some),
        };
        answer.outcomes.get(first..first + shards)?.iter().map(note).collect()
    }

    fn note(&self, row: &Row) -> Result<Note, StoreError> {
        read(row).ok_or_else(|| foreign_note(&self.server.notes.table))
    }

    /// Removes notes of standbys that have ended: those that are `listed`.
    async fn sweep(&self, listed: &[Row]) {
        let table = &self.server.notes.table;
        let named = |row: &Row| Some(format!("(shard = {} AND page = {})", text(&row.words(0)?), text(&row.words(1)?)));
        let named: Vec<String> = listed.iter().filter_map(named).collect();
        if !named.is_empty() {
            let delete = format!("DELETE FROM {table} WHERE expires_at <= {NOW} AND ({})", named.join(" OR "));
            // The next one to write a note does what was not done here.
            let _ = self.ask_for_notes(&delete).await;
        }
    }
}

/// The note in the first columns of a row.
fn read(row: &Row) -> Option<Note> {
    let left = if row.is_null(1) { None } else { Some(micros(row.number(1)?)) };
    Some(Note::lasting(row.words(0)?, left))
}

#[async_trait::async_trait]
impl Notes for Mysql {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        let answer = self.ask_for_notes(&self.note_of(shard, page).read()).await?;
        answer.outcomes.first().and_then(|outcome| outcome.rows.first()).map(|row| self.note(row)).transpose()
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let note = self.note_of(shard, page);
        let statement = match (expected, draft) {
            (None, None) => return Ok(self.read(shard, page).await?.is_none()),
            (None, Some(draft)) => note.add(draft),
            (Some(expected), Some(draft)) => note.change(expected, draft),
            (Some(expected), None) => note.remove(expected),
        };
        if !matches!((expected, page), (None, Page::Standby(_))) {
            return Ok(self.ask_for_notes(&statement).await?.changed(0) > Some(0));
        }
        let table = &self.server.notes.table;
        let ended = format!(
            "SELECT n.shard, n.page FROM {table} AS n WHERE {} AND n.expires_at <= {NOW} \
             ORDER BY n.shard, n.page LIMIT {MOST_SWEPT}",
            begins("n.page", STANDBY)
        );
        let answer = self.server.ask_for(1, &self.server.notes, &format!("{statement}; {ended}")).await?;
        if let Some(ended) = answer.outcomes.get(1) {
            self.sweep(&ended.rows).await;
        }
        Ok(answer.changed(0) > Some(0))
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let (table, of_shards, of_standbys) =
            (&self.server.notes.table, begins("n.shard", prefix), begins("n.page", STANDBY));
        let (mut standbys, mut last) = (Vec::new(), (MARKER.to_owned(), MARKER.to_owned()));
        loop {
            let (shard, page) = &last;
            let question = format!(
                "SELECT {COLUMNS}, n.shard, n.page FROM {table} AS n WHERE {of_shards} AND {of_standbys} AND {STANDS} \
                 AND n.shard >= {shard} AND (n.shard > {shard} OR n.page > {page}) \
                 ORDER BY n.shard, n.page LIMIT {LIST_PAGE}"
            );
            let answer = self.ask_for_notes(&question).await?;
            let rows = answer.outcomes.first().map(|outcome| outcome.rows.as_slice()).unwrap_or_default();
            for row in rows {
                // Another program wrote a name that no shard has.
                let Some(Ok(shard)) = row.text(2).map(str::parse::<Shard>) else { continue };
                standbys.push((shard, self.note(row)?));
            }
            if standbys.len() > MOST_LISTED {
                return Err(allowance::too_long(&self.server.site.server));
            }
            let Some(end) = rows.last().filter(|_| rows.len() >= LIST_PAGE) else { return Ok(standbys) };
            let end = end.words(2).zip(end.words(3)).ok_or_else(|| self.not_understood())?;
            last = (text(&end.0), text(&end.1));
        }
    }
}
