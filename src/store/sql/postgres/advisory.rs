//! `advisory_lock=N`: the session advisory lock that is held in addition to the lease, so that leaderrun and programs
//! that elect with `pg_try_advisory_lock(N)` exclude each other.
//!
//! The hazards:
//!
//! - The lock lives as long as its session, and the session as long as its connection. So it would be free as soon as
//!   the candidate is killed, while the tree still runs. Therefore guard and backstop inherit an [`Anchor`] of it.
//! - A connection may be lost to us and not to the server, which then keeps the lock for nobody. So we remember which
//!   sessions were ours, and end such a session.
//! - To end the session that holds the lock frees it, and our tree may live. So a leader ends it only once its next
//!   session is the first that waits for the lock: then the server passes it on. While other programs wait before us,
//!   the session is left alone, and the renewal fails. The server keeps it for a lease, longer than the leadership can
//!   last without a renewal.
//! - The session may end while we lead: a restart, `pg_terminate_backend`. The connection does not tell us reliably. So
//!   each renewal makes the server confirm that our backend holds the lock, and takes the lock again if it does not. If
//!   another program was faster, the leadership ends.
//! - The whole machine may vanish, or all our processes freeze. So the server ends a session on which nothing was asked
//!   for a lease. Before PostgreSQL 14 it cannot; there it checks whether the machine is there, but not before the lease
//!   ends.
//! - Behind a pooler in transaction mode, the lock would belong to the pooler's next client. So it is refused there.

use super::Connection;
use super::watch::hears;
use crate::lease::{self, Candidate, Term};
use crate::store::anchor::Anchor;
use crate::store::error::in_short;
use crate::store::foreign_lock::{ForeignLock, Hold};
use crate::store::sql::client::{Cells, Connection as _, is_true, value};
use crate::store::sql::server::Server;
use crate::store::{Holder, StoreError};
use crate::time::millis;
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};

const PAUSE: Duration = Duration::from_millis(20);
/// Each doubt makes a renewal due at once. While the server is away, doubts must not follow each other at once.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);
/// How many sessions to remember. The server has noticed by then that the older ones are lost.
const MOST_OWN: usize = 16;

pub struct Advisory {
    key: i64,
    server: Arc<Server<Connection>>,
    anchor: Anchor,
    /// Two sessions of ours would keep each other out.
    gate: tokio::sync::Mutex<()>,
    held: Mutex<Option<Arc<Connection>>>,
    /// Our last session, and lost ones that may still hold the lock, as [`lock_holder`] shows them.
    own: Mutex<Vec<String>>,
}

