//! The timing of a lease.
//!
//! The hazard: a holder that trusts its lease for longer than the store does runs beside its successor. [`Timing`]
//! proves that this cannot happen.
//!
//! The other hazard: chrony and ntpd correct a clock by slewing it, which changes the rate of every clock of the host,
//! `CLOCK_BOOTTIME` too, by up to a twelfth for minutes. So the holder stops after 11/12 of the lease on its own clock:
//! at most the lease has passed, however slow that clock is. The store keeps the lease, and a candidate waits for it,
//! for 13/12 on their own clocks ([`kept`]): at least the lease has passed, however fast those are. Only a comparison
//! of two clocks needs more ([`most_apart`]).

use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub const DEFAULT_LEASE: Duration = Duration::from_secs(15);
pub const DEFAULT_RENEW: Duration = Duration::from_secs(5);
pub const DEFAULT_RETRY: Duration = Duration::from_secs(2);
/// With the defaults, and any lease of 5 s or more, a leader survives an outage of a quarter of the lease, whenever it
/// begins.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(3);

/// In object storage, where a million writes cost $5, a leader and two standbys cost less than $1 a month with these.
const FRUGAL_LEASE: Duration = Duration::from_mins(1);
const FRUGAL_RENEW: Duration = Duration::from_secs(20);
const FRUGAL_RETRY: Duration = Duration::from_secs(10);

/// How long the kernel may take to schedule the guard, deliver SIGKILL and reap the tree. Half of it is for the guard,
/// half for the processes that act if the guard does not.
const KILL_LATENCY: Duration = Duration::from_millis(600);
/// The rate of a clock differs from that of true time by at most 1 part in this many: the first assumption of the
/// guarantees in leaderrun(7). By default chrony slews by no more (`maxslewrate`).
const SLEW_PARTS: u32 = 12;
/// With a shorter timeout, requests would fail just because the network is slow.
const LEAST_REQUEST_TIMEOUT: Duration = Duration::from_millis(50);
/// After this, another attempt on another connection is more likely to succeed.
const MOST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const LEAST_RENEW: Duration = Duration::from_millis(10);
const LEAST_RETRY: Duration = Duration::from_millis(10);
const MOST_RETRY: Duration = Duration::from_hours(1);
/// After a crash nobody leads for one lease, so a longer one probably has the wrong unit.
const MOST_LEASE: Duration = Duration::from_hours(24);

/// What was asked for. The other parts of a timing follow from it.
#[derive(Clone, Copy, Debug)]
pub struct TimingRequest {
    pub lease: Duration,
    pub renew_interval: Duration,
    pub retry_interval: Duration,
    pub stop_grace: Duration,
    pub hooks: TimeForHooks,
}

/// The durations that a user has chosen. The store and the lease decide the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimingOptions {
    pub lease: Option<Duration>,
    pub renew: Option<Duration>,
    pub retry: Option<Duration>,
    pub kill_after: Option<Duration>,
}

/// How long each hook may take; zero if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TimeForHooks {
    /// Before COMMAND. The lease is renewed meanwhile.
    pub pre_start: Duration,
    /// Before the stop signal.
    pub pre_stop: Duration,
    /// After the tree is dead.
    pub post_stop: Duration,
}

impl TimeForHooks {
    pub fn around_a_stop(self) -> Duration {
        self.pre_stop.saturating_add(self.post_stop)
    }
}

impl Default for TimingRequest {
    fn default() -> Self {
        TimingOptions::default().request(false)
    }
}

