//! The content of a shard's key, and its age.

use super::jetstream::{Entry, Stamp};
use crate::lease::{Candidate, Session, Term};
use crate::store::{Holder, Report};
use crate::time::{BootInstant, millis, wall_clock_millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A leadership, as the bucket keeps it. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub session: Session,
    pub owner: String,
    pub host: String,
    pub pid: u32,
    /// None in the first record of a key, whose term is the microsecond at which the server stored it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// Zero in a claim; rises with every renewal.
    pub beat: u64,
    /// How long the lease lasts from when the server stored this.
    pub lease_ms: u64,
    /// When the leadership began, by the holder's clock. For people.
    pub since_ms: u64,
    /// True if the lease was given back: the tree is dead.
    #[serde(default, skip_serializing_if = "is_false")]
    pub released: bool,
    /// No tree may start until this long after the server stored this: another tree may still be alive.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hold_ms: u64,
    /// The longest lease that the shard's led mark records.
    #[serde(rename = "ledgerMs", default, skip_serializing_if = "is_zero")]
    pub led_mark_ms: u64,
    /// The last term whose lease an operator took away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Record {
    /// The record of a claim.
    pub fn new(candidate: &Candidate, term: Option<u64>, led_mark_ms: u64) -> Self {
        Self {
            session: candidate.session.clone(),
            owner: candidate.owner.clone(),
            host: candidate.host.clone(),
            pid: candidate.pid,
            term,
            beat: 0,
            lease_ms: millis(candidate.lease),
            since_ms: wall_clock_millis(),
            released: false,
            hold_ms: 0,
            led_mark_ms,
            revoked: None,
        }
    }

    pub fn is_of(&self, candidate: &Candidate) -> bool {
        self.session == candidate.session
    }

    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub fn encoded(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record is plain data")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Record(Record),
    /// The key was deleted.
    Deleted,
    /// Another program wrote the value.
    Foreign,
}

impl Content {
    pub fn read(value: Option<&[u8]>) -> Self {
        match value.map(serde_json::from_slice::<Record>) {
            None => Self::Deleted,
            // No higher term could follow.
            Some(Ok(record)) if record.term == Some(u64::MAX) => Self::Foreign,
            Some(Ok(record)) => Self::Record(record),
            Some(Err(_)) => Self::Foreign,
        }
    }
}

/// A revision of a shard's key, as this process knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: u64,
    /// None if we wrote it and have not read it back.
    pub stamp: Option<Stamp>,
    pub content: Content,
    /// When it was first seen.
    pub as_of: BootInstant,
    /// The age that it had at `as_of`, at least.
    pub age: Duration,
    /// True if no clock of the server could show that it is older.
    pub dated: bool,
    /// Some if we wrote it and know better than the record.
    pub hold_until: Option<BootInstant>,
}

impl Snapshot {
    pub fn of(entry: &Entry, heard: BootInstant) -> Self {
        Self::new(entry.revision, entry.stamp, Content::read(entry.value.as_deref()), heard)
    }

    pub fn new(revision: u64, stamp: Stamp, content: Content, heard: BootInstant) -> Self {
        Self {
            revision,
            stamp: Some(stamp),
            content,
            as_of: heard,
            age: Duration::ZERO,
            dated: false,
            hold_until: None,
        }
    }

    /// The snapshot of a record that we have just written.
    pub fn ours(revision: u64, record: Record, now: BootInstant, hold_until: Option<BootInstant>) -> Self {
        let content = Content::Record(record);
        Self { revision, stamp: None, content, as_of: now, age: Duration::ZERO, dated: true, hold_until }
    }

    /// Whether both are the same message of the same bucket. A bucket that was made again may count from one.
    pub fn is_same(&self, other: &Self) -> bool {
        let written =
            |snapshot: &Self| snapshot.record().map(|record| (record.session.clone(), record.term, record.beat));
        self.revision == other.revision
            && match (self.stamp, other.stamp) {
                (Some(one), Some(two)) => one == two,
                // We wrote one of them.
                (None, _) | (_, None) => written(self) == written(other),
            }
    }

    pub fn record(&self) -> Option<&Record> {
        match &self.content {
            Content::Record(record) => Some(record),
            Content::Deleted | Content::Foreign => None,
        }
    }

