//! What others see of a candidate: log lines, metrics, messages to the service manager, and the query socket.

#[cfg(feature = "watch")]
pub mod http;
pub mod listen;
#[cfg(feature = "cli")]
pub mod log;
pub mod metrics;
pub mod metrics_file;
pub mod query_socket;
mod stderr;
pub mod systemd;
pub mod terminal;
pub mod waiting;

use crate::election::{Action, Event, View};
use crate::lease::{Deadline, Shard, Term};

/// What follows a candidate and shows it to others.
pub trait Observer {
    /// COMMAND is about to start under a lease of `shard`: the candidate's shard, or one of its slots.
    fn began(&mut self, _shard: &Shard, _term: Term, _deadline: Deadline) {}

    /// Its backstop and its guard run, as these processes. None: the guard is gone, or is being killed.
    fn guarded(&mut self, _helpers: Option<[i32; 2]>) {}

    /// Sees an event before the election does.
    fn saw(&mut self, _event: &Event) {}

    /// Sees an action before it is carried out.
    fn did(&mut self, _action: &Action) {}

    /// Sees the state after a step of the election.
    fn show(&mut self, _view: &View) {}
}
