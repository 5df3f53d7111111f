//! The terminal: who has its foreground, and its modes. This is the design of signals at a terminal.
//!
//! COMMAND has a process group of its own. In the candidate's group, `kill 0` in COMMAND would reach the candidate, and
//! the SIGKILL for COMMAND the whole pipeline. The terminal is `/dev/tty`, wherever the standard streams lead.
//!
//! *Who sees which signal.* The candidate obeys SIGTERM and SIGINT, and passes the others on to COMMAND. Guard and
//! backstop block every signal. What the keyboard sends goes to the foreground group alone: to COMMAND's while COMMAND
//! has the terminal, otherwise to the candidate's.
//!
//! *The foreground.* COMMAND gets it at its start if standard input and output are terminals and the candidate's group
//! has it. Otherwise COMMAND gets it when the kernel stops COMMAND because it has not got it (SIGTTIN, SIGTTOU). In
//! `leaderrun S COMMAND | less`, `less` is in the candidate's group and needs the terminal as well, and in `leaderrun A
//! ... | leaderrun B ...` so does the other COMMAND: the first keeps it, and the second waits, stopped. If no process
//! of our job has the terminal, we are a background job: COMMAND stays stopped, and the whole job stops, so that the
//! shell shows it. The candidate gets the foreground back when COMMAND ends or stops.
//!
//! *The keyboard.* A process in COMMAND's group sees what the keyboard sends (see `keyboard`). What
//! Ctrl-C or Ctrl-\ ends, with whatever status, is not started again. If the signal itself ended COMMAND, it is
//! repeated to the candidate's group, because a script that ran COMMAND itself would have been in the foreground, too.
//! A signal that another process sent to COMMAND is not. Ctrl-Z stops COMMAND, and then the candidate's group. So
//! does a SIGSTOP of a COMMAND that has the foreground, such as `suspend` in a shell.
//!
//! *A terminal that is closed* is not watched, because `leaderrun ... & exit` leaves it on purpose. SIGHUP is the
//! occasion to look: if the terminal is gone, the candidate stops in order and dies from SIGHUP. If it is still there,
//! the signal is passed on, which reloads many a program, and the candidate looks again a moment later: a shell that
//! exits sends SIGHUP first.
//!
//! *Modes.* If a signal ended COMMAND, nobody has put back the modes that COMMAND had set. The guard puts back those
//! that it found, as a shell does, unless another job has the terminal by now. A COMMAND that ended by itself may have
//! set them on purpose.

use crate::sys;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};
use std::fs::{self, DirEntry, File};
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};

/// The most ancestors that are looked at.
const MOST_ANCESTORS: usize = 64;

#[derive(Debug)]
pub struct Foreground {
    device: File,
    /// The candidate's process group, which has the terminal when COMMAND does not.
    owner: Pid,
    /// COMMAND's process group, kept after COMMAND ended.
    pub(super) borrower: Option<Pid>,
    /// COMMAND had the terminal or asked for it, so it gets it when the job is continued.
    wanted: bool,
    /// The modes before COMMAND had the terminal. Some once it has had it.
    modes: Option<Termios>,
}

/// Who has the terminal that COMMAND asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// COMMAND, from now on.
    ToCommand,
    /// Another process of our pipeline, for a while.
    ToSibling,
    /// Another job. We are in the background.
    ToOthers,
}

/// Whether this process has a controlling terminal.
pub fn has_terminal() -> bool {
    device().is_some()
}

fn device() -> Option<File> {
    File::options().read(true).write(true).open("/dev/tty").ok()
}

impl Foreground {
    /// Opens the controlling terminal, if there is one.
    pub fn open(owner: Pid) -> Option<Self> {
        Some(Self { device: device()?, owner, borrower: None, wanted: false, modes: None })
    }

