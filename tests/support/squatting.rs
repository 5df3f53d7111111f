//! Other users of this machine, and what they do: bind names of sockets that candidates need.

use super::fleet::copy_program;
use super::prelude::*;
use std::io::{BufRead, BufReader};

pub const NOBODY: u32 = 65534;

/// Binds the sockets of `NAME...`, as another user of this machine may do before a candidate needs them, and says `ready`.
/// WORD is the answer to each connection: `silence` is none, `endless` is a stream of 4 MiB, for no test needs more, and any
/// other word is sent as it is. Without a NAME it only keeps its namespaces.
const SQUATTER: &str = r#"
import signal, socket, sys, threading
word, *names = sys.argv[1:]
kept = []
def serve(listener):
    while True:
        client, _ = listener.accept()
        if word == "silence":
            kept.append(client)
            continue
        try:
            client.sendall(b" " * (1 << 22) if word == "endless" else word.encode())
        except OSError:
            pass
        client.close()
for name in names:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen()
    threading.Thread(target=serve, args=[listener]).start()
print("ready", flush=True)
signal.pause()
"#;

pub struct Squatter(Process);

impl Squatter {
    /// Answers with `word` on each of `names` as `user`: see [`SQUATTER`].
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
        // The system's: another user may not reach the one that stands first in PATH.
        command.args(["/usr/bin/python3", "-I", "-c", SQUATTER, word]).args(names);
        let mut child = Process::start(command.stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
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
