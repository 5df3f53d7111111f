//! The server behind the URL: which of its hosts to ask, over which connection, and for how long.
//!
//! The hazards:
//!
//! - A connection that hangs must not hold up the next request. The server answers the requests on one connection one
//!   after another. So while a request is under way, the next one takes a connection of its own.
//! - A connection may have ended unnoticed, as after `wait_timeout`. Then the request is sent once more: see
//!   `kept_connection`.
//! - A request that failed in the middle leaves its transaction open, and what it wrote would be committed with the next
//!   one. So only a connection whose request was answered to its end is kept.
//! - A host may be a replica, or become one, or be silent. The next attempt then begins with another host.

use super::address::Address;
use super::connection::{Connection, Login, SERVER};
use super::failure::{self, Trouble};
use super::{check, quoted, setup};
use crate::store::kept_connection::{self, once_more};
use crate::store::sql::client::{Answer, Cell, Client, Request, Subscription, Wake};
use crate::store::sql::places::Places;
use crate::store::sql::site::Site;
use crate::store::sql::statements::{Dialect, Statements, literal};
use crate::store::{ErrorKind, Finding, StoreError, tls_mode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::TlsConnector;

/// From one look of a standby to the next: MySQL notifies nobody.
const POLL: Duration = Duration::from_millis(500);
/// The most requests on connections of their own: a server has few, and the trial of a check asks much at once.
const MOST_BESIDE: usize = 8;
/// How often a request that another transaction overtook is made again.
const MOST_OVERTAKEN: usize = 4;

pub struct Server {
    pub address: Address,
    pub site: Site,
    pub statements: Statements,
    tls: Option<TlsConnector>,
    /// The most time for one request, including its connection.
    bound: Duration,
    places: Places,
    beside: Semaphore,
    /// The connection that is kept while no request uses it.
    idle: Mutex<Option<Connection>>,
}

impl Server {
    /// Prepares the server. Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    pub fn new(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let user = address
            .user()
            .ok_or_else(|| StoreError::misconfigured("mysql:// names no user: write mysql://USER@HOST/DATABASE"))?;
        let Address { database, table: name, .. } = address;
        let table = format!("{}.{}", quoted(database), quoted(name));
        // The time that is shown depends on the session's time zone, and this takes it back.
        let life = format!(
            "LEFT(SHA2(CONCAT({SERVER}, ' ', (SELECT COALESCE(MAX(UNIX_TIMESTAMP(i.create_time)), '') \
             FROM information_schema.tables AS i WHERE i.table_schema = {} AND i.table_name = {})), 256), 32)",
            literal(database),
            literal(name)
        );
        let bound = kept_connection::bound(request_timeout);
        // The server gives up before we do, so its answer is definite.
        let patience = bound - bound / 10;
        let tls = tls_mode::config(address.tls_mode, &address.tls_files)?;
        Ok(Self {
            site: Site { server: address.to_string(), user, database: database.clone(), table: table.clone() },
            statements: Statements { dialect: Dialect::MySql, table, life, channel: String::new(), patience },
            tls: tls.map(|config| TlsConnector::from(Arc::new(config))),
            bound,
            places: Places::new("MySQL", &address.places),
            beside: Semaphore::new(MOST_BESIDE),
            idle: Mutex::default(),
            address: address.clone(),
        })
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + self.bound
    }

    /// A new connection.
    pub async fn connect(&self, deadline: Instant) -> Result<Connection, StoreError> {
        let mut round = self.places.round(deadline);
        while let Some((place, server, deadline)) = round.next() {
            let site = Site { server, ..self.site.clone() };
            let reached = AtomicBool::new(false);
            let login = Login {
                address: &self.address,
                site: &site,
                tls: self.tls.as_ref(),
                // It counts in whole seconds.
                patience: self.statements.patience.as_secs().max(1),
                deadline,
                reached: &reached,
            };
            match timeout_at(deadline, Connection::begin(&login, place)).await {
                Ok(Ok(connection)) => {
                    round.worked();
                    return Ok(connection);
                }
                Ok(Err(failure)) => round.failed(failure),
                Err(_) => round.was_silent(&site.server, reached.into_inner()),
            }
        }
        Err(round.over())
    }

    /// Sends statements over this connection, outside of an election.
    pub async fn tell(&self, connection: &mut Connection, statements: &str) -> Result<Vec<Vec<Cell>>, Trouble> {
        let asked = timeout_at(self.deadline(), connection.ask(statements)).await;
        asked.unwrap_or_else(|_| Err(Trouble::Unfit(self.site.silent())))
    }

    async fn ask_anew(&self, request: &str, deadline: Instant) -> Result<Vec<Vec<Cell>>, StoreError> {
        let permit = timeout_at(deadline, self.beside.acquire()).await;
        let _permit = permit.map_err(|_| StoreError { kind: ErrorKind::NotApplied, ..self.site.silent() })?;
        let connection = self.connect(deadline).await?;
        Ok(self.ask_over(connection, request, deadline).await?)
    }

    async fn ask_over(
        &self,
        mut connection: Connection,
        request: &str,
        deadline: Instant,
    ) -> Result<Vec<Vec<Cell>>, Failure> {
        let again = format!("ROLLBACK; {request}");
        let mut request = request;
        for attempt in 0.. {
            match timeout_at(deadline, connection.ask(request)).await {
                Ok(Ok(rows)) => {
                    self.idle.lock().get_or_insert(connection);
                    return Ok(rows);
                }
                Ok(Err(trouble)) if trouble.was_overtaken() && attempt < MOST_OVERTAKEN => request = &again,
                Ok(Err(trouble)) => {
                    let error = failure::unanswered(&self.site, &trouble);
                    return Err(Failure { error, is_broken: trouble.is_broken() });
                }
                // The answer may yet come.
                Err(_) => break,
            }
        }
        Err(Failure { error: self.site.silent(), is_broken: false })
    }
}

/// The reason why a request was not answered.
struct Failure {
    error: StoreError,
    is_broken: bool,
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

#[async_trait::async_trait]
impl Client for Server {
    fn place(&self) -> String {
        self.site.server.clone()
    }

    fn statements(&self) -> &Statements {
        &self.statements
    }

    async fn ask(&self, request: &Request) -> Result<Answer, StoreError> {
        let (request, deadline) = (request.text.as_str(), self.deadline());
        let kept = self.idle.lock().take();
        let Some(connection) = kept else {
            return Ok(Answer { rows: self.ask_anew(request, deadline).await?, again: false });
        };
        let first = async {
            let rows = self.ask_over(connection, request, deadline).await?;
            Ok(Answer { rows, again: false })
        };
        let again = Box::pin(async { Ok(Answer { rows: self.ask_anew(request, deadline).await?, again: true }) });
        once_more(first, |failure: &Failure| failure.is_broken, again).await
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, StoreError> {
        Ok(Box::new(Looks))
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        setup::prepare(self).await
    }

    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        check::identify(self).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        check::findings(self).await
    }
}

/// A standby that hears of nothing.
struct Looks;

#[async_trait::async_trait]
impl Subscription for Looks {
    async fn next(&mut self, _shards: &[&str]) -> Wake {
        sleep(POLL).await;
        Wake::Look
    }
}
