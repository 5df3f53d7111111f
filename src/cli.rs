//! The two programs.
//!
//! `leaderrun` and `leaderctl` each have a file and a folder. They share the rest: `start` is their common `main`;
//! `flags`, `config` and `exclusions` find out what the user set; `mistakes` and `variables` say what is wrong with it.
//! Only `leaderrun` uses `slots` (the value of `--slots`) and `explain` (`--explain`).

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
