//! The kill method: how this host can kill a whole tree.
//!
//! The hazard: a method that does not work shows itself only when the lease ends. The `/proc` of another PID namespace
//! has numbers of other processes in it, and one with `hidepid` hides descendants. So leaderrun tries each method at
//! its start, before it asks for a lease, and refuses to run with a method that was asked for and does not work.

use super::cgroup::{Cgroup, read_text};
use super::tree::{self, Tree};
use super::walk::Walk;
use super::{init, priority};
use crate::mounts::{mounts, read_table};
use crate::sys::{self, Namespaces, Scheduling, SingleThread};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, getgroups, getpid};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;

/// The value of `--contain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Contain {
    /// The walk over `/proc`, and a cgroup if one was delegated to us.
    #[default]
    Auto,
    /// The walk over `/proc` alone.
    Walk,
    /// A cgroup. Without one, leaderrun refuses to start.
    Cgroup,
    /// A PID namespace. Without one, leaderrun refuses to start.
    Pidns,
}

/// The methods that work here.
#[derive(Debug)]
pub struct Containment {
    pub means: Means,
    /// Or why there is none, unless `--contain walk` ruled it out.
    cgroup: Result<Cgroup, Option<String>>,
    /// `--contain cgroup` was given.
    wants_cgroup: bool,
}

/// What works on this host, as guard and backstop have to know it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Means {
    /// `/proc` shows every process that may have to be killed.
    pub walks: bool,
    pub namespaces: Option<Namespaces>,
    /// What this process has and COMMAND gets. The guard's own priority may be higher.
    pub scheduling: Scheduling,
    /// It is safe to ask for a higher priority. A system call filter may kill a process that asks.
    pub raises: bool,
}

impl Containment {
    /// Finds the methods that `contain` asks for. Changes nothing yet. This process must have one thread.
    pub fn find(contain: Contain) -> Result<Self, String> {
        let table = read_table();
        let walks = walks(table.as_deref());
        let cgroup = match contain {
            Contain::Walk => Err(None),
            Contain::Auto | Contain::Cgroup | Contain::Pidns => {
                table.and_then(|table| Cgroup::ours(&table)).map_err(Some)
            }
        };
        if let (Contain::Cgroup, Err(Some(why))) = (contain, &cgroup) {
            return Err(format!("--contain cgroup does not work here: {why}"));
        }
        let namespaces = if contain == Contain::Pidns { Some(find_namespaces()?) } else { None };
        match walks {
            Err(why) if cgroup.is_err() && namespaces.is_none() => Err(format!(
                "cannot see the processes to kill: {why}; mount a /proc of this PID namespace without hidepid, or use \
                 --contain pidns or a delegated cgroup"
            )),
            walks => Ok(Self {
                means: Means {
                    walks: walks.is_ok(),
                    namespaces,
                    scheduling: Scheduling::current().unwrap_or(Scheduling::SHARED),
                    raises: raises(),
                },
                cgroup,
                wants_cgroup: contain == Contain::Cgroup,
            }),
        }
    }

    /// Moves this process out of the way of the cgroups that it will make.
    pub fn make_room(&mut self) -> Result<(), String> {
        let Ok(cgroup) = &self.cgroup else { return Ok(()) };
        let Err(error) = cgroup.make_room() else {
            if self.has_weight() && !priority::may_be_real_time(self.means.scheduling) {
                cgroup.weigh();
            }
            return Ok(());
        };
        let why = format!("{}: {error}", cgroup.path().display());
        if !self.may_do_without_a_cgroup() {
            return Err(format!("--contain cgroup does not work here: {why}"));
        }
        self.cgroup = Err(Some(why));
        Ok(())
    }

    fn may_do_without_a_cgroup(&self) -> bool {
        !self.wants_cgroup && (self.means.walks || self.means.namespaces.is_some())
    }

    /// Whether the helpers get the largest share of the processors where they have no real-time priority.
    pub fn has_weight(&self) -> bool {
        self.means.raises && self.cgroup.as_ref().is_ok_and(Cgroup::has_weight)
    }

    /// The kill method, as `--contain` spells it.
    pub fn method(&self) -> &'static str {
        let method = match (&self.means.namespaces, &self.cgroup) {
            (Some(_), _) => Contain::Pidns,
            (None, Ok(_)) => Contain::Cgroup,
            (None, Err(_)) => Contain::Walk,
        };
        method.into_str()
    }

    /// True when something can kill processes outside COMMAND's PID namespace: its hooks.
    pub fn kills_hooks(&self) -> bool {
        self.means.walks || self.cgroup.is_ok()
    }

    /// Makes a tree for a COMMAND that will be started, with a cgroup of its own if possible.
    pub fn new_tree(&self) -> io::Result<Tree> {
        let mut walk = self.means.walks.then(Walk::open).transpose()?;
        let earlier_children = tree::earlier_children(walk.as_mut());
        let leaf = match self.cgroup.as_ref().ok().map(Cgroup::new_leaf).transpose() {
            Err(error) if self.may_do_without_a_cgroup() => {
                tracing::warn!("cannot make a cgroup for the command: {error}; continuing without it");
                None
            }
            leaf => leaf?,
        };
        Ok(Tree::new(earlier_children, walk, leaf))
    }
}

