//! The store `dynamodb://`: one item a shard in a DynamoDB table, changed only by conditional single-item writes.
//!
//! The hazard: DynamoDB keeps no leases. It compares and swaps one item, and it evaluates no clock while it does. So
//! everything that makes the item a lease is done here, on hosts whose clocks are wrong, over a network that loses
//! answers and delivers writes late:
//!
//! - A write that arrives late must not undo a later one. Every lock write of a session carries a `beat` that is
//!   higher than all before it, and applies only over a lower one.
//! - A claim whose answer was lost is made again, and is granted over the record of the same session.
//! - A takeover applies only to the very record that was judged expired. A record that changes in between, by
//!   however little, refuses it. That is why standbys may look with eventually consistent reads.
//! - Whether a record has expired is judged by the server's clock as far as it can be known (`clock`), and by how
//!   long the record stood unchanged on our own.
//! - A record that vanished without a release leaves a tree behind that may still run (`term`). To revoke a lease is to
//!   make its record vanish. All records of a shard may vanish at once: a ledger apart from them tells.
//!
//! Other programs may use the same table by the same four attributes (`record`). No transactions: multi-region
//! strongly consistent tables do not have them.

mod check;
mod clock;
mod connection;
mod failure;
mod notes;
mod record;
mod table;
mod term;

use super::{
    Administration, Claim, Delivery, Finding, Grant, Holder, Leases, Observation, Release, Renewal, Report, Store,
    StoreError,
};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::ErrorKind;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::parallel;
use crate::time::{BootInstant, wall_clock_millis};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use connection::BySchemeClient;
use record::{Draft, Item, LOCK, Moment, PARTITION, Record, Sight, TERM, millis, partition, shard_of, ttl_of};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{Expression, Outcome, Table, lock_key};

/// Which table, and how to reach it. What is None is found as the AWS SDK finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub table: String,
    pub region: Option<String>,
    pub endpoint: Option<String>,
    pub profile: Option<String>,
}

/// Milliseconds since 1970, as this machine believes.
pub type WallClock = fn() -> u64;

/// A claim that is refused looks again this often before it says so: somebody released or renewed in between.
const MOST_ATTEMPTS: usize = 4;

/// How much later than our wall clock DynamoDB's may be while no answer has told. The upper end of the first
/// answer's date is up to two seconds ahead; a guess that proves too low costs one more write.
const FIRST_GUESS: Duration = Duration::from_millis(2500);

/// From one look at the server's clock to the next, while it has not passed a term.
const MOMENT: Duration = Duration::from_millis(100);

/// A first guess that proves to be further ahead than this is taken back: it would delay a takeover.
const MOST_EXCESS: Duration = Duration::from_secs(5);

pub struct DynamoDb {
    table: Table,
    /// The last beat that was given out. One counter for claims and renewals alike, for they overtake each other too;
    /// a session never outlives it.
    beat: AtomicU64,
    seen: Mutex<HashMap<Shard, Seen>>,
}

/// What this process remembers of a shard.
#[derive(Debug, Default)]
struct Seen {
    sight: Option<Sight>,
    /// The highest `beat` argument of a renewal that was applied in this leadership.
    renewed: u64,
    /// The ledger has this lease.
    ledger: Option<Duration>,
}

/// What an attempt to take the lock came to.
enum Attempt {
    /// It is ours, and the trees of these sessions are dead.
    Taken(Vec<Session>),
    /// Nobody had it a moment ago.
    Free,
    /// This record has expired.
    Expired(Record),
    Held(Holder),
}

