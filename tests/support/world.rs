//! The world of a story: the server of a store, candidates, and proxies between them that misbehave on demand.

use super::prelude::*;
use super::proxy::{NetworkFault, Proxy};
use super::server::Server;
use std::collections::BTreeMap;
use std::sync::OnceLock;

pub const LEASE: std::time::Duration = std::time::Duration::from_secs(6);
/// For [`LEASE`].
pub const TIMING: [&str; 10] =
    ["--lease", "6s", "--renew", "1s", "--kill-after", "1s", "--retry", "1s", "--stop-timeout", "1s"];

/// What is told, and of which store.
#[derive(Clone, Copy)]
pub struct Story {
    pub store: &'static str,
    pub fault: &'static str,
    /// Starts the store's server.
    pub start: fn() -> Box<dyn Server>,
    pub kit: Kit,
}

/// What candidates have beside their timing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kit {
    Bare,
    /// All that may run beside COMMAND: hooks, a standby command, and restarts of what ends by itself.
    Equipped(Ends),
}

/// When COMMAND ends by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// In each term once, soon. [`World::leader`] has that behind it.
    Once,
    /// Again and again: whatever happens may happen between two runs. A host that is cut off then starts none, so this
    /// shows little of deadlines.
    Always,
}

impl Kit {
    fn ends(self) -> Option<Ends> {
        match self {
            Self::Bare => None,
            Self::Equipped(ends) => Some(ends),
        }
    }
}

/// Candidates, each with its own way to the server and its own wall clock.
pub struct World {
    pub server: Box<dyn Server>,
    pub fleet: Fleet,
    ways: BTreeMap<String, Proxy>,
    timing: Vec<&'static str>,
    stamp_flags: Vec<&'static str>,
    /// With wall clocks that can be stepped.
    clocks: bool,
    kit: Kit,
}

