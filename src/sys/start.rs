//! Forks, and starts of programs below the guard.
//!
//! The hazard: a process may be stopped for any time between the decision to start COMMAND and exec(2). So the new
//! process looks at the clock right before it becomes COMMAND, and dies with the guard from its first instruction on.
//!
//! Another hazard: exec(2) takes as long as the disk, the file server or the virus scanner behind the program. Who waits
//! for it hears no order and misses a deadline. So nobody waits: a [`Started`] tells what became of it.

use super::boot_clock;
use crate::exit;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::unistd::{Pid, getpid, getppid, tcsetpgrp};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Proof that this process has one thread, so that it may fork. It is not `Send`, and only the guard's processes keep
/// one; they start no thread.
#[derive(Clone, Copy, Debug)]
pub struct SingleThread(PhantomData<*const ()>);

impl SingleThread {
    /// Checks that this process has one thread. `/proc` must be mounted.
    pub fn prove() -> io::Result<Self> {
        // A directory has two links, and one more for each directory in it: here, for each thread.
        if std::fs::metadata("/proc/self/task")?.nlink() != 3 {
            return Err(io::Error::other("cannot fork: this process has threads"));
        }
        Ok(Self(PhantomData))
    }

    /// Forks. Returns None in the child.
    pub fn fork(self) -> io::Result<Option<Pid>> {
        // SAFETY: after fork(2) the child may do anything if its parent has one thread, which `self` proves.
        match unsafe { nix::unistd::fork() }? {
            nix::unistd::ForkResult::Parent { child } => Ok(Some(child)),
            nix::unistd::ForkResult::Child => Ok(None),
        }
    }

    /// Forks a child into new namespaces and into the cgroup with this directory, if given. Returns None in the child.
    pub fn fork_into(self, namespaces: Option<Namespaces>, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Option<Pid>> {
        /// From linux/sched.h. libc's type is too narrow for it.
        const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
        // struct clone_args of clone3(2): flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
        // set_tid, set_tid_size, cgroup.
        let mut arguments = [0_u64; 11];
        arguments[0] = namespaces.map_or(0, Namespaces::flags);
        arguments[4] = u64::from(libc::SIGCHLD.unsigned_abs());
        if let Some(cgroup) = cgroup {
            arguments[0] |= CLONE_INTO_CGROUP;
            arguments[10] = u64::from(cgroup.as_raw_fd().unsigned_abs());
        }
        // SAFETY: clone3(2) without CLONE_VM is fork(2), which is allowed (above). All pointers are null, so the kernel
        // writes nothing, and the child continues on a copy of this stack. The kernel reads the arguments, whose size
        // is right. glibc does not know of the child, and only needs to know of threads.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) };
        match i32::try_from(pid).expect("a process number or -1") {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(None),
            pid => Ok(Some(Pid::from_raw(pid))),
        }
    }
}

/// The namespaces that make up a PID namespace of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Namespaces {
    /// A PID namespace, and a mount namespace for its `/proc`.
    Privileged,
    /// The same below a user namespace, which an unprivileged process may create if the system allows it.
    WithUser,
}

impl Namespaces {
    fn flags(self) -> u64 {
        let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS;
        let flags = match self {
            Self::Privileged => flags,
            Self::WithUser => flags | libc::CLONE_NEWUSER,
        };
        u64::from(flags.unsigned_abs())
    }
}

/// How the kernel schedules a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    policy: i32,
    /// Above 0 only for real-time policies.
    pub priority: i32,
    pub nice: i32,
}

impl Scheduling {
    /// Runs before every process that is not real-time, or has a lower `priority`.
    pub const fn real_time(priority: i32) -> Self {
        Self { policy: libc::SCHED_FIFO, priority, nice: 0 }
    }

    /// Shares the processors with other processes by its nice value.
    pub const SHARED: Self = Self { policy: libc::SCHED_OTHER, priority: 0, nice: 0 };

    /// Reads the scheduling of the calling thread.
    pub fn current() -> io::Result<Self> {
        let (policy, priority, nice) = scheduling()?;
        Ok(Self { policy: policy & !libc::SCHED_RESET_ON_FORK, priority, nice })
    }

    /// True for a policy or nice value that puts a process ahead of others.
    pub fn is_raised(self) -> bool {
        self.priority > 0 || self.nice < 0
    }

    /// Gives the calling thread this policy. Its children get the usual policy, without a raised nice value.
    pub fn set_policy(self) -> io::Result<()> {
        self.give_to(THIS_THREAD)
    }

    /// Gives another process this policy, and none of it to its children.
    pub fn give_to(self, process: Pid) -> io::Result<()> {
        set_scheduler(process, self.policy | libc::SCHED_RESET_ON_FORK, self.priority)
    }

