//! The timing of a lease.
//!
//! The hazard: a holder that trusts its lease for longer than the store does runs beside its successor. [`Timing`]
//! proves that this cannot happen. Nothing else in the crate calculates with leases.

use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The timing if no option changes it.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(15);
pub const DEFAULT_RENEW: Duration = Duration::from_secs(5);
pub const DEFAULT_RETRY: Duration = Duration::from_secs(2);
/// With this and the two above, a leader survives an outage of the store for a third of the lease, whenever it begins.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(3);

/// The same in object storage, where a write costs five dollars a million: a leader and two standbys for less than a
/// dollar a month.
const FRUGAL_LEASE: Duration = Duration::from_mins(1);
const FRUGAL_RENEW: Duration = Duration::from_secs(20);
const FRUGAL_RETRY: Duration = Duration::from_secs(10);

/// How long the kernel may take to schedule the guard, deliver SIGKILL and reap the tree. Half of it is for the guard,
/// the other half for the processes that act if the guard does not.
const KILL_LATENCY: Duration = Duration::from_millis(600);
/// The rates of two clocks differ by less than 1 part in this many (guarantee 1).
pub const DRIFT_PARTS: u32 = 100;
/// With a shorter timeout, requests would fail just because the network is slow.
const LEAST_REQUEST_TIMEOUT: Duration = Duration::from_millis(50);
/// Waiting longer for one answer does not help: another attempt on another connection is more likely to succeed.
const MOST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// With a shorter interval, a candidate would keep the store busy with itself.
const LEAST_RENEW: Duration = Duration::from_millis(10);
const LEAST_RETRY: Duration = Duration::from_millis(10);
const MOST_RETRY: Duration = Duration::from_hours(1);
/// After a crash nobody leads for one lease, so a longer one is a mistake in the unit.
const MOST_LEASE: Duration = Duration::from_hours(24);

/// The timing that was asked for. `None` for a part that follows from the rest.
#[derive(Clone, Copy, Debug)]
pub struct TimingRequest {
    pub lease: Duration,
    pub renew_interval: Duration,
    pub retry_interval: Duration,
    pub stop_grace: Duration,
    pub request_timeout: Option<Duration>,
    pub margin: Option<Duration>,
    pub hooks: TimeForHooks,
}

/// The durations that a user has chosen. The store and the lease decide the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimingOptions {
    pub lease: Option<Duration>,
    pub renew: Option<Duration>,
    pub retry: Option<Duration>,
    pub kill_after: Option<Duration>,
    pub request_timeout: Option<Duration>,
    pub margin: Option<Duration>,
}

/// How much time of a stop, or before COMMAND, each hook may take; zero if there is no hook.
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
    #[must_use]
    pub fn around_a_stop(self) -> Duration {
        self.pre_stop.saturating_add(self.post_stop)
    }
}

impl Default for TimingRequest {
    fn default() -> Self {
        Self {
            lease: DEFAULT_LEASE,
            renew_interval: DEFAULT_RENEW,
            retry_interval: DEFAULT_RETRY,
            stop_grace: DEFAULT_GRACE,
            request_timeout: None,
            margin: None,
            hooks: TimeForHooks::default(),
        }
    }
}

/// The durations of an election, which are proven to fit together.
///
/// The argument. A renewal that is sent at `s` and granted moves the end of the lease, as the holder counts it, to
/// `s + lease`. The next one is sent at `s + renew_interval`. If no answer comes, that is known `request_timeout`
/// later. The tree gets the stop signal at `s + lease - margin - stop_grace` and is killed at `s + lease - margin`. So
/// exactly under this condition a leadership survives one lost request, and a tree that ends within its grace is never
/// killed:
///
/// ```text
/// renew_interval + request_timeout + stop_grace + margin < lease
/// ```
///
/// The timeouts of the pre-stop and post-stop hooks come out of the same time. They are added to the sum, the stop
/// begins that much earlier, and the tree is killed earlier by the timeout of the post-stop hook.
///
/// The store counts from when it *received* the request, which is after `s`. Its clock's rate differs from ours by less
/// than 1 %. The margin contains that 1 % of the lease and the time that a kill takes, so the tree is dead before the
/// store can give the lease to another candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How long the store keeps a lease without renewal.
    pub lease: Duration,
    /// From sending one renewal to sending the next.
    pub renew_interval: Duration,
    /// From one look of a standby to the next, if the store cannot push changes; and the longest wait between two
    /// attempts.
    pub retry_interval: Duration,
    /// The most time for one request.
    pub request_timeout: Duration,
    /// From the stop signal to SIGKILL when the lease is being lost.
    pub stop_grace: Duration,
    /// From SIGKILL to the end of the lease: clock drift and the time a kill takes.
    pub margin: Duration,
    pub hooks: TimeForHooks,
}

