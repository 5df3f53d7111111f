//! What a program writes to standard error.
//!
//! The hazard: standard error may accept nothing for a while, or for ever (see `stderr.rs`). Lines that it does not
//! accept are kept up to a limit and written later in the same order. Lines beyond the limit are dropped, and a log
//! line reports how many. Only a process that is ending waits, for a moment.
//!
//! Not tracing-appender, which writes in its own thread: on a busy machine, COMMAND's first line then came before ours
//! about its start (in 23 of 300 runs). And it reports a stuck reader on standard output, which is COMMAND's.

use crate::observe::stderr::Outlet;
use crate::time::{rfc3339_seconds, wall_clock_millis};
use nix::sys::stat::fstat;
use parking_lot::Mutex;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr};
use std::mem::take;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::Level;

const MOST_KEPT: usize = 64 * 1024;
const SPARE: usize = 4096;
const RETRY: Duration = Duration::from_secs(1);
const LAST_MOMENT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

static TERMINAL: LazyLock<Mutex<Terminal>> = LazyLock::new(|| Mutex::new(Terminal::on(Outlet::open())));
static STUCK: Notify = Notify::const_new();

struct Terminal {
    outlet: Outlet,
    kept: Vec<u8>,
    /// Dropped lines. While there are some, no other line is kept, because a line that counts them comes first.
    lost: usize,
    report_lost: Box<dyn Fn(usize) -> String + Send>,
    retry_at: Option<Instant>,
}

/// `report_lost` makes the line that counts dropped lines, with its line break.
pub(crate) fn begin(report_lost: impl Fn(usize) -> String + Send + 'static) {
    TERMINAL.lock().report_lost = Box::new(report_lost);
}

pub(crate) fn say(line: impl Display) {
    TERMINAL.lock().keep(format!("{line}\n").as_bytes());
}

/// Returns when it is time to [`flush`] again. Cancel-safe.
pub(crate) async fn due() {
    loop {
        let retry_at = TERMINAL.lock().retry_at;
        match retry_at {
            Some(at) => return sleep_until(at).await,
            None => STUCK.notified().await,
        }
    }
}

pub(crate) fn flush() {
    TERMINAL.lock().flush();
}

/// Tries a last time to write what is kept.
pub(crate) fn close() {
    TERMINAL.lock().close();
}

/// Writes the last line of a process, also for a thread that panics while it holds the lock.
pub(crate) fn say_last(line: impl Display) {
    let line = format!("{line}\n");
    let Some(mut terminal) = TERMINAL.try_lock() else {
        let _ = Outlet::open().write(line.as_bytes());
        return;
    };
    terminal.keep(line.as_bytes());
    terminal.close();
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        TERMINAL.lock().keep(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Terminal {
    fn on(outlet: Outlet) -> Self {
        let report_lost = |lost: usize| format!("{}\n", dropped(lost));
        Self { outlet, kept: Vec::new(), lost: 0, report_lost: Box::new(report_lost), retry_at: None }
    }

    fn keep(&mut self, line: &[u8]) {
        if !self.flush() && (self.lost > 0 || self.kept.len() + line.len() > MOST_KEPT) {
            self.lost += 1;
            return;
        }
        self.kept.extend(line);
        self.flush();
    }

    /// True if nothing is left.
    fn flush(&mut self) -> bool {
        loop {
            if self.kept.is_empty() && self.lost > 0 {
                self.kept = (self.report_lost)(take(&mut self.lost)).into_bytes();
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
                // The terminal hung up, or the disk is full: nobody reads this any more.
                Ok(_) | Err(_) => self.kept.clear(),
            }
        }
    }

    fn close(&mut self) {
        let until = Instant::now() + LAST_MOMENT;
        while !self.flush() && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
    }
}

/// The time and a space, or nothing if journald adds the time, or at a terminal.
pub fn time() -> String {
    static IS_ADDED: LazyLock<bool> = LazyLock::new(|| !priority(Level::INFO).is_empty() || stderr().is_terminal());
    if *IS_ADDED { String::new() } else { format!("{} ", rfc3339_seconds(wall_clock_millis())) }
}

/// The prefix of a line for journald, such as `<3>`.
pub fn priority(level: Level) -> &'static str {
    static IS_JOURNAL: LazyLock<bool> = LazyLock::new(|| is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()));
    match level {
        _ if !*IS_JOURNAL => "",
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Whether standard error is the file that `JOURNAL_STREAM` names (systemd.exec(5)): the variable is inherited even if
/// standard error goes elsewhere.
fn is_journal(stream: Option<&str>) -> bool {
    let Some((device, inode)) = stream.and_then(|stream| stream.split_once(':')) else { return false };
    fstat(stderr()).is_ok_and(|file| device.parse() == Ok(file.st_dev) && inode.parse() == Ok(file.st_ino))
}

pub(crate) fn dropped(lost: usize) -> String {
    format!("{lost} log lines were dropped because standard error did not take them")
}
