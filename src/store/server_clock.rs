//! The time on a server's clock, as far as its answers show it: by a `Date` header, or by a time in milliseconds.
//!
//! The hazard: a server that only compares looks at no clock, and two hosts' wall clocks must never be compared. If a
//! holder writes an expiry that is too early, or a candidate's idea of the time is too late, a second tree starts. So
//! each process keeps an interval that contains the server's time. A holder writes from its upper end, a candidate
//! judges by its lower end, and a wide interval only delays a takeover.
//!
//! An answer dated D, whose request left at `s` and which arrived at `r` on our own clock, says: at some instant of
//! `[s, r]` the server's clock showed D and a fraction. Many servers render that header once a second on a timer of
//! their own, so D may also be a second old: the server's time was in `[D, D + 2)`. Two such intervals are intersected,
//! after the older one was widened by as much as the two clocks may have moved apart ([`most_apart`]).
//!
//! If the two do not meet, the server's clock was set, or another front end with another clock answered. Then neither
//! is believed alone: the interval becomes both and everything between them, and no date proves anything until a whole
//! lease has passed in agreement ([`Clock::agreed_for`]).

use crate::lease::{most_apart, show_seconds, to_count};
use crate::time::{BootInstant, millis};
use std::time::Duration;

/// How far D may be behind the clock that it was taken from: it is a whole second, and is shown for a second.
const MOST_DATE_AGE: i128 = 2 * SECOND;
/// A wide interval: the age of a date, an answer that took long, and how far the clocks may have moved apart since.
pub const WIDE: Duration = Duration::from_secs(8);
/// How long people are told that dates disagreed.
const DISAGREEMENT_COUNTS: Duration = Duration::from_mins(1);
/// Where answers have no date, our wall clock says whether an instant is past. It may be wrong by this much.
const WALL_CLOCK_SLACK: Duration = Duration::from_mins(5);
const SECOND: i128 = 1_000_000_000;
const MILLISECOND: i128 = 1_000_000;

#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// None until an answer had a date.
    offset: Option<Offset>,
    /// When two samples last contradicted each other.
    contradicted: Option<BootInstant>,
}

/// The bounds, in nanoseconds, of the server's clock minus ours at `as_of`. Always `low < high`.
#[derive(Clone, Copy, Debug)]
struct Offset {
    low: i128,
    high: i128,
    as_of: BootInstant,
}

/// The server's clock shows a time between these, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub lower: u64,
    pub upper: u64,
}

impl Clock {
    /// `date`: whole seconds since 1970.
    pub fn sample(&mut self, date: u64, sent: BootInstant, received: BootInstant) {
        self.learn(i128::from(date) * SECOND, MOST_DATE_AGE, sent, received);
    }

    pub fn sample_millis(&mut self, millis: u64, sent: BootInstant, received: BootInstant) {
        self.learn(i128::from(millis) * MILLISECOND, MILLISECOND, sent, received);
    }

    /// As [`Clock::sample_millis`], where servers whose clocks are up to `slack` behind may give later answers.
    pub fn sample_within(&mut self, millis: u64, slack: Duration, sent: BootInstant, received: BootInstant) {
        let earlier = nanos_of(slack);
        self.learn(i128::from(millis) * MILLISECOND - earlier, MILLISECOND + earlier, sent, received);
    }

    /// Learns that the server's clock showed this time, in milliseconds since 1970, at `received` or before.
    pub fn at_least(&mut self, millis: u64, slack: Duration, received: BootInstant) {
        let Some(bounds) = self.bounds(received) else { return };
        let date = (i128::from(millis) * MILLISECOND - nanos_of(slack)).max(0);
        let latest = i128::from(bounds.upper.saturating_add(1)) * MILLISECOND;
        // It is not known how late it came: the upper bound stays, unless it is contradicted.
        self.learn(date, (latest - date).max(MILLISECOND), received, received);
    }

