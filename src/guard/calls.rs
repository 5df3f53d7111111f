//! The system calls that candidate, guard and backstop cannot do without.
//!
//! The hazard: a filter of system calls (seccomp(2)) that denies one of them shows only when a lease is held, in a
//! helper that ends at once and is started again. So the candidate tries each of them before it acquires anything.

use super::wire::Line;
use crate::sys::{self, KillTimer};
use crate::time::{BootInstant, boot_timer, set_boot_timer};
use nix::fcntl::OFlag;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, kill, sigprocmask};
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{MsgFlags, recv, send};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{AccessFlags, Pid, access, getppid, pipe2, setpgid};
use std::fs;
use std::io::{self, Seek};

/// A call by its name, and an attempt that changes nothing. It may fail for another reason: what does not exist is
/// refused with another error than what is denied.
type Call = (&'static str, fn() -> io::Result<()>);

const NEEDED: [Call; 27] = [
    ("signalfd4", || Ok(SignalFd::new(&SigSet::empty()).map(drop)?)),
    ("timerfd_create", || boot_timer().map(drop)),
    ("timerfd_settime", || set_boot_timer(&boot_timer()?, BootInstant::NEVER)),
    ("timer_create", || KillTimer::new().map(drop)),
    ("timer_settime", || KillTimer::new()?.set(None)),
    ("memfd_create", || sys::memory_file(c"leaderrun").map(drop)),
    ("lseek", || sys::memory_file(c"leaderrun")?.rewind()),
    ("socketpair", || Line::pair().map(drop)),
    ("sendto", || Ok(send(NOTHING, &[], MsgFlags::empty()).map(drop)?)),
    ("recvfrom", || Ok(recv(NOTHING, &mut [], MsgFlags::empty()).map(drop)?)),
    ("pipe2", || Ok(pipe2(OFlag::O_CLOEXEC).map(drop)?)),
    ("epoll_create1", || Ok(epoll().map(drop)?)),
    ("eventfd2", || Ok(EventFd::new().map(drop)?)),
    ("epoll_ctl", || Ok(epoll()?.add(EventFd::new()?, EpollEvent::empty())?)),
    ("epoll_wait", || Ok(epoll()?.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO).map(drop)?)),
    ("kill", || Ok(kill(Pid::this(), None)?)),
    ("waitid", || Ok(waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT).map(drop)?)),
    ("rt_sigprocmask", || Ok(sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::empty()), None)?)),
    ("clone", sys::try_clone),
    ("getppid", || if getppid().as_raw() < 0 { Err(io::Error::from_raw_os_error(libc::EPERM)) } else { Ok(()) }),
    ("setpgid", || Ok(setpgid(Pid::from_raw(0), Pid::from_raw(-1))?)),
    ("prctl", || Ok(nix::sys::prctl::get_child_subreaper().map(drop)?)),
    ("prlimit64", || Ok(getrlimit(Resource::RLIMIT_RTPRIO).map(drop)?)),
    ("getdents64", || fs::read_dir("/proc/self/task")?.next().transpose().map(drop)),
    ("readlink", || fs::read_link("").map(drop)),
    ("access", || Ok(access("/", AccessFlags::F_OK)?)),
    ("uname", || Ok(nix::sys::utsname::uname().map(drop)?)),
];

/// No descriptor.
const NOTHING: i32 = -1;

fn epoll() -> nix::Result<Epoll> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
}

/// Tries them all.
pub fn check() -> Result<(), String> {
    for (name, attempt) in NEEDED {
        if let Err(error) = attempt()
            && matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
        {
            return Err(format!(
                "the system call {name} is denied ({error}): allow it in the filter of system calls (seccomp; systemd: \
                 SystemCallFilter=)"
            ));
        }
    }
    Ok(())
}
