//! The options that both programs read in the same way.
//!
//! The hazard: a store URL may have a password, and people put it in the wrong place. So the URL is overwritten where
//! `ps` would show it, and a password in an option that messages or `leaderctl status` would show is refused.

use super::config::Settings;
use super::exclusions::{self, Overruled};
use super::mistakes;
use super::start::{self, Failure};
use super::version;
use crate::exit;
use crate::observe::log;
use crate::store::url::Secret;
use crate::store::{Location, SCHEMES};
use crate::sys;
use crate::text::{self, in_words};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Parser};
use std::any::TypeId;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{Read, Write, stdout};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The name under which a service manager hands over a store URL: `LoadCredential=leaderrun.store:FILE`
/// (systemd.exec(5), "Credentials").
const CREDENTIAL: &str = "leaderrun.store";
/// The longest store URL in a file, which is one line.
const LONGEST_URL: u64 = 64 * 1024;
/// A thousand million of humantime's years.
const LONGEST_DURATION: Duration = Duration::from_secs(1_000_000_000 * 31_557_600 - 1);

/// Which store, and which configuration file.
#[derive(Debug, clap::Args)]
pub struct StoreFlags {
    /// The store that keeps the leases, such as redis://HOST
    #[arg(long, value_name = "URL", env = "LEADERRUN_STORE", hide_env_values = true, global = true)]
    store: Option<String>,

    /// Read the store's URL from this file
    #[arg(long, value_name = "FILE", env = "LEADERRUN_STORE_FILE", global = true)]
    store_file: Option<PathBuf>,

    /// Read this configuration file [default: /etc/leaderrun.toml]
    // Read before the other flags are known, by [`Settings::read`].
    #[arg(long, value_name = "FILE", env = "LEADERRUN_CONFIG", global = true)]
    pub config: Option<PathBuf>,
}

/// The store that was named, or the default one.
#[derive(Debug)]
pub struct NamedStore {
    pub location: Location,
    /// As it was given. None for the default one.
    pub url: Option<Secret>,
}

/// What the default store is not.
const LOCAL: &str = "leases are files that only this user of this host sees";

impl NamedStore {
    /// Refuses the default store: it would let each host run COMMAND, where the user forgot to name another one.
    ///
    /// # Errors
    /// No store was named.
    pub fn refuse_default(&self) -> Result<(), Failure> {
        let (None, Location::File { directory }) = (&self.url, &self.location) else { return Ok(()) };
        let inside = if is_inside() { "; this runs inside a leadership, which does not pass its store on" } else { "" };
        Err(Failure::Usage(format!(
            "no store named{inside}: use --store URL or LEADERRUN_STORE, or --store file: for file:{}, where {LOCAL}",
            directory.display()
        )))
    }

    /// Says which store this is, if the user has not named it.
    pub fn tell_doubt(&self, program: &str) {
        if let (None, Location::File { directory }) = (&self.url, &self.location) {
            let directory = directory.display();
            log::warn(program, &format!("no store named: using file:{directory}, where {LOCAL}"));
        }
    }
}

impl StoreFlags {
    /// The store that the command line names, or else the environment, a credential of the service manager, or the
    /// configuration file. When this returns, ps(1) does not show a password in the URL any more.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn named(&self, matches: &ArgMatches) -> Result<NamedStore, String> {
        let overruled = Overruled::find(matches)?;
        let (by_url, by_file) = (matches.value_source("store"), matches.value_source("store_file"));
        let given = Some(ValueSource::CommandLine);
        // Neither has a default of its own: a default comes from the configuration file.
        let configured = by_url.max(by_file) <= Some(ValueSource::DefaultValue);
        let credential = if configured { credential()? } else { None };
        let url = match (credential, &self.store, &self.store_file) {
            (Some(path), ..) => Some(read_url(&path)?),
            (None, Some(url), _) if !overruled.has("store") => {
                if by_url == given && may_hold_a_secret(url) {
                    sys::hide_argument(url);
                }
                Some(url.clone())
            }
            (None, _, Some(path)) => Some(read_url(path)?),
            (None, _, None) => None,
        };
        match url {
            Some(url) if url.is_empty() => {
                let named = exclusions::as_given("store", by_url.unwrap_or(ValueSource::CommandLine));
                Err(format!("{named} is empty: use one of {SCHEMES}"))
            }
            Some(url) => Ok(NamedStore { location: Location::from_url(&url)?, url: Some(Secret::from(url)) }),
            None => Ok(NamedStore { location: Location::by_default()?, url: None }),
        }
    }
}

