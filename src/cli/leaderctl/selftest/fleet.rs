//! The candidates of one fault, as real processes, and the stamps of their COMMANDs.
//!
//! The hazards: another process may get the number of a reaped one, so only [`Fleet::reap`] reaps, and it forgets the
//! number at once. And what a fault leaves behind must not outlive the self-test, so this process is the subreaper of
//! all of it, and a fault is over when this process has no descendant left.

use super::super::whose::parent_of;
use super::evidence::{Life, Stamps, TestError};
use super::programs;
use super::proxy::{NetworkFault, Proxy};
use crate::guard::contain::Contain;
use crate::guard::tree::{Tree, earlier_children};
use crate::guard::walk::Walk;
use crate::lease::{Shard, Timing, show};
use crate::store::url::Secret;
use crate::time::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub const CANDIDATES: usize = 3;
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// What processes may take to start, to end and to be seen, on a slow machine.
const SLACK: Duration = Duration::from_secs(10);
const LAST_LINES: usize = 15;

#[derive(Debug)]
pub struct Setting {
    pub timing: Timing,
    pub contain: Contain,
    pub shard: Shard,
    /// False if a lease lasts while a process holds it open.
    pub expires: bool,
    pub scratch: PathBuf,
}

pub struct Fleet<'a> {
    pub setting: &'a Setting,
    scratch: PathBuf,
    candidates: BTreeMap<String, Pid>,
    /// By candidate; empty if they connect to the store directly.
    ways: BTreeMap<String, Proxy>,
    pub stamps: Stamps,
    tree: Tree,
    until: BootInstant,
}

impl<'a> Fleet<'a> {
    /// Without candidates. Nothing takes longer than `limit`.
    pub fn new(setting: &'a Setting, name: &str, limit: Duration) -> io::Result<Self> {
        let scratch = setting.scratch.join(name);
        fs::create_dir(&scratch)?;
        let mut walk = Walk::open()?;
        let earlier_children = earlier_children(Some(&mut walk));
        Ok(Self {
            setting,
            candidates: BTreeMap::new(),
            ways: BTreeMap::new(),
            stamps: Stamps::new(scratch.join("stamps"))?,
            scratch,
            tree: Tree::new(earlier_children, Some(walk), None),
            until: BootInstant::now().plus(limit).plus(limit),
        })
    }

    /// Starts the candidates, each with its own URL and proxy if there are `ways`.
    pub fn crew(&mut self, url: Option<&Secret>, ways: Vec<(Secret, Proxy)>, flags: &[&str]) -> io::Result<()> {
        let mut ways = ways.into_iter();
        for index in 1..=CANDIDATES {
            let owner = owner(index);
            let (through, proxy) = ways.next().unzip();
            self.start(&owner, through.as_ref().or(url), flags)?;
            self.ways.extend(proxy.map(|proxy| (owner, proxy)));
        }
        Ok(())
    }

