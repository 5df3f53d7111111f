//! The statements, of all dialects side by side, and how their rows are read.
//!
//! One table has all documents, a row for each:
//!
//! ```text
//! shard  part              version    text   session   term  sequence  ends
//! ''     marker            a write's  JSON   (below)   0     0         NULL
//! db     lease             random     JSON   leader's  7     3         in milliseconds since 1970, by the server's clock
//! db     led               name       JSON   ''        0     0         NULL: never
//! db     history, runs, jobs, once/JOB, standby/SESSION: notes
//! ```
//!
//! The hazards:
//!
//! - A statement sees the table as it was when the statement began; only the rows that it writes to are the latest. So
//!   every decision is in the condition of the write, which is checked again once the row is locked. A row that comes with
//!   a write that was not applied may be older than the one that prevented it.
//! - The clock is read once, before the statement waits for a row. So what ends by it ends early rather than late, but not
//!   before its time counted from when the request was sent.
//! - The server may have lost writes, or the rows come out of a dump. So each answer says in which incarnation of the
//!   table it was given, and a write applies only in the one in which its writer read.
//! - A row's values may be anything: another program may have written them, or a user by hand.
//!
//! PostgreSQL's incarnation is the timeline of the server's log, which changes after each failover and each recovery from a
//! backup, and the transaction that wrote the marker first: a row that was restored was written by another one than it
//! says. So the marker's session says which transaction wrote it, and for which incarnation.
//!
//! MySQL's is the server, and the time at which the table was made there: each node of a cluster has a clock of its own, so
//! it is another one. And it is the write of the marker that another one had made before: the marker's session says for
//! which it was written, so a renewal here does not count while a candidate elsewhere goes by its own clock. A dump that is
//! loaded into the table as it stands goes unnoticed.
//!
//! MySQL has no statement that changes a row and returns it. So a request is a transaction, sent at once: the write, and a
//! look at its row, which shows the latest write that was committed or our own. A proxy that sends what only reads to a
//! replica leaves a transaction that may write alone. What SQL means there depends on settings; so texts are hexadecimal.

use super::client::{Cell, Request, Value};
use crate::lease::{Session, Shard, Term};
use crate::store::Page;
use crate::store::lease_store::documents::{
    Content, Draft, Ends, Found, Key, Leadership, Life, List, Ours, Over, Part, Touch, Version,
};
use crate::store::stable_hash::fnv1a;
use crate::time::millis;
use std::fmt::Write as _;
use std::time::Duration;

/// The most rows in one answer.
pub const LIST_PAGE: usize = 500;
/// In place of the timeline, in the text of a request: not every server can tell it.
pub const TIMELINE: &str = "@timeline@";
/// The columns, in the order in which they are written.
pub const NAMES: &str = "shard, part, version, text, session, term, sequence, ends";
/// The number of the transaction, as `xmin` will show it.
const THIS_TRANSACTION: &str = "(txid_current() & 4294967295)::text";

const MARKER: &str = "marker";
const LEASE: &str = "lease";
const LED: &str = "led";
const ONCE: &str = "once/";
const STANDBY: &str = "standby/";
const SCRATCH: &str = "check/";
/// The longest duration: the server adds the time to it, in 63 bits.
const MOST_MILLIS: u64 = 1 << 62;

/// Which row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub shard: String,
    pub part: String,
}

impl Place {
    pub fn of(key: Key<'_>) -> Self {
        let (shard, part) = match key {
            Key::Marker => ("", MARKER.to_owned()),
            // The operators' orders are in the shard's own document.
            Key::Shard(shard) | Key::Note(shard, Page::Orders) => (shard.as_str(), LEASE.to_owned()),
            Key::Led(shard) => (shard.as_str(), LED.to_owned()),
            Key::Note(shard, Page::History) => (shard.as_str(), "history".to_owned()),
            Key::Note(shard, Page::Runs) => (shard.as_str(), "runs".to_owned()),
            Key::Note(shard, Page::Jobs) => (shard.as_str(), "jobs".to_owned()),
            Key::Note(shard, Page::Once(job)) => (shard.as_str(), format!("{ONCE}{job}")),
            Key::Note(shard, Page::Standby(session)) => (shard.as_str(), format!("{STANDBY}{}", session.as_str())),
            Key::Scratch(name) => ("", format!("{SCRATCH}{name}")),
        };
        Self { shard: shard.to_owned(), part }
    }