/// The durations of an election, which are proven to fit together.
///
/// The argument. A renewal that is sent at `s` and granted moves the end of the lease, as the holder counts it, to
/// `s + lease`. The next one is sent at `s + renew_interval`. If no answer comes, that is known `request_timeout`
/// later. The tree gets the stop signal at `s + lease - margin - stop_grace` and is killed at `s + lease - margin`. So
/// a leadership survives one lost request, and a tree that ends within its grace is never killed, exactly if:
///
/// ```text
/// renew_interval + request_timeout + stop_grace + margin < lease
/// ```
///
/// The timeouts of the pre-stop and post-stop hooks come out of the same time. They are added to the sum, the stop
/// begins that much earlier, and the tree is killed earlier by the timeout of the post-stop hook.
///
/// The store counts from when it *received* the request, which is after `s`, and keeps the lease for 13/12 of it
/// ([`kept`]): if its clock is a twelfth fast, until `s + lease` of true time. If our clock is a twelfth slow, it shows
/// `lease - lease / 12` then. The margin contains that twelfth and the time that a kill takes, so the tree is dead
/// before the store can give the lease to another candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How long a lease lasts without renewal, at least, in true time. What the store is told is [`kept`] of it.
    pub lease: Duration,
    /// From sending one renewal to sending the next.
    pub renew_interval: Duration,
    /// Between two looks of a standby, if the store cannot push changes; and the longest wait between two attempts.
    pub retry_interval: Duration,
    pub request_timeout: Duration,
    /// From the stop signal to SIGKILL when the lease is being lost.
    pub stop_grace: Duration,
    /// From SIGKILL to the end of the lease: for slewed clocks, and the time that a kill takes.
    pub margin: Duration,
    pub hooks: TimeForHooks,
}

impl TimingOptions {
    /// Fills in the defaults: in a short lease, the time between renewals is a third of it and the grace a fifth. Where
    /// the price of requests shows (`frugal`), the defaults make at most a quarter of them.
    pub fn request(self, frugal: bool) -> TimingRequest {
        let (lease, renew, retry) = if frugal {
            (FRUGAL_LEASE, FRUGAL_RENEW, FRUGAL_RETRY)
        } else {
            (DEFAULT_LEASE, DEFAULT_RENEW, DEFAULT_RETRY)
        };
        let lease = self.lease.unwrap_or(lease);
        TimingRequest {
            lease,
            renew_interval: self.renew.unwrap_or(renew.min(lease / 3)),
            retry_interval: self.retry.unwrap_or(retry),
            stop_grace: self.kill_after.unwrap_or(DEFAULT_GRACE.min(lease / 5)),
            hooks: TimeForHooks::default(),
        }
    }

    /// The shortest lease, in whole seconds, of which these options leave a quarter for an outage of the store. None if
    /// they do so already, or no lease would. Defaults grow with the lease, so each lease is tried.
    pub fn lease_that_leaves_a_quarter(self, frugal: bool, hooks: TimeForHooks) -> Option<Duration> {
        let leaves_a_quarter = |lease: &Duration| {
            let chosen = Self { lease: Some(*lease), ..self };
            let timing = Timing::new(TimingRequest { hooks, ..chosen.request(frugal) });
            timing.is_ok_and(|timing| timing.outage() >= *lease / 4)
        };
        let now = self.request(frugal).lease;
        if leaves_a_quarter(&now) {
            return None;
        }
        (now.as_secs() + 1..=MOST_LEASE.as_secs()).map(Duration::from_secs).find(leaves_a_quarter)
    }
}

