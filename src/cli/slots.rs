//! Checks the value of `--slots`.

use crate::lease::Shard;
use crate::slots::{self, MOST};
use crate::store::Location;

/// Parses the value.
pub fn number(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|slots| (1..=MOST).contains(slots));
    number.ok_or_else(|| format!("write how many may lead at once, 1 to {MOST}"))
}

/// Checks that the shard and the store can have this many slots.
pub fn check(slots: u32, shard: &Shard, location: Option<&Location>) -> Result<(), String> {
    slots::name(shard, slots)?;
    location.map_or(Ok(()), |location| slots::check(location, slots))
}
