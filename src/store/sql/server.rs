//! The server behind the URL: which of its hosts to ask, over which connection, and for how long.
//!
//! The hazards:
//!
//! - A connection that hangs must not hold up later requests, and it may have ended unnoticed: see `kept_connection`.
//! - But a slow connection does not hang, and a new one takes several round trips. So once the kept one has been silent
//!   for a while, a request is sent twice: over it and over a new one. If it does not
//!   [take several](Connection::TAKES_SEVERAL), a request takes a new one while another is under way, or each would wait
//!   longer than the one before.
//! - A host may be a replica, or become one, or be silent. Then the next one is tried.

use super::address::Address;
use super::client::{Cells, Connection};
use super::dialect::Dialect;
use super::failure::{Failure, Meaning, Site, Trouble};
use super::statements::Statements;
use crate::store::error::worst;
use crate::store::kept_connection::{self, Kept, Pending, once_more};
use crate::store::socket::Place;
use crate::store::{ErrorKind, StoreError};
use futures_util::future::{ready, select};
use rustls::ClientConfig;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// The most connections beside the kept one. A server allows few, and the trial of `store check` sends much at once.
const MOST_BESIDE: usize = 8;
/// How often a request that another transaction overtook is repeated.
const MOST_OVERTAKEN: usize = 4;

pub struct Server<C: Connection> {
    pub address: Address,
    pub site: Site,
    pub statements: Statements,
    pub tls: Arc<ClientConfig>,
    /// The place that took the last connection, which the next one tries first.
    preferred: AtomicUsize,
    /// The most time for a request, including its connection.
    pub bound: Duration,
    beside: Semaphore,
    kept: Kept<Shared<C>>,
}

pub struct Shared<C> {
    pub connection: C,
    pending: Pending,
}

impl<C: Connection> Server<C> {
    pub fn new(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let statements = Statements::of(address);
        let is_open = address.dialect == Dialect::MySql || address.schema == "public";
        let site = Site {
            dialect: address.dialect,
            server: address.to_string(),
            user: address.user()?,
            database: address.database.clone(),
            table: statements.table.clone(),
            schema: if is_open { String::new() } else { statements.schema.clone() },
        };
        Ok(Self {
            address: address.clone(),
            site,
            statements,
            tls: Arc::new(address.tls_mode.config(&address.tls_files)?),
            preferred: AtomicUsize::new(0),
            bound: kept_connection::bound(request_timeout),
            beside: Semaphore::new(MOST_BESIDE),
            kept: Kept::default(),
        })
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + self.bound
    }

    /// Each place is tried once.
    pub async fn connect(&self, deadline: Instant) -> Result<C, StoreError> {
        let places = &self.address.places;
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for tried in 0..places.len() {
            let index = (first + tried) % places.len();
            // A host that is silent must leave time for the others.
            let left = u32::try_from(places.len() - tried).unwrap_or(u32::MAX);
            let share = Instant::now() + deadline.saturating_duration_since(Instant::now()) / left;
            match self.connect_to(&places[index], share).await {
                Ok(connection) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(worst(&failures))
    }

    async fn connect_to(&self, place: &Place, deadline: Instant) -> Result<C, StoreError> {
        let kind = self.site.dialect.kind();
        let site = Site { server: format!("{kind} at {place}"), ..self.site.clone() };
        let silent = |why: String| site.unreachable(&io::Error::new(io::ErrorKind::TimedOut, why));
        let socket = timeout_at(deadline, place.reach(deadline)).await;
        let socket = socket.map_err(|_| silent("no answer in time".to_owned()))?;
        let socket = socket.map_err(|error| site.unreachable(&error))?;
        let begun = timeout_at(deadline, C::begin(self, site.clone(), place, socket)).await;
        // Servers of many other kinds wait for the client to speak first.
        begun.map_err(|_| silent(format!("no answer in time: is it {kind}?")))?
    }

    pub async fn borrow(&self) -> Result<Arc<Shared<C>>, StoreError> {
        match self.kept().await.filter(|kept| self.is_lively(kept)) {
            Some(kept) => Ok(kept),
            None => self.borrow_new(self.deadline()).await,
        }
    }

    async fn kept(&self) -> Option<Arc<Shared<C>>> {
        // Lets the connection's task run, so that it sees what has arrived since, such as the end.
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        self.kept.get().filter(|kept| kept.connection.is_open())
    }

    fn is_lively(&self, shared: &Shared<C>) -> bool {
        shared.connection.is_open() && !shared.pending.is_silent(kept_connection::patience(self.bound))
    }

    async fn borrow_new(&self, deadline: Instant) -> Result<Arc<Shared<C>>, StoreError> {
        let shared = Arc::new(Shared { connection: self.connect(deadline).await?, pending: Pending::default() });
        self.kept.keep_unless(&shared, |kept| self.is_lively(kept));
        Ok(shared)
    }

    /// Sends the statements of a request, which must be safe to apply twice. A pooler may break off an answer, and what
    /// follows on that connection answers something else. So an answer that `read` does not understand ends the
    /// connection.
    pub async fn ask<T>(
        &self,
        statements: &str,
        read: impl Fn(Vec<Cells>) -> Option<T> + Sync,
    ) -> Result<T, StoreError> {
        let deadline = self.deadline();
        let anew = async {
            let permit = timeout_at(deadline, self.beside.acquire()).await;
            let _permit = permit.map_err(|_| StoreError { kind: ErrorKind::NotApplied, ..self.site.silent() })?;
            let shared = self.borrow_new(deadline).await?;
            Ok(self.ask_over(shared, statements, &read, deadline).await?)
        };
        let kept = self.kept().await.filter(|kept| C::TAKES_SEVERAL || kept.pending.is_idle());
        let Some(kept) = kept else { return anew.await };
        let is_lively = self.is_lively(&kept);
        let first = self.ask_over(kept, statements, &read, deadline);
        if is_lively {
            return once_more(first, |failure| failure.meaning == Meaning::Lost, anew).await;
        }
        let (first, anew) = (pin!(async { Ok(first.await?) }), pin!(anew));
        let (answer, other) = select(first, anew).await.factor_first();
        once_more(ready(answer), |_| true, other).await
    }

    async fn ask_over<T>(
        &self,
        shared: Arc<Shared<C>>,
        statements: &str,
        read: &(impl Fn(Vec<Cells>) -> Option<T> + Sync),
        deadline: Instant,
    ) -> Result<T, Failure> {
        let given_up = |is_silent| {
            if is_silent {
                self.kept.forget(&shared);
            }
        };
        let asked = shared.pending.begin(kept_connection::patience(self.bound), given_up);
        let request = async {
            let mut answer = shared.connection.tell(statements).await;
            for _ in 0..MOST_OVERTAKEN {
                if answer.as_ref().is_err_and(|failure| failure.meaning == Meaning::Overtaken) {
                    answer = shared.connection.tell(statements).await;
                }
            }
            read(answer?).ok_or_else(|| self.site.unanswered(Trouble::Garbled))
        };
        let answer = self.until(deadline, request).await;
        if answer.is_ok() {
            asked.answered();
        } else {
            // Its transaction may be open, or its server a standby.
            self.kept.forget(&shared);
        }
        answer
    }

    /// Sends statements over one connection.
    pub async fn tell(&self, connection: &C, statements: &str) -> Result<Vec<Cells>, Failure> {
        self.until(self.deadline(), connection.tell(statements)).await
    }

    pub async fn until<T>(
        &self,
        deadline: Instant,
        request: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        timeout_at(deadline, request).await.unwrap_or_else(|_| Err(self.site.silent().into()))
    }
}