impl TimingOptions {
    /// Fills in the defaults: in a short lease, the time between renewals is a third of it and the grace a fifth. Where
    /// each write has a price that shows (`frugal`), the defaults make a quarter of the requests.
    #[must_use]
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
            request_timeout: self.request_timeout,
            margin: self.margin,
            hooks: TimeForHooks::default(),
        }
    }
}

impl TimingRequest {
    /// Advice if there is no room. Names the options to lower. Defaults adapt by themselves.
    fn advice(&self, hooks: TimeForHooks) -> String {
        let mut lower = vec!["--renew", "--kill-after"];
        lower.extend((!hooks.around_a_stop().is_zero()).then_some("--hook-timeout"));
        lower.extend(self.request_timeout.map(|_| "--request-timeout"));
        lower.extend(self.margin.map(|_| "--margin"));
        let last = lower.pop().expect("there are two at least");
        format!("raise --lease, or lower {} or {last}", lower.join(", "))
    }
}

impl Timing {
    /// Checks every part and the sum. This is the only constructor.
    ///
    /// # Errors
    /// One line that names the option or shows the sum, and says what to change.
    pub fn new(asked: TimingRequest) -> Result<Self, String> {
        let TimingRequest { lease, renew_interval, retry_interval, stop_grace, hooks, .. } = asked;
        if lease.is_zero() || lease > MOST_LEASE {
            return Err(format!("--lease {} is not between 1ms and {}", show(lease), show(MOST_LEASE)));
        }
        if renew_interval.is_zero() {
            return Err("--renew 0s would never stop renewing: try a third of the lease".to_owned());
        }
        if renew_interval < LEAST_RENEW {
            let (asked, least) = (show(renew_interval), show(LEAST_RENEW));
            return Err(format!("--renew {asked} would renew too often: use {least} or more"));
        }
        if !(LEAST_RETRY..=MOST_RETRY).contains(&retry_interval) {
            let (least, most) = (show(LEAST_RETRY), show(MOST_RETRY));
            return Err(format!("--retry {} is not between {least} and {most}", show(retry_interval)));
        }
        let drift = lease / DRIFT_PARTS;
        let margin = asked.margin.unwrap_or(drift + KILL_LATENCY);
        if margin <= drift {
            return Err(format!(
                "--margin {} does not cover 1 % of clock drift in a lease of {}: it must be more than {}",
                show(margin),
                show(lease),
                show(drift)
            ));
        }
        let fixed =
            renew_interval.saturating_add(stop_grace).saturating_add(hooks.around_a_stop()).saturating_add(margin);
        // Every option may be up to u64::MAX seconds, so the sum saturates instead of wrapping around.
        let room = lease.saturating_sub(fixed);
        let request_timeout = asked.request_timeout.unwrap_or((room - room / 50).min(MOST_REQUEST_TIMEOUT));
        let least = asked.request_timeout.map_or(LEAST_REQUEST_TIMEOUT, |asked| asked.max(Duration::from_millis(1)));
        if asked.request_timeout.is_some_and(|asked| asked.is_zero()) {
            return Err("--request-timeout 0s lets no request be answered: leave it out, or try 1s".to_owned());
        }
        if request_timeout < least || request_timeout >= room {
            return Err(format!(
                "renew {} + request timeout {}{} + margin {} = {} leaves no room in a lease of {}: \
                 {}",
                show(renew_interval),
                show(request_timeout.max(least)),
                parts_of_a_stop(stop_grace, hooks, |_, part| format!(" + {part}")),
                show(margin),
                show(fixed.saturating_add(request_timeout.max(least))),
                show(lease),
                asked.advice(hooks),
            ));
        }
        Ok(Self { lease, renew_interval, retry_interval, request_timeout, stop_grace, margin, hooks })
    }

