//! What operators do with the tables: list, revoke, forget, `leaderctl store init`.
//!
//! The hazard: an operator may end a lease while its tree still runs. So `revoke` keeps the row, which then belongs to
//! nobody until the lease would have ended, and `forget` deletes only a row that was released.

use super::connection::Connection;
use super::failure::Site;
use super::grants::Relation;
use super::notes;
use super::server::Server;
use super::statement::{integer, number, quoted, seen, text};
use super::table::{NAMES, ask, ask_about, creation, look, rule, run};
use super::{Postgres, check, list};
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Administration, EachPage, ErrorKind, Finding, Leases, Release, Report, StoreError, steps};

#[async_trait::async_trait]
impl Administration for Postgres {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        Ok(self.look(shard).await?.report())
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        list::list(self, prefix, each).await
    }

    /// The row stays: see `statement`. A session that holds the advisory lock keeps it until its holder notices.
    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let (shard, term_number) = (shard.as_str(), integer(term.0));
        let parameters = [text(&shard), number(&term_number), text(&self.server.channel)];
        let answer = self.server.ask(|_| self.server.statements.revoke(), &parameters, self.server.deadline()).await?;
        let row = self.first(&answer)?;
        let applied: bool = row.try_get(0).map_err(|_| self.not_understood())?;
        let before = answer.again && seen(row).was_revoked(term);
        Ok(if applied || before { Release::Released } else { Release::NotHeld })
    }

    /// The rule on the table allows deleting a row that was released. A candidate that is granted the lease in between
    /// keeps the row, and its term.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (shard, session, statements) =
            (candidate.shard.as_str(), candidate.session.as_str(), &self.server.statements);
        let table = Relation { privileges: &["DELETE"], ..self.server.site.table.clone() };
        let site = Site { table, ..self.server.site.clone() };
        let delete = async |session: &str| {
            let parameters = [text(&shard), text(&session)];
            self.server.ask_about(&site, |_| statements.forget(), &parameters, self.server.deadline()).await
        };
        // Before anything is gone: no session has this name, but a user who may not delete gets an error here.
        delete("").await?;
        self.forget_notes(&candidate.shard).await?;
        let released = self.release(candidate, term).await?;
        if released == Release::Released {
            delete(session).await?;
        }
        Ok(released)
    }

    /// Makes the tables if they are missing, and what they need in them.
    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let server = &self.server;
        let Site { server: name, database, user, .. } = &server.site;
        let table = &server.statements.table;
        let mut lines = Vec::new();
        let (connection, _) = server.connect(server.deadline()).await?;
        loop {
            let found = look(server, &connection, &server.site.table).await?;
            match found.table {
                None => {
                    let needs = if found.schema {
                        format!("GRANT CREATE ON SCHEMA {} TO {user}", quoted(&server.address.schema))
                    } else {
                        format!("GRANT CREATE ON DATABASE {} TO {user}", quoted(database))
                    };
                    if !run(server, &connection, &creation(server, found.schema), &needs).await? {
                        continue;
                    }
                    lines.push(steps::made(format_args!("table {table} in database {database} of {name}")));
                    lines.push("a DELETE of a lease that is held does nothing".to_owned());
                }
                Some((kind, _)) if !"rp".contains(kind) => {
                    return Err(StoreError::misconfigured(format!(
                        "{table} in database {database} of {name} is not a table: use another with table=NAME"
                    )));
                }
                Some(_) => {
                    lines.push(steps::is_there(format_args!("table {table} in database {database} of {name}")));
                    ask(server, &connection, &format!("SELECT {NAMES} FROM {table} LIMIT 0"), &[]).await?;
                    if found.rule {
                        lines.push("a DELETE of a lease that is held does nothing".to_owned());
                    } else {
                        lines.push(match run(server, &connection, &rule(server), "its owner may").await {
                            Ok(_) => "from now on, a DELETE of a lease that is held does nothing".to_owned(),
                            Err(error) if error.kind == ErrorKind::Denied => {
                                format!("left it possible to DELETE a lease that is held: {error}")
                            }
                            Err(error) => return Err(error),
                        });
                    }
                }
            }
            break;
        }
        let rows = ask(server, &connection, &server.statements.remember(connection.has_timeline), &[]).await?;
        let since = rows.first().and_then(|row| row.try_get::<_, Option<f64>>(0).ok().flatten());
        lines.push(steps::remembers("the table", since.is_none()));
        prepare_notes(server, &connection, &mut lines).await?;
        for table in [&server.site.table, &server.notes.table] {
            lines.push(format!("each candidate needs: {}", table.grant("...")));
        }
        Ok(lines)
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        let server = &self.server;
        server.ask(|_| server.statements.vouch(), &[], server.deadline()).await.map(drop)
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
    }
}

/// Makes the table of notes. The table of leases exists already, but an earlier release may have made it without the
/// other.
async fn prepare_notes(server: &Server, connection: &Connection, lines: &mut Vec<String>) -> Result<(), StoreError> {
    let Site { server: name, database, user, table } = &server.notes;
    loop {
        match look(server, connection, table).await?.table {
            None => {
                let needs = format!("GRANT CREATE ON SCHEMA {} TO {user}", quoted(&table.schema));
                if run(server, connection, &notes::creation(table), &needs).await? {
                    lines.push(steps::made(format_args!("table {table} for notes")));
                    return Ok(());
                }
            }
            Some((kind, _)) if !"rp".contains(kind) => {
                return Err(StoreError::misconfigured(format!(
                    "{table} in database {database} of {name} is not a table, and is to be that of the notes: use \
                     another with table=NAME"
                )));
            }
            Some(_) => {
                let columns = format!("SELECT {} FROM {table} LIMIT 0", notes::COLUMNS);
                ask_about(server, &server.notes, connection, &columns, &[]).await?;
                lines.push(steps::is_there(format_args!("table {table} for notes")));
                return Ok(());
            }
        }
    }
}
