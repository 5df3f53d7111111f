//! `leaderctl --complete PROGRAM LINE`: the names of shards that may stand where a command line ends.
//!
//! The hazard: a person presses a key and waits, and the store may be down, slow, metered, or not named at all. So this
//! takes at most half a second, asks no store that charges for requests, and neither creates nor changes a store. If it
//! finds no names, it prints nothing, whatever the reason. The status says whether a shard may stand there.

use super::super::completions::Program;
use super::super::{flags, start};
use super::Flags;
use crate::lease::Prefix;
use clap::{Arg, ValueEnum};
use nix::unistd::dup2_stderr;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Write, stdout};
use std::process::{ExitCode, exit};
use std::time::{Duration, Instant};

const CALL: &str = "--complete";
/// The longest that a person waits after pressing a key.
const PATIENCE: Duration = Duration::from_millis(450);
const MOST: usize = 300;
/// What clap reads in place of the word that is being written.
const HERE: &str = "the/word/that/is/being/written";

/// Prints the names, if that is what was asked for.
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
    let program = Program::from_str(words.next()?.to_str()?, false).ok()?;
    Asked::find(program, &words.next()?.into_string().ok()?)
}

fn names(asked: Asked, begun: Instant) -> Option<()> {
    // Mistakes in the options are reported when the options are used.
    dup2_stderr(File::options().write(true).open("/dev/null").ok()?).ok()?;
    let words = [super::PROGRAM.to_owned()].into_iter().chain(asked.store).chain(["list".to_owned()]);
    let (flags, matches, _) =
        flags::parse::<Flags>(Program::Leaderctl.options(), super::PROGRAM, words.map(OsString::from), super::fail)
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
    prefix: String,
    store: Vec<String>,
}

impl Asked {
    fn find(program: Program, line: &str) -> Option<Self> {
        let mut words = words(line);
        let prefix = words.pop()?;
        if prefix.starts_with('-') || prefix.parse::<Prefix>().is_err() {
            return None;
        }
        let mut command = program.options().ignore_errors(true);
        // What comes before the program's name, such as sudo, is not ours.
        let first = words.iter().position(|word| word.rsplit('/').next() == Some(command.get_name()))?;
        let words = words.drain(first..).chain([HERE.to_owned()]).map(OsString::from);
        let words = flags::joined(&command, words.collect());
        let line = command.try_get_matches_from_mut(words).ok()?;
        let (mut command, mut of_verb) = (&command, &line);
        while let Some((verb, inner)) = of_verb.subcommand() {
            command = command.find_subcommand(verb)?;
            of_verb = inner;
        }
        let values = |id: &str| of_verb.try_get_raw(id).ok().flatten().unwrap_or_default();
        let is_here = |arg: &Arg| {
            let mut values = values(arg.get_id().as_str());
            // Of leaderrun, COMMAND follows.
            let is_first = values.len() == 1 || !arg.is_trailing_var_arg_set();
            is_of_shards(arg) && is_first && values.next_back().is_some_and(|last| last == HERE)
        };
        command.get_positionals().any(is_here).then_some(())?;
        let store = ["store", "store_file", "config"].into_iter().filter_map(|id| {
            let value = values(id).next_back()?.to_str()?;
            Some(format!("--{}={value}", id.replace('_', "-")))
        });
        Some(Self { prefix, store: store.collect() })
    }
}

fn is_of_shards(arg: &Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().any(|name| name.split(' ').next() == Some("SHARD"))
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
    fn a_line_asks_for_shards_if_it_ends_where_one_may_stand() {
        let (ctl, run) = (Program::Leaderctl, Program::Leaderrun);
        for (program, line, prefix, store) in [
            (ctl, "leaderctl status ", "", ""),
            (ctl, "leaderctl status a b:c", "b:c", ""),
            (ctl, "leaderctl step-down --to b --wait 9s ", "", ""),
            (ctl, "leaderctl --store redis://h:1/2 pause --reason 'no reason' x", "x", "--store=redis://h:1/2"),
            (ctl, "sudo -u me /usr/bin/leaderctl --config '/a b' why \"x", "x", "--config=/a b"),
            (ctl, "leaderctl history -- x", "x", ""),
            (run, "leaderrun ", "", ""),
            (run, "leaderrun -nw 9s --store-file f d", "d", "--store-file=f"),
            (run, "A=b leaderrun -w9s -- d", "d", ""),
        ] {
            assert_eq!(asked(program, line), Some((prefix.to_owned(), store.to_owned())), "{line}");
        }
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
            "leaderctl store init ",
            "leaderctl status $(",
            "other status ",
        ] {
            assert_eq!(asked(ctl, line), None, "{line}");
        }
        for line in
            ["leaderrun", "leaderrun -w ", "leaderrun --lease ", "leaderrun --le", "leaderrun a ", "leaderrun a b "]
        {
            assert_eq!(asked(run, line), None, "{line}");
        }
    }
}