fn may_hold_a_secret(url: &str) -> bool {
    url.contains('@') || url.contains("password")
}

/// Refuses a password in a file that everybody can read. The file has the store's `url`; the message calls it `what`.
///
/// # Errors
/// One fragment that says so, and what to do.
pub fn refuse_readable_by_all(what: &str, url: &str, file: &Metadata) -> Result<(), String> {
    let for_others = file.mode() & 0o004 != 0;
    if for_others && text::looks_secret(url) {
        return Err(format!(
            "{what} has a password in it, and everybody can read this file: chmod o-r (a secret of Kubernetes: \
             defaultMode 0400, and fsGroup for a user; of Docker: mode 0400)"
        ));
    }
    Ok(())
}

/// Refuses a password in an option that is not a store URL: messages, log lines and `leaderctl status` would show it.
/// What a shell or COMMAND gets may hold one, and is not shown; only those values are of type [`OsString`].
fn refuse_secrets(command: &Command, matches: &ArgMatches) -> Result<(), String> {
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if arg.get_long() == Some("store") || arg.get_value_parser().type_id() == TypeId::of::<OsString>() {
            continue;
        }
        let mut values = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
        if values.any(|value| text::looks_secret(&value.to_string_lossy())) {
            let named = match (matches.value_source(id), arg.get_env(), arg.get_long()) {
                (Some(ValueSource::EnvVariable), Some(variable), _) => variable.to_string_lossy().into_owned(),
                (_, _, Some(name)) => format!("--{name}"),
                (..) => arg.to_string(),
            };
            return Err(format!(
                "{named} has what looks like a password, and would show it: give a store URL with --store"
            ));
        }
    }
    match matches.subcommand().and_then(|(name, matches)| Some((command.find_subcommand(name)?, matches))) {
        Some((verb, matches)) => refuse_secrets(verb, matches),
        None => Ok(()),
    }
}

/// Whether an outer leaderrun has started this as its COMMAND, or below it.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os("LEADERRUN_TERM").is_some()
}

/// The file in which the service manager hands over a store URL. A directory that cannot be read may hold one.
fn credential() -> Result<Option<PathBuf>, String> {
    let Some(directory) = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from) else { return Ok(None) };
    let path = directory.join(CREDENTIAL);
    let found = directory.metadata().and_then(|_| path.try_exists());
    found.map(|found| found.then_some(path)).map_err(|error| {
        let shown = text::shown(&directory.to_string_lossy());
        format!("CREDENTIALS_DIRECTORY={shown} cannot be read: {}", in_words(&error))
    })
}

fn read_url(path: &Path) -> Result<String, String> {
    let shown = text::shown(&path.to_string_lossy());
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        let about = file.metadata()?;
        file.take(LONGEST_URL).read_to_string(&mut text)?;
        Ok(about)
    });
    let about = read.map_err(|error| format!("the store file {shown} cannot be read: {}", in_words(&error)))?;
    // Most editors end a file with a line break. Blanks are refused, as they are everywhere else.
    let url = text.trim_matches(['\n', '\r']);
    if url.trim().is_empty() || url.lines().count() != 1 {
        return Err(format!("the store file {shown} must hold one line with a store URL"));
    }
    refuse_readable_by_all("the URL", url, &about).map_err(|why| format!("{shown}: {why}"))?;
    Ok(url.to_owned())
}

/// Reads the command line, the environment and the configuration file, or says in one line what is wrong with them.
/// `fail` says that help could not be printed.
///
/// # Errors
/// The status to exit with: also after `--help` and `--version`.
pub fn parse<T: Parser>(
    program: &str,
    words: impl IntoIterator<Item = OsString>,
    fail: impl Fn(u8, &str) -> ExitCode,
) -> Result<(T, ArgMatches), ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    // Each variable has the name of its option.
    let command = || T::command().mut_args(|arg| arg.hide_env(true));
    let parsed = command().try_get_matches_from(&words).and_then(|matches| {
        // Completions are printed for an installation, whatever is configured.
        if matches.subcommand_name() == Some("completions") {
            return Ok(Ok(matches));
        }
        if let Err(message) = refuse_secrets(&command(), &matches) {
            return Ok(Err(usage(program, &message)));
        }
        // Only the command line tells which file, and which shard. No file makes a right command line wrong.
        match Settings::read(&matches) {
            Ok(settings) if settings.is_empty() => Ok(Ok(matches)),
            Ok(settings) => {
                // From here on, mistakes are reported in the format that the file asks for.
                let by_default = matches.try_get_raw("log_format").is_ok()
                    && matches.value_source("log_format") == Some(ValueSource::DefaultValue);
                if by_default && settings.get("log-format") == Some("json") {
                    log::choose(log::Format::Json);
                }
                let matches = settings.put_into(command()).try_get_matches_from(&words)?;
                Ok(refuse_secrets(&command(), &matches).map(|()| matches).map_err(|message| usage(program, &message)))
            }
            Err(message) => Ok(Err(usage(program, &message))),
        }
    });
    let parsed = match parsed {
        Ok(Ok(matches)) => T::from_arg_matches(&matches).map(|flags| (flags, matches)),
        Ok(Err(status)) => return Err(status),
        Err(error) => Err(error),
    };
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayVersion => start::printed(stdout().write_all(version::text(program).as_bytes()), fail),
        ErrorKind::DisplayHelp => start::printed(error.print(), fail),
        _ => usage(program, &mistakes::told(&error, command(), &words)),
    })
}

