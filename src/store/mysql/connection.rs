//! One connection to the server, by the library `mysql_async` over a socket of ours (`relay`).
//!
//! The hazards:
//!
//! - A connection may be dead without any sign of it. So one request uses a connection at a time, and owns it: when the
//!   request is given up, the connection is closed, and nothing waits for its answer any more.
//! - A statement that no request waits for may go on in the server, behind a row that is locked. So the server must
//!   give up too: each connection begins with timeouts of the server's.
//! - The session may not be ours alone: a proxy gives a statement another one, with other settings. Nothing here relies
//!   on a setting, except that statements are committed, and every answer says whether they are ([`Trouble`]).

use super::address::{Address, Place};
use super::failure::{Site, Trouble};
use super::relay::{Door, Greeted};
use crate::store::rows::LIST_PAGE;
use crate::store::socket::{Socket, reach};
use crate::store::{ErrorKind, StoreError};
use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, QueryResult, TextProtocol, Value};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// The server ends a session that was silent for so many seconds: our host may be gone without a sign.
const IDLE: u64 = 120;
/// A request has fewer statements, and an answer fewer rows. A server that counts on without an end is not heard to its
/// end: what is short in a packet takes more memory here.
const MOST_OUTCOMES: usize = 100;
const MOST_ROWS: usize = 2 * LIST_PAGE;
/// The longest packet, and the server's own bound on an idle session: the library would ask for both.
const LONGEST_PACKET: usize = 1 << 24;

/// The answer to one of the statements of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many rows it changed.
    pub changed: u64,
    pub rows: Vec<Row>,
}

/// A row of an answer. Every value is text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(pub Vec<Option<Vec<u8>>>);

impl Row {
    fn of(row: mysql_async::Row) -> Option<Self> {
        let value = |value| match value {
            Value::NULL => Some(None),
            Value::Bytes(bytes) => Some(Some(bytes)),
            _ => None,
        };
        row.unwrap().into_iter().map(value).collect::<Option<_>>().map(Self)
    }

    /// The text. None if there is no such column, or if it is NULL or no text.
    pub fn text(&self, column: usize) -> Option<&str> {
        std::str::from_utf8(self.0.get(column)?.as_deref()?).ok()
    }

    pub fn is_null(&self, column: usize) -> bool {
        self.0.get(column).is_some_and(Option::is_none)
    }

    pub fn words(&self, column: usize) -> Option<String> {
        self.text(column).map(str::to_owned)
    }

    pub fn number(&self, column: usize) -> Option<i64> {
        self.text(column)?.parse().ok()
    }

    pub fn flag(&self, column: usize) -> Option<bool> {
        self.number(column).map(|number| number != 0)
    }
}

type Relay = Pin<Box<dyn Future<Output = Trouble> + Send + Sync>>;

