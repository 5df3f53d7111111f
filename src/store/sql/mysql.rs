//! MySQL and MariaDB: their client, the library `mysql_async` over a socket of ours (`relay`).
//!
//! The hazards:
//!
//! - A connection may be dead without any sign of it. So one request uses a connection at a time, and when the request is
//!   given up, the connection is closed, and nothing waits for its answer any more.
//! - A statement that no request waits for may go on in the server, behind a row that is locked. So the server must
//!   give up too: each connection begins with timeouts of the server's.
//! - A request that failed in the middle leaves its transaction open, and what it wrote would be committed with the next
//!   one. So each request begins with the end of the one before.
//! - The session may not be ours alone: a proxy gives a transaction another one, with other settings. Nothing here relies
//!   on a setting.

mod relay;

use super::address::Address;
use super::client::{self, Cells, Connection as _, Subscription, Wake};
use super::failure::{Failure, Meaning, Site};
use super::operators::encryption;
use super::server::Server;
use super::statements::{Dialect, LIST_PAGE, NAMES, Statements};
use super::{Rows, patience};
use crate::store::error::in_short;
use crate::store::kept_connection;
use crate::store::lease_store::LeaseStore;
use crate::store::socket::Place;
use crate::store::tls::{Words, install_provider};
use crate::store::tls_mode;
use crate::store::url::Secret;
use crate::store::{Finding, StoreError};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, Error, IoError, OptsBuilder, Row, Value};
use relay::{Door, Greeted};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
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
/// The oldest versions: with this much the tests are run, or the documentation promises it.
const OLDEST_MYSQL: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 6);

/// Which server it is. MySQL has a number for each server; MariaDB shows its place. (The comments are statements for
/// MySQL 8 alone, and for MariaDB alone.)
const SERVER: &str =
    "CONCAT(/*!80000 @@server_uuid, */ /*M!100000 @@server_id, ' ', @@hostname, ':', @@port, @@datadir, */ '')";
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
        install_provider();
        let Address { database, table, .. } = address;
        let word = |text: &str| Dialect::MySql.word(text);
        let is_table = format!("i.table_schema = {} AND i.table_name = {}", word(database), word(table));
        let table = format!("{}.{}", quoted(database), quoted(table));
        // The time that is shown depends on the session's time zone, and this takes it back.
        let life = format!(
            "LEFT(SHA2(CONCAT({SERVER}, ' ', (SELECT COALESCE(MAX(UNIX_TIMESTAMP(i.create_time)), '') \
             FROM information_schema.tables AS i WHERE {is_table})), 256), 32)"
        );
        let statements = Statements {
            dialect: Dialect::MySql,
            database: quoted(database),
            schema: String::new(),
            table: table.clone(),
            life,
            channel: String::new(),
        };
        let site = Site {
            server: address.to_string(),
            user: address.user()?,
            database: database.clone(),
            table,
            schema: String::new(),
        };
        let bound = kept_connection::bound(request_timeout);
        let tls = tls_mode::config(address.tls_mode, &address.tls_files)?;
        let tls = tls.map(|config| TlsConnector::from(Arc::new(config)));
        // It counts in whole seconds.
        let patience = patience(bound).as_secs().max(1);
        let login = Login { address: address.clone(), tls, patience, is_table };
        Ok(Self::new(Rows::new(Arc::new(Server::new(&address.places, site, statements, login, bound)), None)))
    }
}

/// A name between backticks.
fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// What a connection needs to know.
pub struct Login {
    address: Address,
    tls: Option<TlsConnector>,
    /// After how many seconds the server gives up a statement that waits.
    patience: u64,
    /// The condition that a row `i` of the information schema is the table.
    is_table: String,
}

/// What the relay ends with.
type Relay = Pin<Box<dyn Future<Output = MysqlError> + Send + Sync>>;

pub struct Connection {
    /// The library, and what passes on what it sends while a request is under way.
    client: Mutex<(Conn, Relay)>,
    site: Site,
    has_table: bool,
    /// The server is a node of a Galera cluster.
    is_galera: bool,
    encrypted: bool,
}

#[async_trait::async_trait]
impl client::Connection for Connection {
    type Login = Login;
    type Subscription = Looks;
    const KIND: &'static str = "MySQL";
    const TAKES_SEVERAL: bool = false;

    async fn begin(
        login: &Login,
        site: Site,
        place: &Place,
        deadline: Instant,
        reached: &AtomicBool,
    ) -> Result<Self, StoreError> {
        let address = &login.address;
        let socket = place.reach(deadline).await.map_err(|error| site.unreachable(Self::KIND, &error))?;
        reached.store(true, Ordering::Relaxed);
        let greeted = Greeted::by(socket, &site).await?;
        let tls = greeted.tls(login.tls.as_ref(), address.tls_mode, &site)?;
        let encrypted = tls.is_some();
        let tls = tls.map(|tls| (tls.clone(), place.name().unwrap_or_default().to_owned()));
        let door = Door::new().map_err(|error| {
            StoreError::not_applied(format!("the operating system gives no socket: {error}")).because(&error)
        })?;
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
        let mut connection = Self { client, site, has_table: false, is_galera: false, encrypted };
        connection.greet(login).await?;
        Ok(connection)
    }

    fn is_open(&self) -> bool {
        true
    }

    async fn tell(&self, statements: &str) -> Result<Vec<Cells>, Failure> {
        self.ask(statements).await.map_err(|error| unanswered(&self.site, error))
    }

    fn transaction(&self, statements: &str) -> String {
        format!("ROLLBACK; START TRANSACTION READ WRITE; {statements}; COMMIT")
    }

