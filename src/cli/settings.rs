//! What the options are set to, by rank: the command line, then the environment, then a credential of the
//! service manager, then the table of the shard in the configuration file, then the file.
//!
//! Different people write these. So two options that exclude each other are a mistake only within one rank. Otherwise
//! the one of the higher rank counts, and the other is dropped.
//!
//! Clap reads only the command line. What else is set becomes the option's default.

use super::completions::Program;
use super::config::{self, VERBOSITY};
use super::mistakes::quoted;
use crate::observe::query_socket;
use crate::store::Location;
use crate::text::{self, in_words, looks_secret, on_one_line};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The option that names the configuration file, and cannot be in it.
pub const CONFIG: &str = "config";
/// The name under which a service manager hands over a store URL: `LoadCredential=leaderrun.store:FILE`
/// (systemd.exec(5), "Credentials").
const CREDENTIAL: &str = "leaderrun.store";

const PREFIX: &str = "LEADERRUN_";
/// The variables that COMMAND, hooks, standby tasks and their children get; and those of `selftest`.
const GIVEN: &str = "ATTEMPT CANDIDATE DUE EVENT EXIT_STATUS JOB LEADER LEADER_HOST LEADER_TERM PREVIOUS \
                     REASON SELFTEST_CLOCK SELFTEST_PARENT SHARD SLOT SOCKET SOCKET_KEY TAKEOVER TERM";

const STORES: [&str; 2] = ["store", "store-file"];

const ONE: &str = "use one of them";
const RETRY: &str = "use --retry-failed to repeat a job";
const ONE_TERM: &str = "a job runs in one term";
const RUNS_ONCE: &str = "a job runs once, whichever candidate leads";
/// Of several leaders, each check may name another one first, so the hook would run again and again.
const SEVERAL: &str = "there are several leaders at once";

/// Options that exclude each other, by their long names, and what to do instead.
const EXCLUSIONS: [(&str, &str, &str); 11] = [
    ("store", "store-file", ONE),
    ("no-wait", "wait", ONE),
    ("quiet", "verbose", ONE),
    ("every", "once", ONE),
    ("every", "restart", RETRY),
    ("once", "restart", RETRY),
    ("every", "relinquish", ONE_TERM),
    ("once", "relinquish", ONE_TERM),
    ("slots", "every", RUNS_ONCE),
    ("slots", "once", RUNS_ONCE),
    ("slots", "on-leader-change", SEVERAL),
];

/// Options by their long names, with their text on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(pub BTreeMap<String, OsString>);

impl Settings {
    /// What is set besides the command line, for a program with the options of `command`.
    pub fn besides(line: &ArgMatches, command: &Command) -> Result<Self, String> {
        let on_line = Self::of_line(line, command);
        let environment = Self::of_environment(command, &on_line)?;
        let (of_shard, of_all) = Self::of_file(line, &on_line, &environment)?;
        let is_store_named = [&on_line, &environment].iter().any(|layer| layer.names_a_store());
        let credential = if is_store_named { Self::default() } else { Self::of_credential()? };
        let given = on_line.clone();
        let in_file = |name: &str| format!("{name} in the configuration file");
        // As flock(1) is used, this may also be SHARD -c STRING, which is nearer than the file.
        let runs_another = operands(line).nth(1).is_some_and(|word| word != "-c");
        if runs_another && [&of_shard, &of_all].iter().any(|layer| layer.is_on("command")) {
            return Err(exclude_each_other(&in_file("command"), "COMMAND", ONE));
        }
        let mut all = merge([
            (on_line, &|name: &str| format!("--{name}")),
            (environment, &variable),
            (credential, &|name: &str| format!("{name} of the service manager")),
            (of_shard, &in_file),
            (of_all, &in_file),
        ])?;
        all.0.retain(|name, _| !given.0.contains_key(name));
        Ok(all)
    }

    /// Whether a variable or the configuration file sets the option `name`, which the command line sets too.
    pub fn is_overruled(name: &str, line: &ArgMatches, command: &Command) -> Result<bool, String> {
        let on_line = Self::of_line(line, command);
        let environment = Self::of_environment(command, &on_line)?;
        let (of_shard, of_all) = Self::of_file(line, &on_line, &environment)?;
        Ok([environment, of_shard, of_all].iter().any(|layer| layer.get(name).is_some()))
    }

