//! One story: some hosts, one shard, and everything that can go wrong, as a seed has it.

use crate::clock::{self, Clock, EPOCH_MILLIS, elapsed};
use crate::documents::Documents;
use crate::host::{Machine, Open, Site, Target, until};
use crate::leadership::Link;
use crate::memory::Style;
use crate::network::{Network, Way};
use crate::operator::Operator;
use crate::random::Random;
use crate::world::{Record, World};
use leaderrun::internals::election::{OnLoss, Restart, RestartWhen, Settings};
use leaderrun::internals::lease::{Shard, Timing, TimingRequest};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `store::lease_store` over documents on a server that renews by itself, and may restart with what a replica has.
    Scripted,
    /// `store::lease_store` over documents on a server that can only compare.
    Comparing,
    /// `store::lease_store` over documents that other programs write too, as in DynamoDB.
    Shared,
    /// `store::lease_store` over documents on a server that ends leases itself, as etcd.
    Leased,
    /// `store::lease_store` over documents on a server that can only compare, and pushes each of them, as NATS.
    Pushing,
    /// The same, where other programs write them too, as in Kubernetes.
    SharedPushing,
}

impl Kind {
    /// The store, as it stands behind the network.
    pub fn documents(self) -> Arc<Documents> {
        Documents::new(match self {
            Self::Scripted => Style::SCRIPTED,
            Self::Comparing => Style::COMPARING,
            Self::Shared => Style::SHARED,
            Self::Leased => Style::LEASED,
            Self::Pushing => Style::PUSHING,
            Self::SharedPushing => Style::SHARED_PUSHING,
        })
    }
}

/// How a story went.
pub struct Told {
    pub kind: Kind,
    pub seed: u64,
    pub record: Record,
}

/// Tells the story of a seed, always the same one.
pub fn tell(kind: Kind, seed: u64) -> Told {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        clock::begin();
        let mut story = Story::begin(kind, seed);
        story.unfold().await;
        Told { kind, seed, record: story.world.take() }
    })
}

struct Story {
    random: Random,
    world: World,
    network: Network,
    documents: Arc<Documents>,
    machines: Vec<Arc<Machine>>,
    operator: Arc<Operator>,
    timing: Timing,
    /// The last term may be above what a clock shows, so it counts only while the store remembers it.
    terms_are_ahead: bool,
    /// Faults strike until then, and are over by then.
    quiet_from: Duration,
}

impl Story {
    fn begin(kind: Kind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let lease = random.one_of(&[4, 6, 15]);
        let seconds = |parts: u64, of: u64| Duration::from_millis(lease * 1000 * parts / of);
        let timing = Timing::new(TimingRequest {
            lease: seconds(1, 1),
            renew_interval: seconds(1, random.between(4, 6)),
            retry_interval: random.millis(300, 2_000),
            stop_grace: seconds(1, random.between(4, 8)),
            ..TimingRequest::default()
        })
        .expect("it fits");
        let (world, documents) = (World::default(), kind.documents());
        clock::slew_the_store(clock::any_rate(&mut random));
        let network = Network::new(Random::new(random.next()));
        network.set_rough(true);
        documents.prepare(random.per_mille(500));
        let settings = Settings {
            on_loss: random.one_of(&[OnLoss::Standby, OnLoss::Exit]),
            stop_timeout: random.one_of(&[None, Some(Duration::from_secs(3))]),
            restart: random.per_mille(600).then(|| Restart {
                when: RestartWhen::Always,
                limit: random.one_of(&[0, 1, 3]),
                delay: random.millis(100, 3_000),
                healthy: random.one_of(&[Duration::ZERO, Duration::from_secs(10), Duration::from_mins(1)]),
            }),
            relinquish_after: random.per_mille(300).then(|| random.millis(500, 30_000)),
            ..Settings::new(timing, true, documents.delivery())
        };
        let open: Open = {
            let (documents, network, world) = (documents.clone(), network.clone(), world.clone());
            Arc::new(move |host| documents.open(host, network.clone(), world.clone()))
        };
        let shard: Shard = "shard".parse().expect("a shard");
        let machines: Vec<_> = (0..usize::try_from(random.between(2, 4)).expect("few"))
            .map(|index| {
                let clock = Clock {
                    offset: random.millis(1_000, 1_000_000_000),
                    ppm: clock::any_rate(&mut random),
                    wall_millis: EPOCH_MILLIS - 86_400_000 + random.between(0, 2 * 86_400_000),
                };
                let (shard, world, open) = (shard.clone(), world.clone(), open.clone());
                let announces = index % 2 == 0;
                let site = Site { index, clock, shard, settings, world, open, announces };
                Machine::new(site, Random::new(random.next()))
            })
            .collect();
        let operator = Operator::new(machines.len(), documents.clone(), network.clone(), world.clone(), shard.clone());
        let quiet_from = random.millis(40_000, 120_000);
        // Only one host's clock has dated the terms of a server without a clock.
        let terms_are_ahead = kind == Kind::Leased;
        Self { random, world, network, documents, machines, operator, timing, terms_are_ahead, quiet_from }
    }

