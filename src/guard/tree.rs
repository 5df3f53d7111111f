//! The tree: every process that descends from this one, and every member of its cgroup.
//!
//! The hazards:
//!
//! - *Between reading a process's number in `/proc` and signalling it, the process may end* and its number become a
//!   stranger's. So each is pinned by a pidfd first, and then shown to be the one that was seen, by its start time.
//! - *A process lives while any of its threads does*, and may look like a zombie meanwhile: its main thread has ended. So
//!   zombies get the signals as well.
//! - *A tree that is killed process by process can fork as fast as it dies.* Where there is a cgroup or a PID namespace of
//!   our own, the kernel kills all of it in one step first. What that misses is then killed one by one: a zombie whose
//!   threads live on, which `cgroup.kill` passes over, and a process that has left the cgroup.
//! - *Neither proof of the end is enough alone.* "No child left" says nothing of a process that entered another PID
//!   namespace and was adopted by its init; an empty cgroup says nothing of a process that left it. So both are asked.
//! - *Memory may be short when the kill is due.* So it allocates nothing ([`walk`](super::walk)).

use super::cgroup::Leaf;
use super::priority;
use super::walk::{Process, Walk};
use crate::sys::{ChildState, wait_any};
use crate::time::BootInstant;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::{Pid, getpgid};
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The kernel has this long to kill a cgroup or a namespace by itself, before its processes are looked for one by one.
const ONE_STEP: Duration = Duration::from_millis(20);

/// This process's descendants, but for the children that it had before, and the members of the leaf.
#[derive(Debug)]
pub struct Tree {
    strangers: HashSet<Pid>,
    /// None where `/proc` does not show what there is to kill: another PID namespace's, say.
    walk: Option<Walk>,
    /// The cgroup that COMMAND was born in, where it has one.
    leaf: Option<Leaf>,
    /// The init of a PID namespace, where the tree has one: its end is the end of all in it. Some while it has not been
    /// reaped.
    init: Option<Pid>,
    childless: bool,
    /// When the first kill was, once there was one.
    killed_at: Option<BootInstant>,
}

impl Tree {
    /// Of a process that has no children yet, or else only `strangers`: children from before an exec, or because it is
    /// PID 1. They are not ours to kill.
    #[must_use]
    pub fn new(strangers: HashSet<Pid>, walk: Option<Walk>, leaf: Option<Leaf>) -> Self {
        let childless = strangers.is_empty();
        Self { strangers, walk, leaf, init: None, childless, killed_at: None }
    }

