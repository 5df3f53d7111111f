//! The timer that wakes an event loop.

use crate::sys::{self, Owned};
use crate::time::{BootInstant, boot_timer, set_boot_timer};
use nix::sys::timerfd::TimerFd;
use std::io;
use tokio::io::unix::AsyncFd;

/// A timer on `CLOCK_BOOTTIME`. It also fires right after a suspend, during which tokio's own timers stand still.
pub(crate) struct Timer(AsyncFd<Owned<TimerFd>>);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(sys::watch(boot_timer()?)?))
    }

    /// Sets the instant, and forgets whether the last one was reached.
    pub(crate) fn set(&mut self, instant: BootInstant) -> io::Result<()> {
        set_boot_timer(&self.0.get_ref().0, instant)
    }

    pub(crate) async fn reached(&self) {
        if let Ok(mut ready) = self.0.readable().await {
            ready.clear_ready();
        }
    }
}
