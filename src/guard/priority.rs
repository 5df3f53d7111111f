//! How candidate, guard and backstop stand in the scheduler's queue while there is a tree.
//!
//! The hazard: a fork bomb leaves a process that waits for its turn waiting for seconds, and a deadline passes meanwhile.
//! A low nice value does not help where the kernel shares the processors out among sessions first (sched(7), autogroups) and
//! each process of the bomb has made one. So all three have a real-time policy, which the kernel serves first, where that is
//! allowed, else the lowest nice value that is. What they fork has neither.
//!
//! A process at that priority shuts out those that it waits for, and a loop there shuts out the machine. So they rest, after
//! each look at a tree that is being killed, at least as long as the look took: [`rest_after`].

use crate::sys::{self, Scheduling};
use crate::time::BootInstant;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::fmt;
use std::time::Duration;

const LOWEST_NICE: i32 = -20;
/// The shortest pause between two looks at a tree that is being killed.
const SHORTEST_REST: Duration = Duration::from_millis(2);

/// What a process got of what it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    RealTime,
    Nice(i32),
    /// It was started with a priority above the usual one, and keeps it.
    Kept,
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RealTime => f.write_str("real-time"),
            Self::Nice(nice) => write!(f, "nice {nice}"),
            Self::Kept => f.write_str("as started"),
        }
    }
}

/// Gives the calling thread the best that is allowed, until [`lower`]. `usual` is what it had before. Answers what it
/// got, for people.
#[expect(clippy::must_use_candidate, reason = "it acts, and its answer is for people")]
pub fn raise(usual: Scheduling) -> Priority {
    // What an administrator chose is not ours to change.
    if usual.is_raised() {
        return Priority::Kept;
    }
    if Scheduling::REAL_TIME.set_policy().is_ok() {
        return Priority::RealTime;
    }
    let nice = (LOWEST_NICE..usual.nice()).find(|&nice| nice >= lowest_nice() && sys::set_nice(nice).is_ok());
    // So that children do not inherit the nice value.
    let _ = Scheduling::SHARED.set_policy();
    Priority::Nice(nice.unwrap_or(usual.nice()))
}

/// Undoes [`raise`]. An unprivileged process cannot have its children inherit its policy again, which matters to none: COMMAND
/// gets what is usual from its guard.
pub fn lower(usual: Scheduling) {
    if !usual.is_raised() {
        let _ = usual.set_policy();
        let _ = sys::set_nice(usual.nice());
    }
}

/// Keeps this process in memory, where no limit is in the way: near one, a stack that grows would end it.
pub fn stay_in_memory() {
    let unlimited = getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(soft, _)| soft == RLIM_INFINITY);
    if unlimited || nix::unistd::geteuid().is_root() {
        let _ = sys::lock_memory();
    }
}

/// How long to rest after a look that began at `begun`.
#[must_use]
pub fn rest_after(begun: BootInstant) -> Duration {
    BootInstant::now().since(begun).max(SHORTEST_REST)
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
