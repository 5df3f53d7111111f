//! The two programs.
//!
//! `leaderrun` and `leaderctl` each have a file and a folder. Of the rest, `start` is their common `main`; `flags`,
//! `settings` and `config` find out what the user set; `mistakes` says what is wrong with it. `relinquish` and `explain`
//! belong to `leaderrun`.

pub mod completions;
pub mod config;
pub mod explain;
pub mod flags;
#[expect(non_camel_case_types, reason = "in a JSON object, the type of a member has its name")]
pub mod leaderctl;
pub mod leaderrun;
mod mistakes;
pub mod relinquish;
mod settings;
mod start;
