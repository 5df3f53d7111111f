//! The statements, of both dialects side by side, and how their rows are read.
//!
//! One table has all documents, a row for each:
//!
//! ```text
//! shard  part              version    text   session   term  sequence  ends
//! ''     marker            a write's  JSON   (below)   0     0         NULL
//! db     lease             random     JSON   leader's  7     3         milliseconds since 1970, on the server's clock
//! db     led               name       JSON   ''        0     0         NULL: never
//! db     history, runs, jobs, once/JOB, standby/SESSION: notes
//! ```
//!
//! The hazards:
//!
//! - A statement sees the table as it was when the statement began; only the rows that it writes to are the latest. So
//!   every decision is in the condition of the write, which is checked again once the row is locked. A row that comes
//!   with a refused write may be older than the one that prevented it.
//! - The clock is read once, before the statement waits for a row. So ends come early rather than late, but never
//!   before the duration has passed since the request was sent.
//! - The server may have lost writes, or the rows come out of a dump. So each answer names the incarnation of the
//!   table, and a write applies only in the one in which its writer read.
//! - A row's values may be anything: another program may have written them, or a user by hand.
//!
//! PostgreSQL's incarnation is the timeline of the server's log, which changes after each failover and each recovery
//! from a backup, and the transaction that first wrote the marker. The marker's session says which transaction wrote
//! it, and for which incarnation. A restored marker was written by another transaction than it says.
//!
//! MySQL's incarnation is the server and the time at which the table was made there, because each node of a cluster has
//! its own clock; and the write of the marker that another node had made before. The marker's session says for which
//! node it was written, so a renewal here does not count while a candidate elsewhere goes by its own clock. A dump that
//! is loaded into the existing table goes unnoticed.
//!
//! A request is one transaction, sent at once: the write, and a look at its row, which shows our write or the latest
//! that was committed. Proxies of MySQL send reads to replicas, but not a transaction that may write. What a quoted
//! text means in MySQL depends on settings, so texts are hexadecimal there.

use super::address::Address;
use super::client::Cells;
use super::dialect::Dialect;
use super::failure::PRIVILEGES;
use crate::lease::{Session, Shard};
use crate::store::Page;
use crate::store::lease_store::documents::{
    Content, Draft, Ends, Found, Key, Life, List, Ours, Over, Part, Touch, Version,
};
use crate::store::stable_hash::fnv1a;
use crate::time::millis;
use std::time::Duration;

pub const LIST_PAGE: usize = 500;
pub const NAMES: &str = "shard, part, version, text, session, term, sequence, ends";

const MARKER: &str = "marker";
const LEASE: &str = "lease";
const LED: &str = "led";
const STANDBY: &str = "standby/";
const SCRATCH: &str = "check/";

/// PostgreSQL cuts longer names of channels off.
const LONGEST_CHANNEL: usize = 63;
/// What identifies a server: MySQL's UUID, MariaDB's place. Each ignores the other's in a comment.
const SERVER: &str =
    "CONCAT(/*!80000 @@server_uuid, */ /*M!100000 @@server_id, ' ', @@hostname, ':', @@port, @@datadir, */ '')";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    pub shard: String,
    pub part: String,
}

impl Spot {
    pub fn of(key: Key<'_>) -> Self {
        let (shard, part) = match key {
            Key::Marker => ("", MARKER.to_owned()),
            Key::Shard(shard) => (shard.as_str(), LEASE.to_owned()),
            Key::Led(shard) => (shard.as_str(), LED.to_owned()),
            Key::Note(shard, page) => (shard.as_str(), page.name('/')),
            Key::Scratch(name) => ("", format!("{SCRATCH}{name}")),
        };
        Self { shard: shard.to_owned(), part }
    }

    pub fn listed(&self) -> Option<(Shard, Part)> {
        let part = match self.part.as_str() {
            LEASE => Part::Lease,
            LED => Part::Led,
            part => Part::Note(Page::of_name(part, '/')?),
        };
        Some((self.shard.parse().ok()?, part))
    }
}