impl Timing {
    /// The only constructor: checks every part and the sum.
    pub fn new(asked: TimingRequest) -> Result<Self, String> {
        let TimingRequest { lease, renew_interval, retry_interval, stop_grace, hooks } = asked;
        if lease.is_zero() || lease > MOST_LEASE {
            return Err(format!("--lease {} is not between 1ms and {}", show(lease), show(MOST_LEASE)));
        }
        if renew_interval.is_zero() {
            return Err("--renew 0s would never stop renewing: try a third of the lease".to_owned());
        }
        if renew_interval < LEAST_RENEW {
            let asked = show(renew_interval);
            let least = show(LEAST_RENEW);
            return Err(format!("--renew {asked} would renew too often: use {least} or more"));
        }
        if !(LEAST_RETRY..=MOST_RETRY).contains(&retry_interval) {
            let least = show(LEAST_RETRY);
            let most = show(MOST_RETRY);
            return Err(format!("--retry {} is not between {least} and {most}", show(retry_interval)));
        }
        let margin = lease / SLEW_PARTS + KILL_LATENCY;
        let fixed =
            renew_interval.saturating_add(stop_grace).saturating_add(hooks.around_a_stop()).saturating_add(margin);
        // Saturates, because every option may be up to u64::MAX seconds.
        let room = lease.saturating_sub(fixed);
        let request_timeout = (room - room / 50).min(MOST_REQUEST_TIMEOUT);
        if request_timeout < LEAST_REQUEST_TIMEOUT {
            return Err(format!(
                "renew {} + request timeout {}{} + margin {} = {} leaves no room in a lease of {}: \
                 raise --lease, or lower --renew{}",
                show(renew_interval),
                show(LEAST_REQUEST_TIMEOUT),
                parts_of_a_stop(stop_grace, hooks, |_, part| format!(" + {part}")),
                show(margin),
                show(fixed.saturating_add(LEAST_REQUEST_TIMEOUT)),
                show(lease),
                if hooks.around_a_stop().is_zero() { " or --kill-after" } else { ", --kill-after or --hook-timeout" },
            ));
        }
        Ok(Self { lease, renew_interval, retry_interval, request_timeout, stop_grace, margin, hooks })
    }

    /// The most time for a stop with its hooks when the lease is being lost.
    pub fn stop_time(&self) -> Duration {
        self.stop_grace + self.hooks.around_a_stop()
    }

    pub fn deadline(&self, valid_until: BootInstant) -> Deadline {
        let kill_at = valid_until.minus(self.margin);
        let slew = self.lease / SLEW_PARTS;
        Deadline {
            term_at: kill_at.minus(self.stop_time()),
            kill_at,
            backstop_at: kill_at.plus((self.margin - slew) / 2),
        }
    }

    /// The least rest of a lease with which COMMAND may start.
    pub fn least_to_start(&self) -> Duration {
        self.renew_interval + self.stop_time() + self.margin
    }

    /// The time from sending the last granted renewal to the beginning of the stop.
    pub fn term_after(&self) -> Duration {
        self.lease - self.margin - self.stop_time()
    }

    /// How long the store may be away without disturbing the tree, whenever the outage begins.
    pub fn outage(&self) -> Duration {
        self.term_after() - self.renew_interval
    }

    /// The most by which deadlines move earlier for a guard that is woken late. A leadership whose renewals are
    /// answered within half of the outage goes on, however late the guard is.
    pub fn most_extra(&self) -> Duration {
        self.outage() / 2
    }

    /// The time from sending the last granted renewal to SIGKILL.
    pub fn kill_after(&self) -> Duration {
        self.lease - self.margin
    }
}

/// The instants at which a leader must act, on this machine's `CLOCK_BOOTTIME`. Always
/// `term_at <= kill_at <= backstop_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Deadline {
    /// The guard begins the stop: the pre-stop hook if there is one, then the stop signal.
    pub term_at: BootInstant,
    /// The guard kills the tree.
    pub kill_at: BootInstant,
    /// The other processes stop trusting the guard: if the tree is alive, they kill the guard and then the tree.
    pub backstop_at: BootInstant,
}

impl Deadline {
    /// Of a lease that does not expire, as in the file store.
    pub const NONE: Self =
        Self { term_at: BootInstant::NEVER, kill_at: BootInstant::NEVER, backstop_at: BootInstant::NEVER };

    #[must_use]
    pub fn earlier(self, extra: Duration) -> Self {
        let Self { term_at, kill_at, backstop_at } = self;
        let [term_at, kill_at, backstop_at] = [term_at, kill_at, backstop_at].map(|at| at.minus(extra));
        Self { term_at, kill_at, backstop_at }
    }
}

