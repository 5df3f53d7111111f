//! The object of a shard: who leads it, the last term, the operators' orders; and when the lease in it has expired.
//!
//! The hazard: anybody who may write the bucket can put anything there. An object that cannot be read is an error that
//! names it, and is never replaced. An object that a later release wrote may mean more than is read here, so it is
//! refused too.

use super::objects::{Version, unique};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::expiry::Moment;
use crate::store::notes::Note;
use crate::store::server_clock::{self, Clock, Wait, left_of_lease};
use crate::store::{Holder, StoreError};
use crate::time::{BootInstant, millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The format of all objects.
const FORMAT: u32 = 1;
/// Where the shards' own objects are.
pub const SHARDS: &str = "shard/";
/// Where it stands that a shard was once led.
pub const LED: &str = "led/";
/// The object that says that the bucket was tried, and since when it remembers.
pub const MARKER: &str = "leaderrun.json";

/// The name of a shard in a key. A '/' would make empty parts of some names.
pub fn name_of(shard: &str) -> String {
    shard.replace('/', "=")
}

/// The shard of a name in a key. None if no shard is called so.
pub fn shard_of(name: &str) -> Option<Shard> {
    name.replace('=', "/").parse().ok()
}

pub fn shard_key(shard: &Shard) -> String {
    format!("{SHARDS}{}", name_of(shard.as_str()))
}

pub fn led_key(shard: &Shard) -> String {
    format!("{LED}{}", name_of(shard.as_str()))
}

/// The object of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    shard: String,
    /// Another one in each write.
    write: String,
    /// The term of the last leadership; zero if the shard was never led.
    pub term: u64,
    pub lease: Option<Lease>,
    /// Some if a tree may run that the object does not name.
    wait: Option<Waiting>,
    /// The longest lease that the led mark is known to record.
    pub led_ms: u64,
    /// An operator had the shard forgotten. The object stays, so that terms rise.
    #[serde(default)]
    pub forgotten: bool,
    pub orders: Option<Kept>,
}

/// A lease, as it was granted or last renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub owner: String,
    pub session: Session,
    pub host: String,
    pub pid: u32,
    /// The sequence of the last renewal in this term.
    pub beat: u64,
    #[serde(rename = "lease_ms")]
    millis: u64,
    /// Server time, in milliseconds since 1970; an upper bound of when the lease ends.
    expires_ms: u64,
    since_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    until_ms: u64,
    wait_ms: u64,
}

/// A note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub text: String,
    /// Server time, in milliseconds since 1970; an upper bound of when the note ends.
    expires_ms: Option<u64>,
}

impl Kept {
    /// `now_millis` is the latest time that the server's clock may show.
    pub fn new(draft: &Note, now_millis: u64) -> Self {
        let expires_ms = draft.lasts.map(|lasts| now_millis.saturating_add(millis(lasts)));
        Self { text: draft.text.clone(), expires_ms }
    }

    /// The note, or None if it has ended. `now_millis` is the earliest time that the server's clock may show.
    pub fn note(&self, now_millis: u64) -> Option<Note> {
        let left = self.expires_ms.map(|expires| Duration::from_millis(expires.saturating_sub(now_millis)));
        (left != Some(Duration::ZERO) && !self.text.is_empty()).then(|| Note::lasting(self.text.clone(), left))
    }
}

