//! The ends that a store writes, and the time that it judges them by, where the server does not do that itself: from
//! the bounds of the server's clock (`server_clock`), and from our own wall clock until an answer shows it.

use super::server_clock::{Clock, FIRST_GUESS};
use crate::time::{BootInstant, millis, wall_clock_millis};
use std::time::Duration;

/// The error of our wall clock from which somebody is told: AWS will soon refuse its signatures.
const MOST_WALL_CLOCK_ERROR: Duration = Duration::from_mins(1);

pub trait ServerTime {
    /// The server's clock, as far as the answers up to now show it.
    fn clock(&self) -> Clock {
        Clock::default()
    }

    fn wall_clock_millis(&self) -> u64 {
        wall_clock_millis()
    }

    /// Not before the end of the lease as the server's clock will show it.
    fn expiry(&self, sent: BootInstant, lease: Duration) -> u64 {
        let guess = || self.wall_clock_millis().saturating_add(millis(FIRST_GUESS));
        let now = self.clock().bounds(sent).map_or_else(guess, |bounds| bounds.upper);
        now.saturating_add(millis(lease))
    }

    /// The upper bound of the server's clock at an instant; our wall clock's guess if its answers have no date.
    fn server_millis(&self, at: BootInstant) -> u64 {
        self.clock().bounds(at).map_or_else(
            || self.wall_clock_millis().saturating_add(millis(at.since(BootInstant::now()))),
            |bounds| bounds.upper,
        )
    }

    /// The lower bound of the server's clock now; our wall clock's guess if its answers have no date.
    fn least_server_millis(&self) -> u64 {
        let bounds = self.clock().bounds(BootInstant::now());
        bounds.map_or_else(|| self.wall_clock_millis(), |bounds| bounds.lower)
    }

    /// What is wrong if our wall clock is far from the server's.
    fn wrong_wall_clock(&self) -> Option<String> {
        let bounds = self.clock().bounds(BootInstant::now())?;
        let server = bounds.lower / 2 + bounds.upper / 2;
        let wall = self.wall_clock_millis();
        let error = Duration::from_millis(wall.abs_diff(server));
        let direction = if wall > server { "ahead of" } else { "behind" };
        (error >= MOST_WALL_CLOCK_ERROR).then(|| {
            format!(
                "this machine's clock is {} s {direction} the server's: set it, because signatures that are minutes off \
                 are refused",
                error.as_secs()
            )
        })
    }
}

/// Whole seconds since 1970, as a `Date` header says.
#[cfg(any(feature = "aws", feature = "kubernetes"))]
pub fn date(header: &str) -> Option<u64> {
    let date = httpdate::parse_http_date(header).ok()?;
    Some(date.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs())
}

/// A server whose answers have no date.
#[cfg(test)]
pub struct Undated;

#[cfg(test)]
impl Undated {
    pub const WALL_MILLIS: u64 = 1_800_000_000_400;
}

#[cfg(test)]
impl ServerTime for Undated {
    fn wall_clock_millis(&self) -> u64 {
        Self::WALL_MILLIS
    }
}
