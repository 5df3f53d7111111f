//! What a failed request means, in one line.
//!
//! The hazard: a write that was applied, but is called "not applied", makes two candidates lead or loses a lease that
//! is held. While a connection is being made, no request was sent. After that, only an error that the server reports of
//! a statement shows that its transaction is not committed. A session that was ended may have committed before, and a
//! broken connection shows nothing.

use crate::store::StoreError;
use crate::store::error::{in_short, innermost};
use crate::store::sql::site::Site;
use crate::store::tls_mode::Names;
use mysql_async::{DriverError, Error, IoError};
use std::io;

/// What a candidate needs on the table.
pub const PRIVILEGES: &str = "SELECT, INSERT, UPDATE, DELETE";

/// The reason why a statement, or a login, has no answer.
#[derive(Debug)]
pub enum Trouble {
    Lost(io::Error),
    Garbled,
    Complaint(Complaint),
    /// The server wants the user to show who it is in this way, which the library does not know.
    Unproven(String),
    /// The server is not fit, or what is asked of it.
    Unfit(StoreError),
}

/// An error that the server reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub code: u16,
    pub message: String,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::Server(error) => Self::Complaint(Complaint { code: error.code, message: error.message }),
            // The library's own socket fails only where ours has. All else is what it cannot read.
            Error::Io(IoError::Io(error)) => match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
                    error.into()
                }
                io::ErrorKind::UnexpectedEof => Self::closed(),
                _ => Self::Garbled,
            },
            Error::Driver(DriverError::ConnectionClosed) => Self::closed(),
            Error::Driver(DriverError::UnknownAuthPlugin { name }) => Self::Unproven(name),
            Error::Driver(DriverError::CleartextPluginDisabled) => Self::Unproven("mysql_clear_password".to_owned()),
            Error::Driver(DriverError::MysqlOldPasswordDisabled) => Self::Unproven("mysql_old_password".to_owned()),
            Error::Driver(_) | Error::Other(_) | Error::Url(_) => Self::Garbled,
        }
    }
}

/// Of the socket, and of TLS.
impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

impl Trouble {
    pub fn closed() -> Self {
        Self::Lost(io::Error::new(io::ErrorKind::UnexpectedEof, "early eof"))
    }

    /// Whether the connection is of no use any more.
    pub fn is_broken(&self) -> bool {
        match self {
            Self::Complaint(complaint) => ends_the_session(complaint.code),
            Self::Lost(_) | Self::Garbled | Self::Unproven(_) | Self::Unfit(_) => true,
        }
    }

    /// Whether another transaction was faster, so that asking again may succeed at once.
    pub fn was_overtaken(&self) -> bool {
        matches!(self, Self::Complaint(complaint) if [1020, 1213, 3101].contains(&complaint.code))
    }
}

/// The server ends the session, or the statement was killed: shutdown, KILL, idle for too long, trouble with packets.
fn ends_the_session(code: u16) -> bool {
    matches!(code, 1053 | 1152..=1161 | 1180 | 1184 | 1317 | 1927 | 4031)
}

/// The server is a replica, or read-only by its settings.
fn is_read_only(code: u16) -> bool {
    matches!(code, 1290 | 1792 | 1836)
}

/// The table has other columns, or takes other values, than ours: its columns, keys, checks, triggers, or a view in its
/// place.
const OF_ANOTHER_TABLE: [u16; 35] = [
    1048, 1054, 1062, 1109, 1110, 1136, 1138, 1169, 1216, 1217, 1264, 1265, 1266, 1267, 1271, 1288, 1292, 1347, 1348,
    1356, 1364, 1366, 1369, 1393, 1394, 1406, 1442, 1451, 1452, 1471, 1644, 1690, 3105, 3819, 4025,
];

const TLS: Names = Names { any_name: "ssl-mode=VERIFY_CA", ca: "ssl-ca", cert: "ssl-cert", key: "ssl-key" };

/// The error of a connection that could not be made.
pub fn unconnected(site: &Site, trouble: &Trouble) -> StoreError {
    let Site { server, user, .. } = site;
    match trouble {
        Trouble::Complaint(complaint) => refused(site, complaint),
        Trouble::Lost(error) => TLS.failure(server, error).unwrap_or_else(|| site.unreachable("MySQL", error)),
        Trouble::Garbled => StoreError::not_applied(format!("cannot understand the answer of {server}: is it MySQL?")),
        Trouble::Unfit(error) => error.clone(),
        Trouble::Unproven(way) => StoreError::misconfigured(format!(
            "{server} wants user {user} to show who it is in a way that leaderrun does not know ({}): use \
             caching_sha2_password or mysql_native_password",
            in_short(way)
        )),
    }
}

/// The error of a login that shows the server a password over a network without TLS, now or another time.
pub fn exposed(site: &Site) -> StoreError {
    StoreError::misconfigured(format!(
        "{} has to see the password of user {} each time it has forgotten it (caching_sha2_password), and the \
         connection is not encrypted: use TLS, with ssl-mode=REQUIRED, or a unix socket",
        site.server, site.user
    ))
}

