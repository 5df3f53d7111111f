//! What most tests use: the programs, the place where candidates meet, and how to wait.

pub use super::fleet::{
    ANNOUNCED, Fleet, Life, PATIENCE, children_of, helpers_of, leaderctl, leaderrun, processes_naming, stamp_program,
    unconfigured, wait_until, wait_until_or,
};
pub use super::place::{Place, usual_but};
pub use super::process::Process;
pub use super::said::{Runs as _, Said, objects};
pub use super::server::{Server as _, prepare};
pub use super::world::TIMING;
pub use leaderrun::internals::time::BootInstant;
pub use nix::sys::signal::{Signal, kill};
pub use nix::unistd::Pid;
pub use serde_json::Value;
pub use std::fs;
pub use std::os::unix::fs::PermissionsExt as _;
pub use std::path::{Path, PathBuf};
pub use std::process::{Command, Stdio};
pub use std::sync::Arc;
pub use std::time::{Duration, Instant};
pub use tempfile::TempDir;
