//! `advisory_lock=N`: the session advisory lock that is held in addition to the lease, so that leaderrun and programs
//! that elect with `pg_try_advisory_lock(N)` exclude each other.
//!
//! The hazards, beside those of every such lock (`session_lock`):
//!
//! - The session may end while we lead: a restart, `pg_terminate_backend`. Then only the connection can tell us, and
//!   not reliably. So each renewal makes the server confirm that our backend holds the lock, and takes the lock again
//!   if it does not. If another program was faster, the leadership ends.
//! - The whole machine may vanish. So the server is configured to check whether we are there: not before the lease
//!   ends.
//! - Behind a pooler in transaction mode, the lock would belong to the pooler's next client. So it is refused there.

use super::connection::{Backend, Connection};
use super::server::Server;
use super::statement::{lock_holder, number};
use crate::store::error::in_short;
use crate::store::session_lock::{Keeper, SessionLock, Taken};
use crate::store::{Holder, StoreError};
use std::time::Duration;
use tokio::time::{sleep, timeout, timeout_at};

/// The pause between two attempts while a backend of ours ends.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Advisory {
    pub key: i64,
    pub lock: SessionLock<Connection>,
}

impl Keeper for Connection {
    type Id = Backend;

    fn id(&self) -> Backend {
        self.backend
    }

    fn is_open(&self) -> bool {
        self.is_open()
    }
}

impl Advisory {
    /// # Errors
    /// As [`SessionLock::new`].
    pub fn new(key: i64) -> Result<Self, StoreError> {
        Ok(Self { key, lock: SessionLock::new()? })
    }

    /// Takes the lock, or confirms that we hold it.
    pub async fn take(&self, server: &Server, lease: Duration) -> Result<Taken, StoreError> {
        let deadline = server.deadline();
        let silent = || StoreError::not_applied(format!("{} did not answer in time", server.site.server));
        let _alone = timeout_at(deadline, self.lock.alone()).await.map_err(|_| silent())?;
        if let Some(connection) = self.lock.held() {
            let mine = format!("SELECT count(*) FROM ({}) AS k WHERE k.pid = pg_backend_pid()", lock_holder(self.key));
            // If the connection is silent, there must be time left for another one. It gets a third of the time, more
            // than the usual patience (`kept_connection`), because to give it up is to give up the lock.
            match timeout(server.bound / 3, connection.ask(&mine, &[])).await {
                Ok(Ok(rows)) if rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()) == Some(1) => {
                    return Ok(Taken::Ours);
                }
                _ => {}
            }
        }
        self.lock.abandon();
        let (connection, descriptor) = server.connect(deadline).await?;
        match server.is_dedicated(&connection).await? {
            Some(true) => {}
            Some(false) => return Err(StoreError::misconfigured(unfit(server))),
            None => return Err(StoreError::not_applied(unfit(server))),
        }
        self.lock.may_hold(connection.backend);
        loop {
            let tried = timeout_at(deadline, connection.ask(&attempt(lease), &[number(&self.key)])).await;
            let rows = tried.map_err(|_| silent())?.map_err(|error| connection.unanswered(&server.site, &error))?;
            if rows.first().and_then(|row| row.try_get::<_, bool>(0).ok()) == Some(true) {
                self.lock.anchor(&descriptor)?;
                self.lock.keep(connection);
                return Ok(Taken::Ours);
            }
            let asked = timeout_at(deadline, connection.ask(&lock_holder(self.key), &[])).await;
            let rows = asked.map_err(|_| silent())?.map_err(|error| connection.unanswered(&server.site, &error))?;
            let Some(row) = rows.first() else { continue };
            let holder = Backend { pid: row.try_get(0).unwrap_or(0), started: row.try_get(3).unwrap_or(0) };
            if !self.lock.own().contains(&holder) {
                self.lock.does_not_hold(connection.backend);
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
        if let Some(connection) = self.lock.held() {
            // Closing the connection frees it too, but not at once.
            let key = [number(&self.key)];
            let freed = connection.ask("SELECT pg_advisory_unlock($1)", &key);
            if matches!(timeout(server.bound / 3, freed).await, Ok(Ok(_))) {
                return self.lock.freed();
            }
        }
        self.lock.abandon();
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
