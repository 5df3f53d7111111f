//! Measures how late this process is woken.
//!
//! The hazards:
//!
//! - A suspend of the machine, or a SIGSTOP, looks like lateness and says nothing about the scheduler. So the time that
//!   the machine slept is left out, and so is what follows a SIGCONT. A processor that the hypervisor took away counts.
//! - A sample that is taken before the messages are read could end a leadership whose extension is among them. So the
//!   caller reads them first. If it is stopped between the two, the messages of that time are left for the next sample,
//!   when the SIGCONT is forgotten.
//! - Samples take processor time. Among many busy processes, one that has used its share waits until each of the others
//!   has had as much, and it needs its share for the kill. So a process that is woken late rests for longer between two
//!   samples.

use super::lateness::{Lateness, Measure};
use crate::time::{BootInstant, Slept};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::time::Duration;

/// The rest after a sample, as a multiple of how late it was.
const LATENESS_TO_REST: u32 = 8;
/// The longest rest, unless the time between two samples is longer.
const LONGEST_REST: Duration = Duration::from_secs(30);

pub struct Sampler {
    every: Duration,
    lateness: Lateness,
    /// When this process wants to be woken for the next sample.
    due: BootInstant,
    /// How late the messages since the last sample were read. Some if there were any.
    heard: Option<Duration>,
    slept: Slept,
    /// When it was last seen that the machine slept or this process was stopped. A message from before tells nothing.
    rested: BootInstant,
    /// Read only for a sample: it tells whether this process was stopped since the one before.
    continued: SignalFd,
    /// What was reported. None until the first sample.
    reported: Option<Duration>,
}

impl Sampler {
    /// Every signal must be blocked.
    pub fn new(measure: Measure) -> io::Result<Self> {
        let signals = SigSet::from(Signal::SIGCONT);
        let now = BootInstant::now();
        Ok(Self {
            every: measure.every,
            lateness: Lateness::new(now, measure.presumed),
            due: now.plus(measure.every),
            heard: None,
            slept: Slept::now(),
            rested: BootInstant::from_nanos(0),
            continued: SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
            reported: None,
        })
    }

    /// When to wake this process for the next sample.
    pub fn due(&self) -> BootInstant {
        self.due
    }

    /// A message was read that was sent at this instant.
    pub fn heard(&mut self, sent_at: BootInstant) {
        let late = BootInstant::now().since(sent_at.max(self.rested));
        self.heard = Some(self.heard.unwrap_or_default().max(late));
    }

    /// Takes a sample if one is due or a message was read. Returns the worst lateness if it has changed.
    pub fn sample(&mut self) -> Option<Duration> {
        let woken_at = BootInstant::now();
        let woken = (woken_at >= self.due).then(|| woken_at.since(self.due));
        let late = self.heard.take().max(woken)?;
        let slept = Slept::now();
        let asleep = slept.since(self.slept);
        self.slept = slept;
        let mut stopped = false;
        while let Ok(Some(_)) = self.continued.read_signal() {
            stopped = true;
        }
        // Read last: a stop before this is left out, and one after it is seen by the next sample.
        let now = BootInstant::now();
        if stopped || !asleep.is_zero() {
            self.rested = now;
        }
        if stopped {
            self.due = now.plus(self.every);
        } else if woken.is_some() {
            let rest = late.saturating_sub(asleep).saturating_mul(LATENESS_TO_REST).min(LONGEST_REST);
            self.due = now.plus(self.every.max(rest));
        }
        if !stopped {
            self.lateness.add(now, late.saturating_sub(asleep));
        }
        let worst = self.lateness.worst(now);
        (self.reported.replace(worst) != Some(worst)).then_some(worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    /// Longer than a busy machine keeps a test from going on.
    const PAUSE: Duration = Duration::from_mins(2);

    fn sampler() -> Sampler {
        SigSet::from(Signal::SIGCONT).thread_block().expect("a thread may block its signals");
        let measure =
            Measure { every: Duration::from_hours(1), most: PAUSE, presumed: Duration::ZERO, under_a_quota: false };
        Sampler::new(measure).expect("a signalfd")
    }

    #[test]
    fn what_was_sent_during_a_stop_is_not_late_in_the_next_sample_either() {
        let mut sampler = sampler();
        let sent_at = BootInstant::now();
        raise(Signal::SIGCONT).expect("it is blocked");
        // The stop came after the messages were read and before the sample was taken.
        sampler.heard(sent_at.minus(PAUSE));
        assert_eq!(sampler.sample(), Some(Duration::ZERO));
        sampler.heard(sent_at.minus(PAUSE));
        let late = sampler.sample().unwrap_or_default();
        assert!(late < PAUSE, "{late:?}");
    }

    #[test]
    fn the_later_a_sample_the_longer_the_rest_after_it() {
        let mut sampler = sampler();
        sampler.every = Duration::from_millis(1);
        // What a busy machine keeps the sample from being taken is lateness as well.
        for late in [Duration::ZERO, Duration::from_secs(2), Duration::from_hours(1)] {
            let now = BootInstant::now();
            sampler.due = now.minus(late);
            sampler.sample();
            let took = BootInstant::now().since(now);
            let rest = sampler.due().since(now);
            let rest_of = |late: Duration| (late * LATENESS_TO_REST).min(LONGEST_REST);
            let most = took + sampler.every.max(rest_of(late + took));
            assert!(rest >= rest_of(late) && rest <= most, "{rest:?} after {late:?} and {took:?}");
        }
    }
}
