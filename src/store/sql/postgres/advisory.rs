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

use super::connection::{Backend, Connection, ended};
use super::server::Server;
use crate::lease::{self, Candidate, Session, Term};
use crate::store::error::in_short;
use crate::store::foreign_lock::{ForeignLock, Hold};
use crate::store::session_lock::{DOUBT_PAUSE, Keeper, SessionLock};
use crate::store::{ErrorKind, Finding, Holder, StoreError};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// The pause between two attempts while a backend of ours ends.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Advisory {
    key: i64,
    server: Arc<Server>,
    lock: SessionLock<Connection>,
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
    pub fn new(key: i64, server: &Arc<Server>) -> Result<Self, StoreError> {
        Ok(Self { key, server: Arc::clone(server), lock: SessionLock::new()? })
    }

    /// Takes the lock, or confirms that we hold it.
    async fn take_for(&self, lease: Duration) -> Result<Hold, StoreError> {
        let server = &*self.server;
        let deadline = server.deadline();
        let silent = || StoreError::not_applied(format!("{} did not answer in time", server.site.server));
        let _alone = timeout_at(deadline, self.lock.alone()).await.map_err(|_| silent())?;
        if let Some(connection) = self.lock.held() {
            let mine = format!("SELECT count(*) FROM ({}) AS k WHERE k.pid = pg_backend_pid()", lock_holder(self.key));
            // If the connection is silent, there must be time left for another one. It gets a third of the time, more
            // than the usual patience (`kept_connection`), because to give it up is to give up the lock.
            match timeout(server.bound / 3, connection.ask(&mine, &[])).await {
                Ok(Ok(rows)) if rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()) == Some(1) => {
                    return Ok(Hold::Held);
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
            let tried = timeout_at(deadline, connection.ask(&attempt(lease), &[(&self.key, Type::INT8)])).await;
            let rows = tried.map_err(|_| silent())?.map_err(|error| connection.unanswered(&server.site, &error))?;
            if rows.first().and_then(|row| row.try_get::<_, bool>(0).ok()) == Some(true) {
                self.lock.anchor(&descriptor)?;
                self.lock.keep(connection);
                return Ok(Hold::Held);
            }
            let asked = timeout_at(deadline, connection.ask(&lock_holder(self.key), &[])).await;
            let rows = asked.map_err(|_| silent())?.map_err(|error| connection.unanswered(&server.site, &error))?;
            let Some(row) = rows.first() else { continue };
            let holder = backend(row);
            if !self.lock.own().contains(&holder) {
                self.lock.does_not_hold(connection.backend);
                return Ok(Hold::Taken(self.stranger(row)));
            }
            server.terminate(holder).await?;
            sleep(PAUSE).await;
        }
    }

    /// The holder of the lock, for people.
    fn stranger(&self, row: &Row) -> Holder {
        let name: &str = row.try_get(1).unwrap_or_default();
        let name = if name.is_empty() { "a program without a name".to_owned() } else { in_short(name) };
        Holder {
            owner: name,
            host: row.try_get(2).ok().filter(|host: &String| !host.is_empty()),
            foreign_lock: Some(format!("advisory lock {}, backend {}", self.key, backend(row).pid)),
            ..Holder::default()
        }
    }

    /// Frees the lock, so that the next one to ask finds it free. The tree must be dead.
    async fn free(&self) {
        if let Some(connection) = self.lock.held() {
            // Closing the connection frees it too, but not at once.
            let key: [(&(dyn ToSql + Sync), Type); 1] = [(&self.key, Type::INT8)];
            let freed = connection.ask("SELECT pg_advisory_unlock($1)", &key);
            if matches!(timeout(self.server.bound / 3, freed).await, Ok(Ok(_))) {
                return self.lock.freed();
            }
        }
        self.lock.abandon();
    }
}

#[async_trait::async_trait]
impl ForeignLock for Advisory {
    async fn holder(&self, _session: Option<&Session>) -> Result<Option<Holder>, StoreError> {
        let own = self.lock.own();
        let (rows, _) = self.server.ask_once_or_twice(&lock_holder(self.key), &[]).await?;
        Ok(rows.first().filter(|row| !own.contains(&backend(row))).map(|row| self.stranger(row)))
    }

    /// If it was lost and could be taken again, nobody else has it now: COMMAND goes on.
    async fn take(&self, candidate: &Candidate, _term: Term, _again: bool) -> Result<Hold, StoreError> {
        self.take_for(candidate.lease).await
    }

    async fn let_go(&self, _session: &Session) -> Result<(), StoreError> {
        self.free().await;
        Ok(())
    }

    async fn doubted(&self) {
        let end = self.lock.held().map(|connection| connection.end());
        match end {
            Some(end) => ended(end).await,
            None => sleep(DOUBT_PAUSE).await,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.lock.descriptor())
    }

    async fn check(&self, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
        let key = self.key;
        findings.push(match self.take_for(lease::DEFAULT_LEASE).await {
            Ok(Hold::Held | Hold::Lost) => {
                self.free().await;
                Finding::good(format!("advisory lock {key} is free and can be taken"))
            }
            Ok(Hold::Taken(holder)) => Finding::good(format!("advisory lock {key} is held: {}", holder.named())),
            Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
                Finding::bad(error.message)
            }
            Err(error) => return Err(error),
        });
        Ok(())
    }
}

/// The backend of a row of [`lock_holder`].
fn backend(row: &Row) -> Backend {
    Backend { pid: row.try_get(0).unwrap_or(0), started: row.try_get(3).unwrap_or(0) }
}

/// The condition that a row `k` of pg_locks is this advisory lock. PostgreSQL keeps the two halves of its key apart.
fn is_lock(key: i64) -> String {
    let bits = u64::from_ne_bytes(key.to_ne_bytes());
    let (high, low) = (bits >> 32, bits & 0xffff_ffff);
    format!(
        "k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted AND k.classid::bigint = {high} \
         AND k.objid::bigint = {low} \
         AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())"
    )
}

/// The holder of an advisory lock: its backend's pid, its name for itself, its host, and its start.
fn lock_holder(key: i64) -> String {
    format!(
        "SELECT k.pid, coalesce(a.application_name, '') AS name, coalesce(host(a.client_addr), '') AS host, \
         coalesce((extract(epoch FROM a.backend_start) * 1000000)::bigint, 0) AS started \
         FROM pg_locks AS k LEFT JOIN pg_stat_activity AS a USING (pid) WHERE {}",
        is_lock(key)
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

    #[test]
    fn an_advisory_lock_is_found_by_both_halves_of_its_key() {
        assert!(is_lock(-1).contains("classid::bigint = 4294967295 AND k.objid::bigint = 4294967295"));
        assert!(is_lock(7).contains("classid::bigint = 0 AND k.objid::bigint = 7"));
    }
}