impl Record {
    /// A record of a shard that was never led.
    pub fn new(shard: &Shard) -> Self {
        Self {
            format: FORMAT,
            shard: shard.to_string(),
            write: String::new(),
            term: 0,
            lease: None,
            wait: None,
            led_ms: 0,
            forgotten: false,
            orders: None,
        }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// Why it is not a record of this shard.
    pub fn read(shard: &Shard, bytes: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.format != FORMAT {
            return Err(format!("its format is {} and not {FORMAT}", record.format));
        }
        if record.shard != shard.as_str() {
            return Err("it is the object of another shard".to_owned());
        }
        // No higher term could follow.
        if record.term == u64::MAX { Err("its term is the last one".to_owned()) } else { Ok(record) }
    }

    /// The bytes of a write.
    pub fn bytes(&self) -> Result<Vec<u8>, StoreError> {
        let record = Self { write: unique()?, ..self.clone() };
        Ok(serde_json::to_vec(&record).expect("a record is plain data"))
    }

    /// Whether the store knows of a leadership.
    pub fn was_led(&self) -> bool {
        self.term > 0
    }

    pub fn wait(&self) -> Option<Wait> {
        self.wait.map(|Waiting { until_ms, wait_ms }| Wait {
            until_millis: until_ms,
            duration: Duration::from_millis(wait_ms),
        })
    }

    pub fn set_wait(&mut self, wait: Option<Wait>) {
        self.wait = wait.map(|wait| Waiting { until_ms: wait.until_millis, wait_ms: millis(wait.duration) });
    }

    /// Whether the store knows of a leadership that nobody had forgotten.
    pub fn is_listed(&self) -> bool {
        self.was_led() && !self.forgotten
    }

    /// The term, unless its first claim is still under way: that may find a led mark, and then takes a higher one.
    fn certain_term(&self) -> Option<Term> {
        (self.was_led() && self.led_ms > 0).then_some(Term(self.term))
    }

    /// The last term, for people.
    pub fn last_term(&self) -> Option<Term> {
        self.certain_term().filter(|_| self.is_listed())
    }

    pub fn holder(&self, expires_in: Option<Duration>) -> Option<Holder> {
        let lease = self.lease.as_ref()?;
        Some(Holder {
            owner: lease.owner.clone(),
            session: Some(lease.session.clone()),
            host: Some(lease.host.clone()),
            pid: Some(lease.pid),
            term: self.certain_term(),
            since_millis: Some(lease.since_ms),
            expires_in,
            renewed_ago: None,
            doubt: None,
        })
    }

    pub fn is_of(&self, candidate: &Candidate) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.session == candidate.session)
    }
}

impl Lease {
    /// A lease of `candidate` that ends no later than the server's clock shows `expires_millis`.
    pub fn new(candidate: &Candidate, expires_millis: u64, since_millis: u64) -> Self {
        Self {
            owner: candidate.owner.clone(),
            session: candidate.session.clone(),
            host: candidate.host.clone(),
            pid: candidate.pid,
            beat: 0,
            millis: millis(candidate.lease),
            expires_ms: expires_millis,
            since_ms: since_millis,
        }
    }

    pub fn prolong(&mut self, beat: u64, lease: Duration, expires_millis: u64) {
        (self.beat, self.millis, self.expires_ms) = (beat, millis(lease), expires_millis);
    }

    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// Time since the last write, if it can be told.
    pub fn renewed_ago(&self, clock: &Clock, now: BootInstant) -> Option<Duration> {
        server_clock::renewed_ago(clock, self.duration(), self.expires_ms, now)
    }
}

/// A record, and which write it is from.
#[derive(Clone, Debug)]
pub struct Found {
    pub record: Record,
    pub version: Version,
}

/// A lease as one candidate has seen it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    term: u64,
    lease: Lease,
    /// When an answer first showed exactly this lease.
    since: BootInstant,
    /// Once true, it stays true: if its holder comes back, it writes another lease.
    pub expired: bool,
}

impl Snapshot {
    pub fn first(term: u64, lease: Lease, received: BootInstant) -> Self {
        Self { term, lease, since: received, expired: false }
    }

    pub fn is_of(&self, term: u64, lease: &Lease) -> bool {
        self.term == term && self.lease == *lease
    }