    fn start(&mut self, owner: &str, url: Option<&Secret>, flags: &[&str]) -> io::Result<()> {
        let Timing { lease, renew_interval, retry_interval, stop_grace, .. } = self.setting.timing;
        let log = File::create(self.file(owner, "log"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(programs::CANDIDATE_NAME).args(["-v", "--owner", owner]);
        for (flag, duration) in [
            ("--lease", lease),
            ("--renew", renew_interval),
            ("--retry", retry_interval),
            ("--kill-after", stop_grace),
            // The end of the test does not wait for a stubborn COMMAND.
            ("--stop-timeout", stop_grace),
        ] {
            command.arg(flag).arg(humantime::format_duration(duration).to_string());
        }
        command.args(["--contain", self.setting.contain.into_str()]);
        command.args([self.setting.shard.as_str(), "--", programs::COMMAND, programs::COMMAND_NAME]);
        command.arg(&self.stamps.path).arg(self.until.as_nanos().to_string()).args(flags);
        // The user's own settings must not affect the candidates.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"LEADERRUN_")) {
            command.env_remove(name);
        }
        // In the environment, because everybody can read a URL on the command line.
        command.envs(url.map(|url| ("LEADERRUN_STORE", url.expose())));
        // The configuration of real shards must not affect the test.
        command.env("LEADERRUN_CONFIG", "/dev/null");
        command.env(programs::PARENT_VARIABLE, std::process::id().to_string());
        command.env(programs::CLOCK_VARIABLE, self.file(owner, "clock"));
        // In its own process group, so that Ctrl-C reaches only us, and we end it in order.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        let pid = i32::try_from(command.spawn()?.id()).map_err(io::Error::other)?;
        self.candidates.insert(owner.to_owned(), Pid::from_raw(pid));
        Ok(())
    }

    fn file(&self, owner: &str, what: &str) -> PathBuf {
        self.scratch.join(format!("{owner}.{what}"))
    }

    pub fn set_wall_clock(&self, owner: &str, seconds: i64) -> io::Result<()> {
        let beside = self.scratch.join("clock.new");
        fs::write(&beside, seconds.to_string())?;
        fs::rename(beside, self.file(owner, "clock"))
    }

    pub fn set(&self, owner: &str, fault: NetworkFault) {
        if let Some(way) = self.ways.get(owner) {
            way.set(fault);
        }
    }

    pub fn set_all(&self, fault: NetworkFault) {
        self.ways.values().for_each(|way| way.set(fault));
    }

    pub fn signal(&self, owner: &str, signal: Signal) {
        if let Some(&pid) = self.candidates.get(owner) {
            let _ = kill(pid, signal);
        }
    }

    pub fn guard_of(&self, owner: &str) -> Option<Pid> {
        let number = |pid: Pid| pid.as_raw().cast_unsigned();
        let child_of = |parent: Pid| numbers().find(|&pid| parent_of(number(pid)) == Some(number(parent)));
        child_of(child_of(*self.candidates.get(owner)?)?)
    }

    fn reap(&mut self) {
        while let Some((pid, state)) = self.tree.reap(WaitPidFlag::WEXITED) {
            if state.is_end() {
                self.candidates.retain(|_, candidate| *candidate != pid);
            }
        }
    }

    /// How long the next leader may take: a lease must end by itself, and in a store that may have forgotten a lease
    /// the first leader waits for another one.
    fn patience(&self) -> Duration {
        self.setting.timing.lease * 3 + self.setting.timing.retry_interval + SLACK
    }

    pub async fn leader(&mut self) -> Result<Life, TestError> {
        self.leader_where("nobody led", |_| true).await
    }

    pub async fn successor(&mut self, leader: &Life) -> Result<Life, TestError> {
        self.leader_where("nobody took over", |life| life.term > leader.term).await
    }

    /// The same tree is the only one that there ever was.
    pub async fn undisturbed(&mut self, leader: &Life) -> Result<(), TestError> {
        let now = self.leader().await?;
        if now.term == leader.term && self.stamps.lives()?.len() == 1 {
            return Ok(());
        }
        Err(TestError::Failed("COMMAND was stopped, and should have gone on".to_owned()))
    }

    /// This tree is the one that is alive.
    pub async fn still(&mut self, leader: &Life) -> Result<(), TestError> {
        if self.leader().await?.term == leader.term {
            return Ok(());
        }
        Err(TestError::Failed(format!("term {} did not stay the leader", leader.term)))
    }

    async fn leader_where(&mut self, otherwise: &str, fits: impl Fn(&Life) -> bool) -> Result<Life, TestError> {
        let (begun, patience) = (BootInstant::now(), self.patience());
        loop {
            self.reap();
            let alive = |life: &Life| life.last > begun.as_nanos() && fits(life);
            if let Some(life) = self.stamps.lives()?.into_iter().rfind(alive) {
                return Ok(life);
            }
            if self.candidates.is_empty() {
                return Err(TestError::Failed(format!("every candidate ended: {}", self.last_words())));
            }
            if BootInstant::now().since(begun) > patience {
                return Err(TestError::Failed(format!("{otherwise} within {}", show(patience))));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends everything, and returns how many processes of trees outlived their candidates.
    pub async fn end(&mut self) -> usize {
        let grace = self.setting.timing.stop_grace;
        self.set_all(NetworkFault::Fair);
        for owner in self.candidates.keys() {
            // What is frozen cannot obey.
            self.signal(owner, Signal::SIGCONT);
            self.signal(owner, Signal::SIGTERM);
        }
        if !self.wait_until(grace + SLACK, |fleet| fleet.candidates.is_empty()).await {
            for owner in self.candidates.keys() {
                self.signal(owner, Signal::SIGKILL);
            }
        }
        let stamps = self.stamps.path.clone();
        let gone = |fleet: &mut Self| fleet.candidates.is_empty() && commands_of(&stamps) == 0;
        self.wait_until(grace + Duration::from_secs(1), gone).await;
        let orphans = commands_of(&stamps);
        // A backstop whose candidate was killed may be giving the lease back.
        self.wait_until(SLACK / 2, |fleet| fleet.tree.is_empty()).await;
        self.kill().await;
        orphans
    }

    pub async fn kill(&mut self) {
        let is_dead = |fleet: &mut Self| {
            fleet.tree.kill();
            fleet.tree.is_empty()
        };
        self.wait_until(SLACK, is_dead).await;
    }

    async fn wait_until(&mut self, limit: Duration, reached: impl Fn(&mut Self) -> bool) -> bool {
        let begun = BootInstant::now();
        loop {
            self.reap();
            if reached(self) {
                return true;
            }
            if BootInstant::now().since(begun) > limit {
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The last lines of each candidate's log, which contains no secrets.
    pub fn log_ends(&self) -> Vec<String> {
        let mut ends = Vec::new();
        for index in 1..=CANDIDATES {
            let log = fs::read_to_string(self.file(&owner(index), "log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            ends.extend(last.iter().map(|line| format!("candidate {index}: {line}")));
        }
        ends
    }

    fn last_words(&self) -> String {
        let last = self.log_ends().pop().unwrap_or_default();
        last.split_once("leaderrun: ").map_or(last.clone(), |(_, message)| message.to_owned())
    }
}

fn owner(index: usize) -> String {
    format!("leaderctl-selftest-{index}")
}

fn commands_of(stamps: &Path) -> usize {
    let stamps = stamps.as_os_str().as_encoded_bytes();
    let is_one = |pid: &Pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        matches!(words[..], [COMMAND, NAME, file, ..] if file == stamps)
    };
    numbers().filter(is_one).count()
}

const COMMAND: &[u8] = programs::COMMAND.as_bytes();
const NAME: &[u8] = programs::COMMAND_NAME.as_bytes();

fn numbers() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw)
}
