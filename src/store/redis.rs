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
mod connection;
mod failure;
mod list;
mod notes;
mod record;
mod script;
mod sentinel;
mod watch;

pub use address::Address;

use super::{
    Administration, Claim, Delivery, Finding, Grant, Holder, Leases, Observation, Release, Renewal, Report, Store,
    StoreError, many, parallel, tls,
};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::time::{BootInstant, wall_clock_millis};
use connection::Client;
use record::millis;
use script::{Counts, Reply, Script, Scripts};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
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

    /// A number that tells the requests of a session apart, and rises: the time, so that the process that executes
    /// the will of another one goes on where that one ended.
    fn next_order(&self) -> String {
        let now = BootInstant::now().as_nanos() / 1000;
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.order.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).expect("there is always one");
        now.max(last + 1).to_string()
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

    /// Some when nobody may have the lease before that: what a rival's lease had left when it was last seen.
    fn rival_until(&self, shard: &Shard, last: &str, released: bool) -> Option<BootInstant> {
        let seen = self.seen();
        let rival = seen.get(shard)?.rival.as_ref().filter(|_| !released)?;
        let same = rival.session.as_ref().is_none_or(|session| last.is_empty() || session.as_str() == last);
        same.then_some(rival.until)
    }

    /// Takes in that `holder` was in the way of a request that was sent at `sent`.
    fn refused_by(&self, candidate: &Candidate, holder: &Holder, sent: BootInstant) {
        let left = holder.expires_in.unwrap_or_default();
        let rival = Rival { session: holder.session.clone(), until: sent.plus(left - left / DRIFT_PARTS) };
        let mut seen = self.seen();
        let seen = seen.entry(candidate.shard.clone()).or_default();
        seen.lease_millis = millis(candidate.lease);
        seen.rival = Some(rival);
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

    fn granted(&self, candidate: &Candidate, reply: &Reply, started_at: String) -> Result<Grant, StoreError> {
        let (Some(term), Some(began)) = (reply.number(1), reply.number(2)) else { return Err(reply.not_understood()) };
        let now = BootInstant::now();
        let (wait, last, released) = (reply.millis(3), reply.word(4), reply.word(5) == "1");
        let deleted = (!wait.is_zero()).then(|| now.plus(wait));
        let rival = self.rival_until(&candidate.shard, last, released).filter(|&until| now < until);
        let seen = Seen { lease_millis: millis(candidate.lease), began, started_at, rival: None };
        self.seen().insert(candidate.shard.clone(), seen);
        self.subscription().take();
        Ok(Grant { term: Term(term), start_after: deleted.max(rival) })
    }
}

fn now_rfc3339() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

