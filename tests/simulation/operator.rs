//! An operator: orders pauses and handovers, ends leases by force, and takes back what was ordered, over the same network.

use crate::clock::{Process, TRUE};
use crate::documents::Documents;
use crate::network::Network;
use crate::random::Random;
use crate::world::World;
use leaderrun::internals::lease::{Session, Shard};
use leaderrun::internals::notes::orders::{self, HandoverOrder, PauseOrder};
use leaderrun::internals::store::{Store, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// Of one verb, retries and all.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Operator {
    /// Not a candidate's.
    host: usize,
    documents: Arc<Documents>,
    network: Network,
    world: World,
    shard: Shard,
    hosts: u64,
}

impl Operator {
    pub fn new(hosts: usize, documents: Arc<Documents>, network: Network, world: World, shard: Shard) -> Arc<Self> {
        Arc::new(Self { host: hosts, documents, network, world, shard, hosts: hosts as u64 })
    }

    /// Orders something, now or a little later, and does not wait for it.
    pub fn order(self: &Arc<Self>, random: &mut Random) {
        let mut random = Random::new(random.next());
        let this = Arc::clone(self);
        tokio::spawn(Process::new(TRUE).run(async move {
            let store = this.store();
            match tokio::time::timeout(PATIENCE, this.carry_out(&*store, &mut random)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => this.world.say(&format!("operator: {}", error.message)),
                Err(_) => this.world.say("operator: gave up"),
            }
        }));
    }

    /// Takes back all that was ordered, for as long as that takes.
    pub async fn resume(&self) {
        let store = self.store();
        while !matches!(tokio::time::timeout(PATIENCE, orders::remove(&*store, &self.shard)).await, Ok(Ok(()))) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.world.say("operator: resumed");
    }

    fn store(&self) -> Arc<dyn Store> {
        self.documents.open(self.host, self.network.clone(), self.world.clone())
    }

    async fn carry_out(&self, store: &dyn Store, random: &mut Random) -> Result<(), StoreError> {
        let id = Session::from_record(&random.next().to_string());
        let by = "operator".to_owned();
        match random.between(0, 9) {
            0..3 => {
                let keep = random.per_mille(300);
                let left = random.per_mille(700).then(|| random.millis(1_000, 30_000));
                self.world.fault("paused", &format!("keep {keep}, for {left:?}"));
                let pause = PauseOrder { id, by, since_millis: 0, reason: None, keep, prefix: None, left };
                orders::change(store, &self.shard, |orders| {
                    orders.pause.replace(pause.clone()).as_ref() != Some(&pause)
                })
                .await?;
            }
            3..5 => {
                self.world.fault("resumed", "");
                orders::change(store, &self.shard, |orders| orders.pause.take().is_some()).await?;
            }
            5..9 => {
                let Some(holder) = store.inspect(&self.shard).await?.holder else { return Ok(()) };
                let Some(term) = holder.term else { return Ok(()) };
                // Perhaps to nobody.
                let to = random.per_mille(600).then(|| format!("host{}", random.between(0, self.hosts)));
                let hold_millis = random.between(500, 20_000);
                self.world.fault("handed over", &format!("term {term} to {to:?} for {hold_millis} ms"));
                let order = HandoverOrder { id, by, since_millis: 0, term, from: holder.session, to, hold_millis };
                orders::change(store, &self.shard, |orders| {
                    orders.handover.replace(order.clone()).as_ref() != Some(&order)
                })
                .await?;
            }
            _ => {
                let Some(term) = store.inspect(&self.shard).await?.holder.and_then(|holder| holder.term) else {
                    return Ok(());
                };
                self.world.fault("lease revoked", &format!("term {term}"));
                store.revoke(&self.shard, term).await?;
            }
        }
        Ok(())
    }
}
