//! The tables: their columns, the trigger that keeps leases, how to make them, and what is in their place.
//!
//! The hazard: without its trigger a user can delete a lease that is held, and then two candidates would lead. Only
//! some users may make a trigger. So the marker's row says whether there is one, and without it nobody relies on it.

use super::connection::{Connection, Row};
use super::failure::{Complaint, Site, Trouble};
use super::notes;
use super::server::Server;
use super::statement::{MARKER, NAMES, NOW, quoted, text};
use crate::store::error::in_short;
use crate::store::stable_hash::fnv1a;
use crate::store::{ErrorKind, StoreError};
use tokio::time::timeout_at;

/// Words compare byte by byte, but for spaces at their end.
const KIND: &str = "ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";
const ALREADY_THERE: u16 = 1359;

pub fn creation(server: &Server) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (shard VARCHAR(200) NOT NULL, term BIGINT NOT NULL, session VARCHAR(64) NOT NULL, \
         owner TEXT NOT NULL, host TEXT NOT NULL, pid BIGINT NOT NULL, beat BIGINT NOT NULL, sent BIGINT NOT NULL, \
         lease_ms BIGINT NOT NULL, since DATETIME(6) NOT NULL, expires DATETIME(6) NOT NULL, released TINYINT NOT NULL, \
         PRIMARY KEY (shard)) {KIND}",
        server.statements.table
    )
}

pub fn creation_of_notes(server: &Server) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (shard VARCHAR(200) NOT NULL, page VARCHAR(150) NOT NULL, text TEXT NOT NULL, \
         expires_at DATETIME(6) NULL, changes BIGINT NOT NULL, PRIMARY KEY (shard, page)) {KIND}",
        server.notes.table
    )
}

/// Statements that fail if a column is missing.
pub fn probe(server: &Server) -> String {
    format!("SELECT {NAMES} FROM {} LIMIT 0", server.statements.table)
}

pub fn probe_of_notes(server: &Server) -> String {
    format!("SELECT {} FROM {} LIMIT 0", notes::NAMES, server.notes.table)
}

/// The trigger that keeps a lease that is held, and the marker, from being deleted.
fn trigger(server: &Server) -> String {
    let (address, table) = (&server.address, &server.statements.table);
    // A database has one trigger of a name.
    let name = format!("leaderrun_keep_{:016x}", fnv1a(address.table.bytes()));
    format!(
        "CREATE TRIGGER {}.{} BEFORE DELETE ON {table} FOR EACH ROW \
         IF OLD.shard = {MARKER} OR NOT (OLD.released <> 0 OR OLD.expires < {NOW} - INTERVAL 1 DAY) THEN \
         SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a lease that is held is not deleted: see leaderctl revoke'; END IF",
        quoted(&address.database),
        quoted(&name)
    )
}

/// Makes the trigger.
///
/// # Errors
/// Why this user may not.
pub async fn protect(server: &Server, connection: &mut Connection) -> Result<(), StoreError> {
    let made = ask_plainly(server, connection, &trigger(server)).await?;
    match made {
        Ok(_) | Err(Trouble::Complaint(Complaint { code: ALREADY_THERE, .. })) => Ok(()),
        // With a binary log, MySQL lets only users with SUPER make a trigger, unless it trusts them by a setting.
        Err(Trouble::Complaint(Complaint { code: 1419, message })) => Err(StoreError::denied(message)),
        Err(trouble) => Err(server.site.unanswered(&trouble, false)),
    }
}

/// The storage engine of a table. None if there is no such table.
pub async fn engine(server: &Server, connection: &mut Connection, table: &str) -> Result<Option<String>, StoreError> {
    let question = format!(
        "SELECT COALESCE(i.engine, i.table_type) FROM information_schema.tables AS i \
         WHERE i.table_schema = {} AND i.table_name = {}",
        text(&server.address.database),
        text(table)
    );
    let rows = ask(server, &server.site, connection, &question).await?;
    Ok(rows.first().map(|row| row.words(0).unwrap_or_default()))
}

/// Asks on this connection. Returns the rows of the last statement.
pub async fn ask(
    server: &Server,
    site: &Site,
    connection: &mut Connection,
    statements: &str,
) -> Result<Vec<Row>, StoreError> {
    ask_plainly(server, connection, statements).await?.map_err(|trouble| site.unanswered(&trouble, false))
}

async fn ask_plainly(
    server: &Server,
    connection: &mut Connection,
    statements: &str,
) -> Result<Result<Vec<Row>, Trouble>, StoreError> {
    let mut outcomes = Vec::new();
    let asked = timeout_at(server.deadline(), connection.ask_within_transaction(statements, &mut outcomes)).await;
    let asked = asked.map_err(|_| server.silent())?;
    Ok(asked.map(|()| outcomes.pop().unwrap_or_default().rows))
}

/// Runs a statement that makes something.
pub async fn make(server: &Server, connection: &mut Connection, statement: &str) -> Result<(), StoreError> {
    match ask(server, &server.site, connection, statement).await {
        Err(error) if error.kind == ErrorKind::Denied => {
            let Site { server: name, user, database, .. } = &server.site;
            Err(StoreError::denied(format!(
                "{name} denied user {user} what it needs: GRANT CREATE, TRIGGER, SELECT, INSERT, UPDATE ON {}.*",
                quoted(database)
            )))
        }
        answer => answer.map(drop),
    }
}

/// Without transactions a lease may be lost in a crash, and another node of a cluster does not even have it.
pub fn refuse_engine(table: &str, engine: &str) -> Result<(), StoreError> {
    if engine.eq_ignore_ascii_case("InnoDB") {
        return Ok(());
    }
    Err(StoreError::misconfigured(format!(
        "{table} is of the kind {}, and leases need a table of InnoDB: drop it and make it with leaderctl store init, or \
         use another with table=NAME",
        in_short(engine)
    )))
}

/// Whether the marker says that the trigger is there.
pub async fn is_protected(server: &Server, connection: &mut Connection) -> Result<bool, StoreError> {
    let memory = server.statements.memory();
    let rows = ask(server, &server.site, connection, &memory).await?;
    Ok(rows.first().and_then(|row| row.flag(3)).unwrap_or(false))
}
