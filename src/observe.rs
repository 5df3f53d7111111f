//! What others see of a candidate: log lines, a status line, metrics, messages to the service manager, and the query
//! socket.

#[cfg(feature = "watch")]
pub mod http;
pub mod listen;
#[cfg(feature = "cli")]
pub mod log;
pub mod metrics;
pub mod metrics_file;
pub mod query_socket;
pub mod status_line;
mod stderr;
pub mod systemd;
pub mod terminal;

use crate::election::{Action, Event, View};
use crate::lease::{Deadline, Shard, Term};

/// What follows a candidate and shows it to others. Each takes what it can use.
pub trait Observer {
    /// COMMAND is about to start under a lease of `shard`: the candidate's shard, or one of its slots.
    fn began(&mut self, shard: &Shard, slot: Option<u32>, term: Term, deadline: Deadline) {
        let _ = (shard, slot, term, deadline);
    }

    /// Its backstop and its guard run, as these processes.
    fn guarded(&mut self, backstop: i32, guard: i32) {
        let _ = (backstop, guard);
    }

    /// Sees an event before the election does.
    fn saw(&mut self, event: &Event) {
        let _ = event;
    }

    /// Sees an action before it is carried out.
    fn did(&mut self, action: &Action) {
        let _ = action;
    }

    /// Sees the state after a step of the election.
    fn show(&mut self, view: &View) {
        let _ = view;
    }
}