    async fn unfold(&mut self) {
        let serving: Vec<_> = self.machines.iter().map(|machine| tokio::spawn(Arc::clone(machine).serve())).collect();
        loop {
            tokio::time::sleep(self.random.millis(50, 6_000)).await;
            if elapsed() >= self.quiet_from || !self.world.breaches().is_empty() {
                break;
            }
            self.strike();
        }
        // Whatever struck is over by now. A message that is late may still arrive and take the lease for nobody.
        tokio::time::sleep_until(tokio::time::Instant::now() + self.quiet_from.saturating_sub(elapsed())).await;
        self.network.set_rough(false);
        self.world.say("quiet");
        tokio::time::sleep(Duration::from_secs(20)).await;
        self.operator.resume().await;
        let world = self.world.clone();
        let bound = 3 * self.timing.lease + Duration::from_secs(10);
        if !until(bound, || world.somebody_leads() || !world.breaches().is_empty()).await {
            self.world.breach(&format!("nobody leads within {bound:?}"));
        }
        self.machines.iter().for_each(|machine| machine.close());
        let mut patience = 30;
        while serving.iter().any(|serving| !serving.is_finished()) && patience > 0 {
            // The second time it kills.
            self.machines.iter().for_each(|machine| machine.ask());
            tokio::time::sleep(Duration::from_secs(5)).await;
            patience -= 1;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let left = self.world.alive();
        if patience == 0 || !left.is_empty() {
            self.world.breach(&format!("not all ended: trees on {left:?}"));
        }
        // A task that panicked has said so.
        for serving in serving {
            if let Err(error) = serving.await {
                self.world.breach(&format!("a candidate failed: {error}"));
            }
        }
    }

    /// One fault, most often where the leader is, or one order.
    fn strike(&mut self) {
        if self.random.per_mille(150) {
            return self.operator.order(&mut self.random);
        }
        let alive = self.world.alive();
        let index = if !alive.is_empty() && self.random.per_mille(650) {
            self.random.one_of(&alive)
        } else {
            usize::try_from(self.random.between(0, self.machines.len() as u64 - 1)).expect("few")
        };
        let machine = Arc::clone(&self.machines[index]);
        let lease = u64::try_from(self.timing.lease.as_millis()).expect("not so long");
        let long = self.random.per_mille(500);
        let time = if long { self.random.millis(lease / 2, lease * 3) } else { self.random.millis(20, lease / 2) };
        let time = time.min(self.quiet_from.saturating_sub(elapsed()));
        let chance = self.random.between(0, 99);
        let (world, network) = (self.world.clone(), self.network.clone());
        let host = format!("host {index} for {:.3} s", time.as_secs_f64());
        match chance {
            0..25 => self.freeze(&machine, time),
            25..45 => self.kill(&machine),
            45..55 if !machine.is_suspended() => {
                world.fault("host suspended", &host);
                machine.suspend();
                later(time, move || {
                    world.say(&format!("host {index} resumed"));
                    machine.resume();
                });
            }
            55..75 => {
                let (kind, ways): (_, &'static [Way]) = match chance {
                    55..60 => ("requests cut off", &[Way::Requests]),
                    60..66 => ("answers cut off", &[Way::Answers]),
                    _ => ("cut off both ways", &[Way::Requests, Way::Answers]),
                };
                world.fault(kind, &host);
                network.set_cut(index, ways, true);
                later(time, move || network.set_cut(index, ways, false));
            }
            75..80 => {
                world.fault("store down", &host);
                network.set_down(true);
                later(time, move || network.set_down(false));
            }
            80..86 => {
                let most = self.random.between(100, lease);
                world.fault("store slow", &format!("up to {most} ms, {host}"));
                network.set_latency(20, most);
                later(time, move || network.set_latency(1, 8));
            }
            86..94 => {
                world.fault("asked to stop", &host);
                machine.ask();
            }
            _ => {
                let documents = Arc::clone(&self.documents);
                self.strike_documents(&documents);
            }
        }
    }

    fn strike_documents(&mut self, documents: &Documents) {
        let chance = self.random.between(0, 5);
        if chance < 4 && self.terms_are_ahead {
            self.world.forget_terms();
        }
        match chance {
            0..2 => {
                let restarts = self.random.per_mille(500);
                self.world.fault("store wiped", if restarts { "and restarted" } else { "" });
                documents.wipe(restarts);
            }
            2..4 => {
                if documents.fail_over() {
                    self.world.fault("failed over to an older copy", "");
                }
            }
            4 => {
                self.terms_are_ahead = true;
                self.world.fault("lock deleted by hand", "");
                documents.delete();
            }
            _ => documents.copy(),
        }
    }

    fn target(&mut self, machine: &Machine) -> Option<Target> {
        machine.target(|| self.random.one_of(&Link::ALL))
    }

    fn freeze(&mut self, machine: &Machine, time: Duration) {
        let Some(target) = self.target(machine).filter(|_| !machine.is_suspended()) else { return };
        let kind = match target.link {
            Link::Candidate => "candidate stopped",
            Link::Guard => "guard stopped",
            Link::Backstop => "backstop stopped",
        };
        self.world.fault(kind, &format!("host {} for {:.3} s", machine.site.index, time.as_secs_f64()));
        target.set_frozen(true);
        later(time, move || target.set_frozen(false));
    }

    fn kill(&mut self, machine: &Machine) {
        let Some(target) = self.target(machine) else { return };
        let kind = match target.link {
            Link::Candidate => "candidate killed",
            Link::Guard => "guard killed",
            Link::Backstop => "backstop killed",
        };
        self.world.fault(kind, &format!("host {}", machine.site.index));
        target.kill();
    }
}

fn later(time: Duration, act: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        act();
    });
}