impl World {
    /// Three candidates with a lease of [`LEASE`].
    pub fn new(story: Story, stamp_flags: &[&'static str]) -> Self {
        let mut world = Self::empty(story, &TIMING, stamp_flags);
        world.crew(3);
        world
    }

    pub fn empty(story: Story, timing: &[&'static str], stamp_flags: &[&'static str]) -> Self {
        let mut server = (story.start)();
        prepare(&*server);
        server.grow_old();
        let ending: &[&str] = match story.kit.ends() {
            None => &[],
            Some(Ends::Once) => &["ends-once"],
            Some(Ends::Always) => &["ends"],
        };
        Self {
            server,
            fleet: Fleet::titled(story.store, story.fault),
            ways: BTreeMap::new(),
            timing: timing.to_vec(),
            stamp_flags: [stamp_flags, ending].concat(),
            clocks: false,
            kit: story.kit,
        }
    }

    /// The candidates' wall clocks can be set from now on: of those that are started later.
    pub fn use_wall_clocks(&mut self) {
        self.clocks = true;
    }

    pub fn crew(&mut self, count: usize) {
        for index in 0..count {
            self.start(&name(index));
        }
    }

    pub fn start(&mut self, owner: &str) {
        let address = self.server.address();
        let way = self.ways.entry(owner.to_owned()).or_insert_with(|| Proxy::to(address)).address;
        let store = self.server.url(way);
        let equipment = if self.kit.ends().is_some() { self.equipment() } else { Vec::new() };
        let equipment: Vec<&str> = equipment.iter().map(String::as_str).collect();
        let flags = [&self.timing, &["--store", &store][..], &equipment].concat();
        let mut environment = self.server.environment().to_vec();
        let clock = self.wall_clock_file(owner);
        if self.clocks {
            environment.extend([("LD_PRELOAD", wall_clock()), ("WALLCLOCK_FILE", clock.to_str().expect("text"))]);
        }
        self.fleet.start(owner, &flags, &self.stamp_flags, &environment);
    }

    /// Each hook writes down its term; the standby command can be told by its arguments.
    fn equipment(&self) -> Vec<String> {
        let hooks = self.fleet.scratch.path().join("hooks");
        let hook = |event: &str| format!("echo \"{event} $LEADERRUN_TERM\" >>{}", hooks.display());
        let standby = format!("trap '' TERM; : >>{0}; tail -f -n0 {0}", hooks.display());
        let options = [
            ("hook-timeout", "500ms".to_owned()),
            ("pre-start", hook("lead")),
            ("pre-stop", hook("losing")),
            ("post-stop", hook("lost")),
            ("on-leader-change", "true".to_owned()),
            ("standby", standby),
            ("restart", "always".to_owned()),
            ("restart-delay", "100ms".to_owned()),
        ];
        options.map(|(name, value)| format!("--{name}={value}")).to_vec()
    }

    /// Some where a hook ran beside or after a later leadership: they are written down in the order that they ran in.
    pub fn breach_of_hooks(&self) -> Option<String> {
        let text = fs::read_to_string(self.fleet.scratch.path().join("hooks")).unwrap_or_default();
        let terms: Vec<u64> = text.lines().filter_map(|line| line.split_once(' ')?.1.parse().ok()).collect();
        assert_eq!(terms.len(), text.lines().count(), "not of hooks: {text}");
        if self.kit.ends().is_some() && terms.is_empty() {
            return Some("no hook ran".to_owned());
        }
        (!terms.is_sorted()).then(|| format!("hooks of several terms at once:\n{text}"))
    }

    /// As [`Fleet::leader`]; where COMMAND ends by itself, once it was started again.
    pub fn leader(&self) -> Life {
        self.fleet.leader_where(|life| self.kit == Kit::Bare || self.was_started_again(life))
    }

    fn was_started_again(&self, life: &Life) -> bool {
        let runs = fs::read_to_string(self.fleet.scratch.path().join("stamps.runs")).unwrap_or_default();
        runs.lines().filter(|term| *term == life.term.to_string()).count() > 1
    }

    /// As [`Fleet::conclude`].
    pub fn conclude(mut self) -> Vec<Life> {
        let (lives, evidence) = self.fleet.end();
        let breach = evidence.breach().or_else(|| self.breach_of_hooks());
        let again = self.kit == Kit::Bare || lives.iter().any(|life| self.was_started_again(life));
        assert!(again, "no command was started again: {lives:?}");
        assert_eq!(breach, None, "{lives:?}\n{}", self.fleet.logs());
        lives
    }

    /// Puts a candidate's wall clock so many seconds off, before its start or while it runs.
    pub fn set_wall_clock(&self, owner: &str, shift: i64) {
        let (file, beside) = (self.wall_clock_file(owner), self.fleet.scratch.path().join("clock.new"));
        fs::write(&beside, shift.to_string()).expect("it can be written");
        fs::rename(beside, file).expect("it is in the same directory");
    }

    fn wall_clock_file(&self, owner: &str) -> PathBuf {
        self.fleet.scratch.path().join(format!("{owner}.clock"))
    }

    pub fn set(&self, owner: &str, fault: NetworkFault) {
        self.ways[owner].set(fault);
    }

    pub fn set_all(&self, fault: NetworkFault) {
        for way in self.ways.values() {
            way.set(fault);
        }
    }

    /// Candidate, backstop and guard, as far as they are there.
    pub fn processes(&self, owner: &str) -> Vec<Pid> {
        let candidate = self.fleet.pid(owner);
        let first_child = |parent: Pid| children_of(parent.as_raw()).first().copied().map(Pid::from_raw);
        let backstop = first_child(candidate);
        let guard = backstop.and_then(first_child);
        [Some(candidate), backstop, guard].into_iter().flatten().collect()
    }

    pub fn tree(&self, owner: &str) -> Vec<Pid> {
        let keepers = self.processes(owner);
        let mut found = keepers.get(2).map_or_else(Vec::new, |guard| children_of(guard.as_raw()));
        let mut next = 0;
        while let Some(process) = found.get(next) {
            found.extend(children_of(*process));
            next += 1;
        }
        found.into_iter().map(Pid::from_raw).collect()
    }

    /// As their supervisor would.
    pub fn start_those_that_ended(&mut self) {
        let owners: Vec<String> = self.ways.keys().cloned().collect();
        for owner in owners {
            if self.fleet.has_ended(&owner) {
                self.start(&owner);
            }
        }
    }

    pub fn successor(&self, leader: &Life) -> Life {
        let once = self.kit == Kit::Equipped(Ends::Once);
        self.fleet.leader_where(|life| life.term > leader.term && (!once || self.was_started_again(life)))
    }

    /// Its leadership goes on. On a busy machine a hook may be too slow, which ends it.
    pub fn assert_leads_on(&self, leader: &Life) {
        let now = self.fleet.leader();
        let leads = if self.kit == Kit::Bare { now.term == leader.term } else { now.term >= leader.term };
        assert!(leads, "{leader:?} {now:?}\n{}", self.fleet.logs());
    }
}

pub fn name(index: usize) -> String {
    format!("c{index}")
}

/// A library to preload that shifts the wall clock and no other.
pub fn wall_clock() -> &'static str {
    static LIBRARY: OnceLock<(TempDir, String)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let directory = TempDir::new().unwrap();
        let library = directory.path().join("wallclock.so");
        let source: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/support/wallclock.c"].iter().collect();
        let status = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
        assert!(status.expect("a C compiler").success());
        let path = library.to_str().unwrap().to_owned();
        (directory, path)
    });
    path
}
