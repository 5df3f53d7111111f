//! Claims, looks, renewals and releases of a lease: by writes that name the revision that they replace.
//!
//! The hazards are those of the store: see its module.

use super::address::led_mark_of;
use super::bucket::{Bucket, Put};
use super::jetstream::{Entry, Stamp};
use super::lock_key::{Kept, Taken};
use super::record::{Content, LedMark, Record, Snapshot};
use super::{Asks, MOST_ATTEMPTS, Nats, slack, watch};
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Claim, ErrorKind, Grant, Leases, Observation, Release, Renewal, Renewed, StoreError, Takeover};
use crate::time::{BootInstant, millis, wall_clock_millis};
use std::time::Duration;

#[async_trait::async_trait]
impl Leases for Nats {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let Some(lock) = &self.lock else { return self.claim_record(candidate).await };
        if lock.is_record_of(&self.bucket, &candidate.shard) {
            return Err(lock.is_ours(&candidate.shard));
        }
        let last_term = self.known(&candidate.shard).and_then(|known| known.term());
        let term = last_term.map_or_else(|| wall_clock_millis().saturating_mul(1000), |last| last.saturating_add(1));
        if let Taken::Theirs(stranger) = lock.take(candidate, Term(term)).await? {
            // If a leader of ours has both, its record says more. A record of our own is from a leadership that was
            // lost.
            let Observation::Held(holder) = self.observe_record(&candidate.shard).await? else {
                return Ok(Claim::Refused(stranger));
            };
            let is_own = holder.session.as_ref() == Some(&candidate.session);
            return Ok(Claim::Refused(if is_own { stranger } else { holder }));
        }
        let claim = self.claim_record(candidate).await;
        let may_lead = match &claim {
            Ok(Claim::Granted(_)) => true,
            Ok(Claim::Refused(_)) => false,
            Err(error) => error.kind == ErrorKind::Unknown,
        };
        if !may_lead {
            lock.let_go(candidate).await;
        }
        claim
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        match (self.observe_record(shard).await?, &self.lock) {
            (Observation::Free, Some(lock)) => Ok(lock.holder().await?.map_or(Observation::Free, Observation::Held)),
            (observation, _) => Ok(observation),
        }
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let (record, called) = (self.renew_record(candidate, term, sequence), BootInstant::now());
        let (renewal, revision) = match &self.lock {
            None => record.await?,
            Some(lock) => match tokio::join!(record, lock.renew(candidate, term, called)) {
                (Ok((Renewal::Revoked, _)), _) => (Renewal::Revoked, None),
                (Ok((Renewal::Lost(holder), _)), _) | (_, Ok(Kept::Lost(holder))) => (Renewal::Lost(holder), None),
                (Ok(renewed), Ok(Kept::Ours)) => renewed,
                (Err(error), _) | (_, Err(error)) => {
                    return Err(match error.kind {
                        ErrorKind::NotApplied | ErrorKind::Unknown => StoreError::unknown(error.message),
                        ErrorKind::Denied | ErrorKind::Misconfigured => error,
                    });
                }
            },
        };
        let Some(revision) = revision else { return Ok(Renewed::alone(renewal)) };
        Ok(Renewed { renewal, orders: self.orders_at(&candidate.shard, shards, revision, called).await })
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        if let Some(lock) = &self.lock {
            lock.let_go(candidate).await;
        }
        self.release_record(candidate, term).await
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        if let Some(lock) = &self.lock
            && self.observe_record(shard).await? == Observation::Free
        {
            return lock.freed().await;
        }
        watch::changed(self, shard).await
    }

    /// Doubts nothing. It is called for as long as we lead, and hears of orders meanwhile.
    async fn doubted(&self, shard: &Shard) {
        self.hear_orders(shard).await;
    }
}