    /// The term of the leadership in the record. None while that is not known.
    pub fn term(&self) -> Option<u64> {
        self.record()?.term.or(self.stamp.map(Stamp::micros))
    }

    /// How long the key has been like this, at least.
    pub fn age(&self, now: BootInstant) -> Duration {
        self.age.saturating_add(now.since(self.as_of))
    }

    /// Remembers that the key had this age at `heard`.
    pub fn learn_age(&mut self, age: Duration, heard: BootInstant) {
        if age > self.age(heard) {
            (self.age, self.as_of) = (age, heard);
        }
    }

    /// How long the lease goes on. Zero if it has expired or was released.
    pub fn left(&self, now: BootInstant) -> Duration {
        match self.record() {
            Some(record) if !record.released => record.lease().saturating_sub(self.age(now)),
            Some(_) | None => Duration::ZERO,
        }
    }

    /// The instant until which no tree may start. None if that is over.
    pub fn hold_until(&self, now: BootInstant) -> Option<BootInstant> {
        let by_record = || {
            let hold = Duration::from_millis(self.record().map_or(0, |record| record.hold_ms));
            now.plus(hold.saturating_sub(self.age(now)))
        };
        Some(self.hold_until.unwrap_or_else(by_record)).filter(|&until| until > now)
    }

    /// The report about the shard at present.
    pub fn report(&self) -> Report {
        let now = BootInstant::now();
        let holder = (!self.left(now).is_zero()).then(|| self.holder(now));
        Report { holder, last_term: self.term().map(Term) }
    }

    pub fn holder(&self, now: BootInstant) -> Holder {
        let Some(record) = self.record() else { return Holder::stranger() };
        Holder {
            owner: record.owner.clone(),
            session: Some(record.session.clone()),
            host: Some(record.host.clone()),
            pid: Some(record.pid),
            term: self.term().map(Term),
            since_millis: Some(record.since_ms),
            expires_in: Some(self.left(now)),
            renewed_ago: Some(self.age(now)),
            doubt: None,
            foreign_lock: None,
        }
    }
}

/// The content of a shard's led mark: the shard was once led, and this was its longest lease. It is written before the
/// first COMMAND starts, and a release never changes it. So if the lock is absent and the led mark is there, the lock
/// was deleted.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedMark {
    pub lease_ms: u64,
    /// The term of a lease that an operator took away, if nobody has led since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
}

impl LedMark {
    /// Reads a led mark. Zero if it cannot be read.
    pub fn read(entry: &Entry) -> Self {
        entry.value.as_deref().and_then(|value| serde_json::from_slice(value).ok()).unwrap_or_default()
    }