fn refused(site: &Site, complaint: &Complaint) -> StoreError {
    let message = in_short(&complaint.message);
    match complaint.code {
        1049 => site.no_database(),
        1040 | 1203 | 1226 => site.no_connection_left(&message, "max_connections, or the limit of the user"),
        3159 => StoreError::misconfigured(format!("{} wants TLS ({message}): set ssl-mode=REQUIRED", site.server)),
        1044 | 1045 | 1130 | 1698 | 1820 | 1862 | 3118 | 3955 | 4151 => site.not_let_in(&message),
        code if is_read_only(code) => site.no_writes(&message),
        _ => site.takes_no_connections(&message),
    }
}

/// The error of a request. Its last statement commits it.
pub fn unanswered(site: &Site, trouble: &Trouble) -> StoreError {
    match trouble {
        Trouble::Lost(error) => site.lost(innermost(error)).because(error),
        Trouble::Unfit(error) => error.clone(),
        Trouble::Garbled | Trouble::Unproven(_) => {
            let unknown = site.not_understood();
            StoreError { message: format!("{}: is it MySQL?", unknown.message), ..unknown }
        }
        Trouble::Complaint(complaint) if trouble.is_broken() => site.lost(in_short(&complaint.message)),
        Trouble::Complaint(complaint) => rolled_back(site, complaint),
    }
}

fn rolled_back(site: &Site, complaint: &Complaint) -> StoreError {
    let Site { server, user, table, .. } = site;
    let message = in_short(&complaint.message);
    match complaint.code {
        // Of a database, a table, a column, a routine; of an operation.
        1044 | 1142 | 1143 | 1227 | 1370 => StoreError::denied(format!(
            "{server} denied user {user} what it needs: GRANT {PRIVILEGES} ON {table} ({message})"
        )),
        1049 | 1146 => site.no_table(),
        code if is_read_only(code) => site.no_writes(&message),
        1205 | 1969 | 3024 | 3572 => site.locked(&message),
        // Out of room or memory, not ready in its cluster, overtaken by another transaction: it may work later.
        // So it is with a limit on connections, on transactions, or on what a user asks in an hour.
        1020 | 1021 | 1030 | 1037 | 1040 | 1041 | 1047 | 1114 | 1135 | 1203 | 1206 | 1213 | 1226 | 1637 | 3100
        | 3101 => site.failed(&message),
        code if OF_ANOTHER_TABLE.contains(&code) => site.another_table(&message),
        // A proxy has codes of its own, and what it did with the statement before is not known. Nor is what a
        // later version of the server means.
        code => StoreError::unknown(format!("{server} failed with error {code}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    fn answered(code: u16) -> StoreError {
        let site = Site {
            server: "MySQL at h:3306".to_owned(),
            user: "app".to_owned(),
            database: "db".to_owned(),
            table: "`db`.`leaderrun`".to_owned(),
        };
        let complaint = Complaint { code, message: "some words".to_owned() };
        unanswered(&site, &Trouble::Complaint(complaint))
    }

    #[test]
    fn a_failure_that_may_pass_was_not_applied() {
        for code in [1020, 1205, 1213, 1290, 1836, 1047, 1114, 1969, 3101] {
            assert_eq!(answered(code).kind, ErrorKind::NotApplied, "{code}");
        }
    }

    #[test]
    fn a_session_that_was_ended_leaves_it_unknown() {
        for code in [1053, 1317, 1927, 4031, 1180] {
            assert_eq!(answered(code).kind, ErrorKind::Unknown, "{code}");
        }
    }

    #[test]
    fn a_missing_table_a_denial_and_a_foreign_table_are_distinguished() {
        let missing = answered(1146);
        assert!(missing.kind == ErrorKind::Misconfigured && missing.message.contains("leaderctl store init"));
        assert_eq!(answered(1142).kind, ErrorKind::Denied);
        for code in [1054, 1136, 1264, 1366, 1406] {
            let error = answered(code);
            assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("`leaderrun`"), "{error}");
        }
    }

    #[test]
    fn a_limit_of_the_server_was_not_applied_and_is_no_foreign_table() {
        for code in [1040, 1203, 1226, 1637] {
            let error = answered(code);
            assert!(error.kind == ErrorKind::NotApplied && !error.message.contains("leaderrun"), "{error}");
        }
    }

    #[test]
    fn an_error_of_a_proxy_or_one_that_nobody_knows_blames_no_table() {
        for code in [2013, 2027, 9001, 9006, 1105, 1815, 3999, 5000, 65535] {
            let error = answered(code);
            assert!(error.kind == ErrorKind::Unknown && !error.message.contains("leaderrun"), "{code}: {error}");
            assert!(error.message.contains("some words"), "{error}");
        }
    }
}
