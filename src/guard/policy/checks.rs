//! When COMMAND's health is checked, and what the checks mean: a pure machine without a clock.
//!
//! The hazards:
//!
//! - A check may hang, and may not even die when it is killed (on a file system that does not answer). So each check
//!   has a timeout, and one that is still there when the next is due has failed once more.
//! - A guard that was frozen, or a host that was suspended, missed many checks. It counts one of them at most: the next
//!   is due one interval later.
//! - A check says something about a COMMAND that runs. None begins before it, and none counts once it is being stopped.

use crate::election::{HookEnd, Unhealthy};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How often COMMAND's health is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckTimes {
    /// From the start of COMMAND to the first check, and from the end of a check to the next.
    pub interval: Duration,
    /// The longest time that a check may take.
    pub timeout: Duration,
    /// This many failures in a row make COMMAND unhealthy.
    pub failures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checks {
    times: CheckTimes,
    phase: Phase,
    /// Failures since the last success.
    failed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// COMMAND does not run yet, is being stopped, or is known to be unhealthy.
    Off,
    Resting {
        until: BootInstant,
    },
    /// A check runs. It is killed at `until`.
    Checking {
        until: BootInstant,
    },
    /// A check was killed and has not been reaped. The next is due at `until`.
    Killed {
        until: BootInstant,
    },
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Start,
    /// SIGKILL to the running check and all its descendants. It has failed.
    Kill(Failed),
}

/// A check failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// COMMAND may fail more checks before it counts as unhealthy.
    Again(Unhealthy),
    /// Tell the candidate. This comes once.
    Unhealthy(Unhealthy),
}

impl Checks {
    pub fn new(times: CheckTimes) -> Self {
        Self { times, phase: Phase::Off, failed: 0 }
    }

    pub fn command_started(&mut self, now: BootInstant) {
        self.phase = Phase::Resting { until: now.plus(self.times.interval) };
    }

    /// When [`Checks::pass_time`] has something to do.
    pub fn wake_at(&self) -> BootInstant {
        match self.phase {
            Phase::Off => BootInstant::NEVER,
            Phase::Resting { until } | Phase::Checking { until } | Phase::Killed { until } => until,
        }
    }

    pub fn pass_time(&mut self, now: BootInstant) -> Option<Due> {
        match self.phase {
            Phase::Resting { until } if now >= until => {
                self.phase = Phase::Checking { until: now.plus(self.times.timeout) };
                Some(Due::Start)
            }
            Phase::Checking { until } | Phase::Killed { until } if now >= until => {
                let failed = self.fail(HookEnd::TimedOut);
                if self.phase != Phase::Off {
                    self.phase = Phase::Killed { until: now.plus(self.times.interval) };
                }
                Some(Due::Kill(failed))
            }
            Phase::Off | Phase::Resting { .. } | Phase::Checking { .. } | Phase::Killed { .. } => None,
        }
    }

    /// The check was reaped, or could not be started.
    pub fn ended(&mut self, now: BootInstant, end: HookEnd) -> Option<Failed> {
        match self.phase {
            Phase::Checking { .. } => {
                self.phase = Phase::Resting { until: now.plus(self.times.interval) };
                if end == HookEnd::Exited(0) {
                    self.failed = 0;
                    return None;
                }
                Some(self.fail(end))
            }
            // Its failure was counted when it was killed.
            Phase::Killed { until } => {
                self.phase = Phase::Resting { until };
                None
            }
            Phase::Off | Phase::Resting { .. } => None,
        }
    }

    /// COMMAND is being stopped, or has ended. Returns whether a check is left, to be killed.
    pub fn stop(&mut self) -> bool {
        let runs = matches!(self.phase, Phase::Checking { .. });
        self.phase = Phase::Off;
        runs
    }

