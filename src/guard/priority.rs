//! How candidate, guard and backstop stand in the scheduler's queue and in memory while there is a tree.
//!
//! The hazard: a fork bomb leaves a process that waits for its turn waiting for seconds, and a deadline passes meanwhile. So
//! all three wait with a real-time policy, which the kernel serves first, where that is allowed, else with the lowest nice
//! value that is. They give the real-time policy up as soon as they are awake: work at that priority shuts out the dying
//! processes that it waits for, and a loop there shuts out the machine. What they fork has neither.

use crate::sys::{self, Scheduling};
use nix::sys::resource::{Resource, getrlimit};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process waits with a real-time policy.
static WAITS_FIRST: AtomicBool = AtomicBool::new(false);

const LOWEST_NICE: i32 = -20;

/// What a process got of what it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// It waits with a real-time policy, and works at this nice value.
    RealTime(i32),
    Nice(i32),
    /// It was started with a priority above the usual one, and keeps it.
    Kept,
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RealTime(_) => f.write_str("real-time"),
            Self::Nice(nice) => write!(f, "nice {nice}"),
            Self::Kept => f.write_str("as started"),
        }
    }
}

/// Gives the calling thread the best that is allowed, until [`lower`]. `usual` is what it had before.
pub fn raise(usual: Scheduling) -> Priority {
    // What an administrator chose is not ours to change.
    if usual.is_raised() {
        return Priority::Kept;
    }
    let nice = (LOWEST_NICE..usual.nice()).find(|&nice| nice >= lowest_nice() && sys::set_nice(nice).is_ok());
    let nice = nice.unwrap_or(usual.nice());
    let real_time = Scheduling::REAL_TIME.set_policy().is_ok();
    WAITS_FIRST.store(real_time, Ordering::Relaxed);
    // Also where it changes nothing but that children do not inherit the nice value.
    let _ = Scheduling::SHARED.set_policy();
    if real_time { Priority::RealTime(nice) } else { Priority::Nice(nice) }
}

/// Undoes [`raise`].
pub fn lower(usual: Scheduling) {
    WAITS_FIRST.store(false, Ordering::Relaxed);
    let _ = usual.restore();
}

/// Called right before the thread that raised its priority waits.
pub fn before_wait() {
    if WAITS_FIRST.load(Ordering::Relaxed) {
        let _ = Scheduling::REAL_TIME.set_policy();
    }
}

/// Called as soon as it is awake.
pub fn after_wait() {
    if WAITS_FIRST.load(Ordering::Relaxed) {
        let _ = Scheduling::SHARED.set_policy();
    }
}

/// The lowest nice value that `RLIMIT_NICE` lets an unprivileged process have: it counts from 20 down (getrlimit(2)).
/// A privileged one may have all.
fn lowest_nice() -> i32 {
    if nix::unistd::geteuid().is_root() {
        return LOWEST_NICE;
    }
    let limit = getrlimit(Resource::RLIMIT_NICE).map_or(0, |(soft, _)| soft.min(40));
    20 - i32::try_from(limit).expect("at most 40")
}