    /// Gives the calling thread and its children all of this. Async-signal-safe.
    pub fn restore(self) -> io::Result<()> {
        let policy = set_scheduler(THIS_THREAD, self.policy, self.priority);
        set_nice(self.nice).and(policy)
    }
}

/// The shortest slice that the kernel gives.
const SHORTEST_SLICE: Duration = Duration::from_micros(100);

/// Gives the calling thread its share of the processors in short slices, at the nice value that it has. Its children
/// get the usual ones, without a raised nice value.
///
/// Among threads of one nice value the kernel then serves it first when it wakes, and interrupts another for it: the
/// time of the slice is the thread's deadline (sched_runtime in sched_setattr(2), since Linux 6.12). Earlier kernels
/// ignore it.
pub fn share_in_short_slices() -> io::Result<()> {
    let (_, _, nice) = scheduling()?;
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).expect("a few bytes"),
        sched_policy: libc::SCHED_OTHER.unsigned_abs(),
        sched_flags: u64::from(libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs()),
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: u64::try_from(SHORTEST_SLICE.as_nanos()).expect("a short time"),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: sched_setattr(2) reads as many bytes as `size` says, and `attributes` has them.
    Ok(Errno::result(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) }).map(drop)?)
}

/// The policy with its flags, the priority and the nice value of the calling thread.
fn scheduling() -> io::Result<(i32, i32, i32)> {
    let mut parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_getparam(2) writes one sched_param to the pointer; the other calls take only numbers. This uses the
    // system calls because some C libraries have only stubs of the first two.
    let (policy, failed, nice) = unsafe {
        let policy = libc::syscall(libc::SYS_sched_getscheduler, 0);
        let failed = libc::syscall(libc::SYS_sched_getparam, 0, &raw mut parameter);
        // -1 is both a nice value and an error. For the calling process there is no error.
        (policy, failed, libc::getpriority(libc::PRIO_PROCESS, 0))
    };
    if policy < 0 || failed < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((i32::try_from(policy).expect("policies are small numbers"), parameter.sched_priority, nice))
}

/// False if the kernel lets this process start no other: it has a deadline (sched(7)), which no child may inherit.
pub fn may_fork() -> bool {
    scheduling().map_or(true, |(policy, _, _)| policy != libc::SCHED_DEADLINE)
}

const THIS_THREAD: Pid = Pid::from_raw(0);

fn set_scheduler(process: Pid, policy: i32, priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    let process = process.as_raw();
    // SAFETY: sched_setscheduler(2) reads one sched_param, and `parameter` is one.
    let set = unsafe { libc::syscall(libc::SYS_sched_setscheduler, process, policy, &raw const parameter) };
    Ok(Errno::result(set).map(drop)?)
}

/// Sets the nice value of the calling thread.
pub fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: setpriority(2) takes only numbers.
    Ok(Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop)?)
}

/// The error of a start when the operating system refused the process, its cgroup or its namespace, rather
/// than the program. exec(2) never returns it.
pub const NO_PROCESS: i32 = libc::ECHILD;

/// Maps an error from before exec(2). Errors that a later attempt may not see keep their number; others become
/// [`NO_PROCESS`].
pub fn refused(error: &io::Error) -> io::Error {
    let number = error.raw_os_error().filter(|number| [libc::EAGAIN, libc::ENOMEM, libc::ESRCH].contains(number));
    io::Error::from_raw_os_error(number.unwrap_or(NO_PROCESS))
}

/// A process in the program's group, which is not its child. It is there before the program runs or has the terminal.
/// Every signal is blocked in it.
#[derive(Clone, Copy, Debug)]
pub struct Companion<'a> {
    pub run: fn(OwnedFd) -> !,
    /// The only file that it has.
    pub line: BorrowedFd<'a>,
}

impl Companion<'_> {
    /// Without it, the program runs all the same.
    fn start(self, single_thread: SingleThread) {
        match single_thread.fork() {
            Ok(Some(between)) => drop(nix::sys::wait::waitpid(between, None)),
            // The parent of the second one ends at once, so its parent will be the guard. It is forked without the file
            // that tells of exec(2).
            Ok(None) => {
                if let (Ok(line), Ok(None)) = (super::leave_only(self.line), single_thread.fork()) {
                    (self.run)(line);
                }
                exit_at_once(0)
            }
            Err(_) => {}
        }
    }
}

/// Which variables of `LISTEN` name a process.
pub type Listens = [bool; 2];

/// The variables that name the process that inherited sockets are for (sd_listen_fds(3)).
const LISTEN: [&str; 2] = ["LISTEN_PID", "LISTEN_PIDFDID"];

/// What those variables must hold to name this process.
fn own_names() -> [Option<String>; 2] {
    let pidfd = super::Pinned::new(getpid()).ok().and_then(|own| nix::sys::stat::fstat(own.pidfd?).ok());
    [Some(getpid().to_string()), pidfd.map(|pidfd| pidfd.st_ino.to_string())]
}

