//! The configuration file: the options that neither the command line nor the environment sets.
//!
//! The hazard: if a file is not read, or a key is ignored, a candidate may use another store than the other hosts, and
//! two of them lead. So only the default file may be missing, and unknown keys are refused. And a file may hold a store
//! URL with a password, so no message repeats a value.
//!
//! The keys are the long names of the options of leaderrun and leaderctl that have a variable. The option's own parser
//! checks a value, even if something else overrules it.

use super::completions::Program;
use super::flags::{self, refuse_readable_by_all};
use super::settings::{CONFIG, Settings, checked, exclude_each_other, refuse_secret, variable_of};
use crate::lease::Shard;
use crate::text::{self, in_words, on_one_line};
use clap::{Arg, ArgAction, Command};
use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Read if no file is named and this one exists.
pub const DEFAULT: &str = "/etc/leaderrun.toml";
/// Room for thousands of shards: a larger file is something else.
const LARGEST: u64 = 1 << 20;
pub const VERBOSITY: &str = "write how much more to log: 0, 1 or 2";
const SHARDS: &str = "shard";
/// Keys that a single shard cannot have, because some verbs of leaderctl are about the whole store.
const FOR_ALL_SHARDS: [&str; 3] = ["store", "store-file", "request-timeout"];

/// What the named file, or the default one, sets for the shard, and for all shards.
pub fn read(named: Option<&Path>, shard: Option<&str>) -> Result<(Settings, Settings), String> {
    let path = named.unwrap_or(Path::new(DEFAULT));
    let shown = text::shown(&path.to_string_lossy());
    let read = flags::open(path).and_then(|(file, about)| {
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
        Ok((bytes, about))
    });
    let (bytes, about) = match read {
        Ok(read) => read,
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) if named.is_none() => {
            return Err(format!(
                "{shown} cannot be read: {}; use --config /dev/null to run without it",
                in_words(&error)
            ));
        }
        Err(error) => return Err(format!("the configuration file {shown} cannot be read: {}", in_words(&error))),
    };
    if bytes.len() as u64 > LARGEST {
        return Err(format!("the configuration file {shown} is larger than {} KiB: name another file", LARGEST / 1024));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| format!("the configuration file {shown} is not UTF-8: save it as such"))?;
    let mut whole = Whole::from_text(&text, &known()).map_err(|(at, why)| {
        let line = at.map(|at| format!(", line {}", line_of(&text, at))).unwrap_or_default();
        format!("{shown}{line}: {why}")
    })?;
    let url = whole.all.get("store").and_then(OsStr::to_str).unwrap_or_default();
    refuse_readable_by_all("store", url, &about).map_err(|why| format!("{shown}: {why}, or use store-file"))?;
    Ok((shard.and_then(|shard| whole.shards.remove(shard)).unwrap_or_default(), whole.all))
}

#[derive(Debug, Default)]
struct Whole {
    all: Settings,
    shards: BTreeMap<String, Settings>,
}

/// What is wrong, and where.
type Wrong = (Option<Range<usize>>, String);

