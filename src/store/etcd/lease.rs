//! etcd's own leases: the clocks of documents.
//!
//! The hazards:
//!
//! - etcd counts in whole seconds, rounded towards zero, and removes an expired lease up to half a second late. So what
//!   is left is rounded up.
//! - A transaction that was given up may arrive late, and put a leader's key while its etcd lease lives. So a claim has
//!   an etcd lease of its own, which is revoked unless the claim is known to have succeeded.
//! - A write may be applied although its answer was lost, and then a note must last as promised, and the marker stay
//!   young. So the etcd leases of these are revoked only if etcd said that the write was not applied.

use super::Keys;
use super::connection::Connection;
use super::proto::{
    LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, LEASE_TIME_TO_LIVE, LeaseGrantRequest, LeaseRequest, LeaseResponse,
    Nothing,
};
use crate::store::StoreError;
use crate::time::millis;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The longest lease, in seconds: more than 200 years. etcd refuses leases that are longer than 285 years.
const LONGEST: i64 = 7_000_000_000;

pub fn whole_seconds(duration: Duration) -> i64 {
    i64::try_from(millis(duration).div_ceil(1000)).map_or(LONGEST, |seconds| seconds.clamp(1, LONGEST))
}

pub fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or(0))
}

/// An etcd lease that was granted; zero: none. When this is dropped, it is revoked unless it is to be kept.
pub struct Granted<'a> {
    keys: &'a Keys,
    pub id: i64,
    pub is_kept: bool,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.keys.revoke_later(self.id);
        }
    }
}

impl Keys {
    pub fn granted(&self, id: i64) -> Granted<'_> {
        Granted { keys: self, id, is_kept: false }
    }

    pub async fn grant(&self, ttl: Duration) -> Result<Granted<'_>, StoreError> {
        let grant = |connection: Arc<Connection>| async move {
            // We choose the number, so that the lease can be revoked even if the answer is lost.
            let random = getrandom::u64().map_err(|error| StoreError::no_random_bytes(error.into()))?;
            let id = (random.cast_signed() & i64::MAX).max(1);
            let granted = self.granted(id);
            let asked = whole_seconds(ttl);
            let request = LeaseGrantRequest { ttl_seconds: asked, id };
            let answer: LeaseResponse = self.client.call(&connection, LEASE_GRANT, request).await?;
            if answer.ttl_seconds < asked {
                return Err(StoreError::misconfigured(format!(
                    "etcd at {} granted a lease of {} s where {asked} s were asked for",
                    connection.server, answer.ttl_seconds
                )));
            }
            Ok(granted)
        };
        self.client.operate(grant).await
    }

    /// As [`Keys::grant`], for an announcement, which nobody else writes: `before`, if that is of this duration and
    /// lives.
    pub async fn grant_again(&self, before: i64, ttl: Duration) -> Result<Granted<'_>, StoreError> {
        let keep = |connection: Arc<Connection>| async move { self.keep_alive(&connection, before).await };
        let is_alive = before != 0 && self.client.operate(keep).await?.ttl_seconds == whole_seconds(ttl);
        if is_alive { Ok(self.granted(before)) } else { self.grant(ttl).await }
    }

    pub async fn keep_alive(&self, connection: &Arc<Connection>, id: i64) -> Result<LeaseResponse, StoreError> {
        self.client.call(connection, LEASE_KEEP_ALIVE, LeaseRequest { id }).await
    }

    /// How much is left of an etcd lease, at most. None: it is gone.
    ///
    /// Call it after a linearizable read on the same connection: every leader of etcd since then knows every lease, and
    /// every renewal of it, that this read could have shown.
    pub async fn left(&self, connection: &Arc<Connection>, id: i64) -> Result<Option<Duration>, StoreError> {
        let answer: LeaseResponse = self.client.call(connection, LEASE_TIME_TO_LIVE, LeaseRequest { id }).await?;
        let left = seconds(answer.ttl_seconds.saturating_add(1).min(answer.granted_seconds));
        Ok((answer.ttl_seconds >= 0).then_some(left))
    }

    /// If that fails, it expires.
    pub fn revoke_later(&self, id: i64) {
        // No runtime is current if this is called while a runtime ends.
        let Some(runtime) = tokio::runtime::Handle::try_current().ok().filter(|_| id != 0) else { return };
        let client = Arc::clone(&self.client);
        let revoke = async move {
            let connection = client.connection();
            let revoked = client.call::<_, Nothing>(&connection, LEASE_REVOKE, LeaseRequest { id });
            let _ = timeout(client.bound, revoked).await;
        };
        let mut tasks = self.revocations.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(revoke, &runtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_rounded_down() {
        for (asked, seconds) in [(1, 1), (999, 1), (1000, 1), (1001, 2), (15_000, 15)] {
            assert_eq!(whole_seconds(Duration::from_millis(asked)), seconds);
        }
        assert_eq!(whole_seconds(Duration::from_nanos(1_000_000_001)), 2);
    }
}
