//! Hooks: shell commands that run before COMMAND starts, when a stop begins, and after the tree is dead.
//!
//! The hazard: the cleanup after a leadership must end before the next leadership begins, even if the candidate is
//! killed or frozen. So the guard runs the hooks: they are its descendants, run within its deadline, and are killed
//! with it. A guard that is itself killed or frozen runs none.

use super::Guard;
use super::wire::Report;
use crate::election::{CommandEnd, HookEnd, Reason};
use crate::lease::TimeForHooks;
use crate::sys::{self, Birth};
use crate::time::BootInstant;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;
use strum::Display;

/// The default hook timeout.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Hook {
    /// Runs before COMMAND. If it fails, COMMAND does not start.
    PreStart,
    /// Runs when a stop begins, before the stop signal.
    PreStop,
    /// Runs after the tree is dead, before the lease is released.
    PostStop,
}

/// The command of each hook, if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    pub pre_start: Option<Vec<u8>>,
    pub pre_stop: Option<Vec<u8>>,
    pub post_stop: Option<Vec<u8>>,
    pub timeout: Duration,
}

impl Hooks {
    /// The timeout of each hook; zero if there is no such hook. A timeout of zero is refused before (`--hook-timeout`).
    pub fn times(&self) -> TimeForHooks {
        let most = |command: &Option<Vec<u8>>| command.as_ref().map(|_| self.timeout).unwrap_or_default();
        TimeForHooks {
            pre_start: most(&self.pre_start),
            pre_stop: most(&self.pre_stop),
            post_stop: most(&self.post_stop),
        }
    }

    fn command(&self, hook: Hook) -> Option<&Vec<u8>> {
        match hook {
            Hook::PreStart => self.pre_start.as_ref(),
            Hook::PreStop => self.pre_stop.as_ref(),
            Hook::PostStop => self.post_stop.as_ref(),
        }
    }
}

/// Starts hooks one at a time.
#[derive(Debug)]
pub(super) struct Runner {
    hooks: Hooks,
    /// Some while a hook has not been reaped.
    running: Option<(Hook, Pid)>,
}

impl Runner {
    pub fn new(hooks: Hooks) -> Self {
        Self { hooks, running: None }
    }

    /// Starts a hook, which gets the reason of the stop and how COMMAND ended, if there are any.
    pub fn start(
        &mut self,
        hook: Hook,
        reason: Option<Reason>,
        command_end: Option<CommandEnd>,
        birth: Birth<'_>,
    ) -> Result<(), HookEnd> {
        let command = self.hooks.command(hook).cloned().unwrap_or_default();
        let mut told: Vec<(&str, String)> = vec![("LEADERRUN_EVENT", hook.to_string())];
        told.extend(reason.map(|reason| ("LEADERRUN_REASON", reason.to_string())));
        told.extend(command_end.map(|end| ("LEADERRUN_EXIT_STATUS", end.exit_status().to_string())));
        let started = sys::start_hook(&OsString::from_vec(command), &told, birth);
        let started = started.map_err(|error| HookEnd::NotStarted(error.into()))?;
        self.running = Some((hook, started.pid));
        Ok(())
    }

    /// Takes note that `pid` was reaped. Returns the hook that it was.
    pub fn reaped(&mut self, pid: Pid) -> Option<Hook> {
        let (hook, _) = self.running.take_if(|(_, running)| *running == pid)?;
        Some(hook)
    }

    /// Sends SIGKILL to the running hook, with the tree. It has not been reaped, so its number is still its own.
    pub fn kill(&self) {
        if let Some((_, pid)) = self.running {
            let _ = killpg(pid, Signal::SIGKILL);
        }
    }
}

impl Guard {
    pub(super) fn run_hook(&mut self, hook: Hook, not_after: BootInstant) {
        let news = self.line.as_ref().map(AsFd::as_fd);
        let until = self.wake_at().since_boot().unwrap_or(Duration::MAX);
        let birth = Birth { news, until, ..self.start.birth(&self.tree, None, not_after) };
        match self.runner.start(hook, self.policy.reason(), self.command_end, birth) {
            Ok(()) => self.tree.grew(),
            Err(end) => self.hook_over(hook, end),
        }
    }

    pub(super) fn hook_over(&mut self, hook: Hook, end: HookEnd) {
        // The policy itself reports how the pre-start hook ended. A hook that is killed with the tree has not failed.
        if hook != Hook::PreStart && end != HookEnd::Exited(0) && !self.policy.kills() {
            self.report(&Report::HookFailed(hook, end));
        }
        self.hook_ended = Some(end);
    }

    /// Kills the running hook, whose timeout is over, and all its descendants. Nobody waits for it any more.
    pub(super) fn kill_hook(&mut self) {
        if let Some((hook, pid)) = self.runner.running.take() {
            self.tree.kill_group(pid);
            self.report(&Report::HookFailed(hook, HookEnd::TimedOut));
        }
    }
}
