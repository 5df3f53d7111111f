//! A check, at the start, of the resources that a candidate needs.
//!
//! The hazard: if the kernel refuses a descriptor, memory or a thread, libraries panic or retry for ever, and by then a
//! lease may be held. So leaderrun takes and gives back everything that a candidate needs before it asks the store for
//! anything.

use crate::sys::{self, KillTimer};
use nix::sys::resource::{Resource, getrlimit};
use std::ffi::OsString;
use std::hint::black_box;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Enough for the event loop, a store, a guard and a standby task.
pub const DESCRIPTORS: usize = 32;
const MEMORY: usize = 32 << 20;
const STACK: u64 = 1 << 20;
/// The guard spec is a file in memory, to which the limit on file sizes applies. Most take a kilobyte besides the words
/// of COMMAND.
const FILE: u64 = 16 << 10;

fn limit(resource: Resource) -> u64 {
    getrlimit(resource).map_or(u64::MAX, |(soft, _)| soft)
}

/// Checks memory and descriptors. It must itself use little stack.
pub fn check() -> Result<(), String> {
    let stack = limit(Resource::RLIMIT_STACK);
    if stack < STACK {
        return Err(format!("a stack of {} KiB is too small: raise the limit to 1024 (ulimit -s)", stack / 1024));
    }
    check_descriptors(DESCRIPTORS)?;
    let mut memory = Vec::<u8>::new();
    let taken = memory.try_reserve_exact(MEMORY);
    // Otherwise the compiler may remove the allocation.
    black_box(memory);
    taken.map_err(|_| format!("{} MiB of memory are needed: raise the limit (ulimit -v, ulimit -d)", MEMORY >> 20))
}

/// Checks that `count` more files can be open.
pub fn check_descriptors(count: usize) -> Result<(), String> {
    let null = io::stderr();
    let free: io::Result<Vec<OwnedFd>> = (0..count).map(|_| null.as_fd().try_clone_to_owned()).collect();
    free.map(drop).map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE) => format!("{count} file descriptors are needed: {error}: raise the limit (ulimit -n)"),
        _ => format!("{count} file descriptors are needed, and fcntl refuses them: {error}"),
    })
}

/// Checks that a file may be as long as a guard spec with these `words`.
pub fn check_files(words: &[OsString]) -> Result<(), String> {
    // Each word has its length before it.
    let needed = FILE + words.iter().map(|word| word.len() as u64 + 3).sum::<u64>();
    let most = limit(Resource::RLIMIT_FSIZE);
    if most < needed {
        return Err(format!(
            "a largest file of {most} bytes is too small: raise the limit to {} KiB (ulimit -f, LimitFSIZE= of systemd)",
            needed.div_ceil(1 << 10)
        ));
    }
    Ok(())
}

/// Checks that the kernel lets this process start others.
pub fn check_scheduling() -> Result<(), String> {
    let refused = "the kernel lets no process with SCHED_DEADLINE start another: start leaderrun without it, and COMMAND \
                   by chrt";
    if sys::may_fork() { Ok(()) } else { Err(refused.to_owned()) }
}

/// Checks that the kernel gives a timer: it kills a guard that is frozen together with all that would kill it.
pub fn check_timers() -> Result<(), String> {
    let refused = |error| format!("a timer is needed: {error}: raise the limit of pending signals (ulimit -i)");
    KillTimer::new().map(drop).map_err(refused)
}