    /// Learns that the server's clock showed a time of `[date, date + most_age)` at some instant of `[sent, received]`.
    fn learn(&mut self, date: i128, most_age: i128, sent: BootInstant, received: BootInstant) {
        let (sent_at, received_at) = (nanos(sent), nanos(received));
        if received_at < sent_at {
            return;
        }
        let sample = Offset {
            low: date - received_at,
            high: date + most_age - sent_at + most_apart(received_at - sent_at),
            as_of: received,
        };
        let Some(known) = self.offset else {
            self.offset = Some(sample);
            return;
        };
        let as_of = known.as_of.max(received);
        let (known, sample) = (known.at(as_of), sample.at(as_of));
        let (low, high) = (known.low.max(sample.low), known.high.min(sample.high));
        if low < high {
            self.offset = Some(Offset { low, high, as_of });
        } else {
            self.contradicted = Some(received);
            self.offset = Some(Offset { low: known.low.min(sample.low), high: known.high.max(sample.high), as_of });
        }
    }

    /// None while no answer had a date.
    pub fn bounds(&self, at: BootInstant) -> Option<Bounds> {
        let offset = self.offset?.at(at);
        let milliseconds = |nanos: i128| u64::try_from(nanos.div_euclid(MILLISECOND)).unwrap_or(0);
        Some(Bounds {
            lower: milliseconds(nanos(at) + offset.low),
            upper: milliseconds(nanos(at) + offset.high + MILLISECOND - 1),
        })
    }

    fn width(&self, at: BootInstant) -> Option<Duration> {
        self.bounds(at).map(|Bounds { lower, upper }| Duration::from_millis(upper.saturating_sub(lower)))
    }

    /// Whether the time is known less well than answers of the usual speed would tell it.
    pub fn is_wide(&self, at: BootInstant) -> bool {
        self.width(at).is_some_and(|width| width > WIDE)
    }

    /// The reason why a takeover is slow, for people: a standby judges by the lower end.
    pub fn takeover_warning(&self, now: BootInstant) -> Option<String> {
        let width = self.width(now)?;
        if self.is_wide(now) {
            let width = show_seconds(width);
            return Some(format!(
                "the store's clock is known only to within {width}, because its answers are slow or their dates \
                 disagree: a takeover may be late by that much"
            ));
        }
        let agree = self.agreed_for(now, DISAGREEMENT_COUNTS);
        (!agree).then(|| "the dates of the store's answers disagree: a takeover may be late by one lease".to_owned())
    }

    /// When the server's clock will certainly show `millis`. None while no answer had a date.
    pub fn reaches(&self, millis: u64, now: BootInstant) -> Option<BootInstant> {
        let lower = self.bounds(now)?.lower;
        let missing = Duration::from_millis(millis.saturating_sub(lower));
        if missing.is_zero() {
            return Some(now);
        }
        // The lower end is shown in whole milliseconds.
        Some(now.plus(to_count(missing).saturating_add(Duration::from_millis(1))))
    }

    pub fn agreed_for(&self, now: BootInstant, period: Duration) -> bool {
        self.contradicted.is_none_or(|contradicted| now.since(contradicted) > period)
    }
}

impl Offset {
    fn at(self, at: BootInstant) -> Self {
        let apart = most_apart((nanos(at) - nanos(self.as_of)).abs());
        Self { low: self.low - apart, high: self.high + apart, as_of: at }
    }
}

fn nanos(instant: BootInstant) -> i128 {
    i128::from(instant.as_nanos())
}

fn nanos_of(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX >> 1)
}

/// How much later than our wall clock the server's may be, while no answer has shown it. The upper end of the first
/// answer's date is up to two seconds ahead; a guess that proves too low costs one more write.
pub const FIRST_GUESS: Duration = Duration::from_millis(2500);

/// A time before which no tree may start: a leader that did not release may still have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// On the server's clock, in milliseconds since 1970.
    pub until_millis: u64,
    /// How long the wait was when it was written: enough for a clock that is as fast as one may be.
    pub duration: Duration,
}

impl Wait {
    /// One that lasts as long as both, and is another one than `earlier`: who has seen that one for long has not seen
    /// this one.
    pub fn after(self, earlier: Self) -> Self {
        let until_millis = self.until_millis.max(earlier.until_millis.saturating_add(1));
        Self { until_millis, duration: self.duration.max(earlier.duration) }
    }

