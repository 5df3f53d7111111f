//! Hooks of a leadership: what the shell runs before COMMAND starts, when a stop begins, and after the tree is dead.
//!
//! The hazard: what is done after a leadership must be over before the next one begins, also when the candidate is
//! killed or frozen. So hooks are the guard's: its descendants, within its deadline, killed with it. A guard that is
//! itself killed or frozen runs none.

use super::policy::Policy;
use crate::election::{CommandEnd, HookEnd};
use crate::exit;
use crate::lease::HookTimes;
use crate::sys::{self, Birth};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// How long each may take.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Before COMMAND: where it fails, COMMAND is not started.
    Lead,
    /// When a stop begins, before the stop signal.
    Losing,
    /// After the tree is dead, before the lease is released.
    Lost,
}

/// What leads to the hooks of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// By a signal.
    Asked,
    Paused,
    SteppedDown,
    /// It was others' turn.
    Relinquished,
    Overran,
    /// The lease is, or cannot be renewed in time.
    Lost,
    /// The candidate is gone.
    Killed,
    /// COMMAND, by itself.
    Ended,
    NotStarted,
    /// The hook before COMMAND.
    Failed,
}

impl Reason {
    pub const ALL: [Self; 10] = [
        Self::Asked,
        Self::Paused,
        Self::SteppedDown,
        Self::Relinquished,
        Self::Overran,
        Self::Lost,
        Self::Killed,
        Self::Ended,
        Self::NotStarted,
        Self::Failed,
    ];
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lead => "lead",
            Self::Losing => "losing",
            Self::Lost => "lost",
        })
    }
}

/// As hooks read it.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "asked",
            Self::Paused => "paused",
            Self::SteppedDown => "stepped-down",
            Self::Relinquished => "relinquished",
            Self::Overran => "max-run",
            Self::Lost => "lost",
            Self::Killed => "killed",
            Self::Ended => "ended",
            Self::NotStarted => "not-started",
            Self::Failed => "failed",
        })
    }
}

/// What is run for each, where something is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    pub lead: Option<Vec<u8>>,
    pub losing: Option<Vec<u8>>,
    pub lost: Option<Vec<u8>>,
    pub timeout: Duration,
}

/// How long each may take, where there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Boxes {
    pub lead: Option<Duration>,
    pub losing: Option<Duration>,
    pub lost: Option<Duration>,
}

impl Hooks {
    #[must_use]
    pub fn boxes(&self) -> Boxes {
        let most = |command: &Option<Vec<u8>>| command.as_ref().map(|_| self.timeout);
        Boxes { lead: most(&self.lead), losing: most(&self.losing), lost: most(&self.lost) }
    }

    #[must_use]
    pub fn times(&self) -> HookTimes {
        let Boxes { lead, losing, lost } = self.boxes();
        let [lead, losing, lost] = [lead, losing, lost].map(Option::unwrap_or_default);
        HookTimes { lead, losing, lost }
    }

    fn command(&self, hook: Hook) -> Option<&Vec<u8>> {
        match hook {
            Hook::Lead => self.lead.as_ref(),
            Hook::Losing => self.losing.as_ref(),
            Hook::Lost => self.lost.as_ref(),
        }
    }
}

/// The hook that runs, and what later ones will be told.
#[derive(Debug)]
pub(super) struct Runner {
    hooks: Hooks,
    /// Some while it has not been reaped.
    running: Option<(Hook, Pid)>,
    /// How COMMAND ended, once it has.
    pub command_end: Option<CommandEnd>,
}

impl Runner {
    pub fn new(hooks: Hooks) -> Self {
        Self { hooks, running: None, command_end: None }
    }

    /// Starts `hook`.
    pub fn start(&mut self, hook: Hook, policy: &Policy, birth: Birth<'_>) -> Result<(), HookEnd> {
        let command = self.hooks.command(hook).cloned().unwrap_or_default();
        let mut told: Vec<(&str, String)> = vec![("LEADERRUN_EVENT", hook.to_string())];
        told.extend(policy.reason().map(|reason| ("LEADERRUN_REASON", reason.to_string())));
        let status = match self.command_end {
            Some(CommandEnd::Exited(status)) => Some(status),
            Some(CommandEnd::Signalled(signal)) => Some(i32::from(exit::SIGNALLED) + signal),
            None => None,
        };
        told.extend(status.map(|status| ("LEADERRUN_EXIT_STATUS", status.to_string())));
        match sys::start_hook(&OsString::from_vec(command), &told, birth) {
            Ok(pid) => {
                self.running = Some((hook, pid));
                Ok(())
            }
            Err(error) => Err(HookEnd::NotStarted(error.raw_os_error().unwrap_or(libc::EINVAL))),
        }
    }

    /// The hook that was `pid` and has been reaped.
    pub fn reaped(&mut self, pid: Pid) -> Option<Hook> {
        let (hook, _) = self.running.take_if(|(_, running)| *running == pid)?;
        Some(hook)
    }

    /// What becomes of it is of no interest any more.
    pub fn forget(&mut self) {
        self.running = None;
    }

    /// SIGKILL to it. It is not reaped yet, so its number is its own.
    pub fn kill(&self) -> Option<(Hook, Pid)> {
        if let Some((_, pid)) = self.running {
            let _ = killpg(pid, Signal::SIGKILL);
        }
        self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hook_that_is_there_has_its_box_and_only_those_around_a_stop_delay_it() {
        let hooks = Hooks { lead: Some(b"x".to_vec()), timeout: Duration::from_secs(3), ..Hooks::default() };
        assert_eq!(hooks.boxes(), Boxes { lead: Some(Duration::from_secs(3)), ..Boxes::default() });
        assert_eq!(hooks.times().around_a_stop(), Duration::ZERO);
        let hooks = Hooks { lost: hooks.lead.clone(), ..hooks };
        assert_eq!(hooks.times().around_a_stop(), Duration::from_secs(3));
    }
}
