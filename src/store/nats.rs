//! The store `nats://`: one key a shard in a JetStream key-value bucket, changed only at the revision that was seen.
//!
//! The hazard: a bucket keeps no leases. It compares revisions and stamps what it stores with its clock; everything
//! that makes a record a lease is done here, over a network that loses answers and delivers writes late:
//!
//! - Every write names the revision it replaces, so a write that arrives late applies only if nothing has happened since
//!   it was sent, as if it had been in time: a renewal then prolongs what nobody has taken yet, a release gives back what
//!   its holder has not touched since. A claim that is delivered after its claimant has gone blocks the shard for one
//!   lease; it starts nothing. Revisions are not reused: `store init` makes them begin at the microsecond at which the
//!   bucket is made, so those of a bucket that was dropped and made again do not meet the old ones.
//! - A lease has expired when its record stood unchanged for all of it, as long as we have known it (a standby hears of
//!   each renewal at once), or by the server's clock: the time it tells now minus its stamp on the record. Two servers
//!   of a cluster may have stamped the two, so there more has to pass (`CLUSTER_SLACK`).
//! - A release marks the record and leaves it there. So an absent record is of a shard that was never led, or somebody
//!   deleted it, or all of the bucket; its holder may not know yet, and its tree runs until its deadline. A second
//!   record, the ledger, tells the first from the second, and a marker in the bucket tells since when it remembers
//!   anything. A leader that has to wait for such a tree may crash meanwhile, so its record says until when to wait, and
//!   every successor keeps to that.
//!
//! The term is one more than that of the record before. Where there is none it is the microsecond of the server's
//! clock, above all that came before unless that clock is set back.
//!
//! What cannot be helped: a server that loses acknowledged writes (storage in memory, a crash of the machine between
//! two syncs) has forgotten leaderships, and does not know it.

mod address;
mod bucket;
mod check;
mod connection;
mod list;
mod notes;
mod record;
mod watch;

pub use address::{Address, Login};

use super::{
    Administration, Claim, Delivery, Finding, Grant, Leases, Observation, Release, Renewal, Report, Store, StoreError,
    many,
};
use crate::lease::{Candidate, Shard, Term};
use crate::store::ErrorKind;
use crate::time::BootInstant;
use address::{NOTHING, is_note_of, key_of, ledger_of};
use bucket::{Bucket, Entry, Info, Put, Stamp};
use connection::Connections;
use record::{Content, Ledger, Record, Sight, millis};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A write that is refused looks again this often before it says so: somebody wrote in between.
const MOST_ATTEMPTS: usize = 4;
/// The clocks of a cluster's servers are trusted to agree so far.
const CLUSTER_SLACK: Duration = Duration::from_secs(5);

pub struct Nats {
    bucket: Bucket,
    seen: Mutex<HashMap<Shard, Sight>>,
    /// Something was seen.
    noted: Notify,
    /// The latest renewal that was asked for: its term and beat.
    latest: Mutex<HashMap<Shard, (Term, u64)>>,
}

/// Who wants to know how old a record is, of a server that does not tell the time.
#[derive(Clone, Copy)]
enum Asks {
    /// May write, and does not need another permission for this.
    Candidate,
    /// May be allowed to look only.
    Onlooker,
}

/// What a claim finds in the place of the record.
enum Ground {
    /// Somebody leads.
    Held(Sight),
    /// A record whose leadership is over, or our own.
    Over(Sight),
    /// No record; what says so, where somebody deleted one.
    Nothing(Option<Sight>),
}

