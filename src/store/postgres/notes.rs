//! Notes in a table beside the table of leases, judged by the server's clock.
//!
//! The hazards:
//!
//! - A read may be behind (see `statement`). So the expected text is in the condition of the write, which is checked
//!   again once the row is locked; an INSERT that meets a row replaces it only if that note has ended.
//! - A candidate that crashed never removes its note. So writing a new note of a standby also removes notes that have
//!   ended. It skips rows that others have locked, and waits for nothing: two writers that removed each other's notes
//!   would otherwise wait for each other.
//! - This table is newer than the other one: a database that an earlier release prepared does not have it.

use super::Postgres;
use super::connection::Parameters;
use super::grants::Relation;
use super::server::Answer;
use super::statement::{Statements, integer, millis, number, seconds, text, texts};
use crate::lease::Shard;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::rows::{FOR_EVER, LIST_PAGE, MOST_SWEPT, STANDBY, foreign_note, page_name};
use crate::store::{Note, NoteRead, Notes, Page, StoreError};
use tokio_postgres::Row;

pub fn creation(table: &Relation) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (shard text COLLATE \"C\", page text COLLATE \"C\", \
         text text COLLATE \"C\" NOT NULL, expires_at timestamptz, PRIMARY KEY (shard, page))"
    )
}

pub const COLUMNS: &str = "shard, page, text, expires_at";

/// The condition that the note of a row `n` has not ended at `c.now`.
const STANDS: &str = "(n.expires_at IS NULL OR n.expires_at > c.now)";
const TEXT: &str = "n.text::text";
const LEFT: &str = "extract(epoch FROM n.expires_at)::float8 - extract(epoch FROM c.now)::float8";

impl Statements {
    /// Parameters: shard, page. Returns: a row with the note, or none.
    pub fn read_note(&self) -> String {
        let (context, notes) = (self.context(false), &self.notes);
        format!(
            "WITH {context} SELECT {TEXT}, {LEFT} FROM c JOIN {notes} AS n ON n.shard = $1 AND n.page = $2 AND {STANDS}"
        )
    }

    /// Parameters: shards, and as many pages. Returns: a row for each note that there is, which ends with its place
    /// among them, counted from one.
    fn read_notes(&self) -> String {
        let (context, notes) = (self.context(false), &self.notes);
        format!(
            "WITH {context} SELECT {TEXT}, {LEFT}, w.place FROM c \
             CROSS JOIN unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (shard, page, place) \
             JOIN {notes} AS n ON n.shard = w.shard AND n.page = w.page AND {STANDS}"
        )
    }

    /// Two columns for the answer to another statement: the orders of the shard that parameter `number` names.
    pub(super) fn orders(&self, number: usize) -> String {
        let (notes, page) = (&self.notes, page_name(&Page::Orders));
        let column = |what| {
            format!(
                "(SELECT {what} FROM {notes} AS n WHERE n.shard = ${number} AND n.page = '{page}' AND {STANDS} LIMIT 1), "
            )
        };
        column(TEXT) + &column(LEFT)
    }

    /// Parameters: shard, page, text, and the milliseconds that it lasts. Returns: whether it was applied.
    pub fn add_note(&self) -> String {
        let (context, notes) = (self.context(false), &self.notes);
        // After the write, and only if it was applied: so nothing is locked while the write waits for its row.
        format!(
            "WITH {context}, w AS (INSERT INTO {notes} AS n (shard, page, text, expires_at) \
             SELECT $1, $2, $3, c.now + $4 * interval '1 millisecond' FROM c \
             ON CONFLICT (shard, page) DO UPDATE SET text = excluded.text, expires_at = excluded.expires_at \
             WHERE n.expires_at <= (SELECT c.now FROM c) RETURNING n.shard), \
             ended AS MATERIALIZED (SELECT e.shard, e.page FROM {notes} AS e, c \
             WHERE starts_with($2, '{STANDBY}') AND EXISTS (SELECT FROM w) \
             AND starts_with(e.page::text, '{STANDBY}') AND e.expires_at <= c.now AND (e.shard, e.page) <> ($1, $2) \
             LIMIT {MOST_SWEPT} FOR UPDATE OF e SKIP LOCKED), \
             swept AS (DELETE FROM {notes} AS o USING ended WHERE o.shard = ended.shard AND o.page = ended.page) \
             SELECT (SELECT count(*) FROM w) > 0 FROM c"
        )
    }

    /// Parameters: shard, page, the present text, the new one, and the milliseconds that it lasts. Returns: whether it
    /// was applied.
    pub fn change_note(&self) -> String {
        let (context, notes) = (self.context(false), &self.notes);
        format!(
            "WITH {context}, w AS (UPDATE {notes} AS n SET text = $4, \
             expires_at = c.now + $5 * interval '1 millisecond' FROM c \
             WHERE n.shard = $1 AND n.page = $2 AND n.text = $3 AND {STANDS} RETURNING n.shard) \
             SELECT (SELECT count(*) FROM w) > 0 FROM c"
        )
    }

    /// Parameters: shard, page, the present text. Returns: whether it was applied.
    pub fn remove_note(&self) -> String {
        let (context, notes) = (self.context(false), &self.notes);
        format!(
            "WITH {context}, w AS (DELETE FROM {notes} AS n USING c \
             WHERE n.shard = $1 AND n.page = $2 AND n.text = $3 AND {STANDS} RETURNING n.shard) \
             SELECT (SELECT count(*) FROM w) > 0 FROM c"
        )
    }

    /// Parameter: shard. Returns nothing.
    fn forget_notes(&self) -> String {
        let notes = &self.notes;
        format!("DELETE FROM {notes} WHERE shard = $1")
    }

