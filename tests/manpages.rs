//! The manual says what the programs do: every option, variable and exit status, and no other. The pages are written
//! by hand, so whatever is added, renamed or taken away has to be told here as well.

#[path = "manpages/documents.rs"]
mod documents;

use clap::{Arg, ArgAction, Command};
use leaderrun::internals::cli::completions::Program;
use leaderrun::internals::election::{LogEvent, Reason};
use leaderrun::internals::exit;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, process};

const PROGRAMS: [(Program, &str); 2] =
    [(Program::Leaderrun, "man/leaderrun.1"), (Program::Leaderctl, "man/leaderctl.1")];
const PAGES: [&str; 5] =
    ["man/leaderrun.1", "man/leaderctl.1", "man/leaderrun-formats.5", "man/leaderrun.7", "man/leaderrun-stores.7"];

type Names = BTreeSet<String>;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn declared(program: Program) -> Command {
    let mut command = program.command();
    command.build();
    command
}

#[test]
fn the_page_has_every_event_of_a_log_line_and_no_other_and_the_code_logs_each() {
    let page = read("man/leaderrun-formats.5");
    let list =
        page.split_once(".Bl -tag -width ledger-unwritten").and_then(|(_, rest)| rest.split_once("\n.El")).unwrap().0;
    let heads = list.lines().filter_map(|line| line.strip_prefix(".It Cm "));
    let written: Names = heads.flat_map(|head| head.split(" , ")).map(str::to_owned).collect();
    let known: Names = LogEvent::ALL.iter().map(|event| event.into_str().to_owned()).collect();
    assert_eq!(written, known);
    let code: String =
        sources(&path("src")).iter().map(|file| std::fs::read_to_string(file).expect("it is there")).collect();
    for event in LogEvent::ALL {
        assert!(code.contains(&format!("LogEvent::{event:?}")), "nothing logs {event:?}");
    }
    for words in ["event = \"", "event: \""] {
        assert!(!code.contains(words), "an event that is not in the list: {words}");
    }
}

#[test]
fn the_page_has_every_metric_of_the_file_and_no_other() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("leaderrun.prom");
    let store = format!("file:{}", scratch.path().join("store").display());
    let ended = process::Command::new(env!("CARGO_BIN_EXE_leaderrun"))
        .args(["--config", "/dev/null", "-q", "--store", &store, "--metrics-file", file.to_str().unwrap(), "a", "true"])
        .status();
    assert!(ended.unwrap().success());
    let text = fs::read_to_string(file).unwrap();
    let written: Names =
        text.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned())).collect();
    let page = read("man/leaderrun-formats.5");
    let heads = section(&page, "METRICS IN A FILE").lines().filter_map(|line| line.strip_prefix(".It Va "));
    assert_eq!(heads.map(str::to_owned).collect::<Names>(), written);
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn the_page_has_every_reason_for_an_end_and_no_other() {
    let page = read("man/leaderrun.1");
    let list = page
        .split_once(".Bl -tag -width stepped-down -compact\n")
        .and_then(|(_, rest)| rest.split_once("\n.El"))
        .unwrap()
        .0;
    let written: Names = list.lines().filter_map(|line| line.strip_prefix(".It Cm ")).map(str::to_owned).collect();
    let known: Names = Reason::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(written, known);
}

fn arguments(command: &Command) -> Vec<Arg> {
    let verbs = command.get_subcommands().filter(|verb| verb.get_name() != "help");
    command.get_arguments().cloned().chain(verbs.flat_map(arguments)).collect()
}

/// `-n`, `--no-wait`, `--nonblock`.
fn flags_of(argument: &Arg) -> Names {
    let short = argument.get_short().map(|letter| format!("-{letter}"));
    let long = argument.get_long().map(|name| format!("--{name}"));
    let aliases = argument.get_visible_aliases().unwrap_or_default().into_iter().map(|name| format!("--{name}"));
    short.into_iter().chain(long).chain(aliases).collect()
}

fn variable_of(argument: &Arg) -> Option<String> {
    argument.get_env().map(|name| name.to_str().expect("our names are ASCII").to_owned())
}

fn takes_a_value(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
}

