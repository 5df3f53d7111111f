//! Shell completions for both programs, from the declarations of their options, and of shards, from the store.
//!
//! The hazard: a shell splits a command line in its own way (bash at each colon, which shards may have). So the scripts hand
//! over the line as it is, and `leaderctl --complete` finds out what stands at its end.

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
    let mut command = hinted(program.command());
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut command, name.clone(), &mut script);
    let script = String::from_utf8(script).map_err(std::io::Error::other)?;
    out.write_all(with_shards(&name, shell, script).as_bytes())
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

/// The script, which asks `leaderctl --complete` where SHARD may stand.
fn with_shards(name: &str, shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => {
            let registered = format!("complete -F _{name} ");
            let files = if name == "leaderctl" { BASH_LEADERCTL } else { "" };
            script.replace(&registered, &format!("complete -F __{name}_or_shards "))
                + &BASH.replace("NAME", name).replace("        FILES\n", files)
        }
        Shell::Zsh => {
            let begins = format!("\n_{name}() {{\n");
            let line = r#"    local _leaderrun_line="${(j: :)words[1,CURRENT-1]} ""#;
            let script = script.replacen(&begins, &format!("{begins}{line}\n"), 1);
            let is_shard = |line: &str| {
                let operand = line.trim_start_matches(['\'', '*']);
                [":shard", "::shard", "::operands"].iter().any(|operands| operand.starts_with(operands))
            };
            let ask = |line: &str| match line.rsplit_once(":_default'") {
                Some((spec, rest)) if is_shard(line) => format!("{spec}:__{name}_shards'{rest}\n"),
                _ => format!("{line}\n"),
            };
            let script: String = script.lines().map(ask).collect();
            script.replacen(&begins, &format!("{}{begins}", ZSH.replace("NAME", name)), 1)
        }
        Shell::Fish => {
            // COMMAND may be a file.
            let no_files = if name == "leaderctl" { "-f " } else { "" };
            script + &FISH.replace("NAME", name).replace("NO-FILES ", no_files)
        }
        _ => script,
    }
}

/// COMP_LINE, because COMP_WORDS are split at colons.
const BASH: &str = r#"
__NAME_or_shards() {
    local line="${COMP_LINE:0:${COMP_POINT:-0}}" names="" word seen=""
    if [[ $2 == -* ]] || ! names=$(leaderctl --complete NAME "$line" 2>/dev/null); then
        _NAME "$@"
        FILES
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
"#;

/// None of its operands is a file. After `--config=` it would be one.
const BASH_LEADERCTL: &str = r"        if [[ ${#COMPREPLY[@]} -eq 0 && $3 != = ]]; then
            compopt +o default +o bashdefault
        fi
";

const ZSH: &str = r#"
__NAME_shards() {
    local told
    local -a names
    # SHARD is no file, even if no shard is known.
    if told=$(leaderctl --complete NAME "$_leaderrun_line$PREFIX" 2>/dev/null); then
        names=(${(f)told})
        compadd -a names
    else
        _default
    fi
}
"#;

const FISH: &str = r"
complete -c NAME NO-FILES -a '(leaderctl --complete NAME (commandline -cp | string collect) 2>/dev/null)'
";
