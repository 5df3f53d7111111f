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
use super::failure::{Site, is_broken};
use super::grants::{self, Relation};
use super::statement::{self, Statements};
use super::watch::Known;
use crate::mutex::Mutex;
use crate::store::error::worst;
use crate::store::kept_connection::{self, Kept, once_more};
use crate::store::tls_mode;
use crate::store::{ErrorKind, StoreError};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long an urgent statement waits for its answer behind another one, before it also makes a new connection.
const HEAD_START: Duration = Duration::from_millis(20);

pub struct Server {
    pub address: Address,
    pub site: Site,
    /// The same, for requests about notes.
    pub notes: Site,
    pub statements: Statements,
    tls: Option<MakeRustlsConnect>,
    /// The most time for one request, including its connection.
    pub bound: Duration,
    /// The channel of this process's notifications.
    pub channel: String,
    /// The timeline on the last connection that was made.
    timeline: Mutex<Option<String>>,
    /// The place that worked last.
    preferred: AtomicUsize,
    takes_options: AtomicBool,
    has_timeline: AtomicBool,
    pub known: Known,
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
        let site = Site {
            server: address.to_string(),
            user,
            database: address.database.clone(),
            table: Relation::leases(address),
        };
        let notes = Site { table: Relation::notes(address), ..site.clone() };
        let bound = kept_connection::bound(request_timeout);
        // The server gives up before we do, so its answer is definite.
        let server_bound = bound - bound / 10;
        let statements = Statements {
            table: site.table.to_string(),
            notes: notes.table.to_string(),
            lock_timeout: server_bound,
            advisory_lock: address.advisory_lock,
        };
        Ok(Self {
            statements,
            timeline: Mutex::default(),
            tls: tls_mode::config(address.tls_mode, &address.tls_files)?.map(MakeRustlsConnect::new),
            bound,
            channel: statement::channel(address),
            preferred: AtomicUsize::new(0),
            takes_options: AtomicBool::new(true),
            has_timeline: AtomicBool::new(true),
            known: Known::default(),
            current: Kept::default(),
            address: address.clone(),
            site,
            notes,
        })
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + self.bound
    }

    pub fn silent(&self) -> StoreError {
        StoreError::unknown(format!("{} did not answer in time", self.site.server))
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
        let places = &self.address.places;
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for attempt in 0..places.len() {
            let index = (first + attempt) % places.len();
            // A host that is silent must leave time for the others.
            let others = u32::try_from(places.len() - attempt).unwrap_or(u32::MAX);
            let deadline = Instant::now() + deadline.saturating_duration_since(Instant::now()) / others;
            let answer = timeout_at(deadline, self.connect_to(index, deadline)).await;
            let site = Site { server: format!("PostgreSQL at {}", places[index]), ..self.site.clone() };
            let failure = match answer {
                Ok(Ok((connection, descriptor))) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    self.note_failover(&connection, deadline).await;
                    return Ok((connection, descriptor));
                }
                Ok(Err(Refusal::Failed(failure))) => failure,
                Ok(Err(Refusal::ReadOnly)) => StoreError::not_applied(format!(
                    "{} does not accept writes: it is a standby, or read-only by its settings",
                    site.server
                )),
                Ok(Err(Refusal::NoOptions | Refusal::NoTimeline)) => {
                    StoreError::not_applied(format!("cannot reach {}: it understands nothing", site.server))
                }
                Err(_) => StoreError::not_applied(format!("cannot reach {}: no answer in time", site.server)),
            };
            failures.push(failure);
        }
        // The next attempt begins elsewhere: this one may have spent its time on the first host.
        self.preferred.store((first + 1) % places.len(), Ordering::Relaxed);
        Err(worst(failures))
    }

    /// After a failover, all candidates wait for one lease, which begins when the first of us has noticed. So each new
    /// connection to a server that has changed records that at once, without waiting for the next claim.
    async fn note_failover(&self, connection: &Connection, deadline: Instant) {
        let before = self.timeline.lock().replace(connection.timeline.clone());
        if before.is_some_and(|before| before != connection.timeline) {
            let remember = self.statements.remember(connection.has_timeline);
            // If it fails, the next claim does it.
            let _ = timeout_at(deadline, connection.ask(&remember, &[])).await;
        }
    }

    async fn connect_to(&self, index: usize, deadline: Instant) -> Result<(Connection, OwnedFd), Refusal> {
        let place = &self.address.places[index];
        let site = Site { server: format!("PostgreSQL at {place}"), ..self.site.clone() };
        loop {
            let login = Login {
                address: &self.address,
                site: &site,
                tls: self.tls.as_ref(),
                statement_timeout: self.takes_options.load(Ordering::Relaxed).then_some(self.statements.lock_timeout),
                channel: &self.channel,
                has_timeline: self.has_timeline.load(Ordering::Relaxed),
                deadline,
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

    /// Sends one statement over any connection. It must be safe to apply the statement twice.
    pub async fn ask(
        &self,
        statement: impl Fn(&Connection) -> String + Send,
        parameters: &Parameters<'_>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        self.ask_about(&self.site, statement, parameters, deadline).await
    }

    /// As [`Server::ask`], about the table of that site.
    pub async fn ask_about(
        &self,
        site: &Site,
        statement: impl Fn(&Connection) -> String + Send,
        parameters: &Parameters<'_>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let loan = self.borrow(deadline).await?;
        let (text, reused) = (statement(&loan.connection), loan.reused);
        let first = async {
            let rows = self.ask_over(site, loan, &text, parameters, deadline).await?;
            Ok(Answer { rows, again: false })
        };
        let has_ended = |failure: &Failure| reused && matches!(failure, Failure::Broken(_));
        let again = Box::pin(async {
            let loan = self.borrow_new(deadline).await?;
            let text = statement(&loan.connection);
            let rows = self.ask_over(site, loan, &text, parameters, deadline).await?;
            Ok(Answer { rows, again: true })
        });
        once_more(first, has_ended, again).await
    }

    /// As [`Server::ask_about`], for a statement that cannot wait. While a request is under way, it is sent behind that
    /// one over the same connection, and soon over another connection as well.
    pub async fn ask_urgently(
        &self,
        site: &Site,
        statement: &str,
        parameters: &Parameters<'_>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        tokio::task::yield_now().await;
        let busy = self.current.get().filter(|connection| connection.is_open() && !connection.is_idle());
        let Some(busy) = busy else {
            return self.ask_about(site, |_| statement.to_owned(), parameters, deadline).await;
        };
        let loan = Loan::of(self, busy, true);
        let behind = async { Ok(self.ask_over(site, loan, statement, parameters, deadline).await?) };
        let beside = async {
            sleep(HEAD_START).await;
            let loan = self.borrow_new(deadline).await?;
            Ok(self.ask_over(site, loan, statement, parameters, deadline).await?)
        };
        let (mut behind, mut beside) = (pin!(behind), pin!(beside));
        let (failure, other): (StoreError, _) = tokio::select! {
            answer = &mut behind => match answer {
                Ok(rows) => return Ok(Answer { rows, again: true }),
                Err(failure) => (failure, beside.await),
            },
            answer = &mut beside => match answer {
                Ok(rows) => return Ok(Answer { rows, again: true }),
                Err(failure) => (failure, behind.await),
            },
        };
        match other {
            Ok(rows) => Ok(Answer { rows, again: true }),
            Err(other) if failure.kind == ErrorKind::Unknown => Err(StoreError { message: other.message, ..failure }),
            Err(other) => Err(other),
        }
    }

    async fn ask_over(
        &self,
        site: &Site,
        loan: Loan<'_>,
        statement: &str,
        parameters: &Parameters<'_>,
        deadline: Instant,
    ) -> Result<Vec<Row>, Failure> {
        match timeout_at(deadline, loan.connection.ask(statement, parameters)).await {
            Ok(Ok(rows)) => {
                loan.give_back();
                Ok(rows)
            }
            Ok(Err(error)) if is_broken(&error) => Err(Failure::Broken(loan.connection.unanswered(site, &error))),
            Ok(Err(error)) => {
                let failure =
                    self.explained(&loan.connection, site, loan.connection.unanswered(site, &error), deadline).await;
                // If the primary became a standby, we leave it for another host.
                if error.code() != Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    loan.give_back();
                }
                Err(Failure::Answered(failure))
            }
            Err(_) => Err(Failure::Answered(self.silent())),
        }
    }

    /// Completes a denial: PostgreSQL names the object, but not the missing privilege.
    pub async fn explained(
        &self,
        connection: &Connection,
        site: &Site,
        failure: StoreError,
        deadline: Instant,
    ) -> StoreError {
        if failure.kind != ErrorKind::Denied {
            return failure;
        }
        match timeout_at(deadline, grants::missing(connection, &site.table)).await {
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
        let (pid, started) = (i64::from(backend.pid), backend.started);
        let parameters = [statement::number(&pid), statement::number(&started)];
        self.ask(|_| end.to_owned(), &parameters, self.deadline()).await.map(drop)
    }
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

pub struct Answer {
    pub rows: Vec<Row>,
    /// True if the statement was sent twice, and may have been applied twice.
    pub again: bool,
}