/// The arguments of the macro `name` on a line of mdoc: up to the next macro or delimiter.
fn arguments_of_macro(line: &str, name: &str) -> Vec<String> {
    let Some(line) = line.strip_prefix('.') else { return Vec::new() };
    // Not so the name of a value, like ID.
    let is_macro = |word: &str| matches!(word.as_bytes(), [b'A'..=b'Z', b'a'..=b'z']);
    let mut found = Vec::new();
    let mut within = false;
    for word in line.split_whitespace() {
        if is_macro(word) {
            within = word == name;
        } else if word.chars().all(|c| ".,:;()[]?!".contains(c)) {
            within = false;
        } else if within {
            found.push(word.to_owned());
        }
    }
    found
}

/// `.Fl` puts one hyphen before its arguments. A `--` alone ends options and is none.
fn flags_in(lines: &str) -> Names {
    let flags = lines.lines().flat_map(|line| arguments_of_macro(line, "Fl")).map(|flag| format!("-{flag}"));
    flags.filter(|flag| flag != "--").collect()
}

/// Every word that begins with `LEADERRUN_` and goes on.
fn variables_in(text: &str) -> Names {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("LEADERRUN_") && *word != "LEADERRUN_").map(str::to_owned).collect()
}

/// An entry of a list, head and body, with the lists in it.
struct Item {
    head: String,
    body: String,
}

fn items(page: &str) -> Vec<Item> {
    let mut finished = Vec::new();
    let mut open: Vec<Option<Item>> = Vec::new();
    for line in page.lines() {
        if line.starts_with(".Bl ") {
            open.push(None);
        } else if line == ".El" {
            finished.extend(open.pop().expect("a list ends that began"));
        } else if let Some(head) = line.strip_prefix(".It ") {
            let innermost = open.last_mut().expect("an item stands in a list");
            finished.extend(innermost.replace(Item { head: format!(".It {head}"), body: String::new() }));
        }
        for item in open.iter_mut().flatten() {
            item.body.push_str(line);
            item.body.push('\n');
        }
    }
    assert!(open.is_empty(), "every list ends");
    finished
}

fn section<'a>(page: &'a str, name: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n.Sh {name}\n")).unwrap_or_else(|| panic!("no section {name}"));
    rest.split("\n.Sh ").next().expect("a split has a first part")
}

#[test]
fn a_page_has_every_flag_and_no_other() {
    for (program, page) in PROGRAMS {
        let declared: Names = arguments(&declared(program)).iter().flat_map(flags_of).collect();
        assert_eq!(flags_in(&read(page)), declared, "{page}");
    }
}

#[test]
fn each_option_has_an_item_with_its_spellings_its_variable_its_default_and_its_values() {
    for (program, page) in PROGRAMS {
        let items = items(&read(page));
        for argument in arguments(&declared(program)) {
            let flags = flags_of(&argument);
            if flags.is_empty() {
                continue;
            }
            // Several verbs may have options of one name, each with an item of its own.
            let named: Vec<&Item> = items.iter().filter(|item| flags_in(&item.head) == flags).collect();
            assert!(!named.is_empty(), "{page} has no item for {flags:?} together");
            let missing: Vec<String> = named.iter().filter_map(|item| lacks(item, &argument)).collect();
            assert!(missing.len() < named.len(), "{page}, {flags:?}: {missing:?}");
        }
    }
}

fn lacks(Item { head, body }: &Item, argument: &Arg) -> Option<String> {
    let variable: Names = variable_of(argument).into_iter().collect();
    if variables_in(head) != variable {
        return Some(format!("its variable is {variable:?}"));
    }
    if !takes_a_value(argument) {
        return None;
    }
    let value = argument.get_value_names().expect("an option names its value")[0].as_str();
    if arguments_of_macro(head, "Ar") != [value] {
        return Some(format!("its value is called {value}"));
    }
    let words: Vec<&str> = body.split(|c: char| c.is_whitespace() || ",;".contains(c)).collect();
    let said = |word: &str| words.iter().any(|&said| said == word || said.trim_end_matches('.') == word);
    for default in argument.get_default_values() {
        let default = default.to_str().expect("our defaults are ASCII");
        if !(said("default") && said(default)) {
            return Some(format!("the default is {default}"));
        }
    }
    let values = argument.get_possible_values();
    values.iter().find(|value| !said(value.get_name())).map(|value| format!("it takes {}", value.get_name()))
}

