//! Checks of COMMAND's health: shell commands that run beside it.
//!
//! The hazard: what makes COMMAND hang, such as a disk that does not answer, may also make exec(2) of a check hang. So
//! the guard does not wait for it: the guard must be awake for the next order and for the deadline.

use super::Guard;
use super::policy::checks::{CheckTimes, Checks, Due, Failed};
use super::tree::Tree;
use super::wire::Report;
use crate::election::{HookEnd, TreeEvent};
use crate::sys::{self, Birth};
use crate::time::BootInstant;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// The default time between two checks.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
/// The default check timeout.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The default number of failures in a row.
pub const DEFAULT_FAILURES: u32 = 3;

/// How COMMAND's health is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub command: Vec<u8>,
    pub times: CheckTimes,
}

/// Starts checks one at a time.
#[derive(Debug)]
pub(super) struct Checker {
    command: Vec<u8>,
    pub checks: Checks,
    /// Some while a check has not been reaped.
    running: Option<Pid>,
}

impl Checker {
    pub fn new(health: Health) -> Self {
        Self { checks: Checks::new(health.times), command: health.command, running: None }
    }

    pub fn wake_at(&self) -> BootInstant {
        self.checks.wake_at()
    }

    /// Starts a check. An error tells how it failed.
    pub fn start(&mut self, birth: Birth<'_>) -> Result<(), HookEnd> {
        let told = [("LEADERRUN_EVENT", "health".to_owned())];
        let command = OsString::from_vec(self.command.clone());
        let pid = sys::start_check(&command, &told, birth).map_err(|error| HookEnd::NotStarted(error.into()))?;
        self.running = Some(pid);
        Ok(())
    }

    /// Takes note that `pid` was reaped. Returns whether it was the check.
    pub fn reaped(&mut self, pid: Pid) -> bool {
        self.running.take_if(|running| *running == pid).is_some()
    }

    /// Sends SIGKILL to the running check, with the tree. It has not been reaped, so its number is still its own.
    pub fn kill(&self) {
        if let Some(pid) = self.running {
            let _ = killpg(pid, Signal::SIGKILL);
        }
    }

    /// Sends SIGKILL to the running check and all its descendants.
    pub fn kill_below(&self, tree: &mut Tree) {
        if let Some(pid) = self.running {
            tree.kill_group(pid);
        }
    }
}

impl Guard {
    /// Checks COMMAND's health if that is due. Called after the policy has acted, so that no stop waits for a check.
    pub(super) fn look_after_health(&mut self) {
        let Some(checker) = &mut self.checker else { return };
        if !self.policy.is_running() {
            if checker.checks.stop() {
                checker.kill_below(&mut self.tree);
            }
            return;
        }
        match checker.checks.pass_time(BootInstant::now()) {
            Some(Due::Start) => {
                let birth = self.start.birth(&self.tree, None, self.policy.start_by());
                match checker.start(birth) {
                    Ok(()) => self.tree.grew(),
                    Err(end) => self.check_ended(end),
                }
            }
            Some(Due::Kill(failed)) => {
                checker.kill_below(&mut self.tree);
                self.report_check(failed);
            }
            None => {}
        }
    }

    pub(super) fn check_ended(&mut self, end: HookEnd) {
        let Some(checker) = &mut self.checker else { return };
        if let Some(failed) = checker.checks.ended(BootInstant::now(), end) {
            self.report_check(failed);
        }
    }

    fn report_check(&self, failed: Failed) {
        self.report(&match failed {
            Failed::Again(unhealthy) => Report::CheckFailed(unhealthy),
            Failed::Unhealthy(unhealthy) => Report::Tree(TreeEvent::Unhealthy(unhealthy)),
        });
    }
}
