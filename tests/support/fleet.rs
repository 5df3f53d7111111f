//! Several candidates of one shard, as real processes, and the stamps that their COMMANDs wrote.

use super::evidence::{self, Evidence};
use super::prelude::*;
use super::process::told_of;
pub use leaderrun::internals::cli::leaderctl::selftest::evidence::Life;
use leaderrun::internals::cli::leaderctl::selftest::evidence::Stamps;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::process::ExitStatus;

/// Long enough for two slow cores; what ends sooner is not waited for.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub struct Fleet {
    candidates: BTreeMap<String, Process>,
    /// Removed when all candidates have ended.
    pub scratch: TempDir,
    /// The store and the fault, where the story is to be told in the table of evidence.
    title: Option<(&'static str, &'static str)>,
    /// By the name of the file.
    stamps: RefCell<BTreeMap<String, Stamps>>,
    started: usize,
}

/// A standby announces itself where that costs money, too.
pub const ANNOUNCED: (&str, &str) = ("LEADERRUN_ANNOUNCE", "always");

impl Fleet {
    pub fn new() -> Self {
        Self {
            candidates: BTreeMap::new(),
            scratch: TempDir::new().expect("a scratch directory"),
            title: None,
            stamps: RefCell::default(),
            started: 0,
        }
    }

    /// One whose story is told in the table of evidence.
    pub fn titled(store: &'static str, fault: &'static str) -> Self {
        let mut fleet = Self::new();
        fleet.title = Some((store, fault));
        fleet
    }

    /// Starts a candidate with `flags` whose COMMAND is a stamp with `stamp_flags`. Every second candidate, beginning with
    /// the first, is the leaderrun of another version that `TEST_FORMER` names, if it names one.
    pub fn start(&mut self, owner: &str, flags: &[&str], stamp_flags: &[&str], environment: &[(&str, &str)]) {
        let former = std::env::var("TEST_FORMER").ok().filter(|_| self.started.is_multiple_of(2));
        self.started += 1;
        let command = former.map_or_else(leaderrun, |path| unconfigured(&path));
        self.start_as(command, owner, flags, stamp_flags, environment);
    }

    /// The same, where `command` already begins as some leaderrun.
    pub fn start_as(
        &mut self,
        mut command: Command,
        owner: &str,
        flags: &[&str],
        stamp_flags: &[&str],
        environment: &[(&str, &str)],
    ) {
        command.args(["--owner", owner]).args(flags).args(["shard", "--"]).arg(stamp_program());
        command.arg(self.scratch.path().join("stamps")).args(stamp_flags);
        command.envs(environment.iter().copied());
        self.launch(owner, command);
    }

    pub fn launch(&mut self, owner: &str, mut command: Command) {
        let log = fs::File::options().append(true).create(true).open(self.log(owner)).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.candidates.insert(owner.to_owned(), Process::start(&mut command));
    }

    fn log(&self, owner: &str) -> PathBuf {
        self.scratch.path().join(format!("{owner}.log"))
    }

    pub fn pid(&self, owner: &str) -> Pid {
        self.candidates[owner].pid()
    }

    pub fn signal(&self, owner: &str, signal: Signal) {
        self.candidates[owner].signal(signal);
    }

    /// Kills the only leader, waits until a lock is free, and checks that nothing of the tree lives then.
    pub fn kill_and_watch(&mut self, owner: &str, is_free: impl Fn() -> bool) {
        self.kill(owner);
        let killed = BootInstant::now().as_nanos();
        let stamps = self.scratch.path().join("stamps");
        let candidates: Vec<i32> = self.candidates.keys().map(|owner| self.pid(owner).as_raw()).collect();
        let is_left = || processes_naming(&stamps).iter().any(|process| !candidates.contains(process));
        let begun = Instant::now();
        while !is_free() {
            assert!(begun.elapsed() < PATIENCE, "the lock is never free\n{}", self.logs());
        }
        // Alive after the lock was seen free: too early.
        assert!(!is_left(), "the lock was free while the tree lived, after {:?}", begun.elapsed());
        // By what it wrote: a look at it might come too late.
        assert!(self.lives().iter().any(|life| life.last > killed), "the tree did not outlive its candidate");
    }

