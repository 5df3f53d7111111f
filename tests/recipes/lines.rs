//! The lines and blocks of the README, the guide and the manual that stand for themselves, each run as it is written, by a shell on
//! a machine that has what they name, with a store on Redis.

use super::{Machine, text, write_script};
use crate::support::fleet::{children_of, wait_until, wait_until_or};
use crate::support::redis::Server;
use crate::support::server::{Server as _, prepare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A machine, and a store that it reaches.
struct Site {
    machine: Machine,
    server: Server,
}

impl Site {
    fn new() -> Self {
        let mut server = Server::start();
        prepare(&server);
        server.grow_old();
        Self { machine: Machine::with(&[], ""), server }
    }

    /// A program in PATH and in the directory: it writes its name and its words down, and then does `then`.
    fn has(&self, program: &str, then: &str) {
        let script = format!("#!/bin/sh\necho \"{program} $*\" >>{}\n{then}\n", self.machine.path("ran").display());
        write_script(&self.machine.path("bin").join(program), &script);
    }

    /// A shell that is given `line`, in the directory of the programs.
    fn shell(&self, line: &str) -> Command {
        let path = ("PATH", "/usr/local/bin:/usr/bin:/bin");
        let url = self.server.own_url();
        let environment =
            [path, ("LEADERRUN_STORE", &url), ("LEADERRUN_CONFIG", "/dev/null"), ("LEADERRUN_HOOK_TIMEOUT", "6s")];
        let mut command = self.machine.command(&environment, &["/bin/sh", "-c", line], &[]);
        command.current_dir(self.machine.path("bin"));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.shell(line).output().unwrap()
    }

    /// The same, without waiting for its end.
    fn host(&self, line: &str) -> Host {
        let log = fs::File::options().create(true).append(true).open(self.machine.path("log")).unwrap();
        Host(self.shell(line).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn ran(&self) -> Vec<String> {
        self.machine.ran().iter().map(|line| line.trim_end().to_owned()).collect()
    }

    fn count(&self, program: &str) -> usize {
        self.ran().iter().filter(|line| line.split(' ').next() == Some(program)).count()
    }

    #[track_caller]
    fn wait_for(&self, program: &str, count: usize) {
        let explain = || format!("{:?}\n{}", self.ran(), self.machine.log());
        wait_until_or(&format!("{program} has run {count} times"), explain, || self.count(program) >= count);
    }
}

/// A leaderrun that a shell waits for, or has become. It is asked to end with the test.
struct Host(Child);

impl Host {
    fn stop(&mut self) -> Option<i32> {
        let shell = self.0.id().cast_signed();
        let name = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let leaderrun =
            [&[shell][..], &children_of(shell)].concat().into_iter().find(|pid| name(*pid) == "leaderrun\n");
        let _ = kill(Pid::from_raw(leaderrun.unwrap_or(shell)), Signal::SIGTERM);
        self.0.wait().unwrap().code()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            self.stop();
        }
    }
}

/// The line of the guide's recipes that begins so; if the README has one, it is the same.
fn recipe(beginning: &str) -> String {
    let mut found = ["docs/recipes.md", "README.md"].map(|name| {
        let page = text(name);
        let mut lines = page.lines().filter(|line| line.starts_with(beginning));
        let line = lines.next().map(str::to_owned);
        assert_eq!(lines.next(), None, "several lines of {name} begin with {beginning}");
        line
    });
    let line = found[0].take().unwrap_or_else(|| panic!("no recipe begins with {beginning}"));
    assert!(found[1].as_ref().is_none_or(|other| *other == line), "the README has another line: {found:?}");
    line
}

/// The literal block of a page that has `part`, as mandoc shows it.
fn manual(page: &str, part: &str) -> String {
    let page = text(page);
    let mut blocks = page.split(".Bd -literal").skip(1).map(|block| block.split("\n.Ed").next().unwrap());
    let block = blocks.find(|block| block.contains(part)).unwrap_or_else(|| panic!("no block has {part}"));
    block.split_once('\n').unwrap().1.replace("\\e", "\\").replace("\\(dq", "\"")
}

/// Of one host that fails and others that come later, or of two that come at once.
#[test]
fn a_migration_is_done_once_and_what_builds_upon_it_is_started_only_then() {
    let site = Site::new();
    let line = recipe("leaderrun --once ");
    site.has("server", "");
    site.has("migrate", "sleep 0.5");
    let hosts = [(), ()].map(|()| site.shell(&line).spawn().unwrap());
    for mut host in hosts {
        assert!(host.wait().unwrap().success());
    }
    assert!(site.run(&line).status.success());
    assert_eq!((site.count("migrate"), site.count("server")), (1, 3), "{:?}", site.ran());
    assert_eq!(site.ran()[0], "migrate");

    let line = line.replace("2026-11-add-users", "2026-12-fail");
    site.has("migrate", "exit 9");
    // Each start is another deployment.
    for _ in 0..2 {
        assert_eq!(site.run(&line).status.code(), Some(9));
    }
    assert_eq!((site.count("migrate"), site.count("server")), (3, 3), "{:?}", site.ran());
    let never_again = line.replace("--once ", "--retry-failed 0 --once ");
    assert_eq!(site.run(&never_again).status.code(), Some(9));
    assert_eq!(site.count("migrate"), 3, "{:?}", site.ran());

    let line =
        manual("man/leaderrun.1", "leaderrun --once ").replace("leaderrun --once 2026-11", "leaderrun --once 2027");
    site.has("migrate", "");
    for _ in 0..2 {
        assert!(site.run(&line).status.success());
    }
    assert_eq!(site.ran().iter().filter(|ran| *ran == "migrate 2026-11-add-users").count(), 1, "{:?}", site.ran());
}

#[test]
fn an_address_comes_before_the_command_and_goes_after_it() {
    let site = Site::new();
    let line = recipe("leaderrun --lease 20s --pre-start ");
    let page = text("man/leaderrun.1");
    let of_manual = page.lines().find_map(|line| line.strip_prefix(".Ql ").filter(|line| line.contains("ip addr")));
    let of_manual = of_manual.expect("the manual has it as well");
    site.has("ip", "");
    site.has("arping", "");
    site.has("serve", "exec sleep 1000");
    for (index, line) in [line.as_str(), of_manual].into_iter().enumerate() {
        let mut host = site.host(line);
        site.wait_for("serve", index + 1);
        assert_eq!(host.stop(), Some(143), "{}", site.machine.log());
        let expected = [
            "ip addr add 192.0.2.7/24 dev eth0",
            "arping -U -c 1 -I eth0 192.0.2.7",
            "serve",
            "ip addr del 192.0.2.7/24 dev eth0",
        ];
        // Before that a hook may have been too slow for a busy machine.
        assert!(site.ran().ends_with(&expected.map(str::to_owned)), "{:?}\n{}", site.ran(), site.machine.log());
    }
}

#[test]
fn a_replica_follows_while_another_leads_and_learns_where() {
    let site = Site::new();
    let line = recipe("leaderrun --standby ");
    site.has("primary", "exec sleep 1000");
    site.has("replica", "exec sleep 1000");
    site.has("point-at", "");
    let mut first = site.host(&line);
    site.wait_for("primary", 1);
    let before = site.count("replica");
    let _second = site.host(&line);
    site.wait_for("replica", before + 1);
    site.wait_for("point-at", 1);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert!(site.ran().contains(&format!("point-at {host}")), "{:?}", site.ran());
    assert!(site.ran().contains(&"replica --follow".to_owned()), "{:?}", site.ran());
    first.stop();
    site.wait_for("primary", 2);
}

#[test]
fn a_server_that_fails_is_started_again() {
    let site = Site::new();
    let line = recipe("leaderrun --restart ");
    site.has(
        "server",
        &format!("[ $(wc -l <{}) -gt 2 ] && exec sleep 1000; exit 1", site.machine.path("ran").display()),
    );
    let mut host = site.host(&line);
    site.wait_for("server", 3);
    sleep(Duration::from_millis(200));
    assert_eq!(host.stop(), Some(143), "{}", site.machine.log());
    assert_eq!(site.count("server"), 3);
    assert_eq!(site.machine.log().matches(": leading").count(), 1, "{}", site.machine.log());
}

#[test]
fn of_four_workers_three_run_each_in_a_slot_of_its_own() {
    let site = Site::new();
    let line = recipe("leaderrun --slots ");
    site.has("worker", &format!("echo slot $LEADERRUN_SLOT >>{}\nexec sleep 1000", site.machine.path("ran").display()));
    let mut hosts = [(), (), (), ()].map(|()| site.host(&line));
    site.wait_for("slot", 3);
    sleep(Duration::from_secs(1));
    let slots: Vec<String> = site.ran().into_iter().filter(|line| line.starts_with("slot ")).collect();
    assert_eq!(slots.len(), 3, "{slots:?}\n{}", site.machine.log());
    assert_eq!(
        slots.iter().collect::<BTreeSet<_>>(),
        ["slot 1", "slot 2", "slot 3"].map(str::to_owned).iter().collect()
    );
    // All at once: each has to go on while others leave.
    for host in &mut hosts {
        host.stop();
    }
}

#[test]
fn a_dangerous_step_is_taken_only_while_the_lease_lasts() {
    let site = Site::new();
    let line = manual("man/leaderctl.1", "verify --for");
    assert!(text("docs/recipes.md").contains(&format!("`{}`", line.trim())), "the guide has another line: {line}");
    site.has("publish", "");
    let output = site.run(line.trim());
    assert!(!output.status.success() && site.ran().is_empty(), "nobody leads here: {output:?}");
    write_script(&site.machine.path("bin").join("steps"), &format!("#!/bin/sh\n{line}\n"));
    assert!(site.run("leaderrun s -- ./steps").status.success());
    assert_eq!(site.ran(), ["publish"]);
    // Its lease is shorter than it wants.
    let short = "leaderrun --lease 4s --renew 1s --kill-after 1s s -- ./steps";
    assert!(!site.run(short).status.success());
    assert_eq!(site.ran(), ["publish"]);
}

#[test]
fn the_scripts_of_the_manual_say_what_came_of_it() {
    let site = Site::new();
    let script = manual("man/leaderrun.1", "leaderrun -w 10m migrate");
    let said = |output: &Output| String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    site.has("migrate", "");
    let output = site.run(&script);
    assert!(output.status.success() && said(&output).starts_with("migrated\n"), "{output:?}");
    site.has("migrate", "exit 3");
    let output = site.run(&script);
    assert!(output.status.code() == Some(1) && said(&output).contains("failed\n"), "{output:?}");
    let mut other = site.host("leaderrun migrate -- sleep 1000");
    wait_until("another one migrates", || site.machine.log().contains(": leading"));
    let begun = Instant::now();
    // Ten minutes are too long for a test.
    let output = site.run(&script.replace("-w 10m", "-w 1s"));
    let told = "another host still migrates after ten minutes\n";
    assert!(output.status.code() == Some(1) && said(&output).contains(told), "{output:?}");
    assert!(begun.elapsed() < Duration::from_mins(1) && site.count("migrate") == 2);
    other.stop();

    let own = site.machine.path("bin").join("own");
    write_script(&own, &manual("man/leaderrun.1", "[ \"$LEADERRUN_SHARD\" = backup ]"));
    let output = site.run(own.to_str().unwrap());
    assert!(output.status.success() && said(&output).contains("backing up in term "), "{output:?}");
}

/// Without what hardens it. That systemd accepts the template, which packages install, is in tests/systemd.rs.
#[test]
fn the_unit_of_the_guide_is_a_part_of_the_template() {
    let guide = text("docs/recipes.md");
    let block = guide.split("```ini\n").nth(1).expect("a unit").split("```").next().unwrap();
    assert!(block.starts_with("[Service]\n") && block.contains("\nExecStart="), "{block}");
    let template = text("examples/systemd/leaderrun@.service");
    for line in block.lines() {
        assert!(template.lines().any(|other| other == line), "the template has no {line}");
    }
}
