//! `--slots`: several leaders of one shard. Not to be taken for the slots of time that `--every` has.

use crate::lease::Shard;
use crate::slots::{self, MOST};
use crate::store::Location;

/// # Errors
/// What may be written.
pub fn number(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|slots| (1..=MOST).contains(slots));
    number.ok_or_else(|| format!("write how many may lead at once, 1 to {MOST}"))
}

/// # Errors
/// One line: what `--slots` does not go together with.
pub fn check(
    slots: u32,
    shard: &Shard,
    location: Option<&Location>,
    is_job: bool,
    tells_of_leader: bool,
) -> Result<(), String> {
    if is_job {
        return Err("--slots cannot be used with --every or --once: a job runs once, whoever leads".to_owned());
    }
    if tells_of_leader {
        // Who is named first of several holders is another one at each look, so the hook would run without end.
        return Err("--slots cannot be used with --on-leader-change: there are several leaders at once".to_owned());
    }
    slots::name(shard, slots)?;
    location.map_or(Ok(()), |location| slots::check(location, slots))
}
