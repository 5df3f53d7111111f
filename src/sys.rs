//! The only unsafe code: the few system calls that neither std nor nix offers in a safe form.
//!
//! The hazard: a mistake here is undefined behaviour. So each `unsafe` block names the contract that it relies on, and
//! nothing else in the crate has one.
#![expect(unsafe_code, reason = "this is the module for it")]

mod start;

pub use start::{
    Birth, Companion, Listens, NO_PROCESS, Namespaces, Scheduling, SingleThread, Started, exit_at_once, listens,
    may_fork, refused, set_nice, share_in_short_slices, start,
};

use crate::exit;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigEvent, SigSet, SigevNotify, SigmaskHow, Signal, sigprocmask};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::sys::wait::WaitPidFlag;
use nix::time::ClockId;
use nix::unistd::{ForkResult, Pid, SysconfVar, dup2_stdin, fork, sysconf};
use std::ffi::{CStr, CString, OsString};
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::iter;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// The rows and columns of a terminal. None if `device` is not a terminal.
pub fn terminal_size(device: impl AsFd) -> Option<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes a winsize (ioctl_tty(2)). `size` is one, and lives until the call has returned.
    let answer = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (answer == 0).then_some((size.ws_row, size.ws_col))
}

/// Starts this executable again under another `name`, with the numbers of `inherited` as its arguments, which are open
/// there, with exactly `environment`, and with `input` as its standard input, if given. `/proc` must be mounted.
///
/// exec(2) may take as long as a dead file server, so nobody waits for it. If it fails, the new process calls `failed`,
/// which must not allocate.
pub fn respawn(
    name: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    input: Option<BorrowedFd<'_>>,
    inherited: &[BorrowedFd<'_>],
    failed: impl FnOnce(io::Error),
) -> io::Result<Pid> {
    let mask = given_mask();
    let numbers = inherited.iter().map(|file| file.as_raw_fd().to_string());
    let words: Vec<_> = iter::once(name.to_owned()).chain(numbers).map(CString::new).collect::<Result<_, _>>()?;
    let variable = |(name, value): (OsString, OsString)| [name.into_vec(), value.into_vec()].join(&b'=');
    let variables: Vec<_> = environment.into_iter().map(variable).map(CString::new).collect::<Result<_, _>>()?;
    let [words, variables] = [&words, &variables]
        .map(|strings| strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>());
    // SAFETY: between fork and exec only async-signal-safe calls are allowed (signal-safety(7)). These are, and nothing
    // is allocated.
    if let ForkResult::Parent { child } = unsafe { fork() }? {
        return Ok(child);
    }
    let become_another = || -> nix::Result<()> {
        input.map_or(Ok(()), dup2_stdin)?;
        for file in inherited {
            fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        // This process has unblocked the signals that it handles. The child gets the mask that this process was given.
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        // SAFETY: execve(2) reads strings that end with NUL, from lists that end with null. They live until then.
        unsafe { libc::execve(c"/proc/self/exe".as_ptr(), words.as_ptr(), variables.as_ptr()) };
        Err(Errno::last())
    };
    if let Err(error) = become_another() {
        failed(error.into());
    }
    exit_at_once(exit::NOT_FOUND)
}

/// Reads as many directory entries as fit into `buffer`, in the format of getdents64(2). Returns their length, 0 at the
/// end.
pub fn read_directory(directory: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: getdents64(2) writes at most as many bytes as it is told to, which is the size of `buffer`.
    let read = unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Reads an extended attribute into `buffer`, and returns the value. ENODATA if there is none, or this process may not
/// see it.
pub fn extended_attribute<'a>(file: BorrowedFd<'_>, name: &CStr, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    // SAFETY: fgetxattr(2) reads a string that ends with NUL, and writes at most as many bytes as `buffer` has.
    let length = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok(&buffer[..length])
}

/// Takes over a descriptor that this process inherited under `number`, unless it is not open, or is one of the standard
/// three. Children will not inherit it.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: fcntl(2) with F_SETFD touches no memory, and fails for a number that is not open.
    Errno::result(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open (above). The caller adopts each number once, at the start, when nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor of this process but `file`, which gets number 0. For a process that was forked and only uses
/// that file from here on.
fn leave_only(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: these calls take only numbers. Whatever owns the closed descriptors is not used again, because the caller
    // never returns to it. Number 0 is open after dup2(2), and nothing else owns it.
    unsafe {
        Errno::result(libc::dup2(file.as_raw_fd(), 0))?;
        if libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) < 0 {
            let most = sysconf(SysconfVar::OPEN_MAX).ok().flatten().unwrap_or(1024).min(1 << 16);
            for number in 1..RawFd::try_from(most).unwrap_or(1024) {
                libc::close(number);
            }
        }
        Ok(OwnedFd::from_raw_fd(0))
    }
}

/// Ends this process, or with `group` all of that group, by the default action of `signal`, without a core file: it
/// would hold the store's password. A core pattern that is a pipe ignores the limit, so the kernel is told twice.
/// Returns only in process 1, which no signal ends.
pub fn end_by(signal: Signal, group: Option<Pid>) {
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let _ = nix::sys::prctl::set_dumpable(false);
    default_action(signal);
    unblock([signal]);
    let _ = match group {
        Some(group) => nix::sys::signal::killpg(group, signal),
        None => nix::sys::signal::raise(signal),
    };
}

/// A process, so that a signal cannot reach another one that got its number.
///
/// Without pidfd_open(2) and pidfd_send_signal(2) the kernel cannot keep a process and its number together. Then a
/// caller that looks at the process after it has pinned it makes a mistake only if the number changes hands between that
/// look and the signal.
#[derive(Debug)]
pub struct Pinned {
    pub pid: Pid,
    pidfd: Option<OwnedFd>,
}

impl Pinned {
    pub fn new(pid: Pid) -> io::Result<Self> {
        // SAFETY: pidfd_open(2) takes two integers and returns a descriptor that nothing else owns, or -1.
        match unsafe { new_descriptor(libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0)) } {
            // A filter of system calls from a time before this one.
            Err(Errno::ENOSYS | Errno::EPERM) => Ok(Self { pid, pidfd: None }),
            pidfd => Ok(Self { pid, pidfd: Some(pidfd?) }),
        }
    }

    /// ESRCH if it has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if let Some(pidfd) = self.pidfd.as_ref().map(AsRawFd::as_raw_fd) {
            let no_info = ptr::null::<libc::siginfo_t>();
            // SAFETY: pidfd_send_signal(2) reads nothing through a null siginfo.
            let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal as i32, no_info, 0) };
            match Errno::result(sent) {
                Err(Errno::ENOSYS | Errno::EPERM) => {}
                sent => return Ok(sent.map(drop)?),
            }
        }
        Ok(nix::sys::signal::kill(self.pid, signal)?)
    }
}

