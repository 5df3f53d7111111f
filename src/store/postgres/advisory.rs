//! `advisory_lock=N`: the session advisory lock that is held in addition to the lease, so that leaderrun and programs
//! that elect with `pg_try_advisory_lock(N)` exclude each other.
//!
//! The hazards:
//!
//! - The lock lives as long as its session, and the session as long as its connection. So it would be free as soon as
//!   the candidate is killed, while the tree still runs. Therefore guard and backstop inherit an `Anchor` of it.
//! - The session may end while we lead: a restart, `pg_terminate_backend`. Then only the connection can tell us, and
//!   not reliably. So each renewal makes the server confirm that our backend holds the lock, and takes the lock again
//!   if it does not. If another program was faster, the leadership ends.
//! - A connection may be lost to us and not to the server, which then keeps the lock for nobody. So we remember which
//!   backends were ours, and end such a backend. In case the whole machine vanishes, the server is configured to check
//!   whether we are there: not before the lease ends.
//! - Behind a pooler in transaction mode, the lock would belong to the pooler's next client. So it is refused there.

use super::connection::{Backend, Connection};
use super::server::Server;
use super::statement::{lock_holder, number};
use crate::store::anchor::Anchor;
use crate::store::error::in_short;
use crate::store::{Holder, StoreError};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout, timeout_at};

/// How many lost backends to remember. The server has noticed by then that the older ones are lost.
const MOST_LOST: usize = 16;
/// The pause between two attempts while a backend of ours ends.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Advisory {
    pub key: i64,
    anchor: Anchor,
    /// Only one task at a time takes the lock: two sessions of ours would keep each other out.
    gate: tokio::sync::Mutex<()>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    /// Some while we hold the lock, as far as we know.
    held: Option<Arc<Connection>>,
    /// Backends of ours that may hold the lock although we lost them.
    lost: VecDeque<Backend>,
}

impl Slot {
    fn lose(&mut self, backend: Backend) {
        self.lost.truncate(MOST_LOST - 1);
        self.lost.push_front(backend);
    }
}

pub enum Taken {
    Ours,
    Theirs(Holder),
}

impl Advisory {
    /// Prepares the lock, and its anchor.
    ///
    /// # Errors
    /// The kernel has no sockets left.
    pub fn new(key: i64) -> Result<Self, StoreError> {
        let anchor = Anchor::new().map_err(|error| {
            StoreError::not_applied(format!("the operating system gives no pair of sockets: {error}"))
        })?;
        Ok(Self { key, anchor, gate: tokio::sync::Mutex::default(), slot: Mutex::default() })
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> Option<Arc<Connection>> {
        self.slot().held.clone().filter(|connection| connection.is_open())
    }

    /// The backend that holds the lock for us.
    pub fn backend(&self) -> Option<Backend> {
        self.held().map(|connection| connection.backend)
    }

    /// The pids of our backends, even of those that we can no longer reach.
    pub fn own_pids(&self) -> Vec<i32> {
        let slot = self.slot();
        slot.held
            .iter()
            .map(|connection| connection.backend.pid)
            .chain(slot.lost.iter().map(|backend| backend.pid))
            .collect()
    }

    /// Closes when the session ends that holds the lock; None if there is none.
    pub fn end(&self) -> Option<watch::Receiver<()>> {
        self.held().map(|connection| connection.end())
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.anchor.descriptor()
    }

    /// Takes the lock, or confirms that we hold it.
    pub async fn take(&self, server: &Server, lease: Duration) -> Result<Taken, StoreError> {
        let deadline = server.deadline();
        let silent = || StoreError::not_applied(format!("{} did not answer in time", server.site.server));
        let _gate = timeout_at(deadline, self.gate.lock()).await.map_err(|_| silent())?;
        if let Some(connection) = self.held() {
            let mine = format!("SELECT count(*) FROM ({}) AS k WHERE k.pid = pg_backend_pid()", lock_holder(self.key));
            // If the connection is silent, there must be time left for another one. It gets a third of the time, more
            // than the usual patience (`kept`), because to give it up is to give up the lock.
            match timeout(server.bound / 3, connection.ask(&mine, &[])).await {
                Ok(Ok(rows)) if rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()) == Some(1) => {
                    return Ok(Taken::Ours);
                }
                _ => {}
            }
        }
        self.abandon();
        let (connection, descriptor) = server.connect(deadline).await?;
        match server.is_dedicated(&connection).await? {
            Some(true) => {}
            Some(false) => return Err(StoreError::misconfigured(unfit(server))),
            None => return Err(StoreError::not_applied(unfit(server))),
        }
        // From here on this backend may hold the lock.
        self.slot().lose(connection.backend);
        loop {
            let tried = timeout_at(deadline, connection.ask(&attempt(lease), &[number(&self.key)])).await;
            let rows = tried.map_err(|_| silent())?.map_err(|error| connection.unanswered(&server.site, &error))?;
            if rows.first().and_then(|row| row.try_get::<_, bool>(0).ok()) == Some(true) {
                // Before the slot, because nothing may start under a lock without its anchor.
                self.anchor.hold(&descriptor).map_err(|error| {
                    StoreError::not_applied(format!("the operating system keeps no descriptor: {error}"))
                })?;
                *self.slot() = Slot { held: Some(Arc::new(connection)), lost: VecDeque::new() };
                return Ok(Taken::Ours);
            }
            let asked = timeout_at(deadline, connection.ask(&lock_holder(self.key), &[])).await;
            let rows = asked.map_err(|_| silent())?.map_err(|error| connection.unanswered(&server.site, &error))?;
            let Some(row) = rows.first() else { continue };
            let holder = Backend { pid: row.try_get(0).unwrap_or(0), started: row.try_get(3).unwrap_or(0) };
            if !self.slot().lost.contains(&holder) {
                self.slot().lost.retain(|&backend| backend != connection.backend);
                let (name, host) = (row.try_get(1).unwrap_or_default(), row.try_get(2).unwrap_or_default());
                return Ok(Taken::Theirs(self.stranger(i64::from(holder.pid), name, host)));
            }
            server.terminate(holder).await?;
            sleep(PAUSE).await;
        }
    }

