//! Shell completions for both programs, from the declarations of their options, and of shards, from the store.
//!
//! The hazard: a shell splits a command line in its own way (bash at each colon, which shards may have). So the scripts hand
//! over the line as it is, and `leaderctl --complete` finds out what stands at its end.

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
    generate(shell, &mut command, name.clone(), &mut script);
    let script = String::from_utf8(script).map_err(std::io::Error::other)?;
    out.write_all(with_shards(&name, shell, script).as_bytes())
}

/// The script, which asks `leaderctl --complete` where SHARD may stand.
fn with_shards(name: &str, shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => {
            let registered = format!("complete -F _{name} ");
            script.replace(&registered, &format!("complete -F __{name}_or_shards ")) + &BASH.replace("NAME", name)
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
    if [[ $2 != -* ]]; then
        names=$(leaderctl --complete NAME "$line" 2>/dev/null)
    fi
    if [[ -z $names ]]; then
        _NAME "$@"
        return
    fi
    word="${line##*[[:space:]]}"
    # Up to the last colon, bash takes what is there for words of its own.
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        seen="${word%"${word##*:}"}"
    fi
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("${word#"$seen"}")
    done <<<"$names"
}
"#;

const ZSH: &str = r#"
__NAME_shards() {
    local -a names
    names=(${(f)"$(leaderctl --complete NAME "$_leaderrun_line$PREFIX" 2>/dev/null)"})
    if (( $#names )); then
        compadd -a names
    else
        _default
    fi
}
"#;

const FISH: &str = r"
complete -c NAME NO-FILES -a '(leaderctl --complete NAME (commandline -cp | string collect) 2>/dev/null)'
";