pub struct Statements {
    pub dialect: Dialect,
    /// Quoted, like schema and table. MySQL's schema is its database.
    database: String,
    pub schema: String,
    pub table: String,
    /// The condition that a row of pg_class, or row `i` of the information schema, describes the table.
    pub is_table: String,
    /// One row `i`: the clock, the incarnation, and which write of the marker stands.
    context: String,
    /// PostgreSQL's channel for changes.
    pub channel: String,
}

impl Statements {
    pub fn of(address: &Address) -> Self {
        let dialect = address.dialect;
        let database = dialect.quoted(&address.database);
        let schema = dialect.either(dialect.quoted(&address.schema), database.clone());
        let table = format!("{schema}.{}", dialect.quoted(&address.table));
        let is_table = match dialect {
            Dialect::Postgres => format!("oid = to_regclass({})", dialect.literal(&table)),
            Dialect::MySql => {
                let [database, table] = [&address.database, &address.table].map(|name| dialect.literal(name));
                format!("i.table_schema = {database} AND i.table_name = {table}")
            }
        };
        // What changes with the server and its table.
        let life = dialect.either(
            "current_setting('leaderrun.timeline')".to_owned(),
            // `create_time` is shown in the session's time zone. UNIX_TIMESTAMP undoes that.
            format!(
                "LEFT(SHA2(CONCAT({SERVER}, ' ', (SELECT COALESCE(MAX(UNIX_TIMESTAMP(i.create_time)), '') \
                 FROM information_schema.tables AS i WHERE {is_table})), 256), 32)"
            ),
        );
        let now = dialect.now();
        let incarnation = dialect.either(
            "CASE WHEN m.version IS NULL THEN c.life || ' new' \
             WHEN split_part(m.session, ' ', 1) = m.xmin::text AND split_part(m.session, ' ', 2) = c.life \
             THEN c.life || ' ' || split_part(m.session, ' ', 3) ELSE c.life || ' ' || m.xmin::text END",
            "CONCAT(c.life, ' ', CASE WHEN m.version IS NULL THEN 'new' \
             WHEN SUBSTRING_INDEX(m.session, ' ', 1) = c.life THEN SUBSTRING_INDEX(m.session, ' ', -1) \
             ELSE m.version END)",
        );
        let context = format!(
            "(SELECT c.now, {incarnation} AS incarnation, COALESCE(m.version, '') AS marker \
             FROM (SELECT {now} AS now, {life} AS life) AS c \
             LEFT JOIN {table} AS m ON m.shard = '' AND m.part = '{MARKER}') AS i"
        );
        let whole = format!("leaderrun {}.{}", address.schema, address.table);
        let hashed = || format!("leaderrun {:016x}", fnv1a(whole.bytes()));
        let channel = if whole.len() > LONGEST_CHANNEL { hashed() } else { whole };
        Self { dialect, database, schema, table, is_table, context, channel }
    }

    fn literal(&self, text: &str) -> String {
        self.dialect.literal(text)
    }

    /// The answer to every request but [`Statements::remove`]: at least one row, with the columns of `rows` as `r`.
    fn answer(&self, rows: &str) -> String {
        format!("SELECT i.*, r.* FROM {} LEFT JOIN ({rows}) AS r ON TRUE", self.context)
    }

    fn at(&self, place: &Spot) -> String {
        format!("shard = {} AND part = {}", self.literal(&place.shard), self.literal(&place.part))
    }

    fn rows_at(&self, places: &[Spot]) -> String {
        let at = |place: &Spot| format!("({}, {})", self.literal(&place.shard), self.literal(&place.part));
        let places: Vec<String> = places.iter().map(at).collect();
        format!("SELECT {NAMES} FROM {} WHERE (shard, part) IN ({})", self.table, places.join(", "))
    }

    pub fn get(&self, places: &[Spot]) -> String {
        self.answer(&self.rows_at(places))
    }

