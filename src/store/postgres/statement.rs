//! The statements, and how their rows are read.
//!
//! The hazards:
//!
//! - A statement sees the table as it was when the statement began; only the rows that it writes to are the latest. So
//!   every decision is in the condition of the write, which is checked again once the row is locked. Values that are
//!   only read may be behind: if the two contradict each other, the caller asks again.
//! - The clock is read once, before the statement waits for a row. A lease that had expired then is still expired after
//!   the wait. And a granted lease counts from then, which is after the request was sent.
//! - The session may belong to a pooler, with other users: settings are made for the transaction alone, and no
//!   statement has a name.
//! - A row's values may be anything: another program may have written them, or a user by hand.
//! - A deleted row loses the term and the time at which the tree is dead. So a lease that is revoked keeps its row and
//!   its end: only the session in it belongs to nobody from then on. For every release of leaderrun, that is a lease of
//!   another candidate that does not renew it.

use super::address::{Address, LONGEST_NAME};
use crate::lease::{Session, Term};
use crate::store::rows::{LIST_PAGE, REVOKED, Record, Seen};
use crate::store::stable_hash::fnv1a;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// No shard has this name. The row with this name says since when the table remembers.
pub const MARKER: &str = "";

/// The timeline of the server's log: it changes after each failover and each recovery from a backup.
pub const TIMELINE: &str = "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)";

/// When the marker's row is believed: it was written here, not restored from a dump (another transaction would have
/// written it), and not before a failover.
const BELIEVED: &str = "m.session = m.xmin::text AND m.host = c.timeline";

/// The number of this transaction, as `xmin` will show it.
pub const THIS_TRANSACTION: &str = "(txid_current() & 4294967295)::text";

/// The columns of a row `l`, at `c.now`.
const COLUMNS: &str = "l.shard IS NOT NULL, (l.released OR l.expires <= c.now)::boolean, l.released::boolean, \
                       l.term::bigint, l.session::text, l.owner::text, l.host::text, l.pid::bigint, l.beat::bigint, \
                       l.sent::bigint, l.lease_ms::bigint, extract(epoch FROM l.since)::float8, \
                       extract(epoch FROM l.expires)::float8 - extract(epoch FROM c.now)::float8";
/// The number of these columns.
const COLUMN_COUNT: usize = 13;

/// Names that need no quotes. PostgreSQL's reserved words (table "user", schema "all") need them.
const PLAIN: [&str; 3] = ["public", "leaderrun", "leaderrun_notes"];

