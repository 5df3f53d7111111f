//! Standing back: a candidate that gave its lease up by itself lets other candidates go first.
//!
//! The hazards:
//!
//! - It is the first to know that the lease is free. If it claimed again at once, it would win, and where COMMAND cannot
//!   run here, fail for ever, while a host that is ready waits. So it stands back until another candidate leads or the
//!   time is over, and longer each time that COMMAND was not ready or not healthy here.
//! - The record that was given up may still be in the store, under our own name. Only another term shows that another
//!   candidate has led.

use super::state::LEAST_PAUSE;
use super::{Core, HeldBack, Hold, HookEnd};
use crate::lease::Term;
use crate::time::BootInstant;
use std::time::Duration;

/// The least time to stand back. Within it, a standby has claimed a free lease.
const LEAST_HOLD: Duration = Duration::from_secs(2);
/// The longest time after failures in a row, unless twice the retry interval is longer.
const LONGEST: Duration = Duration::from_mins(1);

impl Hold {
    pub(super) fn standing_back(term: Term, said: impl Into<String>, left: Duration) -> Self {
        Self { why: HeldBack::StandingBack(term), said: said.into(), left: Some(left) }
    }
}

impl Core {
    pub(super) fn after_rotation(&self, term: Term) -> Hold {
        Hold::standing_back(term, "after this candidate's turn", self.turn())
    }

    /// There may be no other candidate, or COMMAND may fail on every host. This is then the pause before more restarts.
    pub(super) fn after_restarts(&self, term: Term, restarts: u32) -> Hold {
        let timing = self.settings.timing;
        let left = (2 * timing.lease).max(4 * timing.retry_interval);
        Hold::standing_back(term, format!("after {restarts} restarts"), left)
    }

    pub(super) fn after_unready(&mut self, term: Term, end: HookEnd) -> Hold {
        self.unready += 1;
        let left = self.grown_turn(self.unready);
        Hold::standing_back(term, format!("because the --pre-start hook {end} here"), left)
    }

    pub(super) fn after_unhealthy(&mut self, term: Term) -> Hold {
        self.unhealthy += 1;
        let left = self.grown_turn(self.unhealthy);
        Hold::standing_back(term, "because the command was unhealthy here", left)
    }

    pub(super) fn turn(&self) -> Duration {
        (4 * self.settings.timing.retry_interval).max(LEAST_HOLD)
    }

    /// How long to stand back after this many failures in a row.
    fn grown_turn(&mut self, failures: u32) -> Duration {
        // All standbys have looked by then, even if the store reports no changes.
        let first = self.settings.timing.retry_interval.saturating_mul(2);
        let pause = first.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST.max(first));
        self.random.about(pause).max(first)
    }

    /// When to claim a lease that was seen free. A candidate that stands back first looks whether another one has led.
    pub(super) fn next_claim(&mut self, now: BootInstant) -> BootInstant {
        match self.standing_back {
            Some((_, until)) if now < until => {
                let pause = self.random.about(self.settings.timing.retry_interval);
                now.plus(pause.max(LEAST_PAUSE)).min(until)
            }
            Some(_) | None => now,
        }
    }
}
