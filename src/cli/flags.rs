//! The options that both programs read in the same way.
//!
//! The hazard: a store URL may have a password. So the URL is overwritten where `ps` would show it, and a password in
//! an option that messages or `leaderctl status` would show is refused.

use super::mistakes;
use super::settings::{Settings, refuse_secret};
use super::start::{self, Failure};
use crate::guard::contain::{Contain, Containment};
use crate::observe::log;
use crate::store::url::Secret;
use crate::store::{BUILT_IN, Location};
use crate::sys;
use crate::text::{self, in_words};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Parser};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, Read, Write, stdout};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LONGEST_URL: u64 = 64 * 1024;
/// A thousand million years, as humantime counts them.
const LONGEST_DURATION: Duration = Duration::from_secs(1_000_000_000 * 31_557_600 - 1);

#[derive(Debug, clap::Args)]
pub struct StoreFlags {
    /// The store that keeps the leases, such as redis://HOST
    #[arg(long, value_name = "URL", global = true)]
    store: Option<String>,

    /// Read the store's URL from this file
    #[arg(long, value_name = "FILE", global = true)]
    store_file: Option<PathBuf>,

    /// Read this configuration file [default: /etc/leaderrun.toml]
    // Read before the other flags are known, by [`Settings::besides`].
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

#[derive(Debug)]
pub struct NamedStore {
    pub location: Location,
    /// None for the default store.
    pub url: Option<Secret>,
}

const LOCAL: &str = "only processes of this user on this host share";

impl NamedStore {
    /// Refuses the default store: if the user forgot to name one, each host would run COMMAND.
    pub fn refuse_default(&self) -> Result<(), Failure> {
        let (None, Location::File { directory }) = (&self.url, &self.location) else { return Ok(()) };
        let inside = if is_inside() { "; this runs inside a leadership, which does not pass its store on" } else { "" };
        Err(Failure::usage(format!(
            "no store named{inside}: use --store URL or LEADERRUN_STORE, or --store file: for file:{}, which {LOCAL}",
            directory.display()
        )))
    }

    /// Warns about the default store, even with `--quiet`, because other hosts do not share it. Refuses it where no
    /// person would read the warning, and inside a leadership, whose store the user probably meant.
    pub fn confirm(&self, program: &str) -> Result<(), Failure> {
        if is_inside() || !std::io::stderr().is_terminal() {
            self.refuse_default()?;
        }
        if let (None, Location::File { directory }) = (&self.url, &self.location) {
            let directory = directory.display();
            log::warn(program, &format!("no store named: using file:{directory}, which {LOCAL}"));
        }
        Ok(())
    }

    /// A directory that the user named and that does not exist. The name may be mistyped.
    pub fn new_directory(&self) -> Option<&Path> {
        #[allow(irrefutable_let_patterns, reason = "where no store of a server is built in, there is no other")]
        let Location::File { directory } = &self.location else { return None };
        let is_default = Location::by_default().is_ok_and(|default| default == self.location);
        let found = directory.symlink_metadata();
        let is_missing = found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        Some(directory.as_path()).filter(|_| is_missing && !is_default)
    }
}

impl StoreFlags {
    /// The store that the user named. When this returns, ps(1) does not show a password in the URL any more.
    pub fn named(&self, matches: &ArgMatches) -> Result<NamedStore, String> {
        let (location, url) = match (&self.store, &self.store_file) {
            (Some(url), _) => {
                let may_hold_a_secret = url.contains('@') || url.contains("password");
                if matches.value_source("store") == Some(ValueSource::CommandLine) && may_hold_a_secret {
                    sys::hide_argument(url);
                }
                (Location::from_url(url)?, url.clone())
            }
            (None, Some(path)) => {
                let url = read_url(path)?;
                let shown = text::shown(&path.to_string_lossy());
                (Location::from_url(&url).map_err(|why| format!("the store file {shown}: {why}"))?, url)
            }
            (None, None) => return Ok(NamedStore { location: Location::by_default()?, url: None }),
        };
        Ok(NamedStore { location, url: Some(Secret::from(url)) })
    }
}

/// Refuses a named pipe, which may never have a writer, unless a shell made it for `<(...)`.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let of_a_shell = ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|above| path.starts_with(above));
    if path.metadata()?.file_type().is_fifo() && !of_a_shell {
        return Err(io::Error::other("it is a named pipe; name a regular file"));
    }
    let file = File::open(path)?;
    let about = file.metadata()?;
    Ok((file, about))
}

/// Refuses a password in a file that everybody can read. The message calls the `url` `what`.
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

