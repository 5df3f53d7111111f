//! What the lateness of guard and backstop does to the deadlines of a lease.

use super::show;
use std::fmt;
use std::time::Duration;

/// Deadlines move earlier by this many times the worst lateness: a kill follows, which needs processors as well, and
/// the next lateness may be worse.
const FACTOR: u32 = 4;
/// Under a CPU quota, a process that once waited for two periods may wait for a hundred the next time.
const FACTOR_UNDER_A_QUOTA: u32 = 16;
/// With less than this many times the worst lateness, a kill may end after the lease.
const LEAST_FACTOR: u32 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Late {
    pub worst: Duration,
    /// How much earlier the deadlines are.
    pub extra: Duration,
    /// `extra` is not enough: two leaders are not excluded.
    pub beyond: bool,
}

impl Late {
    /// `most` is the most by which deadlines move.
    pub fn new(worst: Duration, most: Duration, under_a_quota: bool) -> Self {
        let factor = if under_a_quota { FACTOR_UNDER_A_QUOTA } else { FACTOR };
        Self { worst, extra: worst.saturating_mul(factor).min(most), beyond: worst.saturating_mul(LEAST_FACTOR) > most }
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the guard or the backstop was woken {} late, ", show(self.worst))?;
        if self.beyond {
            f.write_str("which is outside the guarantee: raise --lease or the CPU limit")
        } else {
            write!(f, "so the command is stopped {} earlier than usual", show(self.extra))
        }
    }
}
