//! One line about what is wrong with a command line.
//!
//! The hazard: clap names the option even if the value came from its variable, so people would look for a mistake in a
//! command line that has none. And clap repeats every word, including a URL in the wrong place, with its password.

use super::flags::takes_next;
use crate::text::{self, HIDDEN, looks_secret};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use std::any::TypeId;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::num::ParseIntError;
use std::path::PathBuf;

/// The most characters of a word that are repeated.
const MOST_SHOWN: usize = 100;

/// The line about `error` in `words`, the first of which is the program's name.
pub(super) fn told(error: &Error, mut command: Command, words: &[OsString]) -> String {
    // Until then, an option has no text that could be shown.
    command.build();
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) if !texts.is_empty() => Some(texts.join(", ")),
        _ => None,
    };
    let nearest = |kind| said(kind).map_or_else(String::new, |known| format!(": did you mean {known}?"));
    match (error.kind(), said(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(word)) if word.starts_with('-') => {
            let known = nearest(ContextKind::SuggestedArg);
            match before(&command, words, &word) {
                _ if looks_secret(&word) => format!("unknown option {HIDDEN}{known}"),
                Some(option) => format!("{option} takes no negative number, such as {}", shown(&word)),
                None => format!("unknown option {}{known}", shown(&word)),
            }
        }
        (ErrorKind::UnknownArgument, Some(word)) => format!("unexpected argument {}", quoted(&word)),
        (ErrorKind::InvalidSubcommand, _) => {
            let verb = said(ContextKind::InvalidSubcommand).unwrap_or_default();
            let parent = parent(&command, words, &verb);
            // Clap suggests several, and none after `help`.
            let known = text::nearest(&verb, names(parent))
                .map_or_else(|| format!(": use one of {}", verbs(parent)), |near| format!(": did you mean {near}?"));
            format!("unknown verb {}{known}", quoted(&verb))
        }
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            // Clap names none if there is an option.
            format!("a verb is missing: use one of {}", verbs(parent(&command, words, "")))
        }
        (ErrorKind::MissingRequiredArgument, Some(missing)) if missing.contains(", ") => {
            format!("{missing} are missing")
        }
        (ErrorKind::MissingRequiredArgument, Some(missing)) => format!("{missing} is missing"),
        (ErrorKind::InvalidUtf8, _) => {
            let place = |is_it| not_utf8(&command, words, is_it).or_else(|| variable_not_utf8(&command, is_it));
            // Files and commands last: most of these may have any bytes.
            let place = place(is_text).or_else(|| place(|_| true));
            format!("{} is not UTF-8: correct it", place.unwrap_or_else(|| "an argument".to_owned()))
        }
        // Clap says this also of an option that stands there twice.
        (ErrorKind::ArgumentConflict, Some(option)) if said(ContextKind::PriorArg).as_ref() == Some(&option) => {
            format!("{} is given twice", option.split(' ').next().unwrap_or(&option))
        }
        (_, argument) => {
            let value = said(ContextKind::InvalidValue).unwrap_or_default();
            let argument = argument.unwrap_or_default();
            let variable = find(&command, &argument)
                .filter(|found| !is_given(&command, found, words))
                .and_then(|found| Some(found.get_env()?.to_string_lossy().into_owned()));
            let place = variable.unwrap_or_else(|| format!("'{argument}'"));
            match (error.source(), said(ContextKind::ValidValue)) {
                (Some(why), _) => {
                    let numeric = why.is::<ParseIntError>();
                    let why = if numeric { "write a whole number".to_owned() } else { on_one_line(&why.to_string()) };
                    let why = if looks_secret(&value) { why.replace(&on_one_line(&value), HIDDEN) } else { why };
                    format!("invalid value {} for {place}: {why}", quoted(&value))
                }
                (None, Some(known)) if !value.is_empty() => {
                    let similar =
                        said(ContextKind::SuggestedValue).map(|known| format!("; a similar value exists: '{known}'"));
                    let similar = similar.unwrap_or_default();
                    format!("invalid value {} for {place} [possible values: {known}]{similar}", quoted(&value))
                }
                // Clap leaves out what a terminal would obey, so the value is not found in its text.
                _ if value.contains(char::is_control) => format!("invalid value {} for {place}", quoted(&value)),
                _ => {
                    let (text, repeated) = (clap_says(error), on_one_line(&value));
                    let text = if looks_secret(&value) || repeated.chars().count() > MOST_SHOWN {
                        text.replace(&format!("'{repeated}'"), &quoted(&value)).replace(&repeated, &quoted(&value))
                    } else {
                        text
                    };
                    text.replacen(&format!("'{argument}'"), &place, 1)
                }
            }
        }
    }
}

