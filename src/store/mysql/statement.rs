//! The statements, and how their rows are read.
//!
//! The hazards:
//!
//! - MySQL has no statement that changes a row and returns it. So several statements go in one request, each committed
//!   by itself: the write, and a look at the row after it. Every decision is in the condition of the write, which is
//!   checked on the latest row, once it is locked, at every isolation level; how many rows it changed says whether it
//!   was applied. What the look shows may be newer: if the two contradict each other, the caller asks again.
//! - `UTC_TIMESTAMP` is read when a statement begins, before it waits for a row, whatever the session's time zone is. A
//!   lease that had expired then is still expired after the wait. And a granted lease counts from then, which is after
//!   the request was sent.
//! - Assignments may see the columns that earlier ones in the same statement have set, or not: `sql_mode` says which.
//!   No assignment here names another column that is set before it.
//! - `sql_mode` also says what quotes and backslashes mean. So texts are written as hexadecimal numbers, and names
//!   between backticks.
//! - A row counts as changed only if one of its columns has another value. So each write changes a counter.
//! - A row's values may be anything: another program may have written them, or a user by hand.
//! - A deleted row loses the term and the time at which the tree is dead. So a lease that is revoked keeps its row and
//!   its end: only the session in it belongs to nobody from then on.

use super::address::{Address, LONGEST_NAME};
use super::connection::{Outcome, Row, SERVER};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::rows::{FOR_EVER, LIST_PAGE, REVOKED, Record, Seen};
use crate::store::stable_hash::fnv1a;
use std::fmt::Write as _;
use std::time::Duration;

/// No shard has this name. The row with this name says since when the table remembers.
pub const MARKER: &str = "''";
pub const NOW: &str = "UTC_TIMESTAMP(6)";
/// The columns of a row, in the order in which they are written.
pub const NAMES: &str = "shard, term, session, owner, host, pid, beat, sent, lease_ms, since, expires, released";
/// The columns of a row `l`, as they are read.
const COLUMNS: &str = "l.released <> 0 OR l.expires <= UTC_TIMESTAMP(6), l.released <> 0, l.term, l.session, l.owner, \
                       l.host, l.pid, l.beat, l.sent, l.lease_ms, \
                       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', l.since), \
                       TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.expires)";
/// Milliseconds since 1970: the least term of a new leadership.
const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000";

