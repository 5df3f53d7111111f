//! What a failed request means.
//!
//! While a connection is being made, no request was sent. After that, only an error that the server reports for a
//! statement shows that its transaction was rolled back. A session that ended may have committed before.

use super::dialect::Dialect;
use crate::store::StoreError;
use crate::store::allowance::{MOST, TooLong, complaint};
use crate::store::error::{causes, in_short, innermost, innermost_of};
use std::error::Error;
use std::io;

pub const PRIVILEGES: &str = "SELECT, INSERT, UPDATE, DELETE";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub dialect: Dialect,
    /// `PostgreSQL at 10.0.0.5:5432`.
    pub server: String,
    pub user: String,
    pub database: String,
    /// Quoted.
    pub table: String,
    /// Quoted. Empty where everybody may use it.
    pub schema: String,
}

#[derive(Debug)]
pub enum Trouble {
    Lost(Box<dyn Error + Send + Sync>),
    Garbled,
    Said {
        code: String,
        message: String,
        /// The session ended with it, perhaps after the transaction was committed.
        is_final: bool,
    },
    /// The server wants a method of authentication that the library does not know.
    Unproven(String),
    Unfit(StoreError),
}

/// Of the socket, and of TLS.
impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Lost(Box::new(error))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    // The transaction was rolled back.
    Denied,
    NoTable,
    NoWrites,
    Locked,
    /// Another transaction was faster. A repeated request may succeed at once.
    Overtaken,
    Passing,
    /// What the statement creates exists.
    IsThere,
    /// The trigger forbade a DELETE.
    Kept,
    /// The table has other columns, or takes other values, than ours.
    AnotherTable,
    // It may have been committed.
    Lost,
    Unknown,
}

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
    /// The failure of a request, whose last statement commits it.
    pub fn unanswered(&self, trouble: Trouble) -> Failure {
        let (meaning, error) = match trouble {
            Trouble::Lost(error) => {
                let lost = || format!("the connection to {} broke: {}", self.server, innermost(&*error));
                let message = self.endless(&*error).unwrap_or_else(lost);
                (Meaning::Lost, StoreError::unknown(message).because(&*error))
            }
            Trouble::Garbled | Trouble::Unproven(_) => (Meaning::Lost, StoreError::unknown(self.not_understood())),
            Trouble::Unfit(error) => (Meaning::Unknown, error),
            Trouble::Said { message, is_final: true, .. } => (Meaning::Lost, self.explained(Meaning::Lost, &message)),
            Trouble::Said { code, message, .. } => match Meaning::of(self.dialect, &code) {
                Meaning::Unknown => {
                    (Meaning::Unknown, self.explained(Meaning::Unknown, &format!("error {code}: {message}")))
                }
                meaning => (meaning, self.explained(meaning, &message)),
            },
        };
        Failure { meaning, error }
    }

    /// The failure of a login: no request was sent.
    pub fn unconnected(&self, trouble: Trouble) -> StoreError {
        let Self { dialect, server, user, database, .. } = self;
        let (code, message) = match trouble {
            Trouble::Lost(error) => {
                let of_tls = dialect.tls().failure(server, &*error);
                return of_tls.unwrap_or_else(|| self.unreachable(&*error));
            }
            Trouble::Garbled => return StoreError::not_applied(self.not_understood()),
            Trouble::Unproven(method) => {
                let known = dialect.either(
                    "allow a password (scram-sha-256) or a certificate in its pg_hba.conf",
                    "use caching_sha2_password or mysql_native_password",
                );
                return StoreError::misconfigured(format!(
                    "{server} asks user {user} for a login method that leaderrun does not support ({}): {known}",
                    in_short(&method)
                ));
            }
            Trouble::Unfit(error) => return error,
            Trouble::Said { code, message, .. } => (code, in_short(&message)),
        };
        // PgBouncer has one code for everything, 08P01.
        let speaks_of_login = message.contains("password") || message.contains("auth");
        let denied = || StoreError::denied(format!("{server} rejected the login of user {user}: {message}"));
        match code.as_str() {
            "3D000" | "1049" => {
                StoreError::misconfigured(format!("no database {database} in {server}: name another, or create it"))
            }
            "3159" => StoreError::misconfigured(format!("{server} requires TLS ({message}): set ssl-mode=REQUIRED")),
            "42501" | "1044" | "1045" | "1130" | "1698" | "1820" | "1862" | "3118" | "3955" | "4151" => denied(),
            class if class.starts_with("28") => denied(),
            _ if *dialect == Dialect::Postgres && speaks_of_login => denied(),
            _ => StoreError::not_applied(format!("{server} does not take connections: {message}")),
        }
    }

    pub fn explained(&self, meaning: Meaning, message: &str) -> StoreError {
        let Self { server, user, database, table, .. } = self;
        let message = in_short(message);
        match meaning {
            Meaning::Denied => {
                let grant = self.grant(user);
                StoreError::denied(format!("{server} denied user {user} what it needs: {grant} ({message})"))
            }
            Meaning::NoTable => StoreError::misconfigured(format!(
                "no table {table} in database {database} of {server}: create it with leaderctl store init"
            )),
            Meaning::NoWrites => StoreError::not_applied(format!("{server} does not accept writes: {message}")),
            Meaning::Locked => StoreError::not_applied(format!(
                "{server} gave up: an open transaction holds a lock on table {table} or on a row of it ({message})"
            )),
            Meaning::Overtaken | Meaning::Passing | Meaning::IsThere => {
                StoreError::not_applied(format!("{server} failed: {message}"))
            }
            Meaning::AnotherTable | Meaning::Kept => StoreError::misconfigured(format!(
                "table {table} in {server} cannot be used ({message}): it was created by another program, or by an \
                 earlier release of leaderrun: use another with table=NAME, or drop it, and then leaderctl store init"
            )),
            Meaning::Lost => StoreError::unknown(format!("the connection to {server} broke: {message}")),
            Meaning::Unknown => StoreError::unknown(format!("{server} failed with {message}")),
        }
    }

    pub fn grant(&self, to: &str) -> String {
        let Self { schema, table, .. } = self;
        let usage = if schema.is_empty() { String::new() } else { format!("GRANT USAGE ON SCHEMA {schema} TO {to}; ") };
        format!("{usage}GRANT {PRIVILEGES} ON {table} TO {to}")
    }

    pub fn silent(&self) -> StoreError {
        StoreError::unknown(format!("{} did not answer in time", self.server))
    }

    fn not_understood(&self) -> String {
        format!("cannot understand the answer of {}: is it {}?", self.server, self.dialect.kind())
    }

    pub fn unreachable(&self, error: &(dyn Error + 'static)) -> StoreError {
        let unreachable = || format!("cannot reach {}: {}", self.server, innermost_of(error, self.dialect.kind()));
        StoreError::not_applied(self.endless(error).unwrap_or_else(unreachable)).because(error)
    }

    fn endless(&self, error: &(dyn Error + 'static)) -> Option<String> {
        let is_endless = causes(error).any(<dyn Error>::is::<TooLong>);
        is_endless.then(|| complaint(&self.server, self.dialect.kind(), MOST))
    }

    pub fn without_tls(&self, mode: &str) -> StoreError {
        let server = &self.server;
        StoreError::misconfigured(format!("{server} does not speak TLS: turn TLS on, or do without it with {mode}"))
    }

    /// The error of a statement that is a part of connecting: no request was sent yet.
    pub fn unusable(&self, failure: &Failure) -> StoreError {
        StoreError::not_applied(format!("cannot use {}: {}", self.server, failure.error))
    }
}

/// What it means that the server reported one of these for a statement. Two letters are a class of errors.
const POSTGRES: [(&str, Meaning); 7] = [
    ("42501", Meaning::Denied),
    ("42P01 3F000", Meaning::NoTable),
    ("42P06 42P07 42710 23505", Meaning::IsThere),
    ("25006", Meaning::NoWrites),
    ("55P03 57014", Meaning::Locked),
    // Out of room, shutting down, deadlocked.
    ("40 53 54 55 57 58 XX", Meaning::Passing),
    // The table's columns, keys, checks, triggers, or a view in its place.
    ("0A 21 22 23 27 42 44 P0", Meaning::AnotherTable),
];
const MYSQL: [(&str, Meaning); 10] = [
    // Of a database, a table, a column, a routine; of an operation; of a trigger, while there is a binary log.
    ("1044 1142 1143 1227 1370 1419", Meaning::Denied),
    ("1049 1146", Meaning::NoTable),
    ("1050 1359", Meaning::IsThere),
    ("1644", Meaning::Kept),
    ("1290 1792 1836", Meaning::NoWrites),
    ("1205 1969 3024 3572", Meaning::Locked),
    ("1020 1213 3101", Meaning::Overtaken),
    // Out of room or memory, not ready in its cluster; a limit on connections, on transactions, or on what a user asks in
    // an hour.
    ("1021 1030 1037 1040 1041 1047 1114 1135 1203 1206 1226 1637 3100", Meaning::Passing),
    // Columns, keys, checks, triggers, or a view in the table's place.
    (
        "1048 1054 1062 1109 1110 1136 1138 1169 1216 1217 1264 1265 1266 1267 1271 1288 1292 1347 1348 1356 1364 1366 \
         1369 1393 1394 1406 1442 1451 1452 1471 1690 3105 3819 4025",
        Meaning::AnotherTable,
    ),
    // The server ends the session, or the statement was killed: shutdown, KILL, idle for too long, bad packets.
    ("1053 1152 1153 1154 1155 1156 1157 1158 1159 1160 1161 1180 1184 1317 1927 4031", Meaning::Lost),
];

impl Meaning {
    /// Unknown: a code of a pooler or a proxy, which may have passed the statement on, or of a later version of the server.
    fn of(dialect: Dialect, code: &str) -> Self {
        let table = dialect.either(&POSTGRES[..], &MYSQL[..]);
        let names = |codes: &str| codes.split(' ').any(|known| known == code || Some(known) == code.get(..2));
        table.iter().find(|(codes, _)| names(codes)).map_or(Self::Unknown, |(_, meaning)| *meaning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    #[test]
    fn a_transaction_was_not_applied_only_where_that_is_certain() {
        let [postgres, mysql] = [Dialect::Postgres, Dialect::MySql];
        let not_applied_by_mysql = "1020 1205 1213 1290 1836 1040 1047 1114 1203 1226 1637 1969 3101";
        let unknown_by_mysql = "1053 1105 1180 1317 1815 1927 2013 2027 3999 4031 5000 9001 65535";
        for (dialect, codes, kind) in [
            (postgres, "40001 40P01 53300 53100 57P03 XX000", ErrorKind::NotApplied),
            (postgres, "08006 08P01 25P02 4", ErrorKind::Unknown),
            (postgres, "42703 42804 22P02 22003 23502 42P10 0A000", ErrorKind::Misconfigured),
            (mysql, not_applied_by_mysql, ErrorKind::NotApplied),
            (mysql, unknown_by_mysql, ErrorKind::Unknown),
            (mysql, "1054 1136 1146 1264 1366 1406", ErrorKind::Misconfigured),
            (mysql, "1142", ErrorKind::Denied),
        ] {
            let site = Site {
                dialect,
                server: "a server".to_owned(),
                user: "app".to_owned(),
                database: "db".to_owned(),
                table: "leaderrun".to_owned(),
                schema: String::new(),
            };
            for code in codes.split(' ') {
                let message = "some words".to_owned();
                let said = Trouble::Said { code: code.to_owned(), message, is_final: false };
                let error = site.unanswered(said).error;
                assert_eq!(error.kind, kind, "{code}: {error}");
                assert!(code == "1146" || error.message.contains("some words"), "{code}: {error}");
            }
        }
    }
}
