//! The line of a stamp: `OWNER TERM PID BOOT_NANOSECONDS`.

use leaderrun::internals::time::BootInstant;
use std::fs::File;
use std::io::{Result, Write};

/// Appends one.
///
/// It goes out in one write, so that lines of several writers do not mix. And all are of one length, a power of two: the
/// kernel may cut the write of a process that is killed where a page of the file ends, which is never within a line so.
pub fn append(file: &mut File, owner: &str, term: &str) -> Result<()> {
    let told = format!("{owner} {term} {} {}", std::process::id(), BootInstant::now().as_nanos());
    // Owners may have letters of several bytes.
    let rest = 127_usize.checked_sub(told.len()).unwrap_or_else(|| panic!("too long: {told}"));
    let line = format!("{told}{}\n", " ".repeat(rest));
    file.write_all(line.as_bytes())
}
