//! Claims, looks, renewals and releases of the lock item: each is one conditional write of that item.
//!
//! The hazards are those of the store: see its module.

use super::record::{Draft, Item, Record, ttl_of};
use super::table::{Expression, Outcome, lock_key};
use super::{DynamoDb, MOST_ATTEMPTS, Seen, notes, term};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::expiry::ServerTime;
use crate::store::{Claim, ErrorKind, Grant, Holder, Leases, Observation, Release, Renewal, Renewed, StoreError};
use crate::time::{BootInstant, millis};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A first guess that proves to be further ahead than this is corrected, because it would delay a takeover.
const MOST_EXCESS: Duration = Duration::from_secs(5);

/// The condition of a write to the lock that may apply only over an earlier one of the same session.
const MINE: &str = "#session = :me AND #ownerId = :owner AND #beat < :beat";

#[async_trait::async_trait]
impl Leases for DynamoDb {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let mut expired = self.expired(&candidate.shard);
        for _ in 0..MOST_ATTEMPTS {
            match self.attempt(candidate, expired.as_ref()).await? {
                Attempt::Taken(dead) => return self.lead(candidate, &dead).await.map(Claim::Granted),
                Attempt::Held(holder) => return Ok(Claim::Refused(holder)),
                Attempt::Free => expired = None,
                Attempt::Expired(record) => expired = Some(record),
            }
        }
        let shard = &candidate.shard;
        Err(StoreError::unknown(format!("the lock of shard {shard} changes faster than it can be taken")))
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let sent = BootInstant::now();
        let Some(item) = self.table.get(lock_key(shard), false).await? else {
            self.unsee(shard);
            return Ok(Observation::Free);
        };
        let record = self.read(shard, &item)?;
        let left = self.notice(shard, &record, sent);
        Ok(if left.is_zero() { Observation::Free } else { Observation::Held(record.holder(Some(left))) })
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        // The `beat` in the record comes from our own counter, which claims raise as well: see `DynamoDb::beat`. The
        // argument only reveals a renewal that arrives after a later one.
        if self.seen.lock().get(&candidate.shard).is_some_and(|seen| sequence <= seen.renewed) {
            return Ok(Renewed::alone(Renewal::Overtaken));
        }
        let (mine, outcome) = self.prolong(candidate, Some(term), BootInstant::now()).await?;
        let item = match outcome {
            Outcome::Done(before) => {
                let mut seen = self.seen.lock();
                let seen = seen.entry(candidate.shard.clone()).or_default();
                seen.renewed = seen.renewed.max(sequence);
                let stamp = before.as_ref().and_then(notes::stamp_in);
                let orders = seen.orders.as_mut().and_then(|known| known.unless_changed(stamp));
                // The orders of another shard have their stamp in its own lock item.
                let orders = orders.filter(|_| *shards == [candidate.shard.clone()]).map(Vec::from);
                return Ok(Renewed { renewal: Renewal::Renewed, orders });
            }
            Outcome::Refused(Some(item)) => item,
            // The item is gone, or the server does not return it.
            Outcome::Refused(None) => match self.table.get(lock_key(&candidate.shard), true).await? {
                Some(item) => item,
                None => return Ok(Renewed::alone(Renewal::Lost(None))),
            },
        };
        match Record::read(&item) {
            Some(record) if record.is_of(candidate) => {
                let theirs = record.ours.map_or(0, |ours| ours.beat);
                self.beat.fetch_max(theirs, Ordering::Relaxed);
                if theirs >= mine {
                    return Ok(Renewed::alone(Renewal::Overtaken));
                }
                Err(StoreError::unknown(format!(
                    "the record of shard {} changed while it was renewed",
                    candidate.shard
                )))
            }
            Some(record) => Ok(Renewed::alone(Renewal::Lost(Some(record.holder(None))))),
            None => Ok(Renewed::alone(Renewal::Lost(Some(Holder::stranger())))),
        }
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        // Read before anything is sent: a higher beat belongs to a later leadership.
        let beat = self.beat.load(Ordering::Relaxed);
        let led_mark = self.seen.lock().get(&candidate.shard).and_then(|seen| seen.led_mark);
        // In this order: a candidate that sees the lock gone must be able to see why.
        term::mark_released(&self.table, candidate, term, led_mark).await?;
        self.remove(candidate, beat).await
    }

    async fn changed(&self, _shard: &Shard) -> Result<(), StoreError> {
        std::future::pending().await
    }
}

