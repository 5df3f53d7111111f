//! What `leaderctl store init` makes: the table, and the rule against deleting what has to stay.

use super::connection::{Connection, Parameters};
use super::grants::Relation;
use super::server::Server;
use super::{quoted, text};
use crate::store::sql::site::Site;
use crate::store::sql::statements::{KEEP, NAMES};
use crate::store::{ErrorKind, StoreError, steps};
use tokio::time::timeout_at;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

/// What is in the place of a table.
pub struct Found {
    schema: bool,
    /// pg_class.relkind and relpersistence.
    pub table: Option<(char, char)>,
    pub rule: bool,
}

/// Makes the table if it is missing, and what it needs.
pub async fn prepare(server: &Server) -> Result<Vec<String>, StoreError> {
    let Site { server: name, database, user, .. } = &server.site;
    let table = &server.table;
    let [creation, rule] = server.statements.creation();
    let kept = "a DELETE of a lease that is held does nothing";
    let mut lines = Vec::new();
    let (connection, _) = server.connect(server.deadline()).await?;
    loop {
        let found = look(server, &connection, table).await?;
        match found.table {
            None => {
                let schema = quoted(&table.schema);
                let (making, needs) = if found.schema {
                    (String::new(), format!("GRANT CREATE ON SCHEMA {schema} TO {user}"))
                } else {
                    (
                        format!("CREATE SCHEMA {schema}; "),
                        format!("GRANT CREATE ON DATABASE {} TO {user}", quoted(database)),
                    )
                };
                if !run(server, &connection, &format!("{making}{creation}; {rule}"), &needs).await? {
                    continue;
                }
                lines.push(steps::made(format_args!("table {table} in database {database} of {name}")));
                lines.push(kept.to_owned());
            }
            Some((kind, _)) if !"rp".contains(kind) => {
                return Err(StoreError::misconfigured(format!(
                    "{table} in database {database} of {name} is not a table: use another with table=NAME"
                )));
            }
            Some(_) => {
                lines.push(steps::is_there(format_args!("table {table} in database {database} of {name}")));
                ask(server, &connection, &format!("SELECT {NAMES} FROM {table} LIMIT 0"), &[]).await?;
                lines.push(if found.rule {
                    kept.to_owned()
                } else {
                    match run(server, &connection, &rule, "its owner may").await {
                        Ok(_) => format!("from now on, {kept}"),
                        Err(error) if error.kind == ErrorKind::Denied => {
                            format!("left it possible to DELETE a lease that is held: {error}")
                        }
                        Err(error) => return Err(error),
                    }
                });
            }
        }
        lines.push(format!("each candidate needs: {}", table.grant("...")));
        return Ok(lines);
    }
}

pub async fn look(server: &Server, connection: &Connection, table: &Relation) -> Result<Found, StoreError> {
    let question = "SELECT n.oid IS NOT NULL, c.relkind::text, c.relpersistence::text, EXISTS (SELECT FROM pg_rewrite AS r \
                    WHERE r.ev_class = c.oid AND r.rulename = $3 AND r.ev_type = '4' AND r.ev_enabled IN ('O', 'A')) \
                    FROM (SELECT) AS one LEFT JOIN pg_namespace AS n ON n.nspname = $1 \
                    LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = $2";
    let names = [text(&table.schema), text(&table.name), text(&KEEP)];
    let rows = ask(server, connection, question, &names).await?;
    let letter = |row: &Row, column| row.try_get::<_, String>(column).ok()?.chars().next();
    rows.first()
        .and_then(|row| {
            let table = letter(row, 1).zip(letter(row, 2));
            Some(Found { schema: row.try_get(0).ok()?, table, rule: row.try_get(3).ok()? })
        })
        .ok_or_else(|| server.site.not_understood())
}

pub async fn ask(
    server: &Server,
    connection: &Connection,
    statement: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<Row>, StoreError> {
    let deadline = server.deadline();
    match timeout_at(deadline, connection.ask(statement, parameters)).await {
        Ok(Ok(rows)) => Ok(rows),
        Ok(Err(error)) => {
            Err(server.explained(connection, connection.unanswered(&server.site, &error), deadline).await)
        }
        Err(_) => Err(server.site.silent()),
    }
}

/// Runs the statements that make a table. False if another process has just made it.
async fn run(server: &Server, connection: &Connection, statements: &str, needs: &str) -> Result<bool, StoreError> {
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
        Err(_) => Err(server.site.silent()),
    }
}
