//! What a program says on standard error: log lines, and at a terminal below them at most one line that is rewritten in
//! its place.
//!
//! The hazard: standard error may take nothing for a while, or for ever (see [`outlet`](crate::observe::stderr)). Nothing here
//! waits for it: what it does not take is kept up to a bound and written later in the same order, and what does not fit
//! is counted and told. Only a process that ends gives it a last moment. The rewritten line is never kept: where it stood
//! others may have written by then.

use crate::observe::stderr::Outlet;
use crate::sys;
use nix::unistd::{getpgrp, tcgetpgrp};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::mem::take;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing_subscriber::fmt::MakeWriter;

/// ECMA-48: to the left, and nothing from there on.
const ERASE: &[u8] = b"\r\x1b[K";
/// What is kept. Lines beyond it are counted.
const MOST_KEPT: usize = 64 * 1024;
/// What the buffer may hold on to while it is empty.
const SPARE: usize = 4096;
/// From one try to the next, where no line comes in between.
const RETRY: Duration = Duration::from_secs(1);
/// How long a process that ends tries on.
const LAST_MOMENT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

static SCREEN: LazyLock<Mutex<Screen>> = LazyLock::new(|| Mutex::new(Screen::on(Outlet::open())));
/// Something is kept.
static STUCK: Notify = Notify::const_new();

struct Screen {
    outlet: Outlet,
    /// The line stands there, for all that we know.
    drawn: bool,
    kept: Vec<u8>,
    /// Lines that were not kept. While there are some, no other is kept either: a line that counts them takes their place.
    lost: usize,
    /// The line that tells of them.
    tells: Box<dyn Fn(usize) -> String + Send>,
    /// Some while something is kept.
    retry_at: Option<Instant>,
}

/// From here on `tells` says how many lines were lost, with the end of a line.
pub(crate) fn begin(tells: impl Fn(usize) -> String + Send + 'static) {
    the_screen().tells = Box::new(tells);
}

/// A line of its own, outside of the log.
pub(crate) fn say(line: impl Display) {
    the_screen().keep(format!("{line}\n").as_bytes());
}

/// Puts `line` in the place of the one before, cut to what fits. Nothing where there is no terminal, or somebody else
/// has it.
pub(crate) fn draw(line: &str) {
    the_screen().draw(line);
}

pub(crate) fn erase() {
    the_screen().erase();
}

/// Waits until what is kept is worth another [`flush`]. Cancelling it loses nothing.
pub(crate) async fn due() {
    loop {
        let retry_at = the_screen().retry_at;
        match retry_at {
            Some(at) => return sleep_until(at).await,
            None => STUCK.notified().await,
        }
    }
}

/// Writes what is kept, as far as that goes.
pub(crate) fn flush() {
    the_screen().flush();
}

/// Erases the line, and gives what is kept a last chance. The last thing that a process does.
pub(crate) fn close() {
    the_screen().close();
}

/// Says a last line for a thread that panics, maybe with the screen in its hand.
pub(crate) fn say_last(line: impl Display) {
    let line = format!("{line}\n");
    let mut screen = match SCREEN.try_lock() {
        Ok(screen) => screen,
        Err(TryLockError::Poisoned(screen)) => screen.into_inner(),
        Err(TryLockError::WouldBlock) => {
            let _ = Outlet::open().write(line.as_bytes());
            return;
        }
    };
    screen.keep(line.as_bytes());
    screen.close();
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
        the_screen().keep(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Screen {
    fn on(outlet: Outlet) -> Self {
        let tells = |lost: usize| format!("{}\n", dropped(lost));
        Self { outlet, drawn: false, kept: Vec::new(), lost: 0, tells: Box::new(tells), retry_at: None }
    }

    fn draw(&mut self, line: &str) {
        if !self.is_ours() || !self.flush() {
            return;
        }
        let columns = sys::terminal_size(&self.outlet).map_or(0, |(_, columns)| usize::from(columns));
        let line = cut(line, if columns == 0 { 80 } else { columns });
        // What is not taken of it the next one repeats.
        self.drawn = self.outlet.write(&[ERASE, line.as_bytes()].concat()).is_ok();
    }

    fn erase(&mut self) {
        if take(&mut self.drawn) && self.is_ours() && self.outlet.write(ERASE).ok() != Some(ERASE.len()) {
            self.kept.extend(b"\r\n");
        }
    }

    fn keep(&mut self, line: &[u8]) {
        self.erase();
        if !self.flush() && (self.lost > 0 || self.kept.len() + line.len() > MOST_KEPT) {
            self.lost += 1;
            return;
        }
        self.kept.extend(line);
        self.flush();
    }

    /// True when nothing is left.
    fn flush(&mut self) -> bool {
        loop {
            if self.kept.is_empty() && self.lost > 0 {
                self.kept = (self.tells)(take(&mut self.lost)).into_bytes();
            }
            if self.kept.is_empty() {
                self.kept.shrink_to(SPARE);
                self.retry_at = None;
                return true;
            }
            match self.outlet.write(&self.kept) {
                Ok(written) if written > 0 => drop(self.kept.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.retry_at = Some(Instant::now() + RETRY);
                    STUCK.notify_one();
                    return false;
                }
                // It was hung up or is full: nobody reads this any more.
                Ok(_) | Err(_) => self.kept.clear(),
            }
        }
    }

    fn close(&mut self) {
        self.erase();
        let until = Instant::now() + LAST_MOMENT;
        while !self.flush() && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
    }

    /// The last line belongs to the shell that has put us into the background, and to COMMAND while that has the terminal.
    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.outlet) == Ok(getpgrp())
    }
}

/// What is said of lines that were not kept.
pub(crate) fn dropped(lost: usize) -> String {
    format!("{lost} log lines were dropped because standard error did not take them")
}

fn the_screen() -> MutexGuard<'static, Screen> {
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
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
    use nix::fcntl::OFlag;
    use nix::pty::openpty;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::fs::OpenOptionsExt;

    /// A terminal that takes so much and no more.
    fn full() -> (File, Screen) {
        let pty = openpty(None, None).unwrap();
        let mut screen = Screen::on(Outlet::own(reopened(&pty.slave)));
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
        // What would fit by itself is not put in the place of what came before it.
        let lost = screen.lost;
        screen.keep(b"z\n");
        assert!(screen.kept.len() <= MOST_KEPT && lost > 30 && screen.lost == lost + 1, "{lost}");
        let mut read = Vec::new();
        while !screen.flush() {
            let mut some = [0; 4096];
            let length = master.read(&mut some).unwrap();
            read.extend(&some[..length]);
        }
        screen.keep(b"last\n");
        let mut some = [0; 4096];
        while !read.ends_with(b"last\r\n") {
            let length = master.read(&mut some).unwrap();
            read.extend(&some[..length]);
        }
        let read = String::from_utf8(read).unwrap();
        let told = format!("y{} log lines were dropped", lost + 1);
        assert!(read.contains("first\r\nyyy") && read.contains(&told) && !read.contains('z'), "{read}");
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
