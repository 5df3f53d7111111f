//! The guard spec: what the candidate tells its guard at the start.
//!
//! The hazard: `pkill -f` with the shard, or with anything else of leaderrun's command line, must not match the
//! helpers: what COMMAND has forked would be left to nobody. So the spec travels through memory, and the arguments are
//! numbers.

use super::contain::Means;
use super::health::Health;
use super::hooks::Hooks;
use super::lateness::Measure;
use super::orphan_release::OrphanRelease;
use crate::lease::Deadline;
use crate::sys::{self, Listens};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::time::Duration;

/// What the candidate tells its guard at the start.
#[derive(Debug, Serialize, Deserialize)]
pub struct GuardSpec {
    pub plan: Plan,
    pub means: Means,
    pub deadline: Deadline,
    /// Which variables name the candidate as the process that inherited sockets are for. In COMMAND they name COMMAND.
    pub listens: Listens,
    /// The release to make once the tree is dead, if the candidate is gone.
    pub orphan_release: Option<OrphanRelease>,
    /// The name of the cgroup that COMMAND starts in, if it has one. Its directory is among the inherited descriptors.
    pub leaf: Option<String>,
}

impl GuardSpec {
    /// A file in memory that has all of it, to be read from its beginning.
    pub fn in_memory(&self) -> io::Result<File> {
        let mut file = sys::memory_file(c"leaderrun guard spec")?;
        file.write_all(&postcard::to_extend(self, Vec::new()).map_err(io::Error::other)?)?;
        file.rewind()?;
        Ok(file)
    }

    pub fn read(mut file: File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        postcard::from_bytes(&bytes).map_err(io::Error::other)
    }
}

/// COMMAND, and how its guard starts, watches and stops it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// COMMAND and its arguments.
    pub words: Vec<Vec<u8>>,
    pub stop_signal: i32,
    pub grace: Duration,
    pub hooks: Hooks,
    /// Some if COMMAND's health is checked.
    pub health: Option<Health>,
    /// Some if the lease expires: then guard and backstop measure how late they are woken.
    pub measure: Option<Measure>,
    /// The candidate's process group, if COMMAND may have the terminal.
    pub terminal_group: Option<i32>,
    /// The longest that COMMAND may run.
    pub max_run: Option<Duration>,
}
