//! Leases that an operator took away: nobody starts a tree beside the one that may still run.

use super::*;
use crate::support::dynamo::{Fate, Proxy, Server, millis_now};
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Release, Renewal};
use std::sync::Arc;
use tokio::time::sleep;

/// The item that `revoke` has to leave alone or take.
async fn stands(client: &Client, table: &str) -> bool {
    item(client, table, "LOCK").await.is_some()
}

#[tokio::test]
async fn who_never_saw_a_revoked_lease_waits_for_a_whole_one_of_its_holder() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (holder, operator) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let one = with_lease("one", Duration::from_secs(30));
    let term = lead(&holder, &one).await;
    // Before the first renewal only the term item knows the term.
    assert_eq!(operator.revoke(&one.shard, Term(term.0 - 1)).await, Ok(Release::NotHeld));
    assert_eq!(operator.revoke(&one.shard, term).await, Ok(Release::Released));
    assert!(!stands(&client, &table).await);
    let fresh = store(&server.endpoint(), &table).await;
    let grant = granted(fresh.claim(&with_lease("two", Duration::from_secs(1))).await.unwrap());
    let wait = wait_of(&grant);
    assert!(wait > Duration::from_secs(28) && wait <= Duration::from_millis(30_300), "{wait:?}");
    assert_eq!(grant.term, Term(term.0 + 1));
    assert!(matches!(holder.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(other))) if other.owner == "two"));
}