impl DynamoDb {
    /// Asks nothing of the table yet.
    ///
    /// # Errors
    /// When there is no region, or the endpoint is not a URL.
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        Self::open_with_wall_clock(address, request_timeout, wall_clock_millis).await
    }

    /// For tests of what a wrong wall clock does.
    ///
    /// # Errors
    /// As [`DynamoDb::open`].
    #[doc(hidden)]
    pub async fn open_with_wall_clock(
        address: &Address,
        request_timeout: Duration,
        wall_clock: WallClock,
    ) -> Result<Self, StoreError> {
        Self::open_over(SharedHttpClient::new(BySchemeClient::default()), address, request_timeout, wall_clock).await
    }

    /// For simulations, whose network is not a real one.
    ///
    /// # Errors
    /// As [`DynamoDb::open`].
    #[doc(hidden)]
    pub async fn open_over(
        network: SharedHttpClient,
        address: &Address,
        request_timeout: Duration,
        wall_clock: WallClock,
    ) -> Result<Self, StoreError> {
        let table = Table::open(network, address, request_timeout, wall_clock).await?;
        Ok(Self { table, beat: AtomicU64::new(0), seen: Mutex::default() })
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Shard, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_beat(&self) -> u64 {
        self.beat.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The expiry to write into a request that is sent at `sent`: not before the end of the lease as the server's
    /// clock will show it.
    fn expiry(&self, sent: BootInstant, lease: Duration) -> u64 {
        let guess = || self.table.wall_clock_millis().saturating_add(millis(FIRST_GUESS));
        let now = self.table.watch.clock().bounds(sent).map_or_else(guess, |bounds| bounds.upper);
        now.saturating_add(millis(lease))
    }

    /// Whether what was written at `sent`, by a guess if nothing was `known` then, is right by what is known now.
    fn is_right(&self, expires_millis: u64, known: bool, sent: BootInstant, lease: Duration) -> bool {
        let clock = self.table.watch.clock();
        let now = BootInstant::now();
        // What was known holds, unless this very answer belied it: looking back from now only adds drift to it.
        if known && clock.settled(now, now.since(sent)) {
            return true;
        }
        clock.bounds(sent).is_none_or(|bounds| {
            let earliest = bounds.upper.saturating_add(millis(lease));
            (earliest..=earliest.saturating_add(millis(MOST_EXCESS))).contains(&expires_millis)
        })
    }

    fn read(&self, shard: &Shard, item: &Item) -> Result<Record, StoreError> {
        Record::read(item).ok_or_else(|| {
            StoreError::misconfigured(format!(
                "the record of shard {shard} in table {} was written by something else: it needs ownerId (S) and ttl \
                 (N); delete the item pk=SHARD#{shard}, sk=LOCK or use another table",
                self.table.name
            ))
        })
    }

    /// Takes in what a read sent at `read_sent` has shown. Answers how long the record has to live, zero if it expired.
    fn notice(&self, shard: &Shard, record: &Record, read_sent: BootInstant) -> Duration {
        let moment = Moment { read_sent, now: BootInstant::now(), wall_millis: self.table.wall_clock_millis() };
        let mut seen = self.seen();
        let sight = &mut seen.entry(shard.clone()).or_default().sight;
        let known = sight.take().filter(|sight| sight.record == *record);
        let mut known = known.unwrap_or_else(|| Sight::first(record.clone(), moment.now, moment.wall_millis));
        let left = known.expires_in(&self.table.watch.clock(), moment);
        known.expired = left.is_zero();
        *sight = Some(known);
        left
    }

    /// Who leads by a record that a read sent at `read_sent` has shown. None when it has expired.
    fn holder(&self, shard: &Shard, record: &Record, read_sent: BootInstant) -> Option<Holder> {
        let left = self.notice(shard, record, read_sent);
        let renewed_ago = || record.renewed_ago(&self.table.watch.clock(), BootInstant::now());
        (!left.is_zero()).then(|| Holder { renewed_ago: renewed_ago(), ..record.holder(Some(left)) })
    }

    /// Whether a record that a read sent at `read_sent` has shown is the lease of `term`, and may go: whoever finds it
    /// gone will know of its tree.
    async fn may_go(
        &self,
        shard: &Shard,
        record: &Record,
        term: Term,
        read_sent: BootInstant,
    ) -> Result<bool, StoreError> {
        let holder = self.holder(shard, record, read_sent);
        let (Some(holder), Some(ours)) = (holder, record.ours.as_ref()) else { return Ok(false) };
        let last = term::last(&self.table, shard).await?;
        let forgotten = last.is_none();
        if report(Some(holder), last).holder.is_none_or(|holder| holder.term != Some(term)) {
            return Ok(false);
        }
        if forgotten {
            term::remember(&self.table, shard, term, ours).await?;
        }
        Ok(true)
    }

    /// Whether the first term of a shard that begins now is higher, also on another host. A moment's wait may make it so.
    async fn is_past(&self, term: Term) -> bool {
        let give_up = BootInstant::now().plus(FIRST_GUESS);
        loop {
            let now = BootInstant::now();
            match self.table.watch.clock().bounds(now).map(|bounds| bounds.lower) {
                Some(least) if least >= term.0 => return true,
                Some(_) if now < give_up => tokio::time::sleep(MOMENT).await,
                Some(_) | None => return false,
            }
        }
    }

    fn unsee(&self, shard: &Shard) {
        self.seen().remove(shard);
    }

    /// The record that the last look judged expired.
    fn expired(&self, shard: &Shard) -> Option<Record> {
        let seen = self.seen();
        let sight = seen.get(shard)?.sight.as_ref()?;
        sight.expired.then(|| sight.record.clone())
    }

    /// One put: over nothing or our own record, or over the very record that has expired.
    async fn attempt(&self, candidate: &Candidate, expired: Option<&Record>) -> Result<Attempt, StoreError> {
        let (sent, beat) = (BootInstant::now(), self.next_beat());
        let known = self.table.watch.clock().bounds(sent).is_some();
        let expires_millis = self.expiry(sent, candidate.lease);
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
                // Over a record of our own: what that one replaced is as dead as it was.
                None => old.and_then(|old| Record::read(&old)?.ours?.after).into_iter().collect(),
            },
            Outcome::Refused(item) => return self.refused(candidate, item, sent).await,
        };
        if self.is_right(expires_millis, known, sent, candidate.lease) {
            return Ok(Attempt::Taken(dead));
        }
        // Nothing has been concluded from the record yet, so it may be mended as a renewal mends it.
        let sent = BootInstant::now();
        match self.prolong(candidate, None, sent).await? {
            (_, Outcome::Done(_)) => Ok(Attempt::Taken(dead)),
            (_, Outcome::Refused(item)) => self.refused(candidate, item, sent).await,
        }
    }

    /// What stands in the way of a put or update that was sent at `sent`.
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

    /// A whole lease more, counted from `sent`. Answers with the beat that it wrote.
    async fn prolong(
        &self,
        candidate: &Candidate,
        term: Option<Term>,
        sent: BootInstant,
    ) -> Result<(u64, Outcome), StoreError> {
        let beat = self.next_beat();
        let expires_millis = self.expiry(sent, candidate.lease);
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

    /// Deletes our lock item, but never one that was written after `beat`: by a later claim of ours, which this one is
    /// slower than. Zero is of a process that has written nothing: it speaks for one that is gone.
    async fn remove(&self, candidate: &Candidate, mut beat: u64) -> Result<Release, StoreError> {
        let for_another = beat == 0;
        loop {
            let condition =
                Expression::new("#session = :me AND #ownerId = :owner AND #beat <= :beat").mine(candidate, beat);
            let outcome = self.table.delete(lock_key(&candidate.shard), condition).await?;
            self.unsee(&candidate.shard);
            match outcome {
                Outcome::Done(_) => return Ok(Release::Released),
                Outcome::Refused(None) => return Ok(Release::NotHeld),
                Outcome::Refused(Some(item)) => {
                    let record = Record::read(&item).filter(|record| record.is_of(candidate) && for_another);
                    let Some(ours) = record.and_then(|record| record.ours).filter(|ours| ours.beat > beat) else {
                        return Ok(Release::NotHeld);
                    };
                    beat = ours.beat;
                }
            }
        }
    }

    /// The lock is ours, the term is not yet.
    async fn lead(&self, candidate: &Candidate, dead: &[Session]) -> Result<Grant, StoreError> {
        match term::take(&self.table, candidate, dead).await {
            Ok(grant) => {
                let seen = Seen { ledger: Some(candidate.lease), ..Seen::default() };
                self.seen().insert(candidate.shard.clone(), seen);
                Ok(grant)
            }
            Err(error) => {
                let kind = match error.kind {
                    // The lock was taken, whatever became of the term.
                    ErrorKind::NotApplied | ErrorKind::Unknown => ErrorKind::Unknown,
                    ErrorKind::Denied | ErrorKind::Misconfigured => {
                        // Nobody will ask again soon, so others need not wait until it expires.
                        let _ = self.remove(candidate, self.beat.load(Ordering::Relaxed)).await;
                        error.kind
                    }
                };
                Err(StoreError { kind, ..error })
            }
        }
    }
}

