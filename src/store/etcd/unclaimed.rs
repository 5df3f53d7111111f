//! Revokes leases left over from failed claims.
//!
//! The hazard: the transaction of a claim that was given up may still put the lock while its etcd lease exists. But
//! revoking the lease of a leadership ends that leadership. So each claim has a lease id of its own. The id is listed
//! here from the beginning of the claim until the claim has become a leadership.

use super::connection::{Client, Connection};
use super::failure::Failure;
use super::proto::{LEASE_REVOKE, LeaseRevokeRequest, Nothing};
use crate::store::StoreError;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::task::JoinSet;

/// The most leases that are remembered.
const MOST: usize = 16;

/// Etcd leases of claims that may not have ended in a leadership: they must be revoked.
pub struct UnclaimedLeases {
    client: Arc<Client>,
    /// A transaction under way may still put a lock with one of these.
    leases: Mutex<Vec<i64>>,
    /// The tasks that revoke. They end with the store.
    tasks: Mutex<JoinSet<()>>,
}

/// An etcd lease that is revoked when this is dropped.
pub struct UnclaimedLease {
    unclaimed: Arc<UnclaimedLeases>,
    pub id: i64,
    /// True if etcd has granted it. Only then is it used.
    granted: bool,
    kept: bool,
}

impl UnclaimedLease {
    pub fn granted(&mut self) {
        self.granted = true;
    }

    /// Keeps the lease, which is in use: it will never be revoked from here.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for UnclaimedLease {
    fn drop(&mut self) {
        if !self.kept {
            if self.granted {
                self.unclaimed.remember(self.id);
            }
            UnclaimedLeases::revoke_later(&self.unclaimed, self.id);
        }
    }
}

impl UnclaimedLeases {
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, leases: Mutex::default(), tasks: Mutex::default() }
    }

    /// The id of a lease that is not granted yet. We choose it, so that the lease can be revoked even if the answer was
    /// lost.
    pub fn new_lease(unclaimed: &Arc<Self>) -> Result<UnclaimedLease, StoreError> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|error| StoreError::not_applied(format!("no random bytes for the number of a lease: {error}")))?;
        let id = (i64::from_be_bytes(bytes) & i64::MAX).max(1);
        Ok(UnclaimedLease { unclaimed: Arc::clone(unclaimed), id, granted: false, kept: false })
    }

    pub fn leases(&self) -> Vec<i64> {
        self.leases.lock().clone()
    }

    fn remember(&self, id: i64) {
        let mut leases = self.leases.lock();
        // The transaction of the oldest one has reached etcd since, or the lease has expired.
        if leases.len() == MOST {
            leases.remove(0);
        }
        leases.push(id);
    }

    fn forget(&self, id: i64) {
        self.leases.lock().retain(|&known| known != id);
    }

    /// Revokes the lease within one request's time. If that fails, the lease expires.
    pub fn revoke_later(unclaimed: &Arc<Self>, id: i64) {
        // No runtime is current if this is dropped while a runtime ends.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (client, weak) = (Arc::clone(&unclaimed.client), Arc::downgrade(unclaimed));
        let mut tasks = unclaimed.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(
            async move {
                let revoked = client.bounded(async {
                    let connection = client.connection().await?;
                    let Some(unclaimed) = weak.upgrade() else { return Ok(()) };
                    unclaimed.revoke(&connection, id).await
                });
                let _ = revoked.await;
            },
            &runtime,
        );
    }

    pub async fn revoke(&self, connection: &Arc<Connection>, id: i64) -> Result<(), StoreError> {
        let answer: Result<Nothing, Failure> =
            self.client.call(connection, LEASE_REVOKE, LeaseRevokeRequest { id }).await;
        match answer {
            Err(failure) if !failure.no_such_lease => Err(failure.into()),
            Ok(_) | Err(_) => {
                self.forget(id);
                Ok(())
            }
        }
    }
}
