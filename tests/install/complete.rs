//! What bash completes.

use crate::support::fleet::leaderctl;
use crate::support::said::Runs as _;
use std::fs;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// `words LINE` prints what there is to choose from where the line ends.
const BASH: &str = r#"
    . ./leaderrun; . ./leaderctl
    # Without a person at the keys there is no completion whose options could be changed.
    compopt() { :; }
    words() {
        COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
        read -ra COMP_WORDS <<<"$1"
        [[ $1 == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        "_${COMP_WORDS[0]}" "${COMP_WORDS[0]}" "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
        echo "${COMPREPLY[*]}"
    }
"#;

#[test]
fn bash_offers_options_verbs_values_and_files_where_one_is_wanted() {
    let scratch = TempDir::new().unwrap();
    for program in ["leaderrun", "leaderctl"] {
        let printed = leaderctl().args(["completions", program, "bash"]).output().unwrap().stdout;
        fs::write(scratch.path().join(program), printed).unwrap();
    }
    fs::write(scratch.path().join("zebra"), "").unwrap();
    let script = r"
        words 'leaderrun --leas'
        words 'leaderctl status --js'
        words 'leaderctl step'
        words 'leaderctl balance --dr'
        words 'leaderctl resume --ho'
        words 'leaderrun --announce n'
        words 'leaderctl --store-file zeb'
        words 'leaderrun --pre-start zeb'
    ";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &format!("{BASH}{script}")]).current_dir(scratch.path()).stdin(Stdio::null());
    let said = bash.said().ended(0);
    assert_eq!(
        (said.out.as_str(), said.err.as_str()),
        ("--lease\n--json\nstep-down\n--dry-run\n--host\nnever\nzebra\nzebra\n", "",)
    );
}

#[test]
#[ignore = "needs zsh"]
fn zsh_offers_the_shards_of_the_store() {
    let place = Place::local().led();
    // What is typed at a terminal, and run: each name is completed as far as it is the only one.
    let script = r#"
        zmodload zsh/zpty; rm -f $HOME/told
        zpty shell zsh -f -i
        zpty -w shell 'PS1= PS2= RPS1=; unsetopt zle_bracketed_paste 2>/dev/null; fpath=($SHARE $fpath); autoload -Uz compinit && compinit -u -D'
        zpty -w shell 'unsetopt beep; setopt no_list_beep; told() { print -r -- "$@" >> $HOME/told }; leaderrun() { told run "$@" }; leaderctl() { [[ $1 == --complete ]] && { command leaderctl "$@"; return }; told ctl "$@" }'
        for line in 'leaderctl status o' 'leaderctl --request-timeout 9s history db/main.' 'leaderctl status app:' 'leaderrun -n o'; do
            zpty -w -n shell "$line"$'\t\n'
        done
        zpty -w shell 'told end'
        for i in {1..200}; do grep -q end $HOME/told 2>/dev/null && break; sleep 0.1; done
        zpty -d shell
        cat $HOME/told
    "#;
    let expected = "ctl status other_name-1\nctl --request-timeout 9s history db/main.old\nctl status app:web:\nrun -n other_name-1\nend\n";
    becomes(expected, || place.shell("zsh", &["-f"], script));
}

#[test]
#[ignore = "needs fish"]
fn fish_offers_the_shards_of_the_store() {
    let place = Place::local().led();
    let script = r#"
        source $SHARE/leaderrun; source $SHARE/leaderctl
        complete -C "leaderctl status "
        echo
        complete -C "leaderctl --request-timeout 9s history app:w"
        echo
        complete -C "leaderrun -n other"
        echo
        complete -C "leaderctl status --js"
    "#;
    let expected = format!("{}\n\napp:web:1\napp:web:2\n\nother_name-1\n\n--json\n", SHARDS.join("\n"));
    // Without what it says about each.
    let name = |line: &str| format!("{}\n", line.split('\t').next().unwrap_or_default());
    becomes(&expected, || place.shell("fish", &["--no-config"], script).lines().map(name).collect());
}
