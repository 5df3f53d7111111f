//! The lock item of a shard: how it is written and read, and when it has expired.
//!
//! The hazard: other programs write this item too. The Go library gurre/shardcoordinator knows `pk`, `sk`, `ownerId`
//! and `ttl`; it takes the item over once `ttl` is before its own clock, and deletes it on release. So these four
//! attributes always tell the truth about our lease. And a record counts as ours only while they agree with the rest: a
//! program that took the item over by changing only the four has left attributes of ours behind that mean nothing.

use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::Holder;
use crate::store::expiry::Moment;
use crate::store::server_clock::{self, Clock, left_of_lease};
use crate::time::{BootInstant, millis};
use aws_sdk_dynamodb::types::AttributeValue;
use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

pub type Item = HashMap<String, AttributeValue>;

/// How long another program's record must stay unchanged before it may expire, unless undisputed dates show that it
/// has. The record does not contain that program's lease; its library recommends 15 s.
const STRANGERS_PATIENCE: Duration = Duration::from_mins(1);

/// The content of the lock item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub owner: String,
    /// Seconds since 1970. The record has certainly expired when the server's clock is past the end of that second.
    pub ttl: i64,
    /// The session in the record. It may be a meaningless rest that another program left behind.
    pub session: Option<Session>,
    /// Some when this program wrote the record.
    pub ours: Option<Ours>,
}

/// The attributes that only leaderrun writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ours {
    pub session: Session,
    /// Rises with every write of a session, so equal records are the same write.
    pub beat: u64,
    pub lease: Duration,
    /// Server time, in milliseconds since 1970; an upper bound of when the lease ends.
    pub expires_millis: u64,
    pub term: Option<Term>,
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub since_millis: Option<u64>,
    /// The session whose expired record this one replaced.
    pub after: Option<Session>,
}

impl Record {
    /// Reads a record. None if neither we nor the other library can have written it.
    pub fn read(item: &Item) -> Option<Self> {
        let owner = text(item, "ownerId")?.to_owned();
        let ttl = number(item, "ttl")?;
        let session = text(item, "session").map(Session::from_record);
        let ours = Ours::read(item).filter(|ours| i64::try_from(ttl_of(ours.expires_millis)) == Ok(ttl));
        Some(Self { owner, ttl, session, ours })
    }

    pub fn is_of(&self, candidate: &Candidate) -> bool {
        self.owner == candidate.owner && self.ours.as_ref().is_some_and(|ours| ours.session == candidate.session)
    }

    pub fn holder(&self, expires_in: Option<Duration>) -> Holder {
        let ours = self.ours.as_ref();
        Holder {
            owner: self.owner.clone(),
            session: ours.map(|ours| ours.session.clone()),
            host: ours.and_then(|ours| ours.host.clone()),
            pid: ours.and_then(|ours| ours.pid),
            term: ours.and_then(|ours| ours.term),
            since_millis: ours.and_then(|ours| ours.since_millis),
            expires_in,
            renewed_ago: None,
            doubt: None,
        }
    }

    /// Time since the last write, if it can be told.
    pub fn renewed_ago(&self, clock: &Clock, now: BootInstant) -> Option<Duration> {
        let ours = self.ours.as_ref()?;
        server_clock::renewed_ago(clock, ours.lease, ours.expires_millis, now)
    }

    /// The sessions whose trees are certainly dead once this record has expired.
    pub fn sessions(&self) -> Vec<Session> {
        let ours = self.ours.as_ref();
        ours.into_iter().flat_map(|ours| [Some(ours.session.clone()), ours.after.clone()]).flatten().collect()
    }
}

impl Ours {
    fn read(item: &Item) -> Option<Self> {
        Some(Self {
            session: Session::from_record(text(item, "session")?),
            beat: number(item, "beat")?,
            lease: Duration::from_millis(number(item, "leaseMs")?),
            expires_millis: number(item, "expiresMs")?,
            term: number(item, "term").filter(|&term| term != 0).map(Term),
            host: text(item, "host").map(str::to_owned),
            pid: number(item, "pid"),
            since_millis: number(item, "sinceMs"),
            after: text(item, "after").map(Session::from_record),
        })
    }
}

