//! The store `etcd://`: a key a shard, attached to an etcd lease, changed only by transactions.
//!
//! The hazard: etcd's leases outlive what people think of them, and its keys do not. So:
//!
//! - **A key can be deleted while its etcd lease lives** (`etcdctl del`). Keeping the lease alive proves nothing then.
//!   A renewal therefore does two things at once: it keeps the lease alive, and it reads the key, linearizably.
//! - **A renewal may be answered by a leader that is none any more** and keeps alive what its successor lets expire
//!   (etcd-io/etcd#15247). A new leader gives every lease its whole time again when it takes over, so the answer is
//!   wrong only when that was before the renewal was sent. Both answers carry the raft term of the last entry that our
//!   member had applied: the first as it was when it took the renewal, the second when it had been told by a quorum
//!   that the leader leads. Where the two are the same, no leader was elected between. Where not, it is asked again.
//! - **A claim is a lease, and then a transaction that may arrive late.** Each claim has an etcd lease of its own, which
//!   is revoked when the claim did not end in a leadership; so the transaction of a claim that was given up finds no
//!   lease, or is undone. And the transaction compares the record of the last leadership with what the claim had seen:
//!   after anybody has led, it does nothing.
//! - **Late renewals and releases** name an etcd lease, or a revision of the key, that no other claim ever has. A late
//!   renewal keeps a lease alive that nobody counts on, or one that is counted from later anyway: only longer.
//! - **A lock that is absent does not say why.** Released, expired, deleted by hand, or gone with everything else. A
//!   second record, attached to no lease, tells: who led last, by which etcd lease, and whether that was released. While
//!   that lease lives and was not released, its holder may have a tree: the next leader waits for one whole lease, for
//!   a renewal may be under way. An etcd lease that is gone has expired, on the server's clock. While somebody leads, a
//!   copy of that record hangs on the leader's etcd lease, in case both are deleted.
//! - **etcd may forget everything** (its data lost, the prefix deleted). Whoever finds no `PREFIX/base` makes it, and a
//!   mark of youth beside it that an etcd lease of a day ends. The first leader of a shard waits until the prefix is one
//!   of its leases old, judged by what is left of that day.
//! - **A lease may be revoked by who does not hold it.** That is as if its lock were deleted by hand: the record of the
//!   last leadership stays as it was, not released, and so does the etcd lease, which tells the next leader to wait.
//! - **Terms** are revisions, counted from the birth of the prefix, upon the microseconds since 1970 at that birth: they
//!   rise over a wipe, unless the clock of whoever makes the next base is far behind. And they rise over the last term
//!   of the shard, whatever the base says, for as long as its record is there.
//!
//! A restart or a change of etcd's leader makes leases longer, never shorter. What is not caught: `etcdctl lease revoke`
//! is to etcd what an expiry is; and a restored backup has leases and revisions of the past (leaderrun(7) says what to do).

mod address;
mod check;
mod claim;
mod connection;
mod lease;
mod list;
mod notes;
mod proto;
mod record;
mod unclaimed;
mod watch;

pub use address::Address;

use super::{
    Administration, Claim, Delivery, Finding, Holder, Leases, Observation, Release, Renewal, Report, Store, StoreError,
};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::time::BootInstant;
use connection::{Client, Connection, Failure, Server};
use proto::{
    LEASE_GRANT, LEASE_TIME_TO_LIVE, LeaseGrantRequest, LeaseGrantResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, NO_PUT, RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse, get,
};
use record::{Entry, Keys, Last, Lock, View, whole_seconds};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tonic::transport::Endpoint;
use unclaimed::UnclaimedLeases;

/// How long a prefix is called young: longer than any lease that can be asked for.
const YOUTH: Duration = Duration::from_hours(24);

/// A claim that is overtaken looks again this often before it says so.
const MOST_ATTEMPTS: usize = 4;

/// An etcd lease with less than a second left is asked after so often: it may have expired, and be about to be gone.
const MOST_QUESTIONS: usize = 4;
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(50);

/// Between two tries to see what becomes of our own lock.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);

pub struct Etcd {
    client: Arc<Client>,
    keys: Keys,
    known: Mutex<HashMap<Shard, Known>>,
    unclaimed: Arc<UnclaimedLeases>,
}

