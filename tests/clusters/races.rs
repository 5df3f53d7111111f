//! Claims at once, on NATS, for a bucket that three servers keep: one write over a revision is acknowledged, and no other.

use crate::nats::Nats;
use crate::support::claims::with_lease;
use crate::support::fleet::PATIENCE;
use crate::support::network::{Network, tell};
use crate::{HOSTS, prepared};
use leaderrun::internals::lease::Term;
use leaderrun::internals::store::{Claim, Location, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    stores[0].vouch().await.expect("nobody has used it");
    let mut last = Term(0);
    for race in 0..100 {
        // A lease that outlasts the race, however slow the machine.
        let candidates: Vec<_> =
            (0..stores.len()).map(|index| with_lease(&format!("c{index}"), Duration::from_mins(5))).collect();
        // Nobody has to look any more, so all of them write at once.
        for store in &stores {
            let begun = Instant::now();
            while let Err(error) = store.observe(&candidates[0].shard).await {
                assert!(begun.elapsed() < PATIENCE, "{error}");
            }
        }
        let mut claims = tokio::task::JoinSet::new();
        for (index, (store, candidate)) in stores.iter().zip(&candidates).enumerate() {
            let (store, candidate) = (Arc::clone(store), candidate.clone());
            claims.spawn(async move {
                let begun = Instant::now();
                loop {
                    match store.claim(&candidate).await {
                        Ok(claim) => return (index, claim),
                        Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
                    }
                }
            });
        }
        let claims = claims.join_all().await;
        let winners: Vec<_> = claims
            .iter()
            .filter_map(|(index, claim)| match claim {
                Claim::Granted(grant) => Some((*index, grant.term)),
                Claim::Refused(_) => None,
            })
            .collect();
        let [(winner, term)] = winners[..] else { panic!("race {race}: {winners:?}") };
        assert!(term > last, "race {race}: term {term} after {last}");
        last = term;
        stores[winner].release(&candidates[winner], term).await.expect("the store answers");
    }
}