impl fmt::Display for Containment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Means { walks, namespaces, .. } = self.means;
        match namespaces {
            Some(Namespaces::Privileged) => f.write_str("a PID namespace")?,
            Some(Namespaces::WithUser) => f.write_str("a PID namespace below a user namespace")?,
            None => {}
        }
        let after = |first: bool| if first { "" } else { ", then " };
        if let Ok(cgroup) = &self.cgroup {
            write!(f, "{}a cgroup below {}", after(namespaces.is_none()), cgroup.path().display())?;
        }
        if walks {
            write!(f, "{}the walk over /proc", after(namespaces.is_none() && self.cgroup.is_err()))?;
        }
        if let Err(Some(why)) = &self.cgroup {
            write!(f, " (no cgroup: {why})")?;
        }
        Ok(())
    }
}

/// Checks that `/proc` shows every process that may have to be killed.
fn walks(table: Result<&str, &String>) -> Result<(), String> {
    let own =
        fs::read_link("/proc/self").map_err(|error| format!("/proc is not mounted, or cannot be used: {error}"))?;
    if own.as_os_str() != OsStr::new(&getpid().to_string()) {
        return Err("/proc belongs to another PID namespace".to_owned());
    }
    let Some((option, exempt)) = hides(table?) else { return Ok(()) };
    if is_privileged(&read_text("/proc/self/status")?) || exempt.is_some_and(is_member) {
        return Ok(());
    }
    Err(format!("/proc is mounted with {option}, and this process has no CAP_SYS_PTRACE"))
}

/// The mount option (proc(5)) by which `/proc` hides processes, and the group that sees them all the same. The last
/// mount on `/proc` hides the earlier ones.
fn hides(table: &str) -> Option<(&str, Option<u32>)> {
    let mount = mounts(table).rfind(|mount| mount.point == "/proc")?;
    let options = || mount.options.into_iter().flat_map(|all| all.split(','));
    let exempt = options().find_map(|option| option.strip_prefix("gid=")?.parse().ok());
    match options().find(|option| option.starts_with("hidepid="))? {
        "hidepid=0" | "hidepid=off" => None,
        // These exempt no group.
        option @ ("hidepid=4" | "hidepid=ptraceable") => Some((option, None)),
        option => Some((option, exempt)),
    }
}

fn is_member(group: u32) -> bool {
    let group = Gid::from_raw(group);
    nix::unistd::getegid() == group || getgroups().is_ok_and(|groups| groups.contains(&group))
}

/// True when `/proc/self/status` lists `CAP_SYS_PTRACE` among the effective capabilities.
fn is_privileged(status: &str) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let set = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << CAP_SYS_PTRACE) != 0)
}

/// True when a process survives asking for a higher priority. A system call filter may kill it, so if there is a
/// filter, a child tries it.
fn raises() -> bool {
    if !sys::has_filter() {
        return true;
    }
    let forked = SingleThread::prove().and_then(SingleThread::fork);
    match forked {
        Ok(None) => {
            priority::raise(Scheduling::SHARED);
            priority::stay_in_memory();
            sys::exit_at_once(0);
        }
        Ok(Some(child)) => matches!(waitpid(child, None), Ok(WaitStatus::Exited(..))),
        Err(_) => false,
    }
}

fn find_namespaces() -> Result<Namespaces, String> {
    let works =
        |namespaces| SingleThread::prove().and_then(|one| init::try_namespaces(one, namespaces)).map(|()| namespaces);
    works(Namespaces::Privileged).or_else(|_| works(Namespaces::WithUser)).map_err(|error| {
        format!(
            "--contain pidns does not work here: {error} (this needs root, or permission to create user namespaces)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_of_proc_decides_whether_it_hides_processes() {
        let line = |options: &str| format!("24 30 0:22 / /proc rw,nosuid shared:14 - proc proc {options}\n");
        assert_eq!(hides(&line("rw")), None);
        assert_eq!(hides(&line("rw,hidepid=off")), None);
        let mounts = format!("{}{}", line("rw"), line("rw,gid=44,hidepid=invisible"));
        assert_eq!(hides(&mounts), Some(("hidepid=invisible", Some(44))));
        assert_eq!(hides(&format!("{mounts}{}", line("rw"))), None);
        let mounts = line("rw,gid=44,hidepid=ptraceable");
        assert_eq!(hides(&mounts), Some(("hidepid=ptraceable", None)));
        // An older kernel has it among the options of the mount.
        let older = "24 30 0:22 / /proc rw,hidepid=2 shared:14 - proc proc rw\n";
        assert_eq!(hides(older), Some(("hidepid=2", None)));
    }

    #[test]
    fn the_capability_to_see_all_processes_is_read_from_the_effective_set() {
        assert!(is_privileged("CapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n"));
        assert!(!is_privileged("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"));
    }
}