/// Clap's message without its heading, its usage and its line breaks.
fn clap_says(error: &Error) -> String {
    let rendered = error.render().to_string();
    let text =
        rendered.split("\n\nUsage:").next().unwrap_or(&rendered).split("\n\nFor more").next().unwrap_or(&rendered);
    on_one_line(text).trim_start_matches("error: ").replace(" tip: ", "; ")
}

/// Without line breaks, and with escapes for other characters that a terminal would obey.
fn on_one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown = String::with_capacity(line.len());
    for c in line.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// The beginning of a word, which people know.
fn shown(word: &str) -> String {
    let line = on_one_line(word);
    match line.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn quoted(word: &str) -> String {
    if looks_secret(word) { HIDDEN.to_owned() } else { format!("'{}'", shown(word)) }
}

fn verbs(command: &Command) -> String {
    names(command).collect::<Vec<_>>().join(", ")
}

fn names(command: &Command) -> impl Iterator<Item = &str> {
    command.get_subcommands().map(Command::get_name).filter(|&name| name != "help")
}

/// The command that has no such verb: the program, or a verb that has verbs of its own.
fn parent<'a>(command: &'a Command, words: &[OsString], verb: &str) -> &'a Command {
    let mut parent = command;
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next().filter(|word| word != verb) {
        if word.starts_with('-') {
            if takes_next(parent, &word) {
                words.next();
            }
        } else if let Some(found) = parent.find_subcommand(word.as_ref()) {
            parent = found;
        }
    }
    parent
}

/// The argument of the program, or of one of its verbs, that is shown like this.
fn find<'a>(command: &'a Command, shown: &str) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|argument| argument.to_string() == shown);
    own.or_else(|| command.get_subcommands().find_map(|verb| find(verb, shown)))
}

/// The option on the command line whose value is not UTF-8, among those that `is_it` picks. Clap does not name it.
fn not_utf8(command: &Command, words: &[OsString], is_it: fn(&Arg) -> bool) -> Option<String> {
    let takes_next = |word: &str| all(command).iter().any(|command| takes_next(command, word));
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        let shown = word.to_string_lossy();
        if shown == "--" || (!shown.starts_with('-') && !command.has_subcommands()) {
            // What follows SHARD is COMMAND's.
            return None;
        }
        let value = if takes_next(&shown) { words.next() } else { Some(word) };
        if value.is_none_or(|value| value.to_str().is_some()) {
            continue;
        }
        let Some(option) = option(command, &shown) else { return Some("an argument".to_owned()) };
        if is_it(option) {
            return Some(option.get_long().map_or_else(|| option.to_string(), |name| format!("--{name}")));
        }
    }
    None
}

/// The variable whose value is not UTF-8, among those of the options that `is_it` picks.
fn variable_not_utf8(command: &Command, is_it: fn(&Arg) -> bool) -> Option<String> {
    let wrong = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.to_str().is_none());
    let variables = all(command).into_iter().flat_map(Command::get_arguments).filter(|arg| is_it(arg));
    let found = variables.filter_map(Arg::get_env).find(|name| wrong(name))?;
    Some(found.to_string_lossy().into_owned())
}

fn is_text(option: &Arg) -> bool {
    let kind = option.get_value_parser().type_id();
    kind != TypeId::of::<PathBuf>() && kind != TypeId::of::<OsString>()
}

/// The option that a word begins with.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut options = all(command).into_iter().flat_map(Command::get_arguments);
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split('=').next();
        return options.find(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long().into_iter().chain(aliases).any(|known| Some(known) == name)
        });
    }
    let known: Vec<&Arg> = options.filter(|arg| arg.get_action().takes_values()).collect();
    let letters = word.strip_prefix('-')?.chars();
    letters.into_iter().find_map(|letter| known.iter().find(|arg| arg.get_short() == Some(letter)).copied())
}

