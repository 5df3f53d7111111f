//! What carries an election out: the event loop (`driver`), and the host that it runs on (`processes`), with its
//! signals, its guards and its standby tasks.

pub mod driver;
pub mod guard_handle;
pub mod limits;
pub mod processes;
pub mod rotation;
pub mod signals;
pub mod standby_tasks;
mod trace;
