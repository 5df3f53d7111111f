//! Records that vanish without a release: nobody starts a tree beside one that may still run.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use crate::support::dynamo::{Server, millis_now, write_marker};
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Release, Renewal};
use tokio::time::sleep;

#[tokio::test]
async fn a_deleted_lock_item_makes_the_next_leader_wait_for_a_lease_of_the_last_one() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (first, second) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let (one, two) = (with_lease("one", Duration::from_secs(30)), candidate("two"));
    let term = lead(&first, &one).await;
    delete(&client, &table, "SHARD#db/main", "LOCK").await;

    assert_eq!(second.observe(&two.shard).await.unwrap(), Observation::Free);
    let grant = granted(second.claim(&two).await.unwrap());
    assert_eq!(grant.term, Term(term.0 + 1));
    let wait = wait_of(&grant);
    assert!(wait > Duration::from_secs(28) && wait <= Duration::from_millis(30_300), "{wait:?}");
    assert!(matches!(first.renew(&one, term, 1).await.unwrap(), Renewal::Lost(Some(holder)) if holder.owner == "two"));
}

#[tokio::test]
async fn all_items_of_a_shard_deleted_at_once_make_the_next_leader_wait_for_a_lease_of_the_longest() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (first, second) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let (one, two) = (with_lease("one", Duration::from_secs(30)), candidate("two"));
    // The first leaders had a shorter one.
    for _ in 0..2 {
        let short = candidate("short");
        let term = lead(&first, &short).await;
        first.release(&short, term).await.unwrap();
    }
    let term = lead(&first, &one).await;
    for sort in ["LOCK", "TERM"] {
        delete(&client, &table, "SHARD#db/main", sort).await;
    }
    let grant = granted(second.claim(&two).await.unwrap());
    let wait = wait_of(&grant);
    assert!(wait > Duration::from_secs(28) && wait <= Duration::from_millis(30_300), "{wait:?}");
    assert!(matches!(first.renew(&one, term, 1).await.unwrap(), Renewal::Lost(Some(holder)) if holder.owner == "two"));
}

#[tokio::test]
async fn a_shard_that_was_led_before_there_were_led_marks_has_one_from_its_next_leader_on() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    let request = client.put_item().table_name(&table).item("pk", text("SHARD#db/main")).item("sk", text("TERM"));
    let released = AttributeValue::Bool(true);
    request.item("term", number(7)).item("holder", text("old")).item("released", released).send().await.unwrap();
    let one = candidate("one");
    assert_eq!(lead(&store, &one).await, Term(8));
    for sort in ["LOCK", "TERM"] {
        delete(&client, &table, "SHARD#db/main", sort).await;
    }
    assert!(wait_of(&granted(store.claim(&candidate("two")).await.unwrap())) > Duration::ZERO);
}

#[tokio::test]
async fn a_leader_whose_own_lock_item_was_deleted_claims_again_without_waiting_for_itself() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    delete(&client, &table, "SHARD#db/main", "LOCK").await;
    assert_eq!(store.renew(&one, term, 1).await.unwrap(), Renewal::Lost(None));
    assert_eq!(store.release(&one, term).await.unwrap(), Release::NotHeld);
    assert_eq!(lead(&store, &one).await, Term(term.0 + 1));
}

#[tokio::test]
async fn a_wiped_table_makes_the_next_leader_wait_and_terms_go_on_rising() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (first, second) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let mut term = Term(0);
    for _ in 0..3 {
        term = lead(&first, &one).await;
        first.release(&one, term).await.unwrap();
    }
    sleep(Duration::from_secs(3)).await;
    for (partition, sort) in [("SHARD#db/main", "LOCK"), ("SHARD#db/main", "TERM"), ("LEADERRUN", "TABLE")] {
        delete(&client, &table, partition, sort).await;
    }
    let grant = granted(second.claim(&two).await.unwrap());
    assert!(grant.term > term, "{grant:?} after {term}");
    assert!(wait_of(&grant) > Duration::from_secs(12));
    // The table remembers from now on, so the next new shard waits no longer than this one.
    let marker = client.get_item().table_name(&table).key("pk", text("LEADERRUN")).key("sk", text("TABLE"));
    let marker = marker.send().await.unwrap().item.expect("there is a marker again");
    assert!(millis_in(&marker, "createdMs").abs_diff(millis_now()) < 5_000);
}

#[tokio::test]
async fn the_first_leader_of_a_shard_waits_until_the_table_is_a_lease_old_and_no_longer() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table_without_marker("locks").await);
    let store = store(&server.endpoint(), &table).await;
    write_marker(&client, &table, millis_now() - 5_000).await;
    let one = candidate("one");
    let grant = granted(store.claim(&one).await.unwrap());
    let left = wait_of(&grant);
    assert!(left > Duration::from_secs(4) && left < Duration::from_secs(14), "{left:?}");

    write_marker(&client, &table, millis_now() - 20_000).await;
    let another = Candidate { shard: "another".parse().unwrap(), ..candidate("one") };
    lead(&store, &another).await;
}

