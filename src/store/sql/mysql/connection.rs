//! One connection to the server, by the library `mysql_async` over a socket of ours (`relay`).
//!
//! The hazards:
//!
//! - A connection may be dead without any sign of it. So one request uses a connection at a time, and owns it: when the
//!   request is given up, the connection is closed, and nothing waits for its answer any more.
//! - A statement that no request waits for may go on in the server, behind a row that is locked. So the server must
//!   give up too: each connection begins with timeouts of the server's.
//! - The session may not be ours alone: a proxy gives a transaction another one, with other settings. Nothing here relies
//!   on a setting.

use super::address::Address;
use super::failure::{self, Trouble};
use super::relay::{Door, Greeted};
use crate::store::StoreError;
use crate::store::error::in_short;
use crate::store::sql::client::Cell;
use crate::store::sql::places::Place;
use crate::store::sql::site::Site;
use crate::store::sql::statements::{LIST_PAGE, literal};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Row, Value};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// The server ends a session that was silent for so many seconds: our host may be gone without a sign.
const IDLE: u64 = 120;
/// An answer has fewer rows: what is short in a packet takes more memory here.
const MOST_ROWS: usize = 2 * LIST_PAGE;
/// The longest packet, and the server's own bound on an idle session: the library would ask for both.
const LONGEST_PACKET: usize = 1 << 24;

type Relay = Pin<Box<dyn Future<Output = Trouble> + Send + Sync>>;

pub struct Connection {
    library: Conn,
    /// Passes on what the library sends, while a request is under way.
    relay: Relay,
    pub has_table: bool,
    /// The server is a node of a Galera cluster.
    pub is_galera: bool,
    pub encrypted: bool,
}

/// What a connection needs to know in addition to the place.
pub struct Login<'a> {
    pub address: &'a Address,
    pub site: &'a Site,
    pub tls: Option<&'a TlsConnector>,
    /// After how many seconds the server gives up a statement that waits.
    pub patience: u64,
    pub deadline: Instant,
    /// Set once the network connection is made: the rest is up to the server.
    pub reached: &'a AtomicBool,
}

impl Connection {
    /// Connects, logs in, and asks what is on the other side.
    ///
    /// # Errors
    /// In one line. No request was sent.
    pub async fn begin(login: &Login<'_>, place: &Place) -> Result<Self, StoreError> {
        let Login { address, site, .. } = login;
        let socket = place.reach(login.deadline).await;
        let socket = socket.map_err(|error| site.unreachable("MySQL", &error))?;
        login.reached.store(true, Ordering::Relaxed);
        let greeted = Greeted::by(socket, site).await?;
        let tls = greeted
            .tls(login.tls, address.tls_mode, site)?
            .map(|tls| (tls.clone(), place.name().unwrap_or_default().to_owned()));
        let encrypted = tls.is_some();
        let door = Door::new().map_err(|error| {
            StoreError::not_applied(format!("the operating system gives no socket: {error}")).because(&error)
        })?;
        let options = OptsBuilder::default()
            .socket(Some(door.path.as_str()))
            .prefer_socket(false)
            .user(Some(site.user.as_str()))
            .pass(Some(address.password().expose()))
            .db_name(Some(address.database.as_str()))
            .max_allowed_packet(Some(LONGEST_PACKET))
            .wait_timeout(Some(usize::try_from(IDLE).unwrap_or(usize::MAX)))
            .stmt_cache_size(0);
        let mut relay: Relay = Box::pin(greeted.relay(door, tls, (*site).clone()));
        let library = async { Ok(Conn::new(options).await?) };
        let library = passing(&mut relay, library).await.map_err(|trouble| failure::unconnected(site, &trouble))?;
        let mut connection = Self { library, relay, has_table: false, is_galera: false, encrypted };
        connection.greet(login).await?;
        Ok(connection)
    }

