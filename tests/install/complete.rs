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
