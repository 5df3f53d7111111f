//! Other users who bind names of sockets that candidates need.

use super::fleet::{copy_program, example_program};
use super::process::Process;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Until it is dropped.
pub struct Squatter {
    child: Process,
    _scratch: TempDir,
}

impl Squatter {
    /// Answers on each of `names` as `user`: `word` is what `squatter.rs` takes.
    pub fn start(user: u32, word: &str, names: &[String]) -> Self {
        Self::start_by(&mut Command::new("setpriv"), user, word, names)
    }

    /// The same in a network namespace of its own, where no other test asks.
    pub fn start_apart(user: u32, word: &str, names: &[String]) -> Self {
        Self::start_by(Command::new("unshare").args(["--net", "setpriv"]), user, word, names)
    }

    fn start_by(command: &mut Command, user: u32, word: &str, names: &[String]) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "only root can be somebody else as well: run this test as root");
        let (scratch, program) = copied(example_program("squatter"));
        command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
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
