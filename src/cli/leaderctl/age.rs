//! How long ago something was. Most times were written by the clock of another host. So an age is coarse, and a time
//! may lie ahead.

use crate::time::{rfc3339, wall_clock_millis};
use std::time::Duration;

/// `2026-11-22T03:36:26.737Z (3m ago)`.
pub fn dated(millis: u64) -> String {
    format!("{} ({})", rfc3339(millis), ago(millis))
}

/// `since 2026-11-22T03:36:26.737Z (3m ago)`.
pub fn since(millis: u64) -> String {
    format!("since {}", dated(millis))
}

pub fn ago(millis: u64) -> String {
    let now = wall_clock_millis();
    let age = coarse(Duration::from_millis(now.abs_diff(millis)));
    if millis > now { format!("in {age}") } else { format!("{age} ago") }
}

/// One word: whole seconds, minutes, hours or days.
pub fn coarse(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