#[async_trait::async_trait]
impl Leases for Redis {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let (sent, order, now) = (BootInstant::now(), self.next_order(), now_rfc3339());
        let lease = millis(candidate.lease);
        let arguments = [
            candidate.session.as_str(),
            &order,
            &lease.to_string(),
            &record::tail(candidate),
            &record::unfinished(candidate, lease, &now, &now),
        ];
        let granted: Counts = |reply| reply.kind() == "granted";
        let reply = self.run(&self.scripts.claim, &candidate.shard, &arguments, Some(granted)).await?;
        match reply.kind() {
            "granted" => Ok(Claim::Granted(self.granted(candidate, &reply, now)?)),
            "stale" => Err(StoreError::unknown("a later request overtook this claim")),
            "unknown" => {
                let expires_in = Some(reply.millis(1));
                let holder = Holder { owner: FORGOTTEN.to_owned(), expires_in, ..Holder::default() };
                self.refused_by(candidate, &holder, sent);
                Ok(Claim::Refused(holder))
            }
            _ => {
                let holder = self.holder(&candidate.shard, &reply, 0)?.ok_or_else(|| reply.not_understood())?;
                self.refused_by(candidate, &holder, sent);
                Ok(Claim::Refused(holder))
            }
        }
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let sent = BootInstant::now();
        let reply = self.look(shard).await?;
        // Only a claim makes the server remember from now on, after which it is known when a lease may be granted.
        if reply.word(4).is_empty() {
            return Ok(Observation::Free);
        }
        let Some(holder) = self.holder(shard, &reply, 0)? else { return Ok(Observation::Free) };
        let left = holder.expires_in.unwrap_or_default();
        let rival = Rival { session: holder.session.clone(), until: sent.plus(left - left / DRIFT_PARTS) };
        // Also where it was never claimed: a slot may be claimed after it was only looked at.
        self.seen().entry(shard.clone()).or_default().rival = Some(rival);
        Ok(Observation::Held(holder))
    }

    async fn renew(&self, candidate: &Candidate, term: Term, beat: u64) -> Result<Renewal, StoreError> {
        let (order, now) = (self.next_order(), now_rfc3339());
        let seen = self.seen().get(&candidate.shard).cloned().unwrap_or_default();
        let lease = millis(candidate.lease);
        // Where this process did not claim, it cannot be a renewal of what anybody remembers.
        let began = if seen.began == 0 { wall_clock_millis() } else { seen.began };
        let started_at = if seen.started_at.is_empty() { &now } else { &seen.started_at };
        let arguments = [
            candidate.session.as_str(),
            &order,
            &lease.to_string(),
            &record::tail(candidate),
            &record::unfinished(candidate, lease, started_at, &now),
            &term.to_string(),
            &beat.to_string(),
            &began.to_string(),
        ];
        let renewed: Counts = |reply| reply.kind() == "renewed";
        let reply = self.run(&self.scripts.renew, &candidate.shard, &arguments, Some(renewed)).await?;
        match reply.kind() {
            "renewed" => Ok(Renewal::Renewed),
            "overtaken" => Ok(Renewal::Overtaken),
            "lost" if reply.word(1).is_empty() => Ok(Renewal::Lost(None)),
            "lost" => Ok(Renewal::Lost(self.holder(&candidate.shard, &reply, 1)?)),
            _ => Err(reply.not_understood()),
        }
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (order, channel) = (self.next_order(), self.channel(&candidate.shard));
        let lease = millis(candidate.lease);
        let arguments = [candidate.session.as_str(), &order, &lease.to_string(), &term.to_string(), channel.as_str()];
        let reply = self.run(&self.scripts.release, &candidate.shard, &arguments, None).await?;
        match reply.kind() {
            "released" => Ok(Release::Released),
            "not held" => Ok(Release::NotHeld),
            _ => Err(reply.not_understood()),
        }
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        self.any_changed(std::slice::from_ref(shard)).await.map(drop)
    }

    /// One connection hears of them all.
    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        let channels: Vec<String> = shards.iter().map(|shard| self.channel(shard)).collect();
        // Dropped with this future, should nobody want to hear any more.
        let mut known = self.subscription().take().filter(|subscription| subscription.is_of(&channels));
        loop {
            let (mut subscription, mut heard) = if let Some(subscription) = known.take() {
                (subscription, None)
            } else {
                let subscription = Subscription::begin(&self.client, &channels).await?;
                // It may have been released before anybody listened.
                let looks = parallel::all(shards.iter().map(|shard| self.observe(shard))).await;
                let looks = looks.into_iter().collect::<Result<Vec<_>, _>>()?;
                (subscription, looks.iter().position(|look| *look == Observation::Free))
            };
            if heard.is_none() {
                heard = subscription.next().await;
            }
            if let Some(index) = heard {
                *self.subscription() = Some(subscription);
                return Ok(index);
            }
            if subscription.was_short() {
                let channels = channels.join(" ");
                return Err(StoreError::not_applied(format!("the subscription to {channels} was ended by the server")));
            }
        }
    }
}

#[async_trait::async_trait]
impl Administration for Redis {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.report(shard, &self.look(shard).await?)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        let shards = list::shards(self, prefix).await?;
        let mut list = many::answers(shards.into_iter().map(|shard| async move {
            let reply = script::read(&self.client, &self.scripts.look, &self.keys(&shard), &["0"]).await?;
            let report = match &reply {
                Some(reply) => self.report(&shard, reply)?,
                None => Report { holder: Some(self.foreign(&shard)), last_term: None },
            };
            Ok((shard, report))
        }))
        .await?;
        // What has vanished since it was found is none any more.
        list.retain(|(_, report)| *report != Report::default());
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(list)
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let channel = self.channel(shard);
        let reply = self.run(&self.scripts.revoke, shard, &[&term.to_string(), &channel], None).await?;
        match reply.kind() {
            "released" => Ok(Release::Released),
            "not held" => Ok(Release::NotHeld),
            _ => Err(reply.not_understood()),
        }
    }

    /// In one script, with the notes: a standby that is fast enough to write another one meanwhile leaves it behind.
    async fn forget(&self, candidate: &Candidate, _term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let mut keys = self.keys(shard).to_vec();
        keys.extend(list::notes(self, shard).await?);
        let (order, lease, channel) = (self.next_order(), millis(candidate.lease).to_string(), self.channel(shard));
        let arguments = [candidate.session.as_str(), &order, &lease, &channel];
        let reply = script::run(&self.client, &self.scripts.forget, &keys, &arguments, None).await?;
        match reply.kind() {
            "released" => {
                self.seen().remove(shard);
                Ok(Release::Released)
            }
            "not held" => Ok(Release::NotHeld),
            _ => Err(reply.not_understood()),
        }
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        check::prepare(self).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(self).await
    }
}

impl Store for Redis {
    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