/// Reports what is wrong with the command line.
#[must_use]
pub fn usage(program: &str, message: &str) -> ExitCode {
    log::fail(program, exit::USAGE, &format!("{message} (see {program} --help)"));
    ExitCode::from(exit::USAGE)
}

/// The shortest duration but none at all. Messages show shorter ones as none.
const SHORTEST_DURATION: Duration = Duration::from_millis(1);

/// A duration as humantime reads it, or a bare number of seconds with or without a fraction.
///
/// # Errors
/// One fragment that says what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    // Humantime panics if each part of a text is a duration, and their sum is too long.
    let digits = |c: char| c.is_ascii_digit();
    let short = text.len() <= 100 && text.split(|c| !digits(c)).all(|number| number.len() <= 9);
    let read = if bare {
        text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        Some(text).filter(|_| short).and_then(|text| humantime::parse_duration(text).ok())
    };
    match read.filter(|&read| read <= LONGEST_DURATION) {
        Some(read) if !read.is_zero() && read < SHORTEST_DURATION => {
            Err("write 1ms or more, such as 15s, 1m30s or 500ms".to_owned())
        }
        Some(read) => Ok(read),
        None => Err("write a duration such as 15s, 1m30s or 500ms, or a number of seconds".to_owned()),
    }
}

/// Whether the value of the option `word` is the next word.
#[must_use]
pub fn takes_next(command: &Command, word: &str) -> bool {
    let takes = |is_it: &dyn Fn(&Arg) -> bool| {
        command.get_arguments().any(|arg| arg.get_action().takes_values() && !arg.is_positional() && is_it(arg))
    };
    if let Some(name) = word.strip_prefix("--") {
        let is_it = |arg: &Arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|names| names.contains(&name))
        };
        return !name.contains('=') && takes(&is_it);
    }
    // Its value is the rest of the word, or the next one.
    let letters = word.trim_start_matches('-');
    let takes = |letter: char| takes(&|arg| arg.get_short() == Some(letter));
    letters.find(takes).is_some_and(|at| letters[at..].chars().count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn durations_are_read_as_humantime_or_seconds() {
        for (text, millis) in [("15s", 15_000), ("1m30s", 90_000), ("500ms", 500), ("2", 2000), ("0.25", 250), ("0", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for short in ["1us", "999us", "1ns", "0.0009"] {
            assert!(duration(short).unwrap_err().starts_with("write 1ms or more"), "{short}");
        }
        assert_eq!(duration("584542046090y 500ms 18446744073709551615.5s").ok(), None);
        for bad in ["", "-1", "1e3", "abc", ".", "1.5.2", "99999999999999999999999", "5 parsecs", "nan", "inf"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_million_durations_are_read_as_what_they_are_shown_as_or_refused() {
        let seeds = [
            "15s",
            "1m30s",
            "500ms",
            "2",
            "0.25",
            "1year 2months 3days 4h 5min 6s 7ms 8us 9ns",
            "18446744073709551615s",
        ];
        fuzz::bent_text("duration", &seeds, |text, _| {
            let read = duration(text);
            match &read {
                Ok(read) => {
                    assert_eq!(duration(&humantime::format_duration(*read).to_string()).as_ref(), Ok(read));
                    if let Ok(seconds) = text.parse::<u32>() {
                        assert_eq!(*read, Duration::from_secs(seconds.into()));
                    }
                }
                Err(message) => fuzz::assert_is_one_line(message),
            }
            (&read).into()
        });
    }
}
