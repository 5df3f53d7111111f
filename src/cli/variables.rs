//! Finds mistyped environment variables among those named `LEADERRUN_*`.
//!
//! The hazard: nobody notices that a variable with a wrong name has no effect, such as a mistyped `LEADERRUN_STORE`.

use super::completions::Program;
use super::settings::variable_of;
use crate::text;
use clap::Command;
use std::collections::BTreeSet;

/// The variables that COMMAND, hooks, standby tasks and their children get; and those of `selftest`.
const GIVEN: &str = "ATTEMPT CANDIDATE DUE EVENT EXIT_STATUS JOB LEADER LEADER_HOST LEADER_TERM PREVIOUS \
                     REASON SELFTEST_CLOCK SELFTEST_PARENT SHARD SLOT SOCKET SOCKET_KEY TAKEOVER TERM";
const PREFIX: &str = "LEADERRUN_";

/// A line about each variable that leaderrun does not set and neither program reads.
pub fn doubts(command: &Command) -> Vec<String> {
    let own: Vec<String> = command.get_arguments().filter_map(variable_of).collect();
    let is_own = |name: &str| own.iter().any(|own| own.strip_prefix(PREFIX) == Some(name));
    let given = std::env::vars_os().filter_map(|(name, _)| Some(name.to_str()?.strip_prefix(PREFIX)?.to_owned()));
    let doubtful: Vec<String> = given.filter(|name| !is_given(name) && !is_own(name)).collect();
    // Declaring all options of both programs takes a while.
    let mut known = if doubtful.is_empty() { BTreeSet::new() } else { of_options() };
    known.extend(GIVEN.split(' ').map(str::to_owned));
    doubtful.iter().filter(|name| !known.contains(*name)).map(|name| doubt(name, &known)).collect()
}

fn is_given(name: &str) -> bool {
    GIVEN.split(' ').any(|given| given == name)
}

/// The names for both programs: people set the variables of both in one place.
fn of_options() -> BTreeSet<String> {
    let programs = [Program::Leaderrun, Program::Leaderctl].map(Program::options);
    let variables = programs.iter().flat_map(Command::get_arguments).filter_map(variable_of);
    variables.filter_map(|variable| variable.strip_prefix(PREFIX).map(str::to_owned)).collect()
}

fn doubt(name: &str, known: &BTreeSet<String>) -> String {
    let nearest = text::nearest(name, known.iter().map(String::as_str));
    let meant = nearest.map(|nearest| format!(": did you mean {PREFIX}{nearest}?")).unwrap_or_default();
    text::on_one_line(format!("the variable {PREFIX}{name} has no effect{meant}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_variable_that_command_gets_sets_an_option() {
        let options = of_options();
        let both: Vec<_> = GIVEN.split(' ').filter(|given| options.contains(*given)).collect();
        assert!(both.is_empty(), "a leaderrun inside COMMAND would take them for its own options: {both:?}");
        // What a test saw them get.
        let seen = include_str!("../../tests/golden/environment.txt").lines();
        for name in seen.filter_map(|line| line.strip_prefix(PREFIX)?.split('=').next()) {
            assert!(is_given(name), "{name} is given, and not in the list");
        }
    }
}
