//! When a job with a period runs: a rule without a clock and without a store.
//!
//! The hazards:
//!
//! - Hosts' clocks differ, and cron starts a job by its own host's clock. Two hosts that start it for one time must run
//!   it once, and the start of a host whose clock is early must not count for the period before. So the ledger keeps
//!   when the next run is due, `next`, by the clock of a host that ran it. A start more than half a period before that
//!   does nothing: its period has had its run.
//! - Some people start a job by hand, or far more often than it is to run. If a start only had to be half a period
//!   after the last run, hourly starts of a daily job would run it twice a day. So `next` moves on by at least a
//!   period.
//! - A host whose clock is a year ahead would keep the job from all others for a year. So the store, by its own clock,
//!   forgets the ledger two periods after the run ([`Period::lasts`]), and the next start runs the job whatever its
//!   clock shows.

use crate::time::{rfc3339_seconds, whole_millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Clocks by which cron runs differ by less.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_hours(24 * 366);
/// Some stores keep a note a little longer than they were asked to.
const KEPT_LONGER: Duration = Duration::from_mins(1);

/// The period of a job, and when it was started by this host's wall clock. A candidate that waits long for the lease
/// stays in the period in which it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    every: Duration,
    started_millis: u64,
}

/// What the ledger says of one period, in milliseconds since 1970 by hosts' own clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// When the first run of the period was started, without the seconds.
    pub due_millis: u64,
    pub next_millis: u64,
    pub every_millis: u64,
}

impl Period {
    pub fn new(started_millis: u64, every: Duration) -> Result<Self, String> {
        if !(SHORTEST..=LONGEST).contains(&every) || !every.subsec_nanos().is_multiple_of(1_000_000) {
            return Err("write a duration from 1s to 366 days, in whole milliseconds".to_owned());
        }
        Ok(Self { every, started_millis })
    }

    pub fn every(self) -> Duration {
        self.every
    }

    /// How long the store keeps the ledger of a run, by its own clock.
    pub fn lasts(self) -> Duration {
        2 * self.every
    }

    /// Whether a ledger counts that the store keeps for another `left`. If that is too long, the store's clock was set
    /// back, or the period was longer.
    pub fn believes(self, left: Option<Duration>) -> bool {
        left.is_none_or(|left| left <= self.lasts() + self.every + KEPT_LONGER)
    }

    /// The period that a run begins. None if the period has had its run. `last` is the ledger's.
    pub fn turn(self, last: Option<Turn>) -> Option<Turn> {
        let every_millis = whole_millis(self.every);
        let started = self.started_millis;
        if last.is_some_and(|last| started < last.next_millis.saturating_sub(every_millis / 2)) {
            return None;
        }
        let due = last.map_or(started, |last| last.next_millis.max(started));
        let unit = if every_millis < 60_000 { 1000 } else { 60_000 };
        Some(Turn { due_millis: started - started % unit, next_millis: due.saturating_add(every_millis), every_millis })
    }
}

impl Turn {
    /// The value of `LEADERRUN_DUE`.
    pub fn due(self) -> String {
        rfc3339_seconds(self.due_millis)
    }

