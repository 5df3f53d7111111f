//! The guard spec: what the candidate tells its guard at the start.
//!
//! The hazard: `pkill -f` with the shard, or with anything else of leaderrun's command line, must not match the
//! helpers: what COMMAND has forked would be left to nobody. So the spec travels through memory, and the arguments are
//! numbers.

use super::health::Health;
use super::hooks::Hooks;
use super::lateness::Measure;
use super::orphan_release::OrphanRelease;
use crate::lease::Deadline;
use crate::sys::{self, Listens, Namespaces, Scheduling};
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::time::Duration;

/// What the candidate tells its guard at the start.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuardSpec {
    pub command: Vec<Vec<u8>>,
    pub deadline: Deadline,
    pub grace: Duration,
    pub stop_signal: i32,
    pub hooks: Hooks,
    /// Some if COMMAND's health is checked.
    pub health: Option<Health>,
    /// The candidate's process group, if COMMAND may have the terminal.
    pub terminal_group: Option<i32>,
    /// The longest that COMMAND may run.
    pub max_run: Option<Duration>,
    /// Which variables name the candidate as the process that inherited sockets are for. In COMMAND they name COMMAND.
    pub listens: Listens,
    /// The release to make once the tree is dead, if the candidate is gone.
    pub orphan_release: Option<OrphanRelease>,
    /// The scheduling of COMMAND. The guard's own priority may be higher.
    pub scheduling: Scheduling,
    /// True when `/proc` shows every process that may have to be killed.
    pub walks: bool,
    /// The name of the cgroup that COMMAND starts in, if it has one. Its directory is among the inherited descriptors.
    pub leaf: Option<String>,
    pub namespaces: Option<Namespaces>,
    /// True when it is safe to ask for a higher priority. A system call filter may kill a process that asks.
    pub raises: bool,
    /// Some if the lease expires: then guard and backstop measure how late they are woken.
    pub measure: Option<Measure>,
}

/// A file in memory with `content` in it, to be read from its beginning.
pub fn in_memory(name: &CStr, close_on_exec: bool, content: &impl Serialize) -> io::Result<File> {
    let mut file = File::from(sys::memory_file(name, close_on_exec)?);
    // In one write: serde_json writes each token by itself.
    file.write_all(&serde_json::to_vec(content).map_err(io::Error::other)?)?;
    file.rewind()?;
    Ok(file)
}
