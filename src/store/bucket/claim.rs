//! Claims, looks, renewals and releases: each is one conditional write of the shard's object.
//!
//! The hazards are those of the store: see its module.

use super::objects::{Condition, Outcome};
use super::record::{Found, Lease, Record, shard_key};
use super::{Bucket, MOST_ATTEMPTS, term};
use crate::lease::{Candidate, Shard, Term};
use crate::store::expiry::ServerTime;
use crate::store::server_clock::{Wait, with_drift};
use crate::store::{
    Claim, Doubt, ErrorKind, Grant, Holder, Leases, Note, Observation, Release, Renewal, Renewed, StoreError,
};
use crate::time::{BootInstant, millis};
use std::time::Duration;

#[async_trait::async_trait]
impl Leases for Bucket {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let shard = &candidate.shard;
        term::require_marker(self).await?;
        let mut known = self.claimable(candidate);
        for _ in 0..MOST_ATTEMPTS {
            let sent = BootInstant::now();
            let found = match known.take() {
                Some(known) => Some(known),
                None => self.look(shard).await?,
            };
            if let Some(found) = &found
                && !found.record.is_of(candidate)
                && let Some(holder) = self.in_the_way(shard, &found.record, sent)
            {
                return Ok(Claim::Refused(holder));
            }
            if let Some(grant) = self.attempt(candidate, found).await? {
                return Ok(Claim::Granted(grant));
            }
        }
        Err(StoreError::unknown(format!("the object of shard {shard} changes faster than it can be taken")))
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let sent = BootInstant::now();
        let Some(Found { record, .. }) = self.look(shard).await? else { return Ok(Observation::Free) };
        Ok(self.in_the_way(shard, &record, sent).map_or(Observation::Free, Observation::Held))
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let shard = &candidate.shard;
        let mut is_mine = false;
        for _ in 0..MOST_ATTEMPTS {
            if self.seen.lock().get(shard).is_some_and(|seen| (term.0, sequence) <= seen.renewed) {
                return Ok(Renewed::alone(Renewal::Overtaken));
            }
            let known = self.known(shard).filter(|known| known.record.is_of(candidate));
            let found = match known {
                Some(known) => Some(known),
                None => self.look(shard).await?,
            };
            let Some(Found { record, version }) = found else { return Ok(Renewed::alone(Renewal::Lost(None))) };
            let mut draft = record;
            let lease = match &mut draft.lease {
                Some(lease) if lease.session == candidate.session => lease,
                Some(_) => return Ok(Renewed::alone(Renewal::Lost(draft.holder(None)))),
                None => return Ok(Renewed::alone(Renewal::Lost(None))),
            };
            if !is_mine && (draft.term, lease.beat) >= (term.0, sequence) {
                return Ok(Renewed::alone(Renewal::Overtaken));
            }
            let sent = BootInstant::now();
            lease.prolong(sequence, candidate.lease, self.objects.expiry(sent, candidate.lease));
            draft.term = term.0;
            let is_written = self.write(shard, &draft, Condition::Unchanged(&version)).await?;
            if is_written && self.is_uncontradicted(sent) {
                let mut seen = self.seen.lock();
                let seen = seen.entry(shard.clone()).or_default();
                seen.renewed = seen.renewed.max((term.0, sequence));
                return Ok(Renewed { renewal: Renewal::Renewed, orders: self.orders_with(candidate, &draft, shards) });
            }
            is_mine = is_written;
        }
        Err(StoreError::unknown(format!("the object of shard {shard} changes faster than it can be renewed")))
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let mut known = self.known(shard).filter(|known| known.record.is_of(candidate));
        for _ in 0..MOST_ATTEMPTS {
            let found = match known.take() {
                Some(known) => Some(known),
                None => self.look(shard).await?,
            };
            // Zero: the term is not known. A higher one belongs to a later leadership.
            let mine = |found: &Found| found.record.is_of(candidate) && (term.0 == 0 || found.record.term <= term.0);
            let Some(Found { record, version }) = found.filter(mine) else { return Ok(Release::NotHeld) };
            let mut draft = record;
            (draft.lease, draft.term) = (None, draft.term.max(term.0));
            if self.write(shard, &draft, Condition::Unchanged(&version)).await? {
                return Ok(Release::Released);
            }
        }
        Err(StoreError::unknown(format!("the object of shard {shard} changes faster than it can be released")))
    }

    async fn changed(&self, _shard: &Shard) -> Result<(), StoreError> {
        std::future::pending().await
    }
}

impl Bucket {
    /// Whether no answer since `sent` contradicted what was known of the server's clock then. If one did, the expiry
    /// that was written may be too early, and has to be written again.
    fn is_uncontradicted(&self, sent: BootInstant) -> bool {
        let now = BootInstant::now();
        self.objects.clock().agreed_for(now, now.since(sent))
    }

    /// Writes the object of a shard. False if the condition failed: then what is known of the shard is forgotten.
    pub(super) async fn write(
        &self,
        shard: &Shard,
        draft: &Record,
        condition: Condition<'_>,
    ) -> Result<bool, StoreError> {
        match self.objects.put(&shard_key(shard), draft.bytes()?, condition).await {
            Ok(Outcome::Done(version)) => {
                self.remember(shard, draft.clone(), version);
                Ok(true)
            }
            Ok(Outcome::Refused) => {
                self.doubt(shard);
                Ok(false)
            }
            Err(error) => {
                if error.kind == ErrorKind::Unknown {
                    self.doubt(shard);
                }
                Err(error)
            }
        }
    }

