//! Standard error, written without ever waiting for its reader.
//!
//! The hazard: a pipe without a reader, a stuck journal or a stopped terminal (Ctrl-S) accepts nothing more, and a
//! candidate that waits in write(2) can neither lead nor leave. Setting `O_NONBLOCK` does not help: the flag belongs to
//! the open file, which the shell, COMMAND and others share, and they would see EAGAIN. So:
//!
//! - A pipe or a terminal is opened again through `/proc`, which makes an open file of our own. The controlling
//!   terminal can also be opened as `/dev/tty`, even if it belongs to another user (`su`).
//! - A socket gets a flag with each message that says not to wait.
//! - A file that cannot be opened again (the pipe of another user, or no `/proc`) is written with `RWF_NOWAIT`. Before
//!   Linux 6.4 pipes do not support that flag. Then poll(2) must report room, and at most `PIPE_BUF` bytes are written,
//!   which fit into that room. If another process fills the pipe between the two calls, the write waits for the reader:
//!   a gap of microseconds stays open. A terminal supports neither, so one byte is written each time that poll(2)
//!   reports room. The gap stays, and a line end, which the terminal turns into two bytes, waits if only one fits.
//! - A regular file accepts everything. A disk that hangs is not detected here.

use crate::sys;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::tcgetpgrp;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Stderr, Write, stderr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// The master of a pseudoterminal: opening it again makes another one.
const MASTER: u64 = libc::makedev(5, 2);

pub(crate) struct Outlet {
    way: Way,
    /// Kept even if another file is written to: the runtime opens /dev/null in place of a closed standard stream.
    stderr: Stderr,
}

enum Way {
    /// An open file of our own, which does not block.
    Own(File),
    Socket,
    /// The open file shared with others, of a kind that may block if it gets more than this at once.
    Shared(usize),
    /// The open file shared with others, of a kind that does not block.
    Plain,
}

impl Outlet {
    pub(crate) fn open() -> Self {
        let kind =
            fstat(stderr()).map_or(SFlag::empty(), |file| SFlag::from_bits_truncate(file.st_mode) & SFlag::S_IFMT);
        let way = match kind {
            SFlag::S_IFREG => Way::Plain,
            SFlag::S_IFSOCK => Way::Socket,
            SFlag::S_IFIFO => reopened().map_or(Way::Shared(libc::PIPE_BUF), Way::Own),
            _ if stderr().is_terminal() => reopened().or_else(controlling).map_or(Way::Shared(1), Way::Own),
            _ => Way::Shared(libc::PIPE_BUF),
        };
        Self { way, stderr: stderr() }
    }

    /// Writes the beginning of `lines`. Returns the number of bytes written; `WouldBlock` if nothing is accepted now.
    pub(crate) fn write(&self, lines: &[u8]) -> io::Result<usize> {
        match &self.way {
            Way::Own(file) => (&*file).write(portion(lines)),
            Way::Socket => {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                Ok(send(self.stderr.as_raw_fd(), portion(lines), flags)?)
            }
            Way::Shared(at_once) => write_shared(&self.stderr, portion(lines), *at_once),
            Way::Plain => Ok(nix::unistd::write(&self.stderr, lines)?),
        }
    }
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Own(file) => file.as_fd(),
            Way::Socket | Way::Shared(_) | Way::Plain => self.stderr.as_fd(),
        }
    }
}

/// The part of `lines` to write at once: whole lines if possible. Up to `PIPE_BUF` bytes, no line of another process
/// ends up inside one of ours in a pipe.
fn portion(lines: &[u8]) -> &[u8] {
    let most = &lines[..lines.len().min(libc::PIPE_BUF)];
    most.iter().rposition(|&byte| byte == b'\n').map_or(most, |end| &most[..=end])
}

fn write_shared(stderr: &Stderr, part: &[u8], at_once: usize) -> io::Result<usize> {
    match sys::write_now(stderr, part) {
        Err(error) if ![ErrorKind::WouldBlock, ErrorKind::BrokenPipe].contains(&error.kind()) => {}
        answer => return answer,
    }
    let mut written = 0;
    for piece in part.chunks(at_once) {
        match write_where_room(stderr, piece) {
            Ok(length) => written += length,
            Err(error) if written == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(written)
}

fn write_where_room(stderr: &Stderr, part: &[u8]) -> io::Result<usize> {
    match poll(&mut [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO) {
        Ok(0) | Err(Errno::EINTR) => Err(ErrorKind::WouldBlock.into()),
        Ok(_) => Ok(nix::unistd::write(stderr, part)?),
        Err(error) => Err(error.into()),
    }
}

fn reopened() -> Option<File> {
    let shared = fstat(stderr()).ok().filter(|file| file.st_rdev != MASTER)?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::options().write(true).custom_flags(flags.bits()).open("/proc/self/fd/2").ok()?;
    let same = |own: std::fs::Metadata| (own.dev(), own.ino()) == (shared.st_dev, shared.st_ino);
    file.metadata().is_ok_and(same).then_some(file)
}

/// The terminal of our session, if standard error is that terminal: the kernel reports the group of no other.
fn controlling() -> Option<File> {
    tcgetpgrp(stderr()).ok()?;
    fstat(stderr()).ok().filter(|file| file.st_rdev != MASTER)?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    File::options().write(true).custom_flags(flags.bits()).open("/dev/tty").ok()
}
