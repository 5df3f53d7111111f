//! Wall clocks that are wrong, and servers that do not say what time it is.

use super::*;
use crate::support::dynamo::{Fate, Proxy, Response, Server, millis_now, set_date};
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Renewal};
use std::time::Instant;
use tokio::time::sleep;

const HOUR: u64 = 3_600_000;

fn an_hour_ahead() -> u64 {
    millis_now() + HOUR
}

fn an_hour_behind() -> u64 {
    millis_now() - HOUR
}

fn without_date(response: &mut Response) {
    response.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("date"));
}

/// How long until `two` may claim, and that it may not before.
async fn until_free(store: &DynamoDb, start: Instant) -> Duration {
    while store.observe(&shard()).await.unwrap() != Observation::Free {
        sleep(Duration::from_millis(50)).await;
    }
    start.elapsed()
}

#[tokio::test]
async fn a_leader_whose_wall_clock_is_an_hour_off_writes_the_expiry_that_it_means() {
    for wall_clock in [an_hour_ahead, an_hour_behind] {
        let server = Server::start();
        let (client, table) = (server.client(), server.table("locks").await);
        let leader = store_with_wall_clock(&server.endpoint(), &table, wall_clock).await;
        let standby = store(&server.endpoint(), &table).await;
        let one = with_lease("one", Duration::from_secs(3));
        let (start, begun) = (Instant::now(), millis_now());
        let term = lead(&leader, &one).await;
        let record = item(&client, &table, "LOCK").await.unwrap();
        let expires = millis_in(&record, "expiresMs");
        assert!((begun + 2_900..=millis_now() + 6_000).contains(&expires), "{expires} after {begun}");
        assert_eq!(refused(standby.claim(&candidate("two")).await.unwrap()).owner, "one");
        let waited = until_free(&standby, start).await;
        assert!(waited > Duration::from_secs(3) && waited < Duration::from_secs(30), "{waited:?}");
        // It is nobody's for the moment, but still ours to renew.
        assert_eq!(leader.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
    }
}

#[tokio::test]
async fn a_standby_whose_wall_clock_is_an_hour_off_takes_over_in_time_and_not_before() {
    for wall_clock in [an_hour_ahead, an_hour_behind] {
        let server = Server::start();
        let table = server.table("locks").await;
        let leader = store(&server.endpoint(), &table).await;
        let standby = store_with_wall_clock(&server.endpoint(), &table, wall_clock).await;
        let start = Instant::now();
        lead(&leader, &with_lease("one", Duration::from_secs(3))).await;
        let waited = until_free(&standby, start).await;
        assert!(waited > Duration::from_secs(3) && waited < Duration::from_secs(30), "{waited:?}");
        lead(&standby, &candidate("two")).await;
    }
}

#[tokio::test]
async fn a_claim_whose_expiry_was_mended_is_refused_when_another_was_quicker() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let proxy = Proxy::before(&server);
    let store = store_with_wall_clock(&proxy.endpoint(), &table, an_hour_behind).await;
    // Between the claim, which is an hour too short, and its correction another program sees an expired lease.
    let (other, handle) = (client.clone(), tokio::runtime::Handle::current());
    let table_of_rule = table.clone();
    proxy.rule(move |request| {
        if request.action == "UpdateItem" {
            let put = other.put_item().table_name(&table_of_rule).item("pk", text("SHARD#db/main"));
            let put = put.item("sk", text("LOCK")).item("ownerId", text("go"));
            let put = put.item("ttl", number(millis_now() / 1000 + 60)).send();
            let (done, finished) = std::sync::mpsc::channel();
            handle.spawn(async move {
                put.await.unwrap();
                done.send(()).unwrap();
            });
            finished.recv().unwrap();
        }
        Fate::Pass
    });
    assert_eq!(refused(store.claim(&candidate("one")).await.unwrap()).owner, "go");
}

#[tokio::test]
async fn without_dates_a_crashed_leaders_lease_ends_when_it_stood_unchanged_for_all_of_it() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    proxy.rule(|_| Fate::Rewrite(Box::new(without_date)));
    for wall_clock in [millis_now, an_hour_ahead, an_hour_behind] {
        let leader = store_with_wall_clock(&proxy.endpoint(), &table, wall_clock).await;
        let standby = store_with_wall_clock(&proxy.endpoint(), &table, wall_clock).await;
        let one = with_lease("one", Duration::from_secs(2));
        let term = lead_at_last(&leader, &one).await;
        assert!(matches!(standby.observe(&shard()).await.unwrap(), Observation::Held(_)));
        sleep(Duration::from_millis(1200)).await;
        assert_eq!(leader.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
        let renewed = Instant::now();
        let waited = until_free(&standby, renewed).await;
        assert!(waited > Duration::from_secs(2) && waited < Duration::from_secs(30), "{waited:?}");
        let two = with_lease("two", Duration::from_secs(2));
        let term = lead_at_last(&standby, &two).await;
        standby.release(&two, term).await.unwrap();
    }
}

/// Without dates the wait of a new shard can only be judged by the wall clock, so a wrong one may make it wait.
async fn lead_at_last(store: &DynamoDb, candidate: &Candidate) -> Term {
    granted(store.claim(candidate).await.unwrap()).term
}

#[tokio::test]
async fn a_server_whose_clock_is_far_from_everybodys_is_the_only_clock() {
    for seconds in [-7200, 7200] {
        let server = Server::start();
        let table = server.table("locks").await;
        let proxy = Proxy::before(&server);
        proxy.rule(move |_| Fate::Rewrite(Box::new(move |response| set_date(response, seconds))));
        let (leader, standby) = (store(&proxy.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
        let one = with_lease("one", Duration::from_secs(3));
        let shifted = || millis_now().checked_add_signed(seconds * 1000).unwrap();
        let (start, begun) = (Instant::now(), shifted());
        granted(leader.claim(&one).await.unwrap());
        let record = item(&server.client(), &table, "LOCK").await.unwrap();
        let expires = millis_in(&record, "expiresMs");
        assert!((begun + 2_900..=shifted() + 6_000).contains(&expires), "{expires} after {begun}");
        let waited = until_free(&standby, start).await;
        assert!(waited > Duration::from_secs(3) && waited < Duration::from_secs(30), "{waited:?}");
    }
}

#[tokio::test]
async fn a_server_whose_clock_jumps_ahead_gives_no_lease_away() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let (leader, standby) = (store(&server.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
    let one = candidate("one");
    let term = lead(&leader, &one).await;
    assert!(matches!(standby.observe(&shard()).await.unwrap(), Observation::Held(_)));
    proxy.rule(|_| Fate::Rewrite(Box::new(|response| set_date(response, 3600))));
    for sequence in 1..=8 {
        assert_eq!(leader.renew(&one, term, sequence).await.unwrap(), Renewal::Renewed);
        sleep(Duration::from_millis(300)).await;
        assert!(matches!(standby.observe(&shard()).await.unwrap(), Observation::Held(_)), "at beat {sequence}");
    }
}
