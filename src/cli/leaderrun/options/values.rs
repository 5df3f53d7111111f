//! The values of the options of `leaderrun`. Each refusal says what to write.

use crate::cli::config::VERBOSITY;
use crate::cli::flags;
use crate::lease::MOST_SLOTS;
use crate::notes::jobs::period::Period;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub fn signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let by_number = text.parse().ok().and_then(|number: i32| Signal::try_from(number).ok());
    let read = by_number
        .or_else(|| Signal::from_str(&upper).ok())
        .or_else(|| Signal::from_str(&format!("SIG{upper}")).ok())
        .ok_or("write a signal such as TERM, SIGINT or 15")?;
    // A stopped COMMAND neither ends nor handles another signal.
    if let Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU | Signal::SIGCONT = read {
        return Err(format!("{read} does not end a program: write one that does, such as TERM, SIGINT or 15"));
    }
    Ok(read)
}

/// For the variable: on the command line the option is repeated.
pub fn verbosity(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| VERBOSITY.to_owned())
}

pub fn status(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "write an exit status from 0 to 255".to_owned())
}

pub fn slots(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|slots| (1..=MOST_SLOTS).contains(slots));
    number.ok_or_else(|| format!("write how many may lead at once, 1 to {MOST_SLOTS}"))
}

pub fn times(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a whole number, such as 2".to_owned())
}

pub fn metrics_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension == "prom" => Ok(path),
        _ => Err("node_exporter reads only files whose names end with .prom".to_owned()),
    }
}

pub fn every(text: &str) -> Result<Duration, String> {
    let every = flags::duration(text)?;
    Period::new(0, every).map(|_| every)
}

pub fn hook(text: &str) -> Result<OsString, String> {
    if text.trim().is_empty() {
        return Err("write a command for the shell, or leave the option out".to_owned());
    }
    Ok(text.into())
}
