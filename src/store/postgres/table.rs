//! The table: its columns and its rule, how to make it, and what is in its place.
//!
//! The hazard: without its rule a user can delete a lease that is held, and then two candidates lead.

use super::connection::{Connection, Parameters};
use super::failure::Site;
use super::grants::Relation;
use super::notes;
use super::server::Server;
use super::statement::{MARKER, quoted, text};
use crate::store::{ErrorKind, StoreError};
use tokio::time::timeout_at;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

/// Turns a DELETE of a lease that is held, or of the marker, into nothing.
const RULE: &str = "leaderrun_keep";
pub const NAMES: &str = "shard, term, session, owner, host, pid, beat, sent, lease_ms, since, expires, released";

/// What is in the place of a table.
pub struct Found {
    pub schema: bool,
    /// pg_class.relkind and relpersistence.
    pub table: Option<(char, char)>,
    pub rule: bool,
}

pub fn creation(server: &Server, schema_exists: bool) -> String {
    let table = &server.statements.table;
    let schema = quoted(&server.address.schema);
    let schema = if schema_exists { String::new() } else { format!("CREATE SCHEMA {schema}; ") };
    // Half of each page stays empty, so that a renewal finds room for the row's next version beside it.
    format!(
        "{schema}CREATE TABLE {table} (shard text COLLATE \"C\" PRIMARY KEY, term bigint NOT NULL, session text NOT NULL, \
         owner text NOT NULL, host text NOT NULL, pid bigint NOT NULL, beat bigint NOT NULL, sent bigint NOT NULL, \
         lease_ms bigint NOT NULL, since timestamptz NOT NULL, expires timestamptz NOT NULL, released boolean NOT NULL) \
         WITH (fillfactor = 50); {}; {}",
        rule(server),
        notes::creation(&server.notes.table)
    )
}

pub fn rule(server: &Server) -> String {
    let table = &server.statements.table;
    format!(
        "CREATE OR REPLACE RULE {RULE} AS ON DELETE TO {table} \
         WHERE old.shard = '{MARKER}' OR NOT (old.released OR old.expires < clock_timestamp() - interval '1 day') \
         DO INSTEAD NOTHING; ALTER TABLE {table} ENABLE RULE {RULE}"
    )
}

pub async fn look(server: &Server, connection: &Connection, table: &Relation) -> Result<Found, StoreError> {
    let question = "SELECT n.oid IS NOT NULL, c.relkind::text, c.relpersistence::text, EXISTS (SELECT FROM pg_rewrite AS r \
                    WHERE r.ev_class = c.oid AND r.rulename = $3 AND r.ev_type = '4' AND r.ev_enabled IN ('O', 'A')) \
                    FROM (SELECT) AS one LEFT JOIN pg_namespace AS n ON n.nspname = $1 \
                    LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = $2";
    let names = [text(&table.schema), text(&table.name), text(&RULE)];
    let rows = ask(server, connection, question, &names).await?;
    let letter = |row: &Row, column| row.try_get::<_, String>(column).ok()?.chars().next();
    rows.first()
        .and_then(|row| {
            let table = letter(row, 1).zip(letter(row, 2));
            Some(Found { schema: row.try_get(0).ok()?, table, rule: row.try_get(3).ok()? })
        })
        .ok_or_else(|| StoreError::unknown(format!("cannot understand the answer of {}", server.site.server)))
}

pub async fn ask(
    server: &Server,
    connection: &Connection,
    statement: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<Row>, StoreError> {
    ask_about(server, &server.site, connection, statement, parameters).await
}

pub async fn ask_about(
    server: &Server,
    site: &Site,
    connection: &Connection,
    statement: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<Row>, StoreError> {
    match timeout_at(server.deadline(), connection.ask(statement, parameters)).await {
        Ok(Ok(rows)) => Ok(rows),
        Ok(Err(error)) => {
            Err(server.explained(connection, site, connection.unanswered(site, &error), server.deadline()).await)
        }
        Err(_) => Err(server.silent()),
    }
}

/// Runs the statements that make a table. False if another process has just made it.
pub async fn run(server: &Server, connection: &Connection, statements: &str, needs: &str) -> Result<bool, StoreError> {
    const MADE_MEANWHILE: [SqlState; 4] =
        [SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_OBJECT, SqlState::UNIQUE_VIOLATION];
    match timeout_at(server.deadline(), connection.run(statements)).await {
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) if error.code().is_some_and(|code| MADE_MEANWHILE.contains(code)) => Ok(false),
        Ok(Err(error)) => {
            let failure = connection.unanswered(&server.site, &error);
            Err(match failure.kind {
                ErrorKind::Denied => StoreError::denied(format!("{}: {needs}", failure.message)),
                _ => failure,
            })
        }
        Err(_) => Err(server.silent()),
    }
}
