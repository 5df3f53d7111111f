//! The hook before COMMAND: a host that is not ready gives the lease back, and stands back (`standing_back`).

use super::state::Leadership;
use super::{CommandEnd, Core, Ended, Notice};
use crate::exit::StartError;
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use strum::Display;

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
    /// COMMAND will not be started, because its hook ended like this.
    pub(super) fn unready(&mut self, now: BootInstant, leadership: &mut Leadership, end: HookEnd) {
        let timing = self.settings.timing;
        // A hook that is cut got the stop signal, and has the rest of its time.
        let rest = if end == HookEnd::Cut { timing.hooks.pre_start } else { Duration::ZERO };
        leadership.unready = true;
        leadership.seize_after(now, timing.stop_time().saturating_add(rest));
        if leadership.ending.is_none() {
            self.say(Notice::Unready(end));
            leadership.ending = Some(Ended::Unready(end));
        }
    }
}
