//! The scheduling priority of candidate, guard and backstop while there is a tree.
//!
//! The hazard: during a fork bomb a process may wait seconds for a processor, and miss a deadline. A low nice value
//! does not help if the kernel first divides the processors among sessions (sched(7), autogroups) and each process of
//! the bomb has made a session. So guard and backstop ask for a real-time policy, which the kernel serves first, and
//! for a priority above that of every COMMAND without CAP_SYS_NICE. Below a real-time COMMAND they would be worse off
//! than without the policy, because the kernel reserves time only for processes that do not have it. If the policy is
//! not allowed, they take the lowest nice value that is, and short slices: then the kernel lets them run soon after
//! they wake, however many processes of the same nice value compute. Their children get none of it. The candidate takes
//! the priority below theirs until it kills a tree itself: beside a bomb, or a real-time COMMAND, it hears SIGTERM and
//! renews, and it is never in the way of the helpers.
//!
//! A process at that priority can starve the processes that it waits for, and a loop there can starve the machine. So
//! after each pass over a tree that is being killed they rest as long as the pass took, within limits: [`rest_after`].

use crate::sys::{self, Scheduling};
use crate::time::BootInstant;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::fmt;
use std::time::Duration;

/// The highest real-time priority but one: the kernel's own watchdogs have the highest.
const HIGHEST: i32 = 98;
const LOWEST_NICE: i32 = -20;
/// The shortest pause between two passes over a tree that is being killed.
pub const SHORTEST_REST: Duration = Duration::from_millis(2);

/// A pass that took longer may have been interrupted: this process was frozen, or the machine was suspended. And what
/// is still to be killed must not live on for as long.
const LONGEST_REST: Duration = Duration::from_millis(250);

/// The priority that a process was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    RealTime(i32),
    Nice(i32),
    /// It was started with a raised priority, and keeps it.
    Kept,
}

impl Priority {
    /// The most that COMMAND may take with `RLIMIT_RTPRIO`, so that it outranks neither its helpers nor the candidate,
    /// which is next to them. None if they have no real-time priority of their own.
    pub fn most_of_command(self) -> Option<u64> {
        match self {
            Self::RealTime(priority) => Some(u64::try_from(priority - 2).unwrap_or(0)),
            Self::Nice(_) | Self::Kept => None,
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RealTime(priority) => write!(f, "real-time {priority}"),
            Self::Nice(nice) => write!(f, "nice {nice}"),
            Self::Kept => f.write_str("as started"),
        }
    }
}

/// Gives the calling thread the best priority that is allowed, until [`lower`]. `usual` is what it had before. Returns
/// what it got.
pub fn raise(usual: Scheduling) -> Priority {
    raise_to_real_time(usual).map_or_else(|| raise_nice(usual), Priority::RealTime)
}

/// As [`raise`], for the candidate: above every ordinary process, and below the helpers.
pub fn raise_below_helpers(usual: Scheduling) {
    match raise(usual) {
        Priority::RealTime(helpers) if helpers > 1 => {
            let _ = Scheduling::real_time(helpers - 1).set_policy();
        }
        Priority::RealTime(_) => {
            lower(usual);
            raise_nice(usual);
        }
        Priority::Nice(_) | Priority::Kept => {}
    }
}

/// Whether [`raise`] would get a real-time priority.
pub fn may_be_real_time(usual: Scheduling) -> bool {
    let may = raise_to_real_time(usual).is_some();
    if may {
        lower(usual);
    }
    may
}

fn raise_to_real_time(usual: Scheduling) -> Option<i32> {
    // The kernel would kill this process if it worked at a real-time priority for too long without a rest. To kill a
    // tree of thousands takes longer than some limits, and the helpers, killed one after the other, would leave the rest.
    if getrlimit(Resource::RLIMIT_RTTIME).is_ok_and(|(soft, _)| soft != RLIM_INFINITY) {
        return None;
    }
    let limit = getrlimit(Resource::RLIMIT_RTPRIO).map_or(0, |(soft, _)| soft);
    let limit = i32::try_from(limit).unwrap_or(i32::MAX).min(HIGHEST);
    // A process with CAP_SYS_NICE is not bound by the limit.
    let mut tried = [HIGHEST, limit].into_iter();
    tried.find(|&priority| priority > usual.priority && Scheduling::real_time(priority).set_policy().is_ok())
}

/// As [`raise`], without a real-time policy.
fn raise_nice(usual: Scheduling) -> Priority {
    // An administrator chose this priority.
    if usual.is_raised() {
        return Priority::Kept;
    }
    let nice = (LOWEST_NICE..usual.nice).find(|&nice| sys::set_nice(nice).is_ok());
    // Both also set a flag that keeps children from inheriting the nice value.
    if sys::share_in_short_slices().is_err() {
        let _ = Scheduling::SHARED.set_policy();
    }
    Priority::Nice(nice.unwrap_or(usual.nice))
}

/// Undoes [`raise`]. An unprivileged process cannot clear the flag that resets its children's policy. That does no
/// harm: the guard sets COMMAND's scheduling itself.
pub fn lower(usual: Scheduling) {
    let _ = usual.set_policy();
    let _ = sys::set_nice(usual.nice);
}

/// Keeps this process in memory, unless locked memory is limited: near such a limit, a growing stack would end the
/// process.
pub fn stay_in_memory() {
    let unlimited = getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(soft, _)| soft == RLIM_INFINITY);
    if unlimited || nix::unistd::geteuid().is_root() {
        // What is in memory, and what is used later of the present mappings. Children do not inherit this.
        let _ = mlockall(MlockAllFlags::from_bits_retain(libc::MCL_CURRENT | libc::MCL_ONFAULT));
    }
}

/// How long to rest after a pass that began at `begun`.
pub fn rest_after(begun: BootInstant) -> Duration {
    BootInstant::now().since(begun).clamp(SHORTEST_REST, LONGEST_REST)
}