/// Asks clone(2) for what it never makes: a thread that shares no memory. An error says that it did not get as far as
/// to refuse that.
pub fn try_clone() -> io::Result<()> {
    // SAFETY: with this flag alone the kernel returns EINVAL, and has made nothing.
    let made = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_THREAD, 0, 0, 0, 0) };
    let error = io::Error::last_os_error();
    if made == -1 && error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) }
}

/// A new file in memory, which has no name in the file system. The system call itself: glibc has a function for it only
/// since 2.27, and the programs run on older ones.
pub fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: memfd_create(2) reads a string that ends with NUL, and returns a descriptor that nothing else owns, or
    // -1.
    let file = unsafe { new_descriptor(libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC)) }?;
    Ok(file.into())
}

/// True if a filter decides which system calls this process may make (seccomp(2)).
pub fn has_filter() -> bool {
    // SAFETY: this request of prctl(2) takes no pointer. Where the filter refuses it, the answer is not 0 either.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

/// # Safety
/// `number` is -1, or nothing else owns the descriptor.
unsafe fn new_descriptor(number: libc::c_long) -> nix::Result<OwnedFd> {
    let number = RawFd::try_from(Errno::result(number)?).expect("a descriptor");
    // SAFETY: as the caller says.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A change of a child's state. Signals are numbers, because real-time signals have no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildState {
    Exited(i32),
    Signalled(i32),
    Stopped(i32),
    Continued,
}

impl ChildState {
    /// True if the child has ended. Once it is reaped, another process may get its number.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Exited(_) | Self::Signalled(_))
    }
}

