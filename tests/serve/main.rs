//! `leaderctl serve`: asked as Prometheus, programs and browsers ask, and by those who mean no good.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod api;
#[cfg(feature = "redis")]
mod browser;
#[cfg(feature = "redis")]
mod page;
mod prometheus;
mod runs;
mod server;
mod stores;
mod terminal;
