//! A host of its own for one candidate, gone with everything in it when this is dropped: `programs/host.c`.

use crate::support::prelude::*;
use std::fs::File;
use std::process::{Child, ChildStdin};
use std::sync::OnceLock;

const PROGRAMS: [&str; 13] = [
    "host",
    "quiet",
    "unreadable",
    "thread_outlives_main",
    "bomb",
    "crowd",
    "hog",
    "vforks",
    "traces",
    "namespaces",
    "enters",
    "unmounts",
    "signals",
];

pub struct Host {
    child: Child,
    /// The host ends when it is closed.
    line: Option<ChildStdin>,
    status: PathBuf,
    log: PathBuf,
}

/// A program, and where it stands on the host: see [`program`].
pub const LEADERRUN: [&str; 2] = [env!("CARGO_BIN_EXE_leaderrun"), "leaderrun"];
pub const SHELL: [&str; 2] = ["/bin/sh", "sh"];

impl Host {
    /// Starts a program with `words` there. `name` is for its files in `scratch`, and `kind` are words of
    /// `programs/host.c`.
    pub fn start(
        scratch: &Path,
        name: &str,
        [path, place]: [&str; 2],
        kind: &[String],
        words: &[String],
        environment: &[(&str, String)],
    ) -> Self {
        let (status, log) = (scratch.join(format!("{name}.status")), scratch.join(format!("{name}.log")));
        let mut command = unconfigured(&program("host"));
        command.arg(&status).arg(path).args(kind).args(["--", &program(place)]).args(words);
        command.envs(environment.iter().cloned());
        let written = File::options().append(true).create(true).open(&log).expect("a log");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(written);
        let mut child = command.spawn().expect("the program was compiled");
        let line = child.stdin.take();
        Self { child, line, status, log }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How leaderrun ended, if it did: its exit status, or 128 and the signal.
    pub fn ended(&self) -> Option<i32> {
        let status: i32 = fs::read_to_string(&self.status).ok()?.trim_end().parse().ok()?;
        Some(if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) })
    }

    /// Leaderrun's number, as this side of the namespace sees it.
    pub fn candidate(&self) -> Option<Pid> {
        let init = *children_of(self.child.id().cast_signed()).first()?;
        named(&children_of(init), "leaderrun")
    }

    /// Waits for backstop, guard and candidate of a leader.
    pub fn keepers(&self) -> [Pid; 3] {
        let mut found = None;
        let look = || {
            let candidate = self.candidate()?;
            let backstop = named(&children_of(candidate.as_raw()), "lr-backstop")?;
            let guard = named(&children_of(backstop.as_raw()), "lr-guard")?;
            Some([backstop, guard, candidate])
        };
        wait_until_or(
            "candidate, backstop and guard are there",
            || self.log(),
            || {
                found = look();
                found.is_some()
            },
        );
        found.expect("they are there")
    }

    /// SIGKILL to everything in its cgroup, as a service manager sends it.
    pub fn kill_group(&self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGUSR1).expect("the host is there");
    }

    /// SIGKILL to everything of leaderrun that has `text` in its command line, as `pkill -9 -f` sends it.
    pub fn kill_by_line(&self, text: &str) {
        let mut found: Vec<i32> = self.candidate().iter().map(|pid| pid.as_raw()).collect();
        let mut seen = 0;
        while let Some(&pid) = found.get(seen) {
            found.extend(children_of(pid));
            seen += 1;
        }
        found.retain(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(text)
        });
        assert!(!found.is_empty(), "leaderrun itself has it");
        for pid in found {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// To leaderrun, if it is there.
    pub fn signal(&self, signal: Signal) {
        if let Some(candidate) = self.candidate() {
            let _ = kill(candidate, signal);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.line.take());
        let _ = self.child.wait();
    }
}

fn named(processes: &[i32], name: &str) -> Option<Pid> {
    let is_named =
        |pid: &&i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    processes.iter().find(is_named).copied().map(Pid::from_raw)
}

/// Where every user may run it. Compiled once, by the first who asks; of [`LEADERRUN`] and
/// [`SHELL`] the places are there.
pub fn program(name: &str) -> String {
    static COMPILED: OnceLock<TempDir> = OnceLock::new();
    let directory = COMPILED.get_or_init(|| {
        assert!(nix::unistd::geteuid().is_root(), "only root can make hosts and be several users: run this as root");
        let directory = TempDir::new().expect("a scratch directory");
        open_to_all(directory.path());
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/programs");
        for name in PROGRAMS {
            let mut compiler = Command::new("cc");
            compiler.args(["-std=gnu11", "-O1", "-pthread", "-o"]).arg(directory.path().join(name));
            let status = compiler.arg(sources.join(format!("{name}.c"))).status();
            assert!(status.expect("a C compiler").success(), "{name}.c");
        }
        let unreadable = fs::Permissions::from_mode(0o711);
        fs::set_permissions(directory.path().join("unreadable"), unreadable).expect("it is ours");
        for [_, place] in [LEADERRUN, SHELL] {
            File::create(directory.path().join(place)).expect("a file can be made");
        }
        directory
    });
    directory.path().join(name).to_str().expect("text").to_owned()
}

pub fn open_to_all(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
}
