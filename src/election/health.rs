//! A COMMAND that runs and does not work: its host gives the lease back.
//!
//! The hazards:
//!
//! - A COMMAND that hangs may not obey the stop signal either. If its drain had no limit, it would lead for ever. So
//!   here the grace is the limit, unless `--stop-timeout` sets another.
//! - A COMMAND that was stopped may exit with 0. That does not mean that it has done its work.

use super::hooks::HookEnd;
use super::state::{Leadership, Tree};
use super::{Core, Ended, Notice};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The check of COMMAND's health failed as many times in a row as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unhealthy {
    /// How the last check ended.
    pub last: HookEnd,
    pub failures: u32,
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failures {
            1 => f.write_str("the --health check ")?,
            failures => write!(f, "the --health check failed {failures} times in a row: it ")?,
        }
        match self.last {
            HookEnd::TimedOut => f.write_str("took longer than --health-timeout"),
            end @ (HookEnd::Exited(_) | HookEnd::Signalled(_) | HookEnd::NotStarted(_) | HookEnd::Cut) => end.fmt(f),
        }
    }
}

impl Core {
    /// An orderly stop of a COMMAND that may not obey.
    pub(super) fn unhealthy(&mut self, now: BootInstant, leadership: &mut Leadership, unhealthy: Unhealthy) {
        // The leadership is ending already, and COMMAND is being stopped for that.
        if leadership.ending.is_some() || leadership.asked.is_some() || !matches!(leadership.tree, Tree::Alive { .. }) {
            return;
        }
        self.say(Notice::Unhealthy(unhealthy));
        let kill_after = self.settings.stop_timeout.unwrap_or(self.settings.timing.stop_grace);
        self.stop_in_order(now, leadership, Ended::Unhealthy(unhealthy), Some(kill_after));
    }
}