    pub fn kill(&mut self, owner: &str) {
        self.candidates.remove(owner).expect("it was started").end();
    }

    /// Whether it was started, and neither killed nor stopped since.
    pub fn is_running(&self, owner: &str) -> bool {
        self.candidates.contains_key(owner)
    }

    /// Whether it ended by itself, and is reaped now.
    pub fn has_ended(&mut self, owner: &str) -> bool {
        let ended = |process: &mut Process| process.try_wait().expect("it can be waited for").is_some();
        let ended = self.candidates.get_mut(owner).is_none_or(ended);
        if ended {
            self.candidates.remove(owner);
        }
        ended
    }

    pub fn stop(&mut self, owner: &str) -> ExitStatus {
        self.signal(owner, Signal::SIGTERM);
        self.end_of(owner)
    }

    pub fn end_of(&mut self, owner: &str) -> ExitStatus {
        self.candidates.remove(owner).expect("it was started").ends()
    }

    /// The lives of all trees, in the order of their beginnings.
    pub fn lives(&self) -> Vec<Life> {
        self.lives_in("stamps")
    }

    /// The same, of those in one slot of the shard.
    pub fn lives_in_slot(&self, slot: u32) -> Vec<Life> {
        self.lives_in(&format!("stamps.{slot}"))
    }

    fn lives_in(&self, name: &str) -> Vec<Life> {
        let mut stamps = self.stamps.borrow_mut();
        let new = || Stamps::new(self.scratch.path().join(name)).expect("the file can be made");
        stamps.entry(name.to_owned()).or_insert_with(new).lives().expect("only stamps are in it")
    }

    /// Waits until some tree is alive and answers whose.
    pub fn leader(&self) -> Life {
        self.leader_where(|_| true)
    }

    pub fn leader_where(&self, fits: impl Fn(&Life) -> bool) -> Life {
        self.leader_in("stamps", fits)
    }

    /// The same, among those that write into the file of this name.
    pub fn leader_in(&self, name: &str, fits: impl Fn(&Life) -> bool) -> Life {
        let mut found = None;
        let begun = BootInstant::now().as_nanos();
        let look = || {
            found = self.lives_in(name).into_iter().rfind(|life| life.last > begun && fits(life));
            found.is_some()
        };
        wait_until_or(&format!("somebody leads in {name}"), || self.logs(), look);
        found.expect("somebody leads")
    }

    /// The same tree is still the only one that there ever was.
    pub fn assert_undisturbed(&self, leader: &Life) {
        let now = self.leader();
        let lives = self.lives();
        assert!(now.term == leader.term && lives.len() == 1, "{lives:?}\n{}", self.logs());
    }

    /// Ends everything and checks what must hold after every story: no two trees at once, terms rising, nobody left.
    pub fn conclude(mut self) -> Vec<Life> {
        let (lives, evidence) = self.end();
        assert_eq!(evidence.breach(), None, "{lives:?}\n{}", self.logs());
        lives
    }

    /// Ends everything, and says what was seen.
    pub fn end(&mut self) -> (Vec<Life>, Evidence) {
        let (until, orphans) = self.end_all();
        let lives = self.lives();
        let evidence = Evidence::of(&lives, until, orphans, 0);
        self.publish(&evidence);
        (lives, evidence)
    }

    pub fn publish(&self, evidence: &Evidence) {
        if let Some((store, fault)) = self.title {
            evidence::publish(evidence, store, fault);
        }
    }

    /// Since when everything ends, and how many processes are left after it.
    pub fn end_all(&mut self) -> (u64, usize) {
        let until = BootInstant::now().as_nanos();
        let owners: Vec<String> = self.candidates.keys().cloned().collect();
        for owner in owners {
            let _ = kill(self.pid(&owner), Signal::SIGCONT);
            self.stop(&owner);
        }
        let marker = self.scratch.path().to_path_buf();
        let begun = Instant::now();
        while !or_pause(|| processes_naming(&marker).is_empty()) && begun.elapsed() < PATIENCE {}
        (until, processes_naming(&marker).len())
    }

