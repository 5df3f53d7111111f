//! The clock that decides about leases, and the wall clock. A simulation replaces both here. Only the process that
//! becomes COMMAND asks the kernel itself; timeouts and log lines have clocks of their own.
//!
//! The hazard: `std::time::Instant` and tokio's clock stop while the machine is suspended, and people and NTP set the
//! wall clock. A lease goes on through both. So everything that decides about a lease counts on `CLOCK_BOOTTIME`, which
//! runs through a suspend and is never set. Tokio's clock may wake us; it never decides.

use crate::sys;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clocks of a simulation. Set only there, and in the candidates of `leaderctl selftest`.
static SIMULATED: OnceLock<Simulated> = OnceLock::new();
/// The error of the wall clock in such a candidate, in milliseconds.
static STEP: OnceLock<fn() -> i64> = OnceLock::new();

struct Simulated {
    boot_clock: fn() -> BootInstant,
    wall_clock_millis: fn() -> u64,
}

/// Replaces every clock of this process. For simulations; once, and for good.
#[doc(hidden)]
pub fn simulate(boot_clock: fn() -> BootInstant, wall_clock_millis: fn() -> u64) {
    let first = SIMULATED.set(Simulated { boot_clock, wall_clock_millis }).is_ok();
    assert!(first, "one process has one simulation");
}

/// Makes the wall clock of this process wrong: each reading is off by as many milliseconds as `step` returns. The boot
/// clock stays right. For `leaderctl selftest`; once, and for good.
pub fn step_wall_clock(step: fn() -> i64) {
    let first = STEP.set(step).is_ok();
    assert!(first, "one process has one step");
    simulate(boot_clock, stepped_wall_clock);
}

fn stepped_wall_clock() -> u64 {
    wall_clock().saturating_add_signed(STEP.get().map_or(0, |step| step()))
}

/// An instant on `CLOCK_BOOTTIME`, in nanoseconds since the machine started.
///
/// Comparable between processes of one machine, meaningless between machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Later than every instant that the clock reaches: "no deadline".
    pub const NEVER: Self = Self(u64::MAX);

    /// The clock's present reading.
    #[must_use]
    pub fn now() -> Self {
        if let Some(simulated) = SIMULATED.get() {
            return (simulated.boot_clock)();
        }
        boot_clock()
    }

    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `duration` later. `NEVER` stays `NEVER`, and a sum that overflows becomes `NEVER`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// `duration` earlier. An instant before boot becomes boot. `NEVER` stays `NEVER`.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        if self == Self::NEVER { Self::NEVER } else { Self(self.0.saturating_sub(nanos(duration))) }
    }

    /// Time since boot; None for `NEVER`.
    #[must_use]
    pub fn since_boot(self) -> Option<Duration> {
        (self != Self::NEVER).then(|| Duration::from_nanos(self.0))
    }

    /// Time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn boot_clock() -> BootInstant {
    let since_boot = sys::boot_clock();
    BootInstant(u64::try_from(since_boot.as_nanos()).expect("no machine runs for 500 years"))
}

/// A value that does not fit becomes the largest one.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded down. A value that does not fit becomes the largest one.
pub(crate) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds, rounded up: another process that waits for this time must never wait too short, and only nothing is
/// shown as 0. A value that does not fit becomes the largest one.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 by this machine's wall clock: for people to read, and for a first guess while a store has
/// not told its time yet. No decision about a lease may rest on it.
#[must_use]
pub fn wall_clock_millis() -> u64 {
    if let Some(simulated) = SIMULATED.get() {
        return (simulated.wall_clock_millis)();
    }
    wall_clock()
}

fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    whole_millis(since)
}

/// The time in RFC 3339, to the millisecond.
#[must_use]
pub fn rfc3339(millis: u64) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    // A note may contain any number; humantime ends with the year 9999.
    at.filter(|_| millis < 253_402_300_800_000)
        .map_or_else(|| format!("{millis} ms since 1970"), |at| humantime::format_rfc3339_millis(at).to_string())
}

/// The time in RFC 3339, to the second.
#[must_use]
pub fn rfc3339_seconds(millis: u64) -> String {
    let exact = rfc3339(millis);
    exact.strip_suffix('Z').and_then(|time| time.rsplit_once('.')).map_or(exact.clone(), |(time, _)| format!("{time}Z"))
}

/// A timer that goes on through a suspend.
pub(crate) fn boot_timer() -> io::Result<TimerFd> {
    Ok(TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?)
}

/// Makes `timer` readable from `instant` on, even if `instant` has passed.
pub(crate) fn set_boot_timer(timer: &TimerFd, instant: BootInstant) -> io::Result<()> {
    if instant == BootInstant::NEVER {
        return Ok(timer.unset()?);
    }
    // Zero would disarm it.
    let at = TimeSpec::from_duration(Duration::from_nanos(instant.as_nanos().clamp(1, i64::MAX.unsigned_abs())));
    Ok(timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_not_moved_by_arithmetic() {
        assert_eq!(BootInstant::NEVER.plus(Duration::from_secs(1)), BootInstant::NEVER);
        assert_eq!(BootInstant::NEVER.minus(Duration::from_secs(1)), BootInstant::NEVER);
        assert_eq!(BootInstant::from_nanos(5).plus(Duration::MAX), BootInstant::NEVER);
    }

    #[test]
    fn a_duration_is_whole_milliseconds_either_way_and_never_overflows() {
        for (nanos, down, up) in [(0, 0, 0), (1, 0, 1), (999_999, 0, 1), (1_000_000, 1, 1), (1_000_001, 1, 2)] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!((whole_millis(duration), millis(duration)), (down, up), "{nanos}");
        }
        assert_eq!((whole_millis(Duration::MAX), millis(Duration::MAX)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let earlier = BootInstant::now();
        assert!(BootInstant::now() >= earlier);
        assert_eq!(earlier.since(earlier.plus(Duration::from_secs(1))), Duration::ZERO);
    }
}