    /// The most time for a stop when the lease is being lost, with its hooks.
    #[must_use]
    pub fn stop_time(&self) -> Duration {
        self.stop_grace + self.hooks.around_a_stop()
    }

    /// The deadline of a lease that ends at `valid_until`, as its holder counts.
    #[must_use]
    pub fn deadline(&self, valid_until: BootInstant) -> Deadline {
        let kill_at = valid_until.minus(self.margin);
        let drift = self.lease / DRIFT_PARTS;
        Deadline {
            term_at: kill_at.minus(self.stop_time()),
            kill_at,
            backstop_at: kill_at.plus((self.margin - drift) / 2),
        }
    }

    /// The least rest of a lease with which COMMAND may start.
    #[must_use]
    pub fn least_to_start(&self) -> Duration {
        self.renew_interval + self.stop_time() + self.margin
    }

    /// The time from sending the last granted renewal to the beginning of the stop.
    #[must_use]
    pub fn term_after(&self) -> Duration {
        self.lease - self.margin - self.stop_time()
    }

    /// The time from sending the last granted renewal to SIGKILL.
    #[must_use]
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
    /// The deadline of a lease that does not expire while its holder keeps it open, as in the file store.
    pub const NONE: Self =
        Self { term_at: BootInstant::NEVER, kill_at: BootInstant::NEVER, backstop_at: BootInstant::NEVER };
}

impl Serialize for BootInstant {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_nanos().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for BootInstant {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::from_nanos)
    }
}

/// Joins what `each` makes of the parts of a stop, in order. It gets the name of a part, and the part with its length.
pub(crate) fn parts_of_a_stop(
    stop_grace: Duration,
    hooks: TimeForHooks,
    each: impl Fn(&str, String) -> String,
) -> String {
    let parts = [("pre-stop", hooks.pre_stop), ("kill-after", stop_grace), ("post-stop", hooks.post_stop)];
    let shown = parts.iter().filter(|(name, length)| *name == "kill-after" || !length.is_zero());
    shown.map(|(name, length)| each(name, format!("{name} {}", show(*length)))).collect()
}

/// A duration for people, to the millisecond: `9s 250ms`.
#[must_use]
pub fn show(duration: Duration) -> String {
    let rounded = u64::try_from(duration.as_millis()).map_or(duration, Duration::from_millis);
    humantime::format_duration(rounded).to_string()
}

