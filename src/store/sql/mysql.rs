//! MySQL and MariaDB: their client, the library `mysql_async` over a socket of ours (`relay`).
//!
//! The hazards:
//!
//! - A connection may be dead without any sign of it. So one request uses a connection at a time, and when the request
//!   is given up, the connection is closed, and nothing waits for its answer any more.
//! - A statement that no request waits for may go on in the server, behind a row that is locked. So the server must
//!   give up too: each connection begins with timeouts of the server's.
//! - A request that failed in the middle leaves its transaction open, and what it wrote would be committed with the
//!   next one. So each request begins with the end of the one before.
//! - The session may not be ours alone: a proxy gives a transaction another one, with other settings. Nothing here
//!   relies on a setting.

mod relay;

use super::address::Address;
use super::client::{self, Cells, News};
use super::failure::{Failure, Meaning, Site};
use super::operators::unmet;
use super::server::Server;
use super::statements::LIST_PAGE;
use super::{Rows, patience};
use crate::store::error::in_short;
use crate::store::lease_store::LeaseStore;
use crate::store::socket::{Place, Socket};
use crate::store::tls::Words;
use crate::store::url::Secret;
use crate::store::{Finding, StoreError};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, Error, IoError, OptsBuilder, Row, Value};
use relay::{Door, Greeted};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

pub type Mysql = LeaseStore<Rows<Connection>>;

/// From one look of a standby to the next: MySQL notifies nobody.
const POLL: Duration = Duration::from_millis(500);
/// The server ends a session that was silent for so many seconds: our host may be gone without a sign.
const IDLE: u64 = 120;
/// An answer has fewer rows: what is short in a packet takes more memory here.
const MOST_ROWS: usize = 2 * LIST_PAGE;
/// The longest packet, and the server's own bound on an idle session: the library would ask for both.
const LONGEST_PACKET: usize = 1 << 24;
/// Some builds of MariaDB do not know this variable.
const IS_GALERA: &str = "(0 /*M!100000 + EXISTS (SELECT 1 FROM information_schema.global_variables \
    WHERE variable_name = 'wsrep_on' AND variable_value = 'ON') */)";

const TLS: Words =
    Words { any_name: Some("ssl-mode=VERIFY_CA"), ca: "ssl-ca=FILE", own: "ssl-cert=FILE and ssl-key=FILE" };

impl Mysql {
    /// Opens the store. Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        Ok(Self::new(Rows::new(Arc::new(Server::new(address, request_timeout)?), None)))
    }
}

/// What the relay ends with.
type Relay = Pin<Box<dyn Future<Output = MysqlError> + Send + Sync>>;

pub struct Connection {
    /// The library, and what passes on what it sends while a request is under way.
    client: Mutex<(Conn, Relay)>,
    site: Site,
    encrypted: bool,
}

#[async_trait::async_trait]
impl client::Connection for Connection {
    const TAKES_SEVERAL: bool = false;

    async fn begin(server: &Server<Self>, site: Site, place: &Place, socket: Socket) -> Result<Self, StoreError> {
        let address = &server.address;
        let greeted = Greeted::by(socket, &site).await?;
        let encrypted = greeted.speaks_tls(address.tls_mode, &site)?;
        let tls = TlsConnector::from(Arc::clone(&server.tls));
        let tls = encrypted.then(|| (tls, place.name().unwrap_or_default().to_owned()));
        let door = Door::new()?;
        let password = address.password();
        let options = OptsBuilder::default()
            .socket(Some(door.path.as_str()))
            .prefer_socket(false)
            .user(Some(site.user.as_str()))
            .pass(password.as_ref().map(Secret::expose))
            .db_name(Some(address.database.as_str()))
            .max_allowed_packet(Some(LONGEST_PACKET))
            .wait_timeout(Some(usize::try_from(IDLE).unwrap_or(usize::MAX)))
            .stmt_cache_size(0);
        let mut relay: Relay = Box::pin(greeted.relay(door, tls, site.clone()));
        let library = async { Ok(Conn::new(options).await?) };
        let library = passing(&mut relay, library).await.map_err(|error| unconnected(&site, error))?;
        let client = Mutex::new((library, relay));
        let connection = Self { client, site, encrypted };
        connection.greet(server).await?;
        Ok(connection)
    }