/// A whole item for a claim.
pub struct Draft<'a> {
    pub candidate: &'a Candidate,
    pub beat: u64,
    pub expires_millis: u64,
    pub since_millis: u64,
    /// The session whose expired record this one replaces.
    pub after: Option<&'a Session>,
}

impl Draft<'_> {
    pub fn item(&self) -> Item {
        let Candidate { shard, owner, session, host, pid, lease } = self.candidate;
        let mut item = Item::from([
            ("pk".to_owned(), AttributeValue::S(partition(shard))),
            ("sk".to_owned(), AttributeValue::S(LOCK.to_owned())),
            ("ownerId".to_owned(), AttributeValue::S(owner.clone())),
            ("ttl".to_owned(), n(ttl_of(self.expires_millis))),
            ("session".to_owned(), AttributeValue::S(session.as_str().to_owned())),
            ("beat".to_owned(), n(self.beat)),
            ("leaseMs".to_owned(), n(millis(*lease))),
            ("expiresMs".to_owned(), n(self.expires_millis)),
            ("host".to_owned(), AttributeValue::S(host.clone())),
            ("pid".to_owned(), n(*pid)),
            ("sinceMs".to_owned(), n(self.since_millis)),
        ]);
        if let Some(after) = self.after {
            item.insert("after".to_owned(), AttributeValue::S(after.as_str().to_owned()));
        }
        item
    }
}

pub const LOCK: &str = "LOCK";
pub const TERM: &str = "TERM";
/// The beginning of the partition of every shard.
pub const PARTITION: &str = "SHARD#";

pub fn partition(shard: &Shard) -> String {
    format!("{PARTITION}{shard}")
}

/// The shard of an item. None if the item does not belong to a shard.
pub fn shard_of(item: &Item) -> Option<Shard> {
    text(item, "pk")?.strip_prefix(PARTITION)?.parse().ok()
}

/// Rounded up: the other library compares whole seconds, and must not be early.
pub fn ttl_of(expires_millis: u64) -> u64 {
    expires_millis.div_ceil(1000)
}

pub fn n(number: impl Display + Copy) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub fn text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    item.get(name)?.as_s().ok().map(String::as_str)
}

pub fn number<N: std::str::FromStr>(item: &Item, name: &str) -> Option<N> {
    item.get(name)?.as_n().ok()?.parse().ok()
}

/// A record as one candidate has seen it, and how long it has.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub record: Record,
    /// When an answer first showed exactly this record.
    pub since: BootInstant,
    /// What our wall clock showed at that time.
    wall_millis: u64,
    /// Once true, it stays true: if its holder comes back, it writes another record.
    pub expired: bool,
}

impl Snapshot {
    pub fn first(record: Record, received: BootInstant, wall_millis: u64) -> Self {
        Self { record, since: received, wall_millis, expired: false }
    }

    /// Time until another candidate may have the lease; zero if it may now.
    pub fn expires_in(&self, clock: &Clock, moment: Moment) -> Duration {
        if self.expired {
            return Duration::ZERO;
        }
        match &self.record.ours {
            Some(ours) => {
                let stood = moment.read_sent.since(self.since);
                left_of_lease(clock, ours.lease, ours.expires_millis, stood, moment.now, moment.wall_millis)
            }
            None => self.stranger_expires_in(clock, moment),
        }
    }