/// Returns the next change of any child's state without blocking. None if there is none, ECHILD if there is no child.
pub fn wait_any(flags: WaitPidFlag) -> Result<Option<(Pid, ChildState)>, Errno> {
    let flags = (flags | WaitPidFlag::WNOHANG).bits();
    loop {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: waitid(2) writes one siginfo to the pointer, and there is room for it. If it writes none, all zeroes
        // are a valid siginfo. For a child's change it fills the fields that the getters read.
        let (failed, pid, status, code) = unsafe {
            let failed = libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) < 0;
            let info = info.assume_init();
            (failed, info.si_pid(), info.si_status(), info.si_code)
        };
        match Errno::last() {
            Errno::EINTR if failed => {}
            errno if failed => return Err(errno),
            _ if pid == 0 => return Ok(None),
            _ => {
                let state = match code {
                    libc::CLD_EXITED => ChildState::Exited(status),
                    libc::CLD_KILLED | libc::CLD_DUMPED => ChildState::Signalled(status),
                    libc::CLD_STOPPED | libc::CLD_TRAPPED => ChildState::Stopped(status),
                    _ => ChildState::Continued,
                };
                return Ok(Some((Pid::from_raw(pid), state)));
            }
        }
    }
}

/// An owner of a descriptor that always returns the same descriptor.
#[derive(Debug)]
pub struct Owned<T: AsFd>(pub T);

impl<T: AsFd> AsRawFd for Owned<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Registers `source` with tokio's reactor.
pub fn watch<T: AsFd + 'static>(source: T) -> io::Result<AsyncFd<Owned<T>>> {
    // SAFETY: tokio requires that the descriptor stays open and the same until the AsyncFd is dropped. The AsyncFd owns
    // `source`, which is 'static and whose `as_fd` borrows from it. Nothing can replace it, because the AsyncFd gives
    // out only shared references.
    Ok(unsafe { AsyncFd::register(Owned(source)) }?)
}

/// A timer with which the kernel kills this process, on `CLOCK_BOOTTIME`. It works even if the process was stopped or
/// no thread of it runs any more. Children do not inherit it, and exec(2) removes it.
#[derive(Debug)]
pub struct KillTimer {
    timer: ManuallyDrop<Timer>,
    /// The process that made it. After a fork(2) the number may belong to another timer.
    pid: Pid,
}

// SAFETY: a timer_t is the kernel's number for a timer of the process, not of one thread. Any thread may call
// timer_settime(2) and timer_delete(2). It is a pointer type only in C.
unsafe impl Send for KillTimer {}

impl KillTimer {
    /// Makes a timer that is not set. It counts as a pending signal (`RLIMIT_SIGPENDING`).
    pub fn new() -> io::Result<Self> {
        let deadly = SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 };
        let timer = Timer::new(ClockId::CLOCK_BOOTTIME, SigEvent::new(deadly))?;
        Ok(Self { timer: ManuallyDrop::new(timer), pid: nix::unistd::getpid() })
    }

    /// Has the kernel kill this process at `instant`: at once if that has passed, never if it is None.
    pub fn set(&mut self, instant: Option<Duration>) -> io::Result<()> {
        // Zero disarms the timer.
        let at = instant.map_or(0, |instant| instant.as_nanos().clamp(1, i64::MAX as u128));
        let at = TimeSpec::from_duration(Duration::from_nanos(u64::try_from(at).unwrap_or(u64::MAX)));
        if nix::unistd::getpid() == self.pid {
            self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        }
        Ok(())
    }
}

impl Drop for KillTimer {
    fn drop(&mut self) {
        if nix::unistd::getpid() == self.pid {
            // SAFETY: it is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.timer) }
        }
    }
}

/// Reads `CLOCK_BOOTTIME` from the kernel itself. A preloaded library that fakes clocks (libfaketime) would fake it
/// differently in each process, and would not fake the kernel's timers.
pub fn boot_clock() -> Duration {
    clock(libc::CLOCK_BOOTTIME)
}

/// Reads `CLOCK_MONOTONIC` in the same way. It stands still while the machine sleeps.
pub fn monotonic_clock() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

fn clock(clock: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) writes one timespec to the pointer, and `now` is one.
    let failed = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut now) };
    assert!(failed == 0, "every Linux since 2.6.39 has both clocks");
    let seconds = u64::try_from(now.tv_sec).expect("the time since boot is not negative");
    let nanos = u32::try_from(now.tv_nsec).expect("a fraction of a second fits");
    Duration::new(seconds, nanos)
}

/// The fields of proc_pid_stat(5) from the third on. The second, a name in parentheses, may have blanks and parentheses
/// in it. None if `/proc` does not show the process.
pub fn stat_of(process: impl Display) -> Option<Vec<String>> {
    let line = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    // A name may have any bytes.
    let line = String::from_utf8_lossy(&line);
    Some(line.rsplit_once(')')?.1.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Two addresses of this process: where something begins, in `field`, and where it ends, in the next one. None if the
/// kernel does not show them.
fn stat_addresses(field: usize) -> Option<(usize, usize)> {
    let fields = stat_of("self")?;
    let address = |field: usize| fields.get(field - 3)?.parse().ok();
    Some((address(field)?, address(field + 1)?))
}

/// The size of a page of memory, in bytes.
pub fn page_size() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| usize::try_from(size).ok());
    size.expect("the kernel tells every program, when it begins (getauxval(3), AT_PAGESZ)")
}