    async fn tell(&self, statements: &str) -> Result<Vec<Cells>, Failure> {
        self.ask(&format!("ROLLBACK; START TRANSACTION READ WRITE; {statements}; COMMIT")).await
    }

    async fn subscribe(_: &Server<Self>) -> Result<News, StoreError> {
        Ok(News { inbox: None, patience: POLL })
    }

    async fn findings(&self, server: &Server<Self>) -> Result<Vec<Finding>, StoreError> {
        let is_no_node = format!("NOT {IS_GALERA}");
        let has_no_replica = format!(
            "{IS_GALERA} OR NOT EXISTS (SELECT 1 FROM information_schema.processlist AS p \
             WHERE p.command LIKE 'Binlog Dump%')"
        );
        let conditions = [
            (
                "@@innodb_flush_log_at_trx_commit = 1",
                Finding::bad(
                    "innodb_flush_log_at_trx_commit is not 1, so a crash of the server's machine may forget leases: set \
                     it to 1",
                ),
            ),
            (
                "@@log_bin = 0 OR @@sync_binlog = 1",
                Finding::doubtful(
                    "sync_binlog is not 1, so after a crash of the server's machine its replicas may know more than it \
                     does",
                ),
            ),
            (
                is_no_node.as_str(),
                Finding::doubtful(
                    "the server is a node of a Galera cluster: nobody is granted a lease by another node than the last \
                     one for one lease duration, because the nodes' clocks may differ; so let all candidates name the \
                     same node first",
                ),
            ),
            (
                has_no_replica.as_str(),
                Finding::doubtful(
                    "the server has replicas, so a failover may forget leases: after one, nobody is granted a lease for \
                     one lease duration; that is enough unless the old server still serves clients",
                ),
            ),
        ];
        let mut findings = unmet(server, self, conditions).await?;
        findings.extend(server.address.encryption(self.encrypted));
        Ok(findings)
    }
}

impl Connection {
    /// Sets the session up, and asks what it is about: a server that accepts writes, and a table with transactions, or
    /// none yet. (Without transactions a lease may be lost in a crash, and another node of a cluster does not have it.)
    async fn greet(&self, server: &Server<Self>) -> Result<(), StoreError> {
        // The server counts in whole seconds.
        let patience = patience(server.bound).as_secs().max(1);
        let is_table = &server.statements.is_table;
        let statements = format!(
            "SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', \
             innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}, wait_timeout = {IDLE} \
             /*M!100000 , max_statement_time = {patience} */; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             SELECT CONCAT(@@global.read_only), {IS_GALERA}, (SELECT MAX(COALESCE(i.engine, i.table_type)) \
             FROM information_schema.tables AS i WHERE {is_table})"
        );
        let rows = self.ask(&statements).await.map_err(|failure| self.site.unusable(&failure))?;
        let [Some(read_only), Some(is_galera), engine] = rows.first().map(Vec::as_slice).unwrap_or_default() else {
            return Err(unconnected(&self.site, MysqlError::Garbled));
        };
        if !matches!(read_only.as_str(), "0" | "OFF") {
            return Err(self.site.explained(Meaning::NoWrites, "it is a replica, or read-only by its settings"));
        }
        if let Some(engine) = engine.as_ref().filter(|engine| !engine.eq_ignore_ascii_case("InnoDB")) {
            return Err(StoreError::misconfigured(format!(
                "{} is of the kind {}, and leases need a table of InnoDB: drop it and make it with leaderctl store \
                 init, or use another with table=NAME",
                self.site.table,
                in_short(engine)
            )));
        }
        if is_galera != "0" {
            // A look must show what another node has confirmed.
            let synced = self.ask("SET SESSION wsrep_sync_wait = 1").await;
            synced.map_err(|failure| self.site.unusable(&failure))?;
        }
        Ok(())
    }

