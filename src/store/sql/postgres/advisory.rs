//! `advisory_lock=N`: the session advisory lock that is held in addition to the lease, so that leaderrun and programs
//! that elect with `pg_try_advisory_lock(N)` exclude each other.
//!
//! The hazards:
//!
//! - The lock lives as long as its session, and the session as long as its connection. So it would be free as soon as
//!   the candidate is killed, while the tree still runs. Therefore guard and backstop inherit an [`Anchor`] of it.
//! - A connection may be lost to us and not to the server, which then keeps the lock for nobody. So we remember which
//!   sessions were ours, and end such a session.
//! - The session may end while we lead: a restart, `pg_terminate_backend`. Then only the connection can tell us, and
//!   not reliably. So each renewal makes the server confirm that our backend holds the lock, and takes the lock again
//!   if it does not. If another program was faster, the leadership ends.
//! - The whole machine may vanish. So the server is configured to check whether we are there: not before the lease
//!   ends.
//! - Behind a pooler in transaction mode, the lock would belong to the pooler's next client. So it is refused there.

use super::Connection;
use super::watch::is_dedicated;
use crate::lease::{self, Candidate, Session, Term};
use crate::store::anchor::Anchor;
use crate::store::error::in_short;
use crate::store::foreign_lock::{ForeignLock, Hold};
use crate::store::sql::client::{Cells, Connection as _, is_true, value};
use crate::store::sql::failure::Failure;
use crate::store::sql::server::Server;
use crate::store::{ErrorKind, Holder, StoreError};
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout, timeout_at};

/// The pause between two attempts while a session of ours ends.
const PAUSE: Duration = Duration::from_millis(20);
/// Each doubt makes a renewal due at once. While the server is away, they must not follow each other like that.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);
/// How many sessions to remember. The server has noticed by then that the older ones are lost.
const MOST_OWN: usize = 16;

pub struct Advisory {
    key: i64,
    server: Arc<Server<Connection>>,
    anchor: Anchor,
    /// Two sessions of ours would keep each other out.
    gate: tokio::sync::Mutex<()>,
    /// Some while we hold the lock, as far as we know.
    held: Mutex<Option<Arc<Connection>>>,
    /// Our sessions that may hold it although we lost them, and the last one, as [`lock_holder`] shows them.
    own: Mutex<Vec<String>>,
}

impl Advisory {
    pub fn new(key: i64, server: &Arc<Server<Connection>>) -> Result<Self, StoreError> {
        let anchor = Anchor::new().map_err(|error| {
            StoreError::not_applied(format!("the operating system gives no pair of sockets: {error}"))
        })?;
        Ok(Self {
            key,
            server: Arc::clone(server),
            anchor,
            gate: tokio::sync::Mutex::default(),
            held: Mutex::default(),
            own: Mutex::default(),
        })
    }

    fn held(&self) -> Option<Arc<Connection>> {
        self.held.lock().clone().filter(|connection| connection.is_open())
    }

    /// Closes the connection whose session held the lock.
    fn let_go(&self) {
        *self.held.lock() = None;
        self.anchor.let_go();
    }

    async fn take_for(&self, lease: Duration) -> Result<Hold, StoreError> {
        let (server, key) = (&*self.server, self.key);
        let deadline = server.deadline();
        let silent = || StoreError { kind: ErrorKind::NotApplied, ..server.site.silent() };
        let _alone = timeout_at(deadline, self.gate.lock()).await.map_err(|_| silent())?;
        if let Some(connection) = self.held() {
            let mine = format!("{} AND pid = pg_backend_pid()", lock_holder(key));
            // If the connection is silent, there must be time left for another one. It gets a third of the time, more
            // than the usual patience (`kept_connection`), because to give it up is to give up the lock.
            if matches!(timeout(server.bound / 3, connection.tell(&mine)).await, Ok(Ok(rows)) if rows.len() == 1) {
                return Ok(Hold::Held);
            }
        }
        self.let_go();
        let connection = server.connect(deadline).await?;
        let unfit = || {
            format!(
                "advisory_lock= wants a session of its own, and {} does not give one, as a pooler in transaction mode \
                 does not: name the server itself",
                server.site.server
            )
        };
        match is_dedicated(server, &connection).await? {
            Some(true) => {}
            Some(false) => return Err(StoreError::misconfigured(unfit())),
            None => return Err(StoreError::not_applied(unfit())),
        }
        let ask = async |statement: &str| -> Result<Vec<Cells>, StoreError> {
            let answer = timeout_at(deadline, connection.tell(statement)).await;
            answer.map_err(|_| silent())?.map_err(|Failure { error, .. }| error)
        };
        let own = ask(&format!("SELECT {SESSION} FROM pg_stat_activity WHERE pid = pg_backend_pid()")).await?;
        let session = value(&own, 0).to_owned();
        // From here on this session may hold the lock.
        self.own.lock().insert(0, session.clone());
        self.own.lock().truncate(MOST_OWN);
        loop {
            if is_true(&ask(&attempt(key, lease)).await?, 0) {
                let anchored = self.anchor.hold(&connection.descriptor);
                anchored.map_err(|error| {
                    StoreError::not_applied(format!("the operating system keeps no descriptor: {error}"))
                })?;
                *self.own.lock() = vec![session];
                *self.held.lock() = Some(Arc::new(connection));
                return Ok(Hold::Held);
            }
            let rows = ask(&lock_holder(key)).await?;
            let holder = value(&rows, 0);
            if holder.is_empty() {
                continue;
            }
            if !self.own.lock().iter().any(|own| own == holder) {
                self.own.lock().retain(|own| *own != session);
                return Ok(Hold::Taken(self.stranger(&rows)));
            }
            server
                .ask(
                    &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {SESSION} = '{holder}'"),
                    Some,
                )
                .await?;
            sleep(PAUSE).await;
        }
    }