fn refuse_secrets(command: &Command, line: &ArgMatches) -> Result<(), String> {
    for arg in command.get_arguments() {
        let called = arg.get_long().map_or_else(|| arg.to_string(), |name| format!("--{name}"));
        let values = line.try_get_raw(arg.get_id().as_str()).ok().flatten().into_iter().flatten();
        for value in values {
            refuse_secret(arg, value, &called)?;
        }
    }
    match line.subcommand().and_then(|(name, line)| Some((command.find_subcommand(name)?, line))) {
        Some((verb, line)) => refuse_secrets(verb, line),
        None => Ok(()),
    }
}

/// Whether this runs in the tree of another leaderrun.
pub fn is_inside() -> bool {
    std::env::var_os("LEADERRUN_TERM").is_some()
}

fn read_url(path: &Path) -> Result<String, String> {
    let shown = text::shown(&path.to_string_lossy());
    let mut text = String::new();
    let read = open(path).and_then(|(file, about)| {
        file.take(LONGEST_URL).read_to_string(&mut text)?;
        Ok(about)
    });
    let about = read.map_err(|error| format!("the store file {shown} cannot be read: {}", in_words(&error)))?;
    // Most editors end a file with a line break, and some begin it with a byte order mark. Blanks are refused later.
    let url = text.trim_start_matches('\u{feff}').trim_matches(['\n', '\r']);
    if url.trim().is_empty() || url.lines().count() != 1 {
        return Err(format!("the store file {shown} must hold one line with a store URL"));
    }
    // What may be a name is not shown, because it may be part of a password.
    let name = url.split_once('=').map(|(name, _)| name.strip_prefix("export ").unwrap_or(name).trim_end());
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_some_and(|name| !name.is_empty() && name.chars().all(is_of_names)) {
        return Err(format!(
            "the store file {shown} names a variable or an option: write the URL alone, as redis://HOST"
        ));
    }
    refuse_readable_by_all("the URL", url, &about).map_err(|why| format!("{shown}: {why}"))?;
    Ok(url.to_owned())
}

pub trait Options: Parser {
    const FIRST_PAGE: FirstPage;

    fn prepare(_: &Command) {}
}

/// What `-h` shows, in one screen. `--help` shows all.
pub struct FirstPage {
    pub options: &'static str,
    pub verbs: &'static str,
    pub more: &'static str,
}

impl FirstPage {
    fn of(&self, command: Command) -> Command {
        let is_among = |names: &str, name: &str| names.split(' ').any(|shown| shown == name);
        let is_shown = |arg: &Arg| is_among(self.options, arg.get_id().as_str());
        command
            .mut_args(|arg| if is_shown(&arg) { arg.help_heading(None) } else { arg.hide(true) })
            .mut_subcommands(|verb| {
                let is_shown = is_among(self.verbs, verb.get_name());
                verb.hide(!is_shown)
            })
            .disable_help_subcommand(true)
            .after_help(self.more)
    }

    /// Whether `words` have `-h` before SHARD or a verb.
    fn is_asked_for(command: Command, words: &[OsString]) -> bool {
        let short = Arg::new("short").short('h').action(ArgAction::SetTrue);
        let line = command.disable_help_flag(true).arg(short).ignore_errors(true).try_get_matches_from(words);
        line.is_ok_and(|line| line.get_flag("short"))
    }
}

/// Reads the command line, the environment and the configuration file, or says in one line what is wrong with them.
/// Returns `command` as clap has built it; None after `--help` and `--version`.
pub fn parse<T: Options>(
    mut command: Command,
    program: &str,
    words: impl IntoIterator<Item = OsString>,
) -> Result<Option<(T, ArgMatches, Command)>, Failure> {
    let words = joined(&command, words.into_iter().collect());
    let read = |command: &mut Command| {
        let line = command.try_get_matches_from_mut(&words)?;
        // These are printed for an installation, whatever is configured.
        if matches!(line.subcommand_name(), Some("completions" | "man")) {
            return T::from_arg_matches(&line).map(|flags| Ok((flags, line)));
        }
        let settings = refuse_secrets(command, &line).and_then(|()| Settings::besides(&line, command));
        let settings = match settings {
            Ok(settings) => settings,
            Err(message) => return Ok(Err(message)),
        };
        // From here on, mistakes are reported in the format that is set.
        if settings.get("log-format").is_some_and(|format| format == "json") {
            log::choose(log::Format::Json);
        }
        let matches =
            if settings.0.is_empty() { line } else { settings.put_into(T::command()).try_get_matches_from(&words)? };
        T::from_arg_matches(&matches).map(|flags| Ok((flags, matches)))
    };
    let error = match read(&mut command) {
        Ok(Ok((flags, matches))) => return Ok(Some((flags, matches, command))),
        Ok(Err(message)) => return Err(Failure::usage(message)),
        Err(error) => error,
    };
    let written = match error.kind() {
        ErrorKind::DisplayVersion => stdout().write_all(version(program).as_bytes()),
        ErrorKind::DisplayHelp if FirstPage::is_asked_for(T::command(), &words) => {
            T::FIRST_PAGE.of(T::command()).print_help()
        }
        ErrorKind::DisplayHelp => error.print(),
        _ => {
            let message = verb_of_a_verb(&error, &command).unwrap_or_else(|| mistakes::told(&error));
            return Err(Failure::usage(message));
        }
    };
    start::printed(written).map(|_| None)
}

