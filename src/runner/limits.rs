//! What a process must be able to have, looked at once at its start.
//!
//! The hazard: libraries panic, or try again for ever, where the kernel refuses a descriptor, memory or a thread, and by
//! then a lease may be held. So what every candidate needs is taken and given back before anything is asked of a store.

use nix::sys::resource::{Resource, getrlimit};
use std::hint::black_box;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

/// Enough for the event loop, a store, a guard and what runs beside a standby.
const DESCRIPTORS: usize = 32;
const MEMORY: usize = 32 << 20;
const STACK: u64 = 1 << 20;

/// Looks at everything but threads. It has to do with little stack itself.
///
/// # Errors
/// One line that says what is short, and which limit to raise.
pub fn check() -> Result<(), String> {
    match getrlimit(Resource::RLIMIT_STACK) {
        Ok((soft, _)) if soft < STACK => {
            return Err(format!("a stack of {} KiB is too small: raise the limit to 1024 (ulimit -s)", soft / 1024));
        }
        Ok(_) | Err(_) => {}
    }
    let null = io::stderr();
    let free: io::Result<Vec<OwnedFd>> = (0..DESCRIPTORS).map(|_| null.as_fd().try_clone_to_owned()).collect();
    free.map_err(|error| format!("{DESCRIPTORS} file descriptors are needed: {error}: raise the limit (ulimit -n)"))?;
    let mut memory = Vec::<u8>::new();
    let taken = memory.try_reserve_exact(MEMORY);
    // The compiler leaves out what nobody looks at.
    black_box(memory);
    taken.map_err(|_| format!("{} MiB of memory are needed: raise the limit (ulimit -v, ulimit -d)", MEMORY >> 20))
}

/// Looks whether a thread can be started: names of hosts are looked up in one.
///
/// # Errors
/// As [`check`].
pub fn check_threads() -> Result<(), String> {
    let started = thread::Builder::new().spawn(|| ());
    let ended = started.map(thread::JoinHandle::join);
    ended.map(drop).map_err(|error| format!("a thread is needed: {error}: raise the limit (ulimit -u, ulimit -v)"))
}
