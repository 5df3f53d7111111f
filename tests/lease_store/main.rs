//! The lease protocol over documents in memory: what goes wrong around a server, told once for every store.
//!
//! The clock stands still unless a story turns it, so nothing here waits, and no time depends on the machine.

mod beside;
mod ends;
mod forgotten;
mod late;
#[path = "../support/memory.rs"]
mod memory;
mod notes;
mod shared;
mod texts;
#[path = "../support/way.rs"]
mod way;
mod world;
