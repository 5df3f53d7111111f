//! Bad input gets one clear line and its own status, and COMMAND is never started.

mod config;
#[path = "../support/mod.rs"]
mod support;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::ffi::OsStr;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use support::denied::{User, assert_changes_nothing, assert_leads_nothing};
use support::fleet::copy_program;
use support::prelude::*;
use support::squatting::{NOBODY, as_nobody, by_user, copied};
use support::verbs::{ASKING, forget_in_default_store};

struct Ran {
    said: Said,
    started: bool,
}

impl Deref for Ran {
    type Target = Said;

    fn deref(&self) -> &Said {
        &self.said
    }
}

impl Ran {
    #[track_caller]
    fn refused(&self, status: i32, parts: &str) -> &Self {
        assert!(!self.started, "COMMAND was started: {:?}", self.said);
        let said = self.said.clone().refused(status, parts);
        assert!(without_time(&said.err).starts_with("leaderrun: "), "{said:?}");
        self
    }
}

/// A line of the log, or one that has no time.
fn without_time(line: &str) -> &str {
    match line.split_once(' ') {
        Some((time, rest)) if humantime::parse_rfc3339(time).is_ok() => rest,
        _ => line,
    }
}

fn run_with(flags: &[&str], shard: &str, prepare: impl Fn(&mut Command)) -> Ran {
    let scratch = TempDir::new().unwrap();
    let file = scratch.path().join("started");
    let mut command = leaderrun();
    command.args(flags).arg(shard).arg("touch").arg(&file).stdin(Stdio::null());
    prepare(&mut command);
    Ran { said: command.said(), started: file.exists() }
}

fn run(flags: &[&str], shard: &str) -> Ran {
    run_with(flags, shard, |_| {})
}

/// Without those that say that a server takes its time, as a busy machine lets it.
fn lines_of(ran: &Ran) -> Vec<&str> {
    ran.err.lines().filter(|line| !line.contains(" has not answered yet")).collect()
}

/// A store that is gone with its directory.
fn local() -> (TempDir, String) {
    let scratch = TempDir::new().unwrap();
    let store = format!("file:{}", scratch.path().display());
    (scratch, store)
}

#[test]
fn announce_is_refused_on_the_command_line_where_it_changes_nothing() {
    let scratch = TempDir::new().unwrap();
    let store = format!("file:{}", scratch.path().join("store").display());
    let always = ["--store", &store, "--announce", "always"];
    run(&always, "s").refused(64, "--announce always changes nothing here");
    #[cfg(feature = "dynamodb")]
    run(&["--store", "dynamodb://locks", "--announce", "never"], "s")
        .refused(64, "--announce never changes nothing here");
}

#[test]
fn wrong_flags_are_usage_errors() {
    let (scratch, store) = local();
    for (flags, words) in [
        (&["--no-such-flag"][..], "unexpected argument '--no-such-flag' found (see"),
        (&["--wiat", "5"], "unexpected argument '--wiat' found; a similar argument exists: '--wait' (see"),
        (&["-w", "soon"], "write a duration"),
        (&["-w", "584542046090y 500ms 18446744073709551615.5s"], "write a duration"),
        (&["-n", "-w", "5"], "exclude each other: use one of them"),
        (&["-q", "-v"], "exclude each other: use one of them"),
        (&["-E", "256"], "'256' for '--conflict-exit-code <CODE>': write an exit status from 0 to 255"),
        (&["-s", "NOSUCH"], "write a signal"),
        (&["--lease", "0"], "--lease 0s"),
        (&["--renew", "0"], "--renew 0s"),
        (&["--retry", "3h"], "--retry 3h"),
        (&["--lease", "6s", "--renew", "5s", "--kill-after", "5s"], "leaves no room in a lease of 6s"),
        (&["--kill-after", "18446744073709551615"], "write a duration"),
        (&["--owner", "a\nb"], "printable"),
        (&["-s", "STOP"], "SIGSTOP does not end a program: write one that does"),
        (&["--renew", "9ms"], "--renew 9ms would renew too often: use 10ms or more"),
        (&["--retry-failed", "-1"], "'-1' for '--retry-failed <N>': write a whole number"),
        (&["--slots", "-1"], "write how many may lead at once … 1 to 64"),
        (&["--slots", "65"], "1 to 64"),
        (&["--standby", ""], "invalid value '' for '--standby <CMD>': write a command"),
        (&["--health", " "], "write a command for the shell"),
        (&["--health", "x", "--health-interval", "0"], "leaves no time between two checks"),
        (&["--health", "x", "--health-timeout", "0s"], "leaves a check no time to run"),
        (&["--health", "x", "--health-failures", "0"], "use 1 or more"),
        (&["--health-interval", "1"], "--health-interval needs --health"),
        (&["--hook-timeout", "0s"], "--hook-timeout 0s leaves a hook no time to run"),
        (&["--pre-start", " "], "write a command for the shell"),
        (&["--restart-limit", "3"], "--restart-limit needs --restart"),
        (&["--restart", "always", "--every", "5m"], "--every and --restart exclude each other: use --retry-failed"),
        (&["--relinquish", "soon"], "a crontab's five fields"),
        (&["--relinquish", "* * * * 1 Nowhere/Land"], "failed to find timezone Nowhere/Land"),
        (&["--relinquish", "0s", "--once", "a"], "at least 1s"),
        (&["--relinquish", "0 0 31 4 *", "--once", "a"], "never comes"),
        (&["--relinquish", "1h", "--every", "1h"], "exclude each other"),
        (&["--every", "999ms"], "1s"),
        (&["--every", "9years"], "366 days"),
        (&["--retry-failed", "1"], "--every or --once"),
        (&["--once", "a/b"], "letters, digits"),
        (&["--owner", "\u{1b}[31m"], "invalid value '\\u{1b}[31m' for '--owner <NAME>'"),
        (&["-c", "true"], "-c STRING and COMMAND exclude each other"),
    ] {
        run(&[&["--store", &store], flags].concat(), "shard").refused(64, words);
    }
    // The name of each slot is a name of a shard.
    run(&["--store", &store, "--slots", "9"], &"x".repeat(199)).refused(64, "201 bytes");
    assert!(fs::read_dir(scratch.path()).unwrap().next().is_none(), "something was left in the store");
}

