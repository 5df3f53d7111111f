//! How late guard and backstop are woken, and how much earlier they act for that.
//!
//! The hazard: a guard that is woken late kills late, and the tree runs beside its successor. No margin covers every
//! machine: under a CPU quota, or beside many busy processes, a guard may wait seconds for a processor. So guard and
//! backstop measure how late they are woken, and move their deadlines earlier by several times the worst of the last
//! minutes. One bad moment must not end a leadership whose renewals arrive, so deadlines move by at most half of the
//! outage that the timing allows.

use crate::lease::{Late, Timing};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A process that is woken this late counts as in time: the margin covers it many times.
const IN_TIME: Duration = Duration::from_millis(10);
const MINUTE: Duration = Duration::from_mins(1);
/// The present minute, and five whole ones before it.
const MINUTES: usize = 6;

/// How a process measures its lateness, and what it makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// The time between two samples, if no message comes.
    pub every: Duration,
    /// The most by which deadlines move.
    pub most: Duration,
    /// The lateness to count with until it was measured.
    pub presumed: Duration,
    /// This process has a CPU quota.
    pub under_a_quota: bool,
}

impl Measure {
    pub fn of(timing: &Timing) -> Self {
        Self {
            every: timing.renew_interval / 4,
            most: timing.most_extra(),
            presumed: Duration::ZERO,
            under_a_quota: false,
        }
    }

    /// What follows from this lateness.
    pub fn late(&self, worst: Duration) -> Late {
        Late::new(worst, self.most, self.under_a_quota)
    }
}

/// The worst lateness of the last five minutes. After that, each minute halves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lateness {
    /// The worst of each minute, the present one first.
    minutes: [Duration; MINUTES],
    /// When the present minute began.
    since: BootInstant,
    /// At least the worst of `minutes`.
    held: Duration,
}

impl Lateness {
    /// Begins with `presumed` as the worst.
    pub fn new(now: BootInstant, presumed: Duration) -> Self {
        let mut minutes = [Duration::ZERO; MINUTES];
        minutes[0] = presumed;
        Self { minutes, since: now, held: presumed }
    }

    /// Adds a sample.
    pub fn add(&mut self, now: BootInstant, late: Duration) {
        self.pass_time(now);
        if late >= IN_TIME {
            self.minutes[0] = self.minutes[0].max(late);
            self.held = self.held.max(late);
        }
    }

    pub fn worst(&mut self, now: BootInstant) -> Duration {
        self.pass_time(now);
        self.held
    }

    fn pass_time(&mut self, now: BootInstant) {
        while now.since(self.since) >= MINUTE && !self.held.is_zero() {
            self.minutes.rotate_right(1);
            self.minutes[0] = Duration::ZERO;
            self.since = self.since.plus(MINUTE);
            let worst = self.minutes.into_iter().max().unwrap_or_default();
            let half = Some(self.held / 2).filter(|half| *half >= IN_TIME);
            self.held = worst.max(half.unwrap_or_default());
        }
        if self.held.is_zero() {
            self.since = now;
        }
    }
}

/// How much earlier a process acts: for its own lateness, or for the one that the candidate reports of the other
/// process, whichever is worse. So the backstop does not kill before the guard does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caution {
    most: Duration,
    under_a_quota: bool,
    own: Duration,
    told: Duration,
}

impl From<Measure> for Caution {
    fn from(Measure { most, presumed, under_a_quota, .. }: Measure) -> Self {
        Self { most, under_a_quota, own: presumed, told: Duration::ZERO }
    }
}

impl Caution {
    pub fn measured(&mut self, worst: Duration) {
        self.own = worst;
    }

    pub fn told(&mut self, worst: Duration) {
        self.told = worst;
    }

    pub fn extra(&self) -> Duration {
        Late::new(self.own.max(self.told), self.most, self.under_a_quota).extra
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::at;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_worst_grows_at_once_lasts_five_minutes_and_shrinks_by_half_a_minute() {
        let mut lateness = Lateness::new(at(30), Duration::ZERO);
        lateness.add(at(30), millis(9));
        assert_eq!(lateness.worst(at(30)), Duration::ZERO, "it counts as in time");
        lateness.add(at(40), millis(800));
        assert_eq!(lateness.worst(at(40)), millis(800));
        lateness.add(at(50), millis(300));
        for second in [60, 200, 340] {
            assert_eq!(lateness.worst(at(second)), millis(800), "{second}");
        }
        for (second, worst) in [(400, 400), (460, 200), (520, 100), (580, 50), (640, 25), (700, 12), (760, 0)] {
            assert_eq!(lateness.worst(at(second)).as_millis(), worst, "{second}");
        }
        lateness.add(at(800), millis(20));
        assert_eq!(lateness.worst(at(800)), millis(20));
    }

    #[test]
    fn what_is_presumed_lasts_as_long_however_small_it_is() {
        let mut lateness = Lateness::new(at(0), millis(5));
        assert_eq!(lateness.worst(at(340)), millis(5));
        assert_eq!(lateness.worst(at(360)), Duration::ZERO);
    }

    #[test]
    fn a_long_sleep_forgets_everything() {
        let mut lateness = Lateness::new(at(0), Duration::MAX);
        assert_eq!(lateness.worst(at(300)), Duration::MAX);
        assert_eq!(lateness.worst(BootInstant::NEVER), Duration::ZERO);
    }

    #[test]
    fn the_worse_of_both_processes_counts_within_the_bound() {
        let measure = Measure { every: millis(1), most: millis(1000), presumed: millis(20), under_a_quota: false };
        let mut caution = Caution::from(measure);
        assert_eq!(caution.extra(), millis(80), "presumed");
        caution.measured(millis(10));
        caution.told(millis(100));
        assert_eq!(caution.extra(), millis(400));
        caution.measured(millis(300));
        assert_eq!(caution.extra(), millis(1000));
        assert_eq!(Caution::default().extra(), Duration::ZERO);
        let mut caution = Caution::from(Measure { under_a_quota: true, ..measure });
        assert_eq!(caution.extra(), millis(320), "presumed under a quota");
        caution.measured(millis(63));
        assert_eq!(caution.extra(), millis(1000));
    }
}