/// Which of those variables name this process.
pub fn listens() -> Listens {
    if LISTEN.iter().all(|name| std::env::var_os(name).is_none()) {
        return [false; 2];
    }
    let own = own_names();
    std::array::from_fn(|index| own[index].is_some() && std::env::var(LISTEN[index]).ok() == own[index])
}

/// The settings that a program starts with below the guard.
#[derive(Clone, Copy, Debug)]
pub struct Birth<'a> {
    pub single_thread: SingleThread,
    pub mask: SigSet,
    pub scheduling: Scheduling,
    /// The most real-time priority that the program may take from now on without privileges (`RLIMIT_RTPRIO`). None for
    /// as much as this process may.
    pub most_real_time: Option<u64>,
    /// Some to put the program in the foreground of this terminal.
    pub terminal: Option<BorrowedFd<'a>>,
    /// Some for a process beside the program.
    pub companion: Option<Companion<'a>>,
    /// The inherited sockets are for this program.
    pub listens: Listens,
    /// The directory of the cgroup that it starts in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// The program is not started at this instant or later. The decision to start it may be older than the lease,
    /// because a process can be stopped at any time. So the new process itself looks at the clock, right before it
    /// becomes the program. Time since boot, as from [`boot_clock`].
    pub not_after: Duration,
}

/// A process that has become its program, or may still fail to.
#[derive(Debug)]
pub struct Started {
    pub pid: Pid,
    /// exec(2) closes the other end, unless it fails: then the process writes its error.
    exec: File,
}

impl Started {
    /// Whether exec(2) has succeeded: None if that is not known yet, false if the process was killed before. An error is
    /// told once. `exited` is Some once the process was reaped: whether it ended by itself. Nothing else is known of it
    /// then, so one that was killed counts as killed before.
    pub fn became_program(&self, exited: Option<bool>) -> Option<io::Result<bool>> {
        let mut number = [0; 4];
        match (&self.exec).read(&mut number) {
            Ok(0) => Some(Ok(exited.unwrap_or_else(|| self.is_another_program()))),
            Ok(_) => Some(Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))),
            Err(_) => None,
        }
    }

    /// Of a process that was not reaped: this is refused for a child that has become another program, and otherwise
    /// changes nothing.
    fn is_another_program(&self) -> bool {
        nix::unistd::setpgid(self.pid, self.pid).is_err()
    }

    /// Kills it, unless it has become its program or was reaped. Before that, it may ignore the signal that asks it to
    /// stop, and would begin afterwards. An error of exec(2) is left to be read.
    pub fn cancel(&self) {
        if !self.is_another_program() {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
    }
}

impl AsFd for Started {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.exec.as_fd()
    }
}

/// Starts a program as the leader of its own process group. It dies with this process. The error of exec(2) is ETIME if
/// it is too late.
pub fn start(command: Command, birth: Birth<'_>) -> io::Result<Started> {
    let guard = getpid();
    let (exec, result) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let (child, moves) = fork(birth)?;
    let Some(pid) = child else {
        let error = become_program(command, birth, guard, moves);
        let number = error.raw_os_error().unwrap_or(libc::EINVAL);
        let _ = nix::unistd::write(&result, &number.to_ne_bytes());
        exit_at_once(exit::NOT_FOUND)
    };
    // It does the same, but a signal to its group may be sent before it does.
    let _ = nix::unistd::setpgid(pid, pid);
    Ok(Started { pid, exec: exec.into() })
}

/// Forks, into the cgroup if possible. Returns None in the child, and whether it still has to move into the cgroup.
fn fork(birth: Birth<'_>) -> io::Result<(Option<Pid>, bool)> {
    // System call filters hide clone3(2) with various errors, so any error leads to plain fork(2).
    if let Some(child) = birth.cgroup.and_then(|_| birth.single_thread.fork_into(None, birth.cgroup).ok()) {
        return Ok((child, false));
    }
    Ok((birth.single_thread.fork()?, birth.cgroup.is_some()))
}

