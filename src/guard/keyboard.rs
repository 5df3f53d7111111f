//! What the keyboard sends to COMMAND, seen by a process in COMMAND's group.
//!
//! The hazard: a COMMAND that catches Ctrl-C and exits with a status of its own looks like one that failed, and would
//! be started again, while the person at the keyboard wants it to end. And COMMAND's group may be the only one that
//! learns of a terminal that hung up. Only a process of the group sees what the group gets, and only a blocked signal
//! tells where it came from: the kernel sends what is typed (`SI_KERNEL`), and what a process sends is not the
//! keyboard's.
//!
//! It is there before COMMAND has the terminal, and is part of the tree. So a key is always reported before the tree is
//! dead.

use super::policy::Order;
use super::wire::{Heard, Line, Report};
use crate::sys;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, OwnedFd};

const WATCHED: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];

/// Reports keys until the guard has said that COMMAND ended, or is gone. Every signal is blocked here.
pub fn run(line: OwnedFd) -> ! {
    let _ = nix::sys::prctl::set_name(c"lr-keyboard");
    if let Ok(signals) = SignalFd::with_flags(&WATCHED.into_iter().collect(), SfdFlags::SFD_NONBLOCK) {
        watch(&signals, &Line(line));
    }
    sys::exit_at_once(0)
}

fn watch(signals: &SignalFd, line: &Line) {
    loop {
        let mut sources = [signals.as_fd(), line.as_fd()].map(|source| PollFd::new(source, PollFlags::POLLIN));
        let _ = poll(&mut sources, PollTimeout::NONE);
        // Before the signals: one that came before COMMAND's end is reported.
        let is_last = line.hear::<Order>() != Heard::Silence;
        while let Ok(Some(info)) = signals.read_signal() {
            if info.ssi_code == libc::SI_KERNEL {
                line.report(&Report::Key { signal: info.ssi_signo.cast_signed() });
            }
        }
        if is_last {
            return;
        }
    }
}