/// The record by itself, without the key of other programs.
impl Nats {
    async fn claim_record(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        if let Some(snapshot) = self.free_as_known(candidate)
            && let Some(grant) = self.succeed(candidate, &snapshot).await?
        {
            return Ok(Claim::Granted(grant));
        }
        for _ in 0..MOST_ATTEMPTS {
            let grant = match self.ground(candidate).await? {
                Ground::Held(snapshot) => return Ok(Claim::Refused(snapshot.holder(BootInstant::now()))),
                Ground::Over(snapshot) => self.succeed(candidate, &snapshot).await?,
                Ground::Nothing(deleted) => self.begin(candidate, deleted.as_ref()).await?,
            };
            if let Some(grant) = grant {
                return Ok(Claim::Granted(grant));
            }
        }
        let shard = &candidate.shard;
        Err(StoreError::unknown(format!("the record of shard {shard} changes faster than it can be taken")))
    }

    pub(super) async fn observe_record(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let Some(snapshot) = self.look_dated(shard, Asks::Candidate).await? else { return Ok(Observation::Free) };
        let now = BootInstant::now();
        Ok(if snapshot.left(now).is_zero() { Observation::Free } else { Observation::Held(snapshot.holder(now)) })
    }

    pub(super) async fn release_record(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let mut snapshot = self.held_as_known(candidate);
        let mut written = false;
        for _ in 0..MOST_ATTEMPTS {
            let last = match snapshot.take() {
                Some(known) => Some(known),
                None => self.look(shard).await?,
            };
            let Some((last, record)) = last.as_ref().and_then(|last| Some((last, last.record()?))) else {
                return Ok(Release::NotHeld);
            };
            // A release that the session's next leadership has overtaken must not end that leadership.
            let later = term != Term(0) && last.term().is_some_and(|of_record| of_record > term.0);
            if written && record.is_of(candidate) && record.released {
                return Ok(Release::Released);
            }
            if !record.is_of(candidate) || record.released || later {
                return Ok(Release::NotHeld);
            }
            let hold_until = last.hold_until(BootInstant::now());
            let record = Record { released: true, term: last.term(), ..record.clone() };
            if self.write(shard, record, last.revision, hold_until).await?.is_some() {
                return Ok(Release::Released);
            }
            written = true;
        }
        Err(StoreError::unknown(format!("the record of shard {shard} changes faster than it can be released")))
    }
}

/// What a claim finds in the place of the record.
enum Ground {
    /// A candidate leads.
    Held(Snapshot),
    /// A record whose leadership is over, or our own.
    Over(Snapshot),
    /// No record. Some if a record was deleted: the snapshot of the deletion.
    Nothing(Option<Snapshot>),
}

impl Nats {
    /// The record that we know, if it is free for a claim. No request is needed: the revision in it decides. None if a
    /// tree may still run: the record may be older than we have known it, and then the wait is shorter.
    fn free_as_known(&self, candidate: &Candidate) -> Option<Snapshot> {
        let snapshot = self.known(&candidate.shard)?;
        let (record, now) = (snapshot.record()?, BootInstant::now());
        let is_settled = snapshot.dated || snapshot.hold_until(now).is_none();
        let free = record.is_of(candidate) || (snapshot.left(now).is_zero() && is_settled);
        (free && snapshot.term().is_some()).then_some(snapshot)
    }

    /// Our own record as we know it. None if we released it: a claim of ours that was late may have replaced it.
    fn held_as_known(&self, candidate: &Candidate) -> Option<Snapshot> {
        let is_held = |snapshot: &Snapshot| snapshot.record().is_some_and(|record| !record.released);
        self.known(&candidate.shard).filter(|known| Self::is_ours(candidate, known) && is_held(known))
    }

    async fn ground(&self, candidate: &Candidate) -> Result<Ground, StoreError> {
        let Some(snapshot) = self.look(&candidate.shard).await? else { return Ok(Ground::Nothing(None)) };
        let record = match &snapshot.content {
            Content::Record(record) => record,
            Content::Deleted => return Ok(Ground::Nothing(Some(snapshot))),
            Content::Foreign => return Err(self.foreign(&candidate.shard)),
        };
        if record.is_of(candidate) {
            return Ok(Ground::Over(snapshot));
        }
        let now = BootInstant::now();
        let settled = snapshot.left(now).is_zero() && snapshot.hold_until(now).is_none();
        let snapshot = if settled { snapshot } else { self.dated(&candidate.shard, snapshot, Asks::Candidate).await? };
        Ok(if snapshot.left(BootInstant::now()).is_zero() { Ground::Over(snapshot) } else { Ground::Held(snapshot) })
    }