/// What this process remembers of a shard.
#[derive(Debug, Default)]
struct Known {
    /// At this revision the lock was seen held: what happened to it since is news.
    seen: Option<i64>,
    tenure: Option<Tenure>,
}

/// A leadership of this process.
#[derive(Clone, Debug)]
struct Tenure {
    term: Term,
    lock: Entry<Lock>,
    last: Last,
    /// Some while trees of before may live.
    start_after: Option<BootInstant>,
    /// The highest beat of a renewal that was applied.
    beat: u64,
}

impl Etcd {
    /// Asks nothing of any server yet.
    ///
    /// # Errors
    /// Misconfigured, when a file for TLS cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let tls = address.tls.as_ref().map(address::tls_config).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let wrong = |error: &dyn std::fmt::Display| StoreError::misconfigured(format!("a host of etcd://: {error}"));
        let mut servers = Vec::with_capacity(address.hosts.len());
        for (host, name) in &address.hosts {
            let mut endpoint = Endpoint::from_shared(format!("{scheme}://{name}")).map_err(|error| wrong(&error))?;
            if let Some(tls) = &tls {
                endpoint = endpoint.tls_config(tls.clone().domain_name(host)).map_err(|error| wrong(&error))?;
            }
            servers.push(Server { name: name.clone(), endpoint });
        }
        // With TLS 1.3 a server turns a client away after the handshake, and may close before it has said why.
        let doubt = address.tls.as_ref().map(|files| match files.cert {
            Some(_) => "does it trust the certificate in cert=?",
            None => "does it want a certificate, by cert= and key=?",
        });
        let (user, prefix) = (address.user.clone(), address.prefix.clone());
        let client = Arc::new(Client::new(servers, user, prefix, doubt, request_timeout));
        let unclaimed = Arc::new(UnclaimedLeases::new(Arc::clone(&client)));
        Ok(Self { client, keys: Keys { prefix: address.prefix.clone() }, known: Mutex::default(), unclaimed })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Shard, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of this very session.
    fn tenure(&self, shard: &Shard, session: &Session) -> Option<Tenure> {
        let known = self.known();
        known.get(shard)?.tenure.clone().filter(|tenure| tenure.lock.record.session == *session)
    }

    fn saw_held(&self, shard: &Shard, revision: i64) {
        self.known().entry(shard.clone()).or_default().seen = Some(revision);
    }

    /// All that is known of a shard, at one revision.
    async fn look(&self, connection: &Arc<Connection>, shard: &Shard) -> Result<View, StoreError> {
        let request = TxnRequest { success: self.gets(shard), ..TxnRequest::default() };
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        View::read(&connection.server, answer)
    }

    /// In the order of [`View::read`].
    fn gets(&self, shard: &Shard) -> Vec<proto::RequestOp> {
        let keys = &self.keys;
        let keys = [keys.lock(shard), keys.last(shard), keys.base(), keys.young(), keys.copy(shard)];
        keys.iter().map(|key| get(key)).collect()
    }

    async fn get(&self, connection: &Arc<Connection>, key: Vec<u8>) -> Result<RangeResponse, Failure> {
        self.client.call(connection, RANGE, RangeRequest { key, ..RangeRequest::default() }).await
    }

