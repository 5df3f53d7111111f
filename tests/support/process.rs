//! Processes that end with the test that started them.

use super::prelude::*;
use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::process::{Child, ExitStatus};

/// Killed and reaped when it is dropped.
pub struct Process(Child);

impl Process {
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}")))
    }

    pub fn pid(&self) -> Pid {
        super::server::pid_of(&self.0)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it is there");
    }

    /// SIGKILL, and none of it is left.
    pub fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub fn stops(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.ends()
    }

    pub fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the process ends", || {
            status = self.0.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        status.expect("it ended")
    }

    /// Waits until this holds. False when the process ended before, as a server does whose port was taken.
    pub fn comes_up(&mut self, mut is_up: impl FnMut() -> bool) -> bool {
        let mut ended = false;
        wait_until("the server answers", || {
            ended = self.0.try_wait().expect("a child can be waited for").is_some();
            ended || is_up()
        });
        !ended
    }
}

/// A number that the kernel tells of a process: proc_pid_status(5). Of one that has ended it tells nothing any more.
pub fn told_of(process: impl Display, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

impl From<Child> for Process {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
