//! What `leaderctl store init` did, in the same words for every store.

use std::fmt::Display;

/// A part of the store that did not exist.
pub fn made(what: impl Display) -> String {
    format!("made {what}")
}

/// A part of the store that existed, and was not changed.
pub fn is_there(what: impl Display) -> String {
    format!("{what} is there")
}

/// What says since when the store remembers leases. It is `new` if it did not say so before.
pub fn remembers(what: impl Display, new: bool) -> String {
    if new {
        format!("wrote down that {what} remembers from now on")
    } else {
        format!("{what} says since when it remembers")
    }
}
