//! The store `etcd://`: one key for each shard, attached to an etcd lease, changed only by transactions.
//!
//! The hazard: an etcd lease may live longer than people expect, and a key may vanish before its lease does. So:
//!
//! - **A key can be deleted while its etcd lease lives** (`etcdctl del`). To keep the lease alive then proves nothing.
//!   So a renewal does two things at once: it keeps the lease alive, and it reads the key, linearizably.
//! - **A deposed leader of etcd may answer a renewal**, and keep alive what its successor lets expire
//!   (etcd-io/etcd#15247). A new leader gives every lease its whole time again when it takes over, so the answer is
//!   wrong only if the takeover was before the renewal was sent. Both answers carry the raft term of the last entry
//!   that our member had applied: the first as of when it received the renewal, the second as of when a quorum had
//!   confirmed the leader. If both terms are the same, no leader was elected in between. If they differ, the renewal is
//!   sent again.
//! - **A claim is a lease, and then a transaction that may arrive late.** Each claim has an etcd lease of its own. It
//!   is revoked if the claim did not end in a leadership, so the transaction of a claim that was given up finds no
//!   lease, or is undone. And the transaction compares the record of the last leadership with the one that the claim
//!   saw: if any candidate has led since, it does nothing.
//! - **Late renewals and releases** name an etcd lease, or a revision of the key, that no other claim ever has. A late
//!   renewal keeps a lease alive that nobody counts on, or a lease that is counted from a later instant anyway: it can
//!   only last longer.
//! - **An absent lock does not say why it is absent.** It was released, it expired, or it was deleted by hand or
//!   together with everything else. A second record, attached to no lease, says who led last, by which etcd lease, and
//!   whether that was released. While that lease lives and was not released, its holder may have a tree. Then the next
//!   leader waits for one whole lease, because a renewal may be under way. An etcd lease that is gone has expired on
//!   the server's clock. While a candidate leads, a copy of that record is attached to the leader's etcd lease, in case
//!   the lock and the record are both deleted.
//! - **etcd may forget everything** (its data is lost, the prefix is deleted). A candidate that finds no `PREFIX/base`
//!   makes it, with a mark of youth beside it that an etcd lease of a day ends. The first leader of a shard waits until
//!   the prefix is one of its leases old, judged by what is left of that day.
//! - **An operator may revoke a lease.** That is as if its lock were deleted by hand. The record of the last leadership
//!   stays as it was, not released, and so does the etcd lease, which tells the next leader to wait.
//! - **Terms** are revisions, counted from the birth of the prefix, plus the microseconds since 1970 at that birth. So
//!   they rise even after a wipe, unless the candidate that makes the next base has a clock that is far behind. They
//!   also rise over the last term of the shard, whatever the base says, while its record exists.
//!
//! A restart of etcd, or a change of its leader, makes leases longer, never shorter. Two cases are not caught. For
//! etcd, `etcdctl lease revoke` is the same as an expiry. And a restored backup has leases and revisions of the past
//! (leaderrun-stores(7) says what to do).

mod address;
mod administration;
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

use super::{Delivery, Holder, NoteRead, Page, Store, StoreError};
use crate::lease::{Session, Shard, Term};
use crate::time::BootInstant;
use connection::{Client, Connection, Server};
use failure::Failure;
use keys::Keys;
use parking_lot::Mutex;
use proto::{RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse, get};
use record::{Entry, Last, Lock, View};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Endpoint;
use unclaimed::UnclaimedLeases;

/// How long a prefix is called young: longer than a store keeps any lease that a user can ask for.
const YOUTH: Duration = Duration::from_hours(27);

/// How often a claim that was overtaken looks again before it reports that.
const MOST_ATTEMPTS: usize = 4;

pub struct Etcd {
    client: Arc<Client>,
    keys: Keys,
    known: Mutex<HashMap<Shard, Known>>,
    unclaimed: Arc<UnclaimedLeases>,
}

/// What this process remembers about a shard.
#[derive(Debug, Default)]
struct Known {
    /// The revision at which the lock was seen held. A standby waits for what happens to the lock after it.
    seen: Option<i64>,
    leadership: Option<Leadership>,
}

