//! etcd's own leases, to which locks and notes are attached.
//!
//! The hazard: etcd counts leases in whole seconds, rounded towards zero, and removes an expired one some time later.
//! So for a lease with no second left, the question is repeated until etcd says that the lease is gone.

use super::connection::Connection;
use super::failure::Failure;
use super::proto::{
    LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_TIME_TO_LIVE, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use super::record::{self, whole_seconds};
use super::{Etcd, YOUTH};
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Duration;

/// How often to ask about an etcd lease with less than a second left: it may have expired, and be gone soon.
const MOST_QUESTIONS: usize = 4;
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(50);

/// The time that an etcd lease has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) at_most: Duration,
    pub(super) granted: Duration,
}

impl Left {
    pub(super) const ALL: Self = Self { at_most: YOUTH, granted: YOUTH };
}

impl Etcd {
    /// Grants an etcd lease that lives for at least `ttl`.
    pub(super) async fn grant(&self, connection: &Arc<Connection>, id: i64, ttl: Duration) -> Result<(), StoreError> {
        let request = LeaseGrantRequest { ttl_seconds: whole_seconds(ttl), id };
        let asked = request.ttl_seconds;
        let answer: LeaseGrantResponse = self.client.call(connection, LEASE_GRANT, request).await?;
        if answer.ttl_seconds < asked {
            return Err(StoreError::misconfigured(format!(
                "etcd at {} granted a lease of {} s where {asked} s were asked for",
                connection.server, answer.ttl_seconds
            )));
        }
        Ok(())
    }

    pub(super) async fn keep_alive(
        &self,
        connection: &Arc<Connection>,
        id: i64,
    ) -> Result<LeaseKeepAliveResponse, Failure> {
        self.client.call(connection, LEASE_KEEP_ALIVE, LeaseKeepAliveRequest { id }).await
    }

    /// How much is left of an etcd lease: not less than that, nor more than was granted. None: it is gone.
    ///
    /// Call it after a linearizable read on the same connection: every leader of etcd since then knows every lease, and
    /// every renewal of it, that this read could have shown.
    pub(super) async fn time_to_live(&self, connection: &Arc<Connection>, id: i64) -> Result<Option<Left>, StoreError> {
        for question in 1.. {
            let request = LeaseTimeToLiveRequest { id };
            let answer: Result<LeaseTimeToLiveResponse, Failure> =
                self.client.call(connection, LEASE_TIME_TO_LIVE, request).await;
            match answer {
                // Rounded towards zero: this lease may have expired, and its removal may be under way.
                Ok(answer) if answer.ttl_seconds == 0 && question < MOST_QUESTIONS => {
                    tokio::time::sleep(BETWEEN_QUESTIONS).await;
                }
                Ok(answer) if answer.ttl_seconds < 0 => return Ok(None),
                Ok(answer) => {
                    let seconds = |seconds: i64| Duration::from_secs(record::unsigned(seconds));
                    let granted = seconds(answer.granted_seconds);
                    return Ok(Some(Left {
                        at_most: seconds(answer.ttl_seconds.saturating_add(1)).min(granted),
                        granted,
                    }));
                }
                Err(failure) if failure.no_such_lease => return Ok(None),
                Err(failure) => return Err(failure.into()),
            }
        }
        unreachable!("the last question is answered")
    }
}
