//! The server behind the URL: which of its hosts to ask, over which connection, and for how long.
//!
//! The hazards:
//!
//! - A connection that hangs must not hold up the next request. The server answers requests on one connection in order,
//!   so silence proves nothing. So while a request is under way, the next one takes a connection of its own.
//! - But a slow connection does not hang, and a new one takes several round trips. So where a connection takes several
//!   requests, the next one is sent twice: behind the others on the kept connection, and over a new one. For the same
//!   reason such a connection is kept when a caller gives up a request on it.
//! - A connection may have ended unnoticed. Then the request is sent once more: see `kept_connection`.
//! - A host may be a replica, or become one, or be silent. Then the next attempt begins with another host.

use super::address::Address;
use super::client::{Cells, Connection};
use super::failure::{Failure, Meaning, Site, Trouble};
use super::statements::Statements;
use crate::store::error::worst;
use crate::store::kept_connection::{self, Kept, once_more};
use crate::store::socket::Place;
use crate::store::{ErrorKind, StoreError};
use futures_util::future::{ready, select};
use rustls::ClientConfig;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a request waits for its answer behind others, before it also takes a new connection.
const HEAD_START: Duration = Duration::from_millis(20);
/// The most connections beside the kept one. A server allows few, and the trial of `store check` sends much at once.
const MOST_BESIDE: usize = 8;
/// How often a request that another transaction overtook is repeated.
const MOST_OVERTAKEN: usize = 4;

pub struct Server<C: Connection> {
    pub address: Address,
    pub site: Site,
    pub statements: Statements,
    pub tls: Arc<ClientConfig>,
    /// A notification has arrived, perhaps through a pooler.
    pub notifies: AtomicBool,
    /// The warning that none arrives was given.
    pub warned: AtomicBool,
    preferred: AtomicUsize,
    /// The most time for a request, including its connection.
    pub bound: Duration,
    beside: Semaphore,
    kept: Kept<Shared<C>>,
}

/// A connection, whose server answers requests in order.
pub struct Shared<C> {
    pub connection: C,
    asked: AtomicUsize,
    /// The number of the last request that was answered.
    answered: AtomicUsize,
}

impl<C: Connection> Shared<C> {
    fn is_idle(&self) -> bool {
        let is_busy = self.asked.load(Ordering::Relaxed) > self.answered.load(Ordering::Relaxed);
        self.connection.is_open() && !is_busy
    }
}

