//! Completion of shard names from the store, in the shells themselves.
#![cfg_attr(not(feature = "redis"), allow(dead_code, reason = "some stories need a server"))]

use crate::support::fleet::{leaderctl, leaderrun, wait_until_or};
use crate::support::place::Place;
#[cfg(feature = "redis")]
use crate::support::redis::Server;
use crate::support::said::Runs as _;
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Beginning alike, with each character that shells treat as their own.
const SHARDS: [&str; 5] = ["app:web:1", "app:web:2", "db/main", "db/main.old", "other_name-1"];

impl Place {
    /// Where each shard was led once.
    fn led(self) -> Self {
        for shard in SHARDS {
            let mut command = leaderrun();
            command.args(["--store", &self.url, "-q", shard, "true"]).envs(self.environment.iter().copied());
            command.said().good();
        }
        self
    }

    /// In `shell`, which finds the programs, their scripts in `$SHARE`, and the store in the environment.
    fn shell(&self, shell: &str, flags: &[&str], script: &str) -> String {
        let share = self.path("share");
        fs::create_dir_all(&share).unwrap();
        for program in ["leaderrun", "leaderctl"] {
            let printed = leaderctl().args(["completions", program, shell]).output().unwrap().stdout;
            fs::write(share.join(if shell == "zsh" { format!("_{program}") } else { program.to_owned() }), printed)
                .unwrap();
        }
        let programs = Path::new(env!("CARGO_BIN_EXE_leaderctl")).parent().unwrap().display();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
        let mut command = Command::new(shell);
        command.args(flags).args(["-c", script]).envs(self.environment.iter().copied()).env("PATH", path);
        command.env("LEADERRUN_STORE", &self.url).env("SHARE", &share).env("HOME", self.fleet.scratch.path());
        let said = command.current_dir(&share).stdin(Stdio::null()).said().ended(0);
        assert_eq!(said.err, "");
        said.out
    }
}

/// Waits until `shell` makes of `script` what is `expected`: a slow machine may not have the names in half a second.
#[track_caller]
fn becomes(expected: &str, tell: impl Fn() -> String) {
    let told = RefCell::new(String::new());
    wait_until_or(
        "the names are offered",
        || format!("{}\nis not\n{expected}", told.borrow()),
        || {
            told.replace(tell());
            *told.borrow() == expected
        },
    );
}

/// What is there to choose from, as bash sees it: its words end at each colon.
const BASH: &str = r#"
    . "$SHARE/leaderrun"; . "$SHARE/leaderctl"
    # Without a person at the keys there is no completion whose options could be changed.
    compopt() { options+=" $*"; }
    words() {
        local options=
        COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
        local words; IFS=$' \t\n' read -ra words <<<"${1//:/ : }"
        [[ $1 == *[\ :] ]] && [[ $1 != *: ]] && words+=("")
        COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
        "$(complete -p "${words[0]}" | sed 's/.*-F \([^ ]*\) .*/\1/')" "${words[0]}" "${words[-1]}" "${words[-2]}"
        echo "${COMPREPLY[*]}"
        told=$options
    }
    # What bash does if nothing is offered.
    files() {
        words "$1"
        [[ $told == *"+o default +o bashdefault"* ]] && echo no || echo yes
    }
"#;

fn bash_offers_the_shards_of_the_store(place: &Place) {
    let script = r"
        words 'leaderctl status '
        words 'leaderctl status db/'
        words 'leaderctl status db/main app:w'
        words 'leaderctl status app:web:'
        words 'leaderctl --request-timeout 9s history o'
        words 'leaderrun o'
        words 'leaderrun -n --lease 9s db/main.'
        words 'leaderrun --leas'
        words 'leaderctl status --js'
        words 'leaderctl step'
        words 'leaderctl bal'
        words 'leaderctl balance --dr'
        words 'leaderctl resume --ho'
        words 'leaderrun --announce n'
    ";
    let expected = [
        &SHARDS.join(" "),
        "db/main db/main.old",
        "web:1 web:2",
        "1 2",
        "other_name-1",
        "other_name-1",
        "db/main.old",
        "--lease",
        "--json",
        "step-down",
        "balance",
        "--dry-run",
        "--host",
        "never",
    ];
    let in_bash = |script: &str| place.shell("bash", &["--norc"], &format!("{BASH}{script}"));
    becomes(&format!("{}\n", expected.join("\n")), || in_bash(script));
    // Where a program follows it is not a shard, and where there is no such shard nothing is offered.
    let script = "files 'leaderctl status nothing'; files 'leaderrun nothing'; files 'leaderrun db/main o'";
    becomes("\nno\n\nno\n\nyes\n", || in_bash(script));
}

fn bash_offers_the_shards_of_the_store_that_is_named_on_the_line(place: &Place) {
    let in_bash = |script: &str| place.shell("bash", &["--norc"], &format!("{BASH}\nunset LEADERRUN_STORE; {script}"));
    let script = format!("words 'leaderctl --store {0} status o'; words 'leaderrun --store={0} o'", place.url);
    becomes("other_name-1\nother_name-1\n", || in_bash(&script));
    let told = in_bash("words 'leaderctl status o'");
    assert!(!told.contains("other_name"), "{told}");
    assert!(!place.path(".local").exists(), "no default store was made");
}