/// How long a store must keep a lease, and a candidate must wait for one, each by its own clock, so that the whole
/// lease has passed: longer, because that clock may be fast. In whole milliseconds, as stores keep it.
pub fn kept(lease: Duration) -> Duration {
    Duration::from_millis(crate::time::millis(lease.saturating_add(lease / SLEW_PARTS)))
}

/// How much of what a store keeps (13/12 of the lease) the holder may use, by a clock that may be slow: 11/12.
pub fn usable(kept: Duration) -> Duration {
    kept / (SLEW_PARTS + 1) * (SLEW_PARTS - 1)
}

/// How far two clocks may have moved apart while one of them counted `nanos`: one is a twelfth fast, the other a
/// twelfth slow, and it may be the slow one that counted.
pub fn most_apart(nanos: i128) -> i128 {
    2 * nanos / i128::from(SLEW_PARTS - 1) + 1
}

/// How long one clock counts until another has counted `missing` for certain, by [`most_apart`].
pub fn to_count(missing: Duration) -> Duration {
    missing.saturating_add(missing / (SLEW_PARTS - 3) * 2)
}

/// Joins what `each` makes of the parts of a stop, from a part's name, and its name with its length.
pub(crate) fn parts_of_a_stop(
    stop_grace: Duration,
    hooks: TimeForHooks,
    each: impl Fn(&str, String) -> String,
) -> String {
    let parts = [("pre-stop", hooks.pre_stop), ("kill-after", stop_grace), ("post-stop", hooks.post_stop)];
    let shown = parts.iter().filter(|(name, length)| *name == "kill-after" || !length.is_zero());
    shown.map(|(name, length)| each(name, format!("{name} {}", show(*length)))).collect()
}

/// To the millisecond: `9s 250ms`.
pub fn show(duration: Duration) -> String {
    let rounded = u64::try_from(duration.as_millis()).map_or(duration, Duration::from_millis);
    humantime::format_duration(rounded).to_string()
}