#[tokio::test]
async fn nobody_waits_for_a_revoked_holder_that_has_said_its_tree_is_dead() {
    let server = Server::start();
    let table = server.table("locks").await;
    let (holder, operator) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let one = candidate("one");
    let term = lead(&holder, &one).await;
    assert_eq!(holder.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(operator.revoke(&one.shard, term).await, Ok(Release::Released));
    assert_eq!(holder.renew(&one, term, 2).await, Ok(Renewal::Lost(None)));
    assert_eq!(holder.release(&one, term).await, Ok(Release::NotHeld));
    lead(&operator, &candidate("two")).await;
}

#[tokio::test]
async fn a_lease_that_is_renewed_while_it_is_revoked_is_revoked_all_the_same() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let proxy = Proxy::before(&server);
    let (holder, operator) = (store(&server.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
    let one = candidate("one");
    let term = lead(&holder, &one).await;
    let open = proxy.gate("DeleteItem");
    let shard = one.shard.clone();
    let revocation = tokio::spawn(async move { operator.revoke(&shard, term).await });
    proxy.has_met("DeleteItem").await;
    assert_eq!(holder.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    open.send(()).unwrap();
    assert_eq!(revocation.await.unwrap(), Ok(Release::Released));
    assert_eq!(proxy.actions(), ["GetItem", "GetItem", "DeleteItem", "GetItem", "DeleteItem"]);
    assert!(!stands(&client, &table).await);
}

#[tokio::test]
async fn a_revocation_that_comes_late_does_not_end_the_next_leadership() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let proxy = Proxy::before(&server);
    let (holder, operator) = (store(&server.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&holder, &one).await;
    let open = proxy.gate("DeleteItem");
    let shard = one.shard.clone();
    let revocation = tokio::spawn(async move { operator.revoke(&shard, term).await });
    proxy.has_met("DeleteItem").await;
    holder.release(&one, term).await.unwrap();
    let next = lead(&holder, &two).await;
    open.send(()).unwrap();
    assert_eq!(revocation.await.unwrap(), Ok(Release::NotHeld));
    assert_eq!(holder.renew(&two, next, 1).await, Ok(Renewal::Renewed));
    assert!(stands(&client, &table).await);
}

/// Somebody has deleted it by hand, or restored the table from a backup that had none.
#[tokio::test]
async fn a_lease_whose_term_item_is_lost_is_written_down_before_it_is_revoked() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let proxy = Proxy::before(&server);
    let (holder, operator) = (store(&server.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
    let one = with_lease("one", Duration::from_secs(30));
    let term = lead(&holder, &one).await;
    assert_eq!(holder.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    delete(&client, &table, "SHARD#db/main", "TERM").await;

    // Interrupted between the two, nothing is different for anybody.
    proxy.once("DeleteItem", Fate::LoseRequest);
    assert_eq!(operator.revoke(&one.shard, term).await.unwrap_err().kind, ErrorKind::Unknown);
    assert_eq!(holder.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    assert_eq!(refused(operator.claim(&candidate("two")).await.unwrap()).owner, "one");

    delete(&client, &table, "SHARD#db/main", "TERM").await;
    assert_eq!(operator.revoke(&one.shard, term).await, Ok(Release::Released));
    let grant = granted(store(&server.endpoint(), &table).await.claim(&candidate("two")).await.unwrap());
    assert_eq!(grant.term, Term(term.0 + 1));
    assert!(wait_of(&grant) > Duration::from_secs(28), "{grant:?}");
}

/// A claim takes the lock and then a term. If its lock is revoked in between and another leads, it takes a term all the
/// same, and gives that back.
#[tokio::test]
async fn a_leader_whose_name_a_late_claim_has_overwritten_is_waited_for_when_it_is_revoked() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let (late, operator) = (store(&proxy.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let (one, two) = (candidate("one"), with_lease("two", Duration::from_secs(8)));
    let earlier = lead(&late, &one).await;
    late.release(&one, earlier).await.unwrap();
    proxy.actions();
    let open = proxy.gate("UpdateItem");
    let (late, claimant) = (Arc::new(late), one.clone());
    let claim = tokio::spawn({
        let late = Arc::clone(&late);
        async move { late.claim(&claimant).await }
    });
    proxy.has_met("UpdateItem").await;
    assert_eq!(operator.revoke(&one.shard, earlier).await, Ok(Release::Released));

    let leader = store(&server.endpoint(), &table).await;
    let term = lead(&leader, &two).await;
    assert_eq!(leader.renew(&two, term, 1).await, Ok(Renewal::Renewed));
    open.send(()).unwrap();
    let grant = granted(claim.await.unwrap().unwrap());
    assert!(grant.term > term && wait_of(&grant) > Duration::from_secs(7), "{grant:?}");
    assert_eq!(late.release(&one, grant.term).await, Ok(Release::NotHeld));
    assert_eq!(leader.renew(&two, term, 2).await, Ok(Renewal::Renewed));

    // The wait of that claim is as good as over. The leader goes on.
    sleep(Duration::from_secs(6)).await;
    assert_eq!(leader.renew(&two, term, 3).await, Ok(Renewal::Renewed));
    assert_eq!(operator.revoke(&two.shard, term).await, Ok(Release::Released));
    let next = granted(store(&server.endpoint(), &table).await.claim(&candidate("three")).await.unwrap());
    assert!(next.term > grant.term && wait_of(&next) > Duration::from_secs(7), "{next:?}");
}

#[tokio::test]
async fn what_has_no_term_of_ours_or_has_ended_is_not_revoked() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let (holder, operator) = (store(&server.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let one = candidate("one");
    let term = lead(&holder, &one).await;
    holder.release(&one, term).await.unwrap();
    assert_eq!(operator.revoke(&one.shard, term).await, Ok(Release::NotHeld));

    // The Go library's, and what it makes of a record of ours.
    let seconds = number(millis_now() / 1000 + 60);
    let put = || client.put_item().table_name(&table).item("pk", text("SHARD#db/main")).item("sk", text("LOCK"));
    put().item("ownerId", text("go")).item("ttl", seconds.clone()).send().await.unwrap();
    assert_eq!(operator.revoke(&one.shard, term).await, Ok(Release::NotHeld));
    delete(&client, &table, "SHARD#db/main", "LOCK").await;
    let term = granted(holder.claim(&one).await.unwrap()).term;
    assert_eq!(holder.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let update = client.update_item().table_name(&table).key("pk", text("SHARD#db/main")).key("sk", text("LOCK"));
    let update = update.update_expression("SET ownerId = :go, #ttl = :ttl").expression_attribute_names("#ttl", "ttl");
    let update = update.expression_attribute_values(":go", text("go")).expression_attribute_values(":ttl", seconds);
    update.send().await.unwrap();
    assert_eq!(operator.revoke(&one.shard, term).await, Ok(Release::NotHeld));
    assert!(stands(&client, &table).await);
    delete(&client, &table, "SHARD#db/main", "LOCK").await;

    let two = with_lease("two", Duration::from_millis(500));
    let term = granted(holder.claim(&two).await.unwrap()).term;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(operator.revoke(&two.shard, term).await, Ok(Release::NotHeld));

    put().item("ownerId", number(7)).send().await.unwrap();
    let error = operator.revoke(&one.shard, term).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}");
}

/// As DynamoDB Local and dynalite do. The helper that releases for a killed candidate does not know its last beat.
#[tokio::test]
async fn who_releases_for_a_killed_candidate_does_so_on_servers_that_return_no_item_with_a_failed_condition() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let proxy = Proxy::before(&server);
    proxy.rule(|_| {
        Fate::Rewrite(Box::new(|response| {
            let mut body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
            let refused = body["__type"].as_str().is_some_and(|kind| kind.ends_with("ConditionalCheckFailedException"));
            if refused && body.as_object_mut().unwrap().remove("Item").is_some() {
                response.body = body.to_string();
            }
            response.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("x-amz-crc32"));
        }))
    });
    let killed = store(&server.endpoint(), &table).await;
    let one = candidate("one");
    let term = lead(&killed, &one).await;
    assert_eq!(killed.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(killed.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    let helper = store(&proxy.endpoint(), &table).await;
    assert_eq!(helper.release(&one, term).await, Ok(Release::Released));
    assert!(!stands(&client, &table).await);

    // Only what was seen is said: another candidate leads by now.
    lead(&killed, &candidate("two")).await;
    assert_eq!(helper.release(&one, term).await, Ok(Release::NotHeld));
    assert!(stands(&client, &table).await);
}
