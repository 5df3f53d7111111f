//! The server behind the URL: which of its hosts to ask, over which connection, and for how long.
//!
//! The hazards:
//!
//! - A connection that hangs must not hold up the next request. The server answers the requests on one connection one
//!   after another, so silence means nothing here. So while a request is under way, the next one takes a connection of its
//!   own.
//! - A slow connection is not one that hangs, and to make another one takes several round trips. So where a connection
//!   takes several requests, the next one is sent twice: behind the others on the kept connection, and over a new one.
//!   For the same reason such a connection is kept when a caller gives up a request on it: a note of a few requests may
//!   take longer than a renewal may.
//! - A connection may have ended unnoticed. Then the request is sent once more: see `kept_connection`.
//! - A host may be a replica, or become one, or be silent. The next attempt then begins with another host.

use super::client::{Cells, Connection};
use super::failure::{Failure, Meaning, Site};
use super::statements::Statements;
use crate::store::error::{unanswered, worst};
use crate::store::kept_connection::{Kept, once_more};
use crate::store::socket::Place;
use crate::store::{ErrorKind, StoreError};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a request waits for its answer behind another one, before it also makes a new connection.
const HEAD_START: Duration = Duration::from_millis(20);
/// The most connections beside the kept one: a server has few, and the trial of a check asks much at once.
const MOST_BESIDE: usize = 8;
/// How often a request that another transaction overtook is made again.
const MOST_OVERTAKEN: usize = 4;

pub struct Server<C: Connection> {
    pub site: Site,
    pub statements: Statements,
    pub login: C::Login,
    /// Not empty.
    places: Vec<Place>,
    /// The place that worked last.
    preferred: AtomicUsize,
    /// The most time for one request, including its connection.
    pub bound: Duration,
    beside: Semaphore,
    kept: Kept<Shared<C>>,
}

/// A connection, and how many requests are under way on it.
struct Shared<C> {
    connection: C,
    in_use: AtomicUsize,
    /// The last request whose end is known was given up before its answer came.
    is_doubted: AtomicBool,
}

impl<C: Connection> Shared<C> {
    fn is_idle(&self) -> bool {
        let is_busy = self.in_use.load(Ordering::Relaxed) > 0 || self.is_doubted.load(Ordering::Relaxed);
        self.connection.is_open() && !is_busy
    }
}

/// The use of a connection for one request.
pub struct PooledConnection<'a, C: Connection> {
    server: &'a Server<C>,
    shared: Arc<Shared<C>>,
    end: End,
}

/// How a request ended on its connection.
enum End {
    Answered,
    Failed,
    /// Nobody waits for the answer any more.
    GivenUp,
}

impl<'a, C: Connection> PooledConnection<'a, C> {
    fn of(server: &'a Server<C>, shared: Arc<Shared<C>>) -> Self {
        shared.in_use.fetch_add(1, Ordering::Relaxed);
        Self { server, shared, end: End::Failed }
    }

    pub fn connection(&self) -> &C {
        &self.shared.connection
    }

    pub fn give_back(mut self) {
        self.end = End::Answered;
    }
}

impl<C: Connection> Drop for PooledConnection<'_, C> {
    fn drop(&mut self) {
        self.shared.in_use.fetch_sub(1, Ordering::Relaxed);
        match self.end {
            End::Answered => {
                self.shared.is_doubted.store(false, Ordering::Relaxed);
                let listens = self.shared.connection.listens();
                let is_better = |kept: &Shared<C>| kept.is_idle() && (kept.connection.listens() || !listens);
                self.server.kept.keep_unless(&self.shared, is_better);
            }
            End::GivenUp if C::TAKES_SEVERAL => self.shared.is_doubted.store(true, Ordering::Relaxed),
            End::Failed | End::GivenUp => {
                self.server.kept.forget(&self.shared);
            }
        }
    }
}

impl<C: Connection> Server<C> {
    /// Prepares the server. Makes no connection yet.
    pub fn new(places: &[Place], site: Site, statements: Statements, login: C::Login, bound: Duration) -> Self {
        Self {
            site,
            statements,
            login,
            places: places.to_vec(),
            preferred: AtomicUsize::new(0),
            bound,
            beside: Semaphore::new(MOST_BESIDE),
            kept: Kept::default(),
        }
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + self.bound
    }

