//! Exit statuses. They follow sysexits.h, timeout(1) and the shell.

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Wrong usage: options, durations, shard names, store URLs, timing without room.
pub const USAGE: u8 = 64;
/// The store cannot be reached.
pub const UNAVAILABLE: u8 = 69;
/// The operating system refused.
pub const OS_ERROR: u8 = 71;
/// Not acquired, with `-n` or within `-w`. From `leaderctl`: refused, or not done in time.
pub const NOT_ACQUIRED: u8 = 75;
/// The store denied permission.
pub const NO_PERMISSION: u8 = 77;
/// Wrong configuration: no such table, a wrong schema, a record that cannot be read.
pub const CONFIGURATION: u8 = 78;
/// The leadership was lost, with `--after-loss=exit`; or the term to verify does not lead.
pub const LOST: u8 = 79;
/// COMMAND ran for longer than `--max-run`.
pub const OVERRAN: u8 = 124;
/// COMMAND cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// COMMAND was not found.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended COMMAND, or that ended us before COMMAND started.
pub const SIGNALLED: u8 = 128;

/// Statuses of `leaderctl` alone: in `leaderrun` they would be COMMAND's.
pub mod ctl {
    /// `selftest` found a fault that failover does not handle, or could not run any; or the job that `jobs` shows has
    /// failed.
    pub const FAILED: u8 = 1;
    /// The store has never seen the shard, or no candidate knows the process (`whose`): EX_NOINPUT.
    pub const UNKNOWN_SHARD: u8 = 66;
}

/// The kernel's error number for a program that could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StartError(pub i32);

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        // An error that is not the kernel's is about a word with a NUL in it.
        Self(error.raw_os_error().unwrap_or(libc::EINVAL))
    }
}

impl StartError {
    pub fn exit_status(self) -> u8 {
        match self.0 {
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
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            // A COMMAND that was found may have an interpreter that is missing.
            libc::ENOENT => "the program or its interpreter does not exist",
            // `sys::NO_PROCESS`.
            libc::ECHILD => "the operating system refused a process",
            libc::EAGAIN => "there are too many processes",
            number => Errno::from_raw(number).desc(),
        })
    }
}

/// The status of what was ended by a signal.
pub fn of_signal(signal: i32) -> u8 {
    SIGNALLED.wrapping_add(low_byte(signal))
}

/// The low byte of a status, which is all that the kernel keeps.
pub fn low_byte(number: i32) -> u8 {
    number.to_le_bytes()[0]
}
