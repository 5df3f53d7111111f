//! Checks of COMMAND's health: shell commands that run beside it.
//!
//! The hazard: what makes COMMAND hang, such as a disk that does not answer, may also make exec(2) of a check hang. So
//! the guard does not wait for it: the guard must be awake for the next order and for the deadline.

use super::Guard;
use super::hooks::shell;
use super::policy::checks::{CheckTimes, Checks, Due, Failed};
use super::tree::Tree;
use super::wire::Report;
use crate::election::{HookEnd, TreeEvent};
use crate::sys::{self, Started};
use crate::time::BootInstant;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::process::Stdio;
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
    running: Option<Started>,
}

impl Checker {
    pub fn new(health: Health) -> Self {
        Self { checks: Checks::new(health.times), command: health.command, running: None }
    }

    /// Takes note that `pid` was reaped. Some if it was the check.
    pub fn reaped(&mut self, pid: Pid) -> Option<Started> {
        self.running.take_if(|running| running.pid == pid)
    }

    /// Sends SIGKILL to the running check and all its descendants.
    fn kill_below(&self, tree: &mut Tree) {
        if let Some(running) = &self.running {
            tree.kill_group(running.pid);
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
                let mut shell = shell(&checker.command, [("LEADERRUN_EVENT", "health".to_owned())]);
                shell.stdout(Stdio::null());
                match sys::start(shell, self.tree.birth(self.birth, self.policy.start_by())) {
                    Ok(started) => {
                        checker.running = Some(started);
                        self.tree.grew(None);
                    }
                    Err(error) => self.check_ended(HookEnd::NotStarted(error.into())),
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
