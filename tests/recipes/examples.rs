//! What the manual shows of leaderctl is what it prints: each example of leaderctl(1) is run here, in a store where things
//! stand as they stand there, and its output is compared line by line, but for names of hosts, numbers and times.

use crate::support::prelude::*;
use crate::support::redis;

const PAGE: &str = include_str!("../../man/leaderctl.1");
/// In the manual.
const HOSTS: [&str; 3] = ["db1", "db2", "db3"];

#[derive(Debug)]
struct Example {
    command: String,
    output: Vec<String>,
}

/// The blocks in which a shell is shown, each with its commands.
fn blocks() -> Vec<Vec<Example>> {
    let (_, section) = PAGE.split_once("\n.Sh EXAMPLES\n").expect("there are examples");
    let (section, _) = section.split_once("\n.Sh ").expect("another section follows");
    let blocks = section.split("\n.Bd -literal").skip(1).map(|block| {
        let (block, _) = block.split_once("\n.Ed").expect("it ends");
        let mut examples: Vec<Example> = Vec::new();
        for line in block.lines().skip(1) {
            if let Some(command) = line.strip_prefix("$ ") {
                examples.push(Example { command: command.to_owned(), output: Vec::new() });
            } else if let Some(example) = examples.last_mut() {
                example.output.push(line.to_owned());
            }
        }
        examples
    });
    blocks.filter(|examples| !examples.is_empty()).collect()
}

/// What stays the same from one run to the next, and from one machine to the other.
fn shape(line: &str, hosts: &[&str]) -> String {
    let shaped = line.split_whitespace().map(|word| {
        let core = word.trim_end_matches([',', ':', ';']);
        let end = &word[core.len()..];
        match hosts.iter().find_map(|host| core.strip_prefix(host)) {
            Some("") => format!("HOST{end}"),
            Some(owner) if owner.starts_with('-') => format!("OWNER{end}"),
            // Some have seconds and milliseconds, some seconds alone.
            _ if humantime::parse_duration(core).is_ok() => end.to_owned(),
            _ => without_numbers(word),
        }
    });
    shaped.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn without_numbers(word: &str) -> String {
    let mut text = String::new();
    for letter in word.chars() {
        if !letter.is_ascii_digit() {
            text.push(letter);
        } else if !text.ends_with('0') {
            text.push('0');
        }
    }
    text
}

impl Place {
    fn candidate(&self, words: &[&str]) -> Command {
        let mut command = leaderrun();
        command.args(["-q", "--store", &self.url]).args(words).envs(self.environment.iter().copied());
        command.stdin(Stdio::null());
        command
    }

    fn start(&mut self, owner: &str, shard: &str) {
        let command = self.candidate(&["--owner", owner, shard, "-c", "exec sleep 1000"]);
        self.fleet.launch(owner, command);
    }

    fn run(&self, words: &[&str]) {
        self.candidate(words).said().good();
    }

    fn shell(&self, line: &str) -> String {
        let programs = std::path::Path::new(env!("CARGO_BIN_EXE_leaderctl")).parent().unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("/bin/sh");
        // A machine that is busy may answer late.
        let patient = format!("leaderctl() {{ command leaderctl --request-timeout 1m \"$@\"; }}\n{line}");
        shell.args(["-c", &patient]).env("PATH", path).env("LEADERRUN_STORE", &self.url);
        shell.envs(self.environment.iter().copied()).stdin(Stdio::null());
        shell.said().good()
    }

    fn wait_until_it_prints(&self, line: &str, printed: &str) {
        let explain = || format!("{line}: {}", self.shell(line));
        wait_until_or("things stand as in the manual", explain, || self.shell(line).trim() == printed);
    }

    fn assert_prints(&self, Example { command, output }: &Example) {
        let here = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let told: Vec<String> = output.iter().map(|line| shape(line, &HOSTS)).collect();
        let text = self.shell(command);
        let printed: Vec<String> =
            text.lines().map(|line| shape(line, &[&here, HOSTS[0], HOSTS[1], HOSTS[2]])).collect();
        assert_eq!(told, printed, "leaderctl(1) shows of {command}:\n{}\nand it prints:\n{text}", output.join("\n"));
    }
}

/// All but those in a block that begins with the `export` of another store.
fn examples() -> Vec<Example> {
    let is_export = |example: &Example| example.command.starts_with("export ");
    let found: Vec<Example> = blocks().into_iter().filter(|block| !block.iter().any(is_export)).flatten().collect();
    assert!(found.len() > 3, "{found:?}");
    found
}

#[test]
fn the_examples_are_what_leaderctl_prints() {
    let mut stage = Place::remote(Box::new(redis::Server::start()));
    stage.run(&["backup/orders", "true"]);
    stage.run(&["--once", "2026.12_add-users", "migrate", "true"]);
    stage.start("blue", "backup/users");
    // A leadership that is over, one that lasts, and a standby.
    stage.run(&["--owner", "red", "report", "true"]);
    stage.start("green", "report");
    let leads = "leaderctl status --json report | jq -r '.owner // empty'";
    stage.wait_until_it_prints(leads, "green");
    stage.start("red", "report");
    stage.wait_until_it_prints("leaderctl status --json report | jq .standbys", "1");
    stage.wait_until_it_prints("leaderctl list backup/users --json | jq .held", "true");
    stage.wait_until_it_prints("leaderctl history report | grep -c leads || true", "1");
    let verbs: Vec<String> = examples()
        .iter()
        .inspect(|example| stage.assert_prints(example))
        .filter_map(|example| example.command.split(' ').nth(1).map(str::to_owned))
        .collect();
    for verb in ["status", "list", "history", "why"] {
        assert!(verbs.iter().any(|shown| shown == verb), "no example of {verb}: {verbs:?}");
    }
}
