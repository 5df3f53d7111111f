//! How both programs start, and how they end if they cannot do their work.
//!
//! The hazard: missing memory, descriptors or threads must be found before a lease is held, and each way to fail must
//! end in one line and one status.

use super::flags::{self, Options};
use super::variables;
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
pub enum Failure {
    Usage(String),
    Other { status: u8, message: String },
}

impl Failure {
    pub fn of_os(message: impl Into<String>) -> Self {
        Self::Other { status: exit::OS_ERROR, message: message.into() }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Other { status: error.exit_status(), message: error.message }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::of_os(format!("the operating system refused: {error:#}"))
    }
}

/// Reads the options of `program` and does its `work`. `fail` prints what went wrong.
pub fn main<T: Options>(
    program: &str,
    fail: impl Fn(u8, &str) -> ExitCode,
    work: impl FnOnce(T, &ArgMatches) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let status = match limits::check() {
        Ok(()) => read(program, &fail, work),
        Err(message) => fail(exit::OS_ERROR, &message),
    };
    terminal::close();
    status
}

/// In its own function, because declaring the options takes more stack than a small limit leaves.
#[inline(never)]
fn read<T: Options>(
    program: &str,
    fail: &impl Fn(u8, &str) -> ExitCode,
    work: impl FnOnce(T, &ArgMatches) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let command = T::command();
    T::prepare(&command);
    let (flags, matches, command) = match flags::parse(command, program, std::env::args_os(), fail) {
        Ok(read) => read,
        Err(status) => return status,
    };
    for doubt in variables::doubts(&command) {
        log::warn(program, &doubt);
    }
    work(flags, &matches).unwrap_or_else(|failure| match failure {
        Failure::Usage(message) => flags::usage(program, &message),
        Failure::Other { status, message } => fail(status, &with_next_step(message)),
    })
}

/// Only the last message of a program says what to do. While it retries, messages only say what happened.
fn with_next_step(message: String) -> String {
    if message.ends_with("connection refused") {
        return format!("{message}; check that the server runs, and the host and the port in the store URL");
    }
    message
}

/// The status after `written` went to standard output. `fail` prints why it did not.
pub fn printed(written: io::Result<()>, fail: impl Fn(u8, &str) -> ExitCode) -> ExitCode {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that closed the pipe has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(exit::OS_ERROR, &format!("cannot write to standard output: {}", in_words(&error))),
    }
}

pub fn runtime(location: &Location) -> Result<Runtime, Failure> {
    if !matches!(location, Location::File { .. }) {
        runtime::check_threads().map_err(Failure::of_os)?;
    }
    let runtime = runtime::of_one_thread().build();
    runtime.map_err(|error| Failure::from(anyhow::Error::from(error)))
}