    /// The shard of a row in a list, and what it is to it. None for the row of anything else.
    pub fn listed(&self) -> Option<(Shard, Part)> {
        let note = |part: &str| match part {
            "history" => Some(Page::History),
            "runs" => Some(Page::Runs),
            "jobs" => Some(Page::Jobs),
            _ => match (part.strip_prefix(ONCE), part.strip_prefix(STANDBY)) {
                (Some(job), _) => Some(Page::Once(job.parse().ok()?)),
                (None, session) => Some(Page::Standby(Session::from_record(session?))),
            },
        };
        let part = match self.part.as_str() {
            LEASE => Part::Lease,
            LED => Part::Led,
            part => Part::Note(note(part)?),
        };
        Some((self.shard.parse().ok()?, part))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    /// Of MariaDB too.
    MySql,
}

/// The statements for one table.
pub struct Statements {
    pub dialect: Dialect,
    /// Its name, quoted.
    pub table: String,
    /// What tells this life of the server and of the table, in SQL.
    pub life: String,
    /// The channel on which changes are announced, where there is such a thing.
    pub channel: String,
    /// Bounds the wait for a row that another session has locked.
    pub patience: Duration,
}

/// The values of a request: beside its text, or in it where a request has several statements.
struct Values {
    dialect: Dialect,
    beside: Vec<Value>,
}

impl Values {
    fn value(&mut self, value: Value) -> String {
        match self.dialect {
            Dialect::Postgres => {
                self.beside.push(value);
                format!("${}", self.beside.len())
            }
            Dialect::MySql => match value {
                Value::Number(number) => number.to_string(),
                Value::Text(text) => literal(&text),
            },
        }
    }

    fn word(&mut self, text: &str) -> String {
        self.value(Value::Text(text.to_owned()))
    }