    pub fn encoded(self) -> Vec<u8> {
        serde_json::to_vec(&self).expect("a led mark is plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};

    const START: BootInstant = BootInstant::from_nanos(1_000_000_000_000);

    fn record() -> Record {
        let candidate = Candidate { lease: Duration::from_micros(1_500_001), ..Candidate::example() };
        Record::new(&candidate, Some(9), 0)
    }

    fn snapshot(record: Record) -> Snapshot {
        Snapshot::new(4, Stamp(5_000_999), Content::Record(record), START)
    }

    fn later(millis: u64) -> BootInstant {
        START.plus(Duration::from_millis(millis))
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_lease_is_rounded_up() {
        let record = record();
        assert_eq!(record.lease_ms, 1501);
        assert_eq!(Content::read(Some(&record.encoded())), Content::Record(record));
    }

    #[test]
    fn a_lease_ends_when_it_stood_unchanged_for_all_of_it() {
        let snapshot = snapshot(record());
        assert_eq!(snapshot.left(later(0)), Duration::from_millis(1501));
        assert_eq!(snapshot.left(later(1500)), Duration::from_millis(1));
        assert_eq!(snapshot.left(later(1501)), Duration::ZERO);
    }

    #[test]
    fn the_servers_clock_can_make_a_record_older_but_not_younger() {
        let mut snapshot = snapshot(record());
        snapshot.learn_age(Duration::from_secs(1), later(100));
        assert_eq!(snapshot.left(later(100)), Duration::from_millis(501));
        snapshot.learn_age(Duration::from_millis(1), later(200));
        assert_eq!(snapshot.left(later(200)), Duration::from_millis(401));
    }

    #[test]
    fn a_hold_is_counted_from_the_records_beginning_unless_we_know_better() {
        let mut snapshot = snapshot(Record { hold_ms: 1000, ..record() });
        assert_eq!(snapshot.hold_until(later(0)), Some(later(1000)));
        assert_eq!(snapshot.hold_until(later(400)), Some(later(1000)));
        assert_eq!(snapshot.hold_until(later(1000)), None);
        snapshot.hold_until = Some(later(50));
        assert_eq!((snapshot.hold_until(later(0)), snapshot.hold_until(later(50))), (Some(later(50)), None));
    }

    #[test]
    fn a_record_without_a_term_has_the_servers_microsecond() {
        assert_eq!(snapshot(record()).term(), Some(9));
        assert_eq!(snapshot(Record { term: None, ..record() }).term(), Some(5000));
    }

    #[test]
    fn a_value_of_another_program_is_foreign() {
        for value in ["", "x", "7", "null", "{}", "[]", r#"{"session":7}"#, "\u{0}"] {
            assert_eq!(Content::read(Some(value.as_bytes())), Content::Foreign, "{value}");
        }
    }

    #[test]
    fn a_record_with_the_highest_possible_term_is_foreign() {
        let last = Record { term: Some(u64::MAX), ..record() };
        assert_eq!(Content::read(Some(&last.encoded())), Content::Foreign);
        let before = Record { term: Some(u64::MAX - 1), ..record() };
        assert_eq!(Content::read(Some(&before.encoded())), Content::Record(before));
    }

    #[test]
    fn a_million_records_are_read_as_they_were_written_or_foreign_and_their_sums_hold() {
        let whole = Record { released: true, hold_ms: 5, led_mark_ms: 15_000, term: None, beat: 3, ..record() };
        let ours = [record().encoded(), whole.encoded()];
        fuzz::bent("record of nats://", &[&ours[0], &ours[1]], |value, source| {
            let read = match Content::read(Some(value)) {
                Content::Record(record) => record,
                Content::Foreign => return Fate::Refused,
                Content::Deleted => panic!("it was not deleted"),
            };
            assert_eq!(Content::read(Some(&read.encoded())), Content::Record(read.clone()));
            let mut snapshot =
                Snapshot::new(source.number(), Stamp(source.number()), Content::Record(read.clone()), START);
            assert!(snapshot.term().is_some_and(|term| term < u64::MAX));
            let age = source.duration();
            snapshot.learn_age(age, START);
            let now = BootInstant::from_nanos(source.number());
            let stood = age.saturating_add(now.since(START));
            let left = if read.released { Duration::ZERO } else { read.lease().saturating_sub(stood) };
            assert_eq!(snapshot.left(now), left);
            assert!(
                snapshot
                    .hold_until(now)
                    .is_none_or(|until| until > now && until.since(now) <= Duration::from_millis(read.hold_ms))
            );
            assert_eq!(snapshot.holder(now).expires_in, Some(left));
            Fate::Accepted
        });
    }

    #[test]
    fn a_million_led_marks_are_read_as_they_were_written_or_taken_for_none() {
        let ours = LedMark { lease_ms: 15_000, revoked: Some(7) }.encoded();
        fuzz::bent("led mark of nats://", &[&ours], |value, _| {
            let entry = |value: Vec<u8>| Entry { revision: 1, stamp: Stamp(1), value: Some(value), lasts: None };
            let read = LedMark::read(&entry(value.to_vec()));
            assert_eq!(LedMark::read(&entry(read.encoded())).lease_ms, read.lease_ms);
            if read.lease_ms == 0 { Fate::Refused } else { Fate::Accepted }
        });
    }

    #[test]
    fn our_own_write_is_recognised_and_the_same_number_in_another_bucket_is_not() {
        let ours = Snapshot::ours(4, Record { led_mark_ms: 7, ..record() }, START, None);
        let read = snapshot(record());
        assert!(ours.is_same(&read) && read.is_same(&ours) && read.is_same(&read));
        assert!(!ours.is_same(&snapshot(Record { session: Session::from_record("other"), ..record() })));
        assert!(!ours.is_same(&Snapshot { revision: 5, ..read.clone() }));
        assert!(!read.is_same(&Snapshot { stamp: Some(Stamp(1)), ..read.clone() }));
    }
}
