//! The hook before COMMAND: a host that is not ready gives the lease back.
//!
//! The hazard: the candidate that gives a lease back is the first to know that it is free. If it claimed again at once,
//! it would win and fail for ever, while a host that is ready waits. So it stands back, longer each time, until another
//! candidate leads or the time is over.

use super::state::{Leadership, Tree};
use super::{CommandEnd, Core, Ended, Hold, Notice};
use crate::exit::StartError;
use crate::lease::Term;
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use strum::Display;

/// The longest time that a candidate stands back, unless twice the retry interval is longer.
const LONGEST: Duration = Duration::from_mins(1);

/// How a hook ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
pub enum HookEnd {
    #[strum(to_string = "exited with {0}")]
    Exited(i32),
    #[strum(to_string = "was ended by signal {0}")]
    Signalled(i32),
    #[strum(to_string = "could not be started: {0}")]
    NotStarted(StartError),
    #[strum(to_string = "took longer than --hook-timeout")]
    TimedOut,
    /// A stop came before it ended.
    #[strum(to_string = "was stopped")]
    Cut,
}

impl From<CommandEnd> for HookEnd {
    fn from(end: CommandEnd) -> Self {
        match end {
            CommandEnd::Exited(status) => Self::Exited(status),
            CommandEnd::Signalled(signal) => Self::Signalled(signal),
        }
    }
}

impl Core {
    /// COMMAND runs, so its hook has not failed. `--max-run` counts from now.
    pub(super) fn command_started(&mut self, now: BootInstant, leadership: &mut Leadership) {
        self.unready = 0;
        let most = self.settings.max_run;
        leadership.runs.begin_run(now);
        if let Tree::Alive { overrun_at, .. } = &mut leadership.tree {
            *overrun_at = most.map_or(BootInstant::NEVER, |most| now.plus(most));
        }
    }

    /// COMMAND will not be started, because its hook ended like this.
    pub(super) fn unready(&mut self, now: BootInstant, leadership: &mut Leadership, end: HookEnd) {
        let timing = self.settings.timing;
        let time = match end {
            // The hook got the stop signal, and has the rest of its time.
            HookEnd::Cut => timing.stop_time().saturating_add(timing.hooks.pre_start),
            HookEnd::Exited(_) | HookEnd::Signalled(_) | HookEnd::NotStarted(_) | HookEnd::TimedOut => {
                timing.stop_time()
            }
        };
        leadership.unready = true;
        leadership.seize_after(now, time);
        if leadership.ending.is_none() {
            self.say(Notice::Unready(end));
            leadership.ending = Some(Ended::Unready(end));
        }
    }

    pub(super) fn after_unready(&mut self, term: Term, end: HookEnd) -> Hold {
        self.unready += 1;
        let left = self.grown_turn(self.unready);
        Hold::StandingBack { term, said: format!("because the --pre-start hook {end} here"), left }
    }

    /// How long to stand back after this many failures in a row.
    pub(super) fn grown_turn(&mut self, failures: u32) -> Duration {
        // All standbys have looked by then, even if the store reports no changes.
        let first = self.settings.timing.retry_interval.saturating_mul(2);
        let pause = first.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST.max(first));
        self.random.about(pause).max(first)
    }
}
