//! `leaderctl --complete PROGRAM LINE`: the names of shards that may stand where a command line ends.
//!
//! The hazard: a person presses a key and waits, and the store may be down, slow, metered, or not named at all. So this
//! takes at most half a second, asks no store that charges for requests, and neither creates nor changes a store. If it
//! finds no names, it prints nothing, whatever the reason. The status says whether a shard may stand there.

use super::super::completions::Program;
use super::super::{flags, start};
use super::Flags;
use crate::lease::Prefix;
use clap::{Arg, Command};
use nix::unistd::dup2_stderr;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Write, stdout};
use std::process::{ExitCode, exit};
use std::time::{Duration, Instant};

/// The first word of a call.
const CALL: &str = "--complete";
/// The longest that a person waits after pressing a key.
const PATIENCE: Duration = Duration::from_millis(450);
/// The most names to print.
const MOST: usize = 300;

/// Prints the names, if that is what was asked for.
#[must_use]
pub fn run_if_asked() -> Option<ExitCode> {
    let begun = Instant::now();
    let mut words = std::env::args_os().skip(1);
    if words.next()? != CALL {
        return None;
    }
    let Some(asked) = asked(words) else { return Some(ExitCode::FAILURE) };
    let _ = names(asked, begun);
    Some(ExitCode::SUCCESS)
}

fn asked(mut words: impl Iterator<Item = OsString>) -> Option<Asked> {
    let program = match words.next()?.to_str()? {
        "leaderrun" => Program::Leaderrun,
        "leaderctl" => Program::Leaderctl,
        _ => return None,
    };
    Asked::find(program, &words.next()?.into_string().ok()?)
}

fn names(asked: Asked, begun: Instant) -> Option<()> {
    // Mistakes in the options are reported when the options are used.
    dup2_stderr(File::options().write(true).open("/dev/null").ok()?).ok()?;
    let words = [super::PROGRAM.to_owned()].into_iter().chain(asked.store).chain(["list".to_owned()]);
    let (flags, matches) =
        flags::parse::<Flags>(&Program::Leaderctl.command(), super::PROGRAM, words.map(OsString::from), super::fail)
            .ok()?;
    let named = flags.store.named(&matches).ok()?;
    named.url.as_ref()?;
    // A name server, or a directory on the network, may hang where no timeout of ours reaches.
    std::thread::Builder::new()
        .spawn(move || {
            std::thread::sleep(PATIENCE.saturating_sub(begun.elapsed()));
            exit(0);
        })
        .ok()?;
    let runtime = start::runtime(&named.location).ok()?;
    let store = runtime.block_on(named.location.open(PATIENCE)).ok().filter(|store| !store.is_metered())?;
    let list = runtime.block_on(store.list(&asked.prefix)).ok()?;
    let shards: Vec<&str> = list.iter().take(MOST).map(|(shard, _)| shard.as_str()).chain([""]).collect();
    let _ = stdout().write_all(shards.join("\n").as_bytes());
    // The runtime may wait for what hangs.
    exit(0);
}

/// A command line that ends where SHARD may stand.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    /// What SHARD begins with.
    prefix: String,
    /// The options on the line that say which store.
    store: Vec<String>,
}

impl Asked {
    fn find(program: Program, line: &str) -> Option<Self> {
        let mut words = words(line);
        let prefix = words.pop()?;
        // What comes before the program's name, such as sudo, is not ours.
        let mut command = program.command();
        let is_program = |word: &String| word.rsplit('/').next() == Some(command.get_name());
        let first = words.iter().position(is_program)?;
        command.build();
        let mut command = &command;
        let (mut operands, mut options_are_over, mut store) = (0, false, Vec::new());
        let mut words = words.drain(..).skip(first + 1);
        while let Some(word) = words.next() {
            if options_are_over || !word.starts_with('-') || word == "-" {
                match command.find_subcommand(&word) {
                    Some(verb) if operands == 0 => command = verb,
                    Some(_) | None => operands += 1,
                }
            } else if word == "--" {
                options_are_over = true;
            } else {
                let value = if flags::takes_next(command, &word) { Some(words.next()?) } else { None };
                let name = word.split('=').next().unwrap_or_default();
                if ["--store", "--store-file", "--config"].contains(&name) {
                    store.push(word);
                    store.extend(value);
                }
            }
        }
        let is_operand = options_are_over || !prefix.starts_with('-');
        let is_shard = is_operand && command.get_subcommands().next().is_none() && takes_shard(command, operands);
        (is_shard && prefix.parse::<Prefix>().is_ok()).then_some(Self { prefix, store })
    }
}

