//! Shell completions for both programs, from the declarations of their options.

use clap::{Command, CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};
use std::io::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    Leaderrun,
    Leaderctl,
}

impl Program {
    #[must_use]
    pub fn command(self) -> Command {
        match self {
            Self::Leaderrun => super::leaderrun::Flags::command(),
            Self::Leaderctl => super::leaderctl::Flags::command(),
        }
    }
}

/// # Errors
/// Those of the writer.
pub fn print(program: Program, shell: Shell, out: &mut impl Write) -> std::io::Result<()> {
    let mut command = program.command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut command, name, &mut script);
    out.write_all(&script)
}