    /// Writes a row over what was found. Refused in another incarnation or over another version; over an absence, if
    /// anything stands there, or the marker was written again. The answer shows the row.
    pub fn put(&self, place: &Spot, version: &str, draft: &Draft<'_>, over: Over<'_>) -> String {
        let (found, judged) = match over {
            Over::Exactly(found) => (found, found.ours()),
            Over::Text(found) => (found, None),
        };
        let (is_new, keeps) = (found.content == Content::Absent, draft.ends == Ends::Keep);
        let Self { dialect, table, context, channel, .. } = self;
        let now = dialect.now();
        let before = self.literal(&found.version.write);
        let incarnation = self.literal(&found.version.incarnation);
        let version = self.literal(version);
        let text = self.literal(draft.text);
        let (session, term) = draft.leadership.map_or(("", 0), |of| (of.session.as_str(), of.term.0));
        let session = match (place.part.as_str(), dialect) {
            // The number of the transaction, as `xmin` will show it.
            (MARKER, Dialect::Postgres) => "(txid_current() & 4294967295)::text || ' ' || i.incarnation".to_owned(),
            (MARKER, Dialect::MySql) => "@incarnation".to_owned(),
            _ => self.literal(session),
        };
        let sequence = if keeps && !is_new { "sequence".to_owned() } else { draft.sequence.to_string() };
        let ends = match draft.ends {
            Ends::Keep if !is_new => "ends".to_owned(),
            Ends::Keep | Ends::Never => "NULL".to_owned(),
            Ends::In(lasts) => format!("{now} + {}", lasting(lasts)),
            Ends::Now => now.to_owned(),
        };
        // A lease that was judged must not have been prolonged since.
        let judged = judged.map_or_else(String::new, |ours| {
            let ends = if let Life::Ends(ends) = ours.life { format!("= {ends}") } else { "IS NULL".to_owned() };
            format!(" AND sequence = {} AND ends {ends}", ours.sequence)
        });
        let at = self.at(place);
        let (shard, part) = (self.literal(&place.shard), self.literal(&place.part));
        let values = format!("{shard}, {part}, {version}, {text}, {session}, {term}, {sequence}, {ends}");
        let sets = format!(
            "version = {version}, text = {text}, session = {session}, term = {term}, sequence = {sequence}, ends = {ends}"
        );
        let rows = self.rows_at(std::slice::from_ref(place));
        match dialect {
            Dialect::Postgres => {
                let write = if is_new {
                    format!(
                        "INSERT INTO {table} ({NAMES}) SELECT {values} FROM {context} \
                         WHERE i.incarnation = {incarnation} AND i.marker = {before} ON CONFLICT (shard, part) DO NOTHING"
                    )
                } else {
                    format!(
                        "UPDATE {table} SET {sets} FROM {context} \
                         WHERE {at} AND version = {before} AND i.incarnation = {incarnation}{judged}"
                    )
                };
                let channel = self.literal(channel);
                let which = format!("{at} AND version = {version} AND {}", matches!(over, Over::Text(_)));
                format!(
                    "{write}; SELECT pg_notify({channel}, shard) FROM {table} WHERE {which}; {}",
                    self.answer(&rows)
                )
            }
            // A replica must make the same of a logged statement, so the statement has values. The first SELECT fixes
            // what later ones see, except for rows that they lock.
            Dialect::MySql => {
                let right = format!("CAST(@incarnation AS BINARY) = CAST({incarnation} AS BINARY)");
                let write = if is_new {
                    format!(
                        "SET @right = {right} AND @marker = {before}; INSERT INTO {table} ({NAMES}) SELECT {values} \
                         FROM (SELECT 1 AS one) AS c WHERE @right ON DUPLICATE KEY UPDATE sequence = {table}.sequence"
                    )
                } else {
                    let which = format!("{at} AND version = {before} AND @right{judged}");
                    format!("SET @right = {right}; UPDATE {table} SET {sets} WHERE {which}")
                };
                let answer = self.answer(&format!("{rows} LOCK IN SHARE MODE"));
                format!("SELECT i.incarnation, i.marker INTO @incarnation, @marker FROM {context}; {write}; {answer}")
            }
        }
    }