    fn of_file(line: &ArgMatches, on_line: &Self, environment: &Self) -> Result<(Self, Self), String> {
        let named = on_line.0.get(CONFIG).or(environment.0.get(CONFIG)).map(PathBuf::from);
        let read = config::read(named.as_deref(), operands(line).next().and_then(|shard| shard.to_str()));
        if asks_this_host(line) { Ok(read.unwrap_or_default()) } else { read }
    }

    fn of_line(line: &ArgMatches, command: &Command) -> Self {
        let given = |arg: &&Arg| line.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        let text = |arg: &Arg| match line.try_get_raw(arg.get_id().as_str()).ok().flatten()?.next_back() {
            Some(value) if arg.get_action().takes_values() => Some(value.to_owned()),
            _ => Some("true".into()),
        };
        let options = command.get_arguments().filter(|arg| arg.get_long().is_some() && !is_help(arg)).filter(given);
        Self(options.filter_map(|arg| Some((arg.get_long()?.to_owned(), text(arg)?))).collect())
    }

    /// Ignores a store in a variable, which may be empty, if the command line names one.
    fn of_environment(command: &Command, on_line: &Self) -> Result<Self, String> {
        let mut settings = Self::default();
        for arg in command.get_arguments() {
            let (Some(name), Some(variable)) = (arg.get_long(), variable_of(arg)) else { continue };
            let Some(value) = std::env::var_os(&variable) else { continue };
            if STORES.contains(&name) && on_line.names_a_store() {
                continue;
            }
            let text = checked(arg, &value).map_err(|why| match value.to_str() {
                None => format!("{variable} is not UTF-8: correct it"),
                // It may have a password.
                Some(_) if name == "store" => format!("{variable}: {why}"),
                Some(value) => format!("invalid value {} for {variable}: {why}", quoted(value)),
            })?;
            refuse_secret(arg, &text, &variable)?;
            settings.0.insert(name.to_owned(), text);
        }
        Ok(settings)
    }

    /// A directory that cannot be read may hold a credential.
    fn of_credential() -> Result<Self, String> {
        let mut settings = Self::default();
        let Some(directory) = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from) else { return Ok(settings) };
        let path = directory.join(CREDENTIAL);
        let found = directory.metadata().and_then(|_| path.try_exists()).map_err(|error| {
            let shown = text::shown(&directory.to_string_lossy());
            format!("CREDENTIALS_DIRECTORY={shown} cannot be read: {}", in_words(&error))
        })?;
        if found {
            settings.0.insert("store-file".to_owned(), path.into());
        }
        Ok(settings)
    }

    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str)
    }

    pub fn put_into(self, command: Command) -> Command {
        // Help does not show it: help was printed before this was read.
        command.mut_args(|arg| match arg.get_long().and_then(|name| self.0.get(name)).cloned() {
            Some(text) => arg.default_value(text),
            None => arg,
        })
    }

    fn is_on(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|text| !is_off(name, text))
    }

    fn names_a_store(&self) -> bool {
        STORES.iter().any(|name| self.is_on(name))
    }

    pub fn contradiction(&self) -> Option<(&'static str, &'static str, &'static str)> {
        EXCLUSIONS.into_iter().find(|(one, other, _)| self.is_on(one) && self.is_on(other))
    }
}

pub fn exclude_each_other(one: &str, other: &str, advice: &str) -> String {
    format!("{one} and {other} exclude each other: {advice}")
}

/// Whether the verb asks candidates of this host. Then a bad configuration file must not keep a COMMAND from checking
/// that it leads.
fn asks_this_host(line: &ArgMatches) -> bool {
    match line.subcommand_name() {
        Some("verify") => std::env::var_os(query_socket::VARIABLE).is_some(),
        verb => verb == Some("whose"),
    }
}

fn operands(line: &ArgMatches) -> impl Iterator<Item = &OsString> {
    line.try_get_many("operands").ok().flatten().into_iter().flatten()
}

