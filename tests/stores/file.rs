//! The store `file:` against other users of the machine, and against what happens to its directory.

mod modes;
mod planted;
mod replaced;
mod strangers;

use crate::support::prelude::*;
use crate::support::squatting::as_nobody;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Output};

/// More than what never blocks needs on a busy machine, and less than the patience of other tests.
const PROMPTLY: Duration = Duration::from_secs(30);

/// A place that everybody on this machine can look for.
fn open_place() -> Place {
    assert!(nix::unistd::geteuid().is_root(), "only root can be several users: run this test as root");
    let place = Place::local();
    set_mode(place.fleet.scratch.path(), 0o755);
    place
}

impl Place {
    fn directory(&self) -> PathBuf {
        self.path("store")
    }

    fn run(&self, flags: &[&str], words: &[&str]) -> Said {
        end_of(leaderrun().args(["--store", &self.url]).args(flags).arg("shard").args(words))
    }

    fn start(&mut self, owner: &str, flags: &[&str]) {
        self.fleet.start(owner, &[&["--store", &self.url, "--renew", "1s"], flags].concat(), &[], &[]);
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// What came of a program that ended by itself, promptly.
#[track_caller]
fn end_of(command: &mut Command) -> Said {
    let begun = Instant::now();
    let mut child = Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut output = Output { status: child.ends(), stdout: Vec::new(), stderr: Vec::new() };
    assert!(begun.elapsed() < PROMPTLY, "it went on for more than {PROMPTLY:?}");
    child.stdout.as_mut().unwrap().read_to_end(&mut output.stdout).unwrap();
    child.stderr.as_mut().unwrap().read_to_end(&mut output.stderr).unwrap();
    output.into()
}

/// A user who may not write the directory, at work until it is dropped.
struct Stranger {
    child: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stranger {
    /// Runs attacker.pl, which says in its first line what came of `words`.
    fn does<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let mut command = Command::new("prlimit");
        command.args(["--nofile=10000", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["perl", "-e", include_str!("file/attacker.pl"), "--"]).args(words);
        let mut child = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn fills(how: &str, seats: &[String]) -> Self {
        let mut stranger = Self::does([how].into_iter().chain(seats.iter().map(String::as_str)));
        for seat in seats {
            assert_eq!(stranger.says(), "full", "{seat}");
        }
        stranger
    }

    fn goes_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }
}

/// The names in the abstract namespace of the sockets that a process has open for its lease.
fn seats_of(pid: i32) -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let open: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
        .collect();
    let seats = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = fields.get(7)?.strip_prefix('@')?;
        (name.starts_with("leaderrun/") && open.contains(&format!("socket:[{}]", fields[6]))).then(|| name.to_owned())
    });
    let mut seats: Vec<String> = seats.collect();
    seats.sort();
    seats.dedup();
    seats
}

/// State files that everybody may read.
fn lay_out_readable(place: &Place) {
    fs::create_dir(place.directory()).unwrap();
    set_mode(&place.directory(), 0o755);
    for name in ["shard.lock", "+lock"] {
        let path = place.directory().join(name);
        fs::write(&path, "").unwrap();
        set_mode(&path, 0o644);
    }
}
