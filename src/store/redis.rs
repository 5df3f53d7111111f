//! The stores `redis://`, `rediss://`, `redis+unix://` and `redis+sentinel://`: a lock with an expiry, changed only by
//! scripts that run in the server, by the server's clock.
//!
//! The hazard: Redis forgets. A restart loses what was not persisted, a failover loses what was not replicated, and an
//! operator's FLUSHALL loses everything. All of them look like a lock that nobody holds. So beside the lock (a string
//! with an expiry) there are two keys that do not expire:
//!
//! - `store` names the run of the server that has certainly forgotten nothing, and says since when. It consists of
//!   `run_id`, which is new at each start, and `master_replid`, which is new at each promotion of a replica. If either
//!   differs from what the server says of itself, or the key is gone, the server may have forgotten everything until
//!   now.
//! - `last` describes the last leadership of a shard: its term, when it would end, and whether it was released. A lock
//!   that vanished before that end was deleted by hand, and its tree may live until then. After an operator revoked the
//!   lease, `last` says so, because a renewal must not make that lease again. `store` has a copy of `last` as a field.
//!   So if a user deletes all keys of a shard, the copy remains; if the user deletes the copy too, the server counts as
//!   having forgotten everything.
//!
//! The server may have forgotten a lease until one lease after it was first spoken to. In that time **nobody is granted
//! a lease**, and a **renewal makes the lease again** that was forgotten. Why that is safe: until then at most one tree
//! runs, because the server granted its leases one after another. A holder counts from when it sent its last renewal
//! that was granted. Either that was before the server forgot, or the server knows of it. So the tree of a holder that
//! does not renew in that time is dead at its end, as after any expiry. A late packet may make a lease again for a
//! holder that had already lost its leadership. That does no harm: the tree of that holder is dead, it starts none
//! without a claim, claims are refused, and the renewal of the present leader, whose term is higher, replaces it.
//!
//! Terms are at least the server's time in milliseconds, so they rise even after everything was forgotten.
//!
//! What the store has to trust: the server's clock is not set forward. A candidate that saw the lock before still waits
//! for what it saw (`Rival`); a candidate that has just started cannot know. And a master that is cut off from its
//! replicas goes on renewing leases while a promoted replica grants others: `wait=` protects against that.

mod address;
mod administration;
mod check;
mod claim;
mod connection;
mod failure;
mod list;
mod lock_key;
mod notes;
mod record;
mod script;
mod sentinel;
mod watch;

pub use address::Address;

use super::{Delivery, Doubt, Holder, NoteRead, Page, Report, Store, StoreError, tls};
use crate::lease::{Session, Shard, Term};
use crate::mutex::Mutex;
use crate::time::BootInstant;
use connection::Client;
use lock_key::LockKey;
use script::{Counts, Reply, Script, Scripts};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use watch::Subscription;

/// The holder that a server names if it may have forgotten a lease.
const FORGOTTEN: &str = "a leader that the server may have forgotten";

pub struct Redis {
    client: Client,
    scripts: Scripts,
    prefix: String,
    /// How many replicas must have a lease before it counts.
    replicas: u32,
    /// The lock of other programs that is held in addition to the lease.
    lock_key: Option<LockKey>,
    seen: Mutex<HashMap<Shard, Seen>>,
    /// The number of the last request that was sent.
    order: AtomicU64,
    /// Some from one wait for a release to the next.
    subscription: Mutex<Option<Subscription>>,
}

/// What this process remembers about a shard.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The lease that it claims; 0 before its first claim.
    lease_millis: u64,
    /// When its leadership began, by the server's clock.
    began: u64,
    /// When its leadership began by our clock, in RFC 3339.
    started_at: String,
    rival: Option<Rival>,
}

/// A session that stood in our way, by our own clock, in case the server's clock is set forward.
#[derive(Clone, Debug)]
struct Rival {
    /// None for a session that the server may have forgotten.
    session: Option<Session>,
    until: BootInstant,
}

impl Redis {
    /// Opens the store. Sends no request to the server yet.
    ///
    /// # Errors
    /// Misconfigured, if a file for TLS cannot be used.
    #[expect(clippy::unused_async, reason = "all stores are opened in one way")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        tls::install_provider();
        Ok(Self {
            client: Client::new(address, request_timeout)?,
            scripts: Scripts::new(),
            prefix: address.prefix.clone(),
            replicas: address.replicas,
            lock_key: address.lock_key.as_deref().cloned(),
            seen: Mutex::default(),
            order: AtomicU64::new(0),
            subscription: Mutex::default(),
        })
    }

    /// The name of a key. In a cluster all keys must be on one node, because a script may touch no others: the word in
    /// braces selects that node.
    fn key(&self, what: &str) -> String {
        format!("{}{{leases}}:{what}", self.prefix)
    }

    /// The keys of a shard, in the order in which the scripts take them.
    fn own_keys(&self, shard: &Shard) -> [String; 4] {
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

    /// Runs a script. If `counts` says that the answer needs replicas, waits until enough of them have confirmed.
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
        let lease = self.seen.lock().get(shard).map_or(0, |seen| seen.lease_millis);
        self.run(&self.scripts.look, shard, &[&lease.to_string()], None).await
    }

    /// The report about a shard, from the reply to a look.
    fn report(&self, shard: &Shard, reply: &Reply) -> Result<Report, StoreError> {
        let renewed_ago = reply.number(5).map(Duration::from_millis);
        let holder = self.holder(shard, reply, 0)?.map(|holder| Holder { renewed_ago, ..holder });
        Ok(Report { holder, last_term: reply.number(3).filter(|&term| term > 0).map(Term) })
    }

    fn foreign(&self, shard: &Shard) -> Holder {
        let owner = format!("something else that wrote the key {}", self.key(&format!("lock:{shard}")));
        Holder { owner, ..Holder::default() }
    }

    /// The holder, from three words of a reply: the kind, the lock, and how much time is left.
    fn holder(&self, shard: &Shard, reply: &Reply, index: usize) -> Result<Option<Holder>, StoreError> {
        let expires_in = Some(reply.millis(index + 2));
        let foreign = || Holder { expires_in, ..self.foreign(shard) };
        match reply.word(index) {
            "free" => Ok(None),
            "unknown" => Ok(Some(unknown(reply, index + 2, index + 3))),
            "held" => {
                let holder = record::holder(reply.word(index + 1)).map(|holder| Holder { expires_in, ..holder });
                Ok(Some(holder.unwrap_or_else(foreign)))
            }
            "foreign" => Ok(Some(foreign())),
            "taken" => self.taker(reply, index).map(Some).ok_or_else(|| reply.not_understood()),
            _ => Err(reply.not_understood()),
        }
    }
}

/// A leader that the server may have forgotten; `left` and `last` are the places of the time that it may have left, and
/// of the last term.
fn unknown(reply: &Reply, left: usize, last: usize) -> Holder {
    let doubt = if reply.number(last) == Some(0) { Doubt::FirstUse } else { Doubt::Forgotten };
    let expires_in = Some(reply.millis(left));
    Holder { owner: FORGOTTEN.to_owned(), expires_in, doubt: Some(doubt), ..Holder::default() }
}

#[async_trait::async_trait]
impl Store for Redis {
    async fn read_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        let keys: Vec<String> = wanted.iter().map(|(shard, page)| self.note_key(shard, page)).collect();
        self.read_notes_at(&keys).await
    }

    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