    pub fn touch(&self, touch: &Touch<'_>, also: &[Spot]) -> String {
        let place = Spot::of(Key::Shard(touch.shard));
        let session = self.literal(touch.leadership.session.as_str());
        let (term, sequence) = (touch.leadership.term.0, touch.sequence);
        format!(
            "UPDATE {} SET sequence = {sequence}, ends = {} + {} \
             WHERE {} AND session = {session} AND term = {term} AND sequence < {sequence}; {}",
            self.table,
            self.dialect.now(),
            lasting(touch.lease),
            self.at(&place),
            self.get(&[std::slice::from_ref(&place), also].concat())
        )
    }

    pub fn remove(&self, place: &Spot) -> String {
        format!("DELETE FROM {} WHERE {}", self.table, self.at(place))
    }

    /// In the order of shard and part.
    pub fn list(&self, list: List<'_>, behind: &Spot) -> String {
        let (shard, part) = (self.literal(&behind.shard), self.literal(&behind.part));
        // The first condition can use an index.
        let begins = |column: &str, with: &str| {
            let (begin, length) = (self.literal(with), with.chars().count());
            format!("{column} >= {begin} AND LEFT({column}, {length}) = {begin}")
        };
        let which = match list {
            List::Shards(prefix) => format!("part = '{LEASE}' AND {}", begins("shard", prefix)),
            List::Standbys(prefix) => format!("{} AND {}", begins("part", STANDBY), begins("shard", prefix)),
            List::Notes(of) => format!("part NOT IN ('{LEASE}', '{LED}') AND shard = {}", self.literal(of.as_str())),
        };
        let rows = format!(
            "SELECT {NAMES} FROM {} WHERE {which} AND shard >= {shard} AND (shard > {shard} OR part > {part}) \
             ORDER BY shard, part LIMIT {LIST_PAGE}",
            self.table
        );
        format!("{} ORDER BY r.shard, r.part", self.answer(&rows))
    }

    /// Statements that make the table, each with the rights that it needs. The first fails if there is no schema.
    pub fn creations(&self) -> Vec<(String, String)> {
        let Self { database, schema, table, .. } = self;
        match self.dialect {
            // Half of each page stays empty, so that a renewal finds room for the row's next version.
            Dialect::Postgres => {
                let creation = format!(
                    "CREATE TABLE {table} (shard text COLLATE \"C\", part text COLLATE \"C\", \
                     version text COLLATE \"C\" NOT NULL, text text COLLATE \"C\" NOT NULL, \
                     session text COLLATE \"C\" NOT NULL, term bigint NOT NULL, sequence bigint NOT NULL, ends bigint, \
                     PRIMARY KEY (shard, part)) WITH (fillfactor = 50)"
                );
                let with_schema = format!("CREATE SCHEMA {schema}; {creation}");
                vec![
                    (creation, format!("CREATE ON SCHEMA {schema}")),
                    (with_schema, format!("CREATE ON DATABASE {database}")),
                ]
            }
            // Texts compare byte by byte, except for spaces at the end.
            Dialect::MySql => vec![(
                format!(
                    "CREATE TABLE {table} (shard VARCHAR(200) NOT NULL, part VARCHAR(150) NOT NULL, \
                     version VARCHAR(64) NOT NULL, text MEDIUMTEXT NOT NULL, session VARCHAR(100) NOT NULL, \
                     term BIGINT NOT NULL, sequence BIGINT NOT NULL, ends BIGINT NULL, PRIMARY KEY (shard, part)) \
                     ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
                ),
                format!("CREATE, TRIGGER, {PRIVILEGES} ON {schema}.*"),
            )],
        }
    }

    /// Shows whether [`Statements::guard`] is in force, or fails by it. It tries, because only some users can see a
    /// trigger.
    pub fn is_guarded(&self) -> String {
        let table = &self.table;
        let at = format!("shard = '' AND part = '{LED}'");
        format!(
            "INSERT INTO {table} ({NAMES}) VALUES ('', '{LED}', '', '', '', 0, 0, NULL); \
             DELETE FROM {table} WHERE {at}; SELECT COUNT(*) FROM {table} WHERE {at}; ROLLBACK"
        )
    }

