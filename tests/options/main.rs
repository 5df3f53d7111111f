//! Options that change who leads, when, and with what beside COMMAND, with real candidates and real stores.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

#[path = "../support/memory.rs"]
mod memory;
#[path = "../support/way.rs"]
mod way;

mod relinquish;
mod restart;
mod slots;
mod standby;