/// Has the kernel unmap the instructions of this program. It maps those again that are used again. Does nothing if the
/// kernel does not show where they are.
pub fn forget_instructions() {
    let page = page_size();
    // startcode and endcode. They are 0 or 1 if the kernel hides them.
    let Some((start, end)) = stat_addresses(26).filter(|&(start, _)| start > 1) else { return };
    let start = start.next_multiple_of(page);
    let end = end / page * page;
    if start < end {
        let region = ptr::with_exposed_provenance_mut::<libc::c_void>(start);
        // SAFETY: pages that were mapped from a file and never written have the same content when they are mapped again
        // (madvise(2), MADV_DONTNEED). Nothing writes to a program's instructions: they are not mapped writable.
        unsafe { libc::madvise(region, end - start, libc::MADV_DONTNEED) };
    }
}

/// Overwrites the first argument that contains `text`, where `ps` and `/proc` show it, except for the part before the
/// first `:`. Does nothing if the kernel does not show where the arguments are.
pub fn hide_argument(text: &str) {
    // arg_start and arg_end.
    let Some((start, end)) = stat_addresses(48) else { return };
    if start == 0 || end <= start || text.is_empty() {
        return;
    }
    let region = ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: the kernel put the arguments there when this program began, in memory that we may write (execve(2)). std
    // has copied those that were asked for, and no other thread runs yet.
    let arguments = unsafe { std::slice::from_raw_parts_mut(region, end - start) };
    let found = arguments.windows(text.len()).position(|window| window == text.as_bytes());
    if let Some(at) = found {
        let kept = text.find(':').map_or(0, |colon| colon + 1);
        arguments[at + kept..at + text.len()].fill(b'*');
    }
}

/// True if this process ignores `signal`: from its beginning, if nohup(1) or a shell's `&` started it so.
pub fn is_ignored(signal: Signal) -> bool {
    let mut current = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sigaction(2) with a null new action only writes the old one, for which there is room. If it fails, all
    // zeroes are a valid sigaction.
    unsafe {
        libc::sigaction(signal as i32, ptr::null(), current.as_mut_ptr());
        current.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Makes this process ignore `signal`.
pub fn ignore(signal: Signal) {
    // SAFETY: ignoring installs no handler, so no code of ours can run in a signal.
    let _ = unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigIgn) };
}

/// Gives `signal` its default action.
pub fn default_action(signal: Signal) {
    // SAFETY: setting a default action installs no handler, so no code of ours can run in a signal.
    let _ = unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigDfl) };
}

/// The signal mask that this process was given.
static GIVEN_MASK: OnceLock<SigSet> = OnceLock::new();

fn given_mask() -> SigSet {
    *GIVEN_MASK.get_or_init(|| SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty()))
}

/// Saves the signal mask that this process was given, for the programs that it starts, and blocks three signals. With
/// SIGXFSZ blocked, a file that may not grow (`RLIMIT_FSIZE`) is an error like others. With SIGTTOU blocked, a terminal
/// that refuses output from the background (`stty tostop`) does not stop the candidate while COMMAND has it. With
/// SIGTTIN blocked, another process of the pipeline that wants to read from it does not either. Call this before
/// another thread runs.
pub fn keep_given_mask() {
    given_mask();
    let _ = [Signal::SIGXFSZ, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect::<SigSet>().thread_block();
}

/// Unblocks `signals` in this thread.
pub fn unblock(signals: impl IntoIterator<Item = Signal>) {
    given_mask();
    let _ = signals.into_iter().collect::<SigSet>().thread_unblock();
}

/// Writes as much as possible without waiting, whatever flags the open file has. EAGAIN if it would wait, EOPNOTSUPP if
/// this kind of file does not support the request.
pub fn write_now(file: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let file = file.as_fd().as_raw_fd();
    // SAFETY: pwritev2(2) reads one iovec and the memory that it names, which is `bytes`, and writes nothing. An offset
    // of -1 writes at the position of the file, as write(2) does.
    let written =
        unsafe { libc::syscall(libc::SYS_pwritev2, file, &raw const part, 1, -1_i64, -1_i64, libc::RWF_NOWAIT) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}
