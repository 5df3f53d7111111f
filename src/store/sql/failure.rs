//! What a failed request means, in one line.
//!
//! The hazard: a write that was applied, but is called "not applied", makes two candidates lead or loses a lease that
//! is held. While a connection is being made, no request was sent. After that, only an error that the server reports of
//! a statement shows that its transaction was rolled back. A session that was ended may have committed before, and a
//! broken connection shows nothing.

use super::address::Address;
use super::statements::{Dialect, Statements};
use crate::store::StoreError;
use crate::store::error::{in_short, innermost, innermost_of};
use std::error::Error;

/// What a candidate needs on the table.
pub const PRIVILEGES: &str = "SELECT, INSERT, UPDATE, DELETE";

/// The server and the table of a request, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// As people call the server.
    pub kind: &'static str,
    /// `PostgreSQL at 10.0.0.5:5432`.
    pub server: String,
    pub user: String,
    pub database: String,
    /// As SQL has it.
    pub table: String,
    /// As SQL has it. Empty where everybody may use it.
    pub schema: String,
}

/// What an error of a server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    // Of a login.
    NoDatabase,
    NotLetIn,
    /// The limits that may be meant.
    NoConnectionLeft(&'static str),
    TakesNone,
    // Of a transaction, which was rolled back.
    Denied,
    NoTable,
    NoWrites,
    Locked,
    /// Another transaction was faster: asked again, it may succeed at once.
    Overtaken,
    /// It may work later.
    Passing,
    /// What was to be made is there.
    IsThere,
    /// What has to stay was not deleted.
    Kept,
    /// The table has other columns than ours, or takes other values.
    AnotherTable,
    // Of a transaction that may have been committed.
    /// The session ended, or the connection.
    Lost,
    Unknown,
}

/// The reason why statements have no answer.
#[derive(Debug)]
pub struct Failure {
    pub meaning: Meaning,
    pub error: StoreError,
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { meaning: Meaning::Unknown, error }
    }
}

impl Site {
    /// # Errors
    /// Misconfigured: nothing names a user.
    pub fn new(address: &Address, statements: &Statements) -> Result<Self, StoreError> {
        let is_open = address.dialect == Dialect::MySql || address.schema == "public";
        Ok(Self {
            kind: address.kind(),
            server: address.to_string(),
            user: address.user()?,
            database: address.database.clone(),
            table: statements.table.clone(),
            schema: if is_open { String::new() } else { statements.schema.clone() },
        })
    }

    /// The failure of a request of which the server says `message`.
    pub fn failure(&self, meaning: Meaning, message: &str) -> Failure {
        Failure { meaning, error: self.explained(meaning, message) }
    }

    pub fn explained(&self, meaning: Meaning, message: &str) -> StoreError {
        let Self { server, user, database, table, .. } = self;
        let message = in_short(message);
        match meaning {
            Meaning::NoDatabase => {
                StoreError::misconfigured(format!("no database {database} in {server}: name another, or make it"))
            }
            Meaning::NotLetIn => StoreError::denied(format!("{server} does not let in user {user}: {message}")),
            Meaning::NoConnectionLeft(raise) => StoreError::not_applied(format!(
                "{server} has no connection left for user {user}: {message}: raise {raise}"
            )),
            Meaning::TakesNone => StoreError::not_applied(format!("{server} does not take connections: {message}")),
            Meaning::Denied => {
                let grant = self.grant(user);
                StoreError::denied(format!("{server} denied user {user} what it needs: {grant} ({message})"))
            }
            Meaning::NoTable => StoreError::misconfigured(format!(
                "no table {table} in database {database} of {server}: make it with leaderctl store init"
            )),
            Meaning::NoWrites => StoreError::not_applied(format!("{server} does not accept writes: {message}")),
            Meaning::Locked => StoreError::not_applied(format!(
                "{server} gave up: an open transaction holds a lock on table {table} or on a row of it ({message})"
            )),
            Meaning::Overtaken | Meaning::Passing | Meaning::IsThere => {
                StoreError::not_applied(format!("{server} failed: {message}"))
            }
            Meaning::AnotherTable | Meaning::Kept => StoreError::misconfigured(format!(
                "table {table} in {server} cannot be used ({message}): it was made by something else, or by an earlier \
                 release of leaderrun: use another with table=NAME, or drop it, and then leaderctl store init"
            )),
            Meaning::Lost => StoreError::unknown(format!("lost {server}: {message}")),
            Meaning::Unknown => StoreError::unknown(format!("{server} failed with {message}")),
        }
    }

    /// What grants a candidate all that it needs.
    pub fn grant(&self, to: &str) -> String {
        let Self { schema, table, .. } = self;
        let usage = if schema.is_empty() { String::new() } else { format!("GRANT USAGE ON SCHEMA {schema} TO {to}; ") };
        format!("{usage}GRANT {PRIVILEGES} ON {table} TO {to}")
    }

    pub fn silent(&self) -> StoreError {
        StoreError::unknown(format!("{} did not answer in time", self.server))
    }

    pub fn not_understood(&self) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {}", self.server))
    }

    pub fn unreachable(&self, error: &(dyn Error + 'static)) -> StoreError {
        let cause = innermost_of(error, self.kind);
        StoreError::not_applied(format!("cannot reach {}: {cause}", self.server)).because(error)
    }

    pub fn without_tls(&self, mode: &str) -> StoreError {
        let server = &self.server;
        StoreError::misconfigured(format!("{server} does not speak TLS: turn TLS on, or do without it with {mode}"))
    }

    /// The error of a question that is asked while a connection is being made: no request was sent yet.
    pub fn unusable(&self, failure: &Failure) -> StoreError {
        StoreError::not_applied(format!("cannot use {}: {}", self.server, failure.error))
    }

    /// The failure of a request whose connection ended so.
    pub fn lost(&self, error: &(dyn Error + 'static)) -> Failure {
        let lost = self.explained(Meaning::Lost, &innermost(error));
        Failure { meaning: Meaning::Lost, error: lost.because(error) }
    }
}
