//! The server behind the URL: which of its hosts to ask, over which connection, and for how long.
//!
//! The hazards:
//!
//! - A connection that hangs must not hold up the next request. The server answers the requests on one connection one
//!   after another. So while a request is under way, the next one takes a connection of its own.
//! - A connection may have ended unnoticed, as after `wait_timeout`. Then the request is sent once more: see
//!   `kept_connection`.
//! - A host may be a replica, or become one, or be silent. The next attempt then begins with another host.

use super::address::Address;
use super::connection::{Connection, Login, Outcome};
use super::failure::{Site, Trouble};
use super::statement::{Statements, notes_name, quoted};
use crate::store::error::{unanswered, worst};
use crate::store::kept_connection::{self, once_more};
use crate::store::{ErrorKind, StoreError, tls_mode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

/// The most connections that are kept while no request uses them.
const MOST_IDLE: usize = 1;
/// How often a request that another transaction overtook is made again.
const MOST_OVERTAKEN: usize = 4;

pub struct Server {
    pub address: Address,
    pub site: Site,
    /// The same, for requests about notes.
    pub notes: Site,
    pub statements: Statements,
    tls: Option<TlsConnector>,
    /// The most time for one request, including its connection.
    pub bound: Duration,
    /// Which server the last connection led to.
    last: Mutex<Option<String>>,
    /// The place that worked last.
    preferred: AtomicUsize,
    /// The connections that no request uses.
    idle: Mutex<Vec<Connection>>,
}

/// The answers to the statements of a request.
pub struct Answer {
    pub outcomes: Vec<Outcome>,
    /// True if the statements were sent twice, and may have been applied twice.
    pub again: bool,
    /// The error of the statement after those that were answered.
    pub failure: Option<StoreError>,
}

impl Answer {
    /// An error, unless the first `needed` statements were answered, or all of them.
    fn with(self, needed: usize) -> Result<Self, StoreError> {
        match self.failure {
            Some(failure) if self.outcomes.len() < needed => Err(failure),
            _ => Ok(self),
        }
    }

    /// How many rows the statement changed.
    pub fn changed(&self, statement: usize) -> Option<u64> {
        self.outcomes.get(statement).map(|outcome| outcome.changed)
    }
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
        let statements = Statements::new(address);
        let site = Site {
            server: address.to_string(),
            user,
            database: address.database.clone(),
            table: statements.table.clone(),
            privileges: "SELECT, INSERT, UPDATE",
        };
        let notes = Site {
            table: format!("{}.{}", quoted(&address.database), quoted(&notes_name(&address.table))),
            privileges: "SELECT, INSERT, UPDATE, DELETE",
            ..site.clone()
        };
        let tls = tls_mode::config(address.tls_mode, &address.tls_files)?;
        Ok(Self {
            statements,
            tls: tls.map(|config| TlsConnector::from(Arc::new(config))),
            bound: kept_connection::bound(request_timeout),
            last: Mutex::default(),
            preferred: AtomicUsize::new(0),
            idle: Mutex::default(),
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

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < MOST_IDLE {
            idle.push(connection);
        }
    }

    /// A new connection.
    pub async fn connect(&self, deadline: Instant) -> Result<Connection, StoreError> {
        let places = &self.address.places;
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for attempt in 0..places.len() {
            let index = (first + attempt) % places.len();
            let place = &places[index];
            // A host that is silent must leave time for the others.
            let others = u32::try_from(places.len() - attempt).unwrap_or(u32::MAX);
            let deadline = Instant::now() + deadline.saturating_duration_since(Instant::now()) / others;
            let site = Site { server: format!("MySQL at {place}"), ..self.site.clone() };
            // The server gives up before we do, so its answer is definite. It counts in whole seconds.
            let patience = (self.bound - self.bound / 10).as_secs().max(1);
            let reached = AtomicBool::new(false);
            let tls = self.tls.as_ref();
            let login = Login { address: &self.address, site: &site, tls, patience, deadline, reached: &reached };
            let failure = match timeout_at(deadline, Connection::begin(&login, place)).await {
                Ok(Ok(mut connection)) => match self.note_failover(&site, &mut connection, deadline).await {
                    Ok(()) => {
                        self.preferred.store(index, Ordering::Relaxed);
                        return Ok(connection);
                    }
                    Err(failure) => failure,
                },
                Ok(Err(failure)) => failure,
                Err(_) => unanswered(&site.server, reached.into_inner(), "MySQL"),
            };
            failures.push(failure);
        }
        // The next attempt begins elsewhere: this one may have spent its time on the first host.
        self.preferred.store((first + 1) % places.len(), Ordering::Relaxed);
        Err(worst(&failures))
    }

    /// After a failover, all candidates wait for one lease, which begins when the first of us has noticed. So each new
    /// connection to a server that has changed records that, without waiting for the next claim. A leader must not
    /// renew there before that: its lease then ends by this server's clock, and a claim at another one must not trust
    /// its own.
    async fn note_failover(
        &self,
        site: &Site,
        connection: &mut Connection,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let before = self.last.lock().clone();
        if before.is_some_and(|before| before != connection.server) {
            let noted = timeout_at(deadline, self.remember_over(connection)).await;
            let noted = noted.map_err(|_| self.silent())?.map_err(|trouble| site.unanswered(&trouble, false));
            // A user who may not write, or has no table, cannot renew either.
            if let Err(error) = noted
                && !matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured)
            {
                return Err(StoreError { kind: ErrorKind::NotApplied, ..error });
            }
        }
        *self.last.lock() = Some(connection.server.clone());
        Ok(())
    }

    /// Has the table remember from now on, if it is not the one that the marker names. Returns since when it has
    /// remembered, in microseconds, if it is.
    pub async fn remember_over(&self, connection: &mut Connection) -> Result<Option<i64>, Trouble> {
        let mut outcomes = Vec::new();
        let memory = self.statements.memory();
        connection.ask(&memory, &mut outcomes).await?;
        let row = outcomes.first().and_then(|outcome| outcome.rows.first()).ok_or(Trouble::Garbled)?;
        let identity = row.words(0).ok_or(Trouble::Garbled)?;
        if row.text(1) == Some(identity.as_str()) {
            return Ok(row.number(2));
        }
        connection.ask(&self.statements.remember(&identity), &mut outcomes).await.map(|()| None)
    }

    /// Sends statements over any connection. It must be safe to apply them twice. An error, unless every statement has
    /// its answer.
    pub async fn ask(&self, site: &Site, statements: &str) -> Result<Answer, StoreError> {
        self.ask_for(usize::MAX, site, statements).await
    }

    /// As [`Server::ask`], but only the first `needed` statements, at least one, must have an answer.
    pub async fn ask_for(&self, needed: usize, site: &Site, statements: &str) -> Result<Answer, StoreError> {
        let deadline = self.deadline();
        let kept = self.idle.lock().pop();
        let Some(connection) = kept else {
            let connection = self.connect(deadline).await?;
            return Answer::with(self.ask_over(site, connection, statements, deadline).await?, needed);
        };
        let has_ended = |failure: &Failure| failure.is_broken;
        let again = Box::pin(async {
            let connection = self.connect(deadline).await?;
            let answer = self.ask_over(site, connection, statements, deadline).await?;
            Ok(Answer { again: true, ..answer })
        });
        once_more(self.ask_over(site, connection, statements, deadline), has_ended, again).await?.with(needed)
    }

    async fn ask_over(
        &self,
        site: &Site,
        mut connection: Connection,
        statements: &str,
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        let mut overtaken = 0;
        loop {
            let mut outcomes = Vec::new();
            let asked = timeout_at(deadline, connection.ask(statements, &mut outcomes)).await;
            let applied = outcomes.iter().any(|outcome| outcome.changed > 0);
            let (failure, is_broken) = match asked {
                Ok(Ok(())) => {
                    self.keep(connection);
                    return Ok(Answer { outcomes, again: false, failure: None });
                }
                Ok(Err(trouble)) if trouble.was_overtaken() && !applied && overtaken < MOST_OVERTAKEN => {
                    overtaken += 1;
                    continue;
                }
                Ok(Err(trouble)) => {
                    let is_broken = trouble.is_broken();
                    // What is broken is closed, and so is what another host may do better.
                    if !is_broken && !trouble.is_elsewhere() {
                        self.keep(connection);
                    }
                    (site.unanswered(&trouble, applied), is_broken)
                }
                // It is closed, because the answer may yet come.
                Err(_) => (self.silent(), false),
            };
            return if outcomes.is_empty() {
                Err(Failure { error: failure, is_broken })
            } else {
                Ok(Answer { outcomes, again: false, failure: Some(failure) })
            };
        }
    }
}

/// The reason why not even the first statement was answered.
struct Failure {
    error: StoreError,
    is_broken: bool,
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}
