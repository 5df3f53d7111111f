//! The guard spec: what the candidate tells its guard at the start.
//!
//! The hazard: `pkill -f` with the shard, or with anything else of leaderrun's command line, must not match the helpers:
//! what COMMAND has forked would be left to nobody. So the spec travels through memory, and the arguments are numbers.

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
    /// The variables that name the candidate as the process that its inherited sockets are for. They name COMMAND then.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;
    use crate::guard::policy::{Effect, Input, Order, Policy};
    use crate::time::BootInstant;

    #[test]
    fn a_million_guard_specs_are_read_as_written_and_keep_their_deadlines() {
        let at = BootInstant::from_nanos;
        let deadline =
            Deadline { term_at: at(5_000_000_000), kill_at: at(9_000_000_000), backstop_at: at(9_500_000_000) };
        let ours = [deadline, Deadline::NONE].map(|deadline| {
            let spec = GuardSpec {
                command: vec![b"sleep".to_vec(), vec![0xff, b'1']],
                deadline,
                grace: Duration::from_millis(2500),
                stop_signal: 15,
                hooks: Hooks { post_stop: Some(vec![0xff]), timeout: Duration::from_secs(2), ..Hooks::default() },
                health: Some(Health {
                    command: vec![0xff],
                    interval: Duration::from_secs(10),
                    timeout: Duration::from_secs(5),
                    failures: 3,
                }),
                terminal_group: Some(7),
                max_run: Some(Duration::from_mins(1)),
                listens: [true, false],
                orphan_release: None,
                scheduling: Scheduling::SHARED,
                walks: true,
                leaf: Some("payload-7-0".to_owned()),
                namespaces: Some(Namespaces::WithUser),
                raises: true,
                measure: Some(Measure {
                    every: Duration::from_millis(1250),
                    most: Duration::from_secs(2),
                    presumed: Duration::ZERO,
                }),
            };
            serde_json::to_vec(&spec).unwrap()
        });
        let seeds: Vec<&[u8]> = ours.iter().map(Vec::as_slice).collect();
        fuzz::bent("guard spec", &seeds, |text, source| {
            let read = serde_json::from_slice::<GuardSpec>(text);
            match &read {
                Ok(spec) => {
                    let written = serde_json::to_vec(spec).unwrap();
                    let again: GuardSpec = serde_json::from_slice(&written).unwrap();
                    assert_eq!(serde_json::to_vec(&again).unwrap(), written);
                    let mut policy = Policy::new(spec.deadline, spec.grace);
                    let order = match source.below(4) {
                        0 => Order::Stop { kill_after: Some(source.duration()) },
                        1 => Order::Lose,
                        _ => Order::Continue,
                    };
                    let _ = policy.handle(at(source.number()), Input::Order(order));
                    let end = spec.deadline.kill_at.plus(spec.grace);
                    let killed = policy.handle(end, Input::Tick).contains(&Effect::KillTree);
                    assert!(killed || policy.wake_at() == BootInstant::NEVER, "{policy:?}");
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            (&read).into()
        });
    }
}
