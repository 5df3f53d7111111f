//! Where histories are made: one real server, and candidates that each have a thread, a store and a network of their
//! own.
//!
//! The hazard: histories are only worth something if calls overlap. So candidates run on threads (the store `file:`
//! never waits, and on one thread each call would be over before the next), and begin each history together.

use super::candidate::{Length, Plan, Player, Seat};
use super::checker::NEVER;
use super::history::{Event, Found, History};
use super::lease::Leeway;
use crate::support::gate::Gate;
use crate::support::note::note;
use crate::support::random::Random;
use crate::support::server::{self, Server};
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::{Location, parallel};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier, PoisonError, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const CANDIDATES: usize = 4;
const CALLS: usize = 12;
/// No lease ends in most histories.
const LONG: Duration = Duration::from_mins(10);
/// In some, leases end.
const SHORT: Duration = Duration::from_secs(1);
/// How long one of those takes, how many of them run at once, and one of how many rounds is one of them.
const SHORT_TIME: Duration = Duration::from_secs(5);
const SHORT_SHARDS: usize = 8;
const ROUNDS: u64 = 60;
/// At most one of so many histories may be left undecided.
const MOST_UNDECIDED: usize = 200;

/// What a process starts has all of its open files for an instant, and with them the locks of `file:`.
static STARTING: RwLock<()> = RwLock::new(());

pub struct Stage {
    pub name: &'static str,
    pub leeway: Leeway,
    /// None for a directory.
    pub start: Option<fn() -> Box<dyn Server>>,
}

/// The plans of some shards on which histories are made at the same time.
struct Round {
    plans: Vec<Plan>,
    together: Barrier,
}

type Script = (mpsc::Sender<Arc<Round>>, mpsc::Receiver<Vec<Vec<Event>>>);

/// What was tried.
#[derive(Default)]
struct Sums {
    histories: usize,
    operations: usize,
    open: usize,
    /// Of the histories, those whose search was given up: too many of their calls had no answer.
    undecided: usize,
}

impl Sums {
    fn tell(&self, store: &str, violations: usize) {
        let Self { histories, operations, open, undecided } = self;
        println!(
            "{store}: {histories} histories, {operations} operations, {open} of them not answered; {undecided} not decided"
        );
        note(&format!("linearizable\t{store}\t{histories}\t{operations}\t{open}\t{violations}\t{undecided}"));
    }
}

impl Stage {
    /// Makes histories for so long, and fails with the transcript of the first one that is not linearizable.
    pub fn run(&self, seed: u64, time: Duration) {
        println!("{}: TEST_LINEARIZABLE_SEED={seed}", self.name);
        let scratch = tempfile::TempDir::new().expect("a scratch directory");
        let mut server = None;
        let _alone = match self.start {
            Some(start) => {
                let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
                server::prepare(&**server.insert(start()));
                server.as_mut().expect("it is there").grow_old();
                vouch(server.as_deref().expect("it is there"));
                None
            }
            None => Some(STARTING.write().unwrap_or_else(PoisonError::into_inner)),
        };
        let url = format!("file:{}", scratch.path().join("store").display());
        let seats: Vec<Script> = (0..CANDIDATES).map(|me| take_seat(me, server.as_deref(), &url)).collect();
        let (begun, mut sums, mut waiting) = (Instant::now(), Sums::default(), None::<(Arc<Round>, _)>);
        for number in 0.. {
            let more = begun.elapsed() < time || number == 0;
            let next = more.then(|| {
                let round = Arc::new(self.round(seed.wrapping_add(number), number));
                for (orders, _) in &seats {
                    orders.send(Arc::clone(&round)).expect("nobody panicked");
                }
                round
            });
            // Judged while the next one is made.
            if let Some((round, events)) = waiting.take() {
                self.judge(&round, events, &mut sums);
            }
            let Some(round) = next else { break };
            let events = seats.iter().map(|(_, done)| done.recv().expect("nobody panicked")).collect::<Vec<_>>();
            waiting = Some((round, events));
        }
        sums.tell(self.name, 0);
        let Sums { histories, undecided, .. } = sums;
        // A slow machine makes few of them.
        let most = histories.div_ceil(MOST_UNDECIDED);
        assert!(undecided <= most, "{undecided} of {histories} histories were not decided");
    }

    fn round(&self, seed: u64, number: u64) -> Round {
        let mut random = Random::new(seed);
        let ends = !self.leeway.is_of_kernel && number % ROUNDS == 1;
        let shards = if ends { SHORT_SHARDS } else { 1 };
        let is_disturbed = self.start.is_some() && random.per_mille(700);
        let plans = (0..shards).map(|shard| Plan {
            seed: seed.wrapping_add(shard as u64 * 1_000_003),
            shard: format!("h/{number}/{shard}").parse().expect("a shard"),
            lease: if ends { SHORT } else { LONG },
            sessions: (0..CANDIDATES).map(|_| Session::random().expect("random bytes")).collect(),
            present: 2 + random.below(CANDIDATES - 1),
            is_disturbed,
            revokes: !self.leeway.is_of_kernel && random.per_mille(500),
            length: if ends { Length::Time(SHORT_TIME) } else { Length::Calls(CALLS) },
            term: AtomicU64::new(1),
        });
        Round { plans: plans.collect(), together: Barrier::new(CANDIDATES) }
    }

    fn judge(&self, round: &Round, mut events: Vec<Vec<Vec<Event>>>, sums: &mut Sums) {
        for (index, plan) in round.plans.iter().enumerate() {
            let events: Vec<Event> = events.iter_mut().flat_map(|of_one| std::mem::take(&mut of_one[index])).collect();
            sums.histories += 1;
            sums.operations += events.len();
            sums.open += events.iter().filter(|event| event.ended.unwrap_or(NEVER) == NEVER).count();
            let history =
                History { seed: plan.seed, shard: plan.shard.to_string(), events, is_disturbed: plan.is_disturbed };
            match history.judge(self.leeway) {
                Found::Nothing => {}
                Found::Undecided => sums.undecided += 1,
                Found::Violation(transcript) => {
                    sums.tell(self.name, 1);
                    panic!("{}: not linearizable: {transcript}", self.name)
                }
            }
        }
    }
}

/// Says that nobody has used the store before. Or else each first leader waits for a lease that may have been forgotten,
/// and that hides whether anybody waits for one that was revoked.
fn vouch(server: &dyn Server) {
    let location = Location::from_url(&server.own_url()).expect("a URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let vouched = runtime.block_on(async { location.open(Duration::from_secs(10)).await?.vouch().await });
    vouched.expect("it can be written");
}

/// A thread with a candidate of its own.
fn take_seat(me: usize, server: Option<&dyn Server>, directory: &str) -> Script {
    let network = server.map(|server| Gate::to(server.address()));
    let url = match (server, &network) {
        (Some(server), Some(network)) => server.url(network.address),
        _ => directory.to_owned(),
    };
    let (orders, ordered) = mpsc::channel::<Arc<Round>>();
    let (done, finished) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let location = Location::from_url(&url).expect("a URL");
            let store = location.open(Duration::from_secs(3)).await.expect("it can be opened");
            let seat = Seat { store, network };
            while let Ok(round) = ordered.recv() {
                round.together.wait();
                let plays = round.plans.iter().map(|plan| Player::new(&seat, plan, me).play());
                let events = parallel::all(plays).await;
                if done.send(events).is_err() {
                    return;
                }
            }
        });
    });
    (orders, finished)
}
