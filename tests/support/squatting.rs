//! Other users of this machine, and what they do: bind names of sockets that candidates need.

use super::fleet::{copy_program, example_program};
use super::process::Process;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

pub const NOBODY: u32 = 65534;

/// Until it is dropped.
pub struct Squatter {
    child: Process,
    _scratch: TempDir,
}

impl Squatter {
    /// Answers on each of `names` as `user`: `word` is what `squatter.rs` takes.
    pub fn start(user: u32, word: &str, names: &[String]) -> Self {
        Self::start_by(by_user(user), word, names)
    }

    /// The same in a network namespace of its own, where no other test asks.
    pub fn start_apart(user: u32, word: &str, names: &[String]) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "setpriv"]).args(by_user(user).get_args());
        Self::start_by(command, word, names)
    }

    fn start_by(mut command: Command, word: &str, names: &[String]) -> Self {
        let (scratch, program) = copied(example_program("squatter"));
        let mut child = Process::start(command.arg(program).arg(word).args(names).stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, _scratch: scratch }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has `program` run in its network namespace.
    pub fn beside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid())).arg(program).env("LEADERRUN_CONFIG", "/dev/null");
        command
    }
}

/// A copy of a program where everybody can reach it, for as long as the directory lives.
pub fn copied(program: impl AsRef<Path>) -> (TempDir, PathBuf) {
    let program = program.as_ref();
    let scratch = TempDir::new().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = scratch.path().join(program.file_name().unwrap());
    copy_program(program, &copy);
    (scratch, copy)
}

/// Runs the program that follows as this user, who has to reach it.
pub fn by_user(user: u32) -> Command {
    assert!(nix::unistd::geteuid().is_root(), "only root can be somebody else as well: run this test as root");
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
    command.env("LEADERRUN_CONFIG", "/dev/null");
    command
}

/// `program` as nobody, who reaches a copy of it for as long as the directory lives.
pub fn as_nobody(program: impl AsRef<Path>) -> (TempDir, Command) {
    let (scratch, copy) = copied(program);
    let mut command = by_user(NOBODY);
    command.arg(copy);
    (scratch, command)
}
