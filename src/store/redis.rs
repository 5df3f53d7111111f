//! The stores `redis://`, `rediss://`, `redis+unix://` and `redis+sentinel://`: a lock with an expiry, changed only by
//! scripts that run in the server, by the server's clock.
//!
//! The hazard: Redis forgets. A restart loses what was not persisted, a failover what was not replicated, an operator's
//! FLUSHALL everything, and all of them look like a lock that nobody holds. So beside the lock (a string with an
//! expiry) stand two keys that do not expire:
//!
//! - `store` names the run of the server that is known to have forgotten nothing, and since when: `run_id`, which is
//!   new at each start, and `master_replid`, which is new at each promotion of a replica. When either differs from
//!   what the server says of itself, or the key is gone, the server may have forgotten everything until now.
//! - `last` tells of the last leadership of a shard: its term, when it would end, and whether it was released. A lock
//!   that vanished before that was deleted by hand, and its tree may live until then. Where an operator revoked it,
//!   `last` says so, for a renewal must not make that lease again. A copy of it is a field of `store`: who deletes all
//!   keys of a shard leaves it behind, and who deletes that one as well has the server forget everything.
//!
//! While the server may have forgotten a lease, which is until one lease after it was first spoken to, **nobody is
//! granted one**, and a **renewal makes the lease again** that was forgotten. Why that is safe: until then one tree runs
//! at most, for the server granted its leases one after another. A holder counts from when it sent its last renewal
//! that was granted; that was before the server forgot, or the server knows of it. So who does not renew in that
//! time is dead at its end, as after any expiry. And a renewal that was made again by one who had lost its leadership
//! before (a packet that came late) does no harm: its tree is dead, it starts none without a claim, claims are refused,
//! and the renewal of the one that leads, whose term is higher, replaces it.
//!
//! Terms are at least the server's time in milliseconds, so they rise also after everything was forgotten.
//!
//! What is left to trust: the server's clock is not set forward. A candidate that saw the lock before still waits for
//! what it saw (`Rival`); one that has just been started cannot know. And a master that is cut off from its replicas
//! goes on renewing leases while a promoted replica grants others: `wait=` is against that.

mod address;
mod check;
mod claim;
mod connection;
mod failure;
mod list;
mod notes;
mod record;
mod script;
mod sentinel;
mod watch;

pub use address::Address;

use super::{Delivery, Holder, Report, Store, StoreError, tls};
use crate::lease::{Session, Shard, Term};
use crate::time::BootInstant;
use connection::Client;
use script::{Counts, Reply, Script, Scripts};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use watch::Subscription;

/// Whom a server that may have forgotten a lease names as its holder.
const FORGOTTEN: &str = "a leader that the server may have forgotten";
/// Rates of clocks differ by less than one part in this many.
const DRIFT_PARTS: u32 = 100;

pub struct Redis {
    client: Client,
    scripts: Scripts,
    prefix: String,
    /// So many replicas have a lease before it counts.
    replicas: u32,
    seen: Mutex<HashMap<Shard, Seen>>,
    /// The number of the last request that was sent.
    order: AtomicU64,
    /// Some from one wait for news to the next.
    subscription: Mutex<Option<Subscription>>,
}

/// What this process remembers of a shard.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// For how long it claims; 0 before its first claim.
    lease_millis: u64,
    /// When its leadership began, by the server's clock.
    began: u64,
    /// The same by ours, in RFC 3339.
    started_at: String,
    rival: Option<Rival>,
}

/// Who stood in our way. By our own clock, in case the server's is set forward.
#[derive(Clone, Debug)]
struct Rival {
    /// None for somebody that the server may have forgotten.
    session: Option<Session>,
    until: BootInstant,
}

impl Redis {
    /// Asks nothing of the server yet.
    ///
    /// # Errors
    /// Misconfigured, when a file for TLS cannot be used.
    #[expect(clippy::unused_async, reason = "all stores are opened in one way")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        tls::install_provider();
        Ok(Self {
            client: Client::new(address, request_timeout)?,
            scripts: Scripts::new(),
            prefix: address.prefix.clone(),
            replicas: address.replicas,
            seen: Mutex::default(),
            order: AtomicU64::new(0),
            subscription: Mutex::default(),
        })
    }

    /// In a cluster all keys are on one node, for a script may touch no others: that of the word in braces.
    fn key(&self, what: &str) -> String {
        format!("{}{{leases}}:{what}", self.prefix)
    }

    /// In the order in which the scripts take them.
    fn keys(&self, shard: &Shard) -> [String; 4] {
        [
            self.key(&format!("lock:{shard}")),
            self.key(&format!("last:{shard}")),
            self.key(&format!("leader:{shard}")),
            self.key("store"),
        ]
    }

    fn channel(&self, shard: &Shard) -> String {
        self.key(&format!("released:{shard}"))
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Shard, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscription(&self) -> MutexGuard<'_, Option<Subscription>> {
        self.subscription.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a script; as often as it is told to, replicas confirm.
    async fn run(
        &self,
        script: &Script,
        shard: &Shard,
        arguments: &[&str],
        counts: Option<Counts>,
    ) -> Result<Reply, StoreError> {
        let replicas = counts.filter(|_| self.replicas > 0).map(|counts| (self.replicas, counts));
        let reply = script::run(&self.client, script, &self.keys(shard), arguments, replicas).await?;
        match reply.replicas {
            Some(number) if number < self.replicas => Err(StoreError::unknown(format!(
                "only {number} of the {} replicas that wait= asks for have confirmed the lease to {}",
                self.replicas, reply.place
            ))),
            Some(_) | None => Ok(reply),
        }
    }

    async fn look(&self, shard: &Shard) -> Result<Reply, StoreError> {
        let lease = self.seen().get(shard).map_or(0, |seen| seen.lease_millis);
        self.run(&self.scripts.look, shard, &[&lease.to_string()], None).await
    }

    /// What a look showed.
    fn report(&self, shard: &Shard, reply: &Reply) -> Result<Report, StoreError> {
        let renewed_ago = reply.number(5).map(Duration::from_millis);
        let holder = self.holder(shard, reply, 0)?.map(|holder| Holder { renewed_ago, ..holder });
        Ok(Report { holder, last_term: reply.number(3).filter(|&term| term > 0).map(Term) })
    }

    fn foreign(&self, shard: &Shard) -> Holder {
        let owner = format!("something else that wrote the key {}", self.key(&format!("lock:{shard}")));
        Holder { owner, ..Holder::default() }
    }

    /// As three words of a reply tell: what it is, the lock, and what is left of it.
    fn holder(&self, shard: &Shard, reply: &Reply, index: usize) -> Result<Option<Holder>, StoreError> {
        let expires_in = Some(reply.millis(index + 2));
        let foreign = || Holder { expires_in, ..self.foreign(shard) };
        match reply.word(index) {
            "free" => Ok(None),
            "unknown" => Ok(Some(Holder { owner: FORGOTTEN.to_owned(), expires_in, ..Holder::default() })),
            "held" => {
                let holder = record::holder(reply.word(index + 1)).map(|holder| Holder { expires_in, ..holder });
                Ok(Some(holder.unwrap_or_else(foreign)))
            }
            "foreign" => Ok(Some(foreign())),
            _ => Err(reply.not_understood()),
        }
    }
}

impl Store for Redis {
    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
