//! What carries an election out: the event loop (`driver`) with its requests to the store, and the host that it runs on
//! (`processes`), with its signals, its guards and its standby tasks.

pub mod command;
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
pub(crate) mod timer;
pub mod trace;

/// The output of `future`. Without one, this never ends.
async fn or_never<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
