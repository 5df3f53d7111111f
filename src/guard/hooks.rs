//! Hooks: shell commands that run before COMMAND starts, when a stop begins, and after the tree is dead.
//!
//! The hazard: the cleanup after a leadership must end before the next leadership begins, even if the candidate is
//! killed or frozen. So the guard runs the hooks: they are its descendants, run within its deadline, and are killed
//! with it. A guard that is itself killed or frozen runs none.

use super::Guard;
use super::wire::Report;
use crate::election::{CommandEnd, HookEnd};
use crate::lease::TimeForHooks;
use crate::sys::{self, Started};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
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
}

/// `sh -c TEXT` with empty input, and with `told` added to the environment.
pub(super) fn shell(text: &[u8], told: impl IntoIterator<Item = (&'static str, String)>) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(OsStr::from_bytes(text)).envs(told).stdin(Stdio::null());
    shell
}

/// How a hook ended, or a health check: perhaps the shell was never there.
pub(super) fn how_it_ended(started: &Started, end: CommandEnd) -> HookEnd {
    match started.became_program(Some(true)) {
        Some(Err(error)) => HookEnd::NotStarted(error.into()),
        Some(Ok(_)) | None => end.into(),
    }
}

impl Guard {
    /// Runs a hook, which gets the reason of the stop and how COMMAND ended, if there are any. One hook runs at a time.
    pub(super) fn run_hook(&mut self, hook: Hook, not_after: BootInstant) {
        let text = match hook {
            Hook::PreStart => &self.hooks.pre_start,
            Hook::PreStop => &self.hooks.pre_stop,
            Hook::PostStop => &self.hooks.post_stop,
        };
        let mut told = vec![("LEADERRUN_EVENT", hook.to_string())];
        told.extend(self.policy.reason().map(|reason| ("LEADERRUN_REASON", reason.to_string())));
        told.extend(self.command_end.map(|end| ("LEADERRUN_EXIT_STATUS", end.exit_status().to_string())));
        let shell = shell(text.as_deref().unwrap_or_default(), told);
        match sys::start(shell, self.tree.birth(self.birth, not_after)) {
            Ok(started) => {
                self.hook = Some((hook, started));
                self.tree.grew(None);
            }
            Err(error) => self.hook_over(hook, HookEnd::NotStarted(error.into())),
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
        if let Some((hook, started)) = self.hook.take() {
            self.tree.kill_group(started.pid);
            self.report(&Report::HookFailed(hook, HookEnd::TimedOut));
        }
    }
}