    /// Claims after a leadership that is over. None if another candidate was faster.
    async fn succeed(&self, candidate: &Candidate, last: &Snapshot) -> Result<Option<Grant>, StoreError> {
        let Some((term, record)) = last.term().zip(last.record()) else { return Ok(None) };
        let term = term.saturating_add(1);
        let hold_until = last.hold_until(BootInstant::now());
        let ours = Record { revoked: record.revoked, ..Record::new(candidate, Some(term), record.led_mark_ms) };
        let Some(snapshot) = self.write(&candidate.shard, ours, last.revision, hold_until).await? else {
            return Ok(None);
        };
        if record.led_mark_ms < millis(candidate.lease) {
            let kept = match self.bucket.get(&led_mark_of(&candidate.shard)).await {
                Ok(led_mark) => self.keep_led_mark(candidate, &snapshot, led_mark).await,
                Err(error) => Err(error),
            };
            if self.completed(candidate, kept).await?.is_none() {
                return Ok(None);
            }
        }
        if !self.is_sole(candidate, &snapshot).await? {
            return Ok(None);
        }
        Ok(Some(Grant {
            term: Term(term),
            start_after: hold_until.filter(|&until| until > BootInstant::now()),
            takeover: if record.released { Takeover::Released } else { Takeover::Expired },
        }))
    }

    /// Claims if there is no record. None if another candidate was faster.
    async fn begin(&self, candidate: &Candidate, deleted: Option<&Snapshot>) -> Result<Option<Grant>, StoreError> {
        let led_mark_key = led_mark_of(&candidate.shard);
        let (led_mark, marker, info) =
            tokio::join!(self.bucket.get(&led_mark_key), self.bucket.marker(), self.bucket.info());
        let (led_mark, marker, info) = (led_mark?, marker?, info?.ok_or_else(|| self.bucket.missing())?);
        self.bucket.usable(&info)?;
        if marker.is_none() {
            self.bucket.mark().await?;
        }
        // An earlier leader has not renewed since the look that found nothing.
        let sent = BootInstant::now();
        let led_by = led_mark.as_ref().map_or(0, |mark| LedMark::read(mark).lease_ms).max(millis(candidate.lease));
        let longest = Duration::from_millis(led_by);
        let all = sent.plus(longest);
        let revoked = led_mark.as_ref().and_then(|mark| LedMark::read(mark).revoked);
        let record = Record { revoked, ..Record::new(candidate, None, 0) };
        let expected = deleted.map_or(0, |snapshot| snapshot.revision);
        // The longest wait that may be necessary. Once the record is stored we know better.
        let Some(snapshot) = self.write(&candidate.shard, record, expected, Some(all)).await? else { return Ok(None) };
        let kept = self.keep_led_mark(candidate, &snapshot, led_mark.clone()).await;
        let Some((stamp, heard)) = self.completed(candidate, kept).await? else { return Ok(None) };
        if !self.is_sole(candidate, &snapshot).await? {
            return Ok(None);
        }
        let rest = |since| heard.plus(longest.saturating_sub(stamp.since(since).saturating_sub(slack(&info)))).min(all);
        let by_marker = match marker {
            Some(marker) if Bucket::is_new(&marker) => heard,
            Some(marker) => rest(marker.stamp),
            None => all,
        };
        let takeover = match &led_mark {
            Some(_) if revoked.is_some() => Takeover::Revoked,
            None if deleted.is_none() => Takeover::First,
            Some(_) | None => Takeover::Expired,
        };
        let by_deletion = match (deleted.and_then(|deleted| deleted.stamp), led_mark) {
            (Some(deleted), _) => rest(deleted),
            (None, Some(_)) => all,
            (None, None) => heard,
        };
        let hold_until = by_marker.max(by_deletion);
        if let Some(known) =
            self.seen.lock().get_mut(&candidate.shard).filter(|known| known.revision == snapshot.revision)
        {
            known.hold_until = Some(hold_until);
        }
        let start_after = Some(hold_until).filter(|&until| until > BootInstant::now());
        Ok(Some(Grant { term: Term(stamp.micros()), start_after, takeover }))
    }

