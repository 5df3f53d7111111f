//! The two programs.

pub mod completions;
pub mod config;
mod exclusions;
pub mod explain;
pub mod flags;
pub mod leaderctl;
pub mod leaderrun;
mod mistakes;
pub mod slots;
mod start;
mod variables;
mod version;
