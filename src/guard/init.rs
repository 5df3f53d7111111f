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
use crate::election::{CommandEnd, TreeEvent};
use crate::sys::{self, Birth, ChildState, Namespaces, SingleThread, Started, wait_any};
use crate::time::BootInstant;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, getegid, geteuid};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;

/// Exit status of an init whose setup failed.
const NOT_SET_UP: u8 = 1;

/// Starts an init, which starts COMMAND and reports what becomes of it. `stop_signal` asks COMMAND to stop.
pub fn start(
    namespaces: Namespaces,
    program: Command,
    stop_signal: Signal,
    birth: Birth<'_>,
) -> io::Result<(Pid, Line)> {
    let (line, inits_line) = Line::pair()?;
    let owner = (geteuid(), getegid());
    let forked = birth.single_thread.fork_into(Some(namespaces), birth.cgroup);
    if let Some(init) = forked.map_err(|error| sys::refused(&error))? {
        return Ok((init, line));
    }
    drop(line);
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let _ = nix::sys::prctl::set_name(c"lr-init");
    // The guard may have died before prctl(2) took effect. Then its end of the line is closed already.
    if inits_line.hear::<Order>() == Heard::Closed {
        sys::exit_at_once(NOT_SET_UP);
    }
    let started = set_up(namespaces, owner)
        // This error is about the namespace. It must not be reported as an error of exec(2) on COMMAND.
        .map_err(|_| io::Error::from_raw_os_error(sys::NO_PROCESS))
        .and_then(|()| Ok((Watch::new()?, sys::start(program, Birth { cgroup: None, ..birth })?)));
    match started {
        Ok((watch, started)) => {
            let command = Some(started.pid);
            Init { line: inits_line, stop_signal, command, starting: Some(started) }.run(watch);
            sys::exit_at_once(0);
        }
        Err(error) => {
            inits_line.report(&Report::Tree(TreeEvent::NotStarted(error.into())));
            sys::exit_at_once(NOT_SET_UP);
        }
    }
}

/// Checks that this host lets us create and use such namespaces.
pub fn try_namespaces(one: SingleThread, namespaces: Namespaces) -> io::Result<()> {
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

/// The init. It blocks every signal, as the guard does.
struct Init {
    line: Line,
    stop_signal: Signal,
    /// Some while COMMAND has not been reaped.
    command: Option<Pid>,
    /// Some until it is known whether COMMAND has become its program.
    starting: Option<Started>,
}

impl Init {
    /// Reaps, signals and reports until the namespace is empty or the guard is gone.
    fn run(mut self, mut watch: Watch) {
        loop {
            self.hear_exec(None);
            let until = BootInstant::now().plus(REAPS_FOR);
            let mut ends_are_left = true;
            while ends_are_left && BootInstant::now() < until {
                match wait_any(WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED) {
                    Ok(Some((pid, state))) if Some(pid) == self.command => self.changed(state),
                    Ok(Some(_)) => {}
                    Ok(None) => ends_are_left = false,
                    Err(Errno::ECHILD) => return,
                    Err(error) => panic!("waitid: {error}"),
                }
            }
            loop {
                match self.line.hear() {
                    Heard::Message(order, _) => self.obey(order),
                    Heard::Silence => break,
                    Heard::Closed => return,
                }
            }
            let wake_at = if ends_are_left { BootInstant::now() } else { BootInstant::NEVER };
            watch.wait(Some(&self.line), [self.starting.as_ref().map(AsFd::as_fd), None], None, wake_at);
        }
    }

    fn hear_exec(&mut self, exited: Option<bool>) {
        let Some(became_program) = self.starting.as_ref().and_then(|starting| starting.became_program(exited)) else {
            return;
        };
        let pid = self.starting.take().expect("it was there").pid.as_raw();
        match became_program {
            Ok(true) => self.line.report(&Report::Started { pid }),
            Ok(false) => {}
            Err(error) => self.ended(TreeEvent::NotStarted(error.into())),
        }
    }

    fn changed(&mut self, state: ChildState) {
        self.hear_exec(state.is_end().then_some(matches!(state, ChildState::Exited(_))));
        let end = match state {
            ChildState::Exited(status) => CommandEnd::Exited(status),
            ChildState::Signalled(signal) => CommandEnd::Signalled(signal),
            // Only stops by the terminal are reported. Others do not matter, and may come without end.
            ChildState::Stopped(signal @ (libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)) => {
                return self.line.report(&Report::Paused { signal });
            }
            ChildState::Stopped(_) | ChildState::Continued => return,
        };
        if self.command.is_some() {
            self.ended(TreeEvent::Ended(end));
        }
    }

    fn ended(&mut self, event: TreeEvent) {
        // From here on another process may get the number.
        self.command = None;
        self.starting = None;
        self.line.report(&Report::Tree(event));
    }

    fn obey(&self, order: Order) {
        if let Order::Stop { .. } = order {
            // kill(2): -1 is every process of the namespace but this one. SIGCONT follows because a stopped process
            // cannot obey.
            for signal in [self.stop_signal, Signal::SIGCONT] {
                let _ = kill(Pid::from_raw(-1), signal);
            }
            self.starting.iter().for_each(Started::cancel);
        } else if let Some(command) = self.command {
            pass_on(order, command);
        }
    }
}

/// Does what an order says of COMMAND alone: passes a signal on to it, or continues its group. For its parent.
pub fn pass_on(order: Order, command: Pid) {
    let _ = match order {
        Order::Signal(signal) => Signal::try_from(signal).and_then(|signal| kill(command, signal)),
        Order::Continue => killpg(command, Signal::SIGCONT),
        Order::Extend(_) | Order::Stop { .. } | Order::Kill | Order::Late(_) => Ok(()),
    };
}