    /// Whether the claim that stored `snapshot` is the only one that was granted.
    ///
    /// The leader of a replicated stream compares revisions when it accepts a write, and stores the write once a second
    /// server has it. Servers before 2.9.21 accept several writes over one revision meanwhile, and acknowledge all
    /// of them. By the time that a later write of ours is stored, they are stored as well. So of all claimants only the
    /// last one then finds its record in place.
    async fn is_sole(&self, candidate: &Candidate, snapshot: &Snapshot) -> Result<bool, StoreError> {
        let look = async {
            if !self.bucket.may_be_replicated().await? {
                return Ok(true);
            }
            self.bucket.earlier_writes_are_stored().await?;
            Ok(self.look(&candidate.shard).await?.is_some_and(|now| now.revision == snapshot.revision))
        };
        let sole = look.await;
        self.completed(candidate, sole).await
    }

    /// Marks that the shard was led: after its record `snapshot` was written, and before its tree starts. Then checks
    /// that the record is still there, because another candidate that found neither record nor led mark would start
    /// too.
    ///
    /// `led_mark` is the mark as it was read. Returns None if the record is gone.
    async fn keep_led_mark(
        &self,
        candidate: &Candidate,
        snapshot: &Snapshot,
        mut led_mark: Option<Entry>,
    ) -> Result<Option<(Stamp, BootInstant)>, StoreError> {
        let (key, lease_ms) = (led_mark_of(&candidate.shard), millis(candidate.lease));
        for _ in 0..MOST_ATTEMPTS {
            let expected = led_mark.as_ref().map_or(0, |mark| mark.revision);
            let known = led_mark.as_ref().map(LedMark::read).unwrap_or_default();
            let enough = known.lease_ms >= lease_ms && known.revoked.is_none();
            let mark = LedMark { lease_ms: known.lease_ms.max(lease_ms), revoked: None };
            if enough || self.bucket.put(&key, mark.encoded(), expected).await? != Put::Conflict {
                let ours = self.look(&candidate.shard).await?.filter(|now| now.revision == snapshot.revision);
                if let Some(known) = self.seen.lock().get_mut(&candidate.shard)
                    && known.revision == snapshot.revision
                    && let Content::Record(record) = &mut known.content
                {
                    record.led_mark_ms = lease_ms;
                }
                let heard = BootInstant::now();
                return Ok(ours.and_then(|ours| ours.stamp).map(|stamp| (stamp, heard)));
            }
            led_mark = self.bucket.get(&key).await?;
        }
        let shard = &candidate.shard;
        Err(StoreError::unknown(format!("the record that shard {shard} was led changes faster than it can be kept")))
    }

    /// What a renewal of `term` is that found no record. The led mark tells whether an operator deleted it.
    async fn gone(&self, shard: &Shard, term: Term) -> Renewal {
        let led_mark = self.bucket.get(&led_mark_of(shard)).await.ok().flatten();
        match led_mark.as_ref().map(LedMark::read) {
            Some(LedMark { revoked: Some(revoked), .. }) if revoked == term.0 => Renewal::Revoked,
            Some(_) | None => Renewal::Lost(None),
        }
    }

    /// Writes into the led mark that an operator takes the lease of `term` away, which lasts this long.
    pub(super) async fn mark_revoked(&self, shard: &Shard, term: Term, lease_ms: u64) -> Result<(), StoreError> {
        let key = led_mark_of(shard);
        for _ in 0..MOST_ATTEMPTS {
            let before = self.bucket.get(&key).await?;
            let known = before.as_ref().map(LedMark::read).unwrap_or_default();
            let mark = LedMark { lease_ms: known.lease_ms.max(lease_ms), revoked: Some(term.0) };
            let expected = before.map_or(0, |mark| mark.revision);
            if self.bucket.put(&key, mark.encoded(), expected).await? != Put::Conflict {
                return Ok(());
            }
        }
        Err(StoreError::unknown(format!("the record that shard {shard} was led changes faster than it can be kept")))
    }

