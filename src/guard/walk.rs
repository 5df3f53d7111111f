//! The walk over `/proc`, which finds the descendants of a process.
//!
//! The hazards:
//!
//! - *Memory may be short when a kill is due.* So a walk allocates only when it is opened, unless the machine has more
//!   processes than were planned for.
//! - *COMMAND may unmount `/proc`, or mount something over it.* So the walk keeps the directory open.
//! - *COMMAND may mount something over `/proc/PID`*, which hides that process. So for a number that cannot be read, the
//!   walk asks the kernel whether it is our child. Every descendant becomes our child once its other ancestors are
//!   dead.

use crate::sys;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, Whence, lseek, read};
use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Processes to reserve space for. Memory that is not used is not taken.
const FORESEEN: usize = 1 << 15;
/// Processes that a machine usually has.
const USUAL: usize = 1 << 10;
/// Enough for a line of proc_pid_stat(5): at most 52 numbers and a name of 64 bytes.
const STAT: usize = 1536;
const ENTRIES: usize = 1 << 15;

#[derive(Debug)]
pub struct Walk {
    proc: File,
    entries: Box<[u8]>,
    seen: Vec<Seen>,
}

/// A process as `/proc` showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    pid: i32,
    parent: i32,
    group: i32,
    /// Ticks since boot. Together with the number it identifies a process for good. None for a child that cannot be
    /// read.
    started: Option<u64>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Unknown,
    Below,
    Elsewhere,
}

/// A process below the top of a walk.
#[derive(Debug)]
pub struct Process<'a> {
    pub pid: Pid,
    pub parent: Pid,
    pub group: Pid,
    started: Option<u64>,
    proc: BorrowedFd<'a>,
}

impl Walk {
    /// Opens `/proc` and reserves memory.
    ///
    /// # Errors
    /// The kernel's: `/proc` is not mounted.
    pub fn open() -> io::Result<Self> {
        let mut seen = Vec::with_capacity(FORESEEN);
        let nobody = Seen { pid: 0, parent: 0, group: 0, started: None, place: Place::Unknown };
        // This touches the pages, so that they exist. The others come when they are needed, if memory is left then.
        seen.resize(USUAL, nobody);
        seen.clear();
        Ok(Self { proc: File::open("/proc")?, entries: vec![0; ENTRIES].into_boxed_slice(), seen })
    }

    /// Calls `each` with every process below `top`, except `strangers` and their descendants.
    pub fn below(&mut self, top: Pid, strangers: &HashSet<Pid>, mut each: impl FnMut(&mut Process<'_>)) {
        self.look();
        for index in 0..self.seen.len() {
            let place = place(&mut self.seen, index, top, strangers);
            let Seen { pid, parent, group, started, .. } = self.seen[index];
            if place == Place::Below {
                let [pid, parent, group] = [pid, parent, group].map(Pid::from_raw);
                each(&mut Process { pid, parent, group, started, proc: self.proc.as_fd() });
            }
        }
    }

    /// The children of this process, including ended ones.
    pub fn children(&mut self) -> HashSet<Pid> {
        self.look();
        let ours = self.seen.iter().filter(|seen| seen.parent == Pid::this().as_raw());
        ours.map(|seen| Pid::from_raw(seen.pid)).collect()
    }

    /// Reads all processes, sorted by number.
    fn look(&mut self) {
        self.seen.clear();
        if lseek(&self.proc, 0, Whence::SeekSet).is_err() {
            return;
        }
        while let Ok(length) = sys::read_directory(self.proc.as_fd(), &mut self.entries) {
            if length == 0 {
                break;
            }
            let mut rest = &self.entries[..length];
            while let Some((name, after)) = entry(rest) {
                rest = after;
                let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
                let Some(pid) = number else { continue };
                self.seen.extend(stat(self.proc.as_fd(), pid).or_else(|| hidden_child(pid)));
            }
        }
        self.seen.sort_unstable_by_key(|seen| seen.pid);
    }
}

impl Process<'_> {
    pub fn signal(&self, signal: Signal) {
        // A child keeps its number until it is reaped, and only the caller reaps.
        if self.parent == Pid::this() {
            let _ = kill(self.pid, signal);
            return;
        }
        let Ok(pidfd) = sys::pidfd_open(self.pid) else { return };
        if stat(self.proc, self.pid.as_raw()).is_some_and(|now| now.started == self.started) {
            let _ = sys::pidfd_send_signal(pidfd.as_fd(), signal);
        }
    }
}

/// The place of the process at `index`, which is that of its first ancestor with a known place.
fn place(seen: &mut [Seen], index: usize, top: Pid, strangers: &HashSet<Pid>) -> Place {
    let parent_of = |seen: &[Seen], at: usize| seen.binary_search_by_key(&seen[at].parent, |entry| entry.pid).ok();
    let mut at = index;
    let mut steps = 0;
    let place = loop {
        let Seen { pid, parent, place, .. } = seen[at];
        if place != Place::Unknown {
            break place;
        }
        if strangers.contains(&Pid::from_raw(pid)) {
            break Place::Elsewhere;
        }
        if parent == top.as_raw() {
            break Place::Below;
        }
        match parent_of(seen, at) {
            // Numbers that were reused during the walk can form a circle.
            Some(parent) if steps < seen.len() => at = parent,
            _ => break Place::Elsewhere,
        }
        steps += 1;
    };
    // Store the place along the way, so that a deep chain is climbed once.
    let (mut at, last) = (index, at);
    loop {
        seen[at].place = place;
        if at == last {
            return place;
        }
        match parent_of(seen, at) {
            Some(parent) if seen[parent].place == Place::Unknown => at = parent,
            _ => return place,
        }
    }
}

