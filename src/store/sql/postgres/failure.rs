//! What a failed request means, in one line.
//!
//! The hazard: a write that was applied, but is called "not applied", makes two candidates lead or loses a lease that
//! is held. While a connection is being made, no request was sent. After that, only an ERROR from the server shows that
//! the statement was rolled back. A FATAL may have come after the commit, and a broken connection shows nothing.

use crate::store::StoreError;
use crate::store::error::{in_short, innermost, innermost_of};
use crate::store::sql::site::Site;
use crate::store::tls_mode::Names;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

const TLS: Names = Names { any_name: "sslmode=verify-ca", ca: "sslrootcert", cert: "sslcert", key: "sslkey" };

/// The error of a connection that could not be made.
pub fn unconnected(site: &Site, error: &Error) -> StoreError {
    if let Some(said) = error.as_db_error() {
        return refused(site, said);
    }
    if let Some(failure) = TLS.failure(&site.server, error) {
        return failure;
    }
    let Site { server, user, .. } = site;
    match innermost_of(error, "PostgreSQL").as_str() {
        "password missing" => StoreError::denied(format!("{server} wants a password of user {user}")),
        "unsupported authentication method" | "unsupported SASL mechanism" => StoreError::misconfigured(format!(
            "{server} wants user {user} to show who it is in a way that leaderrun does not know: allow a password \
             (scram-sha-256) or a certificate in its pg_hba.conf"
        )),
        "server does not support TLS" => site.without_tls("sslmode=prefer"),
        _ => site.unreachable("PostgreSQL", error),
    }
}

fn refused(site: &Site, said: &DbError) -> StoreError {
    let Site { server, user, database, .. } = site;
    let message = in_short(said.message());
    match said.code() {
        &SqlState::INVALID_CATALOG_NAME => site.no_database(),
        &SqlState::INSUFFICIENT_PRIVILEGE => {
            StoreError::denied(format!("{server} denied user {user} CONNECT on database {database}: {message}"))
        }
        // Of the server, or of the role or the database alone.
        &SqlState::TOO_MANY_CONNECTIONS => site.no_connection_left(
            &message,
            "max_connections, or the CONNECTION LIMIT that is meant, or connect through a pooler in transaction \
             mode: standbys behind one look instead of being told",
        ),
        code if code.code().starts_with("28") => site.not_let_in(&message),
        // PgBouncer has one code for everything, 08P01.
        _ if message.contains("password") || message.contains("auth") => site.not_let_in(&message),
        _ => site.takes_no_connections(&message),
    }
}

/// The error after the request may have been sent.
pub fn unanswered(site: &Site, error: &Error) -> StoreError {
    let Some(said) = error.as_db_error() else {
        return site.lost(innermost(error)).because(error);
    };
    let message = in_short(said.message());
    if said.parsed_severity().is_none_or(|severity| severity != Severity::Error) {
        return site.lost(message);
    }
    rolled_back(site, said.code(), &message)
}

fn rolled_back(site: &Site, code: &SqlState, message: &str) -> StoreError {
    let Site { server, user, .. } = site;
    match *code {
        SqlState::INSUFFICIENT_PRIVILEGE => StoreError::denied(format!("{server} denied user {user}: {message}")),
        SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME => site.no_table(),
        SqlState::READ_ONLY_SQL_TRANSACTION => site.no_writes(message),
        SqlState::LOCK_NOT_AVAILABLE | SqlState::QUERY_CANCELED => site.locked(message),
        // Out of room, shutting down, deadlocked, overtaken in a serializable transaction: it may work later.
        _ if ["40", "53", "54", "55", "57", "58", "XX"].iter().any(|class| code.code().starts_with(class)) => {
            site.failed(message)
        }
        _ => site.another_table(message),
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
            table: "public.leaderrun".to_owned(),
        };
        super::rolled_back(&site, &SqlState::from_code(code), "some words")
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
