//! What a guard, a backstop or an init sleeps on: its line, the end of a child, and an instant of `CLOCK_BOOTTIME`.

use super::wire::Line;
use crate::time::{BootInstant, boot_timer, set_boot_timer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::TimerFd;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::sleep;
use std::time::Duration;

/// How long a helper rests that cannot wait.
const REFUSED: Duration = Duration::from_millis(5);

pub struct Watch {
    children: SignalFd,
    timer: TimerFd,
}

impl Watch {
    pub fn new() -> io::Result<Self> {
        let signals = SigSet::from(Signal::SIGCHLD);
        Ok(Self {
            children: SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?,
            timer: boot_timer()?,
        })
    }

    /// Waits for any of them, for a line from `below`, or for `events` of a cgroup. Where the kernel refuses to wait, as
    /// poll(2) does once somebody has lowered our limit of descriptors, that is a moment: a helper that ended would
    /// leave the tree to nobody.
    pub fn wait(
        &mut self,
        line: Option<&Line>,
        below: [Option<BorrowedFd<'_>>; 2],
        events: Option<BorrowedFd<'_>>,
        wake_at: BootInstant,
    ) {
        // The timer stands in for a missing source, with no events to wait for.
        let timer = self.timer.as_fd();
        let source = |fd: Option<_>, flags| PollFd::new(fd.unwrap_or(timer), fd.map_or(PollFlags::empty(), |_| flags));
        let mut sources = [
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
            PollFd::new(timer, PollFlags::POLLIN),
            source(line.map(AsFd::as_fd), PollFlags::POLLIN),
            source(below[0], PollFlags::POLLIN),
            source(below[1], PollFlags::POLLIN),
            source(events, PollFlags::POLLPRI),
        ];
        let waited = set_boot_timer(&self.timer, wake_at).and_then(|()| Ok(poll(&mut sources, PollTimeout::NONE)?));
        if waited.is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
            sleep(REFUSED);
        }
        while let Ok(Some(_)) = self.children.read_signal() {}
    }
}