    /// The object as it was last seen, if it could be taken then.
    fn claimable(&self, candidate: &Candidate) -> Option<Found> {
        let seen = self.seen.lock();
        let seen = seen.get(&candidate.shard)?;
        let is_free = |found: &&Found| {
            let has_expired = seen.snapshot.as_ref().is_some_and(|snapshot| {
                found
                    .record
                    .lease
                    .as_ref()
                    .is_some_and(|lease| snapshot.expired && snapshot.is_of(found.record.term, lease))
            });
            found.record.lease.is_none() || has_expired || found.record.is_of(candidate)
        };
        seen.found.as_ref().filter(is_free).cloned()
    }

    /// The holder of a lease that has not expired.
    fn in_the_way(&self, shard: &Shard, record: &Record, read_sent: BootInstant) -> Option<Holder> {
        let left = self.notice(shard, record, read_sent);
        record.holder(Some(left)).filter(|_| !left.is_zero())
    }

    /// One write over nothing, or over exactly the object that may be taken. None if it changed meanwhile.
    async fn attempt(&self, candidate: &Candidate, found: Option<Found>) -> Result<Option<Grant>, StoreError> {
        let shard = &candidate.shard;
        let (mut draft, version) = match found {
            Some(Found { record, version }) => (record, Some(version)),
            None => (Record::new(shard), None),
        };
        let (mut start_after, doubt);
        if draft.was_led() {
            let (clock, now) = (self.objects.clock(), BootInstant::now());
            start_after = draft.wait().and_then(|wait| wait.over_by(&clock, self.objects.wall_clock_millis(), now));
            if start_after.is_none() {
                draft.set_wait(None);
            }
            draft.term += 1;
            doubt = Doubt::Forgotten;
        } else {
            let first = term::first(self, candidate).await?;
            (draft.term, start_after, doubt) = (first.term, first.start_after, Doubt::FirstUse);
            draft.set_wait(start_after.map(|start| self.wait_until(start)));
        }
        draft.forgotten = false;
        let sent = BootInstant::now();
        let since_millis = self.objects.wall_clock_millis();
        draft.lease = Some(Lease::new(candidate, self.objects.expiry(sent, candidate.lease), since_millis));
        let condition = version.as_ref().map_or(Condition::Absent, Condition::Unchanged);
        if !self.write(shard, &draft, condition).await? || !self.is_uncontradicted(sent) {
            return Ok(None);
        }
        if draft.led_ms >= millis(candidate.lease) {
            return Ok(Some(Grant { term: Term(draft.term), start_after, doubt }));
        }
        // The lease is granted already, so that of several candidates one does this.
        let led = self.led_before(candidate, &draft).await?;
        let was_deleted = draft.led_ms == 0 && led.is_some();
        let longest = led.unwrap_or_default().max(candidate.lease);
        if was_deleted {
            // The shard was led before its object began: an earlier one was deleted.
            let dead_at = BootInstant::now().plus(with_drift(longest));
            let start = start_after.map_or(dead_at, |start| start.max(dead_at));
            start_after = Some(start);
            draft.set_wait(Some(self.wait_until(start)));
            // Above the terms of the object that was deleted, as in `term::first`.
            draft.term = draft.term.max(self.objects.server_millis(start) + 1);
        }
        draft.led_ms = draft.led_ms.max(millis(longest));
        let Some(Found { version, .. }) = self.known(shard) else { return Ok(None) };
        let is_written = self.write(shard, &draft, Condition::Unchanged(&version)).await?;
        let doubt = if was_deleted { Doubt::Forgotten } else { doubt };
        Ok(is_written.then_some(Grant { term: Term(draft.term), start_after, doubt }))
    }

    fn wait_until(&self, start: BootInstant) -> Wait {
        Wait { until_millis: self.objects.server_millis(start), duration: start.since(BootInstant::now()) }
    }

    /// Has the led mark record our lease. Returns the longest lease that it had before, None if there was no mark.
    async fn led_before(&self, candidate: &Candidate, draft: &Record) -> Result<Option<Duration>, StoreError> {
        match term::keep_led_mark(self, &candidate.shard, candidate.lease).await {
            Ok(before) => Ok(before),
            Err(error) => {
                let kind = match error.kind {
                    // The lease was taken, whatever happened to the mark.
                    ErrorKind::NotApplied | ErrorKind::Unknown => ErrorKind::Unknown,
                    ErrorKind::Denied | ErrorKind::Misconfigured => {
                        // We will not ask again soon, so others should not have to wait until the lease expires.
                        let _ = self.release(candidate, Term(draft.term)).await;
                        error.kind
                    }
                };
                Err(StoreError { kind, ..error })
            }
        }
    }

    /// The orders that a renewal of `record` has proved. None if others are asked for too.
    fn orders_with(&self, candidate: &Candidate, record: &Record, shards: &[Shard]) -> Option<Vec<Option<Note>>> {
        if !shards.iter().all(|shard| *shard == candidate.shard) {
            return None;
        }
        let now_millis = self.objects.least_server_millis();
        let orders = record.orders.as_ref().and_then(|orders| orders.note(now_millis));
        Some(vec![orders; shards.len()])
    }
}