    fn stranger(&self, rows: &[Cells]) -> Holder {
        let [session, name, host] = [0, 1, 2].map(|column| value(rows, column));
        let process = session.split(' ').next().unwrap_or_default();
        Holder {
            owner: if name.is_empty() { "a program without a name".to_owned() } else { in_short(name) },
            host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            foreign_lock: Some(format!("{}, backend {process}", self.name())),
            ..Holder::default()
        }
    }

    /// Frees the lock, so that the next one to ask finds it free. The tree must be dead.
    async fn free(&self) {
        if let Some(connection) = self.held() {
            // Closing the connection frees it too, but not at once.
            let unlock = format!("SELECT pg_advisory_unlock({})", self.key);
            let freed = connection.tell(&unlock);
            if matches!(timeout(self.server.bound / 3, freed).await, Ok(Ok(_))) {
                self.own.lock().clear();
            }
        }
        self.let_go();
    }
}

#[async_trait::async_trait]
impl ForeignLock for Advisory {
    fn name(&self) -> String {
        format!("advisory lock {}", self.key)
    }

    async fn holder(&self, _session: Option<&Session>) -> Result<Option<Holder>, StoreError> {
        let own = self.own.lock().clone();
        let rows = self.server.ask(&lock_holder(self.key), Some).await?;
        Ok((!rows.is_empty() && !own.iter().any(|own| own == value(&rows, 0))).then(|| self.stranger(&rows)))
    }

    /// If it was lost and could be taken again, nobody else has it now: COMMAND goes on.
    async fn take(&self, candidate: &Candidate, _term: Term, _again: bool) -> Result<Hold, StoreError> {
        self.take_for(candidate.lease).await
    }

    async fn let_go(&self, _candidate: &Candidate, _term: Term) -> Result<(), StoreError> {
        self.free().await;
        Ok(())
    }

    async fn doubted(&self) {
        let inbox = self.held().map(|connection| connection.inbox());
        match inbox {
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
                self.free().await;
                Ok(None)
            }
            Hold::Taken(holder) => Ok(Some(holder)),
        }
    }
}

/// A session of the server: its process, and when that started, because another process may get its number later.
const SESSION: &str = "concat(pid, ' ', (extract(epoch FROM backend_start) * 1000000)::bigint)";

/// The holder of an advisory lock: its session, its name for itself, and its host. PostgreSQL keeps the two halves of
/// the key apart.
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

/// How often the server asks whether we are there, and after how long a silence it takes us for dead: in seconds.
///
/// Not before the lease has ended. The server counts from when it last heard from us, which may be one interval before
/// we fell silent. So of four intervals three are left, and they are the lease.
fn patience(lease: Duration) -> (u64, u64) {
    let interval = lease.as_secs() / 3 + 1;
    (interval, interval * 4)
}

fn attempt(key: i64, lease: Duration) -> String {
    let (interval, silence) = patience(lease);
    format!(
        "SELECT pg_try_advisory_lock({key}), set_config('tcp_keepalives_idle', '{interval}', false), \
         set_config('tcp_keepalives_interval', '{interval}', false), set_config('tcp_keepalives_count', '4', false), \
         set_config('tcp_user_timeout', '{silence}s', false), \
         CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL \
         THEN set_config('idle_session_timeout', '0', false) END"
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