    /// For the other program, its lease ends in the second after `ttl`.
    fn stranger_expires_in(&self, clock: &Clock, moment: Moment) -> Duration {
        let end = u64::try_from(self.record.ttl.saturating_add(1)).unwrap_or(0).saturating_mul(1000);
        let until = |millis: u64| Duration::from_millis(end.saturating_sub(millis));
        let stood = moment.now.since(self.since);
        if let Some(bounds) = clock.bounds(moment.now) {
            let least = if clock.agreed_for(moment.now, STRANGERS_PATIENCE) {
                Duration::ZERO
            } else {
                STRANGERS_PATIENCE.saturating_sub(stood)
            };
            return until(bounds.lower).max(least);
        }
        // A server without dates: use our wall clock, but not if it jumps, and not if it is ahead at first sight.
        let wall = until(moment.wall_millis).max(until(self.wall_millis).saturating_sub(stood));
        wall.max(STRANGERS_PATIENCE.saturating_sub(stood))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::fuzz::{self, Source};
    use crate::store::server_clock::with_drift;
    use std::str::FromStr;

    /// Takes attributes away, gives them another type, and puts any number and any text into them.
    pub fn bend_item(source: &mut Source, item: &mut Item) {
        let mut names: Vec<String> = item.keys().cloned().collect();
        names.sort();
        for _ in 0..source.below(4) {
            let name = source.of(&names).clone();
            let value = match source.below(8) {
                0 => None,
                1 => Some(AttributeValue::S(source.text())),
                2 => Some(AttributeValue::N(source.text())),
                3 => Some(AttributeValue::N(format!("-{}", source.number()))),
                4 => Some(source.of(&[AttributeValue::Bool(true), AttributeValue::Null(true)]).clone()),
                _ => Some(n(source.number())),
            };
            match value {
                Some(value) => item.insert(name, value),
                None => item.remove(&name),
            };
        }
    }

    #[test]
    fn a_million_items_of_ours_and_of_strangers_never_expire_too_early() {
        fuzz::run("lock item of dynamodb://", |source, input| {
            let expires = (EPOCH + source.next() % 100) * 1000 + source.next() % 1000;
            let mut item = if source.one_in(3) { strangers(EPOCH + source.next() % 100) } else { ours(expires) };
            bend_item(source, &mut item);
            if source.one_in(2)
                && let Some(expires) = number(&item, "expiresMs")
            {
                // Any number, so that more than our usual numbers are taken for ours.
                item.insert("ttl".to_owned(), n(ttl_of(expires)));
            }
            input.show(|| format!("{item:?}"));
            let read = Record::read(&item);
            if let Some(record) = &read {
                let dated = source.one_in(2);
                let seconds = 100 + source.next() % 100;
                let clock = if dated { clock_at(seconds) } else { Clock::default() };
                let since = BootInstant::from_nanos(at(seconds).as_nanos() - source.next() % 100_000_000_000);
                let snapshot = Snapshot::first(record.clone(), since, source.number());
                let left = snapshot.expires_in(&clock, Moment { wall_millis: source.number(), ..moment(seconds) });
                let stood = at(seconds).since(since);
                // The latest time that the server's clock shows.
                let latest_millis = u128::from((EPOCH + seconds + 2) * 1000);
                let expired_by_date = |end_millis: u128| dated && end_millis <= latest_millis;
                if left.is_zero() {
                    match &record.ours {
                        Some(ours) => {
                            assert!(stood >= ours.lease || expired_by_date(ours.expires_millis.into()), "{snapshot:?}");
                        }
                        None if dated => {
                            let end = u128::try_from((i128::from(record.ttl) + 1) * 1000).unwrap_or(0);
                            assert!(expired_by_date(end), "{snapshot:?}");
                        }
                        None => assert!(stood >= STRANGERS_PATIENCE, "{snapshot:?}"),
                    }
                } else if let Some(ours) = &record.ours {
                    assert!(left <= with_drift(ours.lease), "{snapshot:?}");
                }
                let holder = record.holder(Some(left));
                assert_eq!(holder.owner, record.owner);
            }
            (&read).into()
        });
    }

    #[test]
    fn what_we_write_into_an_item_is_read_back_at_any_size() {
        fuzz::run_a_tenth("our own item of dynamodb://", |source, input| {
            let mut candidate = candidate();
            (candidate.lease, candidate.owner, candidate.host) = (source.duration(), source.text(), source.text());
            let (beat, expires_millis, since_millis) = (source.number(), source.number(), source.number());
            let after = source.one_in(2).then(|| Session::from_record(&source.text()));
            let draft = Draft { candidate: &candidate, beat, expires_millis, since_millis, after: after.as_ref() };
            let mut item = draft.item();
            let is_ours = source.below(8) > 0;
            if !is_ours {
                // The other library does this when it takes over.
                item.insert("ttl".to_owned(), n(ttl_of(expires_millis) + 1));
            }
            input.show(|| format!("{item:?}"));
            let read = Record::read(&item).expect("an owner and a ttl");
            if is_ours {
                let ours = read.ours.as_ref().expect("it is ours");
                assert!(read.is_of(&candidate));
                assert!(ours.lease >= candidate.lease || millis(candidate.lease) == u64::MAX);
                assert_eq!((ours.beat, ours.expires_millis), (beat, expires_millis));
                assert_eq!((ours.since_millis, &ours.after), (Some(since_millis), &after));
                // For the other library, which compares whole seconds, the lease ends no earlier.
                assert!(u128::try_from(read.ttl).expect("it is after 1970") * 1000 >= expires_millis.into());
            } else {
                assert_eq!(read.ours, None);
            }
            (&read.ours).into()
        });
    }

    const EPOCH: u64 = 1_800_000_000;
    const LEASE: Duration = Duration::from_secs(15);

    fn candidate() -> Candidate {
        Candidate {
            shard: Shard::from_str("db/main").unwrap(),
            owner: "host-7-x".to_owned(),
            session: Session::from_record("s-1"),
            host: "host".to_owned(),
            pid: 7,
            lease: LEASE,
        }
    }

    fn ours(expires_millis: u64) -> Item {
        Draft { candidate: &candidate(), beat: 3, expires_millis, since_millis: 9, after: None }.item()
    }

    fn strangers(ttl: u64) -> Item {
        Item::from([("ownerId".to_owned(), AttributeValue::S("go".to_owned())), ("ttl".to_owned(), n(ttl))])
    }

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    /// Our clock showed `seconds` when the server's showed `EPOCH + seconds`, to within two seconds.
    fn clock_at(seconds: u64) -> Clock {
        let mut clock = Clock::default();
        clock.sample(EPOCH + seconds, at(seconds), at(seconds));
        clock
    }

    fn moment(seconds: u64) -> Moment {
        Moment { read_sent: at(seconds), now: at(seconds), wall_millis: (EPOCH + seconds) * 1000 }
    }

    #[test]
    fn a_draft_reads_back_as_what_was_written() {
        let record = Record::read(&ours(1_800_000_000_001)).unwrap();
        assert_eq!((record.owner.as_str(), record.ttl), ("host-7-x", 1_800_000_001));
        assert!(record.is_of(&candidate()));
        let ours = record.ours.unwrap();
        assert_eq!((ours.beat, ours.lease, ours.expires_millis), (3, LEASE, 1_800_000_000_001));
        assert_eq!((ours.pid, ours.since_millis, ours.term), (Some(7), Some(9), None));
    }

    #[test]
    fn our_attributes_mean_nothing_once_a_stranger_has_changed_its_own() {
        let mut item = ours(EPOCH * 1000);
        item.insert("ttl".to_owned(), n(EPOCH + 20));
        item.insert("ownerId".to_owned(), AttributeValue::S("go".to_owned()));
        let record = Record::read(&item).unwrap();
        assert_eq!(record.ours, None);
        assert_eq!(record.session, Some(Session::from_record("s-1")));
        assert!(!record.is_of(&candidate()));
    }

    #[test]
    fn an_item_without_an_owner_or_with_a_ttl_of_another_type_is_no_record() {
        let owner = ("ownerId".to_owned(), AttributeValue::S("go".to_owned()));
        assert_eq!(Record::read(&Item::new()), None);
        assert_eq!(Record::read(&Item::from([owner.clone()])), None);
        let wrong = ("ttl".to_owned(), AttributeValue::S("soon".to_owned()));
        assert_eq!(Record::read(&Item::from([owner, wrong])), None);
    }

    #[test]
    fn a_record_of_ours_expires_when_the_servers_clock_is_past_it_for_certain() {
        let snapshot = Snapshot::first(Record::read(&ours((EPOCH + 20) * 1000)).unwrap(), at(100), 0);
        let mut clock = clock_at(19);
        clock.sample(EPOCH + 19, at(19), at(19));
        assert!(!snapshot.expires_in(&clock, Moment { read_sent: at(100), ..moment(20) }).is_zero());
        assert!(snapshot.expires_in(&clock_at(21), Moment { read_sent: at(100), ..moment(21) }).is_zero());
    }

    #[test]
    fn a_record_of_ours_expires_after_its_lease_unchanged_whatever_dates_say() {
        let far_off = Record::read(&ours((EPOCH + 7200) * 1000)).unwrap();
        let snapshot = Snapshot::first(far_off, at(100), 0);
        for clock in [Clock::default(), clock_at(100)] {
            assert!(!snapshot.expires_in(&clock, moment(115)).is_zero());
            assert!(snapshot.expires_in(&clock, moment(116)).is_zero());
        }
    }

    #[test]
    fn dates_that_contradicted_each_other_within_a_lease_expire_nothing_of_ours() {
        let mut clock = clock_at(10);
        clock.sample(EPOCH + 3600, at(11), at(11));
        clock.sample(EPOCH + 3601, at(12), at(12));
        let snapshot = Snapshot::first(Record::read(&ours((EPOCH + 20) * 1000)).unwrap(), at(11), 0);
        assert!(!snapshot.expires_in(&clock, moment(12)).is_zero());
        assert!(snapshot.expires_in(&clock, moment(27)).is_zero());
    }

    #[test]
    fn a_strangers_record_expires_in_the_second_after_its_ttl() {
        let snapshot = Snapshot::first(Record::read(&strangers(EPOCH + 20)).unwrap(), at(19), (EPOCH + 19) * 1000);
        assert!(!snapshot.expires_in(&clock_at(20), moment(20)).is_zero());
        assert!(!snapshot.expires_in(&clock_at(21), moment(21)).is_zero());
        assert!(snapshot.expires_in(&clock_at(22), moment(22)).is_zero());
    }

    #[test]
    fn without_dates_a_strangers_record_outlives_a_wall_clock_that_is_ahead() {
        let record = Record::read(&strangers(EPOCH + 20)).unwrap();
        let hour = 3_600_000;
        let snapshot = Snapshot::first(record.clone(), at(19), (EPOCH + 19) * 1000 + hour);
        let ahead = |seconds| Moment { wall_millis: (EPOCH + seconds) * 1000 + hour, ..moment(seconds) };
        assert!(!snapshot.expires_in(&Clock::default(), ahead(30)).is_zero());
        assert!(snapshot.expires_in(&Clock::default(), ahead(80)).is_zero());
        // A wall clock that jumps ahead while we look.
        let snapshot = Snapshot::first(record, at(19), (EPOCH + 19) * 1000);
        assert!(!snapshot.expires_in(&Clock::default(), ahead(20)).is_zero());
    }

    #[test]
    fn nothing_overflows_on_absurd_numbers() {
        for ttl in [i64::MIN, -1, 0, i64::MAX] {
            let item =
                Item::from([("ownerId".to_owned(), AttributeValue::S("go".to_owned())), ("ttl".to_owned(), n(ttl))]);
            let snapshot = Snapshot::first(Record::read(&item).unwrap(), at(0), 0);
            for clock in [Clock::default(), clock_at(5)] {
                let left = snapshot.expires_in(&clock, moment(100));
                assert_eq!(left.is_zero(), ttl < 5, "{ttl}");
            }
        }
        let snapshot = Snapshot::first(Record::read(&ours(u64::MAX)).unwrap(), at(0), 0);
        assert!(!snapshot.expires_in(&clock_at(5), moment(5)).is_zero());
    }
}
