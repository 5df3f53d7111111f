//! A store that has forgotten who leads: its data is gone, or somebody deleted records by hand.
//!
//! The hazard: the COMMAND of the leader that was forgotten may still run. So a store grants the lease only once that
//! leader's lease would have ended, or it grants the lease and tells the next leader to wait until then. Which of them
//! is the store's business: these stories look at when the next COMMAND may start.

use super::support::claims::{granted_in_time, wait_of};
use super::support::server::Server;
use super::{AnyServer, Bench, LEASE, does, granted, remote_bench, short};
use futures_util::future::join_all;
use leaderrun::internals::lease::Term;
use leaderrun::internals::store::{Claim, Doubt, Grant, Release, Renewal, Store, Takeover};
use std::time::{Duration, Instant};

/// Clocks of servers count in whole milliseconds, and some are set right meanwhile.
const TOLERANCE: Duration = Duration::from_millis(100);

/// Leaders of the first two renew their leases after the store has forgotten them; the others are not heard of again.
const SHARDS: [&str; 4] = ["forgetful/renewed/1", "forgetful/renewed/2", "forgetful/silent/1", "forgetful/silent/2"];

/// When the leader with this grant may start COMMAND.
fn start_of(grant: &Grant) -> Instant {
    Instant::now() + wait_of(grant)
}

#[track_caller]
fn assert_apart(grant: &Grant, before: Term, ended: Instant) {
    assert!(grant.term > before, "term {} follows {before}", grant.term);
    let early = ended.saturating_duration_since(start_of(grant));
    assert!(early < TOLERANCE, "the next COMMAND may start {early:?} before the last lease has ended: {grant:?}");
}

async fn nobody_starts_too_early(bench: &Bench, server: AnyServer, forget: fn(&mut dyn Server)) {
    let (store, other) = (&bench.store(), &bench.store());
    let ones = SHARDS.map(|shard| short(shard, "one"));
    let (mut terms, mut ends) = ([Term(0); 4], [Instant::now(); 4]);
    for (index, one) in ones.iter().enumerate() {
        ends[index] = Instant::now() + LEASE;
        terms[index] = granted(&**store, one).await.term;
    }
    let _server = does(server, forget).await;
    for index in 0..2 {
        let sent = Instant::now();
        if store.renew(&ones[index], terms[index], 1).await == Ok(Renewal::Renewed) {
            ends[index] = sent + LEASE;
        }
    }
    // At once: who waits for one of them would find the others' leases long over.
    join_all(ones.iter().enumerate().map(async |(index, one)| {
        let two = short(SHARDS[index], "two");
        let grant = granted_in_time(&**other, &two).await;
        let begun = Instant::now();
        assert_apart(&grant, terms[index], ends[index]);
        assert!(matches!(store.renew(one, terms[index], 2).await, Ok(Renewal::Lost(_))), "{index}");
        assert_eq!(store.release(one, terms[index]).await, Ok(Release::NotHeld), "{index}");
        let renewal = other.renew(&two, grant.term, 1).await;
        // A busy machine may be too slow for so short a lease.
        assert!(renewal == Ok(Renewal::Renewed) || begun.elapsed() > LEASE / 2, "{index}: {renewal:?}");
    }))
    .await;
}

async fn after_a_wipe_nobody_starts_beside_the_last_leader(bench: &Bench, server: AnyServer) {
    nobody_starts_too_early(bench, server, |server| server.wipe()).await;
}

async fn without_its_lock_or_its_records_a_shard_still_has_its_last_leader(bench: &Bench, server: AnyServer) {
    let forget = |server: &mut dyn Server| {
        for pair in SHARDS.chunks(2) {
            server.remove_lock(pair[0]);
            server.remove_records(pair[1]);
        }
    };
    nobody_starts_too_early(bench, server, forget).await;
}

/// Whether a claim of `shard` says that the store may have lost a lease, for a shard that it knows nothing of.
async fn is_first_use(store: &dyn Store, shard: &str) -> bool {
    match store.claim(&short(shard, "one")).await.expect("the store answers") {
        Claim::Granted(grant) => grant.start_after.is_some() && grant.takeover == Takeover::First,
        Claim::Refused(holder) => holder.doubt == Some(Doubt::FirstUse),
    }
}

async fn the_first_leader_starts_at_once_where_an_operator_says_that_the_store_is_new(
    bench: &Bench,
    server: AnyServer,
) {
    let store = bench.store();
    let server = does(server, |server| server.wipe()).await;
    store.prepare().await.unwrap();
    assert!(is_first_use(&*store, "first/unknown").await);
    store.vouch().await.unwrap();
    let one = short("first/new", "one");
    let grant = granted(&*store, &one).await;
    assert_eq!(grant.start_after, None, "{grant:?}");
    assert_eq!(store.release(&one, grant.term).await, Ok(Release::Released));

    // What it forgets afterwards is doubted as ever.
    let _server = does(server, |server| server.wipe()).await;
    store.prepare().await.unwrap();
    assert!(is_first_use(&*store, "first/unknown").await);
}

every_store!(own_server:
    after_a_wipe_nobody_starts_beside_the_last_leader,
    without_its_lock_or_its_records_a_shard_still_has_its_last_leader,
    the_first_leader_starts_at_once_where_an_operator_says_that_the_store_is_new,
);