    /// Parameters: the prefix of the shards, and shard and page of the last row of the page before, or empty texts.
    /// Returns: a page of rows, one for each note of a standby, which ends with the shard and the note's own page.
    fn standbys(&self) -> String {
        let (context, notes) = (self.context(false), &self.notes);
        format!(
            "WITH {context} SELECT {TEXT}, {LEFT}, n.shard::text, n.page::text FROM c CROSS JOIN {notes} AS n \
             WHERE starts_with(n.page::text, '{STANDBY}') AND starts_with(n.shard::text, $1) AND {STANDS} \
             AND (n.shard, n.page) > ($2, $3) ORDER BY n.shard, n.page LIMIT {LIST_PAGE}"
        )
    }
}

/// The duration in milliseconds. None: for ever.
fn lasting_millis(draft: &Note) -> Option<i64> {
    draft.lasts.map(millis).filter(|&millis| millis < integer(FOR_EVER))
}

impl Postgres {
    async fn ask_for_notes(&self, statement: &str, parameters: &Parameters<'_>) -> Result<Answer, StoreError> {
        let Self { server, .. } = self;
        server.ask_about(&server.notes, |_| statement.to_owned(), parameters, server.deadline()).await
    }

    /// Reads notes in one request.
    pub(super) async fn read_page(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        let shards: Vec<&str> = wanted.iter().map(|(shard, _)| shard.as_str()).collect();
        let pages: Vec<String> = wanted.iter().map(|(_, page)| page_name(page)).collect();
        let statement = self.server.statements.read_notes();
        let answer = self.ask_for_notes(&statement, &[texts(&shards), texts(&pages)]).await?;
        let mut notes: Vec<NoteRead> = wanted.iter().map(|_| Ok(None)).collect();
        for row in &answer.rows {
            let place = row.try_get::<_, i64>(2).ok().and_then(|place| usize::try_from(place - 1).ok());
            let note = place.and_then(|place| notes.get_mut(place)).ok_or_else(|| self.not_understood())?;
            *note = self.note(row).map(Some);
        }
        Ok(notes)
    }

    pub(super) async fn forget_notes(&self, shard: &Shard) -> Result<(), StoreError> {
        self.ask_for_notes(&self.server.statements.forget_notes(), &[text(&shard.as_str())]).await.map(drop)
    }

    /// The orders of so many shards in the answer to a renewal. None if another program wrote them.
    pub(super) fn orders_in(row: &Row, shards: usize) -> Option<Vec<Option<Note>>> {
        let note = |index: usize| {
            let text: Option<String> = row.try_get(2 + 2 * index).ok()?;
            let lasts: Option<f64> = row.try_get(3 + 2 * index).ok()?;
            Some(text.map(|text| Note::lasting(text, lasts.map(seconds))))
        };
        (0..shards).map(note).collect()
    }

    /// The note in the first columns of a row.
    fn note(&self, row: &Row) -> Result<Note, StoreError> {
        let foreign = |_| foreign_note(&self.server.statements.notes);
        let lasts: Option<f64> = row.try_get(1).map_err(foreign)?;
        Ok(Note::lasting(row.try_get(0).map_err(foreign)?, lasts.map(seconds)))
    }
}

#[async_trait::async_trait]
impl Notes for Postgres {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        let (shard, name, statement) = (shard.as_str(), page_name(page), self.server.statements.read_note());
        let parameters = [text(&shard), text(&name)];
        let answer = match page {
            // COMMAND waits for them, while the announcement of the standby is withdrawn over the connection.
            Page::Orders => {
                let Self { server, .. } = self;
                server.ask_urgently(&server.notes, &statement, &parameters, server.deadline()).await?
            }
            Page::History | Page::Standby(_) | Page::Runs | Page::Once(_) => {
                self.ask_for_notes(&statement, &parameters).await?
            }
        };
        answer.rows.first().map(|row| self.note(row)).transpose()
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let (shard_name, page_text, statements) = (shard.as_str(), page_name(page), &self.server.statements);
        let (shard_name, page_text) = (text(&shard_name), text(&page_text));
        let answer = match (expected, draft) {
            (None, None) => return Ok(self.read(shard, page).await?.is_none()),
            (None, Some(draft)) => {
                let lasts = lasting_millis(draft);
                let parameters = [shard_name, page_text, text(&draft.text), number(&lasts)];
                self.ask_for_notes(&statements.add_note(), &parameters).await?
            }
            (Some(expected), Some(draft)) => {
                let lasts = lasting_millis(draft);
                let parameters = [shard_name, page_text, text(&expected), text(&draft.text), number(&lasts)];
                self.ask_for_notes(&statements.change_note(), &parameters).await?
            }
            (Some(expected), None) => {
                self.ask_for_notes(&statements.remove_note(), &[shard_name, page_text, text(&expected)]).await?
            }
        };
        self.first(&answer)?.try_get(0).map_err(|_| self.not_understood())
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let (mut standbys, mut last) = (Vec::new(), (String::new(), String::new()));
        loop {
            let parameters = [text(&prefix), text(&last.0), text(&last.1)];
            let answer = self.ask_for_notes(&self.server.statements.standbys(), &parameters).await?;
            for row in &answer.rows {
                // Another program wrote a name that no shard has.
                let Ok(Ok(shard)) = row.try_get::<_, &str>(2).map(str::parse::<Shard>) else { continue };
                standbys.push((shard, self.note(row)?));
            }
            if standbys.len() > MOST_LISTED {
                return Err(allowance::too_long(&self.server.site.server));
            }
            let Some(end) = answer.rows.last().filter(|_| answer.rows.len() >= LIST_PAGE) else { break };
            let end = end.try_get(2).and_then(|shard| Ok((shard, end.try_get(3)?)));
            last = end.map_err(|_| self.not_understood())?;
        }
        Ok(standbys)
    }
}