pub struct Connection {
    library: Conn,
    /// Passes on what the library sends, while a request is under way.
    relay: Relay,
    /// Which server it is: another one after a failover.
    pub server: String,
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
        let unreachable = |error| site.unconnected(&Trouble::Lost(error));
        let (socket, name) = match place {
            Place::Tcp { name, port } => {
                (Socket::Tcp(reach(name, *port, login.deadline).await.map_err(unreachable)?), name.as_str())
            }
            Place::Unix(path) => (Socket::Unix(UnixStream::connect(path).await.map_err(unreachable)?), ""),
        };
        login.reached.store(true, Ordering::Relaxed);
        socket.prepare().map_err(unreachable)?;
        let greeted = Greeted::by(socket, site).await?;
        let tls = greeted.tls(login.tls, address.tls_mode, site)?.map(|tls| (tls.clone(), name.to_owned()));
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
        let library = passing(&mut relay, library).await.map_err(|trouble| site.unconnected(&trouble))?;
        let mut connection = Self { library, relay, server: String::new(), is_galera: false, encrypted };
        connection.greet(login).await?;
        Ok(connection)
    }

    /// Sets the session up, and asks whether the server accepts writes.
    async fn greet(&mut self, login: &Login<'_>) -> Result<(), StoreError> {
        let (site, patience) = (login.site, login.patience);
        // The comments are statements for MariaDB alone, and for MySQL 8 alone.
        let statements = format!(
            "SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', \
             innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}, wait_timeout = {IDLE} \
             /*M!100000 , max_statement_time = {patience} */; \
             SELECT @@global.read_only, {IS_GALERA}; SELECT {SERVER}"
        );
        let mut outcomes = Vec::new();
        let asked = self.ask(&statements, &mut outcomes).await;
        asked.map_err(|trouble| {
            StoreError::not_applied(format!("cannot use {}: {}", site.server, site.unanswered(&trouble, false).message))
        })?;
        let row = |index| outcomes.get(index).and_then(|outcome: &Outcome| outcome.rows.first());
        let read = || Some((row(1)?.words(0)?, row(1)?.flag(1)?, row(2)?.words(0)?));
        let (read_only, is_galera, server) = read().ok_or_else(|| site.unconnected(&Trouble::Garbled))?;
        if !["0", "OFF"].contains(&read_only.as_str()) {
            return Err(StoreError::not_applied(format!(
                "{} does not accept writes: it is a replica, or read-only by its settings",
                site.server
            )));
        }
        (self.is_galera, self.server) = (is_galera, server);
        if is_galera {
            // A look must show what another node has confirmed.
            let asked = self.ask("SET SESSION wsrep_sync_wait = 1", &mut Vec::new()).await;
            asked.map_err(|trouble| StoreError { kind: ErrorKind::NotApplied, ..site.unanswered(&trouble, false) })?;
        }
        Ok(())
    }

    /// Sends statements, in one round trip. Each is committed by itself, and the first failure ends the rest. Puts the
    /// answers of those before it into `outcomes`, as they come: none of them if one may not be committed.
    pub async fn ask(&mut self, statements: &str, outcomes: &mut Vec<Outcome>) -> Result<(), Trouble> {
        let asked = self.ask_in_any_state(statements, outcomes, true).await;
        if matches!(asked, Err(Trouble::Uncommitted)) {
            outcomes.clear();
        }
        asked
    }

    /// As [`Connection::ask`], but a transaction may be open.
    pub async fn ask_within_transaction(
        &mut self,
        statements: &str,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Trouble> {
        self.ask_in_any_state(statements, outcomes, false).await
    }

    async fn ask_in_any_state(
        &mut self,
        statements: &str,
        outcomes: &mut Vec<Outcome>,
        committed: bool,
    ) -> Result<(), Trouble> {
        let Self { library, relay, .. } = self;
        passing(relay, answers(library, statements, outcomes, committed)).await
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

/// Sends statements, and reads the answers.
async fn answers(
    library: &mut Conn,
    statements: &str,
    outcomes: &mut Vec<Outcome>,
    committed: bool,
) -> Result<(), Trouble> {
    library.query_iter(statements).await?;
    loop {
        // Of the last statement that was answered to its end.
        let status = library.last_ok_packet().map(mysql_async::OkPacket::status_flags);
        let is_open = |status: StatusFlags| {
            status.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
                || !status.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT)
        };
        if committed && status.is_some_and(is_open) {
            return Err(Trouble::Uncommitted);
        }
        let mut answer = QueryResult::<TextProtocol>::new(&mut *library);
        let Some(columns) = answer.columns() else {
            // Nothing is left, unless it is the failure of a later statement.
            return answer.next().await.map(drop).map_err(Trouble::from);
        };
        if outcomes.len() >= MOST_OUTCOMES {
            return Err(Trouble::Garbled);
        }
        let changed = if columns.is_empty() { answer.affected_rows() } else { 0 };
        outcomes.push(Outcome { changed, rows: Vec::new() });
        let rows = &mut outcomes.last_mut().expect("it was just put there").rows;
        // After the last row the library begins with the next statement's answer.
        while let Some(row) = answer.next().await? {
            rows.push(Row::of(row).filter(|_| rows.len() < MOST_ROWS).ok_or(Trouble::Garbled)?);
        }
    }
}

/// Which server it is. MySQL has a number for each server; MariaDB shows its place.
pub const SERVER: &str =
    "CONCAT(/*!80000 @@server_uuid, */ /*M!100000 @@server_id, ' ', @@hostname, ':', @@port, @@datadir, */ '')";

/// Some builds of MariaDB do not know this variable.
const IS_GALERA: &str = "(0 /*M!100000 + EXISTS (SELECT 1 FROM information_schema.global_variables \
    WHERE variable_name = 'wsrep_on' AND variable_value = 'ON') */)";