/// The result of an attempt to take the lock.
enum Attempt {
    /// The lock is ours, and the trees of these sessions are dead.
    Taken(Vec<Session>),
    /// The lock was free a moment ago.
    Free,
    /// This record has expired.
    Expired(Record),
    Held(Holder),
}

impl DynamoDb {
    /// Whether the expiry that was written at `sent` is right by what is known now. `known` is false if it was a guess.
    fn is_right(&self, expires_millis: u64, known: bool, sent: BootInstant, lease: Duration) -> bool {
        let clock = self.table.clock();
        let now = BootInstant::now();
        // Earlier knowledge holds, unless this answer contradicted it: looking back from now only adds drift to it.
        if known && clock.agreed_for(now, now.since(sent)) {
            return true;
        }
        clock.bounds(sent).is_none_or(|bounds| {
            let earliest = bounds.upper.saturating_add(millis(lease));
            (earliest..=earliest.saturating_add(millis(MOST_EXCESS))).contains(&expires_millis)
        })
    }

    /// The record that the last look judged expired.
    fn expired(&self, shard: &Shard) -> Option<Record> {
        let seen = self.seen.lock();
        let snapshot = seen.get(shard)?.snapshot.as_ref()?;
        snapshot.expired.then(|| snapshot.record.clone())
    }

    /// One put: over nothing, over our own record, or over exactly the record that has expired.
    async fn attempt(&self, candidate: &Candidate, expired: Option<&Record>) -> Result<Attempt, StoreError> {
        let (sent, beat) = (BootInstant::now(), self.next_beat());
        let known = self.table.clock().bounds(sent).is_some();
        let expires_millis = self.table.expiry(sent, candidate.lease);
        let after = expired.and_then(|record| record.ours.as_ref()).map(|ours| &ours.session);
        let since_millis = self.table.wall_clock_millis();
        let item = Draft { candidate, beat, expires_millis, since_millis, after }.item();
        let condition = match expired {
            None => Expression::new(format!("attribute_not_exists(#pk) OR ({MINE})")).mine(candidate, beat),
            Some(record) => unchanged(record),
        };
        let dead = match self.table.put(item, condition).await? {
            Outcome::Done(old) => match expired {
                Some(record) => record.sessions(),
                // This replaced a record of our own. The session that our record had replaced is still dead.
                None => old.and_then(|old| Record::read(&old)?.ours?.after).into_iter().collect(),
            },
            Outcome::Refused(item) => return self.refused(candidate, item, sent).await,
        };
        if self.is_right(expires_millis, known, sent, candidate.lease) {
            return Ok(Attempt::Taken(dead));
        }
        // Nobody has concluded anything from the record yet, so it may be corrected as a renewal corrects it.
        let sent = BootInstant::now();
        match self.prolong(candidate, None, sent).await? {
            (_, Outcome::Done(_)) => Ok(Attempt::Taken(dead)),
            (_, Outcome::Refused(item)) => self.refused(candidate, item, sent).await,
        }
    }

    /// The holder that stands in the way of a put or update that was sent at `sent`.
    async fn refused(
        &self,
        candidate: &Candidate,
        item: Option<Item>,
        mut sent: BootInstant,
    ) -> Result<Attempt, StoreError> {
        let item = if item.is_some() {
            item
        } else {
            sent = BootInstant::now();
            self.table.get(lock_key(&candidate.shard), true).await?
        };
        let Some(item) = item else {
            self.unsee(&candidate.shard);
            return Ok(Attempt::Free);
        };
        let record = self.read(&candidate.shard, &item)?;
        if let Some(ours) = record.ours.as_ref().filter(|_| record.is_of(candidate)) {
            self.beat.fetch_max(ours.beat, Ordering::Relaxed);
            return Ok(Attempt::Free);
        }
        let left = self.notice(&candidate.shard, &record, sent);
        Ok(if left.is_zero() { Attempt::Expired(record) } else { Attempt::Held(record.holder(Some(left))) })
    }