    /// Forbids to delete the marker and led marks; a leader's row until a day after its lease has ended; and a shard's
    /// row without a leader until its end.
    pub fn guard(&self) -> String {
        let (table, now) = (&self.table, self.dialect.now());
        let stays = |old: &str| {
            format!(
                "{old}.part IN ('{MARKER}', '{LED}') OR ({old}.part = '{LEASE}' \
                 AND {now} < {old}.ends + CASE WHEN {old}.session = '' THEN 0 ELSE {A_DAY_MILLIS} END)"
            )
        };
        match self.dialect {
            Dialect::Postgres => format!(
                "CREATE OR REPLACE RULE {KEEP} AS ON DELETE TO {table} WHERE {} DO INSTEAD NOTHING; \
                 ALTER TABLE {table} ENABLE RULE {KEEP}",
                stays("old")
            ),
            // In a database, each trigger has a name of its own.
            Dialect::MySql => format!(
                "CREATE TRIGGER {KEEP}_{:016x} BEFORE DELETE ON {table} FOR EACH ROW IF {} THEN SIGNAL SQLSTATE '45000' \
                 SET MESSAGE_TEXT = 'a lease that is held is not deleted: see leaderctl revoke'; END IF",
                fnv1a(table.bytes()),
                stays("OLD")
            ),
        }
    }
}

const KEEP: &str = "leaderrun_keep";
const A_DAY_MILLIS: u64 = 24 * 3600 * 1000;

#[derive(Debug)]
pub struct Answer {
    pub now_millis: u64,
    /// The version of what is absent.
    absence: Version,
    pub documents: Vec<(Spot, Found)>,
}

impl Answer {
    /// Reads the rows of [`Statements::answer`]. None if they make no sense.
    pub fn read(rows: &[Cells]) -> Option<Self> {
        // As many columns as no other answer has.
        let [now, incarnation, marker, _, _, _, _, _, _, _, _] = rows.first()?.as_slice() else { return None };
        let version =
            |write: &Option<String>| Some(Version { write: write.clone()?, incarnation: incarnation.clone()? });
        let document = |row: &Cells| {
            let [_, _, _, shard, part, write, columns @ ..] = row.as_slice() else { return None };
            let place = Spot { shard: shard.clone()?, part: part.clone()? };
            let content = ours(columns, place.part == LEASE).into();
            Some((place, Found { content, version: version(write)? }))
        };
        // Where there is no document, the row is alone.
        let documents = rows.iter().filter(|row| row.get(3) != Some(&None)).map(document).collect::<Option<_>>()?;
        Some(Self { now_millis: now.as_ref()?.parse().ok()?, absence: version(marker)?, documents })
    }

    pub fn at(&self, place: &Spot) -> Found {
        let absent = || Found { content: Content::Absent, version: self.absence.clone() };
        self.documents.iter().find(|(at, _)| at == place).map_or_else(absent, |(_, found)| found.clone())
    }
}

fn ours(cells: &[Option<String>], is_led: bool) -> Result<Ours, String> {
    let [Some(text), Some(session), Some(term), Some(sequence), ends] = cells else {
        return Err("it is incomplete".to_owned());
    };
    let number = |text: &String, what: &str| text.parse().map_err(|_| format!("its {what} is not a number"));
    let (term, sequence) = (number(term, "term")?, number(sequence, "sequence")?);
    // The marker's session is not a session.
    let leads = is_led && !session.is_empty();
    let session = leads.then(|| Session::from_record(session));
    let ends = ends.as_ref().map(|ends| number(ends, "end")).transpose()?;
    Ok(Ours::of(text.clone(), session, term, sequence, ends))
}

/// The server adds the time, in 63 bits.
fn lasting(duration: Duration) -> u64 {
    millis(duration).min(1 << 62)
}