    async fn ask(&self, statements: &str) -> Result<Vec<Cells>, Failure> {
        let (library, relay) = &mut *self.client.lock().await;
        let answer = passing(relay, answers(library, statements)).await;
        answer.map_err(|error| unanswered(&self.site, error))
    }
}

/// Waits for what the library does, and passes on what it sends meanwhile.
async fn passing<T>(relay: &mut Relay, work: impl Future<Output = Result<T, MysqlError>>) -> Result<T, MysqlError> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => done,
        end = relay => match (end, work.await) {
            // The server said this, and left.
            (MysqlError::Lost(_), done @ (Ok(_) | Err(MysqlError::Said { .. }))) => done,
            (end, _) => Err(end),
        },
    }
}

async fn answers(library: &mut Conn, statements: &str) -> Result<Vec<Cells>, MysqlError> {
    let mut answer = library.query_iter(statements).await?;
    let mut rows = Vec::new();
    while answer.columns().is_some() {
        // After the last row the library begins with the next statement's answer.
        while let Some(row) = answer.next().await? {
            if rows.len() >= MOST_ROWS {
                return Err(MysqlError::Garbled);
            }
            rows.push(cells(row));
        }
    }
    // Nothing is left, unless it is the failure of a later statement.
    answer.next().await?;
    Ok(rows)
}

/// The values of a row. The server sends each of them as text.
fn cells(row: Row) -> Cells {
    let cell =
        |value| if let Value::Bytes(bytes) = value { Some(String::from_utf8_lossy(&bytes).into_owned()) } else { None };
    row.unwrap().into_iter().map(cell).collect()
}

/// The reason why statements, or a login, have no answer.
#[derive(Debug)]
enum MysqlError {
    Lost(io::Error),
    Garbled,
    /// The server reports an error.
    Said {
        code: u16,
        message: String,
    },
    /// The server wants this method of authentication, which the library does not know.
    Unproven(String),
    /// The server is not fit, or what is asked of it.
    Unfit(StoreError),
}

