//! How many requests it takes, and what they write.

use super::*;
use crate::support::dynamo::{Fate, Proxy, Server, millis_now};
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Release, Renewal};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::sleep;

#[tokio::test]
async fn a_claim_writes_the_lock_and_the_term_and_a_refusal_is_one_request() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let (leader, standby) = (store(&proxy.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
    let (one, two) = (candidate("one"), candidate("two"));

    let term = lead(&leader, &one).await;
    leader.release(&one, term).await.unwrap();
    proxy.actions();
    assert_eq!(lead(&leader, &one).await, Term(term.0 + 1));
    assert_eq!(proxy.actions(), ["PutItem", "UpdateItem"]);
    assert_eq!(refused(standby.claim(&two).await.unwrap()).owner, "one");
    assert_eq!(proxy.actions(), ["PutItem"]);
}

#[tokio::test]
async fn a_leader_writes_once_a_renewal_and_a_standby_reads_once_a_poll() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let (leader, standby) = (store(&proxy.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
    let one = candidate("one");
    let term = lead(&leader, &one).await;
    proxy.actions();

    for sequence in 1..=3 {
        assert_eq!(leader.renew(&one, term, sequence).await.unwrap(), Renewal::Renewed);
    }
    assert_eq!(proxy.actions(), ["UpdateItem"; 3]);

    let strong = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&strong);
    proxy.rule(move |request| {
        counted.fetch_add(usize::from(request.body.contains("\"ConsistentRead\":true")), Ordering::Relaxed);
        Fate::Pass
    });
    for _ in 0..3 {
        assert!(matches!(standby.observe(&one.shard).await.unwrap(), Observation::Held(_)));
    }
    assert_eq!(proxy.actions(), ["GetItem"; 3]);
    assert_eq!(strong.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_record_tells_who_leads_since_when_and_until_when() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let leader = store(&server.endpoint(), &table).await;
    let one = candidate("one");
    let term = lead(&leader, &one).await;
    leader.renew(&one, term, 1).await.unwrap();

    let record = item(&client, &table, "LOCK").await.unwrap();
    assert_eq!(record["ownerId"], text("one"));
    assert_eq!(record["session"], text(one.session.as_str()));
    let expires = millis_in(&record, "expiresMs");
    assert_eq!(millis_in(&record, "ttl"), expires.div_ceil(1000));
    let lease = expires - millis_now();
    assert!((14_900..=17_500).contains(&lease), "{lease} ms are left");

    let report = store(&server.endpoint(), &table).await.inspect(&one.shard).await.unwrap();
    assert_eq!(report.last_term, Some(term));
    let holder = report.holder.unwrap();
    assert_eq!((holder.owner.as_str(), holder.host.as_deref(), holder.pid), ("one", Some("here"), Some(7)));
    assert_eq!((holder.session, holder.term), (Some(one.session.clone()), Some(term)));
    assert!(holder.since_millis.is_some_and(|since| since.abs_diff(millis_now()) < 10_000));
    assert!(holder.expires_in.is_some_and(|left| left > Duration::from_secs(13) && left < Duration::from_secs(18)));
}

#[tokio::test]
async fn a_takeover_after_a_look_is_one_put_and_waits_for_nobody() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let (leader, standby) = (store(&proxy.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
    // A longer one than the led mark tells of would be written down there.
    let [one, two] = ["one", "two"].map(|owner| with_lease(owner, Duration::from_secs(1)));
    let term = lead(&leader, &one).await;

    while standby.observe(&two.shard).await.unwrap() != Observation::Free {
        sleep(Duration::from_millis(50)).await;
    }
    proxy.actions();
    assert_eq!(lead(&standby, &two).await, Term(term.0 + 1));
    assert_eq!(proxy.actions(), ["PutItem", "UpdateItem"]);
    match leader.renew(&one, term, 1).await.unwrap() {
        Renewal::Lost(Some(holder)) => assert_eq!(holder.owner, "two"),
        other => panic!("{other:?}"),
    }
    assert_eq!(leader.release(&one, term).await.unwrap(), Release::NotHeld);
    assert_eq!(standby.renew(&two, Term(term.0 + 1), 1).await.unwrap(), Renewal::Renewed);
}

#[tokio::test]
async fn a_record_that_was_renewed_after_it_was_judged_expired_is_not_taken_over() {
    let server = Server::start();
    let table = server.table("locks").await;
    let (leader, standby) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let (one, two) = (with_lease("one", Duration::from_secs(1)), candidate("two"));
    let term = lead(&leader, &one).await;
    while standby.observe(&two.shard).await.unwrap() != Observation::Free {
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(leader.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
    assert_eq!(refused(standby.claim(&two).await.unwrap()).owner, "one");
}

#[tokio::test]
async fn a_takeover_takes_the_very_record_that_was_judged() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let proxy = Proxy::before(&server);
    let standby = store(&proxy.endpoint(), &table).await;
    let two = candidate("two");
    // Each of these alone makes it another record, if only by a write that changed nothing else.
    for attribute in ["beat", "ttl", "session"] {
        let put = client.put_item().table_name(&table).item("pk", text("SHARD#db/main")).item("sk", text("LOCK"));
        let put = put.item("ownerId", text("one")).item("session", text("one")).item("beat", number(1));
        let put = put.item("leaseMs", number(15_000)).item("expiresMs", number(1_500_000_000_000_u64));
        put.item("ttl", number(1_500_000_000)).send().await.unwrap();
        assert_eq!(standby.observe(&two.shard).await.unwrap(), Observation::Free);
        let value = match attribute {
            "beat" => number(2),
            "ttl" => number(1_500_000_001),
            _ => text("another"),
        };
        let update = client.update_item().table_name(&table).key("pk", text("SHARD#db/main")).key("sk", text("LOCK"));
        let update = update.update_expression("SET #a = :a").expression_attribute_names("#a", attribute);
        update.expression_attribute_values(":a", value).send().await.unwrap();
        proxy.actions();
        let grant = granted(standby.claim(&two).await.unwrap());
        assert_eq!(proxy.actions()[..2], ["PutItem", "PutItem"], "the first takeover has to fail for {attribute}");
        standby.release(&two, grant.term).await.unwrap();
    }
}

#[tokio::test]
async fn of_many_candidates_for_an_expired_record_one_leads() {
    let server = Server::start();
    let table = server.table("locks").await;
    let dead = with_lease("dead", Duration::from_secs(1));
    lead(&store(&server.endpoint(), &table).await, &dead).await;

    let mut stores = Vec::new();
    for number in 0..8 {
        stores.push((Arc::new(store(&server.endpoint(), &table).await), candidate(&format!("candidate {number}"))));
    }
    for (store, candidate) in &stores {
        while store.observe(&candidate.shard).await.unwrap() != Observation::Free {
            sleep(Duration::from_millis(50)).await;
        }
    }
    let claims = stores.iter().map(|(store, candidate)| {
        let (store, candidate) = (Arc::clone(store), candidate.clone());
        tokio::spawn(async move { store.claim(&candidate).await })
    });
    let claims = claims.collect::<Vec<_>>();
    let mut leaders = 0;
    for claim in claims {
        leaders += usize::from(matches!(claim.await.unwrap().unwrap(), Claim::Granted(_)));
    }
    assert_eq!(leaders, 1);
}

#[tokio::test]
async fn two_sessions_of_one_owner_do_not_both_lead() {
    let server = Server::start();
    let table = server.table("locks").await;
    let (first, second) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let (one, other) = (candidate("same"), candidate("same"));
    let term = lead(&first, &one).await;
    assert_eq!(refused(second.claim(&other).await.unwrap()).session, Some(one.session.clone()));
    assert_eq!(second.renew(&other, term, 1).await.map(|renewal| matches!(renewal, Renewal::Lost(Some(_)))), Ok(true));
    assert_eq!(second.release(&other, term).await.unwrap(), Release::NotHeld);
    assert_eq!(first.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
}

#[tokio::test]
async fn a_longer_lease_of_the_next_leader_is_what_its_successors_wait_for() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    store.release(&one, term).await.unwrap();
    let two = with_lease("two", Duration::from_mins(1));
    lead(&store, &two).await;
    assert_eq!(millis_in(&item(&client, &table, "TERM").await.unwrap(), "leaseMs"), 60_000);
    assert_eq!(millis_in(&item(&client, &table, "LOCK").await.unwrap(), "leaseMs"), 60_000);
}
