//! What each method of killing a tree costs at the start of COMMAND, and how long it takes to empty a tree.
//!
//! The times of a kill are those that leaderrun itself tells with `-v`, from the instant at which it was due: until the guard
//! was awake, until each process had SIGKILL, until none was left. The trees are the attack programs of tests/attacks, each
//! on a host of its own (`programs/host.c`), which ends as a whole. Root alone can make such hosts.

use super::{Extent, Table, millis, progress};
use crate::support::fleet::leaderrun;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const METHODS: [&str; 3] = ["walk", "cgroup", "pidns"];
/// A tree that is not dead by then ends by itself.
const LIMIT: Duration = Duration::from_secs(20);
/// `life.h` has these at the places 0 to 5 of eight bytes each, and more that is zero.
const LIFE: usize = 4096;
const GO: usize = 3 * 8;

pub fn measure(extent: &Extent, table: &mut Table) {
    if !nix::unistd::geteuid().is_root() {
        return table.add("killing a tree", "ignored: root alone can make hosts for it", "", None);
    }
    let place = Place::new();
    for method in METHODS {
        progress(&format!("start of COMMAND, {method}"));
        let row = format!("start-up and end, file, --contain {method}, mean of {}", extent.starts);
        let took = place.start_up(method, extent.starts);
        table.add(&row, &took.map_or_else(|why| why, millis), "", None);
    }
    let trees: [(&str, &[&str], bool); 3] = [
        ("200 daemons", &["crowd", "deaf", "daemons", "200"], false),
        ("200 daemons, busy machine", &["crowd", "deaf", "daemons", "200"], true),
        ("a bomb of 64", &["bomb", "deaf", "slots", "64"], false),
    ];
    for (name, tree, busy) in trees {
        for method in METHODS {
            progress(&format!("killing {name}, {method}"));
            let _load = busy.then(Load::start);
            let mut kills: Vec<Result<Kill, String>> = (0..extent.kills).map(|_| place.kill(method, tree)).collect();
            let row = format!("killing {name}, {method}, median and most of {}", extent.kills);
            let shown = match kills.iter().position(Result::is_err) {
                Some(at) => kills.swap_remove(at).err().unwrap_or_default(),
                None => show(kills.into_iter().flatten().collect()),
            };
            table.add(&row, &shown, "", None);
        }
    }
}

/// How long after a kill was due it had come so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kill {
    empty: Duration,
    woken: Duration,
    signalled: Duration,
}

fn show(mut kills: Vec<Kill>) -> String {
    kills.sort();
    let (Some(median), Some(most)) = (kills.get(kills.len() / 2), kills.last()) else { return "none".to_owned() };
    let woken = kills.iter().map(|kill| kill.woken).max().unwrap_or_default();
    let signalled = kills.iter().map(|kill| kill.signalled).max().unwrap_or_default();
    format!(
        "{}, {} (awake {}, signalled {} at most)",
        millis(median.empty),
        millis(most.empty),
        millis(woken),
        millis(signalled)
    )
}

struct Place {
    scratch: TempDir,
}