impl<C: Connection> Server<C> {
    pub fn new(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let statements = Statements::of(address);
        let site = Site::new(address, &statements)?;
        Ok(Self {
            address: address.clone(),
            site,
            statements,
            tls: Arc::new(address.tls_mode.config(&address.tls_files)?),
            notifies: AtomicBool::default(),
            warned: AtomicBool::default(),
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
        // The next attempt begins elsewhere: this one may have spent its time on the first host.
        self.preferred.store((first + 1) % places.len(), Ordering::Relaxed);
        Err(worst(&failures))
    }

    async fn connect_to(&self, place: &Place, deadline: Instant) -> Result<C, StoreError> {
        let kind = self.site.dialect.words().kind;
        let site = Site { server: format!("{kind} at {place}"), ..self.site.clone() };
        let silent = |why: String| site.unreachable(&io::Error::new(io::ErrorKind::TimedOut, why));
        let socket = timeout_at(deadline, place.reach(deadline)).await;
        let socket = socket.map_err(|_| silent("no answer in time".to_owned()))?;
        let socket = socket.map_err(|error| site.unreachable(&error))?;
        let begun = timeout_at(deadline, C::begin(self, site.clone(), place, socket)).await;
        // Servers of many other kinds wait for the client to speak first.
        begun.map_err(|_| silent(format!("no answer in time: is it {kind}?")))?
    }

    pub async fn borrow(&self, deadline: Instant) -> Result<Arc<Shared<C>>, StoreError> {
        match self.kept().await.filter(|kept| kept.is_idle()) {
            Some(kept) => Ok(kept),
            None => self.borrow_new(deadline).await,
        }
    }

    async fn kept(&self) -> Option<Arc<Shared<C>>> {
        // Lets the connection's task run, so that it sees what has arrived since, such as the end.
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        self.kept.get().filter(|kept| kept.connection.is_open())
    }

    async fn borrow_new(&self, deadline: Instant) -> Result<Arc<Shared<C>>, StoreError> {
        let connection = self.connect(deadline).await?;
        Ok(Arc::new(Shared { connection, asked: AtomicUsize::default(), answered: AtomicUsize::default() }))
    }

    /// Makes a request over a connection, and keeps the connection if it was answered. After a failure its transaction
    /// may be open, or its server a standby. If the request is given up, a connection that takes several counts as busy
    /// until a later answer, and one that takes one is closed.
    pub async fn over<T, E>(
        &self,
        shared: &Arc<Shared<C>>,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if !C::TAKES_SEVERAL {
            self.kept.forget(shared);
        }
        let number = shared.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = request.await;
        if answer.is_ok() {
            shared.answered.fetch_max(number, Ordering::Relaxed);
            let listens = shared.connection.listens();
            self.kept.keep_unless(shared, |kept| kept.is_idle() && (kept.connection.listens() || !listens));
        } else {
            self.kept.forget(shared);
        }
        answer
    }

    /// Sends the statements of a request, which must be safe to apply twice. A pooler may break off an answer, and what
    /// follows on that connection answers something else. So an answer that `read` does not understand ends the
    /// connection.
    pub async fn ask<T>(
        &self,
        statements: &str,
        read: impl Fn(Vec<Cells>) -> Option<T> + Sync,
    ) -> Result<T, StoreError> {
        let read = &read;
        let deadline = self.deadline();
        let anew = Box::pin(async {
            let permit = timeout_at(deadline, self.beside.acquire()).await;
            let _permit = permit.map_err(|_| StoreError { kind: ErrorKind::NotApplied, ..self.site.silent() })?;
            Ok(self.ask_over(self.borrow_new(deadline).await?, statements, read, deadline).await?)
        });
        let Some(kept) = self.kept().await else { return anew.await };
        if kept.is_idle() {
            let first = self.ask_over(kept, statements, read, deadline);
            return once_more(first, |failure| failure.meaning == Meaning::Lost, anew).await;
        }
        let behind = async { Ok(self.ask_over(kept, statements, read, deadline).await?) };
        let beside = async {
            sleep(HEAD_START).await;
            anew.await
        };
        let (behind, beside) = (pin!(behind), pin!(beside));
        let (first, other) = select(behind, beside).await.factor_first();
        once_more(ready(first), |_| true, other).await
    }

    async fn ask_over<T>(
        &self,
        shared: Arc<Shared<C>>,
        statements: &str,
        read: &(impl Fn(Vec<Cells>) -> Option<T> + Sync),
        deadline: Instant,
    ) -> Result<T, Failure> {
        let request = async {
            let mut answer = self.tell_until(deadline, &shared.connection, statements).await;
            for _ in 0..MOST_OVERTAKEN {
                if answer.as_ref().is_err_and(|failure| failure.meaning == Meaning::Overtaken) {
                    answer = self.tell_until(deadline, &shared.connection, statements).await;
                }
            }
            read(answer?).ok_or_else(|| self.site.unanswered(Trouble::Garbled))
        };
        self.over(&shared, request).await
    }

    /// Sends statements over a connection that the caller alone uses.
    pub async fn tell(&self, connection: &C, statements: &str) -> Result<Vec<Cells>, Failure> {
        self.tell_until(self.deadline(), connection, statements).await
    }

    async fn tell_until(&self, deadline: Instant, connection: &C, statements: &str) -> Result<Vec<Cells>, Failure> {
        let answer = timeout_at(deadline, connection.tell(statements)).await;
        answer.unwrap_or_else(|_| Err(self.site.silent().into()))
    }
}
