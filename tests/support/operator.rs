//! Operators who give random orders with the real leaderctl during a story. Some of their verbs are killed half-way.
//!
//! Their orders are drawn from a seed; the results depend on the moment. So an answer is compared only with the facts
//! that the manual documents for every answer.

use super::fleet::leaderctl;
use super::random::Random;
use super::server::Server;
use leaderrun::internals::time::BootInstant;
use serde_json::{Deserializer, Value};
use std::fmt;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// No verb is told to wait for longer than [`MOST_WAIT`], and each request takes a second at most; the rest is for a
/// machine that is busy.
const LONGEST: Duration = Duration::from_secs(45);
const MOST_WAIT: &str = "3s";
const REQUEST_TIMEOUT: &str = "1s";
/// As documented: done, the store is away, not as things stand.
const STATUSES: [i32; 4] = [0, 66, 69, 75];

/// What somebody ordered.
#[derive(Clone, Debug)]
pub struct Order {
    /// By the clock of the stamps.
    pub at: u64,
    pub words: Vec<String>,
    /// None when it was killed half-way.
    pub status: Option<i32>,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.map_or("killed".to_owned(), |status| status.to_string());
        write!(f, "{} {}: {status}", self.at, self.words.join(" "))
    }
}

impl Order {
    /// Whether it may have changed something.
    pub fn steers(&self) -> bool {
        let steers = ["pause", "resume", "step-down", "revoke"].contains(&self.words[0].as_str());
        steers && self.status.is_none_or(|status| status == 0)
    }
}

/// Orders until it is told that it is enough, or dropped.
pub struct Operator {
    enough: Arc<AtomicBool>,
    at_work: Option<JoinHandle<Vec<Order>>>,
}

impl Operator {
    /// Whose way to the store has no faults but the server's own.
    pub fn of(server: &dyn Server, shard: &'static str, seed: u64) -> Self {
        let console = Console { url: server.own_url(), environment: server.environment(), shard };
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        let at_work = Some(spawn(move || {
            let mut random = Random::new(seed);
            let mut orders = Vec::new();
            while !told.load(Ordering::Relaxed) {
                sleep(random.millis(50, 700));
                orders.push(console.order(&mut random));
            }
            orders
        }));
        Self { enough, at_work }
    }

    /// All that it ordered. Panics where an answer was not one of those that are documented.
    pub fn enough(mut self) -> Vec<Order> {
        self.enough.store(true, Ordering::Relaxed);
        let orders = self.at_work.take().map(JoinHandle::join);
        orders.expect("it is asked once").unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

struct Console {
    url: String,
    environment: &'static [(&'static str, &'static str)],
    shard: &'static str,
}

impl Console {
    fn order(&self, random: &mut Random) -> Order {
        let words = self.draw(random);
        let killed_after = random.per_mille(100).then(|| random.millis(1, 80));
        let at = BootInstant::now().as_nanos();
        let status = self.run(&words, killed_after);
        Order { at, words, status }
    }

    /// A verb with its flags.
    fn draw(&self, random: &mut Random) -> Vec<String> {
        let seconds = format!("{}s", random.between(1, 6));
        let somebody = random.one_of(&["c0", "c1", "c2", "nobody"]);
        let chance = |random: &mut Random, flags: &[&str]| {
            if random.below(2) == 0 { Vec::new() } else { flags.iter().map(|flag| (*flag).to_owned()).collect() }
        };
        let wait = format!("--wait={MOST_WAIT}");
        let mut words = match random.below(12) {
            0 | 1 => {
                let how = random.one_of(&["--keep", &wait, "--reason=a 'good' reason"]);
                let lasts = chance(random, &["--for", &seconds]);
                [vec!["pause".to_owned()], lasts, chance(random, &["--force"]), chance(random, &[how])].concat()
            }
            2..=4 => [vec!["resume".to_owned()], chance(random, &["--force"])].concat(),
            5 | 6 => {
                let hold = vec!["step-down".to_owned(), "--for".to_owned(), seconds];
                [hold, chance(random, &["--to", somebody]), chance(random, &[&wait])].concat()
            }
            7 | 8 => {
                let how = random.one_of(&["--force", "--for=3s"]);
                match self.term() {
                    Some(term) => ["revoke", how, "--term", &term].map(str::to_owned).to_vec(),
                    None => vec!["status".to_owned()],
                }
            }
            9 => [vec!["status".to_owned()], chance(random, &["--standbys"])].concat(),
            10 => vec![random.one_of(&["why", "history"]).to_owned()],
            _ => [vec!["list".to_owned()], chance(random, &["--standbys"])].concat(),
        };
        words.extend(chance(random, &["--json"]));
        words.push(self.shard.to_owned());
        words
    }

    /// That leads now.
    fn term(&self) -> Option<String> {
        let output = self.command(&["status", "--json", self.shard]).output().expect("leaderctl starts");
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        status["term"].as_u64().map(|term| term.to_string())
    }

    fn command<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Command {
        let mut command = leaderctl();
        command.args(["--request-timeout", REQUEST_TIMEOUT, "--store", &self.url]).args(words);
        command.envs(self.environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// None when it was killed half-way.
    fn run(&self, words: &[String], killed_after: Option<Duration>) -> Option<i32> {
        let mut child = self.command(words).spawn().expect("leaderctl starts");
        let (begun, mut ended) = (Instant::now(), None);
        while ended.is_none() {
            sleep(Duration::from_millis(5));
            if killed_after.is_some_and(|after| begun.elapsed() >= after) {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            if begun.elapsed() > LONGEST {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{words:?} did not end within {LONGEST:?}");
            }
            ended = child.try_wait().expect("it can be waited for");
        }
        let (told, said) = spoken(&mut child);
        let status = ended.and_then(|status| status.code());
        let documented = status.is_some_and(|status| STATUSES.contains(&status));
        assert!(documented, "{words:?} ended with {ended:?}: {told}{said}");
        assert!(said.lines().all(|line| line.starts_with("leaderctl: ")), "{words:?}: {said}");
        let verb = words[0].as_str();
        if status == Some(0) {
            assert!(!told.is_empty() || ["list", "history"].contains(&verb), "{words:?} says nothing: {said}");
        } else {
            // What candidates here know is told without the store, too.
            assert!(!said.is_empty() && (told.is_empty() || verb == "why"), "{words:?}: {status:?}: {told}{said}");
        }
        if words.iter().any(|word| word == "--json") {
            for object in Deserializer::from_str(&told).into_iter::<Value>() {
                assert!(object.is_ok_and(|object| object.is_object()), "{words:?}: {told}");
            }
        }
        status
    }
}

fn spoken(child: &mut Child) -> (String, String) {
    let (mut told, mut said) = (String::new(), String::new());
    child.stdout.take().expect("it is piped").read_to_string(&mut told).expect("it is text");
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
    (told, said)
}