/// The options of verbs have no variables.
pub fn variable_of(arg: &Arg) -> Option<String> {
    arg.get_long().filter(|_| !is_help(arg)).map(variable)
}

fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('-', "_").to_uppercase())
}

/// A line about each variable that leaderrun does not set and neither program reads. Nobody notices otherwise that one
/// with a wrong name has no effect, such as a mistyped `LEADERRUN_STORE`.
pub fn doubts(command: &Command) -> Vec<String> {
    let own = variables([command]);
    let set = std::env::vars_os().filter_map(|(name, _)| Some(name.to_str()?.strip_prefix(PREFIX)?.to_owned()));
    let doubtful: Vec<String> = set.filter(|name| !is_given(name) && !own.contains(name)).collect();
    // Declaring all options of both programs takes a while.
    let known = if doubtful.is_empty() { BTreeSet::new() } else { variables_of_both() };
    let doubt = |name: &String| {
        let nearest = text::nearest(name, known.iter().map(String::as_str).chain(GIVEN.split(' ')));
        let meant = nearest.map(|nearest| format!(": did you mean {PREFIX}{nearest}?")).unwrap_or_default();
        on_one_line(format!("the variable {PREFIX}{name} has no effect{meant}"))
    };
    doubtful.iter().filter(|name| !known.contains(*name)).map(doubt).collect()
}

fn is_given(name: &str) -> bool {
    GIVEN.split(' ').any(|given| given == name)
}

/// People set the variables of both programs in one place.
fn variables_of_both() -> BTreeSet<String> {
    variables(&[Program::Leaderrun, Program::Leaderctl].map(Program::options))
}

/// Without [`PREFIX`].
fn variables<'a>(programs: impl IntoIterator<Item = &'a Command>) -> BTreeSet<String> {
    let variables = programs.into_iter().flat_map(Command::get_arguments).filter_map(variable_of);
    variables.filter_map(|variable| variable.strip_prefix(PREFIX).map(str::to_owned)).collect()
}

fn is_help(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version)
}

/// Whether the value means the same as leaving the option out.
fn is_off(name: &str, value: &OsStr) -> bool {
    matches!(
        (name, value.to_str()),
        ("no-wait" | "quiet", Some("false")) | ("restart", Some("never")) | ("verbose", Some("0"))
    )
}

type Called<'a> = &'a dyn Fn(&str) -> String;

