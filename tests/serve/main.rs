//! `leaderctl serve`: asked as Prometheus, programs and browsers ask, and by those who mean no good.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod api;
mod page;
mod prometheus;
mod runs;
mod server;
mod stores;
mod terminal;