/// Splits the first of some directory entries (getdents64(2)) off. Returns its name and the other entries.
fn entry(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    // struct linux_dirent64: d_ino, d_off, d_reclen, d_type, d_name.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let length = usize::from(u16::from_ne_bytes(entries.get(LENGTH..LENGTH + 2)?.try_into().ok()?));
    let name = CStr::from_bytes_until_nul(entries.get(NAME..length)?).ok()?;
    Some((name.to_bytes(), &entries[length..]))
}

fn hidden_child(pid: i32) -> Option<Seen> {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT | WaitPidFlag::WEXITED;
    waitid(Id::Pid(Pid::from_raw(pid)), flags).ok()?;
    Some(Seen { pid, parent: Pid::this().as_raw(), group: pid, started: None, place: Place::Unknown })
}

fn stat(proc: BorrowedFd<'_>, pid: i32) -> Option<Seen> {
    let mut path = [0; 24];
    let mut rest = &mut path[..];
    io::Write::write_fmt(&mut rest, format_args!("{pid}/stat\0")).ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let file = openat(proc, path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let mut line = [0; STAT];
    let length = loop {
        match read(&file, &mut line) {
            Err(Errno::EINTR) => {}
            length => break length.ok()?,
        }
    };
    parse(pid, &line[..length])
}

/// Parses a line of proc_pid_stat(5): `PID (COMM) STATE PPID PGRP ...`. COMM may contain spaces and parentheses.
fn parse(pid: i32, line: &[u8]) -> Option<Seen> {
    let comm_end = line.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&line[comm_end + 1..]).ok()?.split_ascii_whitespace();
    // `fields` starts with the third field.
    let parent = fields.nth(1)?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let started = fields.nth(16)?.parse().ok()?;
    Some(Seen { pid, parent, group, started: Some(started), place: Place::Unknown })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn a_command_name_with_spaces_and_parentheses_is_read() {
        let line = b"42 (a) b (c) S 7 42 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let seen = parse(42, line).unwrap();
        assert_eq!((seen.parent, seen.group, seen.started), (7, 42, Some(987_654)));
    }

    #[test]
    fn this_process_is_found_below_its_parent() {
        let mut found = false;
        Walk::open().unwrap().below(Pid::parent(), &HashSet::new(), |process| found |= process.pid == Pid::this());
        assert!(found);
    }

    #[test]
    fn a_stranger_and_its_descendants_are_skipped() {
        let seen = |pid, parent| Seen { pid, parent, group: 1, started: Some(1), place: Place::Unknown };
        // 5 and 6 form a circle.
        let mut all = vec![seen(2, 1), seen(3, 2), seen(4, 3), seen(5, 6), seen(6, 5), seen(7, 1), seen(8, 7)];
        let strangers = HashSet::from([Pid::from_raw(7)]);
        let mut below = Vec::new();
        for index in (0..all.len()).rev() {
            if place(&mut all, index, Pid::from_raw(1), &strangers) == Place::Below {
                below.push(all[index].pid);
            }
        }
        assert_eq!(below, [4, 3, 2]);
    }

    #[test]
    fn a_million_lines_are_processes_or_are_refused() {
        let seeds: [&[u8]; 2] = [
            b"42 (a) b (c) S 7 42 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2",
            b"1 (x) Z 0 1 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 1 0 0",
        ];
        fuzz::bent("line of /proc/PID/stat", &seeds, |line, _| (&parse(1, line)).into());
    }

    #[test]
    fn a_million_directories_are_entries_or_are_refused() {
        let mut ours = vec![0; 48];
        for at in [0, 24] {
            ours[at + 16] = 24;
            ours[at + 19] = b'7';
        }
        fuzz::bent("directory of /proc", &[&ours], |directory, _| {
            let (mut rest, mut names) = (directory, 0);
            while let Some((_, after)) = entry(rest) {
                assert!(after.len() < rest.len());
                (rest, names) = (after, names + 1);
            }
            (&(names > 0).then_some(())).into()
        });
    }

    #[test]
    fn a_command_is_found_whatever_it_calls_itself() {
        fuzz::run("name of a command", |source, input| {
            // A name has sixteen bytes, and the last one is NUL.
            let mut line = b"42 (".to_vec();
            let name = source.bend(&[b"sleep", b") S 1 1 1", b"a) Z 0 0 (", b"(((\n)))"]);
            line.extend(name.iter().filter(|&&byte| byte != 0).take(15));
            let (parent, group, started) = (source.below(99_999), source.below(99_999), source.number());
            line.extend_from_slice(
                format!(") S {parent} {group} 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 {started} 1 2").as_bytes(),
            );
            input.show(|| String::from_utf8_lossy(&line).into_owned());
            let seen = parse(42, &line).expect("it is the kernel's");
            let number = |pid: i32| usize::try_from(pid).expect("it is positive");
            assert_eq!((number(seen.parent), number(seen.group), seen.started), (parent, group, Some(started)));
            // The kernel never writes a truncated line. It must not do harm all the same.
            let cut = parse(42, &line[..line.len() - 4 - source.below(20)]);
            (&cut).into()
        });
    }
}