    async fn subscribe(_: &Server<Self>) -> Result<Looks, StoreError> {
        Ok(Looks)
    }

    async fn has_table(&self) -> Result<bool, Failure> {
        Ok(self.has_table)
    }

    /// It is tried, because only some users are shown the trigger. With the end of the connection, nothing of it was done.
    async fn keeps(self) -> Result<bool, Failure> {
        let table = &self.site.table;
        let trial = format!(
            "START TRANSACTION READ WRITE; INSERT INTO {table} ({NAMES}) VALUES ('', 'led', '', '', '', 0, 0, NULL); \
             DELETE FROM {table} WHERE shard = '' AND part = 'led'"
        );
        match self.tell(&trial).await {
            Ok(_) => Ok(false),
            Err(Failure { meaning: Meaning::Kept, .. }) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    async fn version(&self) -> Result<(String, Option<&'static str>), Failure> {
        let rows = self.tell("SELECT VERSION()").await?;
        let version = rows.into_iter().flatten().flatten().next().unwrap_or_default();
        let needs = is_too_old(&version).then_some("MySQL 8.0 or MariaDB 10.6");
        Ok((in_short(&version), needs))
    }

    async fn findings(&self, server: &Server<Self>) -> Result<Vec<Finding>, StoreError> {
        let question = "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin + 0, @@sync_binlog, \
                        (SELECT COUNT(*) FROM information_schema.processlist AS p WHERE p.command LIKE 'Binlog Dump%')";
        let rows = server.tell(self, question).await?;
        let settings: Vec<&str> = rows.iter().flatten().map(|cell| cell.as_deref().unwrap_or_default()).collect();
        let [flush, log, sync, replicas] = settings.as_slice() else { return Err(self.site.not_understood()) };
        let mut findings = Vec::new();
        if *flush != "1" {
            findings.push(Finding::bad(
                "innodb_flush_log_at_trx_commit is not 1, so a crash of the server's machine may forget leases: set it to 1",
            ));
        }
        if *log == "1" && *sync != "1" {
            findings.push(Finding::doubtful(
                "sync_binlog is not 1, so after a crash of the server's machine its replicas may know more than it does",
            ));
        }
        if self.is_galera {
            findings.push(Finding::doubtful(
                "the server is a node of a Galera cluster: nobody is granted a lease by another node than the last one \
                 for one lease duration, because the nodes' clocks may differ; so let all candidates name the same node \
                 first",
            ));
        } else if *replicas != "0" {
            findings.push(Finding::doubtful(
                "the server has replicas, so a failover may forget leases: after one, nobody is granted a lease for one \
                 lease duration; that is enough unless the old server still serves clients",
            ));
        }
        let options = ["ssl-mode=VERIFY_IDENTITY", "ssl-ca"];
        findings.extend(encryption(self.encrypted, &server.login.address, options));
        Ok(findings)
    }
}

/// A standby that hears of nothing.
pub struct Looks;

#[async_trait::async_trait]
impl Subscription for Looks {
    async fn next(&mut self, _shards: &[&str]) -> Wake {
        sleep(POLL).await;
        Wake::Look
    }
}

impl Connection {
    /// Sets the session up, and asks what it is about: a server that accepts writes, and a table with transactions, or
    /// none yet. (Without transactions a lease may be lost in a crash, and another node of a cluster does not have it.)
    async fn greet(&mut self, login: &Login) -> Result<(), StoreError> {
        let Login { patience, is_table, .. } = login;
        let statements = format!(
            "SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', \
             innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}, wait_timeout = {IDLE} \
             /*M!100000 , max_statement_time = {patience} */; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             SELECT CONCAT(@@global.read_only), {IS_GALERA}, (SELECT MAX(COALESCE(i.engine, i.table_type)) \
             FROM information_schema.tables AS i WHERE {is_table})"
        );
        let rows = self.tell(&statements).await.map_err(|failure| self.site.unusable(&failure))?;
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
        self.has_table = engine.is_some();
        self.is_galera = is_galera != "0";
        if self.is_galera {
            // A look must show what another node has confirmed.
            let synced = self.tell("SET SESSION wsrep_sync_wait = 1").await;
            synced.map_err(|failure| self.site.unusable(&failure))?;
        }
        Ok(())
    }

    async fn ask(&self, statements: &str) -> Result<Vec<Cells>, MysqlError> {
        let (library, relay) = &mut *self.client.lock().await;
        passing(relay, answers(library, statements)).await
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
    /// The server wants the user to show who it is in this way, which the library does not know.
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
        // Out of room or memory, not ready in its cluster; a limit on connections, on transactions, or on what a user asks
        // in an hour.
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
        MysqlError::Lost(error) => TLS.failure(server, &error).unwrap_or_else(|| site.unreachable("MySQL", &error)),
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

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
    let read = numbers.next().zip(numbers.next());
    let oldest = if version.contains("MariaDB") { OLDEST_MARIADB } else { OLDEST_MYSQL };
    read.is_none_or(|read| read < oldest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    #[test]
    fn no_name_ends_early() {
        assert_eq!(quoted("my `own`\\"), "`my ``own``\\`");
    }

    #[test]
    fn old_versions_are_distinguished_from_new_ones() {
        for version in ["8.0.36", "8.4.0", "9.1.0-commercial", "10.6.1-MariaDB", "11.4.2-MariaDB-log"] {
            assert!(!is_too_old(version), "{version}");
        }
        for version in ["5.7.44-log", "10.5.23-MariaDB-1:10.5.23", "5.5.5-MariaDB", "", "x"] {
            assert!(is_too_old(version), "{version}");
        }
    }

    #[test]
    fn a_transaction_was_not_applied_only_where_that_is_certain() {
        let site = Site {
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