    fn fail(&mut self, end: HookEnd) -> Failed {
        self.failed += 1;
        let unhealthy = Unhealthy { last: end, failures: self.failed };
        if self.failed < self.times.failures {
            return Failed::Again(unhealthy);
        }
        self.phase = Phase::Off;
        Failed::Unhealthy(unhealthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::at;

    const OK: HookEnd = HookEnd::Exited(0);
    const BAD: HookEnd = HookEnd::Exited(1);

    /// Every 10 s, 5 s long, three failures; COMMAND started at 0.
    fn checks() -> Checks {
        let times = CheckTimes { interval: Duration::from_secs(10), timeout: Duration::from_secs(5), failures: 3 };
        let mut checks = Checks::new(times);
        assert_eq!(checks.wake_at(), BootInstant::NEVER, "COMMAND does not run");
        assert_eq!(checks.pass_time(at(1000)), None);
        checks.command_started(at(0));
        checks
    }

    fn again(end: HookEnd, failures: u32) -> Failed {
        Failed::Again(Unhealthy { last: end, failures })
    }

    fn unhealthy(end: HookEnd, failures: u32) -> Failed {
        Failed::Unhealthy(Unhealthy { last: end, failures })
    }

    #[test]
    fn a_check_begins_one_interval_after_the_start_and_after_the_end_of_the_last() {
        let mut checks = checks();
        assert_eq!((checks.wake_at(), checks.pass_time(at(9))), (at(10), None));
        assert_eq!(checks.pass_time(at(10)), Some(Due::Start));
        assert_eq!((checks.wake_at(), checks.pass_time(at(12))), (at(15), None));
        assert_eq!(checks.ended(at(13), OK), None);
        assert_eq!((checks.wake_at(), checks.pass_time(at(22))), (at(23), None));
        assert_eq!(checks.pass_time(at(23)), Some(Due::Start));
    }

    #[test]
    fn a_check_that_hangs_is_killed_and_counts_once_even_if_it_does_not_die() {
        let mut checks = checks();
        assert_eq!(checks.pass_time(at(10)), Some(Due::Start));
        assert_eq!(checks.pass_time(at(15)), Some(Due::Kill(again(HookEnd::TimedOut, 1))));
        assert_eq!((checks.wake_at(), checks.pass_time(at(16))), (at(25), None));
        assert_eq!(checks.ended(at(16), HookEnd::Signalled(9)), None);
        assert_eq!(checks.pass_time(at(25)), Some(Due::Start));
        // This one hangs in the kernel: no other starts beside it.
        assert_eq!(checks.pass_time(at(30)), Some(Due::Kill(again(HookEnd::TimedOut, 2))));
        assert_eq!(checks.pass_time(at(40)), Some(Due::Kill(unhealthy(HookEnd::TimedOut, 3))));
        assert_eq!((checks.wake_at(), checks.ended(at(41), HookEnd::Signalled(9))), (BootInstant::NEVER, None));
        assert!(!checks.stop());
    }

    #[test]
    fn a_host_that_was_suspended_counts_one_check_at_most() {
        let mut checks = checks();
        assert_eq!(checks.pass_time(at(10)), Some(Due::Start));
        assert_eq!(checks.pass_time(at(10_000)), Some(Due::Kill(again(HookEnd::TimedOut, 1))));
        assert_eq!(checks.pass_time(at(10_000)), None);
        assert_eq!(checks.ended(at(10_000), HookEnd::Signalled(9)), None);
        assert_eq!((checks.pass_time(at(10_009)), checks.pass_time(at(10_010))), (None, Some(Due::Start)));
        // A result that the guard reads late is a result.
        assert_eq!(checks.ended(at(20_000), OK), None);
        assert_eq!(checks.wake_at(), at(20_010));
    }

    #[test]
    fn only_failures_in_a_row_are_too_many() {
        let mut checks = checks();
        let (mut now, mut ends) = (0, Vec::new());
        for end in [BAD, BAD, OK, BAD, BAD, BAD] {
            now += 10;
            assert_eq!(checks.pass_time(at(now)), Some(Due::Start));
            ends.push(checks.ended(at(now), end));
        }
        let failed = [again(BAD, 1), again(BAD, 2), again(BAD, 1), again(BAD, 2), unhealthy(BAD, 3)].map(Some);
        assert_eq!(ends, [&failed[..2], &[None], &failed[2..]].concat());
    }
}
