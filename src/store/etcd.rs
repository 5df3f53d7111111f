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
mod failure;
mod keys;
mod lease;
mod list;
mod notes;
mod proto;
mod record;
mod unclaimed;
mod watch;

pub use address::Address;

use super::{Delivery, Holder, Store, StoreError};
use crate::lease::{Session, Shard, Term};
use crate::time::BootInstant;
use connection::{Client, Connection, Server};
use failure::Failure;
use keys::Keys;
use proto::{RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse, get};
use record::{Entry, Last, Lock, View};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tonic::transport::Endpoint;
use unclaimed::UnclaimedLeases;

/// How long a prefix is called young: longer than any lease that can be asked for.
const YOUTH: Duration = Duration::from_hours(24);

/// A claim that is overtaken looks again this often before it says so.
const MOST_ATTEMPTS: usize = 4;

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
    leadership: Option<Leadership>,
}

/// A leadership of this process.
#[derive(Clone, Debug)]
struct Leadership {
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
    fn leadership(&self, shard: &Shard, session: &Session) -> Option<Leadership> {
        let known = self.known();
        known.get(shard)?.leadership.clone().filter(|leadership| leadership.lock.record.session == *session)
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

    /// Of somebody else's lock.
    async fn holder(&self, connection: &Arc<Connection>, lock: &Entry<Lock>) -> Result<Holder, StoreError> {
        let left = self.time_to_live(connection, lock.lease).await?;
        let renewed_ago = left.as_ref().map(|left| left.granted.saturating_sub(left.at_most));
        let holder = lock.holder(Some(left.map_or(Duration::ZERO, |left| left.at_most)));
        Ok(Holder { renewed_ago, ..holder })
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
