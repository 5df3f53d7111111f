//! What others see of a candidate: log lines, a status line, metrics, messages to the service manager, and the query
//! socket.

pub mod http;
pub mod log;
pub mod metrics;
pub mod query_socket;
pub mod status_line;
mod stderr;
pub mod systemd;
pub mod terminal;