/// The layers are in the order of their rank.
fn merge<const N: usize>(layers: [(Settings, Called<'_>); N]) -> Result<Settings, String> {
    let mut all = Settings::default();
    for (mut layer, called) in layers {
        let excluded = |name: &str| {
            EXCLUSIONS
                .iter()
                .any(|&(one, other, _)| (one == name && all.is_on(other)) || (other == name && all.is_on(one)))
        };
        layer.0.retain(|name, text| !all.0.contains_key(name) && (is_off(name, text) || !excluded(name)));
        if let Some((one, other, advice)) = layer.contradiction() {
            return Err(exclude_each_other(&called(one), &called(other), advice));
        }
        all.0.extend(layer.0);
    }
    Ok(all)
}

/// Checks a value with the option's own parser. Returns it as on the command line, or says what is wrong without it.
pub fn checked(arg: &Arg, value: &OsStr) -> Result<OsString, String> {
    // What clap's `FalseyValueParser` takes for false.
    const FALSE: [&str; 7] = ["n", "no", "f", "false", "off", "0", ""];
    const TRUE: [&str; 6] = ["y", "yes", "t", "true", "on", "1"];
    let name = arg.get_long().expect("what is set has the long name of its option");
    match (arg.get_action(), value.to_str()) {
        (ArgAction::SetTrue, value) => {
            let value = value.map(str::to_lowercase);
            return match value.as_deref() {
                Some(value) if TRUE.contains(&value) => Ok("true".into()),
                Some(value) if FALSE.contains(&value) => Ok("false".into()),
                Some(_) | None => Err("write true or false".to_owned()),
            };
        }
        (ArgAction::Count, Some(text)) if text.parse::<u8>().is_ok() => return Ok(text.into()),
        (ArgAction::Count, Some(_)) => return Err(VERBOSITY.to_owned()),
        // On the command line it is read later, when ps(1) does not show it any more.
        (_, Some(url)) if name == "store" => return Location::from_url(url).map(|_| value.to_owned()),
        _ => {}
    }
    // The parser of an option refuses what is not UTF-8, but for paths and commands, which may have any bytes.
    let alone = arg.clone().default_value(None::<&str>);
    let mut line = OsString::from(format!("--{name}="));
    line.push(value);
    match Command::new("").no_binary_name(true).disable_help_flag(true).arg(alone).try_get_matches_from([line]) {
        Ok(_) => Ok(value.to_owned()),
        Err(error) => Err(match (error.source(), error.get(ContextKind::ValidValue)) {
            (Some(why), _) => on_one_line(why.to_string()),
            (None, Some(ContextValue::Strings(values))) if !values.is_empty() => {
                format!("possible values: {}", values.join(", "))
            }
            _ => "is empty: write a value, or leave it out".to_owned(),
        }),
    }
}

/// Refuses a password in an option that messages, log lines or `leaderctl status` would show: any but a store URL, and
/// what a shell or COMMAND gets, which alone is of type [`OsString`].
pub fn refuse_secret(arg: &Arg, value: &OsStr, called: &str) -> Result<(), String> {
    if arg.get_long() == Some("store") || arg.get_value_parser().type_id() == TypeId::of::<OsString>() {
        return Ok(());
    }
    if looks_secret(&value.to_string_lossy()) {
        return Err(format!(
            "{called} has what looks like a password, and would show it: give a store URL with --store"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Settings {
        Settings(pairs.iter().map(|&(name, text)| (name.to_owned(), text.into())).collect())
    }

    #[test]
    fn of_two_that_exclude_each_other_the_one_nearer_to_the_command_line_counts() {
        let called: Called<'_> = &|name| format!("--{name}");
        for (one, other, advice) in EXCLUSIONS {
            let together = merge([(of(&[(one, "x"), (other, "x")]), called)]);
            assert_eq!(together, Err(exclude_each_other(&called(one), &called(other), advice)));
            for (nearer, farther) in [(one, other), (other, one)] {
                let apart = merge([(of(&[(nearer, "x")]), called), (of(&[(farther, "x")]), called)]);
                assert_eq!(apart, Ok(of(&[(nearer, "x")])), "{nearer}, {farther}");
            }
        }
    }

    #[test]
    fn no_variable_that_command_gets_sets_an_option() {
        let options = variables_of_both();
        let both: Vec<_> = GIVEN.split(' ').filter(|given| options.contains(*given)).collect();
        assert!(both.is_empty(), "a leaderrun inside COMMAND would take them for its own options: {both:?}");
        // What a test saw them get.
        let seen = include_str!("../../tests/golden/environment.txt").lines();
        for name in seen.filter_map(|line| line.strip_prefix(PREFIX)?.split('=').next()) {
            assert!(is_given(name), "{name} is given, and not in the list");
        }
    }

    #[test]
    fn what_is_off_excludes_nothing_and_overrules_what_is_farther() {
        let called: Called<'_> = &|name| name.to_owned();
        let merged = |near: &[(&str, &str)], far: &[(&str, &str)]| merge([(of(near), called), (of(far), called)]);
        let both = of(&[("no-wait", "false"), ("wait", "5")]);
        assert_eq!(merged(&[("no-wait", "false")], &[("wait", "5")]), Ok(both.clone()));
        assert_eq!(merged(&[("no-wait", "false"), ("wait", "5")], &[]), Ok(both));
        assert_eq!(merged(&[("quiet", "false")], &[("quiet", "true")]), Ok(of(&[("quiet", "false")])));
        assert_eq!(merged(&[("restart", "never")], &[("every", "5m")]).unwrap().0.len(), 2);
        // Neither of two that exclude each other is a mistake if something nearer has dropped both.
        assert_eq!(merged(&[("once", "x")], &[("every", "5m"), ("restart", "always")]), Ok(of(&[("once", "x")])));
    }
}