#[test]
fn wrong_settings_in_the_environment_are_usage_errors() {
    for (name, value, words) in [
        ("LEADERRUN_EXPLAIN", "flase", "invalid value 'flase' for LEADERRUN_EXPLAIN: write true or false"),
        ("LEADERRUN_NO_WAIT", "maybe", "invalid value 'maybe' for LEADERRUN_NO_WAIT: write true or false"),
        ("LEADERRUN_LEASE", "long", "invalid value 'long' for LEADERRUN_LEASE: write a duration"),
        ("LEADERRUN_WAIT", "5M", "invalid value '5M' for LEADERRUN_WAIT: M is a month: write m for minutes"),
        ("LEADERRUN_STORE", "", "leaderrun: LEADERRUN_STORE: the store URL is empty: use one of file:DIR"),
        (
            "LEADERRUN_STORE",
            "redi://u:hunter2@h",
            "leaderrun: LEADERRUN_STORE: no store is called redi: did you mean redis?",
        ),
        ("LEADERRUN_STORE", "FILE:", "leaderrun: LEADERRUN_STORE: no store is called FILE: did you mean file?"),
        ("LEADERRUN_STORE", "'redis://h'", "leaderrun: LEADERRUN_STORE: the store URL is in quotes: remove them"),
        // The value is also a word of COMMAND.
        ("LEADERRUN_VERBOSE", "touch", "'touch' for LEADERRUN_VERBOSE: write how much more to log: 0, 1 or 2"),
        ("LEADERRUN_STORE", "file:/x ", "LEADERRUN_STORE: the store URL begins or ends with a blank"),
    ] {
        let said = run_with(&[], "shard", |command| {
            command.env(name, value);
        });
        assert!(!said.said.all().contains("hunter2"), "{:?}", said.said);
        said.refused(64, words);
    }
}

#[test]
fn variables_that_contradict_each_other_are_refused_and_the_command_line_overrules_them() {
    let (_scratch, store) = local();
    let with = |flags: &[&str], variables: &[(&str, &str)]| {
        run_with(flags, "shard", |command| {
            command.envs(variables.iter().map(|(name, value)| (format!("LEADERRUN_{name}"), value)));
        })
    };
    let stores = [("STORE", &*store), ("STORE_FILE", "/dev/null")];
    let (waits, logs) = ([("NO_WAIT", "1"), ("WAIT", "5")], [("VERBOSE", "1"), ("QUIET", "yes")]);
    with(&[], &stores).refused(64, "LEADERRUN_STORE and LEADERRUN_STORE_FILE exclude each other");
    with(&["--store", &store], &waits).refused(64, "LEADERRUN_NO_WAIT and LEADERRUN_WAIT exclude each other");
    with(&["--store", &store], &logs).refused(64, "LEADERRUN_QUIET and LEADERRUN_VERBOSE exclude each other");
    assert!(with(&["--store", &store], &stores).started);
    // An empty one is as good as none where the command line names the store.
    for variable in ["STORE", "STORE_FILE"] {
        assert!(with(&["--store", &store], &[(variable, "")]).started, "{variable}");
    }
    assert!(with(&["--store", &store, "-n"], &waits).started);
    assert!(with(&["--store", &store, "-q"], &logs).started);
    assert!(with(&["--store", &store], &[("NO_WAIT", "0"), ("WAIT", "5"), ("VERBOSE", "1"), ("QUIET", "")]).started);
    assert!(with(&["--store", &store], &[("COMMAND", "exit 9")]).started);
    leaderrun().args(["-q", "--store", &store, "shard"]).env("LEADERRUN_COMMAND", "exit 9").said().ended(9);
}

#[test]
fn an_empty_command_for_the_shell_is_no_success() {
    let (_scratch, store) = local();
    let once = ["-q", "--store", &store, "--once", "job"];
    for (words, variable, named) in
        [(&["-c", "", "shard"][..], "true", "-c"), (&["shard"], "", "LEADERRUN_COMMAND, or command in the file,")]
    {
        leaderrun()
            .args(once)
            .args(words)
            .env("LEADERRUN_COMMAND", variable)
            .said()
            .ended(64)
            .tells(&format!("leaderrun: {named} is empty: write what to run"));
    }
    assert!(run(&once, "shard").started, "the job is done already");
}

#[test]
fn a_missing_shard_does_not_make_command_the_shard() {
    let (scratch, store) = local();
    let file = scratch.path().join("started");
    let file = file.to_str().unwrap();
    let flags = ["--store", &store, "-n"];
    for words in [&["--", "--", "touch", file][..], &["--", "nice", "touch", file], &["-w", "5", "--", "x"], &["--"]] {
        let flags = if words[0] == "-w" { &flags[..2] } else { &flags };
        leaderrun().args(flags).args(words).said().refused(64, "leaderrun: no SHARD before '--'");
    }
    assert!(!Path::new(file).exists());
    leaderrun().args(flags).args(["-q", "shard", "--", "touch", file]).said().good();
    assert!(Path::new(file).exists());
}

