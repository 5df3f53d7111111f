//! What others see of a candidate: log lines, a status line, numbers, a service manager's messages and a socket for questions.

pub mod http;
pub mod log;
pub mod metrics;
pub mod query_socket;
pub mod status_line;
mod stderr;
pub mod systemd;
pub mod terminal;