/// A name between backticks.
pub fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A text, as no setting changes its meaning.
pub fn text(text: &str) -> String {
    let mut literal = "_utf8mb4 X'".to_owned();
    for byte in text.bytes() {
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push('\'');
    literal
}

/// The name of the table of notes beside a table of leases.
pub fn notes_name(table: &str) -> String {
    let whole = format!("{table}_notes");
    if whole.chars().count() <= LONGEST_NAME { whole } else { format!("leaderrun_notes_{:016x}", fnv1a(table.bytes())) }
}

/// A duration in milliseconds, rounded up.
pub fn millis(duration: Duration) -> u64 {
    crate::time::millis(duration).min(FOR_EVER)
}

/// A moment so many milliseconds from now.
pub fn after(millis: u64) -> String {
    format!("{NOW} + INTERVAL {} MICROSECOND", u128::from(millis) * 1000)
}

/// The statements for one table of leases.
pub struct Statements {
    pub table: String,
    /// The names of the database and of the table, as texts.
    place: (String, String),
}

impl Statements {
    pub fn new(address: &Address) -> Self {
        Self {
            table: format!("{}.{}", quoted(&address.database), quoted(&address.table)),
            place: (text(&address.database), text(&address.table)),
        }
    }

    /// Which table it is: this server's, and made when this one was. A table that was restored, or that another server
    /// has, is another one. So is that of another node of a cluster, which may have the same rows and another clock.
    fn identity(&self) -> String {
        let (database, table) = &self.place;
        // The time that is shown depends on the session's time zone, and this takes it back.
        format!(
            "CONCAT({SERVER}, ' ', (SELECT COALESCE(MAX(UNIX_TIMESTAMP(i.create_time)), '') \
             FROM information_schema.tables AS i WHERE i.table_schema = {database} AND i.table_name = {table}))"
        )
    }

    /// Returns: which table it is; which it was when the marker was written; the microseconds since then, or since when
    /// an operator says it remembers; whether rows of leases cannot be deleted by hand; the table's storage engine.
    pub fn memory(&self) -> String {
        let (table, identity, (database, name)) = (&self.table, self.identity(), &self.place);
        format!(
            "SELECT {identity}, m.host, TIMESTAMPDIFF(MICROSECOND, m.since, {NOW}), m.beat, \
             (SELECT MAX(i.engine) FROM information_schema.tables AS i \
             WHERE i.table_schema = {database} AND i.table_name = {name}) \
             FROM (SELECT 1 AS one) AS c LEFT JOIN {table} AS m ON m.shard = {MARKER}"
        )
    }

    /// Writes down that the table that is `identity` remembers from now on.
    pub fn remember(&self, identity: &str) -> String {
        let (table, identity) = (&self.table, text(identity));
        format!(
            "INSERT INTO {table} ({NAMES}) \
             VALUES ({MARKER}, 0, 'leaderrun', 'leaderrun', {identity}, 0, 0, 0, 0, {NOW}, {NOW}, 1) \
             ON DUPLICATE KEY UPDATE since = IF(host = {identity}, since, {NOW}), \
             beat = IF(host = {identity}, beat, 0), host = {identity}"
        )
    }

    /// Makes the table count as one that has always remembered.
    pub fn vouch(&self) -> String {
        format!("UPDATE {} SET since = TIMESTAMP'1970-01-02 00:00:00' WHERE shard = {MARKER}", self.table)
    }

    /// Says whether rows of leases cannot be deleted by hand.
    pub fn protect(&self, protected: bool) -> String {
        format!("UPDATE {} SET beat = {} WHERE shard = {MARKER}", self.table, i32::from(protected))
    }

    /// A look at a shard.
    pub fn look(&self, shard: &Shard) -> String {
        format!("SELECT {COLUMNS} FROM {} AS l WHERE l.shard = {}", self.table, text(shard.as_str()))
    }

    /// Returns the lease of the row, the change of a row, the change of a new one, [`Statements::memory`], and the row.
    ///
    /// The memory is read after the change: the change may wait for the row, and what the table remembered before that
    /// may no longer hold.
    pub fn claim(&self, candidate: &Candidate, sent: i64) -> String {
        let Candidate { shard, owner, session, host, pid, lease } = candidate;
        let (name, session, owner, host) = (text(shard.as_str()), text(session.as_str()), text(owner), text(host));
        let (lease, table) = (millis(*lease), &self.table);
        let (expires, memory, look) = (after(lease), self.memory(), self.look(shard));
        format!(
            "SELECT l.lease_ms, l.released, l.session FROM {table} AS l WHERE l.shard = {name}; \
             UPDATE {table} SET term = GREATEST(term + 1, {CLOCK}), session = {session}, owner = {owner}, \
             host = {host}, pid = {pid}, beat = 0, sent = {sent}, lease_ms = {lease}, since = {NOW}, \
             expires = {expires}, released = 0 \
             WHERE shard = {name} AND ((session = {session} AND sent < {sent}) \
             OR (session <> {session} AND (released <> 0 OR expires <= {NOW}))); \
             INSERT INTO {table} ({NAMES}) VALUES ({name}, {CLOCK}, {session}, {owner}, {host}, {pid}, 0, {sent}, \
             {lease}, {NOW}, {expires}, 0) ON DUPLICATE KEY UPDATE term = {table}.term; {memory}; {look}"
        )
    }

    /// Returns the change, and the row, with two columns behind it: which table it is, and which one the marker names.
    pub fn renew(&self, candidate: &Candidate, term: Term, sequence: u64) -> String {
        let (identity, shard_name) = (self.identity(), candidate.shard.as_str());
        let (shard, session, lease) = (text(shard_name), candidate.session.as_str(), millis(candidate.lease));
        let (table, session, expires) = (&self.table, text(session), after(lease));
        format!(
            "UPDATE {table} SET beat = {sequence}, lease_ms = {lease}, expires = {expires} \
             WHERE shard = {shard} AND session = {session} AND term = {term} AND beat < {sequence} AND released = 0; \
             SELECT {COLUMNS}, {identity}, (SELECT m.host FROM {table} AS m WHERE m.shard = {MARKER}) \
             FROM {table} AS l WHERE l.shard = {shard}"
        )
    }

    /// Returns the change, and the row. A term of 0 stands for any.
    pub fn release(&self, candidate: &Candidate, term: Term, sent: i64) -> String {
        let (shard, session) = (text(candidate.shard.as_str()), text(candidate.session.as_str()));
        let (table, look) = (&self.table, self.look(&candidate.shard));
        let of_term = if term.0 == 0 { String::new() } else { format!("AND term = {term} ") };
        format!(
            "UPDATE {table} SET released = 1, sent = {sent}, expires = LEAST(expires, {NOW}) \
             WHERE shard = {shard} AND session = {session} {of_term}AND released = 0 AND sent < {sent}; {look}"
        )
    }

    /// Returns the change, and the row.
    pub fn revoke(&self, shard: &Shard, term: Term) -> String {
        let (table, name, look) = (&self.table, text(shard.as_str()), self.look(shard));
        format!(
            "UPDATE {table} SET session = '{REVOKED}' WHERE shard = {name} AND term = {term} \
             AND session <> '{REVOKED}' AND released = 0 AND expires > {NOW}; {look}"
        )
    }

    /// Deletes a row that was released. It stays if the server's clock has not passed its term, because the next term
    /// would not be higher.
    pub fn forget(&self, shard: &Shard, session: &str) -> String {
        format!(
            "DELETE FROM {} WHERE shard = {} AND session = {} AND released <> 0 AND term < {CLOCK}",
            self.table,
            text(shard.as_str()),
            text(session)
        )
    }

    /// A page of rows behind the shard `last`, each of which begins with its shard.
    pub fn list(&self, prefix: &str, last: &str) -> String {
        let (table, begins, last) = (&self.table, begins("l.shard", prefix), text(last));
        format!(
            "SELECT l.shard, {COLUMNS} FROM {table} AS l WHERE l.shard > {last} AND {begins} \
             ORDER BY l.shard LIMIT {LIST_PAGE}"
        )
    }
}

/// The condition that a column begins with a text, so that an index is of use.
pub fn begins(column: &str, prefix: &str) -> String {
    let (length, prefix) = (prefix.chars().count(), text(prefix));
    format!("{column} >= {prefix} AND LEFT({column}, {length}) = {prefix}")
}

/// Which table it is, in the answer to a renewal, and whether the marker names it. None if there is no row.
pub fn place_of_renewal(outcome: Option<&Outcome>) -> Option<(String, bool)> {
    let row = outcome?.rows.first()?;
    let identity = row.words(12)?;
    let is_named = row.text(13) == Some(identity.as_str());
    Some((identity, is_named))
}

/// The answer to a look. None if it makes no sense.
pub fn seen(outcome: Option<&Outcome>) -> Option<Seen> {
    match outcome?.rows.as_slice() {
        [] => Some(Seen::Absent),
        [row] => Some(read(row, 0)),
        _ => None,
    }
}

/// Reads the columns of a row from this one on.
pub fn read(row: &Row, first: usize) -> Seen {
    record(row, first).map_or(Seen::Garbage, Seen::Record)
}

fn record(row: &Row, first: usize) -> Option<Record> {
    let count = |column| u64::try_from(row.number(first + column)?).ok();
    let words = |column| row.words(first + column);
    Some(Record {
        free: row.flag(first)?,
        released: row.flag(first + 1)?,
        term: Term(count(2)?),
        session: Session::from_record(&words(3)?),
        owner: words(4)?,
        host: words(5)?,
        pid: row.number(first + 6)?,
        beat: count(7)?,
        sent: i64::try_from(count(8)?).ok()?,
        lease: Duration::from_millis(count(9)?),
        since: micros(row.number(first + 10)?),
        left: micros(row.number(first + 11)?),
    })
}

pub fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A duration from a row. One that has passed is none.
pub fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};

    #[test]
    fn a_million_rows_of_any_values_are_holders_or_garbage() {
        fuzz::run("row of mysql://", |source, input| {
            let seeds: [&[u8]; 5] = [b"0", b"1", b"1795421341438", b"-7", b"word"];
            // Of twelve values, most have to stay as they are: one that is no number makes garbage of the row.
            let value = |source: &mut fuzz::Source| match source.below(60) {
                0 => None,
                1..12 => Some(source.bend(&seeds)),
                _ => Some(source.of(&seeds[..3]).to_vec()),
            };
            let row = Row((0..12).map(|_| value(source)).collect());
            input.show(|| format!("{row:?}"));
            match read(&row, 0) {
                Seen::Record(record) => {
                    assert!(record.holder().expires_in.is_some());
                    Fate::Accepted
                }
                Seen::Absent | Seen::Garbage => Fate::Refused,
            }
        });
    }

    #[test]
    fn no_text_and_no_name_ends_early() {
        assert_eq!(text("a'\\ä"), "_utf8mb4 X'61275cc3a4'");
        assert_eq!(quoted("my `own`\\"), "`my ``own``\\`");
        assert_eq!(notes_name("locks"), "locks_notes");
        assert_eq!(notes_name(&"x".repeat(60)), "leaderrun_notes_14b1d92b2cf0af95");
    }

    #[test]
    fn a_lease_is_never_shorter_in_the_store() {
        assert_eq!(millis(Duration::from_micros(1500)), 2);
        assert_eq!(after(2), "UTC_TIMESTAMP(6) + INTERVAL 2000 MICROSECOND");
        assert_eq!(micros(-1), Duration::ZERO);
        assert!(micros(i64::MAX) > Duration::from_hours(24));
    }
}
