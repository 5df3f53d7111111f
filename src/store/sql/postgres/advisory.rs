//! `advisory_lock=N`: the session advisory lock that is held in addition to the lease, so that leaderrun and programs
//! that elect with `pg_try_advisory_lock(N)` exclude each other.
//!
//! The hazards:
//!
//! - The lock lives as long as its session, and the session as long as its connection. So it would be free as soon as
//!   the candidate is killed, while the tree still runs. Therefore guard and backstop inherit an [`Anchor`] of each
//!   session of ours that may hold the lock, and have it before the session asks for the lock.
//! - A connection may be lost to us and not to the server, which then keeps the lock for nobody. So we remember which
//!   sessions may hold the lock, until the server says that one of them holds it or that none does.
//! - To end the session that holds the lock frees it, and our tree may live. So a leader has another session wait for
//!   the lock, and ends the one that holds it only once nothing but sessions of ours is before the other one in the
//!   server's queue: then the server passes the lock on. While another program waits before ours, the lock stays where
//!   it is. The server keeps it for a lease, longer than the leadership can last without a renewal.
//! - A session that waits goes on waiting when the renewal that opened it is given up, and may get the lock after that.
//!   So all renewals share one such session and its wait, and it stays anchored until the server gives the wait up.
//! - The order to end a session may arrive late, when that session has answered again. Then the lock passes on to the one
//!   that waits, which is anchored too; and if none waits any more, the order does nothing.
//! - A session may hang, or just be slow. So once it has been silent for a while it is asked still, but another one is
//!   prepared at the same time; and at once if it was silent before. The first that is known to hold the lock counts.
//! - The session may end while we lead: a restart, `pg_terminate_backend`. The connection does not tell us reliably. So
//!   each renewal makes the server confirm that our backend holds the lock, and takes the lock again if it does not. If
//!   another program was faster, the leadership ends.
//! - The whole machine may vanish, or all our processes freeze. So the server ends a session on which nothing was asked
//!   for a lease. Before PostgreSQL 14 it cannot; there it checks whether the machine is there, but not before the lease
//!   ends. So a renewal counts only if a question that it asked itself was answered on the session that holds the lock.
//! - Behind a pooler in transaction mode, the lock would belong to the pooler's next client. So it is refused there.

use super::Connection;
use super::watch::hears;
use crate::lease::{self, Candidate, Term};
use crate::store::anchor::Anchor;
use crate::store::error::in_short;
use crate::store::foreign_lock::{ForeignLock, Hold};
use crate::store::kept_connection;
use crate::store::sql::client::{Cells, Connection as _, value};
use crate::store::sql::failure::{Failure, Meaning};
use crate::store::sql::server::Server;
use crate::store::{Holder, StoreError};
use crate::time::millis;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const PAUSE: Duration = Duration::from_millis(20);
/// Each doubt makes a renewal due at once. While the server is away, doubts must not follow each other at once.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);

pub struct Advisory {
    key: i64,
    server: Arc<Server<Connection>>,
    anchor: Anchor,
    /// The sessions of ours that may hold the lock, all of them anchored. The first is the last that was known to hold
    /// it.
    own: Mutex<Vec<Arc<Session>>>,
    /// The first has let its last question wait for too long.
    is_silent: AtomicBool,
}

struct Session {
    /// As [`lock_holder`] shows it.
    name: String,
    connection: Arc<Connection>,
    /// Its wait for the lock, in the server's queue, which begins once this is polled.
    granted: Shared<BoxFuture<'static, Result<(), Arc<Failure>>>>,
}

impl Session {
    /// None while it waits.
    fn end_of_wait(&self) -> Option<Result<(), Arc<Failure>>> {
        self.granted.clone().now_or_never()
    }

    /// It neither waits for the lock nor holds it.
    fn gave_up(&self) -> bool {
        self.end_of_wait().is_some_and(|end| end.is_err_and(|failure| failure.meaning == Meaning::Locked))
    }
}

impl Advisory {
    pub fn new(key: i64, server: &Arc<Server<Connection>>) -> Result<Self, StoreError> {
        let anchor = Anchor::new()
            .map_err(|error| StoreError::not_applied(format!("cannot create a pair of sockets: {error}")))?;
        Ok(Self { key, server: Arc::clone(server), anchor, own: Mutex::default(), is_silent: AtomicBool::default() })
    }

    /// Changes which sessions may hold the lock, and which connections the helpers keep.
    fn keep(&self, change: impl FnOnce(&mut Vec<Arc<Session>>)) -> Result<(), StoreError> {
        let mut own = self.own.lock();
        let mut changed = own.clone();
        change(&mut changed);
        let anchored = self.anchor.hold(changed.iter().map(|session| &session.connection.descriptor));
        anchored.map_err(|error| {
            StoreError::not_applied(format!("cannot hand the connection over to the helpers: {error}"))
        })?;
        *own = changed;
        Ok(())
    }