    /// The terminal in whose foreground COMMAND starts. None if it starts in the background.
    pub fn to_hand_over(&mut self) -> Option<BorrowedFd<'_>> {
        if !(self.owner_has_it() && stdin().is_terminal() && stdout().is_terminal()) {
            return None;
        }
        self.save_modes();
        self.wanted = true;
        Some(self.device.as_fd())
    }

    /// Takes note of the modes, unless that was done. In the background they are those of a shell at its prompt.
    pub fn save_modes(&mut self) {
        if self.modes.is_none() && self.owner_has_it() {
            self.modes = tcgetattr(&self.device).ok();
        }
    }

    /// Puts COMMAND in the foreground, which asks for it, if it is ours to give.
    pub fn lend(&mut self) -> Lent {
        self.wanted = true;
        let Some(borrower) = self.borrower else { return Lent::ToOthers };
        loop {
            let Ok(group) = tcgetpgrp(&self.device) else { return Lent::ToOthers };
            if group == borrower {
                return Lent::ToCommand;
            }
            if group == self.owner || is_dead(group) {
                break;
            }
            if self.is_sibling(group) {
                return Lent::ToSibling;
            }
            // A sibling that ends meanwhile has no ancestors.
            if !is_dead(group) {
                return Lent::ToOthers;
            }
        }
        self.save_modes();
        if tcsetpgrp(&self.device, borrower).is_ok() { Lent::ToCommand } else { Lent::ToOthers }
    }

    /// The job is continued: gives COMMAND back what it had before.
    pub fn lend_again(&mut self) {
        if self.wanted && self.owner_has_it() {
            self.lend();
        }
    }

    /// Puts the candidate in the foreground again, unless a shell has put another group there. Returns whether it did.
    pub fn take_back(&self) -> bool {
        tcgetpgrp(&self.device).is_ok_and(|group| Some(group) == self.borrower || is_dead(group))
            && tcsetpgrp(&self.device, self.owner).is_ok()
    }

    /// COMMAND has ended and its tree is dead. Puts the modes back if a signal ended COMMAND, and the candidate in the
    /// foreground. What waits there for the terminal goes on.
    pub fn settle(&self, by_signal: bool) {
        let took = self.take_back();
        if let Some(modes) = self.modes.as_ref().filter(|_| by_signal && self.owner_has_it()) {
            // Not TCSADRAIN, which waits for ever after Ctrl-S.
            let _ = tcsetattr(&self.device, SetArg::TCSANOW, modes);
        }
        if took {
            self.wake_owner();
        }
    }

    /// As [`settle`](Self::settle), if the guard was killed, and COMMAND with it, while COMMAND had the terminal.
    pub fn recover(&self) {
        if tcgetpgrp(&self.device).is_ok_and(is_dead) {
            self.settle(true);
        }
    }

    /// Continues a candidate that was stopped.
    pub fn wake_owner(&self) {
        let _ = killpg(self.owner, Signal::SIGCONT);
    }

    pub fn owner_has_it(&self) -> bool {
        tcgetpgrp(&self.device) == Ok(self.owner)
    }

    pub fn borrower_has_it(&self) -> bool {
        tcgetpgrp(&self.device).is_ok_and(|group| Some(group) == self.borrower)
    }

    /// Whether this group was started below our job: by another leaderrun of the pipeline, or by a shell in it.
    fn is_sibling(&self, group: Pid) -> bool {
        let Some(mut pid) = member(group) else { return false };
        for _ in 0..MOST_ANCESTORS {
            match family(pid) {
                Some((_, group)) if group == self.owner => return true,
                Some((parent, _)) if parent.as_raw() > 1 => pid = parent,
                Some(_) | None => return false,
            }
        }
        false
    }
}

/// Whether somebody in our session, a shell, can continue our process group once it is stopped. Otherwise the kernel
/// ignores the terminal's stop signals (an orphaned process group, setpgid(2)).
pub fn can_be_continued() -> bool {
    let group = getpgrp();
    let mut pid = getppid();
    for _ in 0..MOST_ANCESTORS {
        if getpgid(Some(pid)) != Ok(group) {
            return pid.as_raw() > 0 && getsid(Some(pid)) == getsid(None);
        }
        let Some((parent, _)) = family(pid) else { return false };
        pid = parent;
    }
    false
}

/// No process is left in this group. One of another PID namespace has no number here.
fn is_dead(group: Pid) -> bool {
    group.as_raw() > 1 && killpg(group, None) == Err(Errno::ESRCH)
}

/// A process of this group: the one that began it or, when that is gone, any other. COMMAND's keyboard lives longer.
fn member(group: Pid) -> Option<Pid> {
    let is_in = |pid: &Pid| family(*pid).is_some_and(|(_, of)| of == group);
    let others = || fs::read_dir("/proc").ok()?.flatten().find_map(|entry| pid(&entry).filter(is_in));
    Some(group).filter(is_in).or_else(others)
}

fn pid(entry: &DirEntry) -> Option<Pid> {
    entry.file_name().to_str()?.parse().ok().map(Pid::from_raw)
}

/// The parent and the process group of a process, as `/proc` shows them.
fn family(pid: Pid) -> Option<(Pid, Pid)> {
    let fields = sys::stat_of(pid)?;
    let number = |place: usize| fields.get(place)?.parse().ok().map(Pid::from_raw);
    Some((number(1)?, number(2)?))
}
