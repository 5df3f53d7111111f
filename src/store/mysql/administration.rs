//! What operators do with the tables: list, revoke, forget, `leaderctl store init`.
//!
//! The hazard: an operator may end a lease while its tree still runs. So `revoke` keeps the row, which then belongs to
//! nobody until the lease would have ended, and `forget` deletes only a row that was released.

use super::failure::Site;
use super::statement::notes_name;
use super::table::{
    ask, creation, creation_of_notes, engine, is_protected, make, probe, probe_of_notes, protect, refuse_engine,
};
use super::{Mysql, check, list};
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Administration, EachPage, ErrorKind, Finding, Leases, Release, Report, StoreError, steps};

#[async_trait::async_trait]
impl Administration for Mysql {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        Ok(self.look(shard).await?.report())
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        list::list(self, prefix, each).await
    }

    /// The row stays: see `statement`.
    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let server = &self.server;
        let answer = server.ask(&server.site, &server.statements.revoke(shard, term)).await?;
        let before = answer.again && self.seen(&answer, 1)?.was_revoked(term);
        Ok(if answer.changed(0) == Some(1) || before { Release::Released } else { Release::NotHeld })
    }

    /// The trigger on the table allows deleting a row that was released. A candidate that is granted the lease in
    /// between keeps the row, and its term.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (shard, server) = (&candidate.shard, &self.server);
        let site = Site { privileges: "DELETE", ..server.site.clone() };
        let delete = async |session: &str| server.ask(&site, &server.statements.forget(shard, session)).await;
        // Before anything is gone: no session has this name, but a user who may not delete gets an error here.
        delete("").await?;
        self.forget_notes(shard).await?;
        let released = self.release(candidate, term).await?;
        if released == Release::Released {
            delete(candidate.session.as_str()).await?;
        }
        Ok(released)
    }

    /// Makes the tables if they are missing, and what they need in them.
    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let server = &self.server;
        let Site { server: name, table, .. } = &server.site;
        let mut lines = Vec::new();
        let mut connection = server.connect(server.deadline()).await?;
        let connection = &mut connection;
        match engine(server, connection, &server.address.table).await? {
            None => {
                make(server, connection, &creation(server)).await?;
                lines.push(steps::made(format_args!("table {table} in {name}")));
            }
            Some(engine) => {
                refuse_engine(table, &engine)?;
                lines.push(steps::is_there(format_args!("table {table} in {name}")));
            }
        }
        ask(server, &server.site, connection, &probe(server)).await?;
        let since = server.remember_over(connection).await;
        let since = since.map_err(|trouble| server.site.unanswered(&trouble, false))?;
        lines.push(steps::remembers("the table", since.is_none()));
        let protected = match protect(server, connection).await {
            Ok(()) => {
                lines.push("a DELETE of a lease that is held is refused".to_owned());
                true
            }
            Err(error) if error.kind == ErrorKind::Denied => {
                lines.push(format!(
                    "left it possible to DELETE a lease that is held, so the first leader of each shard waits one lease \
                     duration: no permission for a trigger ({error})"
                ));
                false
            }
            Err(error) => return Err(error),
        };
        if protected || !is_protected(server, connection).await? {
            ask(server, &server.site, connection, &server.statements.protect(protected)).await?;
        }
        match engine(server, connection, &notes_name(&server.address.table)).await? {
            None => {
                make(server, connection, &creation_of_notes(server)).await?;
                lines.push(steps::made(format_args!("table {} for notes", server.notes.table)));
            }
            Some(engine) => {
                refuse_engine(&server.notes.table, &engine)?;
                lines.push(steps::is_there(format_args!("table {} for notes", server.notes.table)));
            }
        }
        ask(server, &server.notes, connection, &probe_of_notes(server)).await?;
        for Site { table, privileges, .. } in [&server.site, &server.notes] {
            lines.push(format!("each candidate needs: GRANT {privileges} ON {table} TO ..."));
        }
        Ok(lines)
    }

    async fn vouch(&self) -> Result<(), StoreError> {
        let server = &self.server;
        server.ask(&server.site, &server.statements.vouch()).await.map(drop)
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
    }
}