impl Whole {
    fn from_text(text: &str, known: &Command) -> Result<Self, Wrong> {
        // The error's own text would show the line, with the password in it.
        let table = DeTable::parse(text).map_err(|error| (error.span(), on_one_line(error.message().to_owned())))?;
        let mut whole = Self::default();
        let (shards, all): (Vec<_>, Vec<_>) = in_order(table.get_ref()).partition(|(key, _)| *key.get_ref() == SHARDS);
        whole.all = settings(&all, known)?;
        for (key, tables) in shards {
            let why = "shard: write a table for each shard, such as [shard.\"db/main\"]";
            let wrong = |at| (Some(at), why.to_owned());
            let DeValue::Table(tables) = tables.get_ref() else { return Err(wrong(key.span())) };
            for (name, table) in in_order(tables) {
                let DeValue::Table(table) = table.get_ref() else { return Err(wrong(name.span())) };
                if Shard::whole(name.get_ref()).is_err() {
                    let why =
                        "a table below shard has a name that no shard can have: use letters, digits and . _ - / :";
                    return Err((Some(name.span()), why.to_owned()));
                }
                let entries: Vec<_> = in_order(table).collect();
                if let Some((key, _)) = entries.iter().find(|(key, _)| FOR_ALL_SHARDS.contains(&&**key.get_ref())) {
                    let why = format!("{} is for all shards: write it above the tables", key.get_ref());
                    return Err((Some(key.span()), why));
                }
                whole.shards.insert(name.get_ref().to_string(), settings(&entries, known)?);
            }
        }
        Ok(whole)
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
        let arg = keys(known).find(|arg| arg.get_long() == Some(name));
        let arg = arg.ok_or_else(|| (Some(key.span()), unknown(name, known)))?;
        let text = text_of(arg, value.get_ref()).and_then(|text| {
            let text = checked(arg, OsStr::new(&text))?;
            refuse_secret(arg, &text, "it").map(|()| text)
        });
        let text = text.map_err(|why| (Some(key.span()), format!("{name}: {why}")))?;
        settings.0.insert(name.to_owned(), text);
    }
    if let Some((one, other, advice)) = settings.contradiction() {
        let at = entries.iter().find(|(key, _)| key.get_ref() == other).map(|(key, _)| key.span());
        return Err((at, exclude_each_other(one, other, advice)));
    }
    Ok(settings)
}

fn known() -> Command {
    let known = Program::Leaderrun.options();
    let ctl = Program::Leaderctl.options();
    let more: Vec<Arg> =
        keys(&ctl).filter(|arg| keys(&known).all(|key| key.get_long() != arg.get_long())).cloned().collect();
    known.args(more)
}

fn keys(known: &Command) -> impl Iterator<Item = &Arg> {
    // With `explain`, nothing on this host would run.
    let is_key = |arg: &&Arg| !matches!(arg.get_long(), Some(CONFIG | "explain"));
    known.get_arguments().filter(|arg| variable_of(arg).is_some()).filter(is_key)
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

/// As on the command line.
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

fn line_of(text: &str, at: Range<usize>) -> usize {
    text.bytes().take(at.start).filter(|&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use clap::parser::ValueSource;

    const PASSWORD: &str = "hunter!2";

    #[test]
    fn a_million_configurations_become_defaults_or_are_refused_in_one_line_without_the_password() {
        let seeds = [
            "store = \"redis://u:hunter!2@h\"\nlease = '30s'\nrenew = 7.5\n",
            "store-file = '/a'\nverbose = 2\n[shard.\"db/main\"]\nwait = 5",
            "quiet = true\nsignal = 15\nannounce = \"never\"",
            "[shard.a]\nno-wait = false\nowner = \"\u{e4}\\u00e4\"\n[shard.b]\nconflict-exit-code = 0\n",
            "store = '''nats://hunter!2@h/b'''\nlease.x = { a = [1979-05-27], b = 0x1F }\n",
        ];
        let known = Program::Leaderrun.options();
        fuzz::bent_text("configuration", &seeds, |text, source| {
            let whole = match Whole::from_text(text, &known) {
                Ok(whole) => whole,
                Err((at, why)) => {
                    fuzz::assert_is_one_line(&why);
                    assert!(!why.contains(PASSWORD), "{why}");
                    assert!(at.is_none_or(|at| at.start <= text.len()));
                    return Fate::Refused;
                }
            };
            assert!(whole.shards.values().all(|shard| FOR_ALL_SHARDS.iter().all(|name| !shard.0.contains_key(*name))));
            let settings = whole.shards.into_values().next().unwrap_or(whole.all);
            assert_eq!(settings.contradiction(), None);
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

    #[test]
    fn what_leaderctl_reads_is_for_all_shards() {
        let ctl = Program::Leaderctl.options();
        assert_eq!(keys(&ctl).filter_map(Arg::get_long).collect::<Vec<_>>(), FOR_ALL_SHARDS);
    }
}
