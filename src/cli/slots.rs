//! `--slots`: several leaders of one shard.

use crate::lease::Shard;
use crate::slots::{self, MOST};
use crate::store::Location;

/// # Errors
/// One fragment that says what to write.
pub fn number(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|slots| (1..=MOST).contains(slots));
    number.ok_or_else(|| format!("write how many may lead at once, 1 to {MOST}"))
}

/// # Errors
/// One line: why the shard or the store cannot have this many slots.
pub fn check(slots: u32, shard: &Shard, location: Option<&Location>) -> Result<(), String> {
    slots::name(shard, slots)?;
    location.map_or(Ok(()), |location| slots::check(location, slots))
}
