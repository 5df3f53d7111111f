//! A COMMAND that shows when it was alive: it appends a line to a file every two milliseconds until it dies; with
//! `slowly`, every tenth of a second.
//!
//! `stamp FILE [ignore-term] [daemon] [ends | ends-once] [slowly]`; in slot 2 of a shard it writes into `FILE.2`. Each line is
//! `OWNER TERM PID BOOT_NANOSECONDS`. With `daemon` it first starts a second stamp, double-forked and in a session of
//! its own. With `ends` it fails after a random time; with `ends-once` it fails soon, in the first run of each term.
//! The daemon does not fail. The terms of all runs are in `FILE.runs`.

mod line;

use leaderrun::internals::sys::ignore;
use leaderrun::internals::time::BootInstant;
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

fn main() {
    let mut words = std::env::args().skip(1);
    let path = words.next().expect("a file");
    let flags: Vec<String> = words.collect();
    let has = |flag: &str| flags.iter().any(|word| word == flag);
    if has("ignore-term") {
        ignore(Signal::SIGTERM);
    }
    if has("daemon") {
        let mut daemon = Command::new("setsid");
        daemon.arg("--fork").arg(std::env::current_exe().expect("has a path")).arg(&path);
        daemon.args(flags.iter().filter(|flag| *flag == "ignore-term"));
        assert!(daemon.status().expect("setsid runs").success());
    }
    let slot = std::env::var("LEADERRUN_SLOT").map(|slot| format!(".{slot}")).unwrap_or_default();
    let path = path + &slot;
    let told = |name: &str| std::env::var(name).unwrap_or_else(|_| "?".to_owned());
    let (owner, term) = (told("LEADERRUN_CANDIDATE"), told("LEADERRUN_TERM"));
    let begun = BootInstant::now();
    let ends = has("ends") || has("ends-once");
    let is_first = ends && is_first_of(&term, &format!("{path}.runs"));
    let lasts = if is_first && has("ends-once") {
        Duration::from_millis(100)
    } else if has("ends") {
        // Every other run goes on for longer than a lease, most of the time.
        let least = if begun.as_nanos().is_multiple_of(2) { 200 } else { 6000 };
        Duration::from_millis(least + begun.as_nanos() / 1000 % 1300)
    } else {
        Duration::MAX
    };
    let pause = Duration::from_millis(if has("slowly") { 100 } else { 2 });
    let mut file = append_to(&path);
    while BootInstant::now().since(begun) < lasts {
        if line::append(&mut file, &owner, &term).is_err() {
            return;
        }
        std::thread::sleep(pause);
    }
    std::process::exit(3);
}

fn append_to(path: &str) -> File {
    File::options().append(true).create(true).open(path).expect("the file can be written")
}

/// One run comes after another.
fn is_first_of(term: &str, path: &str) -> bool {
    let before = std::fs::read_to_string(path).unwrap_or_default();
    append_to(path).write_all(format!("{term}\n").as_bytes()).expect("it can be written");
    !before.lines().any(|line| line == term)
}
