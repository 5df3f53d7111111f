//! What `leaderctl selftest` starts: candidates, and the COMMAND that measures them. Both are this executable under
//! other names, so that nothing else need be installed.
//!
//! The hazard: a self-test that is killed must leave nothing running. So a candidate dies with the process that started
//! it, and its guard kills the tree, as after any kill. If all of them are killed at once, COMMAND ends by itself some
//! time later.

use crate::cli::leaderrun;
use crate::sys::SingleThread;
use crate::time::{self, BootInstant};
use crate::{guard, sys};
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getppid, setsid};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

pub const CANDIDATE_NAME: &str = "lr-selftest";
/// The candidate's COMMAND. Its name is this path, so the first argument tells it what it is.
pub const COMMAND: &str = "/proc/self/exe";
pub const COMMAND_NAME: &str = "lr-selftest-command";
/// Makes COMMAND ignore SIGTERM, and gives it a daemon, which ignores it too.
pub const STUBBORN: &str = "stubborn";

/// A candidate's parent, and the file that says how many seconds its wall clock is off.
pub const PARENT_VARIABLE: &str = "LEADERRUN_SELFTEST_PARENT";
pub const CLOCK_VARIABLE: &str = "LEADERRUN_SELFTEST_CLOCK";

const STAMP_EVERY: Duration = Duration::from_millis(2);

static CLOCK_FILE: OnceLock<PathBuf> = OnceLock::new();

/// Becomes one of them, or a helper of such a candidate, if this process was respawned for that.
pub fn run_if_respawned() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    let done = if name == CANDIDATE_NAME {
        be_candidate()
    } else if name == COMMAND && arguments.next().is_some_and(|first| first == COMMAND_NAME) {
        be_command(arguments).map(|()| ExitCode::SUCCESS)
    } else {
        return guard::run_if_respawned();
    };
    Some(done.unwrap_or_else(|error| {
        eprintln!("{CANDIDATE_NAME}: {error}");
        ExitCode::from(crate::exit::OS_ERROR)
    }))
}

/// Does what the real program does, from its options on.
fn be_candidate() -> io::Result<ExitCode> {
    let parent = std::env::var(PARENT_VARIABLE).ok().and_then(|number| number.parse().ok()).map(Pid::from_raw);
    let bound = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    // The parent may have died before the line above took effect.
    if bound.is_err() || parent != Some(getppid()) {
        return Err(io::Error::other("its parent is gone"));
    }
    if let Some(path) = std::env::var_os(CLOCK_VARIABLE) {
        CLOCK_FILE.get_or_init(|| path.into());
        time::simulate(time::boot_clock, stepped_wall_clock);
    }
    Ok(leaderrun::main())
}

fn stepped_wall_clock() -> u64 {
    let text = CLOCK_FILE.get().and_then(|path| std::fs::read_to_string(path).ok());
    let seconds = text.and_then(|text| text.trim().parse::<i64>().ok()).unwrap_or(0);
    time::wall_clock().saturating_add_signed(seconds * 1000)
}

/// `FILE UNTIL [stubborn]`: appends `OWNER TERM PID BOOT_NANOSECONDS` to a file until it dies.
fn be_command(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let wrong = || io::Error::other("only leaderctl selftest starts this program");
    let path = arguments.next().ok_or_else(wrong)?;
    let until = arguments.next().and_then(|text| text.to_str()?.parse().ok()).ok_or_else(wrong)?;
    if arguments.next().is_some_and(|flag| flag == STUBBORN) {
        sys::ignore(Signal::SIGTERM);
        make_daemon(&path, until)?;
    }
    stamp(&path, BootInstant::from_nanos(until))
}

fn make_daemon(path: &OsString, until: u64) -> io::Result<()> {
    let single_thread = SingleThread::prove()?;
    if let Some(child) = single_thread.fork()? {
        waitpid(child, None)?;
        return Ok(());
    }
    let forked = setsid().map_err(io::Error::from).and_then(|_| single_thread.fork());
    let done = forked.and_then(|child| match child {
        Some(_) => Ok(()),
        None => stamp(path, BootInstant::from_nanos(until)),
    });
    std::process::exit(i32::from(done.is_err()));
}

fn stamp(path: &OsString, until: BootInstant) -> io::Result<()> {
    let mut file = File::options().append(true).open(path)?;
    let told = |name: &str| std::env::var(name).unwrap_or_else(|_| "?".to_owned());
    let (owner, term, pid) = (told("LEADERRUN_CANDIDATE"), told("LEADERRUN_TERM"), std::process::id());
    loop {
        let now = BootInstant::now();
        if now >= until {
            return Ok(());
        }
        // One write, so that lines of several writers do not mix. All lines have one length, a power of two, because
        // the kernel may cut the write of a killed process where a page of the file ends.
        let told = format!("{owner} {term} {pid} {}", now.as_nanos());
        file.write_all(format!("{told:<127}\n").as_bytes())?;
        std::thread::sleep(STAMP_EVERY);
    }
}
