//! The init of a PID namespace: the guard's child, and COMMAND's parent inside.
//!
//! ```text
//! lr-guard           the guard
//! └─ lr-init         PID 1 of the namespace
//!    └─ COMMAND ...  the tree
//! ```
//!
//! When the init ends, the kernel kills every other process of the namespace before the init can be reaped. So a reaped
//! init proves that the tree is dead.
//!
//! The hazards:
//!
//! - *All of leaderrun is killed at the same instant.* PR_SET_PDEATHSIG kills the init with the guard, and so the tree.
//!   The signal comes from an ancestor of the namespace, so the init cannot ignore it.
//! - *The guard is frozen.* Its kill timer kills it at `backstop_at` ([`KillTimer`](crate::sys::KillTimer)), and so the
//!   init.
//! - *The guard and the init know COMMAND by different numbers*, and the guard cannot wait for COMMAND. So the init
//!   reports what becomes of COMMAND, and passes signals on.

use super::policy::Order;
use super::tree::REAPS_FOR;
use super::watch::Watch;
use super::wire::{Heard, Line, Report};
use crate::election::{CommandEnd, StartError, TreeEvent};
use crate::sys::{self, Birth, ChildState, Namespaces, SingleThread, Started, wait_any};
use crate::time::BootInstant;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, getegid, geteuid};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Exit status of an init whose setup failed.
const NOT_SET_UP: u8 = 1;

/// The program that runs in the namespace, and the signal that asks it to stop.
pub struct Inside<'a> {
    pub program: &'a OsStr,
    pub arguments: &'a [OsString],
    pub stop_signal: Signal,
}

/// Starts an init with COMMAND below it. If it fails, no process is left, and the error is as that of
/// [`sys::start_command`]. If that takes so long that something else is due, the line will tell.
pub fn start(namespaces: Namespaces, inside: &Inside<'_>, birth: Birth<'_>) -> io::Result<(Pid, Line)> {
    let (line, inits_line) = Line::pair()?;
    let owner = (geteuid(), getegid());
    let forked = birth.single_thread.fork_into(Some(namespaces), birth.cgroup);
    let Some(init) = forked.map_err(|error| sys::refused(&error))? else {
        drop(line);
        run(namespaces, owner, inside, birth, &inits_line);
    };
    drop(inits_line);
    if !birth.waits_for(line.as_fd()) {
        return Ok((init, line));
    }
    let error = match line.hear_report() {
        Heard::Message(Report::Started { .. }, _) => return Ok((init, line)),
        Heard::Message(Report::Tree(TreeEvent::NotStarted(StartError(errno))), _) => errno,
        Heard::Message(..) | Heard::Silence | Heard::Closed => sys::NO_PROCESS,
    };
    let _ = waitpid(init, None);
    Err(io::Error::from_raw_os_error(error))
}

/// Checks that this host lets us create and use such namespaces.
pub fn try_namespaces(one: &SingleThread, namespaces: Namespaces) -> io::Result<()> {
    let owner = (geteuid(), getegid());
    match one.fork_into(Some(namespaces), None)? {
        None => {
            let number =
                set_up(namespaces, owner).err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL));
            // Every errno of Linux is below 256.
            sys::exit_at_once(u8::try_from(number).unwrap_or(u8::MAX));
        }
        Some(child) => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(()),
            WaitStatus::Exited(_, number) => Err(io::Error::from_raw_os_error(number)),
            _ => Err(io::Error::other("the first process in it was killed")),
        },
    }
}

/// Inside the new namespaces: maps the user that created them, and mounts a `/proc` of their own.
fn set_up(namespaces: Namespaces, (user, group): (Uid, Gid)) -> io::Result<()> {
    if namespaces == Namespaces::WithUser {
        // user_namespaces(7): without this, an unprivileged process may not map its group.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    }
    // Mounts made outside still appear here. Mounts made here stay here.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)?)
}

/// Runs the init. It blocks every signal, as the guard does.
fn run(namespaces: Namespaces, owner: (Uid, Gid), inside: &Inside<'_>, birth: Birth<'_>, line: &Line) -> ! {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let _ = nix::sys::prctl::set_name(c"lr-init");
    // The guard may have died before prctl(2) took effect. Then its end of the line is closed already.
    if line.hear_order() == Heard::Closed {
        sys::exit_at_once(NOT_SET_UP);
    }
    let started = set_up(namespaces, owner)
        // This error is about the namespace. It must not be reported as an error of exec(2) on COMMAND.
        .map_err(|_| io::Error::from_raw_os_error(sys::NO_PROCESS))
        .and_then(|()| {
            let watch = Watch::new()?;
            let birth = Birth { cgroup: None, news: Some(line.as_fd()), until: Duration::MAX, ..birth };
            Ok((watch, sys::start_command(inside.program, inside.arguments, birth)?))
        });
    match started {
        Ok((watch, command)) => {
            line.report(&Report::Started { pid: command.pid.as_raw() });
            look_after(line, watch, &command, inside.stop_signal);
            sys::exit_at_once(0);
        }
        Err(error) => {
            line.report(&Report::Tree(TreeEvent::NotStarted(error.into())));
            sys::exit_at_once(NOT_SET_UP);
        }
    }
}

/// Reaps, signals and reports until the namespace is empty or the guard is gone.
fn look_after(line: &Line, mut watch: Watch, started: &Started, stop_signal: Signal) {
    let mut command = Some(started.pid);
    loop {
        let until = BootInstant::now().plus(REAPS_FOR);
        let mut ends_are_left = true;
        while BootInstant::now() < until {
            match wait_any(WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED) {
                Ok(Some((pid, state))) if Some(pid) == command => {
                    let end = match state {
                        ChildState::Exited(status) => CommandEnd::Exited(status),
                        ChildState::Signalled(signal) => CommandEnd::Signalled(signal),
                        ChildState::Stopped(signal) => {
                            // Only stops by the terminal are reported. Others do not matter, and may come without end.
                            if [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal) {
                                line.report(&Report::Paused { signal });
                            }
                            continue;
                        }
                        ChildState::Continued => continue,
                    };
                    // From here on another process may get the number.
                    command = None;
                    line.report(&Report::Tree(match started.error() {
                        Some(error) => TreeEvent::NotStarted(error.into()),
                        None => TreeEvent::Ended(end),
                    }));
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    ends_are_left = false;
                    break;
                }
                Err(Errno::ECHILD) => return,
                Err(error) => panic!("waitid: {error}"),
            }
        }
        loop {
            match line.hear_order() {
                Heard::Message(order, _) => obey(order, command, stop_signal),
                Heard::Silence => break,
                Heard::Closed => return,
            }
        }
        let wake_at = if ends_are_left { BootInstant::now() } else { BootInstant::NEVER };
        watch.wait(Some(line), [None, None], None, wake_at);
    }
}

fn obey(order: Order, command: Option<Pid>, stop_signal: Signal) {
    match order {
        Order::Signal(signal) => {
            if let (Some(command), Ok(signal)) = (command, Signal::try_from(signal)) {
                let _ = kill(command, signal);
            }
        }
        Order::Continue => {
            if let Some(command) = command {
                let _ = killpg(command, Signal::SIGCONT);
            }
        }
        Order::Stop { .. } => {
            // kill(2): -1 is every process of the namespace but this one. SIGCONT follows because a stopped process
            // cannot obey.
            for signal in [stop_signal, Signal::SIGCONT] {
                let _ = kill(Pid::from_raw(-1), signal);
            }
        }
        // These are for the guard alone.
        Order::Extend(_) | Order::Lose | Order::Kill | Order::Because(_) | Order::Late(_) => {}
    }
}
