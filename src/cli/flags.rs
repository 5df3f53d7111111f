//! What both programs read from their command lines in the same way.

use crate::exit;
use crate::store::{Location, SCHEMES};
use clap::error::ErrorKind;
use clap::{ArgMatches, Parser};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// Which store: the same in both programs.
#[derive(Debug, clap::Args)]
pub struct StoreFlags {
    /// Where leases live: file:DIR or dynamodb://TABLE
    #[arg(long, value_name = "URL", env = "LEADERRUN_STORE", hide_env_values = true, global = true)]
    store: Option<String>,
}

impl StoreFlags {
    /// The URL as it was given.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// The store that was named, or the default one; then true comes with it.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn location(&self) -> Result<(Location, bool), String> {
        match self.store.as_deref() {
            Some("") => Err(format!("--store is empty: use one of {SCHEMES}")),
            Some(url) => Ok((Location::from_url(url)?, false)),
            None => Ok((Location::by_default()?, true)),
        }
    }
}

/// Reads the command line, or says in one line what is wrong with it.
///
/// # Errors
/// The status to exit with: also after `--help` and `--version`.
pub fn parse<T: Parser>(program: &str, words: impl IntoIterator<Item = OsString>) -> Result<(T, ArgMatches), ExitCode> {
    let parsed = T::command().try_get_matches_from(words).and_then(|matches| {
        let flags = T::from_arg_matches(&matches)?;
        Ok((flags, matches))
    });
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that closed the pipe has read enough.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => usage(program, "a verb is missing"),
        _ => usage(program, &one_line(&error.render().to_string())),
    })
}

/// Says what is wrong with the command line.
#[must_use]
pub fn usage(program: &str, message: &str) -> ExitCode {
    eprintln!("{program}: {message} (see {program} --help)");
    ExitCode::from(exit::USAGE)
}

/// Clap's message without its heading, its usage and its line breaks.
fn one_line(rendered: &str) -> String {
    let text = rendered.split("\n\nUsage:").next().unwrap_or(rendered).split("\n\nFor more").next().unwrap_or(rendered);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// A duration as humantime reads it, or a bare number of seconds with or without a fraction.
///
/// # Errors
/// One fragment that says what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let read = if bare {
        text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        humantime::parse_duration(text).ok()
    };
    read.ok_or_else(|| "write a duration like 15s, 1m30s, 500ms, or a bare number of seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_as_humantime_or_seconds() {
        for (text, millis) in [("15s", 15_000), ("1m30s", 90_000), ("500ms", 500), ("2", 2000), ("0.25", 250), ("0", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "-1", "1e3", "abc", ".", "1.5.2", "99999999999999999999999", "5 parsecs", "nan", "inf"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn no_duration_makes_the_parser_panic(text in "[0-9a-z. +-]{0,24}") {
            let _ = duration(&text);
        }
    }
}
