//! MySQL and MariaDB: their client, the library `mysql_async` over a socket of ours (`relay`).
//!
//! The hazards:
//!
//! - The library cannot go on after a request that was given up in the middle. So a connection takes one request at a
//!   time, and one that is given up closes it.
//! - A request that failed in the middle leaves its transaction open, and the next one would commit what it wrote. So
//!   each request begins with a ROLLBACK.

mod relay;

use super::address::Address;
use super::client::{self, Cells, MOST_ROWS};
use super::failure::{Failure, Meaning, Site, Trouble};
use super::server::Server;
use super::{Rows, patience};
use crate::store::StoreError;
use crate::store::error::in_short;
use crate::store::socket::{Place, Socket};
use crate::store::url::Secret;
use futures_util::FutureExt as _;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, Error, IoError, OptsBuilder, Row, Value};
use relay::{Door, Greeted};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// After this silence, in seconds, the server ends a session: our host may be gone.
const IDLE: usize = 120;
/// Set, like `wait_timeout`, because the library would ask the server for both.
const LONGEST_PACKET: usize = 1 << 24;
/// How the library's socket fails once its other end is gone.
const ENDED: [io::ErrorKind; 4] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::NotConnected,
    io::ErrorKind::UnexpectedEof,
];

/// ER_UNKNOWN_SYSTEM_VARIABLE, as an unexpected error is worded.
const NO_SUCH_VARIABLE: &str = "error 1193";

pub fn open(address: &Address, request_timeout: Duration) -> Result<Rows<Connection>, StoreError> {
    Ok(Rows::new(Arc::new(Server::new(address, request_timeout)?), None))
}

type Relay = Pin<Box<dyn Future<Output = Trouble> + Send + Sync>>;

pub struct Connection {
    /// The library, and what passes its bytes on while a request is under way. None after one that was given up.
    client: Mutex<Option<(Conn, Relay)>>,
    site: Site,
}

#[async_trait::async_trait]
impl client::Connection for Connection {
    const POLL: Duration = Duration::from_millis(500);
    const TAKES_SEVERAL: bool = false;

    async fn begin(server: &Server<Self>, site: Site, place: &Place, socket: Socket) -> Result<Self, StoreError> {
        let address = &server.address;
        let greeted = Greeted::by(socket, address.tls_mode, &site).await?;
        let tls = (Arc::clone(&server.tls).into(), place.name().unwrap_or_default().to_owned());
        let door = Door::new()?;
        let password = address.password();
        let options = OptsBuilder::default()
            .socket(Some(door.path.as_str()))
            .prefer_socket(false)
            .user(Some(site.user.as_str()))
            .pass(password.as_ref().map(Secret::expose))
            .db_name(Some(address.database.as_str()))
            .max_allowed_packet(Some(LONGEST_PACKET))
            .wait_timeout(Some(IDLE))
            .stmt_cache_size(0);
        // Once it has ended, only the library tells so.
        let mut relay: Relay = Box::pin(greeted.relay(door, tls, site.clone()).fuse());
        let library = async { Ok(Conn::new(options).await?) };
        let library = passing(&mut relay, library).await.map_err(|trouble| site.unconnected(trouble))?;
        let connection = Self { client: Mutex::new(Some((library, relay))), site };
        connection.greet(server).await?;
        Ok(connection)
    }

    fn is_open(&self) -> bool {
        self.client.try_lock().map_or(true, |client| client.is_some())
    }

    async fn tell(&self, statements: &str) -> Result<Vec<Cells>, Failure> {
        self.ask(&format!("ROLLBACK; START TRANSACTION READ WRITE; {statements}; COMMIT")).await
    }
}

impl Connection {
    /// Refuses tables without transactions: a crash may lose a lease, and other nodes of a cluster do not have it.
    async fn greet(&self, server: &Server<Self>) -> Result<(), StoreError> {
        // The server counts in whole seconds.
        let patience = patience(server.bound).as_secs().max(1);
        let is_table = &server.statements.is_table;
        let statements = format!(
            "SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', \
             innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}, wait_timeout = {IDLE} \
             /*M!100000 , max_statement_time = {patience} */; SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             SELECT CONCAT(@@global.read_only), (SELECT MAX(COALESCE(i.engine, i.table_type)) \
             FROM information_schema.tables AS i WHERE {is_table})"
        );
        let rows = self.ask(&statements).await.map_err(|failure| self.site.unusable(&failure))?;
        let [Some(read_only), engine] = rows.first().map(Vec::as_slice).unwrap_or_default() else {
            return Err(self.site.unconnected(Trouble::Garbled));
        };
        if !matches!(read_only.as_str(), "0" | "OFF") {
            return Err(self.site.explained(Meaning::NoWrites, "it is a replica, or read-only by its settings"));
        }
        if let Some(engine) = engine.as_ref().filter(|engine| !engine.eq_ignore_ascii_case("InnoDB")) {
            return Err(StoreError::misconfigured(format!(
                "{} uses the engine {}, and leases need InnoDB: drop the table and create it with leaderctl store \
                 init, or use another with table=NAME",
                self.site.table,
                in_short(engine)
            )));
        }
        // In a Galera cluster, a look must show what another node has confirmed. Other servers do not know this.
        match self.ask("SET SESSION wsrep_sync_wait = 1").await {
            Err(failure) if !failure.error.message.contains(NO_SUCH_VARIABLE) => Err(self.site.unusable(&failure)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn ask(&self, statements: &str) -> Result<Vec<Cells>, Failure> {
        let mut client = self.client.lock().await;
        let Some((mut library, mut relay)) = client.take() else { return Err(self.site.unanswered(closed())) };
        let answer = passing(&mut relay, answers(&mut library, statements)).await;
        if matches!(answer, Ok(_) | Err(Trouble::Said { .. })) {
            *client = Some((library, relay));
        }
        answer.map_err(|trouble| self.site.unanswered(trouble))
    }
}

async fn passing<T>(relay: &mut Relay, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => done,
        end = relay => match (end, work.await) {
            // The server answered, and closed the connection.
            (Trouble::Lost(_), done @ (Ok(_) | Err(Trouble::Said { .. }))) => done,
            (end, _) => Err(end),
        },
    }
}

async fn answers(library: &mut Conn, statements: &str) -> Result<Vec<Cells>, Trouble> {
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
    // A later statement may have failed.
    answer.next().await?;
    Ok(rows)
}

/// The server sends each value as text.
fn cells(row: Row) -> Cells {
    let cell =
        |value| if let Value::Bytes(bytes) = value { Some(String::from_utf8_lossy(&bytes).into_owned()) } else { None };
    row.unwrap().into_iter().map(cell).collect()
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::Server(said) => Self::Said { code: said.code.to_string(), message: said.message, is_final: false },
            // The library's socket fails only after ours. All other errors mean that it cannot read an answer.
            Error::Io(IoError::Io(error)) if ENDED.contains(&error.kind()) => closed(),
            Error::Driver(DriverError::ConnectionClosed) => closed(),
            Error::Driver(DriverError::UnknownAuthPlugin { name }) => Self::Unproven(name),
            Error::Driver(DriverError::CleartextPluginDisabled) => Self::Unproven("mysql_clear_password".to_owned()),
            Error::Driver(DriverError::MysqlOldPasswordDisabled) => Self::Unproven("mysql_old_password".to_owned()),
            Error::Io(_) | Error::Driver(_) | Error::Other(_) | Error::Url(_) => Self::Garbled,
        }
    }
}

fn closed() -> Trouble {
    io::Error::new(io::ErrorKind::UnexpectedEof, "early eof").into()
}
