//! Shell completions for both programs, from the declarations of their options.

use super::settings::variable_of;
use clap::{Arg, Command, CommandFactory, ValueEnum, ValueHint};
use clap_complete::{Shell, generate};
use std::any::TypeId;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    Leaderrun,
    Leaderctl,
}

impl Program {
    /// Its options, without the environment.
    pub fn options(self) -> Command {
        match self {
            Self::Leaderrun => super::leaderrun::Flags::command(),
            Self::Leaderctl => super::leaderctl::Flags::command(),
        }
    }

    pub fn command(self) -> Command {
        self.options().mut_args(|arg| match variable_of(&arg) {
            Some(variable) => arg.env(variable),
            None => arg,
        })
    }
}

pub fn print(program: Program, shell: Shell, out: &mut impl Write) -> std::io::Result<()> {
    let mut command = hinted(program.options());
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut command, name, &mut script);
    let mut script = String::from_utf8(script).expect("it is text");
    if program == Program::Leaderctl {
        // Bash would offer files wherever nothing else fits. Where an option takes one, the script itself offers them.
        script = script.replace(" -o bashdefault -o default", "");
    }
    out.write_all(script.as_bytes())
}

/// Says which options take a file or a command line. Otherwise shells offer files for all values.
fn hinted(command: Command) -> Command {
    let hint = |arg: &Arg| match arg.get_value_parser().type_id() {
        id if id == TypeId::of::<PathBuf>() => ValueHint::FilePath,
        id if id == TypeId::of::<OsString>() => ValueHint::CommandString,
        _ => ValueHint::Other,
    };
    // COMMAND and its arguments may be anything.
    let command = command.mut_args(|arg| {
        let hint = hint(&arg);
        if arg.is_trailing_var_arg_set() || !arg.get_action().takes_values() { arg } else { arg.value_hint(hint) }
    });
    command.mut_subcommands(hinted)
}
