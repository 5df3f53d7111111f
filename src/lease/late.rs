//! What the lateness of guard and backstop does to the deadlines of a lease.

use super::show;
use std::fmt;
use std::time::Duration;

/// How many times the worst lateness the deadlines move earlier: waking late is followed by a kill, which needs
/// processors as well, and the next time may be worse.
const FACTOR: u32 = 4;
/// With less than this many times the worst lateness, a kill may end after the lease.
const LEAST_FACTOR: u32 = 2;

/// The worst lateness of guard and backstop, and what follows from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Late {
    pub worst: Duration,
    /// How much earlier the deadlines are for that.
    pub extra: Duration,
    /// That is not enough: two leaders are not excluded.
    pub beyond: bool,
}

impl Late {
    /// `most` is the most by which deadlines move.
    pub fn new(worst: Duration, most: Duration) -> Self {
        Self { worst, extra: worst.saturating_mul(FACTOR).min(most), beyond: worst.saturating_mul(LEAST_FACTOR) > most }
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guard or backstop was woken {} late, ", show_millis(self.worst))?;
        if self.beyond {
            f.write_str("which is outside the guarantee: raise --lease or the CPU limit")
        } else {
            write!(f, "so the command is stopped {} earlier than usual", show_millis(self.extra))
        }
    }
}

/// Nobody needs the microseconds.
fn show_millis(duration: Duration) -> String {
    show(Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}