/// The last term, and whose it is.
type LastTerm = (Term, Option<Session>);

/// Of what the lock item and the term item tell.
fn report(mut holder: Option<Holder>, last: Option<LastTerm>) -> Report {
    // The lock item has the term from the first renewal on; before that, the term item tells.
    if let (Some(holder), Some((term, whose))) = (&mut holder, &last)
        && holder.session.is_some()
        && holder.session == *whose
    {
        holder.term.get_or_insert(*term);
    }
    Report { holder, last_term: last.map(|(term, _)| term) }
}

/// Of a lock write that may only apply over an earlier one of the same session.
const MINE: &str = "#session = :me AND #ownerId = :owner AND #beat < :beat";

impl Expression {
    fn mine(self, candidate: &Candidate, beat: u64) -> Self {
        self.text(":me", candidate.session.as_str()).text(":owner", &candidate.owner).number(":beat", beat)
    }
}

/// The item still holds this very record.
fn unchanged(record: &Record) -> Expression {
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

    async fn renew(&self, candidate: &Candidate, term: Term, beat: u64) -> Result<Renewal, StoreError> {
        // The beat in the record is our own counter's, which claims raise as well: see `DynamoDb::beat`. The argument
        // only tells a renewal that comes after its successor.
        if self.seen().get(&candidate.shard).is_some_and(|seen| beat <= seen.renewed) {
            return Ok(Renewal::Overtaken);
        }
        let (mine, outcome) = self.prolong(candidate, Some(term), BootInstant::now()).await?;
        let item = match outcome {
            Outcome::Done(_) => {
                let mut seen = self.seen();
                let seen = seen.entry(candidate.shard.clone()).or_default();
                seen.renewed = seen.renewed.max(beat);
                return Ok(Renewal::Renewed);
            }
            Outcome::Refused(Some(item)) => item,
            // Gone, or the server does not return it.
            Outcome::Refused(None) => match self.table.get(lock_key(&candidate.shard), true).await? {
                Some(item) => item,
                None => return Ok(Renewal::Lost(None)),
            },
        };
        match Record::read(&item) {
            Some(record) if record.is_of(candidate) => {
                let theirs = record.ours.map_or(0, |ours| ours.beat);
                self.beat.fetch_max(theirs, Ordering::Relaxed);
                if theirs >= mine {
                    return Ok(Renewal::Overtaken);
                }
                Err(StoreError::unknown(format!(
                    "the record of shard {} changed while it was renewed",
                    candidate.shard
                )))
            }
            Some(record) => Ok(Renewal::Lost(Some(record.holder(None)))),
            None => Ok(Renewal::Lost(Some(Holder::stranger()))),
        }
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        // Before anything is sent: what is written from now on is of a later leadership.
        let beat = self.beat.load(Ordering::Relaxed);
        let ledger = self.seen().get(&candidate.shard).and_then(|seen| seen.ledger);
        // In this order: whoever sees the lock gone must see why.
        term::mark_released(&self.table, candidate, term, ledger).await?;
        self.remove(candidate, beat).await
    }

    async fn changed(&self, _shard: &Shard) -> Result<(), StoreError> {
        std::future::pending().await
    }
}