    /// The holder of the lock, for people.
    pub fn stranger(&self, pid: i64, name: &str, host: String) -> Holder {
        let name = if name.is_empty() { "a program without a name".to_owned() } else { in_short(name) };
        Holder {
            owner: format!("{name} (holds advisory lock {}, backend {pid})", self.key),
            host: Some(host).filter(|host| !host.is_empty()),
            ..Holder::default()
        }
    }

    /// Frees the lock, so that the next one to ask finds it free. The tree must be dead.
    pub async fn let_go(&self, server: &Server) {
        let held = self.held();
        if let Some(connection) = held {
            // Closing the connection frees it too, but not at once.
            let key = [number(&self.key)];
            let freed = connection.ask("SELECT pg_advisory_unlock($1)", &key);
            if matches!(timeout(server.bound / 3, freed).await, Ok(Ok(_))) {
                self.slot().held = None;
            }
        }
        self.abandon();
    }

    /// Closes the connection that held the lock, if there is one.
    pub fn abandon(&self) {
        let mut slot = self.slot();
        if let Some(connection) = slot.held.take() {
            slot.lose(connection.backend);
        }
        drop(slot);
        self.anchor.let_go();
    }
}

/// How often the server asks whether we are there, and after how long a silence it takes us for dead: in seconds.
///
/// Not before the lease has ended. The server counts from when it last heard from us, which may be one interval before
/// we fell silent. So of four intervals three are left, and they are the lease.
fn patience(lease: Duration) -> (u64, u64) {
    let interval = lease.as_secs() / 3 + 1;
    (interval, interval * 4)
}

/// The statement that takes the lock. Parameter: the key.
fn attempt(lease: Duration) -> String {
    let (interval, silence) = patience(lease);
    format!(
        "SELECT pg_try_advisory_lock($1), set_config('tcp_keepalives_idle', '{interval}', false), \
         set_config('tcp_keepalives_interval', '{interval}', false), set_config('tcp_keepalives_count', '4', false), \
         set_config('tcp_user_timeout', '{silence}s', false), \
         CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL \
         THEN set_config('idle_session_timeout', '0', false) END"
    )
}

fn unfit(server: &Server) -> String {
    format!(
        "advisory_lock= wants a session of its own, and {} does not give one, as a pooler in transaction mode does not: \
         name the server itself",
        server.site.server
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
