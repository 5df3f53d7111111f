//! The foreground of the terminal. COMMAND gets it, so that Ctrl-C, Ctrl-Z and reading work as if COMMAND ran alone.
//! The candidate takes it back when COMMAND stops or ends.
//!
//! The hazard: `leaderrun S COMMAND | less`. Here `less` is in the candidate's process group, and taking the terminal
//! from that group would stop it. So COMMAND gets the terminal at its start only if standard input and output are both
//! terminals. Otherwise it gets the terminal when it first reads from it (SIGTTIN) or sets its modes (SIGTTOU).

use nix::unistd::{Pid, tcgetpgrp, tcsetpgrp};
use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Debug)]
pub struct Foreground {
    device: File,
    /// The candidate's process group, which has the terminal when COMMAND does not.
    owner: Pid,
    /// COMMAND's process group, kept after COMMAND ended.
    borrower: Option<Pid>,
}

impl Foreground {
    /// Opens the controlling terminal, if there is one.
    pub fn open(owner: Pid) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { device, owner, borrower: None })
    }

    /// The terminal in whose foreground COMMAND starts. None if it starts in the background.
    pub fn to_hand_over(&self) -> Option<BorrowedFd<'_>> {
        (self.owner_has_it() && stdin().is_terminal() && stdout().is_terminal()).then(|| self.device.as_fd())
    }

    pub fn set_borrower(&mut self, group: Pid) {
        self.borrower = Some(group);
    }

    /// Puts COMMAND in the foreground if the candidate is there now. True if that worked.
    pub fn hand_over(&self) -> bool {
        let Some(borrower) = self.borrower else { return false };
        self.owner_has_it() && tcsetpgrp(&self.device, borrower).is_ok()
    }

    /// Puts the candidate in the foreground again, unless a shell has put another group there.
    pub fn take_back(&self) {
        if tcgetpgrp(&self.device).ok() == self.borrower {
            let _ = tcsetpgrp(&self.device, self.owner);
        }
    }

    fn owner_has_it(&self) -> bool {
        tcgetpgrp(&self.device) == Ok(self.owner)
    }
}