#[test]
fn leaderctls_page_has_every_verb_and_what_it_takes() {
    let page = read("man/leaderctl.1");
    let command = declared(Program::Leaderctl);
    let mut verbs = Names::new();
    for verb in command.get_subcommands() {
        let own: Vec<&str> = verb.get_subcommands().map(Command::get_name).filter(|&name| name != "help").collect();
        if own.is_empty() || verb.get_name() == "help" {
            verbs.insert(verb.get_name().to_owned());
        }
        verbs.extend(own.iter().filter(|_| verb.get_name() != "help").map(|own| format!("{} {own}", verb.get_name())));
        for value in verb.get_arguments().flat_map(Arg::get_possible_values).filter(|_| verb.get_name() != "help") {
            let word = value.get_name().to_owned();
            let said = page.lines().any(|line| arguments_of_macro(line, "Cm").contains(&word));
            assert!(said || matches!(word.as_str(), "true" | "false"), "{} takes {word}", verb.get_name());
        }
    }
    let section = format!("\n{}", section(&page, "VERBS"));
    let mut told = Names::new();
    for part in section.split("\n.Ss ").skip(1) {
        let title = part.lines().next().expect("a section has a title");
        told.insert(title.split(" --").next().expect("a split has a first part").to_owned());
        let example = part.split_once("\nExample:\n").map_or("", |(_, example)| example);
        assert!(
            example.starts_with(".Bd -literal") && accepted(example, "man/leaderctl.1") == 1,
            "{title}: no example"
        );
    }
    assert_eq!(told, verbs);
}

#[test]
fn a_page_has_every_variable_and_no_other() {
    let scratch = tempfile::tempdir().unwrap();
    let store = format!("file:{}", scratch.path().display());
    let mut told_to_command = Names::new();
    for flags in [&[][..], &["--every", "366d"], &["--once", "job"], &["--slots", "2"], &["--post-stop", "env"]] {
        let output = process::Command::new(env!("CARGO_BIN_EXE_leaderrun"))
            .args(["-q", "--store", &store])
            .args(flags)
            .args(["shard", "env"])
            .env("LEADERRUN_LEASE", "15s")
            .output()
            .unwrap();
        let told = variables_in(&String::from_utf8_lossy(&output.stdout));
        assert!(told.len() >= 3, "{flags:?}: {output:?}");
        told_to_command.extend(told);
    }

    for (program, page) in PROGRAMS {
        let mut variables: Names = arguments(&declared(program)).iter().filter_map(variable_of).collect();
        assert!(told_to_command.is_disjoint(&variables), "COMMAND gets {told_to_command:?}, and options {variables:?}");
        match program {
            Program::Leaderrun => {
                variables.extend(told_to_command.iter().cloned());
                // Those that --on-leader-change finds: tests/golden/environment.txt.
                variables
                    .extend(["EVENT", "LEADER", "LEADER_TERM", "LEADER_HOST"].map(|name| format!("LEADERRUN_{name}")));
            }
            // Those that `verify` finds its leadership by.
            Program::Leaderctl => {
                let query_socket = [
                    leaderrun::internals::observe::query_socket::VARIABLE,
                    leaderrun::internals::observe::query_socket::KEY_VARIABLE,
                ];
                variables.extend(
                    [&["LEADERRUN_SHARD", "LEADERRUN_TERM"], &query_socket[..]].concat().into_iter().map(str::to_owned),
                );
            }
        }
        assert_eq!(variables_in(&read(page)), variables, "{page}");
    }
}

/// From src/exit.rs, so that a new one is found without being told.
fn exit_statuses() -> Names {
    let source = read("src/exit.rs");
    let constants = source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": u8 = "));
    constants
        .map(|(name, value)| match name {
            "SIGNALLED" => format!("{}+N", value.trim_end_matches(';')),
            _ => value.trim_end_matches(';').to_owned(),
        })
        .collect()
}

fn statuses_in(page: &str) -> Names {
    let heads = section(page, "EXIT STATUS").lines().filter_map(|line| line.strip_prefix(".It "));
    heads.filter(|head| head.starts_with(|first: char| first.is_ascii_digit())).map(str::to_owned).collect()
}