    async fn take_for(&self, lease: Duration) -> Result<Hold, StoreError> {
        let deadline = self.server.deadline();
        loop {
            self.keep(|own| own.retain(|session| !session.gave_up()))?;
            let held = self.own.lock().first().cloned();
            let mut holds = pin!(self.holds(held.as_deref()));
            let was_silent = self.is_silent.load(Ordering::Relaxed);
            let patience = if was_silent { Duration::ZERO } else { kept_connection::patience(self.server.bound) };
            let answer = timeout(patience, &mut holds).await;
            if answer == Ok(true) {
                return Ok(Hold::Held);
            }
            self.is_silent.store(answer.is_err(), Ordering::Relaxed);
            tokio::select! {
                true = holds, if answer.is_err() => return Ok(Hold::Held),
                passed = self.pass_on(lease, deadline) => if let Some(holder) = passed? {
                    return Ok(Hold::Taken(holder));
                }
            }
        }
    }

    async fn holds(&self, session: Option<&Session>) -> bool {
        let Some(session) = session else { return false };
        let question = format!("{} AND pid = pg_backend_pid()", lock_holder(self.key));
        let answer = session.connection.tell(&question).await;
        self.is_silent.store(false, Ordering::Relaxed);
        answer.is_ok_and(|rows| rows.len() == 1)
    }

    /// Has the lock passed on to a session that answers. Some if another program holds it.
    async fn pass_on(&self, lease: Duration, deadline: Instant) -> Result<Option<Holder>, StoreError> {
        let waiting = waiting(&self.own.lock());
        let next = match waiting {
            Some(next) => next,
            None => self.open(lease, deadline).await?,
        };
        let stuck = || {
            StoreError::not_applied(format!(
                "the session that holds {} does not answer, and cannot pass the lock on to another one: does a program \
                 wait for it?",
                self.name()
            ))
        };
        let granted = async {
            match next.granted.clone().await {
                Ok(()) => {
                    self.is_silent.store(false, Ordering::Relaxed);
                    self.keep(|own| own.retain(|session| Arc::ptr_eq(session, &next))).map(|()| None)
                }
                Err(failure) if failure.meaning == Meaning::Locked => Err(stuck()),
                Err(failure) => Err(failure.error.clone()),
            }
        };
        let refused = async {
            loop {
                sleep(PAUSE).await;
                let rows = self.server.ask(&self.end_before(&next), Some).await?;
                if let Some(holder) = self.other_program(&rows) {
                    return Ok(Some(holder));
                }
            }
        };
        let holder = tokio::select! {
            answer = granted => answer,
            answer = refused => answer,
            () = sleep_until(deadline) => Err(stuck()),
        }?;
        if holder.is_some() {
            self.end_all().await?;
        }
        Ok(holder)
    }

    /// Another session, ready to wait for the lock; or the one that another renewal has opened meanwhile.
    async fn open(&self, lease: Duration, deadline: Instant) -> Result<Arc<Session>, StoreError> {
        let server = &*self.server;
        let connection = Arc::new(server.connect(deadline).await?);
        if !connection.direct && !hears(server, &connection).await? {
            return Err(StoreError::misconfigured(format!(
                "advisory_lock= needs a session of its own, and {} gives none, as a pooler in transaction mode: name \
                 the server itself",
                server.site.server
            )));
        }
        let question = format!("SELECT {SESSION} FROM pg_stat_activity WHERE pid = pg_backend_pid()");
        let name = value(&server.until(deadline, connection.tell(&question)).await?, 0).to_owned();
        let (server, waits, wait) = (Arc::clone(&self.server), Arc::clone(&connection), taking(self.key, lease));
        let granted = async move { server.tell(&waits, &wait).await.map(drop).map_err(Arc::new) };
        let mut next = Arc::new(Session { name, connection, granted: granted.boxed().shared() });
        self.keep(|own| match waiting(own) {
            Some(other) => next = other,
            None => own.push(Arc::clone(&next)),
        })?;
        Ok(next)
    }

    fn names(&self) -> String {
        self.own.lock().iter().map(|session| format!("'{}'", session.name)).collect::<Vec<_>>().join(", ")
    }

    /// Ends the sessions of ours that are before `next` in the server's queue, once it waits there and nothing else is
    /// before it. Shows the holder.
    fn end_before(&self, next: &Session) -> String {
        let (process, own) = (process(&next.name), self.names());
        // In one statement, because `next` may begin to wait between two.
        format!(
            "WITH queue AS MATERIALIZED (SELECT pg_blocking_pids({process}) AS pids) \
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity, queue WHERE pid = ANY (pids) AND NOT EXISTS \
             (SELECT FROM unnest(pids) AS before LEFT JOIN pg_stat_activity ON pid = before WHERE {SESSION} NOT IN ({own})); {}",
            lock_holder(self.key)
        )
    }

    async fn end_all(&self) -> Result<(), StoreError> {
        let own = self.names();
        if !own.is_empty() {
            let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {SESSION} IN ({own})");
            self.server.ask(&end, Some).await?;
        }
        self.keep(Vec::clear)
    }