impl Place {
    fn new() -> Self {
        let scratch = TempDir::new().expect("a scratch directory");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/programs");
        for name in ["host", "crowd", "bomb"] {
            let mut compiler = Command::new("cc");
            compiler.args(["-std=gnu11", "-O1", "-pthread", "-o"]).arg(scratch.path().join(name));
            let status = compiler.arg(sources.join(format!("{name}.c"))).status();
            assert!(status.expect("a C compiler").success(), "{name}.c");
        }
        for name in ["leaderrun", "sh"] {
            File::create(scratch.path().join(name)).expect("a file can be made");
        }
        Self { scratch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Runs `program`, which is `binary` there, on a host of its own.
    fn host(&self, binary: &Path, method: &str, program: &str, words: &[String]) -> (Child, PathBuf) {
        let (status, log) = (self.path("status"), self.path("log"));
        let _ = fs::remove_file(&status);
        let life = self.path("life");
        let mut bytes = vec![0; LIFE];
        bytes[GO] = 1;
        fs::write(&life, bytes).expect("it can be written");
        let mut command = Command::new(self.path("host"));
        command.arg(&status).arg(binary);
        if method == "cgroup" {
            command.arg(format!("cgroup=leaderrun-bench-{}", std::process::id()));
        }
        command.arg("--").arg(self.path(program)).args(words);
        command.env("LEADERRUN_CONFIG", "/dev/null").env("ATTACK_LIFE", life);
        command.env("ATTACK_SECONDS", LIMIT.as_secs().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&log).expect("a log"));
        let child = command.spawn().expect("the program was compiled");
        let begun = Instant::now();
        while !status.exists() && begun.elapsed() < 2 * LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        (child, log)
    }

    /// Ends the host, and answers what its processes said.
    fn end((mut child, log): (Child, PathBuf)) -> String {
        drop(child.stdin.take());
        child.wait().expect("it can be waited for");
        fs::read_to_string(log).unwrap_or_default()
    }

    /// The mean of some starts, one after another in one host.
    fn start_up(&self, method: &str, starts: usize) -> Result<Duration, String> {
        let store = self.path("store");
        let ours = leaderrun().get_program().to_owned();
        let line = format!(
            "begun=$(date +%s%N); i=0; while [ $i -lt {starts} ]; do i=$((i + 1)); \
             {} -q -n --store file:{} --contain {method} shard true || exit; done; \
             echo took $(($(date +%s%N) - begun)) >&2",
            ours.display(),
            store.display()
        );
        let host = self.host(Path::new("/bin/sh"), method, "sh", &["-c".to_owned(), line]);
        let said = Self::end(host);
        let took = said.lines().find_map(|line| line.strip_prefix("took ")?.parse().ok());
        let nanos: u64 = took.ok_or_else(|| last_line(&said))?;
        Ok(Duration::from_nanos(nanos) / u32::try_from(starts).expect("not that many"))
    }

    fn kill(&self, method: &str, tree: &[&str]) -> Result<Kill, String> {
        let store = format!("file:{}", self.path("store").display());
        let flags =
            ["-v", "--store", &store, "--contain", method, "--max-run", "2s", "--kill-after", "200ms", "shard", "--"];
        let mut words: Vec<String> = flags.into_iter().map(str::to_owned).collect();
        words.push(self.path(tree[0]).display().to_string());
        words.extend(tree[1..].iter().map(|word| (*word).to_owned()));
        let binary = PathBuf::from(leaderrun().get_program());
        let said = Self::end(self.host(&binary, method, "leaderrun", &words));
        said.lines().find_map(read).ok_or_else(|| last_line(&said))
    }
}

fn last_line(said: &str) -> String {
    format!("not measured: {}", said.lines().next_back().unwrap_or("nothing was said"))
}

/// `... killed the tree: 76.8µs after it was due the guard was awake, after 24.6ms each process had SIGKILL, after 105ms none
/// was left`.
fn read(line: &str) -> Option<Kill> {
    let mut times = line.split_once("killed the tree: ")?.1.split([' ', ',']).filter_map(duration);
    let (woken, signalled, empty) = (times.next()?, times.next()?, times.next()?);
    Some(Kill { empty, woken, signalled })
}

/// As `Duration`'s `Debug` writes it.
fn duration(word: &str) -> Option<Duration> {
    let unit = word.find(|c: char| c.is_alphabetic())?;
    let number: f64 = word[..unit].parse().ok()?;
    let seconds = match &word[unit..] {
        "s" => number,
        "ms" => number / 1e3,
        "µs" => number / 1e6,
        "ns" => number / 1e9,
        _ => return None,
    };
    Some(Duration::from_secs_f64(seconds))
}

/// Four processes for each processor that never wait.
struct Load(Vec<Child>);

impl Load {
    fn start() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = || {
            let mut command = Command::new("timeout");
            command.args(["300", "sh", "-c", "while :; do :; done"]).spawn().expect("sh starts")
        };
        Self((0..4 * cores).map(|_| spin()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // timeout(1) passes it on.
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(child.id().cast_signed()),
                nix::sys::signal::Signal::SIGTERM,
            );
            let _ = child.wait();
        }
    }
}