    /// Sets the session up, and asks what it is about: a server that accepts writes, and a table with transactions, or
    /// none yet. (Without transactions a lease may be lost in a crash, and another node of a cluster does not have it.)
    async fn greet(&mut self, login: &Login<'_>) -> Result<(), StoreError> {
        let Login { address, site, patience, .. } = login;
        // The comments are statements for MariaDB alone, and for MySQL 8 alone.
        let statements = format!(
            "SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', \
             innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}, wait_timeout = {IDLE} \
             /*M!100000 , max_statement_time = {patience} */; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             SELECT CONCAT(@@global.read_only), {IS_GALERA}, (SELECT MAX(COALESCE(i.engine, i.table_type)) \
             FROM information_schema.tables AS i WHERE i.table_schema = {} AND i.table_name = {})",
            literal(&address.database),
            literal(&address.table)
        );
        let unusable = |trouble: &Trouble| {
            let why = failure::unanswered(site, trouble).message;
            StoreError::not_applied(format!("cannot use {}: {why}", site.server))
        };
        let rows = self.ask(&statements).await.map_err(|trouble| unusable(&trouble))?;
        let [read_only, is_galera, engine] = rows.first().map(Vec::as_slice).unwrap_or_default() else {
            return Err(failure::unconnected(site, &Trouble::Garbled));
        };
        if !matches!(read_only.text(), Some("0" | "OFF")) {
            return Err(site.no_writes("it is a replica, or read-only by its settings"));
        }
        self.has_table = *engine != Cell::Null;
        if let Some(engine) = engine.text().filter(|engine| !engine.eq_ignore_ascii_case("InnoDB")) {
            return Err(StoreError::misconfigured(format!(
                "{} is of the kind {}, and leases need a table of InnoDB: drop it and make it with leaderctl store \
                 init, or use another with table=NAME",
                site.table,
                in_short(engine)
            )));
        }
        self.is_galera = *is_galera != Cell::Number(0);
        if self.is_galera {
            // A look must show what another node has confirmed.
            self.ask("SET SESSION wsrep_sync_wait = 1").await.map_err(|trouble| unusable(&trouble))?;
        }
        Ok(())
    }

    /// Sends statements, in one round trip. The first failure ends the rest. Returns the rows of all of them.
    pub async fn ask(&mut self, statements: &str) -> Result<Vec<Vec<Cell>>, Trouble> {
        let Self { library, relay, .. } = self;
        passing(relay, answers(library, statements)).await
    }
}

/// Waits for what the library does, and passes on what it sends meanwhile.
async fn passing<T>(relay: &mut Relay, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => done,
        end = relay => match (end, work.await) {
            // The server said this, and left.
            (Trouble::Lost(_), done @ (Ok(_) | Err(Trouble::Complaint(_)))) => done,
            (end, _) => Err(end),
        },
    }
}

async fn answers(library: &mut Conn, statements: &str) -> Result<Vec<Vec<Cell>>, Trouble> {
    let mut answer = library.query_iter(statements).await?;
    let mut rows = Vec::new();
    while answer.columns().is_some() {
        // After the last row the library begins with the next statement's answer.
        while let Some(row) = answer.next().await? {
            if rows.len() >= MOST_ROWS {
                return Err(Trouble::Garbled);
            }
            rows.push(cells(row));
        }
    }
    // Nothing is left, unless it is the failure of a later statement.
    answer.next().await?;
    Ok(rows)
}

/// The values of a row. The server sends each of them as text.
fn cells(row: Row) -> Vec<Cell> {
    let columns = row.columns();
    let cell = |(value, column): (Value, &mysql_async::Column)| match value {
        Value::NULL => Some(Cell::Null),
        Value::Bytes(bytes) if column.column_type().is_numeric_type() => {
            Some(Cell::Number(std::str::from_utf8(&bytes).ok()?.parse().ok()?))
        }
        Value::Bytes(bytes) => Some(Cell::Text(String::from_utf8(bytes).ok()?)),
        _ => None,
    };
    row.unwrap().into_iter().zip(columns.iter()).map(|value| cell(value).unwrap_or(Cell::Strange)).collect()
}

/// Which server it is. MySQL has a number for each server; MariaDB shows its place.
pub const SERVER: &str =
    "CONCAT(/*!80000 @@server_uuid, */ /*M!100000 @@server_id, ' ', @@hostname, ':', @@port, @@datadir, */ '')";

/// Some builds of MariaDB do not know this variable.
const IS_GALERA: &str = "(0 /*M!100000 + EXISTS (SELECT 1 FROM information_schema.global_variables \
    WHERE variable_name = 'wsrep_on' AND variable_value = 'ON') */)";
