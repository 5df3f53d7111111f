//! What a failed request means, in one line.
//!
//! The hazard: a write that was applied, but is called "not applied", makes two candidates lead or loses a lease that
//! is held. While a connection is being made, no request was sent. After that, only an ERROR from the server shows that
//! the statement was rolled back. A FATAL may have come after the commit, and a broken connection shows nothing.

use super::grants::Relation;
use crate::store::StoreError;
use crate::store::error::{in_short, innermost, innermost_of};
use crate::store::tls_mode::Names;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

const TLS: Names = Names { any_name: "sslmode=verify-ca", ca: "sslrootcert", cert: "sslcert", key: "sslkey" };

/// The server and the table of a request, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// `PostgreSQL at 10.0.0.5:5432`.
    pub server: String,
    pub user: String,
    pub database: String,
    /// What the request is about.
    pub table: Relation,
}

impl Site {
    /// The error of a connection that could not be made.
    pub fn unconnected(&self, error: &Error) -> StoreError {
        if let Some(said) = error.as_db_error() {
            return self.not_let_in(said);
        }
        if let Some(failure) = TLS.failure(&self.server, error) {
            return failure;
        }
        let Self { server, user, .. } = self;
        match innermost_of(error, "PostgreSQL").as_str() {
            "password missing" => StoreError::denied(format!("{server} wants a password of user {user}")),
            "unsupported authentication method" | "unsupported SASL mechanism" => StoreError::misconfigured(format!(
                "{server} wants user {user} to show who it is in a way that leaderrun does not know: allow a password \
                 (scram-sha-256) or a certificate in its pg_hba.conf"
            )),
            "server does not support TLS" => StoreError::misconfigured(format!(
                "{server} does not speak TLS: turn TLS on, or do without it with sslmode=prefer"
            )),
            cause => StoreError::not_applied(format!("cannot reach {server}: {cause}")).because(error),
        }
    }

    fn not_let_in(&self, said: &DbError) -> StoreError {
        let Self { server, user, database, .. } = self;
        let message = in_short(said.message());
        match said.code() {
            &SqlState::INVALID_CATALOG_NAME => {
                StoreError::misconfigured(format!("no database {database} in {server}: name another, or make it"))
            }
            &SqlState::INSUFFICIENT_PRIVILEGE => {
                StoreError::denied(format!("{server} denied user {user} CONNECT on database {database}: {message}"))
            }
            // Of the server, or of the role or the database alone.
            &SqlState::TOO_MANY_CONNECTIONS => StoreError::not_applied(format!(
                "{server} has no connection left for user {user}: {message}: raise max_connections, or the CONNECTION \
                 LIMIT that is meant, or connect through a pooler in transaction mode: standbys behind one look instead \
                 of being told"
            )),
            code if code.code().starts_with("28") => {
                StoreError::denied(format!("{server} does not let in user {user}: {message}"))
            }
            // PgBouncer has one code for everything, 08P01.
            _ if message.contains("password") || message.contains("auth") => {
                StoreError::denied(format!("{server} does not let in user {user}: {message}"))
            }
            _ => StoreError::not_applied(format!("{server} does not take connections: {message}")),
        }
    }

    /// The error after the request may have been sent.
    pub fn unanswered(&self, error: &Error) -> StoreError {
        let server = &self.server;
        let Some(said) = error.as_db_error() else {
            return StoreError::unknown(format!("lost {server}: {}", innermost(error))).because(error);
        };
        let message = in_short(said.message());
        if said.parsed_severity().is_none_or(|severity| severity != Severity::Error) {
            return StoreError::unknown(format!("lost {server}: {message}"));
        }
        self.rolled_back(said.code(), &message)
    }

    fn rolled_back(&self, code: &SqlState, message: &str) -> StoreError {
        let Self { server, user, table, .. } = self;
        match *code {
            SqlState::INSUFFICIENT_PRIVILEGE => StoreError::denied(format!("{server} denied user {user}: {message}")),
            SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME => StoreError::misconfigured(format!(
                "no table {table} in database {} of {server}: make it with leaderctl store init",
                self.database
            )),
            SqlState::READ_ONLY_SQL_TRANSACTION => {
                StoreError::not_applied(format!("{server} does not accept writes: {message}"))
            }
            SqlState::LOCK_NOT_AVAILABLE | SqlState::QUERY_CANCELED => StoreError::not_applied(format!(
                "{server} gave up: an open transaction holds a lock on table {table} or on a row of it ({message})"
            )),
            // Out of room, shutting down, deadlocked, overtaken in a serializable transaction: it may work later.
            _ if ["40", "53", "54", "55", "57", "58", "XX"].iter().any(|class| code.code().starts_with(class)) => {
                StoreError::not_applied(format!("{server} failed: {message}"))
            }
            _ => StoreError::misconfigured(format!(
                "table {table} in {server} cannot be used ({message}): it was made by something else, or by an earlier release \
                 of leaderrun: use another with table=NAME, or drop it, and then leaderctl store init"
            )),
        }
    }
}

/// Whether the connection was found closed, as after a restart of the server.
pub fn is_broken(error: &Error) -> bool {
    match error.as_db_error() {
        Some(said) => said.parsed_severity().is_none_or(|severity| severity != Severity::Error),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    fn rolled_back(code: &str) -> StoreError {
        let site = Site {
            server: "PostgreSQL at h:5432".to_owned(),
            user: "app".to_owned(),
            database: "db".to_owned(),
            table: Relation { schema: "public".to_owned(), name: "leaderrun".to_owned(), privileges: &[] },
        };
        site.rolled_back(&SqlState::from_code(code), "some words")
    }

    #[test]
    fn a_failure_that_may_pass_was_not_applied() {
        for code in ["40001", "40P01", "53300", "53100", "55P03", "57014", "57P03", "25006", "XX000"] {
            assert_eq!(rolled_back(code).kind, ErrorKind::NotApplied, "{code}");
        }
    }

    #[test]
    fn a_missing_table_says_how_to_make_it() {
        for code in ["42P01", "3F000"] {
            let error = rolled_back(code);
            assert_eq!(error.kind, ErrorKind::Misconfigured);
            assert!(error.message.contains("leaderctl store init"), "{error}");
        }
    }

    #[test]
    fn a_table_of_something_else_is_named() {
        for code in ["42703", "42804", "22P02", "22003", "23502", "42P10", "0A000"] {
            let error = rolled_back(code);
            assert_eq!(error.kind, ErrorKind::Misconfigured, "{code}");
            assert!(error.message.contains("public.leaderrun"), "{error}");
        }
    }

    #[test]
    fn a_denial_is_one() {
        assert_eq!(rolled_back("42501").kind, ErrorKind::Denied);
    }
}