    /// Prolongs the lease to its whole length, counted from `sent`. Returns the beat that it wrote.
    async fn prolong(
        &self,
        candidate: &Candidate,
        term: Option<Term>,
        sent: BootInstant,
    ) -> Result<(u64, Outcome), StoreError> {
        let beat = self.next_beat();
        let expires_millis = self.table.expiry(sent, candidate.lease);
        let mut update = "SET #ttl = :ttl, #expiresMs = :expires, #leaseMs = :lease, #beat = :beat".to_owned();
        let mut condition = Expression::new(MINE)
            .mine(candidate, beat)
            .number(":ttl", ttl_of(expires_millis))
            .number(":expires", expires_millis)
            .number(":lease", millis(candidate.lease));
        if let Some(term) = term {
            update.push_str(", #term = :term");
            condition = condition.number(":term", term);
        }
        Ok((beat, self.table.update(lock_key(&candidate.shard), &update, condition).await?))
    }

    /// Deletes our lock item, but never one that was written after `beat`: a later claim of ours may have overtaken
    /// this request. Zero comes from a process that has written nothing: it acts for one that is gone.
    pub(super) async fn remove(&self, candidate: &Candidate, mut beat: u64) -> Result<Release, StoreError> {
        let for_another = beat == 0;
        loop {
            let condition =
                Expression::new("#session = :me AND #ownerId = :owner AND #beat <= :beat").mine(candidate, beat);
            let outcome = self.table.delete(lock_key(&candidate.shard), condition).await?;
            self.unsee(&candidate.shard);
            let item = match outcome {
                Outcome::Done(_) => return Ok(Release::Released),
                // Some servers return no item with a failed condition: DynamoDB Local, dynalite.
                Outcome::Refused(None) if for_another => self.table.get(lock_key(&candidate.shard), true).await?,
                Outcome::Refused(item) => item.filter(|_| for_another),
            };
            let record = item.and_then(|item| Record::read(&item)).filter(|record| record.is_of(candidate));
            let Some(ours) = record.and_then(|record| record.ours).filter(|ours| ours.beat > beat) else {
                return Ok(Release::NotHeld);
            };
            beat = ours.beat;
        }
    }

    /// Takes the term. The lock is ours already.
    async fn lead(&self, candidate: &Candidate, dead: &[Session]) -> Result<Grant, StoreError> {
        match term::take(&self.table, candidate, dead).await {
            Ok(grant) => {
                let orders = Some(notes::Known::since(BootInstant::now()));
                let seen = Seen { led_mark: Some(candidate.lease), orders, ..Seen::default() };
                self.seen.lock().insert(candidate.shard.clone(), seen);
                Ok(grant)
            }
            Err(error) => {
                let kind = match error.kind {
                    // The lock was taken, whatever happened to the term.
                    ErrorKind::NotApplied | ErrorKind::Unknown => ErrorKind::Unknown,
                    ErrorKind::Denied | ErrorKind::Misconfigured => {
                        // We will not ask again soon, so others should not have to wait until the lock expires.
                        let _ = self.remove(candidate, self.beat.load(Ordering::Relaxed)).await;
                        error.kind
                    }
                };
                Err(StoreError { kind, ..error })
            }
        }
    }
}

impl Expression {
    fn mine(self, candidate: &Candidate, beat: u64) -> Self {
        self.text(":me", candidate.session.as_str()).text(":owner", &candidate.owner).number(":beat", beat)
    }
}

/// The condition that the item still has exactly this record.
pub(super) fn unchanged(record: &Record) -> Expression {
    let mut text = "#ownerId = :owner AND #ttl = :ttl".to_owned();
    text.push_str(match (&record.ours, &record.session) {
        (Some(_), _) => " AND #session = :session AND #beat = :beat",
        (None, Some(_)) => " AND #session = :session",
        (None, None) => " AND attribute_not_exists(#session)",
    });
    let mut condition = Expression::new(text).text(":owner", &record.owner).number(":ttl", record.ttl);
    if let Some(session) = &record.session {
        condition = condition.text(":session", session.as_str());
    }
    if let Some(ours) = &record.ours {
        condition = condition.number(":beat", ours.beat);
    }
    condition
}