impl Nats {
    /// Asks nothing of the server yet.
    ///
    /// # Errors
    /// Misconfigured, when a file cannot be used that the address names.
    #[expect(clippy::unused_async, reason = "all stores are opened in the same way")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let bucket = Bucket { connections: Connections::open(address, request_timeout)? };
        Ok(Self { bucket, seen: Mutex::default(), noted: Notify::new(), latest: Mutex::default() })
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Shard, Sight>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, shard: &Shard) -> Option<Sight> {
        self.seen().get(shard).cloned()
    }

    /// Takes in what was seen by a request sent at `asked`, or later. Answers with all that is known of it.
    ///
    /// Answers may come in another order than they were sent in, so what is known stays unless this is newer.
    fn note(&self, shard: &Shard, sight: Sight, asked: BootInstant) -> Sight {
        let mut seen = self.seen();
        let Some(known) = seen.get_mut(shard) else {
            seen.insert(shard.clone(), sight.clone());
            return sight;
        };
        if known.is_same(&sight) {
            known.stamp = known.stamp.or(sight.stamp);
            known.dated |= sight.dated;
            known.learn_age(sight.age(sight.as_of), sight.as_of);
            return known.clone();
        }
        // The second: the bucket was made again, and counts from one.
        if sight.revision > known.revision || known.as_of < asked {
            *known = sight.clone();
        }
        drop(seen);
        self.noted.notify_waiters();
        sight
    }

    /// The record as the server has it now.
    async fn look(&self, shard: &Shard) -> Result<Option<Sight>, StoreError> {
        let asked = BootInstant::now();
        let Some(entry) = self.bucket.get(&key_of(shard)).await? else {
            let mut seen = self.seen();
            if seen.get(shard).is_some_and(|known| known.as_of < asked) {
                seen.remove(shard);
            }
            return Ok(None);
        };
        Ok(Some(self.note(shard, Sight::of(&entry, BootInstant::now()), asked)))
    }

    /// A record that was not seen to appear may be older than we have known it. Asks the server's clock.
    async fn dated(&self, shard: &Shard, mut sight: Sight, asks: Asks) -> Result<Sight, StoreError> {
        let Some(stamp) = sight.stamp.filter(|_| !sight.dated) else { return Ok(sight) };
        let asked = BootInstant::now();
        let info = self.bucket.info().await?.ok_or_else(|| self.bucket.missing())?;
        let time = match (info.time(), asks) {
            (Some(time), _) => time,
            (None, Asks::Candidate) => self.bucket.probed_time().await?,
            (None, Asks::Onlooker) => self.bucket.time(&info).await?,
        };
        sight.learn_age(time.since(stamp).saturating_sub(slack(&info)), BootInstant::now());
        sight.dated = true;
        Ok(self.note(shard, sight, asked))
    }

    fn foreign(&self, shard: &Shard) -> StoreError {
        let (key, bucket) = (key_of(shard), &self.bucket.address().bucket);
        StoreError::misconfigured(format!(
            "the key {key} of bucket {bucket} in {} was written by something else: delete it (nats kv del {bucket} {key}) \
             or use another bucket",
            self.bucket.address().server()
        ))
    }

    /// What is known to be free for a claim, without asking: the revision in it decides.
    fn free_as_known(&self, candidate: &Candidate) -> Option<Sight> {
        let sight = self.known(&candidate.shard)?;
        let record = sight.record()?;
        let free = record.is_of(candidate) || sight.left(BootInstant::now()).is_zero();
        (free && sight.term().is_some()).then_some(sight)
    }

    async fn ground(&self, candidate: &Candidate) -> Result<Ground, StoreError> {
        let Some(sight) = self.look(&candidate.shard).await? else { return Ok(Ground::Nothing(None)) };
        let record = match &sight.content {
            Content::Record(record) => record,
            Content::Deleted => return Ok(Ground::Nothing(Some(sight))),
            Content::Foreign => return Err(self.foreign(&candidate.shard)),
        };
        if record.is_of(candidate) {
            return Ok(Ground::Over(sight));
        }
        let now = BootInstant::now();
        let settled = sight.left(now).is_zero() && sight.hold_until(now).is_none();
        let sight = if settled { sight } else { self.dated(&candidate.shard, sight, Asks::Candidate).await? };
        Ok(if sight.left(BootInstant::now()).is_zero() { Ground::Over(sight) } else { Ground::Held(sight) })
    }

    /// Writes our record of revision `expected`. None when somebody else wrote in between.
    async fn write(
        &self,
        shard: &Shard,
        mut record: Record,
        expected: u64,
        hold_until: Option<BootInstant>,
    ) -> Result<Option<Sight>, StoreError> {
        // From before it is sent, so that what the server counts from when it stores it does not end sooner.
        let sent = BootInstant::now();
        record.hold_ms = hold_until.map_or(0, |until| millis(until.since(sent)));
        match self.bucket.put(&key_of(shard), record.encoded(), expected).await? {
            Put::Done { revision } => {
                let sight = Sight::ours(revision, record, BootInstant::now(), hold_until.or(Some(sent)));
                Ok(Some(self.note(shard, sight, sent)))
            }
            Put::Conflict => {
                // What we thought is wrong.
                let mut seen = self.seen();
                if seen.get(shard).is_some_and(|known| known.revision == expected) {
                    seen.remove(shard);
                }
                Ok(None)
            }
        }
    }

    /// Whether it is the candidate's, and says of which leadership.
    fn is_ours(candidate: &Candidate, sight: &Sight) -> bool {
        sight.record().is_some_and(|record| record.is_of(candidate)) && sight.term().is_some()
    }

    /// After a leadership that is over. None when somebody else was faster.
    async fn succeed(&self, candidate: &Candidate, last: &Sight) -> Result<Option<Grant>, StoreError> {
        let Some((term, record)) = last.term().zip(last.record()) else { return Ok(None) };
        let term = term.saturating_add(1);
        let hold_until = last.hold_until(BootInstant::now());
        let ours = Record::new(candidate, Some(term), record.ledger_ms);
        let Some(sight) = self.write(&candidate.shard, ours, last.revision, hold_until).await? else {
            return Ok(None);
        };
        if record.ledger_ms < millis(candidate.lease) {
            let kept = match self.bucket.get(&ledger_of(&candidate.shard)).await {
                Ok(ledger) => self.keep_ledger(candidate, &sight, ledger).await,
                Err(error) => Err(error),
            };
            if self.completed(candidate, kept).await?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(Grant { term: Term(term), start_after: hold_until.filter(|&until| until > BootInstant::now()) }))
    }

    /// Where there is no record. None when somebody else was faster.
    async fn begin(&self, candidate: &Candidate, deleted: Option<&Sight>) -> Result<Option<Grant>, StoreError> {
        let ledger_key = ledger_of(&candidate.shard);
        let (ledger, marker, info) =
            tokio::join!(self.bucket.get(&ledger_key), self.bucket.marker(), self.bucket.info());
        let (ledger, marker, info) = (ledger?, marker?, info?.ok_or_else(|| self.bucket.missing())?);
        if marker.is_none() {
            self.bucket.mark().await?;
        }
        // Whoever led has not renewed since the look that found nothing.
        let sent = BootInstant::now();
        let led_by = ledger.as_ref().map_or(0, |ledger| Ledger::read(ledger).lease_ms).max(millis(candidate.lease));
        let longest = Duration::from_millis(led_by);
        let all = sent.plus(longest);
        let record = Record::new(candidate, None, 0);
        let expected = deleted.map_or(0, |sight| sight.revision);
        // As long as may be necessary; once it is stored we know better.
        let Some(sight) = self.write(&candidate.shard, record, expected, Some(all)).await? else { return Ok(None) };
        let kept = self.keep_ledger(candidate, &sight, ledger.clone()).await;
        let Some((stamp, heard)) = self.completed(candidate, kept).await? else { return Ok(None) };
        let rest = |since| heard.plus(longest.saturating_sub(stamp.since(since).saturating_sub(slack(&info)))).min(all);
        let by_marker = marker.map_or(all, |marker| rest(marker.stamp));
        let by_deletion = match (deleted.and_then(|deleted| deleted.stamp), ledger) {
            (Some(deleted), _) => rest(deleted),
            (None, Some(_)) => all,
            (None, None) => heard,
        };
        let hold_until = by_marker.max(by_deletion);
        if let Some(known) = self.seen().get_mut(&candidate.shard).filter(|known| known.revision == sight.revision) {
            known.hold_until = Some(hold_until);
        }
        let start_after = Some(hold_until).filter(|&until| until > BootInstant::now());
        Ok(Some(Grant { term: Term(stamp.micros()), start_after }))
    }

    /// Writes down that the shard was led, after its record `sight` was written and before its tree starts, and then
    /// looks whether that record is still there: somebody who found neither record nor ledger would start as well.
    ///
    /// `ledger` is what was read of it. None when the record is gone.
    async fn keep_ledger(
        &self,
        candidate: &Candidate,
        sight: &Sight,
        mut ledger: Option<Entry>,
    ) -> Result<Option<(Stamp, BootInstant)>, StoreError> {
        let (key, lease_ms) = (ledger_of(&candidate.shard), millis(candidate.lease));
        for _ in 0..MOST_ATTEMPTS {
            let expected = ledger.as_ref().map_or(0, |ledger| ledger.revision);
            let enough = ledger.as_ref().is_some_and(|ledger| Ledger::read(ledger).lease_ms >= lease_ms);
            if enough || self.bucket.put(&key, Ledger { lease_ms }.encoded(), expected).await? != Put::Conflict {
                let ours = self.look(&candidate.shard).await?.filter(|now| now.revision == sight.revision);
                if let Some(known) = self.seen().get_mut(&candidate.shard)
                    && known.revision == sight.revision
                    && let Content::Record(record) = &mut known.content
                {
                    record.ledger_ms = lease_ms;
                }
                let heard = BootInstant::now();
                return Ok(ours.and_then(|ours| ours.stamp).map(|stamp| (stamp, heard)));
            }
            ledger = self.bucket.get(&key).await?;
        }
        Err(StoreError::unknown(format!("the ledger of shard {} changes faster than it can be kept", candidate.shard)))
    }

    fn begin_renewal(&self, shard: &Shard, term: Term, beat: u64) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = latest.entry(shard.clone()).or_insert((term, beat));
        *latest = (*latest).max((term, beat));
    }

    fn is_latest(&self, shard: &Shard, term: Term, beat: u64) -> bool {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).get(shard) == Some(&(term, beat))
    }

    /// Returns when a record of ours is known to have taken the place of `revision`.
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

    /// The record is written, what was to follow is not.
    async fn completed<T>(&self, candidate: &Candidate, done: Result<T, StoreError>) -> Result<T, StoreError> {
        match done {
            Ok(done) => Ok(done),
            Err(error) => match error.kind {
                ErrorKind::NotApplied | ErrorKind::Unknown => Err(StoreError::unknown(error.message)),
                ErrorKind::Denied | ErrorKind::Misconfigured => {
                    // Nobody will ask again soon, so others need not wait until it expires.
                    let _ = self.release(candidate, Term(0)).await;
                    Err(error)
                }
            },
        }
    }
}

