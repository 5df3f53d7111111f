//! The terminal's foreground: lent to COMMAND, so that Ctrl-C, Ctrl-Z and reading from it behave as if COMMAND
//! ran alone, and taken back when it stops or ends.
//!
//! The hazard: `leaderrun S COMMAND | less`. There `less` shares the candidate's process group, and taking the
//! terminal away from that group would stop it. So COMMAND gets the terminal at once only when standard input
//! and output are both a terminal, and otherwise when it first reads from it (SIGTTIN) or sets it (SIGTTOU).

use nix::unistd::{Pid, tcgetpgrp, tcsetpgrp};
use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Debug)]
pub struct Foreground {
    device: File,
    /// The candidate's process group: whose the terminal is when COMMAND does not have it.
    owner: Pid,
    /// COMMAND's process group, also after it ended.
    borrower: Option<Pid>,
}

impl Foreground {
    /// The controlling terminal, if there is one.
    pub fn open(owner: Pid) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { device, owner, borrower: None })
    }

    /// Where COMMAND is to be put in the foreground as it starts.
    pub fn to_hand_over(&self) -> Option<BorrowedFd<'_>> {
        (self.owner_has_it() && stdin().is_terminal() && stdout().is_terminal()).then(|| self.device.as_fd())
    }

    pub fn set_borrower(&mut self, group: Pid) {
        self.borrower = Some(group);
    }

    /// Puts COMMAND in the foreground if the candidate is there now; true if it is there after that.
    pub fn hand_over(&self) -> bool {
        let Some(borrower) = self.borrower else { return false };
        self.owner_has_it() && tcsetpgrp(&self.device, borrower).is_ok()
    }

    /// Puts the candidate in the foreground again, unless a shell has put somebody else there meanwhile.
    pub fn take_back(&self) {
        if tcgetpgrp(&self.device).ok() == self.borrower {
            let _ = tcsetpgrp(&self.device, self.owner);
        }
    }

    fn owner_has_it(&self) -> bool {
        tcgetpgrp(&self.device) == Ok(self.owner)
    }
}
