//! The server behind the URL: which of its hosts to ask, over which connection, and for how long.
//!
//! The hazards:
//!
//! - A connection that hangs must not hold up the next request: see `kept_connection`. The server answers the requests
//!   on one connection one after another, so silence means nothing here, and no patience applies: while a request is
//!   under way, the next one takes a connection of its own.
//! - A slow connection is not one that hangs, and to make another one takes several round trips. So a renewal, which
//!   may be applied twice and cannot wait, is sent twice: behind the others on the kept connection, and over a new one.
//! - A host may be a standby, or become one, or be silent. The next attempt then begins with another host.

use super::address::Address;
use super::connection::{Backend, Connection, Login, Parameters, Refusal};
use super::failure::is_broken;
use super::grants::{self, Relation};
use super::watch::Known;
use super::{check, setup};
use crate::store::kept_connection::{self, Kept, once_more};
use crate::store::sql::client::{Answer, Cell, Client, Request, Subscription, Value};
use crate::store::sql::places::{Place, Places};
use crate::store::sql::site::Site;
use crate::store::sql::statements::{Dialect, Statements, TIMELINE};
use crate::store::tls_mode;
use crate::store::{ErrorKind, Finding, StoreError};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long an urgent statement waits for its answer behind another one, before it also makes a new connection.
const HEAD_START: Duration = Duration::from_millis(20);
/// The most connections that are made at once for that: a server has few, and the trial of a check asks much at once.
const MOST_BESIDE: usize = 8;

pub struct Server {
    pub address: Address,
    pub site: Site,
    pub table: Relation,
    pub statements: Statements,
    tls: Option<MakeRustlsConnect>,
    /// The most time for one request, including its connection.
    pub bound: Duration,
    places: Places,
    takes_options: AtomicBool,
    has_timeline: AtomicBool,
    pub known: Known,
    /// Bounds the connections that are made beside one in use.
    beside: Semaphore,
    /// The kept connection.
    current: Kept<Connection>,
}

/// The use of a connection for one request. The connection is kept only if the request was answered.
pub struct Loan<'a> {
    server: &'a Server,
    pub connection: Arc<Connection>,
    /// An earlier request used it, and it may have ended meanwhile.
    pub reused: bool,
    answered: bool,
}

impl<'a> Loan<'a> {
    fn of(server: &'a Server, connection: Arc<Connection>, reused: bool) -> Self {
        connection.in_use.fetch_add(1, Ordering::Relaxed);
        Self { server, connection, reused, answered: false }
    }

    pub fn give_back(mut self) {
        self.answered = true;
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.connection.in_use.fetch_sub(1, Ordering::Relaxed);
        if self.answered {
            // A connection that listens is worth more than this one.
            self.server.current.keep_unless(&self.connection, |kept| kept.is_idle() && kept.listens());
        } else {
            self.server.current.forget(&self.connection);
        }
    }
}