/// A duration for people, rounded up to the second.
#[must_use]
pub fn show_seconds(duration: Duration) -> String {
    show(Duration::from_secs(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use proptest::prelude::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_default_timing_has_room() {
        let timing = Timing::new(TimingRequest::default()).expect("the defaults fit");
        assert_eq!(timing.margin, Duration::from_millis(750));
        assert!(timing.request_timeout > seconds(4), "{timing:?}");
    }

    fn of_lease(lease: Duration) -> TimingRequest {
        TimingOptions { lease: Some(lease), ..TimingOptions::default() }.request(false)
    }

    #[test]
    fn a_leader_outlives_a_store_that_is_away_for_a_third_of_the_lease() {
        for lease in [seconds(6), seconds(15), seconds(60)] {
            let timing = Timing::new(of_lease(lease)).expect("it fits");
            let sent = BootInstant::from_nanos(0);
            let back = sent.plus(timing.renew_interval + lease / 3);
            assert!(timing.deadline(sent.plus(lease)).term_at > back.plus(Duration::from_millis(100)), "{timing:?}");
        }
    }

    #[test]
    fn what_was_not_given_fits_into_a_short_lease() {
        for lease in [seconds(3), seconds(5), seconds(10), seconds(15), seconds(300)] {
            let timing = Timing::new(of_lease(lease)).expect("it fits");
            assert_eq!(
                (timing.renew_interval, timing.stop_grace),
                (seconds(5).min(lease / 3), seconds(3).min(lease / 5))
            );
        }
        assert!(Timing::new(of_lease(seconds(1))).unwrap_err().contains("raise --lease"));
    }

    #[test]
    fn flags_without_room_are_refused_with_the_arithmetic() {
        let asked = TimingRequest { lease: seconds(6), ..TimingRequest::default() };
        let refusal = Timing::new(asked).unwrap_err();
        assert!(refusal.contains("renew 5s") && refusal.contains("lease of 6s"), "{refusal}");
    }

    #[test]
    fn renewals_do_not_follow_each_other_without_a_pause() {
        let of = |millis| {
            Timing::new(TimingRequest { renew_interval: Duration::from_millis(millis), ..of_lease(seconds(15)) })
        };
        assert!(of(9).unwrap_err().contains("--renew 9ms would renew too often: use 10ms or more"));
        assert!(of(10).is_ok());
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
    fn a_margin_that_does_not_cover_the_drift_is_refused() {
        let asked = TimingRequest { margin: Some(Duration::from_millis(150)), ..TimingRequest::default() };
        assert!(Timing::new(asked).unwrap_err().contains("drift"));
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
                request_timeout: Some(part(9)),
                margin: Some(part(20)),
                hooks: TimeForHooks { pre_start: part(1), pre_stop: part(15), post_stop: part(25) },
            };
            let drop_one = source.below(16);
            let asked = TimingRequest {
                request_timeout: asked.request_timeout.filter(|_| drop_one & 1 == 0),
                margin: asked.margin.filter(|_| drop_one & 2 == 0),
                hooks: if drop_one < 12 { TimeForHooks::default() } else { asked.hooks },
                ..asked
            };
            input.show(|| format!("{asked:?}"));
            match Timing::new(asked) {
                Ok(t) => {
                    assert!(t.renew_interval + t.request_timeout + t.stop_time() + t.margin < t.lease);
                    assert!(t.margin > t.lease / 100 && t.kill_after() - t.stop_time() == t.term_after());
                    let end = BootInstant::from_nanos(source.number());
                    let deadline = t.deadline(end);
                    assert!(deadline.term_at <= deadline.kill_at && deadline.kill_at <= deadline.backstop_at);
                    if end != BootInstant::NEVER && end > BootInstant::from_nanos(0).plus(t.lease) {
                        assert!(end.since(deadline.backstop_at) >= t.lease / 100, "{deadline:?}");
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

    proptest! {
        #[test]
        fn every_accepted_timing_satisfies_the_inequality(
            lease in 0_u64..200_000, renew in 0_u64..100_000, retry in 0_u64..10_000, grace in 0_u64..100_000,
            timeout in proptest::option::of(0_u64..20_000), margin in proptest::option::of(0_u64..5_000),
            pre_stop in 0_u64..3_000, post_stop in 0_u64..3_000,
        ) {
            let ms = Duration::from_millis;
            let asked = TimingRequest {
                lease: ms(lease), renew_interval: ms(renew), retry_interval: ms(retry), stop_grace: ms(grace),
                request_timeout: timeout.map(ms), margin: margin.map(ms),
                hooks: TimeForHooks { pre_start: ms(lease), pre_stop: ms(pre_stop), post_stop: ms(post_stop) },
            };
            if let Ok(t) = Timing::new(asked) {
                prop_assert!(t.renew_interval + t.request_timeout + t.stop_time() + t.margin < t.lease);
                prop_assert!(t.stop_time() == t.stop_grace + ms(pre_stop) + ms(post_stop));
                prop_assert!(t.margin > t.lease / 100);
                let end = BootInstant::from_nanos(u64::MAX / 2);
                let deadline = t.deadline(end);
                prop_assert!(deadline.term_at <= deadline.kill_at && deadline.kill_at <= deadline.backstop_at);
                prop_assert!(end.since(deadline.backstop_at) >= t.lease / 100);
            }
        }
    }
}
