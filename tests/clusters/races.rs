//! Claims at once, on NATS, for a bucket that three servers keep: one write over a revision is acknowledged, and no other.

use crate::nats::Nats;
use crate::support::claims::one_wins_every_race;
use crate::support::network::{Network, tell};
use crate::support::prelude::*;
use crate::{HOSTS, prepared};
use leaderrun::internals::store::{Location, Store};

#[test]
fn of_eight_candidates_one_wins_every_race_for_a_replicated_bucket() {
    tell(
        HOSTS,
        concat!(module_path!(), "::of_eight_candidates_one_wins_every_race_for_a_replicated_bucket"),
        |network| races(&network),
    );
}

fn races(network: &Network) {
    let cluster = Nats::start(network);
    prepared(&*cluster);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(race_for(&cluster.url()));
}

async fn race_for(url: &str) {
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..8 {
        let location = Location::from_url(url).expect("the URL is right");
        stores.push(location.open(Duration::from_secs(10)).await.expect("it opens without a server"));
    }
    one_wins_every_race(&stores, "raced", 100).await;
}
