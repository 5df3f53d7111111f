//! How both programs start, and how they end if they cannot do their work.
//!
//! The hazard: missing memory, descriptors or threads must be found before a lease is held, and each way to fail must
//! end in one line and one status.

use super::flags::{self, Options};
use super::settings;
use crate::exit;
use crate::observe::{log, terminal};
use crate::runner::limits;
use crate::runtime;
use crate::store::{Location, StoreError};
use crate::text::in_words;
use clap::ArgMatches;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use tokio::runtime::Runtime;

#[derive(Debug)]
pub struct Failure {
    pub status: u8,
    pub message: String,
    points_to_help: bool,
}

impl Failure {
    pub fn usage(message: String) -> Self {
        Self { points_to_help: true, ..Self::of(exit::USAGE, message) }
    }

    pub fn of(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), points_to_help: false }
    }

    /// With more at the end of its message.
    pub fn and(self, more: &str) -> Self {
        Self { message: format!("{}; {more}", self.message), ..self }
    }

    pub fn of_os(message: impl Into<String>) -> Self {
        Self::of(exit::OS_ERROR, message)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::of(error.exit_status(), error.message)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::of_os(format!("the operating system refused: {error}"))
    }
}

/// Reads the options of `program` and does its `work`. `fail` prints what went wrong.
pub fn main<T: Options>(
    program: &str,
    fail: impl Fn(u8, &str) -> ExitCode,
    work: impl FnOnce(T, &ArgMatches) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let done = limits::check().map_err(Failure::of_os).and_then(|()| read(program, work));
    let status = done.unwrap_or_else(|Failure { status, mut message, points_to_help }| {
        if points_to_help {
            log::fail(program, status, &format!("{message} (see {program} --help)"));
            return ExitCode::from(status);
        }
        // While a program retries, messages only say what happened. The last one says what to do.
        if message.ends_with("connection refused") {
            message.push_str("; check that the server runs, and the host and the port in the store URL");
        }
        fail(status, &message)
    });
    terminal::close();
    status
}

/// In its own function, because declaring the options takes more stack than a small limit leaves.
#[inline(never)]
fn read<T: Options>(
    program: &str,
    work: impl FnOnce(T, &ArgMatches) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    let command = T::command();
    T::prepare(&command);
    let Some((flags, matches, command)) = flags::parse(command, program, std::env::args_os())? else {
        return Ok(ExitCode::SUCCESS);
    };
    for doubt in settings::doubts(&command) {
        log::warn(program, &doubt);
    }
    work(flags, &matches)
}

/// Fails unless `written` went to standard output. A reader that closed the pipe has read enough.
pub fn printed(written: io::Result<()>) -> Result<ExitCode, Failure> {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::of_os(format!("cannot write to standard output: {}", in_words(&error))))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

pub fn runtime(location: &Location) -> Result<Runtime, Failure> {
    if !matches!(location, Location::File { .. }) {
        runtime::check_threads().map_err(Failure::of_os)?;
    }
    Ok(runtime::of_one_thread().build()?)
}
