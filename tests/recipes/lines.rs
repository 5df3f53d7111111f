//! The lines of the README, the guide and the manual on which most depends, run as they are written, by a shell on a machine that
//! has what they name. (That the programs take all the others is in tests/manpages.rs.)

use super::{Machine, text, write_script};
use std::process::{Command, Output};

impl Machine {
    /// A program in PATH and in the directory: it writes its name and its words down, and then does `then`.
    fn has(&self, program: &str, then: &str) {
        let script = format!("#!/bin/sh\necho \"{program} $*\" >>{}\n{then}\n", self.path("ran").display());
        write_script(&self.path("bin").join(program), &script);
    }

    /// A shell that is given `line`, in the directory of the programs.
    fn shell(&self, line: &str) -> Command {
        let store = self.store();
        let path = ("PATH", "/usr/local/bin:/usr/bin:/bin");
        let environment = [path, ("LEADERRUN_STORE", &store), ("LEADERRUN_CONFIG", "/dev/null")];
        let mut command = self.command(&environment, &["/bin/sh", "-c", line], &[]);
        command.current_dir(self.path("bin"));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.shell(line).output().unwrap()
    }

    fn count(&self, program: &str) -> usize {
        self.ran().iter().filter(|line| line.split(' ').next() == Some(program)).count()
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
    let site = Machine::with(&[]);
    let line = recipe("leaderrun --once ");
    site.has("server", "");
    site.has("migrate", "sleep 0.5");
    let hosts = [(), ()].map(|()| site.shell(&line).spawn().unwrap());
    for mut host in hosts {
        assert!(host.wait().unwrap().success());
    }
    assert!(site.run(&line).status.success());
    assert_eq!((site.count("migrate"), site.count("server")), (1, 3), "{:?}", site.ran());
    assert_eq!(site.ran()[0].trim_end(), "migrate");

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
