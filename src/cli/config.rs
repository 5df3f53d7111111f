//! The configuration file: the options that neither the command line nor the environment sets.
//!
//! The hazard: if a file is not read, or a key in it is unknown, a candidate may use another store than the other
//! hosts, and two of them lead. So only the default file may be missing, and everything unknown is refused. And a file
//! may hold a store URL with a password: no message here repeats a value.
//!
//! The keys are the long names of those options of leaderrun that have a variable. The option's own parser checks a
//! value, even if something else overrules it. The value then becomes the option's default, which clap uses last.

use super::completions::Program;
use super::exclusions::{self, Exclusion};
use super::flags::refuse_readable_by_all;
use crate::lease::Shard;
use crate::text::{self, in_words};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::any::TypeId;
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The file that is read if none is named and this one exists.
pub const DEFAULT: &str = "/etc/leaderrun.toml";
/// Room for thousands of shards: a larger file is something else.
const LARGEST: u64 = 1 << 20;
/// The option that names the file, and cannot be in it.
const OPTION: &str = "config";
/// What to write for `verbose`, which is also a number in its variable.
pub const VERBOSITY: &str = "write how much more to log: 0, 1 or 2";
/// The table of the tables for single shards.
const SHARDS: &str = "shard";
/// Keys that a single shard cannot have: leaderctl must use the same store as leaderrun.
const FOR_ALL_SHARDS: [&str; 2] = ["store", "store-file"];

/// What a file sets for one shard: each value as on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// What the file that `matches` names, or the default one, sets for the shard.
    ///
    /// # Errors
    /// One line that names the file and what is wrong with it.
    pub fn read(matches: &ArgMatches) -> Result<Self, String> {
        let named = matches.try_get_one::<PathBuf>(OPTION).ok().flatten();
        let path = named.map_or(Path::new(DEFAULT), PathBuf::as_path);
        let shown = text::shown(&path.to_string_lossy());
        let (bytes, about) = match contents(path) {
            Ok(read) => read,
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) if named.is_none() => {
                return Err(format!(
                    "{shown} cannot be read: {}; use --config /dev/null to run without it",
                    in_words(&error)
                ));
            }
            Err(error) => return Err(format!("the configuration file {shown} cannot be read: {}", in_words(&error))),
        };
        if bytes.len() as u64 > LARGEST {
            return Err(format!(
                "the configuration file {shown} is larger than {} KiB: name another file",
                LARGEST / 1024
            ));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| format!("the configuration file {shown} is not UTF-8: save it as such"))?;
        let whole = Whole::from_text(&text, &Program::Leaderrun.command()).map_err(|wrong| {
            let line = wrong.at.map(|at| format!(", line {}", line_of(&text, at))).unwrap_or_default();
            format!("{shown}{line}: {}", wrong.why)
        })?;
        let url = whole.all.0.get("store").map(String::as_str).unwrap_or_default();
        let readable = refuse_readable_by_all("store", url, &about);
        readable.map_err(|why| format!("{shown}: {why}, or use store-file"))?;
        let mut operands = matches.try_get_many::<OsString>("operands").ok().flatten().into_iter().flatten();
        Ok(whole.of_shard(operands.next().and_then(|shard| shard.to_str())))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Makes them the defaults of those options that `command` has.
    #[must_use]
    pub fn put_into(self, mut command: Command) -> Command {
        for (name, text) in self.0 {
            let id = command.get_arguments().find(|arg| arg.get_long() == Some(&name)).map(|arg| arg.get_id().clone());
            if let Some(id) = id {
                // Help does not show it: help was printed before the file was read.
                command = command.mut_arg(id, |arg| arg.default_value(text));
            }
        }
        command
    }

    /// Whether the option is set to more than its absence.
    fn is_on(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|text| !exclusions::is_off(name, text))
    }

    /// Takes over what `nearer` sets, and removes what that excludes.
    fn overrule(&mut self, nearer: Self) {
        for Exclusion { one, other, .. } in decided_by_place() {
            let (one, other) = (*one, *other);
            if nearer.is_on(one) {
                self.0.remove(other);
            } else if nearer.is_on(other) {
                self.0.remove(one);
            }
        }
        self.0.extend(nearer.0);
    }
}