/// The program, and its verbs.
fn all(command: &Command) -> Vec<&Command> {
    let verbs = command.get_subcommands().flat_map(all);
    std::iter::once(command).chain(verbs).collect()
}

/// Whether the option is on the command line. Then its variable was not read.
fn is_given(command: &Command, option: &Arg, words: &[OsString]) -> bool {
    let names = || option.get_all_aliases().unwrap_or_default().into_iter().chain(option.get_long());
    let takes = |letter: char| {
        let has = |arg: &Arg| arg.get_short() == Some(letter) && arg.get_action().takes_values();
        command.get_arguments().any(has)
    };
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if let Some(long) = word.strip_prefix("--") {
            if long.is_empty() {
                return false;
            }
            if names().any(|name| long.split('=').next() == Some(name)) {
                return true;
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            // Behind a letter that takes a value, the word has nothing but the value.
            let end = letters
                .char_indices()
                .find(|&(_, letter)| takes(letter))
                .map_or(letters.len(), |(at, letter)| at + letter.len_utf8());
            if letters[..end].chars().any(|letter| option.get_short() == Some(letter)) {
                return true;
            }
        } else if !command.has_subcommands() {
            // What follows SHARD is COMMAND's.
            return false;
        }
        if takes_next(command, &word) {
            words.next();
        }
    }
    false
}

/// The option before a negative number, if it takes a value.
fn before<'a>(command: &Command, words: &'a [OsString], word: &str) -> Option<&'a str> {
    word.strip_prefix('-').filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))?;
    let at = words.iter().rposition(|other| other == word)?;
    let option = words.get(at.checked_sub(1)?)?.to_str()?;
    let takes = |command: &Command| takes_next(command, option);
    (option.starts_with('-') && (takes(command) || command.get_subcommands().any(takes))).then_some(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &Command, line: &[&str]) -> String {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        let error = command.clone().try_get_matches_from(&words).expect_err("it is wrong");
        told(&error, command.clone(), &words)
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_what_is_long_is_cut() {
        let number = Arg::new("number").long("number").value_parser(clap::value_parser!(u8));
        let kind = Arg::new("kind").long("kind").value_parser(["one", "two"]);
        let command = Command::new("it").arg(number).arg(kind).subcommand(Command::new("list").arg(Arg::new("shard")));
        let (esc, long) = ("\u{1b}[31mX", "x".repeat(100_000));
        for word in [esc, &long] {
            let (option, of_list) = (format!("--{word}"), format!("--list={word}"));
            let lines: [&[&str]; 6] = [
                &["it", word],
                &["it", "list", "shard", word],
                &["it", &option],
                &["it", "--number", word],
                &["it", "--kind", word],
                &["it", "list", &of_list],
            ];
            for line in lines {
                let told = of(&command, line);
                assert!(!told.contains('\u{1b}') && told.len() < 400, "{told}");
            }
        }
        assert!(of(&command, &["it", "--number", esc]).starts_with("invalid value '\\u{1b}[31mX' for"));
        assert!(of(&command, &["it", "--number", "x"]).ends_with(": write a whole number"));
        assert_eq!(of(&command, &["it", "--number", "-1"]), "--number takes no negative number, such as -1");
        assert_eq!(of(&command, &["it", "-1"]), "unknown option -1");
    }

    #[test]
    fn no_mistake_repeats_a_password() {
        let number = Arg::new("number").long("number").value_parser(clap::value_parser!(u8));
        let command = Command::new("it").arg(number).subcommand(Command::new("list").arg(Arg::new("shard")));
        let url = "redis://me:Kiwi7Qx@host";
        let option = format!("--{url}");
        let of_number = format!("--number={url}");
        let lines: [&[&str]; 7] = [
            &["it", url],
            &["it", url, "list"],
            &["it", "list", "shard", url],
            &["it", "list", &option],
            &["it", "--number", url],
            &["it", &of_number],
            &["it", "list", "--list", url],
        ];
        for line in lines {
            let told = of(&command, line);
            assert!(!told.contains("Kiwi7Qx") && !told.contains('\n'), "{line:?}: {told}");
        }
    }
}