#[test]
fn a_wrong_word_of_leaderctl_is_shown_without_harm_beside_the_known_ones() {
    let (_scratch, store) = local();
    for (words, part) in [
        (&["status", "\u{1b}[31mX"][..], "invalid value '\\u{1b}[31mX' for '<SHARD>...'"),
        (&["--request-timeout", "-1", "list"], "'-1' for '--request-timeout <DURATION>': write a duration"),
        (&["why", "--host", "", "shard"], "'--host <NAME>'"),
        (&["revoke", "shard", "--term", "-1"], "invalid value '-1' for '--term <N>': write a whole number"),
        (&["pause", "--prefix", ""], "the prefix is empty: it would pause every shard; name one"),
        (&["statsu", "x"], "unrecognized subcommand 'statsu'; a similar subcommand exists: 'status' (see"),
        (&[], "requires a subcommand but one was not provided [subcommands: status, list, watch,"),
        (&["status", "--josn", "x"], "unexpected argument '--josn' found; a similar argument exists: '--json' (see"),
        (&["status", "../x"], "not a path"),
        (&["--store", "nonsense", "status", "x"], "no scheme"),
        (&["--request-timeout", "0", "status", "x"], "--request-timeout 0s leaves no time"),
        (&["list", "../x"], "no shard begins with \"../x\""),
        (&["status", "h2#65"], "use letters, digits and . _ - / :, and at the end of a slot #1 to #64"),
        (&["pause", "--wait=forever", "x"], "'forever' for '--wait[=<DURATION>]': write a duration"),
        (&["step-down", "--wait=forever", "x"], "'forever' for '--wait[=<DURATION>]': write a duration"),
    ] {
        let said = leaderctl().env("LEADERRUN_STORE", &store).args(words).said().refused(64, part);
        assert!(said.err.len() < 500 && !said.err.contains('\u{1b}'), "{said:?}");
    }
}

#[test]
fn missing_operands_and_a_shard_that_is_no_name_are_usage_errors() {
    for words in [&[][..], &["shard"], &["shard", "--"], &["shard", ""], &["../x", "true"]] {
        leaderrun().args(words).said().refused(64, "");
    }
}

#[test]
fn a_store_file_that_holds_anything_but_one_url_is_a_usage_error() {
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("store");
    let flags = ["--store-file", path.to_str().unwrap()];
    run(&flags, "shard").refused(64, "cannot be read: no such file or directory (see");
    for (text, words) in [
        ("", "one line"),
        ("file:/a\nfile:/b\n", "one line"),
        ("export LEADERRUN_STORE='redis://u:hunter2@h'", " names a variable or an option: write the URL alone"),
    ] {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        run(&flags, "shard").refused(64, words);
        let named = format!("the store file {} … {words}", path.display());
        leaderctl().args(flags).args(["status", "a"]).said().refused(64, &named);
    }
    fs::remove_file(&path).unwrap();
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    run(&flags, "shard").refused(64, "cannot be read: it is a named pipe; name a regular file");
    run(&["--store", "file:/a", "--store-file", "b"], "shard")
        .refused(64, "--store and --store-file exclude each other");
}

#[cfg(feature = "redis")]
#[test]
fn a_password_on_the_command_line_is_shown_by_nothing() {
    let url = format!("redis://user:hunter2@127.0.0.1:{}", support::ports::free_port());
    let scratch = TempDir::new().unwrap();
    let log = scratch.path().join("log");
    let ways: [&[&str]; 4] = [&["--store", &url], &[&format!("--store={url}")], &["-vv", "--store", &url], &[]];
    for flags in ways {
        let mut command = leaderrun();
        if flags.is_empty() {
            command.env("LEADERRUN_STORE", &url);
        }
        command.args(flags).args(["shard", "sleep", "60"]).stderr(fs::File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let told = || fs::read_to_string(&log).unwrap();
        wait_until("it has said that the store cannot be reached", || told().contains("retrying"));
        let shown = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("sleep\x0060") && !shown.contains("hunter2"), "{shown}");
        assert!(flags.is_empty() || shown.contains("redis:***"), "{shown}");
        assert!(!told().contains("hunter2"), "{}", told());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// In three disguises.
const SECRETS: [&str; 3] =
    ["redis://u:hunter2@127.0.0.1:1", "redis%3A%2F%2Fu%3Ahunter2%40127.0.0.1", "redis://127.0.0.1:1?password=hunter2"];

/// Runs a program with its words and variables in all the ways that are asked for, some at a time.
struct Leaks {
    scratch: TempDir,
    runs: Vec<Command>,
}

impl Leaks {
    fn command(&self, program: &str) -> Command {
        // Where something is done in spite of it, that may go on.
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "90", program]).env("LEADERRUN_CONFIG", "/dev/null");
        let store = format!("file:{}", self.scratch.path().join(self.runs.len().to_string()).display());
        command.env("LEADERRUN_STORE", store).env("LEADERRUN_NO_WAIT", "1").env("LEADERRUN_REQUEST_TIMEOUT", "1s");
        command.stdin(Stdio::null());
        command
    }

    /// Another disguise each time.
    fn secret(&self) -> &'static str {
        SECRETS[self.runs.len() % SECRETS.len()]
    }

    fn words(&mut self, program: &str, words: &[&str]) {
        let mut command = self.command(program);
        command.args(words);
        self.runs.push(command);
    }

    /// Beside words that are right.
    fn variable(&mut self, program: &str, words: &[&str], (name, value): (&str, &str)) {
        let mut command = self.command(program);
        command.args(words).env(name, value);
        if name == "LEADERRUN_STORE_FILE" {
            command.env_remove("LEADERRUN_STORE");
        }
        self.runs.push(command);
    }

    fn check(mut self) {
        let count = self.runs.len();
        assert!(count > 200, "{count} runs");
        std::thread::scope(|scope| {
            for part in self.runs.chunks_mut(count.div_ceil(4)) {
                scope.spawn(|| part.iter_mut().for_each(assert_tells_no_secret));
            }
        });
    }
}

