//! The terminal that standard error is: log lines, and below them at most one line that is rewritten in its place.
//!
//! The hazard: a terminal that was stopped (Ctrl-S), or that nobody reads, takes nothing more, and a candidate that
//! waited for it could neither lead nor leave. So the terminal is opened once more for writes that do not block (the
//! flag belongs to the open file, and that of standard error is shared with the shell and with COMMAND), and what it
//! does not take is kept for later. The line is never kept: where it stood others may have written by then.

use crate::sys;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::unistd::{getpgrp, tcgetpgrp};
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr};
use std::mem::take;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

/// ECMA-48: to the left, and nothing from there on.
const ERASE: &[u8] = b"\r\x1b[K";
/// The master of a pseudoterminal: opening it again makes another one.
const MASTER: u64 = libc::makedev(5, 2);
/// What is kept for a terminal that takes nothing. Lines beyond it are counted.
const MOST_KEPT: usize = 64 * 1024;
/// How long we wait for such a terminal when we leave.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// None where standard error is no terminal, or one that cannot be opened again.
static SCREEN: Mutex<Option<Screen>> = Mutex::new(None);

struct Screen {
    device: File,
    /// The line stands there, for all that we know.
    drawn: bool,
    kept: Vec<u8>,
    /// Lines that were not kept.
    lost: usize,
}

/// Takes the terminal over, if there is one; true if there is.
pub(crate) fn open() -> bool {
    let screen = reopen().map(|device| Screen { device, drawn: false, kept: Vec::new(), lost: 0 });
    let opened = screen.is_some();
    *the_screen() = screen;
    opened
}

/// Puts `line` in the place of the one before, cut to what fits. Nothing where somebody else has the terminal.
pub(crate) fn draw(line: &str) {
    if let Some(screen) = &mut *the_screen() {
        screen.draw(line);
    }
}

pub(crate) fn erase() {
    if let Some(screen) = &mut *the_screen() {
        screen.erase();
    }
}

/// Writes what was kept, as far as the terminal takes it; true when nothing is left.
pub(crate) fn flush() -> bool {
    the_screen().as_mut().is_none_or(Screen::flush)
}

/// Erases the line, and gives the terminal a last chance to take what was kept. From here on log lines are plain ones.
pub(crate) fn close() {
    let Some(mut screen) = the_screen().take() else { return };
    screen.erase();
    let began = Instant::now();
    while !screen.flush() {
        let left = LAST_WORDS.saturating_sub(began.elapsed());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut writable = [PollFd::new(screen.device.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut writable, timeout) {
            Ok(0) => return,
            Ok(_) | Err(Errno::EINTR) if !left.is_zero() => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Writes log lines to standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines;

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *the_screen() {
            Some(screen) => screen.keep(line),
            None => stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Screen {
    fn draw(&mut self, line: &str) {
        if !self.is_ours() || !self.flush() {
            return;
        }
        let columns = sys::terminal_size(&self.device).map_or(0, |(_, columns)| usize::from(columns));
        let line = cut(line, if columns == 0 { 80 } else { columns });
        // What is not taken of it the next one repeats.
        self.drawn = self.device.write(&[ERASE, line.as_bytes()].concat()).is_ok();
    }

    fn erase(&mut self) {
        if take(&mut self.drawn) && self.is_ours() && self.device.write(ERASE).ok() != Some(ERASE.len()) {
            self.kept.extend(b"\r\n");
        }
    }

    fn keep(&mut self, line: &[u8]) {
        self.erase();
        if self.kept.len() + line.len() > MOST_KEPT {
            self.lost += 1;
        } else {
            self.kept.extend(line);
        }
        self.flush();
    }

    fn flush(&mut self) -> bool {
        while !self.kept.is_empty() {
            match self.device.write(&self.kept) {
                Ok(written) => drop(self.kept.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // It was hung up: nobody reads this any more.
                Err(_) => self.kept.clear(),
            }
            if self.kept.is_empty() && self.lost > 0 {
                self.kept = format!("... and {} lines that the terminal did not take\n", take(&mut self.lost)).into();
            }
        }
        true
    }

    /// Whoever has put us into the background has the last line now; and COMMAND, when it has the terminal.
    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.device) == Ok(getpgrp())
    }
}

fn the_screen() -> MutexGuard<'static, Option<Screen>> {
    SCREEN.lock().expect("nobody panics with the terminal in hand")
}

/// The terminal of standard error, as an open file of its own.
fn reopen() -> Option<File> {
    if !stderr().is_terminal() || fstat(stderr()).is_ok_and(|file| file.st_rdev == MASTER) {
        return None;
    }
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let device = File::options().write(true).custom_flags(flags.bits()).open("/proc/self/fd/2").ok()?;
    device.metadata().is_ok_and(|file| file.file_type().is_char_device()).then_some(device)
}

/// What of `line` surely stays on one row of so many columns. Nobody but the terminal knows how wide a letter is that is
/// not ASCII; at most two columns.
fn cut(line: &str, columns: usize) -> &str {
    let mut taken = 0;
    let end = line.char_indices().find(|(_, letter)| {
        taken += if letter.is_ascii() { 1 } else { 2 };
        taken >= columns
    });
    end.map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;
    use std::io::Read;

    /// A terminal that takes so much and no more.
    fn full() -> (File, Screen) {
        let pty = openpty(None, None).unwrap();
        let device = reopened(&pty.slave);
        let mut screen = Screen { device, drawn: false, kept: Vec::new(), lost: 0 };
        // The kernel passes on what it took a moment later, and then there is room once more.
        for _ in 0..10 {
            while screen.flush() {
                screen.kept = b"x".repeat(1000);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        screen.kept.clear();
        (File::from(pty.master), screen)
    }

    fn reopened(slave: &impl AsFd) -> File {
        let path = nix::unistd::ttyname(slave).unwrap();
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        File::options().read(true).write(true).custom_flags(flags.bits()).open(path).unwrap()
    }

    #[test]
    fn what_a_terminal_does_not_take_is_kept_up_to_a_bound_and_written_later() {
        let (mut master, mut screen) = full();
        screen.keep(b"first\n");
        assert!(!screen.flush());
        for _ in 0..100 {
            screen.keep(&b"y".repeat(1000));
        }
        assert!(screen.kept.len() <= MOST_KEPT && screen.lost > 30, "{}", screen.lost);
        let mut read = Vec::new();
        while !screen.flush() {
            let mut some = [0; 4096];
            let length = master.read(&mut some).unwrap();
            read.extend(&some[..length]);
        }
        let mut some = [0; 4096];
        while !read.ends_with(b"did not take\r\n") {
            let length = master.read(&mut some).unwrap();
            read.extend(&some[..length]);
        }
        let read = String::from_utf8(read).unwrap();
        assert!(read.contains("first\r\nyyy") && read.contains("... and "), "{read}");
    }

    #[test]
    fn a_line_is_cut_before_the_last_column_whatever_it_is_written_in() {
        assert_eq!(cut("abcdef", 80), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc");
        assert_eq!(cut("日本語", 5), "日本");
        assert_eq!(cut("日本語", 4), "日");
        assert_eq!(cut("a", 1), "");
    }
}