    /// Time until another candidate may have the lease; zero if it may now.
    pub fn expires_in(&self, clock: &Clock, moment: Moment) -> Duration {
        if self.expired {
            return Duration::ZERO;
        }
        let stood = moment.read_sent.since(self.since);
        left_of_lease(clock, self.lease.duration(), self.lease.expires_ms, stood, moment.now, moment.wall_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;
    use crate::store::server_clock::with_drift;

    const EPOCH: u64 = 1_800_000_000;

    fn candidate() -> Candidate {
        Candidate {
            shard: "db/main".parse().unwrap(),
            owner: "host-7-x".to_owned(),
            session: Session::from_record("s-1"),
            host: "host".to_owned(),
            pid: 7,
            lease: Duration::from_secs(15),
        }
    }

    fn record(expires_millis: u64) -> Record {
        let candidate = candidate();
        let mut record = Record::new(&candidate.shard);
        (record.term, record.led_ms) = (9, 15_000);
        record.lease = Some(Lease::new(&candidate, expires_millis, 5));
        record.orders = Some(Kept::new(&Note::lasting("wait".to_owned(), Some(Duration::from_secs(1))), 5));
        record.set_wait(Some(Wait { until_millis: 7, duration: Duration::from_secs(8) }));
        record
    }

    #[test]
    fn two_writes_of_the_same_record_differ_and_are_read_as_it_was() {
        let record = record(EPOCH * 1000);
        let (one, other) = (record.bytes().unwrap(), record.bytes().unwrap());
        assert_ne!(one, other);
        let read = Record::read(&candidate().shard, &one).unwrap();
        assert_eq!(Record { write: String::new(), ..read.clone() }, record);
        assert!(read.is_of(&candidate()) && read.last_term() == Some(Term(9)));
        assert!(Record::read(&"db/other".parse().unwrap(), &one).is_err());
    }

    #[test]
    fn the_name_of_a_shard_in_a_key_stands_for_it_alone() {
        for name in ["db/main", "a//b", "/a/", "a:b", "..."] {
            let shard: Shard = name.parse().unwrap();
            assert_eq!(shard_of(&name_of(name)), Some(shard.clone()));
            let key = format!("p/{}", shard_key(&shard));
            assert_eq!(object_store::path::Path::parse(&key).unwrap().as_ref(), key);
        }
    }

    #[test]
    fn a_lease_expires_by_the_servers_clock_or_after_standing_unchanged() {
        let lease = record((EPOCH + 20) * 1000).lease.unwrap();
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let moment =
            |seconds| Moment { read_sent: at(seconds), now: at(seconds), wall_millis: (EPOCH + seconds) * 1000 };
        let snapshot = Snapshot::first(9, lease, at(10));
        let mut clock = Clock::default();
        clock.sample(EPOCH + 10, at(10), at(10));
        assert!(!snapshot.expires_in(&clock, moment(19)).is_zero());
        assert!(snapshot.expires_in(&clock, moment(21)).is_zero());
        assert!(!snapshot.expires_in(&Clock::default(), moment(25)).is_zero());
        assert!(snapshot.expires_in(&Clock::default(), moment(26)).is_zero());
    }

    #[test]
    fn a_million_objects_are_read_as_they_were_written_or_refused() {
        let ours = [record(EPOCH), Record { term: u64::MAX, ..record(1) }, Record::new(&candidate().shard)];
        let ours = ours.map(|record| record.bytes().unwrap());
        let seeds: Vec<&[u8]> = ours.iter().map(Vec::as_slice).collect();
        fuzz::bent("object of a bucket", &seeds, |text, source| {
            let read = Record::read(&candidate().shard, text);
            match &read {
                Ok(record) => {
                    assert!(record.term.checked_add(1).is_some());
                    let again = Record::read(&candidate().shard, &record.bytes().unwrap()).unwrap();
                    assert_eq!(Record { write: record.write.clone(), ..again }, *record);
                    let now = BootInstant::from_nanos(source.next() >> 8);
                    if let Some(lease) = &record.lease {
                        let left = Snapshot::first(1, lease.clone(), now)
                            .expires_in(&Clock::default(), Moment { read_sent: now, now, wall_millis: 0 });
                        assert_eq!(left, with_drift(lease.duration()));
                    }
                    let note = record.orders.as_ref().and_then(|orders| orders.note(source.number()));
                    assert!(note.is_none_or(|note| !note.text.is_empty()));
                }
                Err(why) => fuzz::assert_is_one_line(&StoreError::misconfigured(why.clone()).message),
            }
            (&read).into()
        });
    }
}