    /// Renews. Returns also the revision that the renewal got, if its acknowledgement told that.
    async fn renew_record(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
    ) -> Result<(Renewal, Option<u64>), StoreError> {
        // One revision follows another, so of several renewals under way only one is applied in each round trip. On a
        // slow network that is enough only if it is the right one.
        let (shard, called) = (&candidate.shard, BootInstant::now());
        self.begin_renewal(shard, term, sequence);
        let mut snapshot = self.held_as_known(candidate);
        let mut written = false;
        for _ in 0..MOST_ATTEMPTS {
            let last = match snapshot.take() {
                Some(known) => known,
                None => match self.look(shard).await? {
                    Some(seen) => seen,
                    None => return Ok((self.gone(shard, term).await, None)),
                },
            };
            let record = match &last.content {
                Content::Record(record) if record.is_of(candidate) && record.released => {
                    return Ok((Renewal::Lost(None), None));
                }
                Content::Record(record) if record.is_of(candidate) => record,
                Content::Deleted => return Ok((self.gone(shard, term).await, None)),
                Content::Record(record) if record.revoked == Some(term.0) => return Ok((Renewal::Revoked, None)),
                Content::Record(_) | Content::Foreign => {
                    return Ok((Renewal::Lost(Some(last.holder(BootInstant::now()))), None));
                }
            };
            // Refused because it had been applied: the request was sent over two connections.
            if written && record.beat == sequence && last.term() == Some(term.0) {
                return Ok((Renewal::Renewed, None));
            }
            // A later leadership of the same session is later as well.
            if record.beat >= sequence || last.term().is_some_and(|of_record| of_record > term.0) {
                return Ok((Renewal::Overtaken, None));
            }
            let lease_ms = millis(candidate.lease);
            let record = Record { beat: sequence, term: Some(term.0), lease_ms, ..record.clone() };
            let hold_until = last.hold_until(BootInstant::now());
            tokio::select! {
                biased;
                done = self.write(shard, record, last.revision, hold_until) => {
                    if let Some(stored) = done? {
                        return Ok((Renewal::Renewed, Some(stored.revision)));
                    }
                    written = true;
                }
                // Another renewal of ours replaced that revision, so this one is refused, wherever it is.
                () = self.succeeded_to(candidate, last.revision) => {
                    if BootInstant::now().since(called) > self.bucket.connections.bound() / 8 {
                        return Ok((Renewal::Overtaken, None));
                    }
                }
            }
            snapshot = self
                .known(shard)
                .filter(|snapshot| Self::is_ours(candidate, snapshot) && snapshot.revision != last.revision);
            // Only one at a time can be applied. The renewal that was requested last counts from the latest instant.
            if snapshot.is_some() && !self.is_latest(shard, term, sequence) {
                return Ok((Renewal::Overtaken, None));
            }
        }
        Err(StoreError::unknown(format!("the record of shard {shard} changes faster than it can be renewed")))
    }

    fn begin_renewal(&self, shard: &Shard, term: Term, sequence: u64) {
        let mut latest = self.latest.lock();
        let latest = latest.entry(shard.clone()).or_insert((term, sequence));
        *latest = (*latest).max((term, sequence));
    }

    fn is_latest(&self, shard: &Shard, term: Term, sequence: u64) -> bool {
        self.latest.lock().get(shard) == Some(&(term, sequence))
    }

    /// Returns when a record of ours is known to have replaced `revision`.
    async fn succeeded_to(&self, candidate: &Candidate, revision: u64) {
        loop {
            let noted = self.noted.notified();
            let known = self.known(&candidate.shard);
            if known.is_some_and(|known| known.revision != revision && Self::is_ours(candidate, &known)) {
                return;
            }
            noted.await;
        }
    }

    /// Handles a failure after the record was written, in the steps that follow.
    async fn completed<T>(&self, candidate: &Candidate, done: Result<T, StoreError>) -> Result<T, StoreError> {
        match done {
            Ok(done) => Ok(done),
            Err(error) => match error.kind {
                ErrorKind::NotApplied | ErrorKind::Unknown => Err(StoreError::unknown(error.message)),
                ErrorKind::Denied | ErrorKind::Misconfigured => {
                    // We will not ask again soon, so others should not have to wait until the lease expires.
                    let _ = self.release_record(candidate, Term(0)).await;
                    Err(error)
                }
            },
        }
    }
}