/// How far two stamps may be apart because they come from different clocks.
fn slack(info: &Info) -> Duration {
    if info.is_clustered() { CLUSTER_SLACK } else { Duration::ZERO }
}

#[async_trait::async_trait]
impl Leases for Nats {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        if let Some(sight) = self.free_as_known(candidate)
            && let Some(grant) = self.succeed(candidate, &sight).await?
        {
            return Ok(Claim::Granted(grant));
        }
        for _ in 0..MOST_ATTEMPTS {
            let grant = match self.ground(candidate).await? {
                Ground::Held(sight) => return Ok(Claim::Refused(sight.holder(BootInstant::now()))),
                Ground::Over(sight) => self.succeed(candidate, &sight).await?,
                Ground::Nothing(deleted) => self.begin(candidate, deleted.as_ref()).await?,
            };
            if let Some(grant) = grant {
                return Ok(Claim::Granted(grant));
            }
        }
        let shard = &candidate.shard;
        Err(StoreError::unknown(format!("the record of shard {shard} changes faster than it can be taken")))
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let Some(sight) = self.look(shard).await? else { return Ok(Observation::Free) };
        if sight.content == Content::Foreign {
            return Err(self.foreign(shard));
        }
        let sight = if sight.left(BootInstant::now()).is_zero() {
            sight
        } else {
            self.dated(shard, sight, Asks::Candidate).await?
        };
        let now = BootInstant::now();
        Ok(if sight.left(now).is_zero() { Observation::Free } else { Observation::Held(sight.holder(now)) })
    }

    async fn renew(&self, candidate: &Candidate, term: Term, beat: u64) -> Result<Renewal, StoreError> {
        // One revision follows on another, so of renewals that are under way at once one is applied in a round trip. On a
        // slow network that is enough only if it is the right one.
        let (shard, called) = (&candidate.shard, BootInstant::now());
        self.begin_renewal(shard, term, beat);
        let mut sight = self.known(shard).filter(|sight| Self::is_ours(candidate, sight));
        let mut written = false;
        for _ in 0..MOST_ATTEMPTS {
            let last = match sight.take() {
                Some(known) => known,
                None => match self.look(shard).await? {
                    Some(seen) => seen,
                    None => return Ok(Renewal::Lost(None)),
                },
            };
            let record = match &last.content {
                Content::Record(record) if record.is_of(candidate) && record.released => {
                    return Ok(Renewal::Lost(None));
                }
                Content::Record(record) if record.is_of(candidate) => record,
                Content::Deleted => return Ok(Renewal::Lost(None)),
                Content::Record(_) | Content::Foreign => {
                    return Ok(Renewal::Lost(Some(last.holder(BootInstant::now()))));
                }
            };
            // Refused, for it had been applied: the request was sent over two connections.
            if written && record.beat == beat && last.term() == Some(term.0) {
                return Ok(Renewal::Renewed);
            }
            // A later leadership of this very session is later as well.
            if record.beat >= beat || last.term().is_some_and(|of_record| of_record > term.0) {
                return Ok(Renewal::Overtaken);
            }
            let lease_ms = millis(candidate.lease);
            let record = Record { beat, term: Some(term.0), lease_ms, ..record.clone() };
            let hold_until = last.hold_until(BootInstant::now());
            tokio::select! {
                biased;
                done = self.write(shard, record, last.revision, hold_until) => {
                    if done?.is_some() {
                        return Ok(Renewal::Renewed);
                    }
                    written = true;
                }
                // Another renewal of ours was applied to that revision, so this one is refused wherever it is.
                () = self.succeeded_to(candidate, last.revision) => {
                    if BootInstant::now().since(called) > self.bucket.connections.bound() / 8 {
                        return Ok(Renewal::Overtaken);
                    }
                }
            }
            sight =
                self.known(shard).filter(|sight| Self::is_ours(candidate, sight) && sight.revision != last.revision);
            // Only one at a time can be applied. The one that was asked for last counts from the latest instant.
            if sight.is_some() && !self.is_latest(shard, term, beat) {
                return Ok(Renewal::Overtaken);
            }
        }
        Err(StoreError::unknown(format!("the record of shard {shard} changes faster than it can be renewed")))
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let mut sight = self.known(shard).filter(|sight| Self::is_ours(candidate, sight));
        let mut written = false;
        for _ in 0..MOST_ATTEMPTS {
            let last = match sight.take() {
                Some(known) => Some(known),
                None => self.look(shard).await?,
            };
            let Some((last, record)) = last.as_ref().and_then(|last| Some((last, last.record()?))) else {
                return Ok(Release::NotHeld);
            };
            // A release that was overtaken by the session's next leadership must not end that.
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

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        watch::changed(self, shard).await
    }
}

