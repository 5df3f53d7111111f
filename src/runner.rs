//! What carries an election out: the event loop (`driver`) with its requests to the store, and the host that it runs on
//! (`processes`), with its signals, its guards and its standby tasks.

pub mod driver;
pub mod guard_handle;
pub mod limits;
mod notices;
pub mod processes;
mod requests;
pub mod rotation;
pub mod signals;
pub mod standby_tasks;
mod tasks;
pub mod trace;