    /// None if the wait is over.
    pub fn over_by(&self, clock: &Clock, wall_millis: u64, now: BootInstant) -> Option<BootInstant> {
        // The clock may have been wrong when this was written. From now, the wait lasts no longer than it did from
        // then.
        let at_most = now.plus(self.duration);
        let by_date = match clock.reaches(self.until_millis, now) {
            Some(reached) if clock.agreed_for(now, self.duration) => reached,
            None if wall_millis > self.until_millis.saturating_add(millis(WALL_CLOCK_SLACK)) => now,
            Some(_) | None => at_most,
        };
        Some(by_date.min(at_most)).filter(|&over| over > now)
    }
}

/// What is left of a lease until another candidate may have it; zero if it may now.
///
/// `lease` is how long a store keeps it, and `expires_millis` an upper bound of when it ends on the server's clock.
/// `stood` is how long its record was seen to be unchanged. `wall_millis` is our wall clock, which can only delay a
/// takeover: a server whose clock was set forward shows no contradiction to a candidate that starts afterwards.
pub fn left_of_lease(
    clock: &Clock,
    lease: Duration,
    expires_millis: u64,
    stood: Duration,
    now: BootInstant,
    wall_millis: u64,
) -> Duration {
    // A lease that was not prolonged for its whole length on our own clock is over, whatever dates say.
    let by_age = lease.saturating_sub(stood);
    let dated = clock.bounds(now).filter(|_| clock.agreed_for(now, lease));
    let by_date =
        dated.map(|bounds| Duration::from_millis(expires_millis.saturating_sub(bounds.lower.min(wall_millis))));
    by_date.map_or(by_age, |by_date| by_date.min(by_age))
}