#[async_trait::async_trait]
impl Administration for Nats {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let Some(sight) = self.look(shard).await? else { return Ok(Report::default()) };
        if sight.content == Content::Foreign {
            return Err(self.foreign(shard));
        }
        let sight = if sight.left(BootInstant::now()).is_zero() {
            sight
        } else {
            self.dated(shard, sight, Asks::Onlooker).await?
        };
        let now = BootInstant::now();
        let holder = (!sight.left(now).is_zero()).then(|| sight.holder(now));
        Ok(Report { holder, last_term: sight.term().map(Term) })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        list::list(self, prefix).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let Some(sight) = self.look(shard).await? else { return Ok(Release::NotHeld) };
            if sight.content == Content::Foreign {
                return Err(self.foreign(shard));
            }
            if sight.term() != Some(term.0) || sight.left(BootInstant::now()).is_zero() {
                return Ok(Release::NotHeld);
            }
            let sight = self.dated(shard, sight, Asks::Onlooker).await?;
            if sight.left(BootInstant::now()).is_zero() {
                return Ok(Release::NotHeld);
            }
            // Like a deletion by hand: what it leaves makes the next leader wait.
            if self.bucket.delete(&key_of(shard), sight.revision).await? != Put::Conflict {
                return Ok(Release::Released);
            }
        }
        Err(StoreError::unknown(format!("the record of shard {shard} changes faster than it can be deleted")))
    }

    /// The key goes last, and with it the marks that it was ever there: the next leader finds a shard that is new.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let (shard, ledger) = (&candidate.shard, ledger_of(&candidate.shard));
        // A client that may not purge hears so before anything is gone. It asks for a key that holds nothing: the server
        // takes a bound of one for none.
        self.bucket.sweep(NOTHING, 0).await?;
        let ours = |sight: &Sight| Self::is_ours(candidate, sight) && sight.term() == Some(term.0);
        if !self.look(shard).await?.is_some_and(|seen| ours(&seen)) {
            return Ok(Release::NotHeld);
        }
        let (info, keys) = self.bucket.keys().await?;
        let notes = keys.into_iter().filter(|key| is_note_of(key, shard)).map(|key| async move {
            match self.bucket.get(&key).await? {
                Some(note) => self.bucket.sweep(&key, note.revision).await,
                None => Ok(()),
            }
        });
        many::answers(notes).await?;
        let time = self.bucket.time(&info).await?.micros();
        let Some(sight) = self.look(shard).await?.filter(ours) else { return Ok(Release::NotHeld) };
        let slack = u64::try_from(slack(&info).as_micros()).unwrap_or(u64::MAX);
        let is_ahead = term.0 >= time.saturating_sub(slack);
        let Some(record) = sight.record().filter(|record| !is_ahead && !record.released) else {
            // The next term would be lower.
            return self.release(candidate, term).await;
        };
        // Should we not get as far as the key, the next leader writes another ledger.
        let record = Record { ledger_ms: 0, term: Some(term.0), ..record.clone() };
        let Some(sight) = self.write(shard, record, sight.revision, None).await? else { return Ok(Release::NotHeld) };
        if let Some(entry) = self.bucket.get(&ledger).await? {
            self.bucket.sweep(&ledger, entry.revision).await?;
        }
        self.bucket.sweep(&key_of(shard), sight.revision).await?;
        self.seen().remove(shard);
        Ok(Release::Released)
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        check::prepare(&self.bucket).await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        check::check(&self.bucket).await
    }
}

impl Store for Nats {
    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
