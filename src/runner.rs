//! What carries an election out: the event loop, and the machine that it runs on.

pub mod driver;
pub mod guard_handle;
pub mod limits;
pub mod processes;
pub mod rotation;
pub mod signals;
pub mod standby_tasks;
mod words;
