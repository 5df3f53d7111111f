//! Fleets: many candidates of one shard, many shards on one table, and what they ask of the store.
//!
//! The hazard: what is cheap for three hosts is a stampede for a thousand. Candidates that wait for the same instant,
//! because they saw the same record, all ask in it.

use crate::clock::{self, Clock, TRUE, elapsed};
use crate::host::{Machine, Open, Site, until};
use crate::network::{Load, Network};
use crate::random::Random;
use crate::running::Temper;
use crate::story::Kind;
use crate::world::World;
use leaderrun::internals::election::Settings;
use leaderrun::internals::lease::{Shard, Timing, TimingRequest};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Requests by the tenth of a second.
pub type Loads = BTreeMap<u64, Load>;

/// So many candidates share one client of the store, as those of one host would that are threads of one program. It
/// keeps ten thousand shards within a machine's memory, and changes no request.
const TO_A_CLIENT: usize = 200;

/// Some shards, each with as many candidates as it should have, over a network and a store in good order.
pub struct Fleet {
    pub network: Network,
    pub worlds: Vec<World>,
    machines: Vec<Arc<Machine>>,
}

impl Fleet {
    /// Candidates start one after another within `spread`, the first of each shard before the others.
    pub async fn start(kind: Kind, shards: usize, candidates: usize, spread: Duration) -> Self {
        let mut random = Random::new(1);
        let timing = Timing::new(TimingRequest::default()).expect("it fits");
        let (network, documents) = (Network::new(Random::new(2)), kind.documents());
        documents.prepare(true);
        let settings = Settings::new(timing, true, documents.delivery());
        let worlds: Vec<World> = (0..shards).map(|_| World::default()).collect();
        let clients = 0..(shards * candidates).div_ceil(TO_A_CLIENT);
        let clients: Vec<_> = clients.map(|client| documents.open(client, network.clone(), World::default())).collect();
        let open: Open = Arc::new(move |host| Arc::clone(&clients[host / TO_A_CLIENT]));
        let mut machines = Vec::new();
        for round in 0..candidates {
            for (shard, world) in worlds.iter().enumerate() {
                let clock = Clock { ppm: i64::try_from(random.between(0, 200)).expect("small") - 100, ..TRUE };
                let shard: Shard = format!("shard-{shard}").parse().expect("a shard");
                let (seed, temper) = (Random::new(random.next()), Some(Temper::steady()));
                let (index, world, open) = (machines.len(), world.clone(), Arc::clone(&open));
                let machine =
                    Machine::new(Site { index, clock, shard, settings, world, open, announces: false, temper }, seed);
                machines.push(Arc::clone(&machine));
                let spread = u64::try_from(spread.as_millis()).expect("not so long");
                let wait =
                    if round == 0 { random.millis(0, spread / 2) } else { random.millis(spread * 3 / 5, spread) };
                tokio::spawn(async move {
                    sleep(wait).await;
                    machine.serve().await;
                });
            }
        }
        let fleet = Self { network, worlds, machines };
        sleep(spread).await;
        let all_led = || fleet.worlds.iter().all(World::somebody_leads);
        assert!(until(Duration::from_mins(1), all_led).await, "not all shards are led");
        fleet
    }

    /// What arrives in the next `time`.
    pub async fn watch(&self, time: Duration) -> Loads {
        let from = tenth(elapsed());
        sleep(time).await;
        self.network.load().range(from..tenth(elapsed())).map(|(&tenth, &load)| (tenth, load)).collect()
    }

    /// The host that leads the first shard is gone for good, with all that runs there.
    pub fn lose_a_leader(&self) {
        self.machines[self.worlds[0].alive()[0]].suspend();
    }
}

fn tenth(time: Duration) -> u64 {
    u64::try_from(time.as_millis() / 100).expect("not so long")
}

pub fn sum(loads: &Loads) -> Load {
    loads
        .values()
        .fold(Load::default(), |sum, load| Load { reads: sum.reads + load.reads, writes: sum.writes + load.writes })
}

/// What arrived in the busiest second, and in the busiest tenth of that.
pub fn busiest_second(loads: &Loads) -> (u64, u64) {
    let at = |tenth: u64| loads.get(&tenth).map_or(0, |load| load.reads + load.writes);
    let seconds = loads.keys().map(|&from| {
        let tenths = (from..from + 10).map(at);
        (tenths.clone().sum::<u64>(), tenths.max().unwrap_or(0))
    });
    seconds.max().unwrap_or_default()
}

/// Does something in the time of a simulation.
pub fn simulate<T>(act: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        clock::begin();
        act.await
    })
}