impl Server {
    /// Prepares the server. Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    pub fn new(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let user = address.user().ok_or_else(|| {
            StoreError::misconfigured(
                "postgres:// names no user, and neither does PGUSER: write postgres://USER@HOST/DATABASE",
            )
        })?;
        let table = Relation::of(address);
        let bound = kept_connection::bound(request_timeout);
        let statements = Statements {
            dialect: Dialect::Postgres,
            table: table.to_string(),
            life: format!("{TIMELINE}::text"),
            channel: super::channel(address),
            // The server gives up before we do, so its answer is definite.
            patience: bound - bound / 10,
        };
        let (server, database) = (address.to_string(), address.database.clone());
        let site = Site { server, user, database, table: table.to_string() };
        Ok(Self {
            statements,
            tls: tls_mode::config(address.tls_mode, &address.tls_files)?.map(MakeRustlsConnect::new),
            bound,
            places: Places::new("PostgreSQL", &address.places),
            takes_options: AtomicBool::new(true),
            has_timeline: AtomicBool::new(true),
            known: Known::default(),
            beside: Semaphore::new(MOST_BESIDE),
            current: Kept::default(),
            address: address.clone(),
            site,
            table,
        })
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + self.bound
    }

    /// The kept connection if it is idle, or a new one.
    pub async fn borrow(&self, deadline: Instant) -> Result<Loan<'_>, StoreError> {
        // Lets the connection's task run, so that it sees what has arrived since, such as the end of the connection.
        tokio::task::yield_now().await;
        let kept = self.current.get().filter(|connection| connection.is_idle());
        match kept {
            Some(connection) => Ok(Loan::of(self, connection, true)),
            None => self.borrow_new(deadline).await,
        }
    }

    async fn borrow_new(&self, deadline: Instant) -> Result<Loan<'_>, StoreError> {
        let (connection, _) = self.connect(deadline).await?;
        Ok(Loan::of(self, Arc::new(connection), false))
    }

    /// A new connection, and another descriptor of its socket.
    pub async fn connect(&self, deadline: Instant) -> Result<(Connection, OwnedFd), StoreError> {
        let mut round = self.places.round(deadline);
        while let Some((place, server, deadline)) = round.next() {
            let site = Site { server, ..self.site.clone() };
            let reached = AtomicBool::new(false);
            match timeout_at(deadline, self.connect_to(place, &site, deadline, &reached)).await {
                Ok(Ok(connected)) => {
                    round.worked();
                    return Ok(connected);
                }
                Ok(Err(Refusal::Failed(failure))) => round.failed(failure),
                Ok(Err(Refusal::ReadOnly)) => {
                    round.failed(site.no_writes("it is a standby, or read-only by its settings"));
                }
                Ok(Err(Refusal::NoOptions | Refusal::NoTimeline)) => round
                    .failed(StoreError::not_applied(format!("cannot reach {}: it understands nothing", site.server))),
                Err(_) => round.was_silent(&site.server, reached.into_inner()),
            }
        }
        Err(round.over())
    }

    async fn connect_to(
        &self,
        place: &Place,
        site: &Site,
        deadline: Instant,
        reached: &AtomicBool,
    ) -> Result<(Connection, OwnedFd), Refusal> {
        loop {
            let login = Login {
                address: &self.address,
                site,
                tls: self.tls.as_ref(),
                statement_timeout: self.takes_options.load(Ordering::Relaxed).then_some(self.statements.patience),
                channel: &self.statements.channel,
                has_timeline: self.has_timeline.load(Ordering::Relaxed),
                deadline,
                reached,
            };
            match Connection::begin(&login, place).await {
                // Each of these happens once.
                Err(Refusal::NoOptions) if login.statement_timeout.is_some() => {
                    self.takes_options.store(false, Ordering::Relaxed);
                }
                Err(Refusal::NoTimeline) if login.has_timeline => self.has_timeline.store(false, Ordering::Relaxed),
                answer => return answer,
            }
        }
    }

    /// Sends one statement over any connection. It must be safe to apply the statement twice. While a request is under
    /// way, it is sent behind that one over the same connection, and soon over another connection as well. Returns whether
    /// it was sent twice, too.
    pub async fn ask_once_or_twice(
        &self,
        statement: &str,
        parameters: &Parameters<'_>,
    ) -> Result<(Vec<Row>, bool), StoreError> {
        let deadline = self.deadline();
        // Lets the connection's task run, so that it sees what has arrived since, such as the end of the connection.
        tokio::task::yield_now().await;
        let busy = self.current.get().filter(|connection| connection.is_open() && !connection.is_idle());
        let Some(busy) = busy else {
            let loan = self.borrow(deadline).await?;
            let reused = loan.reused;
            let first = async { self.ask_over(loan, statement, parameters, deadline).await.map(|rows| (rows, false)) };
            let has_ended = |failure: &Failure| reused && matches!(failure, Failure::Broken(_));
            let again = Box::pin(async {
                let loan = self.borrow_new(deadline).await?;
                Ok((self.ask_over(loan, statement, parameters, deadline).await?, true))
            });
            return once_more(first, has_ended, again).await;
        };
        let loan = Loan::of(self, busy, true);
        let behind = async { Ok(self.ask_over(loan, statement, parameters, deadline).await?) };
        let beside = async {
            sleep(HEAD_START).await;
            let _permit = self.beside.acquire().await;
            let loan = self.borrow_new(deadline).await?;
            Ok(self.ask_over(loan, statement, parameters, deadline).await?)
        };
        let (mut behind, mut beside) = (pin!(behind), pin!(beside));
        let (failure, other): (StoreError, _) = tokio::select! {
            answer = &mut behind => match answer {
                Ok(rows) => return Ok((rows, true)),
                Err(failure) => (failure, beside.await),
            },
            answer = &mut beside => match answer {
                Ok(rows) => return Ok((rows, true)),
                Err(failure) => (failure, behind.await),
            },
        };
        match other {
            Ok(rows) => Ok((rows, true)),
            Err(other) if failure.kind == ErrorKind::Unknown => Err(StoreError { message: other.message, ..failure }),
            Err(other) => Err(other),
        }
    }

    async fn ask_over(
        &self,
        loan: Loan<'_>,
        statement: &str,
        parameters: &Parameters<'_>,
        deadline: Instant,
    ) -> Result<Vec<Row>, Failure> {
        let Loan { connection, .. } = &loan;
        let statement = statement.replace(TIMELINE, connection.timeline());
        match timeout_at(deadline, connection.ask(&statement, parameters)).await {
            Ok(Ok(rows)) => {
                loan.give_back();
                Ok(rows)
            }
            Ok(Err(error)) if is_broken(&error) => Err(Failure::Broken(connection.unanswered(&self.site, &error))),
            Ok(Err(error)) => {
                let failure = self.explained(connection, connection.unanswered(&self.site, &error), deadline).await;
                // If the primary became a standby, we leave it for another host.
                if error.code() != Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    loan.give_back();
                }
                Err(Failure::Answered(failure))
            }
            Err(_) => Err(Failure::Answered(self.site.silent())),
        }
    }

    /// Completes a denial: PostgreSQL names the object, but not the missing privilege.
    pub async fn explained(&self, connection: &Connection, failure: StoreError, deadline: Instant) -> StoreError {
        if failure.kind != ErrorKind::Denied {
            return failure;
        }
        match timeout_at(deadline, grants::missing(connection, &self.table)).await {
            Ok(Ok(missing)) if !missing.is_empty() => StoreError::denied(format!(
                "{} denied user {} what it needs: {}",
                self.site.server,
                self.site.user,
                missing.join("; ")
            )),
            _ => failure,
        }
    }

    /// Closes the server's end of a session of ours whose connection we have lost.
    pub async fn terminate(&self, backend: Backend) -> Result<(), StoreError> {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE pid = $1 AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2";
        let pid = i64::from(backend.pid);
        let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&pid, Type::INT8), (&backend.started, Type::INT8)];
        self.ask_once_or_twice(end, &parameters).await.map(drop)
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
        let parameters: Vec<(&(dyn ToSql + Sync), Type)> = request.values.iter().map(parameter).collect();
        let (rows, again) = self.ask_once_or_twice(&request.text, &parameters).await?;
        Ok(Answer { rows: rows.iter().map(cells).collect(), again })
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, StoreError> {
        Ok(Box::new(self.listen().await?))
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

fn parameter(value: &Value) -> (&(dyn ToSql + Sync), Type) {
    match value {
        Value::Number(number) => (number, Type::INT8),
        Value::Text(text) => (text, Type::TEXT),
    }
}

fn cells(row: &Row) -> Vec<Cell> {
    let cell = |index: usize| match *row.columns()[index].type_() {
        Type::INT8 => row.try_get::<_, Option<i64>>(index).map(|number| number.map(Cell::Number)),
        _ => row.try_get::<_, Option<String>>(index).map(|text| text.map(Cell::Text)),
    };
    (0..row.len()).map(|index| cell(index).map_or(Cell::Strange, |cell| cell.unwrap_or(Cell::Null))).collect()
}

/// The reason why a statement returned no rows.
enum Failure {
    /// The connection ended during the statement.
    Broken(StoreError),
    Answered(StoreError),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Broken(error) | Failure::Answered(error) => error,
        }
    }
}