    /// The holder, if that is none of our sessions.
    fn other_program(&self, rows: &[Cells]) -> Option<Holder> {
        let [session, name, host] = [0, 1, 2].map(|column| value(rows, column));
        if session.is_empty() || self.own.lock().iter().any(|own| own.name == session) {
            return None;
        }
        Some(Holder {
            owner: if name.is_empty() { "a program without a name".to_owned() } else { in_short(name) },
            host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            foreign_lock: Some(format!("{}, backend {}", self.name(), process(session))),
            ..Holder::default()
        })
    }

    /// Frees the lock. The tree must be dead.
    async fn free(&self) -> Result<(), StoreError> {
        let own = self.own.lock().clone();
        if let [session] = &own[..] {
            // To end the session frees it too, but later.
            let unlock = format!("SELECT pg_advisory_unlock({})", self.key);
            let freed = session.connection.tell(&unlock);
            if matches!(timeout(self.server.bound / 3, freed).await, Ok(Ok(_))) {
                return self.keep(Vec::clear);
            }
        }
        self.end_all().await
    }
}

#[async_trait::async_trait]
impl ForeignLock for Advisory {
    fn name(&self) -> String {
        format!("advisory lock {}", self.key)
    }

    async fn holder(&self, _candidate: Option<&Candidate>) -> Result<Option<Holder>, StoreError> {
        Ok(self.other_program(&self.server.ask(&lock_holder(self.key), Some).await?))
    }

    /// If it was lost and could be taken again, nobody else has it now: COMMAND goes on.
    async fn take(&self, candidate: &Candidate, _term: Term, again: bool) -> Result<Hold, StoreError> {
        if !again {
            // No tree lives, so what is left of an earlier leadership need not pass the lock on.
            self.free().await?;
        }
        self.take_for(candidate.lease).await
    }

    async fn let_go(&self, _candidate: &Candidate, _term: Term) -> Result<(), StoreError> {
        self.free().await
    }

    async fn doubted(&self) {
        let held = self.own.lock().first().map(|session| Arc::clone(&session.connection));
        match held.filter(|connection| connection.is_open()).map(|connection| connection.inbox.resubscribe()) {
            Some(mut inbox) => while inbox.recv().await != Err(RecvError::Closed) {},
            None => sleep(DOUBT_PAUSE).await,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.anchor.descriptor())
    }

    async fn try_out(&self) -> Result<Option<Holder>, StoreError> {
        match self.take_for(lease::DEFAULT_LEASE).await? {
            Hold::Held | Hold::Lost => {
                self.free().await?;
                Ok(None)
            }
            Hold::Taken(holder) => Ok(Some(holder)),
        }
    }
}

/// A session of the server: its process, and when that started, because another process may get its number later.
const SESSION: &str = "concat(pid, ' ', (extract(epoch FROM backend_start) * 1000000)::bigint)";

/// The session of ours that waits for the lock, or has got it meanwhile.
fn waiting(own: &[Arc<Session>]) -> Option<Arc<Session>> {
    own.iter().skip(1).rfind(|session| session.end_of_wait().is_none_or(|end| end.is_ok())).cloned()
}

fn process(session: &str) -> &str {
    session.split(' ').next().unwrap_or_default()
}

/// The holder of an advisory lock: session, application name, host. PostgreSQL keeps the halves of the key apart.
fn lock_holder(key: i64) -> String {
    let bits = u64::from_ne_bytes(key.to_ne_bytes());
    let (high, low) = (bits >> 32, bits & 0xffff_ffff);
    format!(
        "SELECT {SESSION}, application_name, host(client_addr) \
         FROM pg_locks AS k LEFT JOIN pg_stat_activity USING (pid) WHERE k.locktype = 'advisory' AND k.objsubid = 1 \
         AND k.granted AND k.classid::bigint = {high} AND k.objid::bigint = {low} \
         AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())"
    )
}

/// How often the server asks whether we are there, and the silence after which it takes us for dead, in seconds.
///
/// It must not do so before the lease has ended. It counts from when it last heard from us, which may be one interval
/// before we fell silent. So of four intervals three are left, and they exceed the lease.
fn patience(lease: Duration) -> (u64, u64) {
    let interval = lease.as_secs() / 3 + 1;
    (interval, interval * 4)
}

/// Waits for the lock, after all that wait already.
fn taking(key: i64, lease: Duration) -> String {
    let (interval, silence) = patience(lease);
    // At least one, because zero is no limit. Each renewal asks something on this session.
    let idle = millis(lease).max(1);
    format!(
        "SELECT (SELECT true FROM pg_advisory_lock({key})), set_config('tcp_keepalives_idle', '{interval}', false), \
         set_config('tcp_keepalives_interval', '{interval}', false), set_config('tcp_keepalives_count', '4', false), \
         set_config('tcp_user_timeout', '{silence}s', false), \
         CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL \
         THEN set_config('idle_session_timeout', '{idle}', false) END"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_server_is_patient_for_a_whole_lease(millis in 1_u64..86_400_000) {
            let lease = Duration::from_millis(millis);
            let (interval, silence) = patience(lease);
            prop_assert!(Duration::from_secs(silence - interval) >= lease);
            prop_assert!(interval > 0 && Duration::from_secs(silence) < lease * 2 + Duration::from_secs(8));
        }
    }
}