fn zsh_offers_the_shards_of_the_store(place: &Place) {
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

fn fish_offers_the_shards_of_the_store(place: &Place) {
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

stories_at!(
    file,
    super::Place::local().led(),
    [&bash_offers_the_shards_of_the_store, &bash_offers_the_shards_of_the_store_that_is_named_on_the_line]
);

#[cfg(feature = "redis")]
stories_at!(
    redis,
    super::Place::remote(Box::new(super::Server::start())).led(),
    [&bash_offers_the_shards_of_the_store, &bash_offers_the_shards_of_the_store_that_is_named_on_the_line]
);

#[test]
#[ignore = "needs zsh"]
fn zsh_offers_the_shards_of_both_stores() {
    zsh_offers_the_shards_of_the_store(&Place::local().led());
    #[cfg(feature = "redis")]
    zsh_offers_the_shards_of_the_store(&Place::remote(Box::new(Server::start())).led());
}

#[test]
#[ignore = "needs fish"]
fn fish_offers_the_shards_of_both_stores() {
    fish_offers_the_shards_of_the_store(&Place::local().led());
    #[cfg(feature = "redis")]
    fish_offers_the_shards_of_the_store(&Place::remote(Box::new(Server::start())).led());
}

/// What it prints for this line, in which time. It says and does nothing else.
fn asked(line: &str, environment: &[(&str, &str)]) -> (String, Duration) {
    let begun = Instant::now();
    let output =
        leaderctl().args(["--complete", "leaderctl", line]).envs(environment.iter().copied()).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)) && output.stderr.is_empty(), "{line}: {output:?}");
    (String::from_utf8(output.stdout).unwrap(), begun.elapsed())
}

#[test]
fn where_no_names_can_be_had_it_says_and_does_nothing() {
    let place = Place::local();
    let home = place.path("home");
    fs::create_dir_all(&home).unwrap();
    let missing = format!("file:{}", place.path("missing").display());
    for (line, store) in [
        ("leaderctl status ", None),
        ("leaderctl status ", Some(missing.as_str())),
        ("leaderctl status ", Some("nonsense://")),
        ("leaderctl --store $STORE status ", None),
        ("leaderctl --config /nowhere status ", None),
        ("leaderctl status ", Some("redis://127.0.0.1:1")),
        ("leaderctl status ", Some("dynamodb://table?endpoint=http://127.0.0.1:1")),
        ("leaderctl status 'é", Some(missing.as_str())),
    ] {
        let home = home.display().to_string();
        let mut environment = vec![("HOME", home.as_str()), ("XDG_STATE_HOME", home.as_str())];
        environment.extend(store.map(|store| ("LEADERRUN_STORE", store)));
        assert_eq!(asked(line, &environment).0, "", "{line} {store:?}");
    }
    assert!(!place.path("missing").exists());
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "no store was made");
    for words in [&["--complete"][..], &["--complete", "other", "x"], &["--complete", "leaderctl"]] {
        assert_eq!(leaderctl().args(words).said().ended(1).all(), "", "{words:?}");
    }
}

/// Files are offered only where one is wanted.
#[test]
fn bash_offers_no_file_as_a_value_or_a_shard() {
    let place = Place::local();
    fs::create_dir_all(place.path("share")).unwrap();
    fs::write(place.path("share").join("zebra"), "").unwrap();
    let script = r"
        files 'leaderctl --store-file zeb'
        files 'leaderctl --config = zeb'
        files 'leaderrun --metrics-file zeb'
        files 'leaderrun --pre-start zeb'
        files 'leaderrun x zeb'
        echo values
        files 'leaderctl status zeb'
        files 'leaderctl --store zeb'
        files 'leaderctl list zeb'
        files 'leaderctl pause --for zeb'
        files 'leaderrun --owner zeb'
        files 'leaderrun zeb'
    ";
    let told = place.shell("bash", &["--norc"], &format!("{BASH}{script}"));
    let expected =
        "zebra\nyes\n\nyes\nzebra\nyes\nzebra\nyes\n\nyes\nvalues\n\nno\nzeb\nyes\n\nno\nzeb\nyes\nzeb\nyes\n\nno\n";
    assert_eq!(told, expected);
}

#[cfg(feature = "redis")]
#[test]
fn a_store_that_does_not_answer_is_waited_for_half_a_second() {
    let place = Place::remote(Box::new(Server::start())).led();
    let environment = [("LEADERRUN_STORE", place.url.as_str())];
    becomes("db/main\ndb/main.old\n", || asked("leaderctl status db", &environment).0);
    place.server().freeze();
    // Of several, for a slow machine may be late now and then.
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let (told, took) = asked("leaderctl status db", &environment);
        assert_eq!(told, "");
        least = least.min(took);
        if least < Duration::from_secs(3) {
            break;
        }
    }
    place.server().thaw();
    assert!(least < Duration::from_secs(3), "{least:?}");
}

#[test]
fn a_person_gets_no_more_names_than_a_person_reads() {
    let place = Place::local();
    let store = place.path("store");
    fs::create_dir_all(&store).unwrap();
    assert!(leaderrun().args(["--store", &place.url, "-q", "first", "true"]).status().unwrap().success());
    let of_first: Vec<_> = fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path()).collect();
    for number in 0..400 {
        for file in &of_first {
            let name = file.file_name().unwrap().to_str().unwrap().replacen("first", &format!("many-{number}"), 1);
            fs::copy(file, store.join(name)).unwrap();
        }
    }
    let environment = [("LEADERRUN_STORE", place.url.as_str())];
    becomes("300", || asked("leaderctl status many", &environment).0.lines().count().to_string());
}