/// Runs in the child: becomes the program, or returns the error.
fn become_program(mut command: Command, birth: Birth<'_>, guard: Pid, moves: bool) -> io::Error {
    let prepare = || -> io::Result<()> {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The guard may have died before the line above took effect.
        if getppid() != guard {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if let Some(cgroup) = birth.cgroup.filter(|_| moves) {
            let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
            let members = nix::fcntl::openat(cgroup, c"cgroup.procs", flags, nix::sys::stat::Mode::empty())?;
            nix::unistd::write(&members, b"0")?;
        }
        nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        if let Some(companion) = birth.companion {
            companion.start(birth.single_thread);
        }
        if let Some(terminal) = birth.terminal {
            // All signals are blocked here, including SIGTTOU, so this does not stop us. If the terminal is gone by
            // now, the program runs all the same.
            let _ = tcsetpgrp(terminal, getpid());
        }
        // If the lower nice value cannot be set again, COMMAND gets the usual one.
        let _ = birth.scheduling.restore();
        if let Some(most) = birth.most_real_time {
            let (soft, hard) = getrlimit(Resource::RLIMIT_RTPRIO)?;
            setrlimit(Resource::RLIMIT_RTPRIO, soft.min(most), hard.min(most))?;
        }
        Ok(())
    };
    if let Err(error) = prepare() {
        return refused(&error);
    }
    if birth.listens.contains(&true) {
        for ((name, own), _) in LISTEN.iter().zip(own_names()).zip(birth.listens).filter(|(_, names_us)| *names_us) {
            command.env(name, own.unwrap_or_default());
        }
    }
    let mask = birth.mask;
    let not_after = birth.not_after;
    // SAFETY: this process has one thread, so code between fork and exec may do anything. It is here, and not in
    // `prepare`, because std sets its own signal mask before it.
    unsafe {
        command.pre_exec(move || {
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
            if boot_clock() >= not_after {
                return Err(io::Error::from_raw_os_error(libc::ETIME));
            }
            Ok(())
        });
    }
    command.exec()
}

/// Ends a forked process without running exit handlers of the process that it was forked from.
pub fn exit_at_once(status: u8) -> ! {
    // SAFETY: _exit(2) takes a number, and does not return.
    unsafe { libc::_exit(status.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
    use std::ffi::OsStr;

    #[test]
    fn short_slices_keep_the_nice_value_and_are_not_inherited() {
        let of_the_thread = || {
            let (policy, priority, nice) = scheduling().unwrap();
            share_in_short_slices().expect("every thread may have them");
            assert_eq!(scheduling().unwrap(), (policy | libc::SCHED_RESET_ON_FORK, priority, nice));
            let mut attributes = [0_u64; 6];
            // SAFETY: sched_getattr(2) writes at most as many bytes as it is told, and `attributes` has them.
            let failed = unsafe {
                libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size_of_val(&attributes), 0)
            };
            // The fourth number is sched_runtime. Kernels before 6.12 know no slices.
            assert!(failed == 0 && [0, 100_000].contains(&attributes[3]), "{failed} {attributes:?}");
        };
        std::thread::spawn(of_the_thread).join().unwrap();
    }

    fn start(program: &str, arguments: &[&OsStr], cgroup: Option<BorrowedFd<'_>>, not_after: Duration) -> Started {
        let mut command = Command::new(program);
        command.args(arguments);
        let birth = Birth {
            single_thread: SingleThread(PhantomData),
            mask: SigSet::empty(),
            scheduling: Scheduling::current().unwrap(),
            most_real_time: None,
            terminal: None,
            companion: None,
            listens: [false; 2],
            cgroup,
            not_after,
        };
        super::start(command, birth).unwrap()
    }

    #[test]
    fn a_command_is_not_started_once_it_is_too_late() {
        let scratch = tempfile::TempDir::new().unwrap();
        let file = scratch.path().join("started");
        for (not_after, status, error) in
            [(boot_clock(), exit::NOT_FOUND, Some(Some(libc::ETIME))), (Duration::MAX, 0, None)]
        {
            let started = start("touch", &[file.as_os_str()], None, not_after);
            assert_eq!(waitpid(started.pid, None), Ok(WaitStatus::Exited(started.pid, status.into())));
            let became_program = started.became_program(Some(true)).expect("it has ended");
            assert_eq!(became_program.err().map(|error| error.raw_os_error()), error);
            assert_eq!(file.exists(), error.is_none());
        }
    }

    #[test]
    fn an_error_of_exec_is_told_after_a_cancel() {
        let started = start("/nothing/here", &[], None, Duration::MAX);
        let ends = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(started.pid), ends).unwrap();
        started.cancel();
        let became_program = started.became_program(None).expect("it has ended");
        assert_eq!(became_program.map_err(|error| error.raw_os_error()), Err(Some(libc::ENOENT)));
        waitpid(started.pid, None).unwrap();
    }

    #[test]
    fn a_signal_reaches_a_program_that_has_not_got_further_than_its_first_step() {
        let scratch = tempfile::TempDir::new().unwrap();
        // It waits here until somebody reads.
        let members = scratch.path().join("cgroup.procs");
        nix::unistd::mkfifo(&members, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let directory = File::open(scratch.path()).unwrap();
        let pid = start("sleep", &[OsStr::new("1000")], Some(directory.as_fd()), Duration::MAX).pid;
        assert_eq!(nix::sys::signal::killpg(pid, Signal::SIGTERM), Ok(()));
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Signaled(pid, Signal::SIGTERM, false)));
    }
}
