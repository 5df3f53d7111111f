//! Exit statuses: those of sysexits.h, timeout(1) and the shell where they have one.

use nix::errno::Errno;
use std::fmt;

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

/// Why a program was not started: the kernel's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StartError(pub i32);

impl StartError {
    #[must_use]
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
        f.write_str(Errno::from_raw(self.0).desc())
    }
}

/// A process ends with the low byte of a number.
#[must_use]
pub fn low_byte(number: i32) -> u8 {
    number.to_le_bytes()[0]
}