/// Whether SHARD may follow so many operands.
fn takes_shard(command: &Command, operands: usize) -> bool {
    let of_shards = |arg: &&Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| name.split(' ').next() == Some("SHARD"))
    };
    let Some((index, shard)) = command.get_positionals().enumerate().find(|(_, arg)| of_shards(arg)) else {
        return false;
    };
    // Of leaderrun, COMMAND follows.
    let several = shard.get_num_args().is_some_and(|times| times.max_values() > 1) && !shard.is_trailing_var_arg_set();
    index == operands || (several && operands > index)
}

/// The words of a command line, without their quotes. The last one is what is being written, and may be empty.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let word = words.last_mut().expect("there is one from the beginning");
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if letter == open => quote = None,
            (None | Some('"'), '\\') => word.extend(letters.next()),
            (None, _) if letter.is_whitespace() => {
                if !word.is_empty() {
                    words.push(String::new());
                }
            }
            (_, _) => word.push(letter),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(program: Program, line: &str) -> Option<(String, String)> {
        Asked::find(program, line).map(|asked| (asked.prefix, asked.store.join(" ")))
    }

    #[test]
    fn a_line_that_ends_where_a_shard_may_stand_asks_for_shards() {
        for (line, prefix, store) in [
            ("leaderctl status ", "", ""),
            ("leaderctl status db/ma", "db/ma", ""),
            ("leaderctl status a b:c", "b:c", ""),
            ("leaderctl watch --json a", "a", ""),
            ("leaderctl step-down --to b ", "", ""),
            ("leaderctl --store redis://h:1/2 pause --reason 'no reason' x", "x", "--store redis://h:1/2"),
            ("leaderctl resume --store=file:/x x", "x", "--store=file:/x"),
            ("sudo -u me /usr/bin/leaderctl --config '/a b' why \"x", "x", "--config /a b"),
            ("leaderctl history -- x", "x", ""),
        ] {
            assert_eq!(asked(Program::Leaderctl, line), Some((prefix.to_owned(), store.to_owned())), "{line}");
        }
        for (line, prefix, store) in [
            ("leaderrun ", "", ""),
            ("leaderrun -n --lease 9s d", "d", ""),
            ("leaderrun -nw 9s --store-file f d", "d", "--store-file f"),
            ("A=b leaderrun -w9s -- d", "d", ""),
        ] {
            assert_eq!(asked(Program::Leaderrun, line), Some((prefix.to_owned(), store.to_owned())), "{line}");
        }
    }

    #[test]
    fn a_line_that_ends_elsewhere_asks_for_nothing() {
        for line in [
            "",
            "leaderctl",
            "leaderctl ",
            "leaderctl st",
            "leaderctl --store ",
            "leaderctl jobs shard --cle",
            "leaderctl jobs shard --clear ",
            "leaderctl history a ",
            "leaderctl list ",
            "leaderctl store ",
            "leaderctl store init ",
            "leaderctl status $(",
            "other status ",
        ] {
            assert_eq!(asked(Program::Leaderctl, line), None, "{line}");
        }
        for line in
            ["leaderrun", "leaderrun -w ", "leaderrun --lease ", "leaderrun --le", "leaderrun a ", "leaderrun a b "]
        {
            assert_eq!(asked(Program::Leaderrun, line), None, "{line}");
        }
    }
}
