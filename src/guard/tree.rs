//! The tree: every process that descends from this one.
//!
//! The hazard: between reading a process's number in `/proc` and signalling it, the process may end and its
//! number become a stranger's. A child that has not been reaped keeps its number, so children are safe. Every
//! other descendant is pinned by a pidfd first, and then shown to be the one that was seen, by its start time.

use crate::sys::{self, ChildState, wait_any};
use crate::time::BootInstant;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitPidFlag;
use nix::unistd::Pid;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

/// A tree that is being killed is looked at again after so long.
pub const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// This process's descendants, but for the children that it had before.
#[derive(Debug)]
pub struct Tree {
    strangers: HashSet<Pid>,
    empty: bool,
}

/// Of a process that has no children yet.
impl Default for Tree {
    fn default() -> Self {
        Self { strangers: HashSet::new(), empty: true }
    }
}

/// A process as `/proc` showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: Pid,
    parent: Pid,
    group: Pid,
    /// In ticks since boot: with the number it names a process for ever.
    started: u64,
    zombie: bool,
}

impl Tree {
    /// Of a process that may have children already, from before an exec or because it is PID 1: not ours to kill.
    #[must_use]
    pub fn after(strangers: HashSet<Pid>) -> Self {
        Self { strangers, empty: false }
    }

    /// Reaps one child that has news. None when none has; then [`Tree::is_empty`] is up to date.
    pub fn reap(&mut self, flags: WaitPidFlag) -> Option<(Pid, ChildState)> {
        match wait_any(flags) {
            Ok(Some((pid, state))) => {
                if state.is_end() {
                    self.strangers.remove(&pid);
                }
                self.empty = false;
                Some((pid, state))
            }
            Ok(None) => {
                self.empty = !self.strangers.is_empty() && children().is_subset(&self.strangers);
                None
            }
            Err(Errno::ECHILD) => {
                self.empty = true;
                None
            }
            Err(error) => panic!("waitid: {error}"),
        }
    }

    /// A child was started since it was reaped last.
    pub fn grew(&mut self) {
        self.empty = false;
    }

    /// Somebody else reaped this child: its number may become another process's.
    pub fn forget(&mut self, pid: Pid) {
        self.strangers.remove(&pid);
    }

    /// Looks whether a descendant is left, for whoever reaps elsewhere. An ended child that was not reaped is left.
    pub fn look(&mut self) -> bool {
        self.empty = match wait_any(WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Err(Errno::ECHILD) => true,
            // The strangers are there until they are reaped: a look at /proc that misses them shows nothing.
            Ok(_) => !self.strangers.is_empty() && children() == self.strangers,
            Err(error) => panic!("waitid: {error}"),
        };
        self.empty
    }

    /// True when no descendant is left: the kernel says that there is no child, and every orphan would be one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// SIGKILL to every descendant that can be seen now. What is forked meanwhile is there at the next look.
    pub fn kill(&self) {
        for process in self.descendants() {
            process.signal(Signal::SIGKILL);
        }
    }

    /// SIGKILL to every process that can be seen below `pid` now, where that is a child that has not been reaped.
    pub fn kill_below(&self, pid: Pid) {
        for process in self.below(pid) {
            process.signal(Signal::SIGKILL);
        }
    }

    /// The descendants that are not in `group`.
    #[must_use]
    pub fn outside_of(&self, group: Option<Pid>) -> Vec<Process> {
        self.descendants().into_iter().filter(|process| Some(process.group) != group).collect()
    }

    fn descendants(&self) -> Vec<Process> {
        self.below(Pid::this())
    }

    fn below(&self, top: Pid) -> Vec<Process> {
        let mut by_parent: HashMap<Pid, Vec<Process>> = HashMap::new();
        for process in processes() {
            by_parent.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut parents = vec![top];
        while let Some(parent) = parents.pop() {
            for process in by_parent.remove(&parent).unwrap_or_default() {
                if !self.strangers.contains(&process.pid) {
                    parents.push(process.pid);
                    found.push(process);
                }
            }
        }
        found.retain(|process| !process.zombie);
        found
    }
}

impl Process {
    pub fn signal(&self, signal: Signal) {
        let Ok(pidfd) = sys::pidfd_open(self.pid) else { return };
        if read(self.pid).is_some_and(|now| now.started == self.started) {
            let _ = sys::pidfd_send_signal(pidfd.as_fd(), signal);
        }
    }
}

/// When to look again at a tree that is being killed.
#[must_use]
pub fn next_look() -> BootInstant {
    BootInstant::now().plus(LOOK_AGAIN)
}

/// This process's children, ended ones included.
#[must_use]
pub fn children() -> HashSet<Pid> {
    // Nearly always there is none, and asking the kernel is cheaper than reading all of /proc.
    if wait_any(WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::ECHILD) {
        return HashSet::new();
    }
    processes().into_iter().filter(|process| process.parent == Pid::this()).map(|process| process.pid).collect()
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter_map(|number| read(Pid::from_raw(number))).collect()
}

fn read(pid: Pid) -> Option<Process> {
    parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads a line of proc_pid_stat(5): `PID (COMM) STATE PPID PGRP ...`. COMM may have spaces and parentheses in it.
fn parse(pid: Pid, line: &[u8]) -> Option<Process> {
    let comm_end = line.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&line[comm_end + 1..]).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse().ok().map(Pid::from_raw);
    Some(Process {
        pid,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: number(1)?,
        group: number(2)?,
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn a_command_name_with_spaces_and_parentheses_is_read() {
        let line = b"42 (a) b (c) S 7 42 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let process = parse(Pid::from_raw(42), line).unwrap();
        assert_eq!((process.parent, process.group, process.started), (Pid::from_raw(7), Pid::from_raw(42), 987_654));
        assert!(!process.zombie);
    }

    #[test]
    fn this_process_is_found_below_its_parent() {
        let me = read(Pid::this()).expect("/proc is mounted");
        assert_eq!(me.parent, Pid::parent());
    }

    #[test]
    fn a_million_lines_are_processes_or_nothing() {
        let seeds: [&[u8]; 2] = [
            b"42 (a) b (c) S 7 42 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2",
            b"1 (x) Z 0 1 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 1 0 0",
        ];
        fuzz::bent("line of /proc/PID/stat", &seeds, |line, _| (&parse(Pid::from_raw(1), line)).into());
    }

    #[test]
    fn a_command_may_call_itself_anything_and_is_still_found() {
        fuzz::run("name of a command", |source, input| {
            // Sixteen bytes, of which the last ends it.
            let mut line = b"42 (".to_vec();
            let name = source.bend(&[b"sleep", b") S 1 1 1", b"a) Z 0 0 (", b"(((\n)))"]);
            line.extend(name.iter().filter(|&&byte| byte != 0).take(15));
            let (parent, group, started) = (source.below(99_999), source.below(99_999), source.number());
            line.extend_from_slice(
                format!(") S {parent} {group} 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 {started} 1 2").as_bytes(),
            );
            input.show(|| String::from_utf8_lossy(&line).into_owned());
            let process = parse(Pid::from_raw(42), &line).expect("it is the kernel's");
            let number = |pid: Pid| usize::try_from(pid.as_raw()).expect("it is positive");
            assert_eq!((number(process.parent), number(process.group), process.started), (parent, group, started));
            // Cut short, as nothing is when the kernel writes it.
            let cut = parse(Pid::from_raw(42), &line[..line.len() - 4 - source.below(20)]);
            (&cut).into()
        });
    }
}
