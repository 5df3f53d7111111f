//! Claims, looks, renewals and releases: each is one script in the server.
//!
//! The hazard: a request may be applied after its caller gave up waiting, and after a later request of the same
//! session. So each request carries a number that rises, and the scripts ignore a request with a lower number than one
//! they have seen.

use super::script::{Counts, Reply};
use super::{Redis, Rival, Seen, record, unknown};
use crate::lease::{Candidate, DRIFT_PARTS, Shard, Term};
use crate::store::{
    Claim, Doubt, Grant, Holder, Leases, Note, Observation, Page, Release, Renewal, Renewed, StoreError,
};
use crate::time::{BootInstant, millis, rfc3339, wall_clock_millis};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[async_trait::async_trait]
impl Leases for Redis {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let (sent, order, now) = (BootInstant::now(), self.next_order(), rfc3339(wall_clock_millis()));
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
                let holder = unknown(&reply, 1, 2);
                self.refused_by(candidate, &holder, sent);
                Ok(Claim::Refused(holder))
            }
            kind => {
                let holder = self.holder(&candidate.shard, &reply, 0)?.ok_or_else(|| reply.not_understood())?;
                if kind == "taken" {
                    self.taken_from(&candidate.shard, lease);
                    return Ok(Claim::Refused(holder));
                }
                self.refused_by(candidate, &holder, sent);
                Ok(Claim::Refused(holder))
            }
        }
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let sent = BootInstant::now();
        let reply = self.look(shard).await?;
        if reply.kind() == "taken" {
            return Ok(self.taker(&reply, 0).map_or(Observation::Free, Observation::Held));
        }
        // Only a claim makes the server remember from now on. After that it is known when a lease may be granted.
        if reply.word(4).is_empty() {
            return Ok(Observation::Free);
        }
        let Some(holder) = self.holder(shard, &reply, 0)? else { return Ok(Observation::Free) };
        // Stored even if the shard was never claimed: a slot may be claimed after it was only looked at.
        self.seen.lock().entry(shard.clone()).or_default().rival = Some(rival(&holder, sent));
        Ok(Observation::Held(holder))
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let (order, now) = (self.next_order(), rfc3339(wall_clock_millis()));
        let seen = self.seen.lock().get(&candidate.shard).cloned().unwrap_or_default();
        let lease = millis(candidate.lease);
        // If this process did not claim, this cannot be the renewal of a lease that anything remembers.
        let began = if seen.began == 0 { wall_clock_millis() } else { seen.began };
        let started_at = if seen.started_at.is_empty() { &now } else { &seen.started_at };
        let (lease_millis, tail) = (lease.to_string(), record::tail(candidate));
        let record = record::unfinished(candidate, lease, started_at, &now);
        let (term, sequence, began) = (term.to_string(), sequence.to_string(), began.to_string());
        let orders: Vec<String> = shards.iter().map(|shard| self.note_key(shard, &Page::Orders)).collect();
        let session = candidate.session.as_str();
        let mut arguments = vec![session, &order, &lease_millis, &tail, &record, &term, &sequence, &began];
        arguments.extend(orders.iter().map(String::as_str));
        let renewed: Counts = |reply| reply.kind() == "renewed";
        let reply = self.run(&self.scripts.renew, &candidate.shard, &arguments, Some(renewed)).await?;
        match reply.kind() {
            "renewed" => Ok(Renewed { renewal: Renewal::Renewed, orders: orders_in(&reply, shards.len()) }),
            "overtaken" => Ok(Renewed::alone(Renewal::Overtaken)),
            "lost" if reply.word(1).is_empty() => Ok(Renewed::alone(Renewal::Lost(None))),
            "lost" => Ok(Renewed::alone(Renewal::Lost(self.holder(&candidate.shard, &reply, 1)?))),
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
        self.wait_for_release(std::slice::from_ref(shard)).await.map(drop)
    }

    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        self.wait_for_release(shards).await
    }
}

/// The orders that came with the answer to a renewal: for each shard a text and what is left of its time. None if one
/// could not be read.
fn orders_in(reply: &Reply, shards: usize) -> Option<Vec<Option<Note>>> {
    let note = |index: usize| {
        let (text, left) = (reply.word(2 * index + 1), reply.word(2 * index + 2));
        let left: i64 = left.parse().ok()?;
        // For a note without an end, the server reports a negative time.
        let lasts = u64::try_from(left).ok().map(Duration::from_millis);
        Some((!text.is_empty()).then(|| Note::lasting(text.to_owned(), lasts)))
    };
    (0..shards).map(note).collect::<Option<_>>().filter(|_| !reply.garbled)
}

impl Redis {
    /// A number that rises and distinguishes the requests of a session. It is the time, so a process that acts for
    /// another one continues where that one ended.
    pub(super) fn next_order(&self) -> String {
        let now = BootInstant::now().as_nanos() / 1000;
        let next = |last: u64| Some(now.max(last + 1));
        let last = self.order.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).expect("there is always one");
        now.max(last + 1).to_string()
    }

    /// Some if no candidate may have the lease before that instant: the time that a rival's lease had left when it was
    /// last seen.
    fn rival_until(&self, shard: &Shard, last: &str, released: bool) -> Option<BootInstant> {
        let seen = self.seen.lock();
        let rival = seen.get(shard)?.rival.as_ref().filter(|_| !released)?;
        let same = rival.session.as_ref().is_none_or(|session| last.is_empty() || session.as_str() == last);
        same.then_some(rival.until)
    }

    /// Remembers that `holder` was in the way of a request that was sent at `sent`.
    fn refused_by(&self, candidate: &Candidate, holder: &Holder, sent: BootInstant) {
        let mut seen = self.seen.lock();
        let seen = seen.entry(candidate.shard.clone()).or_default();
        seen.lease_millis = millis(candidate.lease);
        seen.rival = Some(rival(holder, sent));
    }

    fn granted(&self, candidate: &Candidate, reply: &Reply, started_at: String) -> Result<Grant, StoreError> {
        let (Some(term), Some(began)) = (reply.number(1), reply.number(2)) else { return Err(reply.not_understood()) };
        let now = BootInstant::now();
        let (wait, last, released) = (reply.millis(3), reply.word(4), reply.word(5) == "1");
        let deleted = (!wait.is_zero()).then(|| now.plus(wait));
        let rival = self.rival_until(&candidate.shard, last, released).filter(|&until| now < until);
        let seen = Seen { lease_millis: millis(candidate.lease), began, started_at, rival: None };
        self.seen.lock().insert(candidate.shard.clone(), seen);
        self.subscription.lock().take();
        Ok(Grant { term: Term(term), start_after: deleted.max(rival), doubt: Doubt::Forgotten })
    }
}

fn rival(holder: &Holder, sent: BootInstant) -> Rival {
    let left = holder.expires_in.unwrap_or_default();
    Rival { session: holder.session.clone(), until: sent.plus(left - left / DRIFT_PARTS) }
}