#[test]
fn leaderruns_page_has_every_exit_status_and_no_other() {
    assert_eq!(statuses_in(&read("man/leaderrun.1")), exit_statuses());
}

#[test]
fn leaderctls_page_has_its_exit_statuses_and_no_other() {
    let own = [
        0,
        exit::ctl::FAILED,
        exit::USAGE,
        exit::ctl::UNKNOWN_SHARD,
        exit::UNAVAILABLE,
        exit::OS_ERROR,
        exit::NOT_ACQUIRED,
        exit::NO_PERMISSION,
        exit::CONFIGURATION,
        exit::LOST,
    ];
    assert_eq!(statuses_in(&read("man/leaderctl.1")), own.map(|status| status.to_string()).into());
}

#[test]
fn the_table_in_the_guide_has_every_exit_status_and_no_other() {
    let table = read("docs/exit-statuses.md");
    let first_cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let statuses = first_cells.filter(|cell| cell.starts_with(|first: char| first.is_ascii_digit()));
    assert_eq!(statuses.map(str::to_owned).collect::<Names>(), exit_statuses());
}

/// What `--explain` prints, in the pages. They speak of all stores.
#[cfg(feature = "default")]
mod seconds {
    use super::*;

    fn explained(store: &str, options: &[&str], name: &str) -> f64 {
        let output = process::Command::new(env!("CARGO_BIN_EXE_leaderrun"))
            .args(["--config", "/dev/null", "--store", store, "--explain"])
            .args(options)
            .arg("shard")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name:<20} ")));
        let value = line.unwrap_or_else(|| panic!("no {name} of {store}: {text}")).split("  ").next().unwrap();
        humantime::parse_duration(value).unwrap().as_secs_f64()
    }

    fn url_of(scheme: &str) -> &'static str {
        let urls = [
            "postgres://h/d",
            "mysql://h/d",
            "redis://h",
            "etcd://h/p",
            "kubernetes://n",
            "nats://h/b",
            "dynamodb://locks?region=eu-west-1",
            "s3://bucket/p",
            "gs://bucket/p",
        ];
        urls.into_iter().find(|url| url.starts_with(scheme)).unwrap_or_else(|| panic!("a URL with {scheme}"))
    }

    #[test]
    fn the_seconds_of_the_pages_are_those_that_explain_prints() {
        let readme = read("README.md");
        let (_, table) = readme.split_once("\n| store | URL |").expect("there is a table of stores");
        let mut rows = 0;
        for row in table.lines().skip(2).take_while(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.split(" |").map(|cell| cell.trim_start_matches('|').trim()).collect();
            let scheme = cells[1].trim_start_matches('`').split(':').next().unwrap();
            if scheme != "file" {
                let takeover = explained(url_of(&format!("{scheme}:")), &[], "crash takeover");
                assert_eq!(cells[3], format!("{} s", takeover.ceil()), "{row}");
                rows += 1;
            }
        }
        assert_eq!(rows, 9);

        let redis = url_of("redis:");
        let flat = |page: &str| read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        let has = |page: &str, words: &str| assert!(flat(page).contains(words), "{page} lacks: {words}");
        let kept = explained(redis, &[], "kept");
        let kept_in_s3 = explained(url_of("s3:"), &[], "kept");
        has("README.md", &format!("waits for {} s (in object storage {kept_in_s3} s)", kept.ceil()));
        has("README.md", &format!("then nobody starts COMMAND for {} s", kept.ceil()));
        let [redis_crash, dynamodb_crash, s3_crash] =
            ["redis:", "dynamodb:", "s3:"].map(|scheme| explained(url_of(scheme), &[], "crash takeover").ceil());
        has("README.md", &format!("within {redis_crash} s (DynamoDB {dynamodb_crash} s, S3 {s3_crash} s)"));
        // Whatever happens is counted from the last renewal, and what is said of it is not later than what is done.
        let outage = explained(redis, &[], "outage").floor();
        let stopped = explained(redis, &[], "stop signal").floor();
        let killed = explained(redis, &[], "kill-after");
        let until_killed = explained(redis, &[], "SIGKILL") - explained(redis, &[], "stop signal");
        assert!((until_killed - killed).abs() < 0.01, "{until_killed}");
        let outage_in_s3 = explained(url_of("s3:"), &[], "outage").floor();
        has("README.md", &format!("An outage of up to {outage} s disturbs nothing (S3: {outage_in_s3} s)."));
        let renew = explained(redis, &[], "renew");
        has("README.md", &format!("After {stopped} s without a renewal, which is due every {renew} s, COMMAND gets"));
        has("README.md", &format!("the stop signal, and {killed} s later it is killed."));
        has("docs/operating.md", &format!("| for up to {outage} s | nothing."));
        has("docs/operating.md", &format!("| for longer | {stopped} s after its last renewal that the store granted"));
        has("docs/operating.md", &format!("the stop signal, and {killed} s later it kills what is left"));
        has("man/leaderrun.1", &format!("as every candidate must: {} s with the default timing", kept.ceil()));
        has("man/leaderrun.1", &format!("the next leader starts within {redis_crash} s, and not at once"));
        has("man/leaderrun.7", &format!("with a lease of 15 s, it is .Ic kept for {kept} s"));
        has("man/leaderrun.7", &format!(".It kept Ta {kept} s Ta"));
        for (name, row) in [("stop signal", "Va term_at"), ("SIGKILL", "Va kill_at"), ("crash takeover", "takeover")] {
            has("man/leaderrun.7", &format!(".It {row} Ta {} s Ta", explained(redis, &[], name)));
        }
        has("man/leaderrun-stores.7", &format!("nobody starts for another {}s: first use", kept.ceil()));
        let outage = explained(redis, &[], "outage");
        has(
            "man/leaderrun-stores.7",
            &format!("It is {outage} s with a lease of 15 s, renewed every 5 s, and a grace of 3 s;"),
        );
        let options = "--lease 24s --renew 3s --kill-after 3s";
        let outage = explained(redis, &options.split(' ').collect::<Vec<_>>(), "outage");
        has("man/leaderrun-stores.7", &format!("it is {outage} s with .Ql {options} ."));
        // What a refusal says.
        let output = process::Command::new(env!("CARGO_BIN_EXE_leaderrun"))
            .args(["--config", "/dev/null", "--store", "dynamodb://locks", "--lease", "10", "--kill-after", "8"])
            .args(["--explain", "a"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        has("man/leaderrun.1", said.trim_end());
    }
}

#[test]
fn every_example_is_a_command_line_that_the_programs_take() {
    let mut seen = 0;
    let units = [
        "examples/systemd/report.service",
        "examples/systemd/leaderrun@.service",
        "examples/systemd/leaderctl-serve.service",
    ];
    let texts = ["README.md", "examples/crontab", "examples/backup.sh"];
    let guide = documents::guide();
    for text in texts.into_iter().chain(guide.iter().map(String::as_str)).chain(units).chain(PAGES) {
        seen += accepted(&read(text), text);
    }
    assert!(seen > 15, "only {seen} examples were found");
}

#[test]
fn leaderctl_man_prints_each_page_as_text() {
    let leaderctl = env!("CARGO_BIN_EXE_leaderctl");
    let pages = ["leaderctl", "leaderrun", "guarantees", "stores", "formats"];
    let titles = ["leaderctl.1", "leaderrun.1", "leaderrun.7", "leaderrun-stores.7", "leaderrun-formats.5"];
    for (page, name) in pages.into_iter().zip(titles) {
        let output = process::Command::new(leaderctl).args(["man", page]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !text.contains('\u{8}'), "{page}");
        // The last word of the list at its end, whether it was rendered or is the source.
        let source = read(&format!("man/{name}"));
        let last = source.lines().last().unwrap().split_whitespace().nth(1).unwrap();
        assert!(text.contains("NAME") && text.contains(last), "{page}: {text}");
    }
}

/// How many lines of `page` start one of the programs. They take them all.
fn accepted(page: &str, name: &str) -> usize {
    let page = page.replace("\\e\n", " ").replace("\\\n", " ");
    let mut seen = 0;
    for (line, words) in literals(&page, name).map(|line| (line, words(line))) {
        let Some(start) = words.iter().position(|word| {
            let name = word.trim_start_matches("ExecStart=").rsplit('/').next();
            matches!(name, Some("leaderrun" | "leaderctl"))
        }) else {
            continue;
        };
        let program = if words[start].ends_with("leaderctl") { Program::Leaderctl } else { Program::Leaderrun };
        let parsed = declared(program).try_get_matches_from(&words[start..]);
        // `--help` and `--version` are errors that go to standard output.
        let refused = parsed.err().filter(clap::Error::use_stderr);
        assert!(refused.is_none(), "{name}: {line}: {}", refused.expect("there is one"));
        seen += 1;
    }
    seen
}

/// What stands in code blocks; of files that are not pages, every line but comments.
fn literals<'a>(page: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (begin, end) = if name.starts_with("man/") { (".Bd -literal", ".Ed") } else { ("```", "```") };
    let mut within = name.starts_with("examples/");
    page.lines().filter(move |line| {
        let boundary = line.starts_with(if within { end } else { begin });
        within ^= boundary;
        within && !boundary && !line.starts_with('#')
    })
}