    /// A new connection, to a server that accepts writes: each place is tried once.
    pub async fn connect(&self, deadline: Instant) -> Result<C, StoreError> {
        let first = self.preferred.load(Ordering::Relaxed);
        let count = self.places.len();
        let mut failures = Vec::new();
        for tried in 0..count {
            let index = (first + tried) % count;
            let place = &self.places[index];
            // A host that is silent must leave time for the others.
            let left = u32::try_from(count - tried).unwrap_or(u32::MAX);
            let share = Instant::now() + deadline.saturating_duration_since(Instant::now()) / left;
            let site = Site { server: format!("{} at {place}", C::KIND), ..self.site.clone() };
            let (server, reached) = (site.server.clone(), AtomicBool::new(false));
            match timeout_at(share, C::begin(&self.login, site, place, share, &reached)).await {
                Ok(Ok(connection)) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Ok(Err(failure)) => failures.push(failure),
                Err(_) => failures.push(unanswered(&server, reached.into_inner(), C::KIND)),
            }
        }
        // The next attempt begins elsewhere: this one may have spent its time on the first host.
        self.preferred.store((first + 1) % count, Ordering::Relaxed);
        Err(worst(&failures))
    }

    /// The kept connection if it is idle, or a new one.
    pub async fn borrow(&self, deadline: Instant) -> Result<PooledConnection<'_, C>, StoreError> {
        match self.kept().await.filter(|kept| kept.is_idle()) {
            Some(kept) => Ok(PooledConnection::of(self, kept)),
            None => self.borrow_new(deadline).await,
        }
    }

    /// The kept connection, unless it is known to have ended.
    async fn kept(&self) -> Option<Arc<Shared<C>>> {
        // Lets the connection's task be woken and run, so that it sees what has arrived since, such as the end.
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        self.kept.get().filter(|kept| kept.connection.is_open())
    }

    async fn borrow_new(&self, deadline: Instant) -> Result<PooledConnection<'_, C>, StoreError> {
        let connection = self.connect(deadline).await?;
        Ok(PooledConnection::of(
            self,
            Arc::new(Shared { connection, in_use: AtomicUsize::new(0), is_doubted: AtomicBool::new(false) }),
        ))
    }

    /// Sends the statements of a request, which must be safe to apply twice.
    ///
    /// A pooler may break off an answer, and what follows on that connection answers something else. So an answer that
    /// `read` does not understand is the end of the connection.
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
            let first = self.ask_over(PooledConnection::of(self, kept), statements, read, deadline);
            return once_more(first, |failure| failure.meaning == Meaning::Lost, anew).await;
        }
        if !C::TAKES_SEVERAL {
            return anew.await;
        }
        let behind = async { Ok(self.ask_over(PooledConnection::of(self, kept), statements, read, deadline).await?) };
        let beside = async {
            sleep(HEAD_START).await;
            anew.await
        };
        let (mut behind, mut beside) = (pin!(behind), pin!(beside));
        let (first, second): (Result<_, StoreError>, _) = tokio::select! {
            answer = &mut behind => if answer.is_ok() { return answer } else { (answer, beside.await) },
            answer = &mut beside => if answer.is_ok() { return answer } else { (answer, behind.await) },
        };
        match (first, second) {
            (Err(first), Err(second)) if first.kind == ErrorKind::Unknown => {
                Err(StoreError { kind: ErrorKind::Unknown, ..second })
            }
            (_, second) => second,
        }
    }

    async fn ask_over<T>(
        &self,
        mut pooled: PooledConnection<'_, C>,
        statements: &str,
        read: &(impl Fn(Vec<Cells>) -> Option<T> + Sync),
        deadline: Instant,
    ) -> Result<T, Failure> {
        let transaction = pooled.connection().transaction(statements);
        pooled.end = End::GivenUp;
        let mut attempt = 0;
        let answer = loop {
            match timeout_at(deadline, pooled.connection().tell(&transaction)).await {
                Ok(Err(failure)) if failure.meaning == Meaning::Overtaken && attempt < MOST_OVERTAKEN => attempt += 1,
                Ok(answer) => {
                    let garbled = || Failure { meaning: Meaning::Lost, error: self.site.not_understood() };
                    break answer.and_then(|rows| read(rows).ok_or_else(garbled));
                }
                Err(_) => break Err(self.site.silent().into()),
            }
        };
        // After a failure its transaction may be open, or its server a standby by now.
        pooled.end = if answer.is_ok() { End::Answered } else { End::Failed };
        answer
    }

    /// Sends statements over a connection of one's own, outside of an election.
    pub async fn tell(&self, connection: &C, statements: &str) -> Result<Vec<Cells>, Failure> {
        let answer = timeout_at(self.deadline(), connection.tell(statements)).await;
        answer.unwrap_or_else(|_| Err(self.site.silent().into()))
    }
}