/// Rounded up to the second.
pub fn show_seconds(duration: Duration) -> String {
    show(Duration::from_secs(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn of_lease(lease: Duration) -> TimingRequest {
        TimingOptions { lease: Some(lease), ..TimingOptions::default() }.request(false)
    }

    #[test]
    fn a_leader_outlives_a_store_that_is_away_for_a_quarter_of_the_lease() {
        for frugal in [false, true] {
            for lease in (5..=86_400).map(seconds) {
                let asked = TimingOptions { lease: Some(lease), ..TimingOptions::default() };
                let timing = Timing::new(asked.request(frugal)).expect("it fits");
                assert!(timing.outage() > lease / 4 + Duration::from_millis(50), "{timing:?}");
            }
        }
    }

    #[test]
    fn the_lease_that_a_warning_names_leaves_a_quarter_and_no_shorter_one_does() {
        let hooks = TimeForHooks::default();
        let of = |seconds_of_lease, renew| TimingOptions {
            lease: Some(seconds(seconds_of_lease)),
            renew: Some(seconds(renew)),
            ..TimingOptions::default()
        };
        for asked in [of(15, 9), of(30, 21), of(7, 4), of(600, 500)] {
            let timing = Timing::new(asked.request(false)).expect("it fits");
            assert!(timing.outage() < timing.lease / 10, "{timing:?}");
            let better = asked.lease_that_leaves_a_quarter(false, hooks).expect("there is one");
            let outage = |lease| {
                let request = TimingOptions { lease: Some(lease), ..asked }.request(false);
                Timing::new(request).map_or(Duration::ZERO, |timing| timing.outage())
            };
            assert!(outage(better) >= better / 4 && better > timing.lease, "{better:?}");
            assert!(outage(better - seconds(1)) < (better - seconds(1)) / 4, "{better:?}");
        }
        assert_eq!(of(15, 5).lease_that_leaves_a_quarter(false, hooks), None);
        assert_eq!(of(15, 70_000).lease_that_leaves_a_quarter(false, hooks), None, "it would be longer than a day");
    }

    #[test]
    fn the_store_keeps_a_lease_and_its_holder_leaves_it_before_it_is_over_however_their_clocks_run() {
        let shown = |of: Duration, twelfths: u32| of * twelfths / 12;
        for lease in [Duration::from_millis(1_699), seconds(6), seconds(7), seconds(15), MOST_LEASE] {
            let timing = Timing::new(of_lease(lease)).expect("it fits");
            // In true time, the lease is over after `lease`.
            assert!(kept(lease) >= shown(lease, 13), "the store's clock is fast");
            assert!(
                timing.kill_after() + KILL_LATENCY < shown(lease, 11) + seconds(1) / 1000,
                "the holder's clock is slow"
            );
            assert!(kept(lease) - shown(lease, 13) < Duration::from_millis(1));
            assert!(usable(kept(lease)) < shown(lease, 11) + Duration::from_millis(1), "the holder's clock is slow");
        }
        // While the slow clock shows 11, the fast one shows 13.
        assert!((2_000_000..2_000_002).contains(&most_apart(11_000_000)));
        let missing = Duration::from_millis(9);
        assert_eq!(to_count(missing), Duration::from_millis(11));
    }

    #[test]
    fn hooks_without_room_are_refused_with_their_timeouts_in_the_sum() {
        let hooks = TimeForHooks { pre_stop: seconds(7), ..TimeForHooks::default() };
        let refusal = Timing::new(TimingRequest { hooks, ..TimingRequest::default() }).unwrap_err();
        assert!(
            refusal.contains("+ pre-stop 7s + kill-after 3s + margin") && refusal.contains("--hook-timeout"),
            "{refusal}"
        );
        let hooks = TimeForHooks { pre_start: seconds(9), pre_stop: seconds(2), post_stop: seconds(2) };
        let timing = Timing::new(TimingRequest { hooks, lease: seconds(20), ..TimingRequest::default() }).unwrap();
        let deadline = timing.deadline(BootInstant::from_nanos(0).plus(seconds(100)));
        assert_eq!(deadline.kill_at.since(deadline.term_at), seconds(7));
    }

    #[test]
    fn timings_of_any_size_have_room_or_are_refused_in_one_line() {
        fuzz::run_a_tenth("timing", |source, input| {
            let lease =
                if source.one_in(4) { source.duration() } else { Duration::from_millis(source.next() % 100_000_000) };
            let mut part = |of: u32| if source.one_in(4) { source.duration() } else { lease / of };
            let asked = TimingRequest {
                lease,
                renew_interval: part(3),
                retry_interval: part(8),
                stop_grace: part(4),
                hooks: TimeForHooks { pre_start: part(1), pre_stop: part(15), post_stop: part(25) },
            };
            let hooks = if source.one_in(4) { asked.hooks } else { TimeForHooks::default() };
            let asked = TimingRequest { hooks, ..asked };
            input.show(|| format!("{asked:?}"));
            match Timing::new(asked) {
                Ok(t) => {
                    assert!(t.renew_interval + t.request_timeout + t.stop_time() + t.margin < t.lease);
                    assert!(t.margin > t.lease / SLEW_PARTS && t.kill_after() - t.stop_time() == t.term_after());
                    let end = BootInstant::from_nanos(source.number());
                    let deadline = t.deadline(end);
                    assert!(deadline.term_at <= deadline.kill_at && deadline.kill_at <= deadline.backstop_at);
                    if end != BootInstant::NEVER && end > BootInstant::from_nanos(0).plus(t.lease) {
                        assert!(end.since(deadline.backstop_at) >= t.lease / SLEW_PARTS, "{deadline:?}");
                    }
                    Fate::Accepted
                }
                Err(message) => {
                    fuzz::assert_is_one_line(&message);
                    Fate::Refused
                }
            }
        });
    }
}