    /// What is left of an etcd lease: not less than that, nor more than what was granted. None: it is gone.
    ///
    /// To be asked after a linearizable read on the same connection: whoever leads etcd since then knows every lease,
    /// and every renewal of it, that this read could have shown.
    async fn time_to_live(&self, connection: &Arc<Connection>, id: i64) -> Result<Option<Left>, StoreError> {
        for question in 1.. {
            let request = LeaseTimeToLiveRequest { id };
            let answer: Result<LeaseTimeToLiveResponse, Failure> =
                self.client.call(connection, LEASE_TIME_TO_LIVE, request).await;
            match answer {
                // Rounded towards zero, so this one may have expired and wait to be revoked.
                Ok(answer) if answer.ttl_seconds == 0 && question < MOST_QUESTIONS => {
                    tokio::time::sleep(BETWEEN_QUESTIONS).await;
                }
                Ok(answer) if answer.ttl_seconds < 0 => return Ok(None),
                Ok(answer) => {
                    let seconds = |seconds: i64| Duration::from_secs(record::revision(seconds));
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

    /// Of somebody else's lock.
    async fn holder(&self, connection: &Arc<Connection>, lock: &Entry<Lock>) -> Result<Holder, StoreError> {
        let left = self.time_to_live(connection, lock.lease).await?;
        let renewed_ago = left.as_ref().map(|left| left.granted.saturating_sub(left.at_most));
        let holder = lock.holder(Some(left.map_or(Duration::ZERO, |left| left.at_most)));
        Ok(Holder { renewed_ago, ..holder })
    }

    async fn observe_on(&self, connection: Arc<Connection>, shard: &Shard) -> Result<Observation, StoreError> {
        let found = self.get(&connection, self.keys.lock(shard)).await?;
        let Some(kv) = found.kvs.first() else { return Ok(Observation::Free) };
        let lock = record::read_lock(&connection.server, kv)?;
        self.saw_held(shard, found.header.map_or(0, |header| header.revision));
        Ok(Observation::Held(self.holder(&connection, &lock).await?))
    }

    async fn inspect_on(&self, connection: Arc<Connection>, shard: &Shard) -> Result<Report, StoreError> {
        let view = self.look(&connection, shard).await?;
        let holder = match &view.lock {
            Some(lock) => Some(self.holder(&connection, lock).await?),
            None => None,
        };
        Ok(Report { holder, last_term: view.last_known().map(Entry::<Last>::term) })
    }

    /// Some etcd lease that lives for `ttl` at least.
    async fn grant(&self, connection: &Arc<Connection>, id: i64, ttl: Duration) -> Result<(), StoreError> {
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
}

/// Of an etcd lease.
#[derive(Clone, Copy, Debug)]
struct Left {
    at_most: Duration,
    granted: Duration,
}

impl Left {
    const ALL: Self = Self { at_most: YOUTH, granted: YOUTH };
}

/// The server's clock and ours may differ in rate by one part in a hundred.
fn with_drift(duration: Duration) -> Duration {
    duration + duration / 100
}

#[async_trait::async_trait]
impl Leases for Etcd {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        self.client.operate(|connection| Box::pin(self.claim_on(connection, candidate))).await
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        self.client.operate(|connection| Box::pin(self.observe_on(connection, shard))).await
    }

    async fn renew(&self, candidate: &Candidate, _term: Term, beat: u64) -> Result<Renewal, StoreError> {
        self.client.operate(|connection| Box::pin(self.renew_on(connection, candidate, beat))).await
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        self.client.operate(|connection| Box::pin(self.release_on(connection, candidate, term))).await
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        loop {
            let Some(from) = self.news_from(shard).await? else { return Ok(()) };
            // A lock that is taken over is deleted first: by its holder, by a hand, or with its etcd lease.
            if self.watch_lock(shard, from, vec![NO_PUT]).await? {
                return Ok(());
            }
            if let Some(known) = self.known().get_mut(shard) {
                known.seen = None;
            }
        }
    }

    async fn doubted(&self, shard: &Shard) {
        let tenure = self.known().get(shard).and_then(|known| known.tenure.clone());
        let Some(tenure) = tenure else { return std::future::pending().await };
        // Nobody but we touches it, so anything is news.
        while self.watch_lock(shard, tenure.lock.mod_revision.saturating_add(1), Vec::new()).await.is_err() {
            tokio::time::sleep(DOUBT_PAUSE).await;
        }
    }
}

#[async_trait::async_trait]
impl Administration for Etcd {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.client.operate(|connection| Box::pin(self.inspect_on(connection, shard))).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        list::list(self, prefix).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        self.client.operate(|connection| Box::pin(self.revoke_on(connection, shard, term))).await
    }

    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let asked = AtomicBool::new(false);
        let forget = |connection| self.forget_on(connection, candidate, term, asked.swap(true, Ordering::Relaxed));
        self.client.operate(|connection| Box::pin(forget(connection))).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        check::prepare(self).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
    }
}

impl Store for Etcd {
    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn youth_outlasts_every_lease() {
        use crate::lease::{Timing, TimingRequest};
        let asked = TimingRequest { lease: YOUTH + Duration::from_secs(1), ..TimingRequest::default() };
        assert!(Timing::new(asked).is_err());
    }
}