impl From<Error> for MysqlError {
    fn from(error: Error) -> Self {
        match error {
            Error::Server(error) => Self::Said { code: error.code, message: error.message },
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
impl From<io::Error> for MysqlError {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

impl MysqlError {
    fn closed() -> Self {
        Self::Lost(io::Error::new(io::ErrorKind::UnexpectedEof, "early eof"))
    }
}

/// Of its columns, keys, checks, triggers, or a view in its place.
const ANOTHER_TABLE: [u16; 34] = [
    1048, 1054, 1062, 1109, 1110, 1136, 1138, 1169, 1216, 1217, 1264, 1265, 1266, 1267, 1271, 1288, 1292, 1347, 1348,
    1356, 1364, 1366, 1369, 1393, 1394, 1406, 1442, 1451, 1452, 1471, 1690, 3105, 3819, 4025,
];

/// What an error of a transaction means.
fn meaning(code: u16) -> Meaning {
    match code {
        // The server ends the session, or the statement was killed: shutdown, KILL, idle for too long, bad packets.
        1053 | 1152..=1161 | 1180 | 1184 | 1317 | 1927 | 4031 => Meaning::Lost,
        1020 | 1213 | 3101 => Meaning::Overtaken,
        // Of a database, a table, a column, a routine; of an operation; of a trigger, while there is a binary log.
        1044 | 1142 | 1143 | 1227 | 1370 | 1419 => Meaning::Denied,
        1049 | 1146 => Meaning::NoTable,
        1050 | 1359 => Meaning::IsThere,
        1644 => Meaning::Kept,
        1290 | 1792 | 1836 => Meaning::NoWrites,
        1205 | 1969 | 3024 | 3572 => Meaning::Locked,
        // Out of room or memory, not ready in its cluster; a limit on connections, on transactions, or on what a user
        // asks in an hour.
        1021 | 1030 | 1037 | 1040 | 1041 | 1047 | 1114 | 1135 | 1203 | 1206 | 1226 | 1637 | 3100 => Meaning::Passing,
        code if ANOTHER_TABLE.contains(&code) => Meaning::AnotherTable,
        // A proxy has codes of its own, and what it did with the statement before is not known. Nor is what a
        // later version of the server means.
        _ => Meaning::Unknown,
    }
}

/// The failure of a request. Its last statement commits it.
fn unanswered(site: &Site, error: MysqlError) -> Failure {
    match error {
        MysqlError::Lost(error) => site.lost(&error),
        MysqlError::Unfit(error) => error.into(),
        MysqlError::Garbled | MysqlError::Unproven(_) => {
            let unknown = site.not_understood();
            Failure {
                meaning: Meaning::Lost,
                error: StoreError { message: format!("{unknown}: is it MySQL?"), ..unknown },
            }
        }
        MysqlError::Said { code, message } => match meaning(code) {
            Meaning::Unknown => site.failure(Meaning::Unknown, &format!("error {code}: {message}")),
            meaning => site.failure(meaning, &message),
        },
    }
}

/// The error of a connection that could not be made.
fn unconnected(site: &Site, error: MysqlError) -> StoreError {
    let Site { server, user, .. } = site;
    match error {
        MysqlError::Lost(error) => TLS.failure(server, &error).unwrap_or_else(|| site.unreachable(&error)),
        MysqlError::Garbled => {
            StoreError::not_applied(format!("cannot understand the answer of {server}: is it MySQL?"))
        }
        MysqlError::Unfit(error) => error,
        MysqlError::Unproven(way) => StoreError::misconfigured(format!(
            "{server} wants user {user} to show who it is in a way that leaderrun does not know ({}): use \
             caching_sha2_password or mysql_native_password",
            in_short(&way)
        )),
        MysqlError::Said { code: 3159, message } => {
            StoreError::misconfigured(format!("{server} wants TLS ({}): set ssl-mode=REQUIRED", in_short(&message)))
        }
        MysqlError::Said { code, message } => {
            let meaning = match code {
                1049 => Meaning::NoDatabase,
                1040 | 1203 | 1226 => Meaning::NoConnectionLeft("max_connections, or the limit of the user"),
                1044 | 1045 | 1130 | 1698 | 1820 | 1862 | 3118 | 3955 | 4151 => Meaning::NotLetIn,
                1290 | 1792 | 1836 => Meaning::NoWrites,
                _ => Meaning::TakesNone,
            };
            site.explained(meaning, &message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    #[test]
    fn a_transaction_was_not_applied_only_where_that_is_certain() {
        let site = Site {
            kind: "MySQL",
            server: "MySQL at h:3306".to_owned(),
            user: "app".to_owned(),
            database: "db".to_owned(),
            table: "`db`.`leaderrun`".to_owned(),
            schema: String::new(),
        };
        let not_applied = [1020, 1205, 1213, 1290, 1836, 1040, 1047, 1114, 1203, 1226, 1637, 1969, 3101];
        let unknown = [1053, 1105, 1180, 1317, 1815, 1927, 2013, 2027, 3999, 4031, 5000, 9001, 65535];
        let misconfigured = [1054, 1136, 1146, 1264, 1366, 1406];
        for (codes, kind) in [
            (&not_applied[..], ErrorKind::NotApplied),
            (&unknown[..], ErrorKind::Unknown),
            (&misconfigured[..], ErrorKind::Misconfigured),
            (&[1142], ErrorKind::Denied),
        ] {
            for &code in codes {
                let error = unanswered(&site, MysqlError::Said { code, message: "some words".to_owned() }).error;
                assert_eq!(error.kind, kind, "{code}: {error}");
                assert!(code == 1146 || error.message.contains("some words"), "{code}: {error}");
            }
        }
    }
}