    fn number(&mut self, number: u64) -> String {
        self.value(Value::Number(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn duration(&mut self, duration: Duration) -> String {
        self.number(millis(duration).min(MOST_MILLIS))
    }

    fn with(self, text: String) -> Request {
        Request { text, values: self.beside }
    }
}

/// A text as no setting of MySQL changes its meaning.
pub fn literal(text: &str) -> String {
    let mut literal = "_utf8mb4 X'".to_owned();
    for byte in text.bytes() {
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push('\'');
    literal
}

/// The clock of MySQL when a statement begins, whatever the session's time zone is.
const NOW: &str = "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000)";

/// MySQL's incarnation, of the row of [`Statements::marker`].
const INCARNATION: &str = "CONCAT(c.life, ' ', CASE WHEN m.version IS NULL THEN 'new' \
    WHEN SUBSTRING_INDEX(m.session, ' ', 1) = c.life THEN SUBSTRING_INDEX(m.session, ' ', -1) ELSE m.version END)";

/// Statements of MySQL in one transaction, which is open while none was answered that ends it.
fn in_transaction(statements: &str) -> String {
    format!("START TRANSACTION READ WRITE; {statements}; COMMIT")
}

impl Statements {
    fn values(&self) -> Values {
        Values { dialect: self.dialect, beside: Vec::new() }
    }

    /// `c`: the clock, and the settings of this transaction: a server that does not wait for its disk may forget what it
    /// confirmed, and some poolers know no `statement_timeout`, which does not count once a statement has begun either.
    /// `i`: the incarnation, and which write of the marker this is.
    fn context(&self) -> String {
        let (table, life, patience) = (&self.table, &self.life, self.patience.as_millis().max(1));
        format!(
            "c AS MATERIALIZED (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, \
             {life} AS timeline, set_config('lock_timeout', '{patience}', true), \
             CASE WHEN current_setting('synchronous_commit') = 'off' \
             THEN set_config('synchronous_commit', 'local', true) END), \
             i AS MATERIALIZED (SELECT coalesce(m.version, '')::text AS marker, CASE \
             WHEN m.version IS NULL THEN c.timeline || ' new' \
             WHEN split_part(m.session, ' ', 1) = m.xmin::text AND split_part(m.session, ' ', 2) = c.timeline \
             THEN c.timeline || ' ' || split_part(m.session, ' ', 3) \
             ELSE c.timeline || ' ' || m.xmin::text END AS incarnation \
             FROM c LEFT JOIN {table} AS m ON m.shard = '' AND m.part = '{MARKER}')"
        )
    }

    /// The columns of the answer to every request but [`Statements::remove`], and one row at least, for the rows `r`.
    fn answer(&self, rows: &str) -> String {
        match self.dialect {
            Dialect::Postgres => format!(
                "SELECT c.now, i.incarnation, i.marker, r.shard::text, r.part::text, r.version::text, r.text::text, \
                 r.session::text, r.term::bigint, r.sequence::bigint, r.ends::bigint \
                 FROM c CROSS JOIN i LEFT JOIN ({rows}) AS r ON true"
            ),
            Dialect::MySql => format!(
                "SELECT c.now, {INCARNATION}, COALESCE(m.version, ''), r.shard, r.part, r.version, r.text, r.session, \
                 r.term, r.sequence, r.ends FROM {} LEFT JOIN ({rows}) AS r ON TRUE",
                self.marker()
            ),
        }
    }

    /// One row: MySQL's clock `c`, and the marker `m`, if there is one.
    fn marker(&self) -> String {
        let (table, life) = (&self.table, &self.life);
        format!(
            "(SELECT {NOW} AS now, {life} AS life) AS c LEFT JOIN {table} AS m ON m.shard = '' AND m.part = '{MARKER}'"
        )
    }

    /// The rows at these places.
    fn rows_at(&self, values: &mut Values, places: &[Place]) -> String {
        let at = |place: &Place| {
            let (shard, part) = (values.word(&place.shard), values.word(&place.part));
            format!("({shard}, {part})")
        };
        let places: Vec<String> = places.iter().map(at).collect();
        format!("SELECT {NAMES} FROM {} WHERE (shard, part) IN ({})", self.table, places.join(", "))
    }

    pub fn get(&self, places: &[Place]) -> Request {
        let mut values = self.values();
        let rows = self.rows_at(&mut values, places);
        let answer = self.answer(&rows);
        values.with(match self.dialect {
            Dialect::Postgres => format!("WITH {} {answer}", self.context()),
            Dialect::MySql => in_transaction(&answer),
        })
    }

    /// Writes a row over what was found: it is refused if another version stands there, or in another incarnation; over an
    /// absence, if anything stands there, or the marker was written again. The answer shows the row.
    pub fn put(&self, place: &Place, version: &str, draft: &Draft<'_>, over: Over<'_>) -> Request {
        let (found, judged) = match over {
            Over::Exactly(found) => (found, found.ours()),
            Over::Text(found) => (found, None),
        };
        let (is_new, is_marker) = (found.content == Content::Absent, place.part == MARKER);
        let mut values = self.values();
        let (shard, part) = (values.word(&place.shard), values.word(&place.part));
        let (version, text) = (values.word(version), values.word(draft.text));
        let before = values.word(&found.version.write);
        let incarnation = values.word(&found.version.incarnation);
        let (session, term) = draft.leadership.map_or(("", 0), |of| (of.session.as_str(), of.term.0));
        let term = values.number(term);
        let sequence = match draft.ends {
            Ends::Keep if !is_new => "d.sequence".to_owned(),
            Ends::Keep | Ends::In(_) | Ends::Now | Ends::Never => values.number(draft.sequence),
        };
        let now = match self.dialect {
            Dialect::Postgres => "c.now",
            Dialect::MySql => NOW,
        };
        let ends = match draft.ends {
            Ends::Keep if !is_new => "d.ends".to_owned(),
            Ends::Keep | Ends::Never => "NULL".to_owned(),
            Ends::In(lasts) => format!("{now} + {}", values.duration(lasts)),
            Ends::Now => now.to_owned(),
        };
        // Where a lease was judged, it must not have been prolonged since.
        let judged = judged.map(|ours| {
            let sequence = values.number(ours.sequence);
            match ours.life {
                Life::Ends(ends) => format!("AND d.sequence = {sequence} AND d.ends = {}", values.number(ends)),
                _ => format!("AND d.sequence = {sequence} AND d.ends IS NULL"),
            }
        });
        let (table, judged) = (&self.table, judged.unwrap_or_default());
        let rows = self.rows_at(&mut values, std::slice::from_ref(place));
        let text = match self.dialect {
            Dialect::Postgres => {
                let context = self.context();
                let session = if is_marker {
                    format!("{THIS_TRANSACTION} || ' ' || i.incarnation")
                } else {
                    values.word(session)
                };
                let write = if is_new {
                    format!(
                        "INSERT INTO {table} AS d ({NAMES}) \
                         SELECT {shard}, {part}, {version}, {text}, {session}, {term}, {sequence}, {ends} FROM c, i \
                         WHERE i.incarnation = {incarnation} AND i.marker = {before} \
                         ON CONFLICT (shard, part) DO NOTHING RETURNING {NAMES}"
                    )
                } else {
                    format!(
                        "UPDATE {table} AS d SET version = {version}, text = {text}, session = {session}, \
                         term = {term}, sequence = {sequence}, ends = {ends} FROM c, i \
                         WHERE d.shard = {shard} AND d.part = {part} AND d.version = {before} \
                         AND i.incarnation = {incarnation} {judged} RETURNING d.{}",
                        NAMES.replace(", ", ", d.")
                    )
                };
                // Only if it was applied, and with it.
                let (notice, told) = if draft.wakes {
                    let notice = format!(
                        ", n AS (SELECT pg_notify({}, w.shard)::text AS told FROM w)",
                        values.word(&self.channel)
                    );
                    (notice, " WHERE (SELECT count(n.told) FROM n) >= 0")
                } else {
                    (String::new(), "")
                };
                let answer = self.answer(&format!("SELECT * FROM w UNION ALL {rows} AND NOT EXISTS (SELECT FROM w)"));
                format!("WITH {context}, w AS ({write}){notice} {answer}{told}")
            }
            // What a replica makes of a logged statement must not depend on the replica, so it has values.
            Dialect::MySql => {
                let session = if is_marker { "@incarnation".to_owned() } else { values.word(session) };
                let same = format!("CAST(@incarnation AS BINARY) = CAST({incarnation} AS BINARY)");
                let write = if is_new {
                    format!(
                        "SET @right = {same} AND @marker = {before}; INSERT INTO {table} ({NAMES}) \
                         SELECT {shard}, {part}, {version}, {text}, {session}, {term}, {sequence}, {ends} \
                         FROM (SELECT 1 AS one) AS c WHERE @right ON DUPLICATE KEY UPDATE sequence = {table}.sequence"
                    )
                } else {
                    format!(
                        "SET @right = {same}; UPDATE {table} AS d SET d.version = {version}, d.text = {text}, \
                         d.session = {session}, d.term = {term}, d.sequence = {sequence}, d.ends = {ends} \
                         WHERE d.shard = {shard} AND d.part = {part} AND d.version = {before} AND @right {judged}"
                    )
                };
                let context = format!(
                    "SELECT {INCARNATION}, COALESCE(m.version, '') INTO @incarnation, @marker FROM {}",
                    self.marker()
                );
                let answer = self.answer(&rows);
                in_transaction(&format!("{context}; {write}; {answer}"))
            }
        };
        values.with(text)
    }

    /// Renews, if the row names this leadership with a lower sequence. The answer shows the row, and the others.
    pub fn touch(&self, touch: &Touch<'_>, also: &[Place]) -> Request {
        let mut values = self.values();
        let place = Place::of(Key::Shard(touch.shard));
        let (shard, session) = (values.word(&place.shard), values.word(touch.leadership.session.as_str()));
        let (term, sequence) = (values.number(touch.leadership.term.0), values.number(touch.sequence));
        let (table, lease) = (&self.table, values.duration(touch.lease));
        let text = match self.dialect {
            Dialect::Postgres => {
                let own = self.rows_at(&mut values, std::slice::from_ref(&place));
                let others = if also.is_empty() { String::new() } else { self.rows_at(&mut values, also) };
                let others = if others.is_empty() { others } else { format!(" UNION ALL {others}") };
                let rows = format!("SELECT * FROM w UNION ALL {own} AND NOT EXISTS (SELECT FROM w){others}");
                format!(
                    "WITH {}, w AS (UPDATE {table} AS d SET sequence = {sequence}, ends = c.now + {lease} FROM c \
                     WHERE d.shard = {shard} AND d.part = '{LEASE}' AND d.session = {session} AND d.term = {term} \
                     AND d.sequence < {sequence} RETURNING d.{}) {}",
                    self.context(),
                    NAMES.replace(", ", ", d."),
                    self.answer(&rows)
                )
            }
            Dialect::MySql => {
                let rows = self.rows_at(&mut values, &[std::slice::from_ref(&place), also].concat());
                in_transaction(&format!(
                    "UPDATE {table} AS d SET d.sequence = {sequence}, d.ends = {NOW} + {lease} \
                     WHERE d.shard = {shard} AND d.part = '{LEASE}' AND d.session = {session} AND d.term = {term} \
                     AND d.sequence < {sequence}; {}",
                    self.answer(&rows)
                ))
            }
        };
        values.with(text)
    }

    /// Without WITH, because PostgreSQL's rule against deleting leases is applied to this statement.
    pub fn remove(&self, place: &Place) -> Request {
        let mut values = self.values();
        let (shard, part) = (values.word(&place.shard), values.word(&place.part));
        let deletion = format!("DELETE FROM {} WHERE shard = {shard} AND part = {part}", self.table);
        values.with(match self.dialect {
            Dialect::Postgres => deletion,
            Dialect::MySql => in_transaction(&deletion),
        })
    }

    /// A page of the rows `behind` this place, in the order of shard and part.
    pub fn list(&self, list: List<'_>, behind: &Place) -> Request {
        let mut values = self.values();
        let (shard, part) = (values.word(&behind.shard), values.word(&behind.part));
        let mut begins = |column: &str, with: &str| {
            let begin = values.word(with);
            match self.dialect {
                Dialect::Postgres => format!("starts_with({column}, {begin})"),
                // By an index, as far as it goes.
                Dialect::MySql => {
                    format!("{column} >= {begin} AND LEFT({column}, {}) = {begin}", with.chars().count())
                }
            }
        };
        let which = match list {
            List::Shards(prefix) => format!("part = '{LEASE}' AND {}", begins("shard", prefix)),
            List::Standbys(prefix) => format!("{} AND {}", begins("part", STANDBY), begins("shard", prefix)),
            List::Notes(of) => {
                format!("part NOT IN ('{LEASE}', '{LED}') AND shard = {}", values.word(of.as_str()))
            }
        };
        let rows = format!(
            "SELECT {NAMES} FROM {} WHERE {which} AND shard >= {shard} AND (shard > {shard} OR part > {part}) \
             ORDER BY shard, part LIMIT {LIST_PAGE}",
            self.table
        );
        let answer = format!("{} ORDER BY r.shard, r.part", self.answer(&rows));
        values.with(match self.dialect {
            Dialect::Postgres => format!("WITH {} {answer}", self.context()),
            Dialect::MySql => in_transaction(&answer),
        })
    }

    /// Makes the table, and what keeps a user from deleting the marker, a led mark, or a lease that is held.
    pub fn creation(&self) -> [String; 2] {
        let table = &self.table;
        match self.dialect {
            // Words compare byte by byte, but for spaces at their end. A database has one trigger of a name.
            Dialect::MySql => [
                format!(
                    "CREATE TABLE {table} (shard VARCHAR(200) NOT NULL, part VARCHAR(150) NOT NULL, \
                     version VARCHAR(64) NOT NULL, text MEDIUMTEXT NOT NULL, session VARCHAR(100) NOT NULL, \
                     term BIGINT NOT NULL, sequence BIGINT NOT NULL, ends BIGINT NULL, PRIMARY KEY (shard, part)) \
                     ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
                ),
                format!(
                    "CREATE TRIGGER {KEEP}_{:016x} BEFORE DELETE ON {table} FOR EACH ROW \
                     IF OLD.part IN ('{MARKER}', '{LED}') OR (OLD.part = '{LEASE}' \
                     AND {NOW} < OLD.ends + IF(OLD.session = '', 0, {A_DAY_MILLIS})) THEN SIGNAL SQLSTATE '45000' \
                     SET MESSAGE_TEXT = 'a lease that is held is not deleted: see leaderctl revoke'; END IF",
                    fnv1a(table.bytes())
                ),
            ],
            // Half of each page stays empty, so that a renewal finds room for the row's next version beside it.
            Dialect::Postgres => [
                format!(
                    "CREATE TABLE {table} (shard text COLLATE \"C\", part text COLLATE \"C\", \
                     version text COLLATE \"C\" NOT NULL, text text COLLATE \"C\" NOT NULL, \
                     session text COLLATE \"C\" NOT NULL, term bigint NOT NULL, sequence bigint NOT NULL, ends bigint, \
                     PRIMARY KEY (shard, part)) WITH (fillfactor = 50)"
                ),
                format!(
                    "CREATE OR REPLACE RULE {KEEP} AS ON DELETE TO {table} \
                     WHERE old.part IN ('{MARKER}', '{LED}') OR (old.part = '{LEASE}' \
                     AND extract(epoch FROM clock_timestamp()) * 1000 < \
                     old.ends + CASE WHEN old.session = '' THEN 0 ELSE {A_DAY_MILLIS} END) \
                     DO INSTEAD NOTHING; ALTER TABLE {table} ENABLE RULE {KEEP}"
                ),
            ],
        }
    }
}

/// The name of what keeps what has to stay from a DELETE.
pub const KEEP: &str = "leaderrun_keep";
const A_DAY_MILLIS: u64 = 24 * 3600 * 1000;

/// A row of an answer.
#[derive(Debug)]
pub struct Row {
    pub now_millis: u64,
    /// What is not there has this version.
    pub absence: Version,
    /// None: there was no row.
    pub place: Option<Place>,
    /// An error says why it is none of ours.
    pub found: Result<Found, String>,
}

impl Row {
    /// Reads the columns of [`Statements::answer`]. None if it makes no sense.
    pub fn read(cells: &[Cell]) -> Option<Self> {
        let [now, incarnation, marker, shard, part, rest @ ..] = cells else { return None };
        let version = |write: &Cell| {
            Some(Version { write: write.text()?.to_owned(), incarnation: incarnation.text()?.to_owned() })
        };
        let (now_millis, absence) = (now.number()?, version(marker)?);
        let [write, document @ ..] = rest else { return None };
        if *shard == Cell::Null {
            let found = Ok(Found { content: Content::Absent, version: absence.clone() });
            return Some(Self { now_millis, absence, place: None, found });
        }
        let place = Place { shard: shard.text()?.to_owned(), part: part.text()?.to_owned() };
        let version = version(write)?;
        let found = ours(document, place.part == LEASE).map(|ours| Found { content: Content::Ours(ours), version });
        Some(Self { now_millis, absence, place: Some(place), found })
    }
}

fn ours(cells: &[Cell], is_led: bool) -> Result<Ours, String> {
    let [text, session, term, sequence, ends] = cells else { return Err("it is incomplete".to_owned()) };
    let word = |cell: &Cell, what: &str| cell.text().map(str::to_owned).ok_or_else(|| format!("its {what} is no text"));
    let number = |cell: &Cell, what: &str| cell.number().ok_or_else(|| format!("its {what} is no number"));
    let session = word(session, "session")?;
    let term = Term(number(term, "term")?);
    // That of the marker is something else.
    let leads = is_led && !session.is_empty();
    Ok(Ours {
        text: word(text, "text")?,
        leadership: leads.then(|| Leadership { session: Session::from_record(&session), term }),
        sequence: number(sequence, "sequence")?,
        life: if *ends == Cell::Null { Life::ForEver } else { Life::Ends(number(ends, "end")?) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate, Source};

    #[test]
    fn a_row_says_which_document_it_is() {
        let shard: Shard = "app:web/1#2".parse().expect("a shard");
        assert_eq!(Place::of(Key::Shard(&shard)).listed(), Some((shard.clone(), Part::Lease)));
        assert_eq!(Place::of(Key::Led(&shard)).listed(), Some((shard.clone(), Part::Led)));
        let session = Session::from_record("00000000-0000-4000-8000-000000000000");
        let once = Page::Once("a-b".parse().expect("a job"));
        for page in [Page::History, Page::Runs, Page::Jobs, once, Page::Standby(session)] {
            let place = Place::of(Key::Note(&shard, &page));
            assert_eq!(place.listed(), Some((shard.clone(), Part::Note(page))), "{place:?}");
        }
        for key in [Key::Marker, Key::Scratch("x")] {
            assert_eq!(Place::of(key).listed(), None);
        }
    }

    fn any_cell(source: &mut Source) -> Cell {
        match source.below(8) {
            0 => Cell::Null,
            1 => Cell::Strange,
            2 => Cell::Number(source.signed()),
            3..6 => Cell::Number(1_795_268_611_017),
            _ => Cell::Text((*source.of(&["", "lease", "marker", "a-b", "7"])).to_owned()),
        }
    }

    #[test]
    fn a_million_rows_of_any_values_are_documents_or_strange() {
        fuzz::run("row of sql", |source, input| {
            let text = |text: &str| Cell::Text(text.to_owned());
            let mut cells = vec![Cell::Number(1), text("1 7"), text("w"), text("db"), text("lease"), text("v")];
            cells.extend([text("{}"), text("s"), Cell::Number(7), Cell::Number(1), Cell::Null]);
            for _ in 0..source.below(3) {
                let place = source.below(11);
                cells[place] = any_cell(source);
            }
            input.show(|| format!("{cells:?}"));
            match Row::read(&cells) {
                Some(Row { found: Ok(found), .. }) => {
                    assert!(found.ours().is_none_or(|ours| ours.leadership.is_some()
                        || cells[7].text() == Some("")
                        || cells[4].text() != Some("lease")));
                    Fate::Accepted
                }
                Some(Row { found: Err(_), .. }) | None => Fate::Refused,
            }
        });
    }
}