/// A leadership of this process.
#[derive(Clone, Debug)]
struct Leadership {
    term: Term,
    lock: Entry<Lock>,
    last: Last,
    /// Some while trees of earlier leaderships may live.
    start_after: Option<BootInstant>,
    /// The highest sequence of a renewal that was applied.
    sequence: u64,
}

impl Etcd {
    /// Opens the store. Sends no request yet.
    ///
    /// # Errors
    /// Misconfigured, if a file for TLS cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let tls = address.tls.as_ref().map(connection::tls).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let wrong = |error: &dyn std::fmt::Display| StoreError::misconfigured(format!("a host of etcd://: {error}"));
        let mut servers = Vec::with_capacity(address.hosts.len());
        for (host, name) in &address.hosts {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{name}")).map_err(|error| wrong(&error))?;
            let tls = tls.clone().map(|tls| Ok((tls, ServerName::try_from(host.clone())?)));
            let tls = tls.transpose().map_err(|error: InvalidDnsNameError| wrong(&error))?;
            servers.push(Server { name: name.clone(), endpoint, tls });
        }
        // With TLS 1.3 a server rejects a client after the handshake, and may close the connection before it has said
        // why.
        let doubt = match &address.tls {
            Some(files) if files.cert.is_some() => "does it trust the certificate in cert=?",
            Some(_) => "does it want a certificate, by cert= and key=?",
            None => "is it etcd, and does it want TLS, by etcds://?",
        };
        let (user, prefix) = (address.user.clone(), address.prefix.clone());
        let client = Arc::new(Client::new(servers, user, prefix, doubt, request_timeout));
        let unclaimed = Arc::new(UnclaimedLeases::new(Arc::clone(&client)));
        Ok(Self { client, keys: Keys { prefix: address.prefix.clone() }, known: Mutex::default(), unclaimed })
    }

    /// The leadership of exactly this session.
    fn leadership(&self, shard: &Shard, session: &Session) -> Option<Leadership> {
        let known = self.known.lock();
        known.get(shard)?.leadership.clone().filter(|leadership| leadership.lock.record.session == *session)
    }

    fn saw_held(&self, shard: &Shard, revision: i64) {
        self.known.lock().entry(shard.clone()).or_default().seen = Some(revision);
    }

    /// Everything that is known about a shard, at one revision.
    async fn look(&self, connection: &Arc<Connection>, shard: &Shard) -> Result<View, StoreError> {
        let request = TxnRequest { success: self.gets(shard), ..TxnRequest::default() };
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        View::read(&connection.server, answer)
    }

    /// The requests for it, in the order of [`View::read`].
    fn gets(&self, shard: &Shard) -> Vec<proto::RequestOp> {
        let keys = &self.keys;
        let keys = [keys.lock(shard), keys.last(shard), keys.base(), keys.young(), keys.copy(shard)];
        keys.iter().map(|key| get(key)).collect()
    }

    async fn get(&self, connection: &Arc<Connection>, key: Vec<u8>) -> Result<RangeResponse, Failure> {
        self.client.call(connection, RANGE, RangeRequest { key, ..RangeRequest::default() }).await
    }

    /// The holder, according to another session's lock.
    async fn holder(&self, connection: &Arc<Connection>, lock: &Entry<Lock>) -> Result<Holder, StoreError> {
        let left = self.time_to_live(connection, lock.lease).await?;
        let renewed_ago = left.as_ref().map(|left| left.granted.saturating_sub(left.at_most));
        let holder = lock.holder(Some(left.map_or(Duration::ZERO, |left| left.at_most)));
        Ok(Holder { renewed_ago, ..holder })
    }
}

#[async_trait::async_trait]
impl Store for Etcd {
    async fn read_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        self.read_many(wanted).await
    }

    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn youth_outlasts_every_lease() {
        use crate::lease::{Timing, TimingRequest, kept};
        let is_refused = |lease| Timing::new(TimingRequest { lease, ..TimingRequest::default() }).is_err();
        let longest = Duration::from_hours(24);
        assert!(!is_refused(longest) && is_refused(longest + Duration::from_secs(1)));
        assert!(kept(longest) < YOUTH);
    }
}