/// All that a file sets.
#[derive(Debug, Default)]
struct Whole {
    all: Settings,
    shards: BTreeMap<String, Settings>,
}

/// What is wrong with a file, and where in its bytes.
#[derive(Debug)]
struct Wrong {
    at: Option<Range<usize>>,
    why: String,
}

impl Wrong {
    fn new(at: Range<usize>, why: impl Into<String>) -> Self {
        Self { at: Some(at), why: why.into() }
    }
}

impl Whole {
    /// `known` is the command whose options are the keys.
    fn from_text(text: &str, known: &Command) -> Result<Self, Wrong> {
        // The error's own text would show the line, with the password in it.
        let table = DeTable::parse(text).map_err(|error| Wrong { at: error.span(), why: one_line(error.message()) })?;
        let mut whole = Self::default();
        let (shards, all): (Vec<_>, Vec<_>) = in_order(table.get_ref()).partition(|(key, _)| *key.get_ref() == SHARDS);
        whole.all = settings(&all, known)?;
        for (key, tables) in shards {
            let wrong = |at| Wrong::new(at, "shard: write a table for each shard, such as [shard.\"db/main\"]");
            let DeValue::Table(tables) = tables.get_ref() else { return Err(wrong(key.span())) };
            for (name, table) in in_order(tables) {
                let DeValue::Table(table) = table.get_ref() else { return Err(wrong(name.span())) };
                if Shard::from_str(name.get_ref()).is_err() {
                    let why =
                        "a table below shard has a name that no shard can have: use letters, digits and . _ - / :";
                    return Err(Wrong::new(name.span(), why));
                }
                let entries: Vec<_> = in_order(table).collect();
                if let Some((key, _)) = entries.iter().find(|(key, _)| FOR_ALL_SHARDS.contains(&&**key.get_ref())) {
                    let why = format!("{} is for all shards: write it above the tables", key.get_ref());
                    return Err(Wrong::new(key.span(), why));
                }
                whole.shards.insert(name.get_ref().to_string(), settings(&entries, known)?);
            }
        }
        Ok(whole)
    }

    fn of_shard(mut self, shard: Option<&str>) -> Settings {
        if let Some(nearer) = shard.and_then(|shard| self.shards.remove(shard)) {
            self.all.overrule(nearer);
        }
        self.all
    }
}

type Entry<'a> = (&'a Spanned<std::borrow::Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

/// In the order of the file, so that the first mistake is reported.
fn in_order<'a>(table: &'a DeTable<'a>) -> impl Iterator<Item = Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries.into_iter()
}

fn settings(entries: &[Entry<'_>], known: &Command) -> Result<Settings, Wrong> {
    let mut settings = Settings::default();
    for (key, value) in entries {
        let name = key.get_ref().as_ref();
        let Some(arg) = keys(known).find(|arg| arg.get_long() == Some(name)) else {
            return Err(Wrong::new(key.span(), unknown(name, known)));
        };
        let text = text_of(arg, value.get_ref()).and_then(|text| checked(arg, text));
        let text = text.map_err(|why| Wrong::new(key.span(), format!("{name}: {why}")))?;
        settings.0.insert(name.to_owned(), text);
    }
    let both = |exclusion: &&Exclusion| settings.is_on(exclusion.one) && settings.is_on(exclusion.other);
    if let Some(exclusion) = decided_by_place().find(both) {
        let Exclusion { one, other, .. } = exclusion;
        let at = entries.iter().find(|(key, _)| key.get_ref() == other).map(|(key, _)| key.span());
        return Err(Wrong { at, why: exclusion.message(one, other) });
    }
    Ok(settings)
}

fn decided_by_place() -> impl Iterator<Item = &'static Exclusion> {
    exclusions::ALL.iter().filter(|exclusion| exclusion.is_decided_by_place())
}

fn keys(known: &Command) -> impl Iterator<Item = &Arg> {
    known.get_arguments().filter(|arg| arg.get_env().is_some() && arg.get_long() != Some(OPTION))
}

fn unknown(name: &str, known: &Command) -> String {
    // If a line lost its beginning, its key may be a password.
    let bare = name.len() <= 40 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    let shown = if bare && !name.is_empty() { format!("unknown key {name}") } else { "unknown key".to_owned() };
    let offered = || keys(known).filter(|arg| !arg.is_hide_set());
    let nearest = text::nearest(name, offered().flat_map(spellings));
    let key = nearest.and_then(|nearest| offered().find(|arg| spellings(arg).any(|spelling| spelling == nearest)));
    let meant = key.and_then(Arg::get_long).map(|key| format!(": did you mean {key}?"));
    shown + &meant.unwrap_or_default()
}