#[async_trait::async_trait]
impl Administration for DynamoDb {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let sent = BootInstant::now();
        let item = self.table.get(lock_key(shard), true).await?;
        let mut holder = None;
        if let Some(item) = item {
            let record = self.read(shard, &item)?;
            holder = self.holder(shard, &record, sent);
        }
        Ok(report(holder, term::last(&self.table, shard).await?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        let mut found: BTreeMap<Shard, (Option<Holder>, Option<LastTerm>)> = BTreeMap::new();
        let mut from = None;
        loop {
            let sent = BootInstant::now();
            let filter = Expression::new("begins_with(#pk, :prefix) AND #sk IN (:lock, :term)")
                .text(":prefix", &format!("{PARTITION}{prefix}"))
                .text(":lock", LOCK)
                .text(":term", TERM);
            let (items, ended) = self.table.scan(filter, from).await?;
            for item in items {
                let Some(shard) = shard_of(&item) else { continue };
                if record::text(&item, "sk") == Some(LOCK) {
                    let record = Record::read(&item);
                    let holder =
                        record.map_or_else(|| Some(Holder::stranger()), |record| self.holder(&shard, &record, sent));
                    found.entry(shard).or_default().0 = holder;
                } else {
                    let last = term::told(&self.table, &shard, &item);
                    found.entry(shard).or_default().1 = last;
                }
            }
            if found.len() > MOST_LISTED {
                return Err(StoreError::misconfigured(allowance::too_long(&self.table.server)));
            }
            from = ended;
            if from.is_none() {
                break;
            }
        }
        Ok(found.into_iter().map(|(shard, (holder, last))| (shard, report(holder, last))).collect())
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        let mut found = None;
        for _ in 0..MOST_ATTEMPTS {
            let sent = BootInstant::now();
            let item = match found.take() {
                Some(item) => item,
                None => match self.table.get(lock_key(shard), true).await? {
                    Some(item) => item,
                    None => return Ok(Release::NotHeld),
                },
            };
            let record = self.read(shard, &item)?;
            if !self.may_go(shard, &record, term, sent).await? {
                return Ok(Release::NotHeld);
            }
            // The term item stays as it is: it names a holder who did not say goodbye, and for how long its tree may run.
            match self.table.delete(lock_key(shard), unchanged(&record)).await? {
                Outcome::Done(_) => {
                    self.unsee(shard);
                    return Ok(Release::Released);
                }
                // Renewed meanwhile, or gone, or the server does not return it.
                Outcome::Refused(item) => found = item,
            }
        }
        Err(StoreError::not_applied(format!("the lock of shard {shard} changes faster than it can be revoked")))
    }

    /// The lock goes last, so that nobody comes in between; without it, its term item would make the next leader wait.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (shard, beat) = (&candidate.shard, self.beat.load(Ordering::Relaxed));
        let item = self.table.get(lock_key(shard), true).await?;
        if !item.and_then(|item| Record::read(&item)).is_some_and(|record| record.is_of(candidate)) {
            return Ok(Release::NotHeld);
        }
        let sorts = self.table.sorts(shard).await?;
        let notes: Vec<String> = sorts.into_iter().filter(|sort| notes::is_note(sort)).collect();
        for some in notes.chunks(self.lanes()) {
            let there = || Expression::new("attribute_exists(#pk)");
            let deletions = some.iter().map(|sort| {
                self.table.delete((AttributeValue::S(partition(shard)), AttributeValue::S(sort.clone())), there())
            });
            parallel::all(deletions).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        if self.is_past(term).await {
            term::forget(&self.table, candidate, term).await?;
        } else {
            term::mark_released(&self.table, candidate, term, None).await?;
        }
        self.remove(candidate, beat).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        check::prepare(&self.table).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(&self.table).await
    }
}

impl Store for DynamoDb {
    fn delivery(&self) -> Delivery {
        Delivery::Poll
    }

    fn hindrance(&self) -> Option<String> {
        self.table.watch.clock().hindrance(BootInstant::now())
    }

    fn is_metered(&self) -> bool {
        true
    }
}
