//! Exit statuses, those of sysexits.h, timeout(1) and the shell where they have one.

use crate::election::{CommandEnd, Outcome, StartError};
use crate::store::{Conclusion, StoreError};

/// Wrong usage: flags, durations, shard names, store URLs, timing without room.
pub const USAGE: u8 = 64;
/// The store cannot be reached.
pub const UNAVAILABLE: u8 = 69;
/// The operating system refused.
pub const OS_ERROR: u8 = 71;
/// Not acquired within `-n` or `-w`.
pub const NOT_ACQUIRED: u8 = 75;
/// The store denied permission.
pub const NO_PERMISSION: u8 = 77;
/// Wrong configuration: no such table, a wrong schema, a record that cannot be read.
pub const CONFIGURATION: u8 = 78;
/// Leadership was lost, and `--on-loss=exit`; or the term that is verified does not lead.
pub const LOST: u8 = 79;
/// COMMAND ran for longer than `--max-run`.
pub const OVERRAN: u8 = 124;
/// COMMAND cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// COMMAND was not found.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended COMMAND, or us before there was one.
pub const SIGNALLED: u8 = 128;

/// Statuses of `leaderctl` that `leaderrun` has not, for there they are COMMAND's.
pub mod ctl {
    /// A fault of `selftest` was not survived as it should be, or none could be run.
    pub const FAILED: u8 = 1;
}

/// The status for the end of an election; `conflict` is what `-E` chose.
#[must_use]
pub fn of_outcome(outcome: &Outcome, conflict: u8) -> u8 {
    match outcome {
        Outcome::Ended(CommandEnd::Exited(status)) => low_byte(*status),
        Outcome::Ended(CommandEnd::Signalled(signal)) | Outcome::Interrupted(signal) => SIGNALLED + low_byte(*signal),
        Outcome::NotStarted(error) => of_start(*error),
        Outcome::Overran => OVERRAN,
        Outcome::NotAcquired(_) => conflict,
        Outcome::Unreachable(_) => UNAVAILABLE,
        Outcome::Refused(error) => of_store(error),
        Outcome::Lost(_) => LOST,
        Outcome::Done(skipped) => skipped.status,
    }
}

#[must_use]
pub fn of_start(error: StartError) -> u8 {
    match error.0 {
        libc::ENOENT | libc::ENOTDIR => NOT_FOUND,
        libc::EACCES
        | libc::EPERM
        | libc::ENOEXEC
        | libc::EISDIR
        | libc::ELOOP
        | libc::ENAMETOOLONG
        | libc::ETXTBSY
        | libc::E2BIG
        | libc::ELIBBAD => NOT_EXECUTABLE,
        _ => OS_ERROR,
    }
}

#[must_use]
pub fn of_store(error: &StoreError) -> u8 {
    match error.conclusion {
        Conclusion::NotApplied | Conclusion::Unknown => UNAVAILABLE,
        Conclusion::Denied => NO_PERMISSION,
        Conclusion::Misconfigured => CONFIGURATION,
    }
}

fn low_byte(number: i32) -> u8 {
    number.to_le_bytes()[0]
}