    #[must_use]
    pub fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_ref()
    }

    /// Becomes readable with priority when the last member of the cgroup is gone. It is of interest when no child is left: only
    /// then [`Tree::is_empty`] reads it, and until that was done again it stays readable.
    #[must_use]
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.leaf.as_ref().filter(|_| self.childless).map(Leaf::events)
    }

    /// Reaps one child that has news. None when none has; then [`Tree::is_empty`] is up to date.
    pub fn reap(&mut self, flags: WaitPidFlag) -> Option<(Pid, ChildState)> {
        match wait_any(flags) {
            Ok(Some((pid, state))) => {
                if state.is_end() {
                    self.forget(pid);
                }
                self.childless = false;
                Some((pid, state))
            }
            Ok(None) => {
                self.childless = self.only_strangers_are_left();
                None
            }
            Err(Errno::ECHILD) => {
                self.childless = true;
                None
            }
            Err(error) => panic!("waitid: {error}"),
        }
    }

    /// A child was started since it was reaped last.
    pub fn grew(&mut self) {
        self.childless = false;
        self.killed_at = None;
    }

    /// As [`Tree::grew`], and that child is the init of a PID namespace.
    pub fn grew_by_init(&mut self, init: Pid) {
        self.grew();
        self.init = Some(init);
    }

    /// This child was reaped: its number may become another process's.
    pub fn forget(&mut self, pid: Pid) {
        self.strangers.remove(&pid);
        self.init.take_if(|init| *init == pid);
    }

    /// Looks whether a process of the tree is left, for a caller that reaps elsewhere. An ended child that was not reaped is
    /// left.
    pub fn look(&mut self) -> bool {
        self.childless = match wait_any(WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Err(Errno::ECHILD) => true,
            Ok(_) => self.only_strangers_are_left(),
            Err(error) => panic!("waitid: {error}"),
        };
        self.is_empty()
    }

    /// True when no process of the tree is left: the kernel says that there is no child, and every orphan would be one; and
    /// that the cgroup is empty, where there is one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.childless && self.leaf.as_ref().is_none_or(Leaf::is_empty)
    }

    /// The strangers are there until they are reaped: a look at `/proc` that misses them shows nothing.
    fn only_strangers_are_left(&mut self) -> bool {
        !self.strangers.is_empty() && self.walk.as_mut().is_some_and(|walk| walk.children() == self.strangers)
    }

    /// SIGKILL to every process of the tree that can be found now. What is forked meanwhile is there at the next look, for
    /// which this answers the time.
    pub fn kill(&mut self) -> BootInstant {
        let begun = BootInstant::now();
        self.kill_what_is_found(begun);
        BootInstant::now().plus(priority::rest_after(begun))
    }

    fn kill_what_is_found(&mut self, now: BootInstant) {
        let first = *self.killed_at.get_or_insert(now);
        if let Some(init) = self.init {
            let _ = kill(init, Signal::SIGKILL);
        }
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
        let in_one_step = self.init.is_some() || self.leaf.is_some();
        if in_one_step && self.walk.is_some() && now < first.plus(ONE_STEP) {
            return;
        }
        if let Some(leaf) = &self.leaf {
            leaf.signal_each(Signal::SIGKILL, |_| true);
        }
        if let Some(walk) = &mut self.walk {
            walk.below(Pid::this(), &self.strangers, |process| process.signal(Signal::SIGKILL));
        }
    }

    /// `signal` once to each process of the tree, but not to those in the process group `except`, nor to those in a PID
    /// namespace, where the init passes it on.
    pub fn ask(&mut self, signal: Signal, except: Option<Pid>) {
        let passed_over: HashSet<Pid> = self.strangers.iter().copied().chain(self.init).collect();
        let mut asked = HashSet::new();
        if let Some(walk) = &mut self.walk {
            walk.below(Pid::this(), &passed_over, |process| {
                asked.insert(process.pid);
                if Some(process.group) != except {
                    process.signal(signal);
                }
            });
        }
        if let Some(leaf) = self.leaf.as_ref().filter(|_| self.init.is_none()) {
            let is_of_group = |pid| except.is_some() && getpgid(Some(pid)).ok() == except;
            leaf.signal_each(signal, |pid| !asked.contains(&pid) && !is_of_group(pid));
        }
    }

    /// SIGKILL to every process that can be seen below `pid` now, where that is a child that has not been reaped.
    pub fn kill_below(&mut self, pid: Pid) {
        if let Some(walk) = &mut self.walk {
            walk.below(pid, &self.strangers, |process: &mut Process<'_>| process.signal(Signal::SIGKILL));
        }
    }

    /// A child of `parent`.
    pub fn child_of(&mut self, parent: Pid) -> Option<Pid> {
        let mut found = None;
        self.walk.as_mut()?.below(parent, &HashSet::new(), |process| {
            found = found.or(Some(process.pid).filter(|_| process.parent == parent));
        });
        found
    }
}

/// The children of this process, ended ones included, which are strangers to a tree that is yet to be started.
///
/// Where `/proc` does not show them, none is known. Then this process cannot show by itself that a tree is dead while it has
/// one, and believes the backstop alone.
#[must_use]
pub fn strangers(walk: Option<&mut Walk>) -> HashSet<Pid> {
    // Nearly always there is none, and asking the kernel is cheaper than reading all of /proc.
    if wait_any(WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::ECHILD) {
        return HashSet::new();
    }
    walk.map(Walk::children).unwrap_or_default()
}