#[tokio::test]
async fn a_marker_from_the_future_makes_nobody_wait_longer_than_a_lease() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table_without_marker("locks").await);
    write_marker(&client, &table, millis_now() + 3_600_000).await;
    let grant = granted(store(&server.endpoint(), &table).await.claim(&candidate("one")).await.unwrap());
    assert!(wait_of(&grant) > LEASE / 2 && wait_of(&grant) <= Duration::from_millis(15_150), "{grant:?}");
}

#[tokio::test]
async fn a_claimant_that_crashed_before_its_term_hides_nobody() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (first, third) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    lead(&first, &with_lease("one", Duration::from_secs(30))).await;
    // An operator deletes the lock; "two" gets as far as its lock item, and crashes.
    let proxy = crate::support::dynamo::Proxy::before(&server);
    let second = store(&proxy.endpoint(), &table).await;
    delete(&client, &table, "SHARD#db/main", "LOCK").await;
    proxy.rule(|request| {
        if request.action == "UpdateItem" {
            crate::support::dynamo::Fate::LoseRequest
        } else {
            crate::support::dynamo::Fate::Pass
        }
    });
    second.claim(&with_lease("two", Duration::from_millis(500))).await.unwrap_err();
    let three = candidate("three");
    while third.observe(&three.shard).await.unwrap() != Observation::Free {
        sleep(Duration::from_millis(50)).await;
    }
    let left = wait_of(&granted(third.claim(&three).await.unwrap()));
    assert!(left > Duration::from_secs(28), "{left:?}");
}

#[tokio::test]
async fn a_chain_of_crashed_claimants_after_a_takeover_makes_nobody_wait() {
    let server = Server::start();
    let table = server.table("locks").await;
    let (first, third) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    lead(&first, &with_lease("one", Duration::from_millis(500))).await;
    let proxy = crate::support::dynamo::Proxy::before(&server);
    let second = store(&proxy.endpoint(), &table).await;
    let (two, three) = (with_lease("two", Duration::from_millis(500)), candidate("three"));
    while second.observe(&two.shard).await.unwrap() != Observation::Free {
        sleep(Duration::from_millis(50)).await;
    }
    proxy.rule(|request| {
        if request.action == "UpdateItem" {
            crate::support::dynamo::Fate::LoseRequest
        } else {
            crate::support::dynamo::Fate::Pass
        }
    });
    second.claim(&two).await.unwrap_err();
    while third.observe(&three.shard).await.unwrap() != Observation::Free {
        sleep(Duration::from_millis(50)).await;
    }
    lead(&third, &three).await;
}

#[tokio::test]
async fn a_neighbours_expired_record_over_a_vanished_one_of_ours_hides_nobody() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (first, second) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    lead(&first, &with_lease("one", Duration::from_secs(30))).await;
    delete(&client, &table, "SHARD#db/main", "LOCK").await;
    let request = client.put_item().table_name(&table).item("pk", text("SHARD#db/main")).item("sk", text("LOCK"));
    let past = millis_now() / 1000 - 10;
    request.item("ownerId", text("go")).item("ttl", number(past)).send().await.unwrap();
    let left = wait_of(&granted(second.claim(&candidate("two")).await.unwrap()));
    assert!(left > Duration::from_secs(28), "{left:?}");
}

#[tokio::test]
async fn terms_that_something_else_wrote_are_named_and_leave_no_lock_behind() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    let request = client.put_item().table_name(&table).item("pk", text("SHARD#db/main")).item("sk", text("TERM"));
    request.item("term", text("seven")).send().await.unwrap();
    let error = store.claim(&candidate("one")).await.unwrap_err();
    assert_eq!(error.kind, leaderrun::internals::store::ErrorKind::Misconfigured);
    assert!(error.message.contains("pk=SHARD#db/main, sk=TERM"), "{error}");
    assert_eq!(item(&client, &table, "LOCK").await, None);
}

/// The led mark names the first of them.
#[tokio::test]
async fn who_led_first_waits_for_a_later_leader_whose_items_were_all_deleted() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (first, second) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&first, &one).await;
    assert_eq!(first.release(&one, term).await.unwrap(), Release::Released);
    let term = lead(&second, &two).await;
    for sort in ["LOCK", "TERM"] {
        delete(&client, &table, "SHARD#db/main", sort).await;
    }
    let grant = granted(first.claim(&one).await.unwrap());
    assert!(wait_of(&grant) > Duration::from_secs(12), "{grant:?}");
    assert!(matches!(second.renew(&two, term, 1).await.unwrap(), Renewal::Lost(Some(holder)) if holder.owner == "one"));
}

#[tokio::test]
async fn what_another_program_keeps_beside_a_shard_is_not_forgotten_with_it() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    let request = client.put_item().table_name(&table).item("pk", text("SHARD#db/main")).item("sk", text("CONFIG"));
    request.send().await.unwrap();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    assert_eq!(store.forget(&one, term).await.unwrap(), Release::Released);
    assert_eq!(item(&client, &table, "LOCK").await, None);
    assert!(item(&client, &table, "CONFIG").await.is_some());
}
