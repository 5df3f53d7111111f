//! How an attack is told: two candidates, the first of which leads the attack, and one event that ends its leadership.

use crate::host::{Host, LEADERRUN, open_to_all, program};
use crate::life::{Life, Progress};
use crate::support::prelude::*;
use crate::support::proxy::{NetworkFault, Proxy};
use crate::support::redis::Server;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::thread::sleep;

/// From the event to the next leader, besides a lease.
const PATIENCE: Duration = Duration::from_secs(54);
/// How long a tree is watched that goes on beside its successor.
const WATCH: Duration = Duration::from_secs(5);
/// An attack ends by itself after so many seconds: later than it is watched, and for a bomb as early as can be.
const SECONDS: u32 = 120;
const SECONDS_OF_A_BOMB: u32 = 60;

/// A bomb has the machine to itself, and so has a story about scarce processors.
static MACHINE: RwLock<()> = RwLock::new(());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    /// In a directory: held as long as one of our processes lives.
    File,
    /// On a server, with a lease of 6 s unless the attack says otherwise.
    Redis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// SIGTERM to leaderrun.
    Asked,
    /// Nothing passes between the leader and its store.
    CutOff,
    /// The same, and SIGSTOP to the guard.
    CutOffWithAFrozenGuard,
    /// The same, and SIGSTOP to guard and backstop at once.
    CutOffWithFrozenHelpers,
    /// SIGKILL to everything that has the shard in its command line.
    KilledByName,
    /// SIGKILL to candidate, backstop and guard at once.
    AllKilled,
    /// SIGKILL to everything in the cgroup that leaderrun was started in, all at once (cgroup.kill).
    ServiceKilled,
    /// SIGSTOP to candidate, backstop and guard at once.
    AllFrozen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Root,
    Somebody,
    /// Root, and COMMAND a user of its own, of whom there may be 600 processes.
    RootAndSomebody,
}

/// What COMMAND does, and where.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// One of `programs`, and its words.
    program: &'static str,
    words: &'static [&'static str],
    user: User,
    /// More words for `programs/host.c`.
    host: &'static [&'static str],
    bomb: bool,
    /// No other story is told meanwhile.
    alone: bool,
    /// Where the lease is on a server.
    lease: Duration,
    /// It can be seen at the start that the tree could not be killed: then leaderrun may end with 71.
    refusable: bool,
}

impl Attack {
    pub const fn of(program: &'static str, words: &'static [&'static str]) -> Self {
        Self {
            program,
            words,
            user: User::Root,
            host: &[],
            bomb: false,
            alone: false,
            lease: Duration::from_secs(6),
            refusable: false,
        }
    }

    pub const fn by(self, user: User) -> Self {
        Self { user, ..self }
    }

    pub const fn on(self, host: &'static [&'static str]) -> Self {
        Self { host, ..self }
    }

    pub const fn under(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    pub const fn bomb(self) -> Self {
        Self { bomb: true, ..self }.alone()
    }

    pub const fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// The attack alone may end the leadership then, before anything else does.
    fn is_throttled(&self) -> bool {
        self.host.iter().any(|word| word.starts_with("quota="))
    }

    pub const fn refusable(self) -> Self {
        Self { refusable: true, ..self }
    }
}

impl Event {
    fn named(name: &str) -> Self {
        match name {
            "is_stopped" => Self::Asked,
            "is_cut_off" => Self::CutOff,
            "is_cut_off_with_a_frozen_guard" => Self::CutOffWithAFrozenGuard,
            "is_cut_off_with_frozen_helpers" => Self::CutOffWithFrozenHelpers,
            "it_is_killed_by_name" => Self::KilledByName,
            "all_of_ours_are_killed" => Self::AllKilled,
            "the_service_is_killed" => Self::ServiceKilled,
            "all_of_ours_are_frozen" => Self::AllFrozen,
            _ => panic!("{name} is no event"),
        }
    }