    pub fn logs(&self) -> String {
        let entries = fs::read_dir(self.scratch.path()).expect("the scratch directory is there");
        let logs =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "log"));
        logs.map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
    }
}

/// A leaderrun on another host: in the network namespace that this file stands for.
pub fn leaderrun_in(namespace: &Path) -> Command {
    let mut command = unconfigured("nsenter");
    command.arg(format!("--net={}", namespace.display())).arg(env!("CARGO_BIN_EXE_leaderrun"));
    command
}

/// A leaderrun without the environment's settings, quiet about its default store.
pub fn leaderrun() -> Command {
    unconfigured(env!("CARGO_BIN_EXE_leaderrun"))
}

pub fn leaderctl() -> Command {
    unconfigured(env!("CARGO_BIN_EXE_leaderctl"))
}

pub fn unconfigured(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEADERRUN_")) {
        command.env_remove(name);
    }
    // This machine's own is none of a test's business.
    command.env("LEADERRUN_CONFIG", "/dev/null");
    command
}

/// By another process. While this one has a copy open for writing, a child that another test starts inherits the
/// descriptor until it becomes its own program, and the kernel runs no file that is open for writing (ETXTBSY).
pub fn copy_program(program: impl AsRef<Path>, to: &Path) {
    assert!(Command::new("cp").arg(program.as_ref()).arg(to).status().expect("cp runs").success());
}

/// Cargo builds examples beside the tests.
pub fn stamp_program() -> PathBuf {
    example_program("stamp")
}

pub fn example_program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let path = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST").join("examples").join(name);
    assert!(path.exists(), "{} is missing: cargo build --example {name} makes it", path.display());
    path
}

/// Waits until the first thread of a process wakes less than `most` times in a second (proc_pid_status(5)), on the average
/// of three. Its start may not be over when this begins, and an answer that a busy machine delivers in parts wakes it twice.
pub fn wait_until_it_sleeps(process: Pid, most: u64) {
    let wakes = || told_of(process, "voluntary_ctxt_switches").expect("it lives, and the kernel counts them");
    let last = Cell::new(0);
    wait_until_or(
        &format!("it wakes less than {most} times in a second"),
        || format!("the last second: {}", last.get()),
        || {
            let (before, begun) = (wakes(), Instant::now());
            std::thread::sleep(Duration::from_secs(3));
            last.set((wakes() - before) / begun.elapsed().as_secs());
            last.get() < most
        },
    );
}

pub fn processes_naming(marker: &Path) -> Vec<i32> {
    let marker = marker.to_string_lossy();
    let numbers = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number| {
            let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&*marker)
        })
        .collect()
}

pub fn children_of(parent: i32) -> Vec<i32> {
    all_children().remove(&parent).unwrap_or_default()
}

pub fn helpers_of(candidate: Pid) -> [Pid; 2] {
    let backstop = children_of(candidate.as_raw())[0];
    [backstop, children_of(backstop)[0]].map(Pid::from_raw)
}

pub fn all_children() -> HashMap<i32, Vec<i32>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let numbers = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    for number in numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let line = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let after = line.rsplit_once(')').map_or("", |(_, after)| after);
        if let Some(parent) = after.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(number);
        }
    }
    children
}

pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_until_or(what, String::new, condition);
}

pub fn wait_until_or(what: &str, explain: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    // The last look begins after the time is over: this process may have stood still meanwhile, and what it waits for may not.
    let mut is_last = false;
    while !or_pause(&mut condition) {
        assert!(!is_last, "waited {PATIENCE:?} in vain until {what}\n{}", explain());
        is_last = begun.elapsed() > PATIENCE;
    }
}

/// Whether the condition holds. If not, it returns after a pause, which is longer where it takes long to ask: the
/// processors are for what is waited for, and many conditions start a program or read all of /proc.
fn or_pause(mut condition: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    let holds = condition();
    if !holds {
        std::thread::sleep((5 * begun.elapsed()).clamp(Duration::from_millis(10), Duration::from_millis(500)));
    }
    holds
}
