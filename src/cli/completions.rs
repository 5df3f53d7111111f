//! Shell completions for both programs, from the declarations of their options, and of shards, from the store.
//!
//! The hazard: a shell splits a command line in its own way (bash at each colon, which shards may have). So the scripts
//! hand over the line as it is, and `leaderctl --complete` finds out what stands at its end.

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
    /// Its options, as clap reads them: from the command line alone.
    pub fn options(self) -> Command {
        match self {
            Self::Leaderrun => super::leaderrun::Flags::command(),
            Self::Leaderctl => super::leaderctl::Flags::command(),
        }
    }

    /// Its options with their variables.
    pub fn command(self) -> Command {
        self.options().mut_args(|arg| match variable_of(&arg) {
            Some(variable) => arg.env(variable),
            None => arg,
        })
    }
}

/// Prints what clap generates, and after it what asks for shards. In zsh, a file in `fpath` is called by the name of
/// its function, so there what clap generates gets another name.
pub fn print(program: Program, shell: Shell, out: &mut impl Write) -> std::io::Result<()> {
    let mut command = hinted(program.options());
    let name = command.get_name().to_owned();
    let (begins, generated, asks) = match shell {
        Shell::Bash => (String::new(), name.clone(), BASH),
        Shell::Zsh => (format!("#compdef {name}\n"), format!("{name}-options"), ZSH),
        Shell::Fish => (String::new(), name.clone(), FISH),
        _ => (String::new(), name.clone(), ""),
    };
    let mut script = begins.into_bytes();
    generate(shell, &mut command, generated, &mut script);
    out.write_all(&script)?;
    out.write_all(asks.replace("NAME", &name).as_bytes())
}

/// Says which options take a file or a command line. Without that, shells offer files for all values.
fn hinted(command: Command) -> Command {
    let hint = |arg: &Arg| match arg.get_value_parser().type_id() {
        id if id == TypeId::of::<PathBuf>() => ValueHint::FilePath,
        id if id == TypeId::of::<OsString>() => ValueHint::CommandString,
        _ => ValueHint::Other,
    };
    // What an operand is depends on those before it.
    let command = command.mut_args(|arg| {
        let hint = hint(&arg);
        if arg.is_positional() || !arg.get_action().takes_values() { arg } else { arg.value_hint(hint) }
    });
    command.mut_subcommands(hinted)
}

/// COMP_LINE, because COMP_WORDS are split at colons.
const BASH: &str = r#"
__NAME_or_shards() {
    local line="${COMP_LINE:0:${COMP_POINT:-0}}" names="" word seen=""
    if [[ $2 == -* ]] || ! names=$(leaderctl --complete NAME "$line" 2>/dev/null); then
        _NAME "$@"
        # None of its operands is a file. After `--config=` it would be one.
        if [[ NAME == leaderctl && ${#COMPREPLY[@]} -eq 0 && $3 != = ]]; then
            compopt +o default +o bashdefault
        fi
        return
    fi
    COMPREPLY=()
    # SHARD is no file, even if no shard is known.
    compopt +o default +o bashdefault
    [[ -n $names ]] || return
    word="${line##*[[:space:]]}"
    # Up to the last colon, bash takes what is there for words of its own.
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        seen="${word%"${word##*:}"}"
    fi
    while IFS= read -r word; do
        COMPREPLY+=("${word#"$seen"}")
    done <<<"$names"
}
complete -F __NAME_or_shards -o bashdefault -o default NAME
"#;

const ZSH: &str = r#"
_NAME() {
    local told
    # SHARD is no file, even if no shard is known.
    if [[ $PREFIX != -* ]] && told=$(leaderctl --complete NAME "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null); then
        compadd -- ${(f)told}
    else
        _NAME-options "$@"
    fi
}
if [ "$funcstack[1]" = "_NAME" ]; then
    _NAME "$@"
else
    compdef _NAME NAME
fi
"#;

/// COMMAND may be a file; no operand of leaderctl is one.
const FISH: &str = r"
complete -c leaderctl -f
complete -c NAME -a '(leaderctl --complete NAME (commandline -cp | string collect) 2>/dev/null)'
";
