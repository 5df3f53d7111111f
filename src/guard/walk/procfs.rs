//! What `/proc` and the kernel say of one process.

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::signal::kill;
use nix::sys::stat::Mode;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, read};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Enough for a line of proc_pid_stat(5): at most 52 numbers and a name of 64 bytes.
const STAT: usize = 1536;
/// How much of a list of children is read at once. What it names may be gone before the end of a long part is reached.
const LIST: usize = 1 << 10;

/// A process as `/proc` showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub pid: i32,
    pub parent: i32,
    /// Ticks since boot. Together with the number it identifies a process for good. None for a child that cannot be
    /// read.
    pub started: Option<u64>,
    /// It has ended, with all its threads, and waits to be reaped.
    pub ended: bool,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Unknown,
    Below,
    Elsewhere,
}

/// Splits the first of some directory entries (getdents64(2)) off. Returns its name and the other entries.
pub(super) fn entry(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    // struct linux_dirent64: d_ino, d_off, d_reclen, d_type, d_name.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let length = usize::from(u16::from_ne_bytes(entries.get(LENGTH..LENGTH + 2)?.try_into().ok()?));
    let name = CStr::from_bytes_until_nul(entries.get(NAME..length)?).ok()?;
    Some((name.to_bytes(), &entries[length..]))
}

pub(super) fn hidden_child(pid: i32) -> Option<Seen> {
    is_child(Pid::from_raw(pid)).then(|| own_child(pid))
}

/// True if the kernel says that this is a child of ours. Until we reap it, no other process gets its number.
pub fn is_child(pid: Pid) -> bool {
    has_changed(pid, WaitPidFlag::WEXITED).is_some()
}

/// True if this is a child of ours that lives, or a thread of it does.
pub fn is_live_child(pid: Pid) -> bool {
    has_changed(pid, WaitPidFlag::WEXITED) == Some(false)
}

/// True if this is a child of ours that SIGSTOP has stopped. The caller must not wait for stops elsewhere.
pub fn is_stopped(pid: Pid) -> bool {
    has_changed(pid, WaitPidFlag::WSTOPPED) == Some(true)
}

/// Whether this child of ours has changed its state like this. None if it is no child of ours.
fn has_changed(pid: Pid, how: WaitPidFlag) -> Option<bool> {
    match waitid(Id::Pid(pid), how | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
        Ok(WaitStatus::StillAlive) => Some(false),
        // nix has no name for the real-time signal that ended it.
        Ok(_) | Err(Errno::EINVAL) => Some(true),
        Err(_) => None,
    }
}

pub(super) fn own_child(pid: i32) -> Seen {
    Seen { pid, parent: Pid::this().as_raw(), started: None, ended: false, place: Place::Unknown }
}

/// Some if no process has this number.
pub(super) fn is_gone(pid: i32) -> Option<()> {
    (kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)).then_some(())
}

pub(super) fn stat(proc: BorrowedFd<'_>, pid: i32) -> Option<Seen> {
    let file = open_at(proc, format_args!("{pid}/stat"))?;
    let mut line = [0; STAT];
    let length = loop {
        match read(&file, &mut line) {
            Err(Errno::EINTR) => {}
            length => break length.ok()?,
        }
    };
    parse(pid, &line[..length])
}

/// Opens a file below a directory of `/proc`, without allocating.
pub(super) fn open_at(directory: BorrowedFd<'_>, name: fmt::Arguments<'_>) -> Option<OwnedFd> {
    let mut path = [0; 24];
    let mut rest = &mut path[..];
    io::Write::write_fmt(&mut rest, name).ok()?;
    // There is room for the NUL, or the path is refused here.
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    openat(directory, path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()
}

/// Calls `each` with every number in a list of processes, whatever its length. None if it cannot be read.
pub fn each_number(list: BorrowedFd<'_>, mut each: impl FnMut(i32)) -> Option<()> {
    let mut text = [0; LIST];
    let mut number = 0;
    loop {
        let length = match read(list, &mut text) {
            Err(Errno::EINTR) => continue,
            length => length.ok()?,
        };
        if length == 0 {
            return Some(());
        }
        // A number may continue in the next part. A blank or the end of the line follows each of them.
        for &byte in &text[..length] {
            if matches!(byte, b' ' | b'\n') {
                each(number);
                number = 0;
            } else {
                number = number.wrapping_mul(10).wrapping_add(i32::from(byte.wrapping_sub(b'0')));
            }
        }
    }
}

pub(super) fn number(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a line of proc_pid_stat(5): `PID (COMM) STATE PPID PGRP ...`. COMM may contain spaces and parentheses.
pub(super) fn parse(pid: i32, line: &[u8]) -> Option<Seen> {
    let comm_end = line.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&line[comm_end + 1..]).ok()?.split_ascii_whitespace();
    // `fields` starts with the third field.
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let threads = fields.nth(15)?;
    let started = fields.nth(1)?.parse().ok()?;
    // A zombie counts as one thread. It has more while others of its threads live.
    let ended = matches!(state, "Z" | "X") && matches!(threads, "0" | "1");
    Some(Seen { pid, parent, started: Some(started), ended, place: Place::Unknown })
}
