//! The clock that decides about leases, and the wall clock. A simulation replaces both here. Only the process that
//! becomes COMMAND asks the kernel itself; timeouts and log lines have clocks of their own.
//!
//! The hazard: `std::time::Instant` and tokio's clock stop while the machine is suspended, and people and NTP set the
//! wall clock. A lease goes on through both. So everything that decides about a lease counts on `CLOCK_BOOTTIME`, which
//! runs through a suspend and is never set. Tokio's clock may wake us; it never decides.

use crate::sys;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clocks of a simulation. Set only there, and in the candidates of `leaderctl selftest`.
static SIMULATED: OnceLock<Simulated> = OnceLock::new();

struct Simulated {
    boot_clock: fn() -> BootInstant,
    wall_clock_millis: fn() -> u64,
}

/// Replaces both clocks of this process. For simulations and `leaderctl selftest`; once, and for good.
#[doc(hidden)]
pub fn simulate(boot_clock: fn() -> BootInstant, wall_clock_millis: fn() -> u64) {
    let first = SIMULATED.set(Simulated { boot_clock, wall_clock_millis }).is_ok();
    assert!(first, "one process has one simulation");
}

/// An instant on `CLOCK_BOOTTIME`, in nanoseconds since the machine started.
///
/// Comparable between processes of one machine, meaningless between machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Later than every instant that the clock reaches: "no deadline".
    pub const NEVER: Self = Self(u64::MAX);

    /// The clock's present reading.
    pub fn now() -> Self {
        if let Some(simulated) = SIMULATED.get() {
            return (simulated.boot_clock)();
        }
        boot_clock()
    }

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

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
    pub fn since_boot(self) -> Option<Duration> {
        (self != Self::NEVER).then(|| Duration::from_nanos(self.0))
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// How long the machine has slept since it started: what `CLOCK_BOOTTIME` counts and `CLOCK_MONOTONIC` does not.
#[derive(Clone, Copy, Debug)]
pub struct Slept {
    least: Duration,
    most: Duration,
}

impl Slept {
    /// Between the readings of two clocks this process may have waited for a processor, which looks like a sleep. So
    /// one of them is read before and after the other.
    pub fn now() -> Self {
        let before = sys::monotonic_clock();
        let boot = sys::boot_clock();
        let after = sys::monotonic_clock();
        Self { least: boot.saturating_sub(after), most: boot.saturating_sub(before) }
    }

    /// For how long the machine has slept since `earlier`, at least.
    pub fn since(self, earlier: Self) -> Duration {
        self.least.saturating_sub(earlier.most)
    }
}

/// This many seconds after the machine started.
#[cfg(test)]
pub(crate) fn at(seconds: u64) -> BootInstant {
    BootInstant::from_nanos(seconds * 1_000_000_000)
}

/// What the kernel's clock shows, whatever [`simulate`] has set.
pub(crate) fn boot_clock() -> BootInstant {
    let since_boot = sys::boot_clock();
    BootInstant(u64::try_from(since_boot.as_nanos()).expect("no machine runs for 500 years"))
}

/// A value that does not fit becomes the largest one.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded down. A value that does not fit becomes the largest one.
pub(crate) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds, rounded up: another process that waits for this time must never wait too short, and only nothing is
/// shown as 0. A value that does not fit becomes the largest one.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 by this machine's wall clock: for people to read, and for a first guess while a store has
/// not told its time yet. No decision about a lease may rest on it.
pub fn wall_clock_millis() -> u64 {
    if let Some(simulated) = SIMULATED.get() {
        return (simulated.wall_clock_millis)();
    }
    wall_clock()
}

/// What the kernel's clock shows, whatever [`simulate`] has set.
pub(crate) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    whole_millis(since)
}

/// The time in RFC 3339, to the millisecond.
pub fn rfc3339(millis: u64) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    // A note may contain any number; humantime ends with the year 9999.
    at.filter(|_| millis < 253_402_300_800_000)
        .map_or_else(|| format!("{millis} ms since 1970"), |at| humantime::format_rfc3339_millis(at).to_string())
}

/// The time in RFC 3339, to the second.
pub fn rfc3339_seconds(millis: u64) -> String {
    let exact = rfc3339(millis);
    exact.strip_suffix('Z').and_then(|time| time.rsplit_once('.')).map_or(exact.clone(), |(time, _)| format!("{time}Z"))
}

/// Reads a time in RFC 3339 in any time zone, as other programs write it: milliseconds since 1970.
pub fn millis_of_rfc3339(text: &str) -> Option<u64> {
    let (local, offset) = if let Some(local) = text.strip_suffix(['Z', 'z']) {
        (local, 0)
    } else {
        // The sign comes after the date, which has hyphens too.
        let (local, zone) = text.split_at_checked(text.rfind(['+', '-']).filter(|&at| at > "2000-01-01".len())?)?;
        let (hours, minutes) = zone[1..].split_once(':')?;
        let seconds = i64::from(hours.parse::<u8>().ok()?) * 3600 + i64::from(minutes.parse::<u8>().ok()?) * 60;
        (local, if zone.starts_with('-') { -seconds } else { seconds })
    };
    let local = humantime::parse_rfc3339(&format!("{local}Z")).ok()?.duration_since(UNIX_EPOCH).ok()?;
    whole_millis(local).checked_add_signed(-offset * 1000)
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
    fn a_time_in_any_zone_is_read_and_nonsense_is_not() {
        for (text, millis) in [
            ("2026-11-21T13:43:31Z", Some(1_795_268_611_000)),
            ("2026-11-21T13:43:31.256789z", Some(1_795_268_611_256)),
            ("2026-11-21T14:43:31+01:00", Some(1_795_268_611_000)),
            ("2026-11-21T08:13:31.5-05:30", Some(1_795_268_611_500)),
            ("1970-01-01T00:00:00+00:01", None),
            ("0001-01-01T00:00:00Z", None),
            ("2026-11-21", None),
            ("2026-11-21T13:43:31", None),
            ("2026-11-21T13:43:31+1", None),
            ("2026-11-21T13:43:31+é:00", None),
            ("2026-11-21T13:43:31+999:00", None),
            ("", None),
        ] {
            assert_eq!(millis_of_rfc3339(text), millis, "{text}");
        }
    }

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
    fn a_wait_for_a_processor_is_no_sleep_of_the_machine() {
        let seconds = Duration::from_secs;
        let slept = |least, most| Slept { least: seconds(least), most: seconds(most) };
        assert_eq!(slept(100, 100).since(slept(40, 40)), seconds(60));
        assert_eq!(slept(40, 47).since(slept(40, 40)), Duration::ZERO);
        assert_eq!(slept(40, 40).since(slept(40, 47)), Duration::ZERO);
        let now = Slept::now();
        assert!(now.least <= now.most);
        assert_eq!(Slept::now().since(now), Duration::ZERO, "nobody suspends the machine in this test");
    }
}
