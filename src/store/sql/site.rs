//! What both dialects say of a server, in one line each.

use super::places::Place;
use crate::store::error::{in_short, innermost_of};
use crate::store::tls_mode::TlsMode;
use crate::store::{Finding, StoreError};
use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

/// The server and the table of a request, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// `PostgreSQL at 10.0.0.5:5432`.
    pub server: String,
    pub user: String,
    pub database: String,
    /// As SQL has it.
    pub table: String,
}

impl Site {
    pub fn silent(&self) -> StoreError {
        StoreError::unknown(format!("{} did not answer in time", self.server))
    }

    pub fn not_understood(&self) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {}", self.server))
    }

    pub fn unreachable(&self, kind: &str, error: &(dyn Error + 'static)) -> StoreError {
        let cause = innermost_of(error, kind);
        StoreError::not_applied(format!("cannot reach {}: {cause}", self.server)).because(error)
    }

    /// The connection ended. What was sent over it may have been applied.
    pub fn lost(&self, how: impl Display) -> StoreError {
        StoreError::unknown(format!("lost {}: {how}", self.server))
    }

    pub fn no_database(&self) -> StoreError {
        let Self { server, database, .. } = self;
        StoreError::misconfigured(format!("no database {database} in {server}: name another, or make it"))
    }

    pub fn not_let_in(&self, message: &str) -> StoreError {
        StoreError::denied(format!("{} does not let in user {}: {message}", self.server, self.user))
    }

    /// `raise`: the limits that may be meant.
    pub fn no_connection_left(&self, message: &str, raise: &str) -> StoreError {
        let Self { server, user, .. } = self;
        StoreError::not_applied(format!("{server} has no connection left for user {user}: {message}: raise {raise}"))
    }

    pub fn takes_no_connections(&self, message: &str) -> StoreError {
        StoreError::not_applied(format!("{} does not take connections: {message}", self.server))
    }

    pub fn without_tls(&self, mode: &str) -> StoreError {
        let server = &self.server;
        StoreError::misconfigured(format!("{server} does not speak TLS: turn TLS on, or do without it with {mode}"))
    }

    pub fn no_writes(&self, why: &str) -> StoreError {
        StoreError::not_applied(format!("{} does not accept writes: {why}", self.server))
    }

    pub fn no_table(&self) -> StoreError {
        let Self { server, database, table, .. } = self;
        StoreError::misconfigured(format!(
            "no table {table} in database {database} of {server}: make it with leaderctl store init"
        ))
    }

    pub fn another_table(&self, message: &str) -> StoreError {
        let Self { server, table, .. } = self;
        StoreError::misconfigured(format!(
            "table {table} in {server} cannot be used ({message}): it was made by something else, or by an earlier release \
             of leaderrun: use another with table=NAME, or drop it, and then leaderctl store init"
        ))
    }

    pub fn locked(&self, message: &str) -> StoreError {
        let Self { server, table, .. } = self;
        StoreError::not_applied(format!(
            "{server} gave up: an open transaction holds a lock on table {table} or on a row of it ({message})"
        ))
    }

    /// It may work later.
    pub fn failed(&self, message: &str) -> StoreError {
        StoreError::not_applied(format!("{} failed: {message}", self.server))
    }

    /// What a check says of a server after a round trip of this `time`. `needs`: the versions that are not too old, if
    /// this one is.
    pub fn version(&self, version: &str, needs: Option<&str>, time: Duration) -> Finding {
        let Self { server, user, .. } = self;
        let version = in_short(version);
        match needs {
            Some(needs) => Finding::bad(format!("{server} is version {version}: leaderrun needs {needs}, or newer")),
            None => Finding::good(format!(
                "{server} is version {version}, lets in user {user} and accepts writes; a round trip takes {time:.1?}"
            )),
        }
    }
}

/// What a check says of the table's own guard against a DELETE by hand. `by`: who may make it with `store init`.
pub fn deletion(is_prevented: bool, by: &str) -> Finding {
    if is_prevented {
        Finding::good("a DELETE of a lease that is held does nothing")
    } else {
        Finding::doubtful(format!(
            "a lease that is held can be deleted by hand, and then two lead until the first has noticed: leaderctl store \
             init as {by} prevents it"
        ))
    }
}

/// What a check says of the connection. None if all servers are on this machine. `strictest` and `ca` are options as the
/// store has them.
pub fn encryption(
    encrypted: bool,
    places: &[Place],
    (mode, has_ca): (TlsMode, bool),
    [strictest, ca]: [&str; 2],
) -> Option<Finding> {
    places.iter().find(|place| place.is_remote())?;
    let checked = match mode {
        TlsMode::VerifyFull | TlsMode::VerifyCa => true,
        TlsMode::Prefer | TlsMode::Require => has_ca,
        TlsMode::Disable => false,
    };
    Some(match (encrypted, checked) {
        (true, true) => Finding::good("the connection is encrypted, and the server shows whose it is"),
        (true, false) => Finding::doubtful(format!(
            "the connection is encrypted, but the server is not verified: set {strictest} and {ca}=FILE"
        )),
        (false, _) => Finding::doubtful(format!("the connection is not encrypted: set {strictest}")),
    })
}