/// Time since the write that made a lease end at `expires_millis`, to about a second. None where the server has no
/// dates, or contradicts itself.
pub fn renewed_ago(clock: &Clock, lease: Duration, expires_millis: u64, now: BootInstant) -> Option<Duration> {
    let bounds = clock.bounds(now).filter(|_| clock.agreed_for(now, lease))?;
    // The writer took the upper bound as well, so the two errors cancel each other out.
    let written = expires_millis.saturating_sub(millis(lease));
    Some(Duration::from_millis(bounds.upper.saturating_sub(written)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EPOCH: u64 = 1_800_000_000;

    fn at(millis: u64) -> BootInstant {
        BootInstant::from_nanos(millis * 1_000_000)
    }

    /// The date of a server whose clock shows `EPOCH` when ours shows zero.
    fn date_at(millis: u64) -> u64 {
        EPOCH + millis / 1000
    }

    #[test]
    fn one_answer_leaves_the_seconds_of_the_header_and_the_round_trip_open() {
        let mut clock = Clock::default();
        clock.sample(date_at(10_300), at(10_300), at(10_310));
        let bounds = clock.bounds(at(10_310)).unwrap();
        assert_eq!(bounds.lower, EPOCH * 1000 + 10_000 - 1);
        assert!(bounds.upper - bounds.lower <= 2013, "{bounds:?}");
    }

    #[test]
    fn after_some_polls_the_interval_is_little_wider_than_the_age_of_a_date() {
        let mut clock = Clock::default();
        for poll in 0..20 {
            let now = 10_000 + poll * 437;
            clock.sample(date_at(now), at(now), at(now + 4));
        }
        let bounds = clock.bounds(at(10_000 + 19 * 437)).unwrap();
        assert!(bounds.upper - bounds.lower < 1700, "{bounds:?}");
    }

    #[test]
    fn an_interval_that_delays_takeovers_is_reported_and_a_usual_one_is_not() {
        let mut clock = Clock::default();
        assert_eq!(clock.takeover_warning(at(5)), None);
        clock.sample(date_at(10_300), at(10_300), at(11_300));
        assert_eq!(clock.takeover_warning(at(20_000)), None);
        // Another front end, with another clock.
        clock.sample(date_at(3_620_000), at(20_000), at(20_010));
        let said = clock.takeover_warning(at(20_010)).unwrap();
        assert!(said.contains("only to within 1h 5s"), "{said}");
        clock.sample(date_at(3_621_000), at(21_000), at(21_010));
        let said = clock.takeover_warning(at(21_010)).unwrap();
        assert_eq!(said, "the dates of the store's answers disagree: a takeover may be late by one lease");
        clock.sample(date_at(3_680_000), at(80_000), at(80_010));
        assert_eq!(clock.takeover_warning(at(80_011)), None);
    }

    #[test]
    fn contradicting_dates_are_both_believed_and_prove_nothing_for_a_while() {
        let mut clock = Clock::default();
        clock.sample(date_at(10_000), at(10_000), at(10_001));
        assert!(clock.agreed_for(at(10_001), Duration::from_secs(15)));
        clock.sample(date_at(10_000) + 3600, at(12_000), at(12_001));
        let bounds = clock.bounds(at(12_001)).unwrap();
        assert!(bounds.lower <= (EPOCH + 12) * 1000 && bounds.upper >= (EPOCH + 3610) * 1000, "{bounds:?}");
        assert!(!clock.agreed_for(at(27_000), Duration::from_secs(15)));
        assert!(clock.agreed_for(at(27_002), Duration::from_secs(15)));
    }

    #[test]
    fn a_clock_that_was_set_is_followed_after_two_answers() {
        let mut clock = Clock::default();
        clock.sample(date_at(10_000), at(10_000), at(10_001));
        for now in [12_000, 14_000] {
            clock.sample(date_at(now) + 3600, at(now), at(now + 1));
        }
        let bounds = clock.bounds(at(14_001)).unwrap();
        assert!(bounds.lower >= (EPOCH + 3613) * 1000 && bounds.upper <= (EPOCH + 3617) * 1000, "{bounds:?}");
    }

    #[test]
    fn the_promised_instant_is_not_before_the_lower_end_gets_there() {
        let mut clock = Clock::default();
        clock.sample(date_at(10_000), at(10_000), at(10_001));
        let goal = (EPOCH + 40) * 1000;
        let reached = clock.reaches(goal, at(10_001)).unwrap();
        assert!(clock.bounds(reached).unwrap().lower >= goal);
        assert!(reached < at(48_000), "{reached:?}");
        assert_eq!(clock.reaches(goal - 3_600_000, at(10_001)), Some(at(10_001)));
    }

    proptest! {
        /// Ours and the server's clock each run up to a twelfth too fast or too slow, and its header is up to a second
        /// old.
        #[test]
        fn the_servers_time_is_always_within_the_interval(
            start in 0_u64..5_000_000_000,
            steps in proptest::collection::vec(
                (0_u64..20_000_000_000, 0_u64..8_000_000_000, 0_u64..=100, 0_u64..1_000_000_000, -153_846_i64..=181_818),
                1..60,
            ),
        ) {
            let mut clock = Clock::default();
            // Our clock and the server's, in nanoseconds; `ppm` is how much faster the server's runs in this step.
            let mut ours: u64 = 1_000_000_000_000;
            let mut theirs: i128 = i128::from(EPOCH) * SECOND + i128::from(start);
            let elapsed = |ours: u64, ppm: i64| i128::from(ours) * (1_000_000 + i128::from(ppm)) / 1_000_000;
            for (pause, round_trip, share, age, ppm) in steps {
                let before = round_trip * share / 100;
                let sent = ours + pause;
                let answered = theirs + elapsed(pause + before, ppm);
                let date = u64::try_from((answered - i128::from(age)) / SECOND).unwrap();
                theirs += elapsed(pause + round_trip, ppm);
                ours = sent + round_trip;
                clock.sample(date, BootInstant::from_nanos(sent), BootInstant::from_nanos(ours));
                let bounds = clock.bounds(BootInstant::from_nanos(ours)).unwrap();
                prop_assert!(i128::from(bounds.lower) * MILLISECOND <= theirs, "{bounds:?} {theirs}");
                prop_assert!(i128::from(bounds.upper) * MILLISECOND >= theirs, "{bounds:?} {theirs}");
                prop_assert!(clock.contradicted.is_none());
                // And later, without another answer.
                let bounds = clock.bounds(BootInstant::from_nanos(ours + 60_000_000_000)).unwrap();
                let later = theirs + elapsed(60_000_000_000, ppm);
                prop_assert!(i128::from(bounds.lower) * MILLISECOND <= later);
                prop_assert!(i128::from(bounds.upper) * MILLISECOND >= later);
            }
        }
    }
}