    /// The time that this run stands for. A start by hand may come long before it.
    pub fn counts_as(self) -> String {
        rfc3339_seconds(self.next_millis.saturating_sub(self.every_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;
    use std::collections::BTreeSet;

    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    /// 2027-01-15T08:00:00Z.
    const BEGIN: u64 = 1_800_000_000_000;

    fn period(started_millis: u64, every_millis: u64) -> Period {
        Period::new(started_millis, Duration::from_millis(every_millis)).unwrap()
    }

    /// A job on a store that forgets the ledger in time.
    struct Play {
        every: u64,
        ledger: Option<Turn>,
        /// When it ran, by a clock that is right.
        runs: Vec<u64>,
    }

    impl Play {
        fn of(every: u64) -> Self {
            Self { every, ledger: None, runs: Vec::new() }
        }

        /// A host whose clock is off by `off` starts the job at `now`.
        fn start(&mut self, now: u64, off: i64) -> bool {
            let period = period(now.checked_add_signed(off).unwrap(), self.every);
            let forgotten = self.runs.last().is_some_and(|&last| now - last >= whole_millis(period.lasts()));
            let turn = period.turn(self.ledger.filter(|_| !forgotten));
            if let Some(turn) = turn {
                self.ledger = Some(turn);
                self.runs.push(now);
            }
            turn.is_some()
        }

        /// The longest time without a run up to `end`.
        fn longest_gap(&self, end: u64) -> u64 {
            let runs = self.runs.iter().chain([&end]);
            runs.clone().zip(runs.skip(1)).map(|(one, next)| next - one).max().unwrap_or(0)
        }
    }

    /// Hosts and their clocks, from a few numbers. Returns how many clocks are far off, and how many runs there are
    /// beyond one for each period.
    fn play(seed: u64) -> Result<(usize, usize), String> {
        let source = &mut fuzz::Source::new(seed);
        let below = |source: &mut fuzz::Source, most: u64| source.next() % most.max(1);
        let every = [1000, 10_000, MINUTE, 5 * MINUTE, HOUR, DAY, 7 * DAY][usize::try_from(below(source, 7)).unwrap()];
        // Starts come this often, so many milliseconds late, on hosts with these clocks.
        let starts = 1 + below(source, 24);
        let interval = every / starts;
        let jitter = below(source, interval / 8);
        let offset = below(source, every);
        let skew = every / 8;
        let mut hosts: Vec<i64> = (0..=below(source, 5))
            .map(|_| i64::try_from(below(source, 2 * skew + 1)).unwrap() - i64::try_from(skew).unwrap())
            .collect();
        let is_ahead = below(source, 3) == 0;
        if is_ahead {
            hosts[0] = i64::try_from(365 * DAY).unwrap();
        }
        // One clock is set, once, by up to half a year.
        let step_at = if below(source, 3) == 0 { below(source, 40) * every } else { u64::MAX };
        let step = i64::try_from(below(source, 180 * DAY)).unwrap() * if source.one_in(2) { 1 } else { -1 };
        let lasts = 60 * every;
        let mut play = Play::of(every);
        let mut time = offset;
        while time + jitter < lasts {
            let mut round = Vec::new();
            for (host, &clock) in hosts.iter().enumerate() {
                // All but the first are sometimes down.
                let is_down = host > 0 && below(source, 10) == 0;
                let step = if time >= step_at && host + 1 == hosts.len() { step } else { 0 };
                let late = below(source, jitter + 1);
                if !is_down {
                    round.push((BEGIN + time + late, clock + step));
                }
            }
            round.sort_unstable();
            for (now, off) in round {
                play.start(now, off);
            }
            time += interval;
        }
        let said =
            || format!("every {every}, {starts} starts, jitter {jitter}, clocks {hosts:?}, step {step} at {step_at}");
        // A run moves `next` on by a period at least, and starts half a period before it at most. So by clocks that
        // differ by a quarter of it, n runs take more than n - 1.75 periods. To a clock that is far from the others,
        // the `next` of a run on another host is long past, or that of its own run is to others: one run more. It is
        // one for good, because each next change of sides waits until the store has forgotten: two periods for one run.
        let far_off = usize::from(is_ahead) + usize::from(step_at != u64::MAX);
        let more = play.runs.len() - usize::try_from(lasts / every).unwrap().min(play.runs.len());
        if more > 1 + far_off {
            return Err(format!("{} runs, {far_off} clocks are far off: {}", play.runs.len(), said()));
        }
        // A start runs the job a period after the last run by its own clock. A clock that is far off cannot be told
        // from a period that has run: then the first start after two periods runs it.
        let longest = match far_off {
            0 => (every + 2 * skew + interval + jitter).min(2 * every),
            _ => 2 * every + interval + jitter,
        };
        let gap = play.longest_gap(BEGIN + lasts);
        if gap > longest {
            return Err(format!("no run for {gap}, at most {longest}: {}", said()));
        }
        Ok((far_off, more))
    }

    #[test]
    fn a_job_runs_once_a_period_whatever_the_clocks_of_its_hosts_show() {
        let seen: BTreeSet<_> = (0..6_000).map(|seed| play(seed).unwrap_or_else(|wrong| panic!("{wrong}"))).collect();
        // The bounds are no wider than they must be.
        assert!(seen.contains(&(0, 1)) && seen.contains(&(1, 2)), "{seen:?}");
    }

    #[test]
    fn a_run_by_hand_counts_as_the_one_that_is_next() {
        let nightly = period(BEGIN, DAY).turn(None).unwrap();
        assert_eq!(
            (nightly.due(), nightly.counts_as()),
            ("2027-01-15T08:00:00Z".into(), "2027-01-15T08:00:00Z".into())
        );
        assert_eq!(period(BEGIN + 11 * HOUR, DAY).turn(Some(nightly)), None);
        let by_hand = period(BEGIN + 21 * HOUR + 59_999, DAY).turn(Some(nightly)).unwrap();
        assert_eq!(
            (by_hand.due(), by_hand.counts_as()),
            ("2027-01-16T05:00:00Z".into(), "2027-01-16T08:00:00Z".into())
        );
        assert_eq!(period(BEGIN + DAY, DAY).turn(Some(by_hand)), None);
        assert!(period(BEGIN + 2 * DAY, DAY).turn(Some(by_hand)).is_some());
    }

    #[test]
    fn a_short_period_has_seconds() {
        assert_eq!(period(BEGIN + 1999, 59_000).turn(None).unwrap().due_millis, BEGIN + 1000);
        assert_eq!(period(BEGIN + 1999, 60_000).turn(None).unwrap().due_millis, BEGIN);
        assert!(period(u64::MAX, 1500).turn(None).is_some());
    }

    #[test]
    fn a_ledger_that_lasts_longer_than_any_was_written_does_not_count() {
        let daily = period(BEGIN, DAY);
        let days = |days: u64| Some(Duration::from_millis(days * DAY));
        assert!(daily.believes(days(2)) && daily.believes(Some(Duration::ZERO)) && daily.believes(None));
        assert!(!daily.believes(days(365)));
    }
}