fn assert_tells_no_secret(command: &mut Command) {
    let said = command.said().tells("");
    assert_ne!(said.code, 137, "it was killed: {command:?}: {said:?}");
}

/// Each option with a value or a flag, its name and its variable. What a shell runs does nothing with its words.
fn options(command: &clap::Command) -> Vec<(String, Option<String>, &'static str)> {
    let shells = ["command", "pre-start", "pre-stop", "post-stop", "standby", "on-leader-change"];
    let named = command.get_arguments().filter_map(|arg| Some((arg.get_long()?.to_owned(), arg)));
    let variable = |arg: &clap::Arg| arg.get_env().map(|name| name.to_str().unwrap().to_owned());
    let shown = named.filter(|(name, _)| !["help", "version"].contains(&name.as_str()));
    shown.map(|(name, arg)| (name.clone(), variable(arg), if shells.contains(&&*name) { ": " } else { "" })).collect()
}

#[test]
fn no_message_repeats_a_password_that_was_written_in_the_wrong_place() {
    use leaderrun::internals::cli::completions::Program;
    let (run, ctl) = (env!("CARGO_BIN_EXE_leaderrun"), env!("CARGO_BIN_EXE_leaderctl"));
    let mut leaks = Leaks { scratch: TempDir::new().unwrap(), runs: Vec::new() };
    let right = ["-vv", "shard", "true"];
    for (number, (name, variable, before)) in options(&Program::Leaderrun.command()).into_iter().enumerate() {
        // Each option in three ways, each time in another disguise.
        let value = |way: usize| format!("{before}{}", SECRETS[(number + way) % 3]);
        leaks.words(run, &[&[&*format!("--{name}={}", value(0))], &right[..]].concat());
        if let Some(variable) = variable {
            leaks.variable(run, &right, (&variable, &value(1)));
        }
        let file = leaks.scratch.path().join(format!("{}.toml", leaks.runs.len()));
        fs::write(&file, format!("{name} = '{}'", value(2))).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let mut command = leaks.command(run);
        command.env_remove("LEADERRUN_STORE").arg("--config").arg(file).args(right);
        leaks.runs.push(command);
    }
    for secret in SECRETS {
        let shell = format!(": {secret}");
        let (option, letter) = (format!("--{secret}"), format!("-{secret}"));
        for words in [
            &[secret][..],
            &[secret, "true"],
            &["shard", secret],
            &["shard", "--", secret],
            &["--", secret, "true"],
            &["shard", "true", secret],
            &["shard", "-c", &shell],
            &[&option, "shard", "true"],
            &[&letter, "shard", "true"],
            &["--explain", secret],
            &["--explain", "shard", secret],
            &["--store", &format!("file:{secret}"), "shard", "true"],
            &["--store", secret, "--explain", "shard"],
        ] {
            leaks.words(run, words);
        }
        for name in ["CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "HOME", "XDG_STATE_HOME", "TZ"] {
            leaks.variable(run, &right, (name, secret));
        }
    }
    operators_leaks(&mut leaks, ctl);
    leaks.check();
}

fn operators_leaks(leaks: &mut Leaks, ctl: &str) {
    let command = leaderrun::internals::cli::completions::Program::Leaderctl.command();
    for (name, variable, _) in options(&command) {
        let secret = leaks.secret();
        leaks.words(ctl, &[&format!("--{name}"), secret, "status", "shard"]);
        if let Some(variable) = variable {
            leaks.variable(ctl, &["status", "shard"], (&variable, secret));
        }
    }
    for verb in command.get_subcommands() {
        let name = verb.get_name();
        let secret = leaks.secret();
        let term: &[&str] = if ["revoke", "verify"].contains(&name) { &["--term=1"] } else { &[] };
        leaks.words(ctl, &[&[name, secret], term].concat());
        leaks.words(ctl, &[&[name, "shard", secret], term].concat());
        for (option, ..) in options(verb) {
            let value = format!("--{option}={}", leaks.secret());
            leaks.words(ctl, &[&[name, &value, "shard"], term].concat());
        }
    }
    for name in ["LEADERRUN_SHARD", "LEADERRUN_TERM", "LEADERRUN_SOCKET", "LEADERRUN_SOCKET_KEY"] {
        let secret = leaks.secret();
        leaks.variable(ctl, &["verify"], (name, secret));
        let mut command = leaks.command(ctl);
        command.envs([
            ("LEADERRUN_SHARD", "shard"),
            ("LEADERRUN_TERM", "1"),
            ("LEADERRUN_SOCKET", "x"),
            ("LEADERRUN_SOCKET_KEY", "0:00000000-0000-0000-0000-000000000000"),
            (name, secret),
        ]);
        command.arg("verify");
        leaks.runs.push(command);
    }
    let secret = leaks.secret();
    let option = format!("--{secret}");
    for words in [&[secret][..], &["store", secret], &["completions", "leaderrun", secret], &["status", &option]] {
        leaks.words(ctl, words);
    }
}

#[test]
fn a_command_that_is_not_there_leaves_no_trace_of_a_leadership() {
    let scratch = TempDir::new().unwrap();
    let plain = scratch.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    for (command, status, words) in [
        ("no-such-command", 127, "command not found; write its path, or add its directory to path"),
        ("/no/such/command", 127, "command not found: there is no such file"),
        (plain.to_str().unwrap(), 126, "cannot be executed: permission denied"),
        ("/", 126, "cannot be executed: is a directory"),
        ("echo hello", 127, "echo hello: command not found; to run a line of the shell, write -c string"),
        ("--wait", 127, "--wait: command not found; options go before shard"),
        ("A=/b", 127, "a=/b: command not found; to set a variable, write env before it"),
        ("-c", 64, "-c takes one string, a line of the shell: put it in quotes"),
    ] {
        let store = scratch.path().join("store");
        let url = format!("file:{}", store.display());
        let said = leaderrun().args(["--store", &url, "shard", command]).said().refused(status, "");
        assert!(said.err.to_lowercase().contains(words), "{said:?}");
        assert!(!store.exists(), "{command} led");
    }
}