    /// A lease in a directory outlasts any cut, and any freeze.
    fn store(self) -> Store {
        match self {
            Self::CutOff | Self::CutOffWithAFrozenGuard | Self::CutOffWithFrozenHelpers | Self::AllFrozen => {
                Store::Redis
            }
            Self::Asked | Self::KilledByName | Self::AllKilled | Self::ServiceKilled => Store::File,
        }
    }
}

/// Two candidates, each on a host of its own.
struct Story {
    scratch: TempDir,
    store: Store,
    /// Between the first candidate and its store.
    way: Option<Proxy>,
    lease: Duration,
    method: &'static str,
    /// A user and a shard that no other story has.
    number: u32,
    first: Host,
    firsts: Life,
}

/// What was seen of the first tree when the second candidate led.
struct Seen {
    /// When the second tree began, if it did.
    next: Option<BootInstant>,
    /// Something of the first one was left then.
    left: bool,
    /// And this much later.
    left_for_good: bool,
}

/// Tells it, and checks what must hold: 0 ms of overlap, nothing left, and the next leader starts. `method` is what
/// `--contain` takes.
pub fn tell(attack: Attack, method: &'static str, event: &str) {
    let event = Event::named(event);
    let store = event.store();
    let (alone, shared);
    if attack.alone {
        alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        let _ = &alone;
    } else {
        shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        let _ = &shared;
    }
    let scene = Story::begin(attack, method, store, event);
    if attack.bomb {
        // Else this thread does not get its turn beside it. What it starts has the usual priority.
        let _ = leaderrun::internals::sys::Scheduling::real_time(1).set_policy();
    }
    let runs_or_ended = || scene.firsts.first().is_some() || scene.first.ended().is_some();
    wait_until_or("the first command runs", || scene.first.log(), runs_or_ended);
    if attack.refusable && scene.first.ended() == Some(71) {
        return scene.judge_refusal();
    }
    assert!(scene.firsts.first().is_some(), "it ended with {:?}\n{}", scene.first.ended(), scene.first.log());
    let (second, seconds) = scene.start_second();
    scene.attack(attack.is_throttled());
    let begun = Instant::now();
    scene.strike(event);
    let seen = scene.watch(&seconds);
    let mut wrong = scene.judge(event, &seen, begun.elapsed());
    if let Some(next) = seen.next {
        println!(
            "{attack:?} {method} {store:?}: {:?} from the last sign of life to the next leader, {} processes made",
            next.since(scene.firsts.last()),
            scene.firsts.births()
        );
    }
    if event == Event::Asked && wrong.is_empty() {
        let asked = Instant::now();
        while scene.first.ended().is_none() && asked.elapsed() < PATIENCE {
            sleep(Duration::from_millis(5));
        }
        if scene.first.ended().is_none() {
            wrong.push_str("the first candidate does not end; ");
        }
    }
    assert!(
        wrong.is_empty(),
        "{attack:?}, {method}, {store:?}, {event:?}: {wrong}{} processes were made\n{}\n{}",
        scene.firsts.births(),
        scene.first.log(),
        second.log()
    );
}

impl Story {
    /// Starts the first candidate. Its attack waits.
    fn begin(attack: Attack, method: &'static str, store: Store, event: Event) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scratch = TempDir::new().expect("a scratch directory");
        open_to_all(scratch.path());
        let firsts = Life::at(scratch.path().join("first.life"));
        let user = 61_000 + number;
        let mut host: Vec<String> = attack.host.iter().map(ToString::to_string).collect();
        let mut words: Vec<String> = Vec::new();
        match attack.user {
            User::Root => {}
            User::Somebody => host.push(format!("uid={user}")),
            User::RootAndSomebody => {
                words.extend(["prlimit", "--nproc=600", "setpriv", "--clear-groups"].map(str::to_owned));
                words.extend([format!("--reuid={user}"), format!("--regid={user}")]);
            }
        }
        if method == "cgroup" || event == Event::ServiceKilled {
            host.push(format!("cgroup=leaderrun-attack-{}-{number}", std::process::id()));
        }
        words.push(program(attack.program));
        words.extend(attack.words.iter().map(ToString::to_string));
        let way = (store == Store::Redis).then(|| Proxy::to(redis()));
        if store == Store::File {
            let directory = scratch.path().join("store");
            std::fs::create_dir(&directory).expect("a directory can be made");
            let owner = (attack.user == User::Somebody).then_some(user);
            std::os::unix::fs::chown(&directory, owner, owner).expect("root gives it away");
        }
        let url = url(&scratch, way.as_ref());
        let seconds = if attack.bomb { SECONDS_OF_A_BOMB } else { SECONDS };
        let environment = environment(&firsts, seconds);
        let words = candidate("first", &url, attack.lease, number, &["--contain", method], &words);
        let first = Host::start(scratch.path(), "first", LEADERRUN, &host, &words, &environment);
        Self { scratch, store, way, lease: attack.lease, method, number, first, firsts }
    }

    /// Starts the second candidate, as root, and waits until it knows who leads.
    fn start_second(&self) -> (Host, Life) {
        self.start_second_where(|host, _| host.log().contains("waiting: "))
    }

    fn start_second_where(&self, has_come: impl Fn(&Host, &Life) -> bool) -> (Host, Life) {
        let life = Life::at(self.scratch.path().join("second.life"));
        life.go();
        let direct = (self.store == Store::Redis).then(redis);
        let url = direct.map_or_else(|| url(&self.scratch, None), |address| format!("redis://{address}"));
        let words = candidate("second", &url, self.lease, self.number, &[], &[program("quiet")]);
        let host = Host::start(self.scratch.path(), "second", LEADERRUN, &[], &words, &environment(&life, SECONDS));
        let logs = || format!("{}\n{:?} {}", host.log(), self.first.ended(), self.first.log());
        wait_until_or("the second candidate has come so far", logs, || has_come(&host, &life));
        (host, life)
    }

    /// Lets the attack begin, and waits until it has. It may itself end the leadership: a guard that the kernel lets run
    /// every nine seconds cannot keep a lease of fifteen.
    fn attack(&self, may_lose: bool) {
        self.firsts.go();
        let has_lost = || may_lose && self.first.log().contains("lost: ");
        let has_begun = || self.firsts.progress() != Progress::Beginning || has_lost();
        wait_until_or("the attack has begun", || self.first.log(), has_begun);
        // Where the kernel gives the attack a namespace of its own, it may find nothing to attack.
        let finds_something = self.method != "pidns";
        assert!(
            !finds_something || self.firsts.progress() == Progress::Attacking || has_lost(),
            "{}",
            self.first.log()
        );
    }