/// Three lines, and one for each kill method that does not work here.
fn version(program: &str) -> String {
    let commit = option_env!("SOURCE_COMMIT").map(|commit| format!(" (commit {commit})")).unwrap_or_default();
    let (version, stores) = (env!("CARGO_PKG_VERSION"), BUILT_IN.join(", "));
    let mut text = format!("{program} {version}{commit}\nstores: {stores}\n");
    let methods = [Contain::Walk, Contain::Cgroup, Contain::Pidns].map(|way| (way.into_str(), Containment::find(way)));
    let usable: Vec<&str> = methods.iter().filter(|(_, found)| found.is_ok()).map(|(name, _)| *name).collect();
    let _ = writeln!(text, "kill methods on this host: {}", usable.join(", "));
    for why in methods.into_iter().filter_map(|(_, found)| found.err()) {
        let _ = writeln!(text, "  {why}");
    }
    text
}

/// What to write for `init`, which is a verb of `store`; or what to do about a verb that this build lacks.
fn verb_of_a_verb(error: &clap::Error, command: &Command) -> Option<String> {
    let ContextValue::String(word) = error.get(ContextKind::InvalidSubcommand)? else { return None };
    if cfg!(not(feature = "watch")) && ["serve", "top"].contains(&word.as_str()) {
        return Some(format!("this leaderctl was built without {word}: build it with the feature watch"));
    }
    let verb = command.get_subcommands().find(|verb| verb.find_subcommand(word).is_some())?;
    let (program, verb) = (command.get_name(), verb.get_name());
    Some(format!("unrecognized subcommand '{word}'; write {program} {verb} {word}"))
}

/// Reads `--wait 20s` as `--wait=20s`, where the value may be left out, if the next word is a duration.
fn joined(command: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let may_have_one = |word: &str| {
        let mut options = command.get_subcommands().flat_map(Command::get_arguments);
        options.any(|arg| arg.is_require_equals_set() && arg.get_long() == word.strip_prefix("--"))
    };
    let mut all: Vec<OsString> = Vec::with_capacity(words.len());
    let mut waits = false;
    for word in words {
        let text = word.to_string_lossy();
        if let Some(option) = all.last_mut().filter(|_| waits && duration(&text).is_ok()) {
            option.push("=");
            option.push(&word);
            waits = false;
        } else {
            waits = text.starts_with("--") && may_have_one(&text);
            all.push(word);
        }
    }
    all
}

/// The shortest duration but zero, because messages show shorter ones as zero.
const SHORTEST_DURATION: Duration = Duration::from_millis(1);

/// As humantime reads it, or a number of seconds. An `M` is refused, because it would be a month.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.split(|c: char| !c.is_alphabetic()).any(|unit| unit == "M") {
        return Err("M is a month: write m for minutes, or a number of days".to_owned());
    }
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

pub fn line<const MOST: usize>(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MOST || text.contains(char::is_control) {
        return Err(format!("write 1 to {MOST} printable bytes"));
    }
    Ok(text.to_owned())
}

/// Whether the value of the option `word` is the next word.
pub fn takes_next(command: &Command, word: &str) -> bool {
    let mut options = command.get_arguments().filter(|arg| arg.get_action().takes_values() && !arg.is_positional());
    if let Some(name) = word.strip_prefix("--") {
        let has_name = |names: Vec<&str>| names.contains(&name);
        return options.any(|arg| arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(has_name));
    }
    // Its value is the rest of the word, or the next one.
    let short: Vec<char> = options.filter_map(Arg::get_short).collect();
    let letters = word.trim_start_matches('-');
    letters.find(&short[..]).is_some_and(|at| letters[at..].chars().count() == 1)
}