#[test]
fn bash_offers_files_only_where_leaderctl_takes_one() {
    let script =
        format!("source <('{}' completions leaderctl bash); complete -p leaderctl", env!("CARGO_BIN_EXE_leaderctl"));
    let said = Command::new("bash").args(["-c", &script]).said().good();
    assert!(said.contains(" -F _leaderctl ") && !said.contains("default"), "{said}");
}

#[test]
fn the_name_of_a_command_is_cut_in_messages() {
    let (_scratch, store) = local();
    let said =
        leaderrun().args(["--store", &store, "shard", &"x".repeat(100_000)]).said().refused(127, "xxx...: command");
    assert!(said.err.len() < 300, "{said:?}");
}

#[test]
fn a_verb_of_leaderctl_in_the_place_of_shard_is_named() {
    let (_scratch, store) = local();
    leaderrun()
        .args(["--store", &store, "list"])
        .said()
        .refused(64, "no COMMAND after SHARD \"list\": did you mean leaderctl list?");
    for word in ["no-such-command", "no/such/command"] {
        let advice = format!("{word}: command not found; did you mean leaderctl status?");
        leaderrun().args(["--store", &store, "status", word]).said().refused(127, &advice);
    }
}

#[test]
fn a_command_that_the_kernel_refuses_is_explained_and_gives_the_lease_back() {
    let (scratch, store) = local();
    let orphan = scratch.path().join("orphan");
    let original = scratch.path().join("original");
    fs::write(&original, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&original, fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(&original, &orphan);
    leaderrun().args(["-q", "--store", &store, "shard"]).arg(&orphan).said().refused(127, "its interpreter is missing");
    let history = leaderctl().args(["--store", &store, "history", "shard"]).said().good();
    assert!(history.ends_with(": not started: the program or its interpreter does not exist\n"), "{history}");
    leaderrun().args(["-n", "--store", &store, "shard", "true"]).said().good();
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let scratch = TempDir::new().unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    let below = format!("file:{}/store", file.display());
    run(&["--store", &below], "shard").refused(78, "not a directory: name another directory");
    leaderctl().args(["--store", "file:/proc/version", "list"]).said().refused(78, "");
}

#[test]
fn a_value_that_is_not_utf_8_is_refused() {
    let wrong = OsStr::from_bytes(b"\xff");
    for words in [&["--owner".as_ref(), wrong][..], &["-qE".as_ref(), wrong], &["--pre-start".as_ref(), wrong]] {
        leaderrun().args(words).args(["a", "true"]).said().refused(64, "leaderrun: invalid UTF-8 ");
    }
    // The name of a file, and COMMAND, may have any bytes.
    let store = ["--store-file".as_ref(), wrong, "a".as_ref(), wrong];
    leaderrun().args(store).said().tells("cannot be read");
    let mut lease = leaderrun();
    lease.env("LEADERRUN_LEASE", wrong).args(["--store", "file:", "a"]).arg(wrong);
    lease.said().refused(64, ": LEADERRUN_LEASE is not UTF-8");
}

#[test]
fn a_directory_that_may_not_be_written_is_a_denied_permission() {
    // Root may write anywhere.
    let (scratch, mut command) = as_nobody(env!("CARGO_BIN_EXE_leaderrun"));
    let closed = scratch.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    let store = format!("file:{}", closed.display());
    command.args(["--store", &store, "shard", "true"]).said().refused(77, "permission denied");
}

/// Where copies of the programs lie that nobody can run: the user of that name.
struct TwoUsers(TempDir);

impl TwoUsers {
    fn new() -> Self {
        let (scratch, _) = copied(env!("CARGO_BIN_EXE_leaderrun"));
        copy_program(env!("CARGO_BIN_EXE_leaderctl"), &scratch.path().join("leaderctl"));
        Self(scratch)
    }

    fn directory(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn url(&self) -> String {
        format!("file:{}", self.directory().display())
    }

    fn nobodys(&self, program: &str, words: &[&str]) -> Command {
        let mut command = by_user(NOBODY);
        command.arg(self.0.path().join(program)).args(words).env("LEADERRUN_STORE", self.url());
        command
    }
}

#[test]
fn an_operator_who_does_not_own_the_directory_is_denied_what_would_change_something() {
    let two = TwoUsers::new();
    let ctl = |words: &[&str]| two.nobodys("leaderctl", words);
    drop(assert_changes_nothing(User::at(&two.url()), ctl, "permission denied"));
}

#[test]
fn a_candidate_that_may_not_read_the_file_with_the_orders_is_denied_before_it_starts_command() {
    let two = TwoUsers::new();
    fs::create_dir(two.directory()).unwrap();
    std::os::unix::fs::chown(two.directory(), Some(NOBODY), Some(NOBODY)).unwrap();
    let orders = two.directory().join("db=main+orders");
    fs::write(&orders, r#"{"text": "{}", "until_millis": null}"#).unwrap();
    fs::set_permissions(&orders, fs::Permissions::from_mode(0o600)).unwrap();
    let sign = format!("cannot read {}: permission denied", orders.display());
    assert_leads_nothing(User::at(&two.url()), |words| two.nobodys("leaderrun", words), &sign);
}

#[test]
fn a_record_that_something_else_wrote_is_not_overwritten() {
    let (scratch, store) = local();
    let record = scratch.path().join("shard.json");
    fs::write(&record, "{\"mine\": true}").unwrap();
    run(&["--store", &store], "shard").refused(78, "was written by another program");
    assert_eq!(fs::read_to_string(&record).unwrap(), "{\"mine\": true}");
}

fn leader_of(store: &str) -> Process {
    let child = Process::start(leaderrun().args(["-q", "--store", store, "shard", "sleep", "1000"]));
    // The lock is taken before the record says who has it.
    let pid = format!("\"pid\":{},", child.id());
    let leads = || leaderctl().args(["--store", store, "status", "--json", "shard"]).said().out.contains(&pid);
    wait_until("it leads", leads);
    child
}

#[test]
fn what_is_held_is_not_waited_for_with_n_and_for_a_while_with_w() {
    let (_scratch, store) = local();
    let _leader = leader_of(&store);
    let begun = Instant::now();
    for (flags, status, lines) in [
        (&["-n"][..], 75, 1),
        (&["-n", "-E", "0"], 0, 1),
        (&["-w", "0"], 75, 1),
        // Time enough for the first answer of a busy machine.
        (&["-w", "2"], 75, 2),
        (&["-q", "-n"], 75, 0),
    ] {
        let ran = run(&[&["--store", &store], flags].concat(), "shard");
        assert_eq!((ran.code, ran.started, lines_of(&ran).len()), (status, false, lines), "{}", ran.err);
        let last = ran.err.lines().last().unwrap_or_default();
        let told = last.contains("leaderrun: not started: ") && last.contains(") leads since 20");
        assert!(told || lines == 0, "{flags:?}: {last}");
    }
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

#[test]
fn a_paused_shard_is_not_waited_for_with_n_and_the_line_says_who_paused_it_and_why() {
    let (_scratch, store) = local();
    leaderctl().args(["--store", &store, "pause", "shard", "--reason", "deploy"]).said().good();
    run(&["-n", "--store", &store], "shard").refused(75, "not started: paused by  … : deploy");
}

#[test]
fn the_last_line_of_a_json_log_and_the_metrics_file_say_whose_the_status_is_and_why() {
    let (scratch, store) = local();
    let file = scratch.path().join("shard.prom");
    let json = ["--log-format", "json", "--store", &store, "--metrics-file", file.to_str().unwrap(), "-n"];
    let ends = |words: &[&str], from: &str, why: &str| {
        let log = leaderrun().args(json).args(words).said().ended(75).err;
        let line = objects(&log).pop().unwrap();
        let told = ["exit_status", "event", "from", "why"].map(|member| line[member].clone());
        assert_eq!(told, [serde_json::json!(75), "ended".into(), from.into(), why.into()], "{log}");
        let metrics = fs::read_to_string(&file).unwrap();
        let labels = format!("once=\"\",from=\"{from}\",why=\"{why}\"}} 75\n");
        assert!(metrics.contains(&labels), "{metrics}");
        log
    };
    ends(&["shard", "sh", "-c", "exit 75"], "command", "ended");
    let leader = leader_of(&store);
    ends(&["shard", "true"], "leaderrun", "led");
    drop(leader);
    leaderctl().args(["--store", &store, "wait", "--free", "shard"]).said().good();
    let log = ends(&["--pre-start", "exit 3", "shard", "true"], "leaderrun", "held-back");
    assert!(log.contains("other candidates go first because the --pre-start hook exited with 3 here"), "{log}");
    leaderctl().args(["--store", &store, "pause", "shard"]).said().good();
    ends(&["shard", "true"], "leaderrun", "paused");
    let metrics = fs::read_to_string(&file).unwrap();
    assert!(metrics.contains("job_last_status{shard=\"shard\",once=\"\"} 75\n"), "the last run: {metrics}");
}

#[test]
fn a_slot_is_not_a_shard() {
    let (_scratch, store) = local();
    let slot = format!("{} --store {store} -n --slots 1 w true", env!("CARGO_BIN_EXE_leaderrun"));
    leaderrun().args(["--store", &store, "w/1", "-c", &slot]).said().good();
    run(&["--store", &store], "w#1").refused(64, "w#1 is a slot of the shard w: name the shard");
}

#[test]
fn with_json_every_mistake_is_one_object() {
    let (scratch, store) = local();
    let config = scratch.path().join("config.toml");
    fs::write(&config, "log-format = 'json'").unwrap();
    let (named, config) = (["--store", &store], config.to_str().unwrap());
    let json = &["--log-format", "json"][..];
    for (flags, status, words) in [
        (&[&["--wiat", "--log-format=json"][..], &named].concat()[..], 64, "--wiat"),
        (json, 64, "no store named"),
        (&["--config", config], 64, "no store named"),
        (&[json, &["-q", "-n", "--store", "redis://127.0.0.1:1"]].concat(), 69, "cannot reach redis"),
        (&[json, &["-q", "-w", "1", "--store", "redis://127.0.0.1:1"]].concat(), 69, "cannot reach redis"),
        (&[json, &["--listen", "/dev/null/x", "--store", &store]].concat(), 71, "cannot listen on"),
    ] {
        let ran = run(flags, "shard");
        let [line] = &objects(&lines_of(&ran).join("\n"))[..] else { panic!("{}", ran.err) };
        assert_eq!((ran.code, ran.started, &line["exit_status"]), (status, false, &status.into()), "{line}");
        let why = if status == 69 { "unavailable" } else { "refused" };
        let told = ["level", "event", "from", "why"].map(|member| line[member].clone());
        assert_eq!(told, ["ERROR", "ended", "leaderrun", why].map(serde_json::Value::from), "{line}");
        assert!(line["message"].as_str().unwrap().contains(words) && line["timestamp"].is_string(), "{line}");
    }
    let json_in_variable = |command: &mut Command| {
        command.env("LEADERRUN_LOG_FORMAT", "json");
    };
    assert!(run_with(&["--wiat"], "shard", json_in_variable).err.starts_with('{'));
    // It is an option of COMMAND.
    leaderrun().args(["--wiat", "shard", "x", "--log-format", "json"]).said().refused(64, "leaderrun: ");
    let doubted = run_with(&[json, &named].concat(), "shard", |command| {
        command.env("LEADERRUN_LEASES", "1");
    });
    let first: serde_json::Value = serde_json::from_str(doubted.err.lines().next().unwrap()).expect("JSON");
    assert!(doubted.started && first["level"] == "WARN" && first["event"] == "warning", "{}", doubted.err);
}

/// As a person without root, or with: where the default store is.
fn default_directory(home: &TempDir) -> PathBuf {
    if nix::unistd::geteuid().is_root() { "/var/lib/leaderrun".into() } else { home.path().join("leaderrun") }
}

#[test]
fn without_a_store_nothing_runs_where_nobody_reads_the_warning() {
    let home = TempDir::new().unwrap();
    let with_home = |command: &mut Command| {
        command.env("XDG_STATE_HOME", home.path()).env_remove("HOME");
    };
    let directory = default_directory(&home);
    let advice = format!("no store named: use --store URL … or --store file: for file:{}", directory.display());
    run_with(&[], "test/default-store", with_home).refused(64, &advice);
    let ran = run_with(&["-q", "--store", "file:"], "test/default-store", with_home);
    assert!(ran.started && default_directory(&home).is_dir() && ran.err.is_empty(), "{}", ran.err);
    forget_in_default_store("test/default-store");
}

#[test]
fn a_leadership_verifies_another_term_only_in_a_store_that_is_named() {
    let (_scratch, store) = local();
    let verified = |words: &str| {
        let inner = format!("'{}' verify {words}", env!("CARGO_BIN_EXE_leaderctl"));
        leaderrun().args(["--store", &store, "outer", "sh", "-c", &inner]).said()
    };
    verified("").good();
    for words in ["--term 7", "other --term 7"] {
        verified(words).ended(64).tells("no store named; this runs inside a leadership");
    }
    verified(&format!("--store '{store}' other --term 7")).ended(79);
}

/// What local files show is not what is so in the store that was meant.
#[test]
fn without_a_store_no_verb_answers_where_nobody_reads_the_warning() {
    let home = TempDir::new().unwrap();
    let ctl = |words: &[&str]| leaderctl().args(words).env("XDG_STATE_HOME", home.path()).env_remove("HOME").said();
    for words in ASKING {
        ctl(words).refused(64, "leaderctl: no store named: use --store URL");
    }
    let said = ctl(&["--store", "file:", "list"]).ended(0).err;
    assert!(!said.contains("no store named"), "{said}");
}

#[test]
fn without_a_store_nothing_answers_or_is_led_inside_command() {
    let (scratch, store) = local();
    let file = scratch.path().join("started");
    let verbs: Vec<String> = ASKING.iter().map(|words| format!("\"$ctl\" {}; echo $?\n", words.join(" "))).collect();
    let inner = format!("{}\"$run\" inner touch '{}'; echo $?", verbs.concat(), file.display());
    let mut outer = leaderrun();
    outer.args(["-q", "--store", &store, "outer", "-c", &inner]);
    outer.env("ctl", env!("CARGO_BIN_EXE_leaderctl")).env("run", env!("CARGO_BIN_EXE_leaderrun"));
    let said = outer.said().ended(0);
    assert_eq!(said.out, "64\n".repeat(ASKING.len() + 1));
    assert!(!file.exists());
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(lines.len(), ASKING.len() + 1, "{said:?}");
    assert!(lines.iter().all(|line| line.contains("no store named; this runs inside a leadership")), "{said:?}");
}

#[test]
fn credentials_that_cannot_be_read_are_no_missing_credentials() {
    let scratch = TempDir::new().unwrap();
    let (file, missing) = (scratch.path().join("file"), scratch.path().join("missing"));
    fs::write(&file, "").unwrap();
    for directory in [&file, &missing] {
        let ran = run_with(&["--store-file", "/dev/null"], "x", |command| {
            command.env("CREDENTIALS_DIRECTORY", directory);
        });
        assert!(ran.err.contains("/dev/null must hold one line"), "what is named goes first: {}", ran.err);
        let ran = run_with(&[], "x", |command| {
            command.env("CREDENTIALS_DIRECTORY", directory);
        });
        ran.refused(64, "cannot be read … CREDENTIALS_DIRECTORY=");
    }
}

#[test]
fn an_unknown_variable_is_reported_with_the_one_that_was_meant() {
    let (_scratch, store) = local();
    let ran = run_with(&["-q", "--store", &store], "x", |command| {
        command.env("LEADERRUN_RENEW_INTERVAL", "1s").env("LEADERRUN_LEASES", "9s").env("LEADERRUN_RENEW", "1s");
    });
    let mut lines: Vec<&str> = ran.err.lines().collect();
    lines.sort_unstable();
    assert!(ran.started && lines.len() == 2, "{}", ran.err);
    let meant = "leaderrun: warning: the variable LEADERRUN_LEASES has no effect: did you mean LEADERRUN_LEASE?";
    assert_eq!(lines[0], meant);
    assert!(lines[1].contains("the variable LEADERRUN_RENEW_INTERVAL has no effect"), "{}", lines[1]);
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let (_scratch, store) = local();
    run(&["-q", "--store", &store], "shard");
    let (run, ctl) = (leaderrun as fn() -> Command, leaderctl as fn() -> Command);
    for (program, words) in [
        (run, &["--help"][..]),
        (run, &["--version"]),
        (ctl, &["help", "status"]),
        (ctl, &["--store", &store, "status", "shard"]),
        (ctl, &["--store", &store, "watch", "shard"]),
        (ctl, &["--store", &store, "watch", "--json"]),
    ] {
        let full = fs::File::create("/dev/full").unwrap();
        let said = program().args(words).stdout(full).said();
        said.refused(71, ": cannot write to standard output: no space left on device\n");
    }
}

#[test]
fn small_limits_are_errors_in_words() {
    let (_scratch, store) = local();
    for (limit, program, words, status, said) in [
        ("-s 64", leaderrun(), "shard true", 71, "a stack of 64 KiB is too small"),
        ("-f 0", leaderctl(), "pause shard", 69, "file too large"),
        ("-n 60", leaderrun(), "--listen 127.0.0.1:0 shard true", 71, "64 file descriptors are needed"),
    ] {
        let line = format!("ulimit {limit}; exec '{}' --store {} {words}", program.get_program().display(), store);
        Command::new("sh").args(["-c", &line]).said().refused(status, said);
    }
}

#[test]
fn list_shows_a_record_that_something_else_wrote_and_nothing_that_a_terminal_obeys() {
    let (scratch, store) = local();
    let leader = leader_of(&store);
    fs::write(scratch.path().join("other.json"), "{\"mine\": true}").unwrap();
    // Of the shard that is led, by somebody who may write there.
    let record = scratch.path().join("shard.json");
    wait_until("the leader has its record", || record.exists());
    let text = fs::read_to_string(&record).unwrap();
    let mut object: serde_json::Value = serde_json::from_str(&text).unwrap();
    object["owner"] = "me\u{1b}[2J\nyou or me".into();
    object["since_millis"] = u64::MAX.into();
    fs::write(&record, object.to_string()).unwrap();
    let text = leaderctl().args(["--store", &store, "list"]).said().good();
    let words: Vec<_> = text.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(words, ["LEADER", "another_program", "me_[2J_you_or_me"]);
    let status = leaderctl().args(["--store", &store, "status", "shard"]).said().out;
    assert!(status.starts_with("shard: led by me [2J you or me\n"), "{status:?}");
    assert!(status.contains("18446744073709551615 ms since 1970"), "{status:?}");
    for text in [text, status] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
    drop(leader);
}

#[test]
fn a_local_store_can_be_prepared_and_checked() {
    let scratch = TempDir::new().unwrap();
    let store = format!("file:{}", scratch.path().join("new").display());
    let directory = format!("directory {}", scratch.path().join("new").display());
    for expected in [format!("created {directory}\n"), format!("{directory} exists\n")] {
        assert_eq!(leaderctl().args(["--store", &store, "store", "init"]).said().good(), expected);
    }
    let text = leaderctl().args(["--store", &store, "store", "check"]).said().good();
    assert!(text.lines().all(|line| line.starts_with("good ")), "{text}");
    assert_eq!(fs::read_dir(scratch.path().join("new")).unwrap().count(), 0, "the check left something");
    // As on a disk that is full, an empty file can be made, and no other.
    let mut full = Command::new("sh");
    full.args(["-c", "ulimit -f 0 && exec \"$@\"", "sh"]).arg(leaderctl().get_program());
    full.args(["--store", &store, "store", "check"]);
    full.said().ended(78).tells("bad       cannot write in  … /new: file too large");
    assert_eq!(fs::read_dir(scratch.path().join("new")).unwrap().count(), 0, "the check left something");
}

#[test]
fn a_directory_that_is_not_there_is_told_of_before_it_is_made() {
    let scratch = TempDir::new().unwrap();
    let new = scratch.path().join("new");
    let store = format!("file:{}", new.display());
    let line = format!("leaderctl: there is no directory {}: no candidate has used it\n", new.display());
    for words in [&["resume", "shard"][..], &["step-down", "shard"]] {
        let said = leaderctl().args(["--store", &store]).args(words).said().ended(66);
        assert!(said.err.starts_with(&line), "{said:?}");
    }
    let said = leaderctl().args(["--store", &store, "pause", "shard"]).said().ended(0);
    assert!(said.err.starts_with(&line) && new.is_dir(), "{said:?}");
    let said = leaderctl().args(["--store", &store, "resume", "shard"]).said().ended(0);
    assert_eq!(said.err, "");

    // Nothing can be made there.
    let advice = "cannot create a file in /proc: name another directory";
    leaderrun().args(["--store", "file:/proc", "shard", "true"]).said().refused(78, advice);
    for store in ["file:/proc", "file:/proc/no/where"] {
        leaderctl().args(["--store", store, "status", "shard"]).said().refused(78, advice);
    }
    let said = leaderrun().args(["--store", "file:/proc/no/where", "shard", "true"]).said().ended(78);
    let (first, second) = said.err.split_once('\n').unwrap();
    let told = "leaderrun: creating /proc/no/where: no candidate has used this directory before";
    assert!(first.ends_with(told) && second.contains("cannot create the directory /proc/no/where: "), "{said:?}");
}

#[cfg(feature = "dynamodb")]
#[test]
fn a_profile_that_does_not_exist_is_named_with_those_that_do() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("credentials");
    fs::write(&file, "[staging]\naws_access_key_id = x\naws_secret_access_key = y\n").unwrap();
    let with = |variables: &'static [(&str, &str)]| {
        let file = file.clone();
        move |command: &mut Command| {
            for name in ["AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
                command.env_remove(name);
            }
            command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_CONFIG_FILE", "/dev/null");
            command.env("AWS_SHARED_CREDENTIALS_FILE", &file).envs(variables.iter().copied());
        }
    };
    let named = "dynamodb://locks?region=eu-west-1&profile=nope";
    let line = "no AWS profile is called \"nope\"; the configuration files of the AWS CLI have only staging";
    run_with(&["--store", named], "shard", with(&[])).refused(78, line);
    let unnamed = "dynamodb://locks?region=eu-west-1";
    run_with(&["--store", unnamed], "shard", with(&[("AWS_PROFILE", "nope")])).refused(78, line);
}