    fn strike(&self, event: Event) {
        let cut_off = || self.way.as_ref().expect("a server is far away").set(NetworkFault::Partition);
        match event {
            Event::Asked => self.first.signal(Signal::SIGTERM),
            Event::CutOff => cut_off(),
            Event::CutOffWithAFrozenGuard => {
                freeze(&self.first.keepers()[1..2]);
                cut_off();
            }
            Event::CutOffWithFrozenHelpers => {
                freeze(&self.first.keepers()[..2]);
                cut_off();
            }
            Event::KilledByName => {
                self.first.keepers();
                self.first.kill_by_line(&shard(self.number));
            }
            Event::AllKilled => {
                let keepers = self.first.keepers();
                // One after another, but none of them does anything in between.
                freeze(&keepers);
                for pid in keepers {
                    let _ = kill(pid, Signal::SIGKILL);
                }
            }
            Event::ServiceKilled => self.first.kill_group(),
            Event::AllFrozen => freeze(&self.first.keepers()),
        }
    }

    fn watch(&self, seconds: &Life) -> Seen {
        let begun = Instant::now();
        while seconds.first().is_none() && begun.elapsed() < PATIENCE + self.lease {
            sleep(Duration::from_millis(1));
        }
        let left = !self.firsts.is_over();
        let begun = Instant::now();
        while !self.firsts.is_over() && begun.elapsed() < WATCH {
            sleep(Duration::from_millis(5));
        }
        Seen { next: seconds.first(), left, left_for_good: !self.firsts.is_over() }
    }

    /// What is wrong with it; nothing is the empty text.
    fn judge(&self, event: Event, seen: &Seen, took: Duration) -> String {
        let mut wrong = String::new();
        let last = self.firsts.last();
        match seen.next {
            None => write!(wrong, "no next leader in {took:?}; "),
            Some(next) if last >= next => write!(wrong, "{:?} of overlap; ", last.since(next)),
            Some(next) if next >= self.firsts.until() => write!(wrong, "the attack ended by itself; "),
            Some(_) => Ok(()),
        }
        .expect("text can be written");
        if seen.left_for_good {
            write!(wrong, "still alive {WATCH:?} later; ").expect("text can be written");
        }
        // There the kernel kills what is left, and frees the lease before the last of it is gone. What still ran then
        // is overlap all the same.
        let by_the_kernel = match event {
            Event::ServiceKilled => true,
            Event::AllKilled => self.method == "pidns",
            Event::Asked
            | Event::CutOff
            | Event::CutOffWithAFrozenGuard
            | Event::CutOffWithFrozenHelpers
            | Event::KilledByName
            | Event::AllFrozen => false,
        };
        if seen.left && !seen.left_for_good && !by_the_kernel {
            wrong.push_str("something was left; ");
        }
        wrong
    }

    /// Nothing ran, nothing was acquired, and somebody was told why.
    fn judge_refusal(&self) {
        assert!(self.firsts.first().is_none(), "the command ran");
        let (second, seconds) = self.start_second_where(|_, life| life.first().is_some());
        assert!(seconds.first().is_some(), "{}", second.log());
        let log = self.first.log();
        assert!(log.lines().last().is_some_and(|line| line.contains("/proc")), "{log}");
        assert!(!log.contains("leading"), "{log}");
    }
}

fn freeze(processes: &[Pid]) {
    for &pid in processes {
        let _ = kill(pid, Signal::SIGSTOP);
    }
}

fn environment(life: &Life, seconds: u32) -> [(&'static str, String); 2] {
    [("ATTACK_LIFE", life.path().to_str().expect("text").to_owned()), ("ATTACK_SECONDS", seconds.to_string())]
}

fn url(scratch: &TempDir, way: Option<&Proxy>) -> String {
    match way {
        Some(way) => format!("redis://{}", way.address),
        None => format!("file:{}", scratch.path().join("store").display()),
    }
}

fn candidate(
    owner: &str,
    url: &str,
    lease: Duration,
    number: u32,
    contain: &[&str],
    command: &[String],
) -> Vec<String> {
    let lease = format!("{lease:?}");
    let timing =
        if url.starts_with("redis") { &["--lease", &lease, "--renew", "1s", "--retry", "1s"][..] } else { &[] };
    let flags =
        [&["-v", "--owner", owner, "--store", url, "--kill-after", "1s", "--stop-timeout", "1s"], timing, contain]
            .concat();
    let mut words: Vec<String> = flags.into_iter().map(str::to_owned).collect();
    words.extend([shard(number), "--".to_owned()]);
    words.extend(command.iter().cloned());
    words
}

fn shard(number: u32) -> String {
    format!("attack-{}-{number}", std::process::id())
}

/// Of one server for all stories.
fn redis() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        let mut server = Server::forgetful();
        prepare(&server);
        server.grow_old();
        server
    });
    server.address()
}