/// A shell's words up to its first operator or comment. Variables stay as they are.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None, '#' | ';' | '|' | '&' | ')' | '>') if words.iter().any(|word| word.starts_with("leader")) => break,
            (None, '(' | ' ' | '|' | '\t') => words.push(String::new()),
            _ => words.last_mut().expect("there is always one").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Of tests/README.md: what is shown, and by which tests of which file. An item is `- WHAT: `FILE` `TEST` `TEST`; ...`.
fn evidence() -> Vec<(String, Vec<(String, String)>)> {
    let page = read("tests/README.md");
    let (_, list) = page.split_once("\n## The tests behind each statement\n").expect("it has a list");
    let items = list.split("\n- ").skip(1).map(|item| {
        let (head, rest) = item.split_once(": `").expect("a statement and its tests");
        let mut file = "";
        let mut tests = Vec::new();
        for word in rest.split('`').filter(|word| !word.trim_matches([' ', '\n', ';']).is_empty()) {
            if word.contains('/') {
                file = word;
            } else {
                tests.push((file.to_owned(), word.to_owned()));
            }
        }
        (head.replace("\n ", ""), tests)
    });
    items.collect()
}

#[test]
fn every_test_that_the_evidence_names_is_there() {
    let mut seen = 0;
    for (head, tests) in evidence() {
        assert!(!tests.is_empty(), "no test shows: {head}");
        for (file, name) in tests {
            let source = read(&file);
            let before = source.split_once(&format!("fn {name}(")).map(|(before, _)| before);
            // Cases that are run with each store, and mutants, are made tests by a macro that takes a list.
            let takes_lists = ["macro_rules!", "\neverywhere!(", "\non_two_stores!(", "\nevery_store!("]
                .iter()
                .any(|by| source.contains(by));
            let mut items =
                source.lines().filter_map(|line| Some(line.strip_prefix("    ")?.trim_start_matches([' ', '&'])));
            let mut listed = |end: char| items.any(|item| item.starts_with(&format!("{name}{end}")));
            let is_listed = takes_lists && (before.is_some() && listed(',') || before.is_none() && listed(':'));
            assert!(is_listed || before.is_some_and(is_marked), "{head}: no test {name} in {file}");
            seen += 1;
        }
    }
    assert!(seen > 80, "only {seen} tests are named");
}

fn is_marked(before: &str) -> bool {
    let attributes = before.rsplit("\n}\n").next().unwrap_or(before);
    attributes.contains("#[test]") || attributes.contains("#[tokio::test")
}

#[test]
fn every_guarantee_names_a_test() {
    let page = read("man/leaderrun.7");
    let list = section(&page, "GUARANTEES").split_once("\n.Bl -enum\n").expect("the guarantees have numbers").1;
    let guarantees = list.lines().filter(|&line| line == ".It").count();
    assert!(guarantees >= 7, "only {guarantees} guarantees were found");
    let numbers: Vec<usize> = evidence()
        .iter()
        .filter_map(|(head, _)| head.strip_prefix("Guarantee ")?.split(':').next()?.parse().ok())
        .collect();
    assert_eq!(numbers, (1..=guarantees).collect::<Vec<_>>());
    // And every state of the processes that the page tells about.
    let told = |name: &str| evidence().iter().filter(|(head, _)| head.starts_with(name)).count();
    assert!(told("Time model:") >= 5 && told("Processes:") >= 5 && told("Fencing:") >= 1 && told("Limits:") >= 1);
}
