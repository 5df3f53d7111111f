//! One line about what is wrong with a command line.
//!
//! The hazard: clap names the option even if the value came from its variable, so people would look for a mistake in a
//! command line that has none. And clap repeats every word, including a URL in the wrong place, with its password.

use crate::text::{HIDDEN, looks_secret};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use std::ffi::OsString;

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
            if looks_secret(&word) {
                format!("unknown option {HIDDEN}{known}")
            } else {
                format!("unknown option {}{known}", on_one_line(&word))
            }
        }
        (ErrorKind::UnknownArgument, Some(word)) => format!("unexpected argument {}", quoted(&word)),
        (ErrorKind::InvalidSubcommand, _) => {
            let verb = said(ContextKind::InvalidSubcommand).unwrap_or_default();
            let known = nearest(ContextKind::SuggestedSubcommand);
            let known = if known.is_empty() { format!(": use one of {}", verbs(&command)) } else { known };
            format!("unknown verb {}{known}", quoted(&verb))
        }
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            let known = said(ContextKind::ValidSubcommand).unwrap_or_else(|| verbs(&command));
            format!("a verb is missing: use one of {}", known.trim_end_matches(", help"))
        }
        (ErrorKind::MissingRequiredArgument, Some(missing)) => format!("{missing} is missing"),
        // Clap says this also of an option that stands there twice.
        (ErrorKind::ArgumentConflict, Some(option)) if said(ContextKind::PriorArg).as_ref() == Some(&option) => {
            format!("{} is given twice", option.split(' ').next().unwrap_or(&option))
        }
        (_, argument) => {
            let value = said(ContextKind::InvalidValue).unwrap_or_default();
            let mut text = clap_says(error);
            if looks_secret(&value) {
                let shown = on_one_line(&value);
                text = text.replace(&format!("'{shown}'"), HIDDEN).replace(&shown, HIDDEN);
            }
            match argument.and_then(|argument| find(&command, &argument)?.get_env().map(|name| (argument, name))) {
                Some((argument, name)) if !is_among(words, &value) => {
                    text.replacen(&format!("'{argument}'"), &name.to_string_lossy(), 1)
                }
                _ => text,
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

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    if looks_secret(word) { HIDDEN.to_owned() } else { format!("'{}'", on_one_line(word)) }
}

fn verbs(command: &Command) -> String {
    let names: Vec<&str> = command.get_subcommands().map(Command::get_name).filter(|&name| name != "help").collect();
    names.join(", ")
}

/// The argument of the program, or of one of its verbs, that is shown like this.
fn find<'a>(command: &'a Command, shown: &str) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|argument| argument.to_string() == shown);
    own.or_else(|| command.get_subcommands().find_map(|verb| find(verb, shown)))
}

/// Whether a value is a word, or follows `--option=` or `-o`. One that is also in a variable may be taken for either.
fn is_among(words: &[OsString], value: &str) -> bool {
    words.iter().skip(1).map(|word| word.to_string_lossy()).any(|word| {
        word == value
            || word
                .strip_suffix(value)
                .is_some_and(|option| option.ends_with('=') || option.len() == 2 && !value.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            let error = command.clone().try_get_matches_from(&words).expect_err("it is wrong");
            let told = told(&error, command.clone(), &words);
            assert!(!told.contains("Kiwi7Qx") && !told.contains('\n'), "{line:?}: {told}");
        }
    }
}