impl Advisory {
    pub fn new(key: i64, server: &Arc<Server<Connection>>) -> Result<Self, StoreError> {
        let anchor = Anchor::new()
            .map_err(|error| StoreError::not_applied(format!("cannot create a pair of sockets: {error}")))?;
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

    fn let_go(&self) {
        *self.held.lock() = None;
        self.anchor.let_go();
    }

    /// Takes the lock. If `again`, our tree may live, so a session of ours that holds the lock is ended only if the new
    /// one gets the lock from it.
    async fn take_for(&self, lease: Duration, again: bool) -> Result<Hold, StoreError> {
        let (server, key) = (&*self.server, self.key);
        let deadline = server.deadline();
        let _alone = server.until(deadline, async { Ok(self.gate.lock().await) }).await?;
        let unanchored =
            |error| StoreError::not_applied(format!("cannot hand the connection over to the helpers: {error}"));
        if let Some(connection) = self.held() {
            let mine = format!("{} AND pid = pg_backend_pid()", lock_holder(key));
            // If the connection is silent, time must be left for another one. It gets a third, more than the usual
            // patience (`kept_connection`), because to pass the lock on takes several requests.
            let answer = timeout(server.bound / 3, connection.tell(&mine)).await;
            if matches!(answer, Ok(Ok(rows)) if rows.len() == 1) {
                // Lets go of sessions in which an earlier renewal tried to take the lock.
                self.anchor.hold(&connection.descriptor).map_err(unanchored)?;
                return Ok(Hold::Held);
            }
        }
        let connection = server.connect(deadline).await?;
        if !connection.direct && !hears(server, &connection).await? {
            return Err(StoreError::misconfigured(format!(
                "advisory_lock= needs a session of its own, and {} gives none, as a pooler in transaction mode: name \
                 the server itself",
                server.site.server
            )));
        }
        let ask = async |statement: &str| server.until(deadline, connection.tell(statement)).await;
        let own = ask(&format!("SELECT {SESSION} FROM pg_stat_activity WHERE pid = pg_backend_pid()")).await?;
        let session = value(&own, 0).to_owned();
        // From here on this session may hold the lock.
        self.own.lock().insert(0, session.clone());
        self.own.lock().truncate(MOST_OWN);
        if again {
            // First, because the answer may be lost, or this process killed.
            self.anchor.hold_as_well(&connection.descriptor).map_err(unanchored)?;
        }
        while !is_true(&ask(&taking(&format!("pg_try_advisory_lock({key})"), lease)).await?, 0) {
            let rows = ask(&lock_holder(key)).await?;
            let holder = value(&rows, 0);
            if holder.is_empty() {
                continue;
            }
            if !self.is_own(holder) {
                self.own.lock().retain(|own| *own != session);
                self.let_go();
                return Ok(Hold::Taken(self.other_program(&rows)));
            }
            if again {
                // After all that waited before.
                let waits = taking(&format!("(SELECT true FROM pg_advisory_lock({key}))"), lease);
                let passed = tokio::select! {
                    // Another program may take the lock meanwhile, so this must not last.
                    passed = timeout(server.bound / 3, ask(&waits)) => matches!(passed, Ok(Ok(_))),
                    () = self.end_if_next(holder, &session) => false,
                };
                if !passed {
                    return Err(StoreError::not_applied(format!(
                        "the session that holds {} does not answer, and cannot pass the lock on to another one: does a \
                         program wait for it?",
                        self.name()
                    )));
                }
                break;
            }
            self.end(holder).await?;
            sleep(PAUSE).await;
        }
        self.anchor.hold(&connection.descriptor).map_err(unanchored)?;
        *self.own.lock() = vec![session];
        *self.held.lock() = Some(Arc::new(connection));
        Ok(Hold::Held)
    }

    fn is_own(&self, session: &str) -> bool {
        self.own.lock().iter().any(|own| own == session)
    }

    async fn end(&self, session: &str) -> Result<(), StoreError> {
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {SESSION} = '{session}'");
        self.server.ask(&end, Some).await.map(drop)
    }

    /// Ends the session that holds the lock once `next` waits for it, and no other program waits before `next`.
    async fn end_if_next(&self, holder: &str, next: &str) {
        let process = next.split(' ').next().unwrap_or_default();
        let own = self.own.lock().iter().map(|own| format!("'{own}'")).collect::<Vec<_>>().join(", ");
        // In one statement, because `next` may begin to wait between two.
        let end = format!(
            "WITH queue AS MATERIALIZED (SELECT pg_blocking_pids({process}) AS pids) \
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity, queue \
             WHERE {SESSION} = '{holder}' AND pid = ANY (pids) AND NOT EXISTS \
             (SELECT FROM unnest(pids) AS before LEFT JOIN pg_stat_activity ON pid = before WHERE {SESSION} NOT IN ({own}))"
        );
        loop {
            // If it fails, the wait for the lock ends with an error soon.
            let _ = self.server.ask(&end, Some).await;
            sleep(PAUSE).await;
        }
    }

    fn other_program(&self, rows: &[Cells]) -> Holder {
        let [session, name, host] = [0, 1, 2].map(|column| value(rows, column));
        let process = session.split(' ').next().unwrap_or_default();
        Holder {
            owner: if name.is_empty() { "a program without a name".to_owned() } else { in_short(name) },
            host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            foreign_lock: Some(format!("{}, backend {process}", self.name())),
            ..Holder::default()
        }
    }

    /// Frees the lock at once. The tree must be dead.
    async fn free(&self) -> Result<(), StoreError> {
        if let Some(connection) = self.held() {
            // To close the connection frees it too, but later.
            let unlock = format!("SELECT pg_advisory_unlock({})", self.key);
            let freed = connection.tell(&unlock);
            if matches!(timeout(self.server.bound / 3, freed).await, Ok(Ok(_))) {
                self.own.lock().clear();
            }
        }
        self.let_go();
        // The server may keep sessions that are lost to us, and the lock with them.
        let lost = self.own.lock().clone();
        for session in lost {
            self.end(&session).await?;
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl ForeignLock for Advisory {
    fn name(&self) -> String {
        format!("advisory lock {}", self.key)
    }

    async fn holder(&self, _candidate: Option<&Candidate>) -> Result<Option<Holder>, StoreError> {
        let rows = self.server.ask(&lock_holder(self.key), Some).await?;
        let is_taken = !rows.is_empty() && !self.is_own(value(&rows, 0));
        Ok(is_taken.then(|| self.other_program(&rows)))
    }

    /// If it was lost and could be taken again, nobody else has it now: COMMAND goes on.
    async fn take(&self, candidate: &Candidate, _term: Term, again: bool) -> Result<Hold, StoreError> {
        self.take_for(candidate.lease, again).await
    }

    async fn let_go(&self, _candidate: &Candidate, _term: Term) -> Result<(), StoreError> {
        self.free().await
    }

    async fn doubted(&self) {
        match self.held().map(|connection| connection.inbox.resubscribe()) {
            Some(mut inbox) => while inbox.recv().await != Err(RecvError::Closed) {},
            None => sleep(DOUBT_PAUSE).await,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.anchor.descriptor())
    }

    async fn try_out(&self) -> Result<Option<Holder>, StoreError> {
        match self.take_for(lease::DEFAULT_LEASE, false).await? {
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

fn taking(lock: &str, lease: Duration) -> String {
    let (interval, silence) = patience(lease);
    // At least one, because zero is no limit. Each renewal asks something on this session.
    let idle = millis(lease).max(1);
    format!(
        "SELECT {lock}, set_config('tcp_keepalives_idle', '{interval}', false), \
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