/// A name, with quotes unless it certainly needs none.
pub fn quoted(name: &str) -> String {
    if PLAIN.contains(&name) { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// The channel of a table. Its name has room for 63 bytes; a longer one is replaced by a hash.
pub fn channel(address: &Address) -> String {
    let whole = format!("leaderrun {}.{}", address.schema, address.table);
    if whole.len() <= LONGEST_NAME { whole } else { format!("leaderrun {:016x}", fnv1a(whole.bytes())) }
}

/// The name of the table of notes beside a table of leases.
pub fn notes_name(table: &str) -> String {
    let whole = format!("{table}_notes");
    // PostgreSQL would cut the name off, and it might then name the table of leases itself.
    if whole.len() <= LONGEST_NAME { whole } else { format!("leaderrun_notes_{:016x}", fnv1a(table.bytes())) }
}

pub fn text<T: ToSql + Sync>(value: &T) -> (&(dyn ToSql + Sync), Type) {
    (value, Type::TEXT)
}

pub fn texts<T>(values: &Vec<T>) -> (&(dyn ToSql + Sync), Type)
where
    Vec<T>: ToSql + Sync,
{
    (values, Type::TEXT_ARRAY)
}

pub fn numbers(values: &Vec<i32>) -> (&(dyn ToSql + Sync), Type) {
    (values, Type::INT4_ARRAY)
}

/// A parameter from an `i64`, or an `Option` of one.
pub fn number<T: ToSql + Sync>(value: &T) -> (&(dyn ToSql + Sync), Type) {
    (value, Type::INT8)
}

/// The statements for one table of leases, and for the table of notes beside it.
pub struct Statements {
    pub table: String,
    pub notes: String,
    /// Bounds the wait for a row that another session has locked. Some poolers do not support a `statement_timeout`,
    /// and it does not count once the statement has begun.
    pub lock_timeout: Duration,
    pub advisory_lock: Option<i64>,
}

impl Statements {
    /// `c`: the clock, and the settings of this transaction. A server that does not wait for its disk may forget what
    /// it confirmed, which leases cannot accept.
    pub(super) fn context(&self, has_timeline: bool) -> String {
        let timeline = if has_timeline { TIMELINE } else { "''" };
        format!(
            "c AS MATERIALIZED (SELECT clock_timestamp() AS now, {timeline}::text AS timeline, \
             set_config('lock_timeout', '{}', true), \
             CASE WHEN current_setting('synchronous_commit') = 'off' \
             THEN set_config('synchronous_commit', 'local', true) END)",
            self.lock_timeout.as_millis().max(1)
        )
    }

    /// `m`: since when the table remembers. It has no row if that is not known. Then `mended` says: since now.
    fn marker(&self) -> String {
        let table = &self.table;
        format!(
            "m AS MATERIALIZED (SELECT m.since FROM {table} AS m, c WHERE m.shard = '{MARKER}' AND {BELIEVED}), \
             mended AS (INSERT INTO {table} AS f \
             (shard, term, session, owner, host, pid, beat, sent, lease_ms, since, expires, released) \
             SELECT '{MARKER}', 0, {THIS_TRANSACTION}, 'leaderrun', c.timeline, 0, 0, 0, 0, c.now, c.now, true \
             FROM c WHERE NOT EXISTS (SELECT FROM m) \
             ON CONFLICT (shard) DO UPDATE \
             SET session = excluded.session, host = excluded.host, since = excluded.since)"
        )
    }

    /// Makes the table count as one that has always remembered.
    pub fn vouch(&self) -> String {
        let table = &self.table;
        format!(
            "UPDATE {table} AS m SET session = {THIS_TRANSACTION}, since = 'epoch' \
             WHERE m.shard = '{MARKER}' AND m.session = m.xmin::text"
        )
    }

    /// Records a failover or restored rows, if there were any.
    pub fn remember(&self, has_timeline: bool) -> String {
        let (context, marker) = (self.context(has_timeline), self.marker());
        format!("WITH {context}, {marker} SELECT extract(epoch FROM m.since)::float8 FROM c LEFT JOIN m ON true")
    }

    /// Parameters: shard, session, owner, host, pid, sent, lease. Returns: the term if it was granted; how long the
    /// table has remembered; the row as it was before.
    ///
    /// A row that is seen to be held is not even locked.
    pub fn claim(&self, has_timeline: bool) -> String {
        let (context, marker, table) = (self.context(has_timeline), self.marker(), &self.table);
        format!(
            "WITH {context}, {marker}, k AS (INSERT INTO {table} AS l \
             (shard, term, session, owner, host, pid, beat, sent, lease_ms, since, expires, released) \
             SELECT $1, floor(extract(epoch FROM c.now) * 1000)::bigint, $2, $3, $4, $5, 0, $6, $7, c.now, \
             c.now + $7 * interval '1 millisecond', false \
             FROM c WHERE NOT EXISTS (SELECT FROM {table} AS h WHERE h.shard = $1 \
             AND h.session IS DISTINCT FROM $2 AND NOT (h.released OR h.expires <= c.now)) \
             ON CONFLICT (shard) DO UPDATE SET term = greatest(l.term + 1, excluded.term), \
             session = excluded.session, owner = excluded.owner, host = excluded.host, pid = excluded.pid, beat = 0, \
             sent = excluded.sent, lease_ms = excluded.lease_ms, since = excluded.since, \
             expires = excluded.expires, released = false \
             WHERE (l.session = excluded.session AND l.sent < excluded.sent) \
             OR (l.session <> excluded.session AND (l.released OR l.expires <= excluded.since)) \
             RETURNING l.term) \
             SELECT k.term::bigint, \
             extract(epoch FROM c.now)::float8 - extract(epoch FROM m.since)::float8, {COLUMNS} \
             FROM c LEFT JOIN k ON true LEFT JOIN m ON true LEFT JOIN {table} AS l ON l.shard = $1"
        )
    }

    /// Parameters: shard, session, term, sequence, lease, the pid and start of the backend that holds the advisory
    /// lock, and as many shards whose orders are read. Returns: whether it was applied; whether that backend holds the
    /// lock; the notes of those shards; the row as it was before.
    pub fn renew(&self, orders_of: usize) -> String {
        let (context, table) = (self.context(false), &self.table);
        let locked = match self.advisory_lock {
            None => "true".to_owned(),
            Some(key) => format!(
                "EXISTS (SELECT FROM pg_locks AS k JOIN pg_stat_activity AS a USING (pid) WHERE {} \
                 AND k.pid = $6 AND (extract(epoch FROM a.backend_start) * 1000000)::bigint = $7)",
                is_lock(key)
            ),
        };
        let orders: String = (0..orders_of).map(|index| self.orders(8 + index)).collect();
        format!(
            "WITH {context}, r AS (UPDATE {table} AS l SET beat = $4, lease_ms = $5, \
             expires = c.now + $5 * interval '1 millisecond' FROM c \
             WHERE l.shard = $1 AND l.session = $2 AND l.term = $3 AND l.beat < $4 AND NOT l.released \
             RETURNING l.beat) \
             SELECT (SELECT count(*) FROM r) > 0, {locked}, {orders}{COLUMNS} \
             FROM c LEFT JOIN {table} AS l ON l.shard = $1"
        )
    }

    /// Parameters: shard, session, term (0 for any), sent, channel. Returns: whether it was applied, whether standbys
    /// were notified, the row as it was before.
    pub fn release(&self) -> String {
        let (context, table) = (self.context(false), &self.table);
        format!(
            "WITH {context}, r AS (UPDATE {table} AS l SET released = true, sent = $4, \
             expires = least(l.expires, c.now) FROM c \
             WHERE l.shard = $1 AND l.session = $2 AND ($3 = 0 OR l.term = $3) AND NOT l.released AND l.sent < $4 \
             RETURNING l.shard), \
             n AS (SELECT pg_notify($5, r.shard)::text AS told FROM r) \
             SELECT (SELECT count(*) FROM r) > 0, (SELECT count(n.told) FROM n), {COLUMNS} \
             FROM c LEFT JOIN {table} AS l ON l.shard = $1"
        )
    }

    /// Parameters: shard, term, channel. Returns: whether it was applied, whether standbys were notified, the row as it
    /// was before.
    pub fn revoke(&self) -> String {
        let (context, table) = (self.context(false), &self.table);
        format!(
            "WITH {context}, r AS (UPDATE {table} AS l SET session = '{REVOKED}' FROM c \
             WHERE l.shard = $1 AND l.term = $2 AND l.session <> '{REVOKED}' \
             AND NOT (l.released OR l.expires <= c.now) \
             RETURNING l.shard), \
             n AS (SELECT pg_notify($3, r.shard)::text AS told FROM r) \
             SELECT (SELECT count(*) FROM r) > 0, (SELECT count(n.told) FROM n), {COLUMNS} \
             FROM c LEFT JOIN {table} AS l ON l.shard = $1"
        )
    }

    /// Parameters: shard, session. Returns nothing. A row stays if the server's clock has not passed its term, because
    /// the next term would not be higher. Without WITH, because a rule is applied to this statement.
    pub fn forget(&self) -> String {
        let table = &self.table;
        format!(
            "DELETE FROM {table} WHERE shard = $1 AND session = $2 AND released \
             AND term < floor(extract(epoch FROM clock_timestamp()) * 1000)"
        )
    }

    /// Parameters: shard, and the pids of our own backends, which may still hold the advisory lock (then it counts as
    /// free). Returns: the other holder of that lock, and the row.
    pub fn look(&self) -> String {
        let table = &self.table;
        let holder = match self.advisory_lock {
            None => "(SELECT 0 AS pid, '' AS name, '' AS host WHERE false)".to_owned(),
            Some(key) => format!("({} AND k.pid <> ALL ($2) LIMIT 1)", lock_holder(key)),
        };
        format!(
            "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now) \
             SELECT k.pid::bigint, k.name, k.host, {COLUMNS} \
             FROM c LEFT JOIN {table} AS l ON l.shard = $1 LEFT JOIN {holder} AS k ON true"
        )
    }

    /// Parameters: the prefix of the shards, and the last shard of the page before, or an empty text. Returns: a page
    /// of rows, one for each shard, which begins with the shard.
    pub fn list(&self) -> String {
        let table = &self.table;
        format!(
            "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now) SELECT l.shard::text, {COLUMNS} \
             FROM c CROSS JOIN {table} AS l WHERE l.shard <> '{MARKER}' AND starts_with(l.shard::text, $1) \
             AND l.shard::text COLLATE \"C\" > $2 ORDER BY l.shard::text COLLATE \"C\" LIMIT {LIST_PAGE}"
        )
    }
}

/// The condition that a row `k` of pg_locks is this advisory lock. PostgreSQL keeps the two halves of its key apart.
fn is_lock(key: i64) -> String {
    let bits = u64::from_ne_bytes(key.to_ne_bytes());
    let (high, low) = (bits >> 32, bits & 0xffff_ffff);
    format!(
        "k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted AND k.classid::bigint = {high} \
         AND k.objid::bigint = {low} \
         AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())"
    )
}

/// The holder of an advisory lock: its backend's pid, its name for itself, its host, and its start.
pub fn lock_holder(key: i64) -> String {
    format!(
        "SELECT k.pid, coalesce(a.application_name, '') AS name, coalesce(host(a.client_addr), '') AS host, \
         coalesce((extract(epoch FROM a.backend_start) * 1000000)::bigint, 0) AS started \
         FROM pg_locks AS k LEFT JOIN pg_stat_activity AS a USING (pid) WHERE {}",
        is_lock(key)
    )
}

/// Reads the last columns of a row.
pub fn seen(row: &Row) -> Seen {
    let Some(first) = row.len().checked_sub(COLUMN_COUNT) else { return Seen::Garbage };
    match row.try_get::<_, bool>(first) {
        Ok(false) => Seen::Absent,
        Ok(true) => record(row, first).map_or(Seen::Garbage, Seen::Record),
        Err(_) => Seen::Garbage,
    }
}

fn record(row: &Row, first: usize) -> Option<Record> {
    let count = |column| row.try_get::<_, i64>(first + column).ok();
    let words = |column| row.try_get::<_, String>(first + column).ok();
    Some(Record {
        free: row.try_get(first + 1).ok()?,
        released: row.try_get(first + 2).ok()?,
        term: Term(u64::try_from(count(3)?).ok()?),
        session: Session::from_record(&words(4)?),
        owner: words(5)?,
        host: words(6)?,
        pid: count(7)?,
        beat: u64::try_from(count(8)?).ok()?,
        sent: count(9)?,
        lease: Duration::from_millis(u64::try_from(count(10)?).ok()?),
        since: seconds(row.try_get(first + 11).ok()?),
        left: seconds(row.try_get(first + 12).ok()?),
    })
}

/// A duration from a float in a row, which may be anything: an expiry may be `infinity`.
pub fn seconds(seconds: f64) -> Duration {
    const MOST: f64 = 1e10;
    if seconds.is_nan() { Duration::ZERO } else { Duration::from_secs_f64(seconds.clamp(0.0, MOST)) }
}

/// A duration as a parameter.
pub fn millis(duration: Duration) -> i64 {
    integer(crate::time::millis(duration))
}

pub fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use crate::store::postgres::grants::Relation;

    #[test]
    fn a_million_rows_of_any_numbers_are_holders() {
        fuzz::run("row of postgres://", |source, input| {
            let edges = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-300, 1e10, f64::MAX];
            let mut float = |bits: u64| if source.one_in(4) { *source.of(&edges) } else { f64::from_bits(bits) };
            let (since, left) = (float(0x41da_0000_0000_0000), float(0x402e_0000_0000_0000));
            let (since, left) = match source.below(3) {
                0 => (since, left),
                1 => (f64::from_bits(source.next()), f64::from_bits(source.next())),
                _ => (since, f64::from_bits(source.number())),
            };
            let record = Record {
                free: false,
                released: false,
                term: Term(source.number()),
                session: Session::from_record("s"),
                owner: source.text(),
                host: source.text(),
                pid: source.signed(),
                beat: source.number(),
                sent: source.signed(),
                lease: Duration::from_millis(source.number()),
                since: seconds(since),
                left: seconds(left),
            };
            input.show(|| format!("{record:?}"));
            let holder = record.holder();
            let expires_in = holder.expires_in.expect("a row has an end");
            assert!(if expires_in.is_zero() { left.is_nan() || left < 1e-9 } else { left > 0.0 }, "{left}");
            assert!(left.is_nan() || left.min(1e10) - expires_in.as_secs_f64() < 1e-3, "{left}");
            let asked = source.duration();
            assert!(
                u128::try_from(millis(asked)).expect("it is positive") * 1_000_000 >= asked.as_nanos().min(1 << 60)
            );
            assert!(integer(source.number()) >= 0);
            if holder.pid.is_some() { Fate::Accepted } else { Fate::Refused }
        });
    }

    #[test]
    fn any_name_is_quoted_so_that_nothing_ends_it_early() {
        fuzz::run_a_tenth("name of a table", |source, input| {
            let seeds: [&[u8]; 5] = [b"leaderrun", b"public", b"my \"own\"", b"user", b"a\"; DROP TABLE b; --"];
            let name = &*String::from_utf8_lossy(&source.bend(&seeds)).into_owned();
            input.show(|| name.to_owned());

            let text = quoted(name);
            if text == name {
                assert!(PLAIN.contains(&name));
                return Fate::Refused;
            }
            let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).expect("it has quotes");
            assert_eq!(inner.replace("\"\"", ""), name.replace('"', ""));
            assert_eq!(inner.replace("\"\"", "\""), name);
            let address = address(name, name);
            assert!(channel(&address).len() <= 63);
            assert!(notes_name(name).len() <= 63 && notes_name(name) != name);
            Fate::Accepted
        });
    }

    fn address(schema: &str, table: &str) -> Address {
        let mut address = Address::read("//h/db").unwrap();
        (address.schema, address.table) = (schema.to_owned(), table.to_owned());
        address
    }

    #[test]
    fn the_names_of_long_tables_are_the_same_in_every_release() {
        assert_eq!(notes_name(&"x".repeat(60)), "leaderrun_notes_14b1d92b2cf0af95");
        assert_eq!(channel(&address("public", &"x".repeat(62))), "leaderrun 540ef498b640fe20");
    }

    #[test]
    fn names_are_quoted() {
        let address = address("my \"own\"", "user");
        assert_eq!(Relation::leases(&address).to_string(), "\"my \"\"own\"\"\".\"user\"");
        assert_eq!(Relation::notes(&address).to_string(), "\"my \"\"own\"\"\".\"user_notes\"");
    }

    #[test]
    fn the_default_tables_need_no_quotes() {
        let address = address("public", "leaderrun");
        assert_eq!(Relation::leases(&address).to_string(), "public.leaderrun");
        assert_eq!(Relation::notes(&address).to_string(), "public.leaderrun_notes");
    }

    #[test]
    fn the_notes_of_a_table_with_a_long_name_are_in_another_table_that_is_its_own() {
        for length in [57, 58, 63] {
            let (one, other) = ("x".repeat(length), format!("y{}", "x".repeat(length - 1)));
            assert!(notes_name(&one).len() <= 63);
            assert!(notes_name(&one) != one && notes_name(&one) != notes_name(&other));
        }
        assert_eq!(notes_name("locks"), "locks_notes");
    }

    #[test]
    fn a_channel_has_a_name_that_postgresql_does_not_cut() {
        assert_eq!(channel(&address("public", "leaderrun")), "leaderrun public.leaderrun");
        let (long, other) = ("x".repeat(62), "x".repeat(63));
        assert!(channel(&address("public", &long)).len() <= 63);
        assert_ne!(channel(&address("public", &long)), channel(&address("public", &other)));
    }

    #[test]
    fn a_time_in_a_row_may_be_any_number() {
        assert_eq!(seconds(f64::NAN), Duration::ZERO);
        assert_eq!(seconds(-1.0), Duration::ZERO);
        assert!(seconds(f64::INFINITY) > Duration::from_hours(24));
        assert_eq!(seconds(1.5), Duration::from_millis(1500));
    }

    #[test]
    fn a_lease_is_never_shorter_in_the_store() {
        assert_eq!(millis(Duration::from_micros(1500)), 2);
        assert_eq!(millis(Duration::from_millis(1500)), 1500);
    }

    #[test]
    fn an_advisory_lock_is_found_by_both_halves_of_its_key() {
        assert!(is_lock(-1).contains("classid::bigint = 4294967295 AND k.objid::bigint = 4294967295"));
        assert!(is_lock(7).contains("classid::bigint = 0 AND k.objid::bigint = 7"));
    }
}