fn spellings(arg: &Arg) -> impl Iterator<Item = &str> {
    arg.get_all_aliases().unwrap_or_default().into_iter().chain(arg.get_long())
}

/// What one would write on the command line for `value`.
fn text_of(arg: &Arg, value: &DeValue<'_>) -> Result<String, String> {
    let kind = arg.get_value_parser().type_id();
    let is_text =
        [TypeId::of::<String>(), TypeId::of::<OsString>(), TypeId::of::<PathBuf>()].iter().any(|id| kind == *id);
    let is_number = !is_text && arg.get_possible_values().is_empty();
    Ok(match (arg.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(on)) => on.to_string(),
        (ArgAction::SetTrue, _) => return Err("write true or false".to_owned()),
        (ArgAction::Count, DeValue::Integer(number)) if number.radix() == 10 => number.as_str().to_owned(),
        (ArgAction::Count, _) => return Err("write a whole number".to_owned()),
        (_, DeValue::String(text)) if text.contains('\0') => {
            return Err("contains a NUL character: remove it".to_owned());
        }
        (_, DeValue::String(text)) => text.to_string(),
        (_, DeValue::Integer(number)) if is_number && number.radix() == 10 => number.as_str().to_owned(),
        (_, DeValue::Float(number)) if is_number => number.as_str().to_owned(),
        _ if is_number => return Err("write a text in quotes, or a decimal number".to_owned()),
        _ => return Err("write a text in quotes".to_owned()),
    })
}

/// Checks a value with the option's own parser.
fn checked(arg: &Arg, text: String) -> Result<String, String> {
    match arg.get_action() {
        ArgAction::SetTrue => return Ok(text),
        ArgAction::Count => return text.parse::<u8>().map(|_| text).map_err(|_| VERBOSITY.to_owned()),
        _ => {}
    }
    let alone = arg.clone().env(None::<&str>).default_value(None::<&str>);
    let name = arg.get_long().expect("a key is the long name of its option");
    let line = [format!("--{name}={text}")];
    match Command::new("").no_binary_name(true).disable_help_flag(true).arg(alone).try_get_matches_from(line) {
        Ok(_) => Ok(text),
        Err(error) => Err(match (error.source(), error.get(ContextKind::ValidValue)) {
            (Some(why), _) => one_line(&why.to_string()),
            (None, Some(ContextValue::Strings(values))) if !values.is_empty() => {
                format!("possible values: {}", values.join(", "))
            }
            _ => "is empty: write a value, or remove the line".to_owned(),
        }),
    }
}

/// The contents of the file, up to one byte more than allowed, and its metadata.
fn contents(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok((bytes, about))
}

fn line_of(text: &str, at: Range<usize>) -> usize {
    text.bytes().take(at.start).filter(|&byte| byte == b'\n').count() + 1
}

fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_control()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use clap::parser::ValueSource;

    const PASSWORD: &str = "hunter!2";

    fn read(text: &str) -> Result<Whole, Wrong> {
        Whole::from_text(text, &Program::Leaderrun.command())
    }

    fn of(pairs: &[(&str, &str)]) -> Settings {
        Settings(pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn every_option_with_a_variable_is_a_key_and_no_other() {
        let command = Program::Leaderrun.command();
        let names: Vec<&str> = keys(&command).filter_map(Arg::get_long).collect();
        assert_eq!(names.len(), command.get_arguments().filter(|arg| arg.get_long().is_some()).count() - 1);
        assert!(!names.contains(&OPTION) && !names.contains(&SHARDS));
        // The options that leaderctl shares have the same names.
        let ctl = Program::Leaderctl.command();
        let shared: Vec<&str> = keys(&ctl).filter_map(Arg::get_long).collect();
        assert_eq!(shared, ["store", "store-file", "request-timeout"]);
        assert!(
            shared
                .iter()
                .chain(exclusions::ALL.iter().flat_map(|pair| [&pair.one, &pair.other]))
                .all(|name| names.contains(name))
        );
    }

    #[test]
    fn a_shard_overrules_what_it_excludes() {
        let text = "wait = 5\nquiet = true\nlease = 20\n\
                    [shard.a]\nno-wait = true\n[shard.b]\nverbose = 1\n[shard.c]\nno-wait = false\nlease = '30s'";
        let of_shard = |shard| read(text).unwrap().of_shard(shard);
        assert_eq!(of_shard(None), of(&[("wait", "5"), ("quiet", "true"), ("lease", "20")]));
        assert_eq!(of_shard(Some("d")), of_shard(None));
        assert_eq!(of_shard(Some("a")), of(&[("no-wait", "true"), ("quiet", "true"), ("lease", "20")]));
        assert_eq!(of_shard(Some("b")), of(&[("wait", "5"), ("verbose", "1"), ("lease", "20")]));
        let c = of(&[("wait", "5"), ("no-wait", "false"), ("quiet", "true"), ("lease", "30s")]);
        assert_eq!(of_shard(Some("c")), c);

        let text = "every = '5m'\n[shard.a]\nonce = 'x'\n[shard.b]\nrestart = 'always'\n[shard.c]\nrestart = 'never'";
        let of_shard = |shard| read(text).unwrap().of_shard(Some(shard));
        assert_eq!(of_shard("a"), of(&[("once", "x")]));
        assert_eq!(of_shard("b"), of(&[("restart", "always")]));
        assert_eq!(of_shard("c"), of(&[("every", "5m"), ("restart", "never")]));
        let text = "restart = 'always'\nrelinquish = '6h'\n[shard.a]\nonce = 'x'";
        assert_eq!(read(text).unwrap().of_shard(Some("a")), of(&[("once", "x")]));
        assert!(read("every = '5m'\nonce = 'x'").unwrap_err().why.starts_with("every and once exclude each other"));
    }

    #[test]
    fn the_first_mistake_is_reported_first() {
        let text = "wait = 'a'\nb = 1\nannounce = 'c'";
        let wrong = read(text).unwrap_err();
        assert!(wrong.why.starts_with("wait: "), "{}", wrong.why);
        assert_eq!(line_of(text, wrong.at.unwrap()), 1);
    }

    #[test]
    fn a_million_configurations_become_defaults_or_are_refused_in_one_line_without_the_password() {
        let seeds = [
            "store = \"redis://u:hunter!2@h\"\nlease = '30s'\nrenew = 7.5\n",
            "store-file = '/a'\nverbose = 2\n[shard.\"db/main\"]\nwait = 5",
            "quiet = true\nsignal = 15\nannounce = \"never\"",
            "[shard.a]\nno-wait = false\nowner = \"\u{e4}\\u00e4\"\n[shard.b]\nconflict-exit-code = 0\n",
            "store = '''nats://hunter!2@h/b'''\nlease.x = { a = [1979-05-27], b = 0x1F }\n",
        ];
        let known = Program::Leaderrun.command();
        fuzz::bent_text("configuration", &seeds, |text, source| {
            let whole = match Whole::from_text(text, &known) {
                Ok(whole) => whole,
                Err(Wrong { at, why }) => {
                    fuzz::assert_is_one_line(&why);
                    assert!(!why.contains(PASSWORD), "{why}");
                    assert!(at.is_none_or(|at| at.start <= text.len()));
                    return Fate::Refused;
                }
            };
            assert!(whole.shards.values().all(|shard| FOR_ALL_SHARDS.iter().all(|name| !shard.0.contains_key(*name))));
            let shard = whole.shards.keys().next().cloned();
            let settings = whole.of_shard(shard.as_deref());
            assert!(!decided_by_place().any(|pair| settings.is_on(pair.one) && settings.is_on(pair.other)));
            // This is slow. In this build, clap asserts that an option accepts its default.
            if source.one_in(256) {
                let ids: Vec<String> = settings.0.keys().map(|name| name.replace('-', "_")).collect();
                let matches = settings.put_into(known.clone()).try_get_matches_from(["leaderrun"]).unwrap();
                // The environment of this test may overrule the file.
                let set = [Some(ValueSource::DefaultValue), Some(ValueSource::EnvVariable)];
                assert!(ids.iter().all(|id| set.contains(&matches.value_source(id))));
            }
            Fate::Accepted
        });
    }
}
