//! A server that has forgotten leases, all or some, must not let a second tree run, nor disturb the first.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use crate::support::server::Server as _;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Release, Renewal};
use leaderrun::internals::time::BootInstant;
use std::path::Path;
use std::process::Command;

const SHORT: Duration = Duration::from_secs(4);

/// The leader goes on; nobody else is granted anything before a lease has passed since; then the terms rise.
async fn forgets(server: &mut Server, forget: impl FnOnce(&mut Server)) {
    let (store, other) = (store(server).await, store(server).await);
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT));
    let term = lead(&store, &one).await;
    forget(server);
    let begun = Instant::now();
    let holder = refused(other.claim(&two).await.unwrap());
    assert_eq!((holder.owner.as_str(), holder.session.as_ref()), (FORGOTTEN, None));
    let left = holder.expires_in.expect("it is known when that is over");
    assert!(left <= SHORT && left > SHORT / 4, "{left:?}");
    assert!(matches!(other.observe(&shard()).await, Ok(Observation::Held(holder)) if holder.owner == FORGOTTEN));

    // The leader does not notice.
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let holder = refused(other.claim(&two).await.unwrap());
    assert_eq!((holder.session.as_ref(), holder.term), (Some(&one.session), Some(term)));
    let report = other.inspect(&shard()).await.unwrap();
    assert_eq!((report.holder.unwrap().term, report.last_term), (Some(term), Some(term)));

    let grant = granted_in_time(&other, &two).await;
    assert!(begun.elapsed() >= SHORT * 9 / 10, "granted after {:?}", begun.elapsed());
    assert!(grant.term > term && grant.start_after.is_none(), "{grant:?}");
    assert!(matches!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(Some(_)))));
}

#[tokio::test]
async fn a_restart_without_persistence_does_not_disturb_the_leader_and_lets_nobody_else_lead() {
    let mut server = Server::forgetful();
    server.age();
    forgets(&mut server, |server| {
        server.kill();
        server.start_again();
        assert_eq!(server.cli(&["DBSIZE"]), "0");
    })
    .await;
}

#[tokio::test]
async fn a_wipe_does_not_disturb_the_leader_and_lets_nobody_else_lead() {
    let mut server = old_server();
    forgets(&mut server, Server::wipe).await;
}

#[tokio::test]
async fn deleting_all_keys_by_their_prefix_is_a_wipe() {
    let mut server = old_server();
    forgets(&mut server, |server| {
        server.cli(&["DEL", LOCK, LAST, RECORD, MARKER]);
    })
    .await;
}

#[tokio::test]
async fn after_a_wipe_a_crashed_leader_is_waited_for() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT));
    let term = lead(&store, &one).await;
    let sent = Instant::now();
    server.wipe();
    // Nothing has told the server when that was but this look, which has to lead to a claim.
    assert_eq!(other.observe(&shard()).await, Ok(Observation::Free));
    let grant = granted_in_time(&other, &two).await;
    assert!(sent.elapsed() >= SHORT * 9 / 10, "granted after {:?}", sent.elapsed());
    assert!(grant.term > term && grant.start_after.is_none(), "{grant:?}");
}

#[tokio::test]
async fn a_longer_lease_that_is_remembered_is_waited_for() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT / 2));
    lead(&store, &one).await;
    server.kill();
    server.start_again();
    let begun = Instant::now();
    server.cli(&["DEL", LOCK]);
    granted_in_time(&other, &two).await;
    assert!(begun.elapsed() >= SHORT * 9 / 10, "granted after {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_that_was_never_used_is_waited_for() {
    let server = Server::start();
    let store = store(&server).await;
    let one = with_lease("one", SHORT);
    assert_eq!(refused(store.claim(&one).await.unwrap()).owner, FORGOTTEN);
    assert_eq!(granted_in_time(&store, &one).await.start_after, None);
}

#[tokio::test]
async fn a_restart_with_an_older_state_lets_neither_of_two_leaders_be_taken_for_the_other() {
    let mut server = old_server();
    let (first, second) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let old = lead(&first, &one).await;
    let copy = tempfile::TempDir::new().unwrap();
    copy_all(server.data(), copy.path());
    assert_eq!(first.release(&one, old).await, Ok(Release::Released));
    let term = lead(&second, &two).await;
    server.kill();
    copy_all(copy.path(), server.data());
    server.start_again();

    // As far as the server knows, one holds it.
    assert_eq!(server.cli(&["GET", LOCK]).split(' ').next(), Some(one.session.as_str()));
    assert_eq!(refused(first.claim(&one).await.unwrap()).owner, FORGOTTEN);
    assert_eq!(second.renew(&two, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(refused(first.claim(&one).await.unwrap()).session, Some(two.session.clone()));
    assert!(matches!(first.renew(&one, old, 9).await, Ok(Renewal::Lost(Some(_)))));
}

/// Replaces the contents.
fn copy_all(from: &Path, to: &Path) {
    let script = "rm -rf \"$2\"/* && cp -a \"$1\"/. \"$2\"/";
    let status = Command::new("sh").args(["-c", script, "sh"]).args([from, to]).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_renewal_that_comes_late_to_a_server_that_forgot_is_replaced_by_the_leaders() {
    let mut server = old_server();
    let (first, second) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let old = lead(&first, &one).await;
    first.release(&one, old).await.unwrap();
    let term = lead(&second, &two).await;
    server.wipe();
    // Nobody can tell yet that this one lost it before.
    assert_eq!(first.renew(&one, old, 9).await, Ok(Renewal::Renewed));
    // But it becomes no leader by that.
    assert_eq!(refused(first.claim(&one).await.unwrap()).owner, FORGOTTEN);
    assert_eq!(second.renew(&two, term, 1).await, Ok(Renewal::Renewed));
    assert!(matches!(first.renew(&one, old, 10).await, Ok(Renewal::Lost(Some(_)))));
    assert_eq!(second.renew(&two, term, 2).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_leadership_that_the_server_forgot_can_be_released_and_does_not_come_back() {
    let mut server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    server.wipe();
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    assert_eq!(store.inspect(&shard()).await.unwrap().last_term, Some(term));
    assert_eq!(store.release(&one, term).await, Ok(Release::NotHeld));
}

#[tokio::test]
async fn a_lock_that_was_deleted_by_hand_makes_the_next_leader_wait() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    server.remove_lock("db/main");
    let claimed = BootInstant::now();
    let grant = granted(other.claim(&two).await.unwrap());
    assert!(grant.term > term);
    let wait = grant.start_after.expect("one may live").since(claimed);
    assert!(wait > LEASE / 2 && wait < LEASE + Duration::from_secs(2), "{wait:?}");
    assert!(matches!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(_)))));

    // Asking again, or somebody else's turn, does not make it shorter.
    let again = granted(other.claim(&two).await.unwrap());
    assert!(again.start_after.expect("one may live").since(claimed) > LEASE / 2, "{again:?}");
    other.release(&two, again.term).await.unwrap();
    let third = granted(store.claim(&candidate("three")).await.unwrap());
    assert!(third.start_after.expect("one may live").since(claimed) > LEASE / 2, "{third:?}");
}

#[tokio::test]
async fn all_keys_of_a_shard_deleted_by_hand_make_the_next_leader_wait_and_terms_rise() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    server.remove_records("db/main");
    let claimed = BootInstant::now();
    // A new candidate has seen nothing of it.
    let grant = granted(other.claim(&two).await.unwrap());
    assert!(grant.term > term);
    let wait = grant.start_after.expect("one may live").since(claimed);
    assert!(wait > LEASE / 2 && wait < LEASE + Duration::from_secs(2), "{wait:?}");
    // Once more, and the wait stays that long.
    server.remove_records("db/main");
    let again = granted(store.claim(&candidate("three")).await.unwrap());
    assert!(again.start_after.expect("one may live").since(claimed) > LEASE / 2, "{again:?}");
    assert!(matches!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(Some(_)))));
}

#[tokio::test]
async fn a_leader_that_released_after_all_its_keys_were_deleted_makes_nobody_wait() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    server.remove_records("db/main");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(lead(&other, &candidate("two")).await > term);
}

#[tokio::test]
async fn a_shard_whose_keys_were_deleted_after_a_release_is_free_at_once_and_its_terms_rise() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    server.remove_records("db/main");
    assert!(lead(&other, &candidate("two")).await > term);
}

#[tokio::test]
async fn a_shard_that_is_forgotten_keeps_its_term_where_the_servers_clock_is_behind_it() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    store.release(&one, term).await.unwrap();
    let future = term.0 + 3_600_000;
    server.cli(&["HSET", LAST, "term", &future.to_string()]);
    let term = lead(&store, &one).await;
    assert_eq!(store.forget(&one, term).await, Ok(Release::Released));
    assert!(lead(&store, &candidate("two")).await > term);
}

#[tokio::test]
async fn a_leader_whose_lock_was_deleted_by_hand_loses_and_may_release() {
    let mut server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    server.remove_lock("db/main");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(lead(&other, &two).await > term);
}

#[tokio::test]
async fn terms_rise_when_only_the_lock_is_left() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    server.cli(&["DEL", LAST]);
    store.release(&one, term).await.unwrap();
    assert_eq!(other.inspect(&shard()).await.unwrap().last_term, Some(term));
    assert!(lead(&other, &candidate("two")).await > term);
}

#[tokio::test]
async fn terms_rise_when_the_servers_clock_is_behind() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    store.release(&one, term).await.unwrap();
    let future = (term.0 + 3_600_000).to_string();
    server.cli(&["HSET", LAST, "term", &future]);
    assert_eq!(lead(&store, &one).await, Term(term.0 + 3_600_001));
}

#[tokio::test]
async fn a_lease_that_ended_and_that_nobody_took_can_be_renewed() {
    let server = old_server();
    let store = store(&server).await;
    let one = with_lease("one", Duration::from_millis(50));
    let term = lead(&store, &one).await;
    eventually("the lease ends", async || server.cli(&["EXISTS", LOCK]) == "0").await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_server_whose_clock_is_set_forward_ends_no_lease_that_was_seen() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    lead(&store, &one).await;
    let seen = BootInstant::now();
    refused(other.claim(&two).await.unwrap());
    // What such a clock does.
    server.cli(&["DEL", LOCK]);
    server.cli(&["HSET", LAST, "until", "1"]);
    let grant = granted(other.claim(&two).await.unwrap());
    let wait = grant.start_after.expect("one may live").since(seen);
    assert!(wait > LEASE / 2 && wait < LEASE * 2, "{wait:?}");
}

#[tokio::test]
async fn a_lease_that_was_only_looked_at_is_not_ended_by_such_a_clock_either() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    lead(&store, &candidate("one")).await;
    let seen = BootInstant::now();
    assert!(matches!(other.observe(&shard()).await, Ok(Observation::Held(_))));
    server.cli(&["DEL", LOCK]);
    server.cli(&["HSET", LAST, "until", "1"]);
    let grant = granted(other.claim(&candidate("two")).await.unwrap());
    let wait = grant.start_after.expect("one may live").since(seen);
    assert!(wait > LEASE / 2 && wait < LEASE * 2, "{wait:?}");
}

#[tokio::test]
async fn a_rival_that_released_is_not_waited_for() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    refused(other.claim(&two).await.unwrap());
    store.release(&one, term).await.unwrap();
    lead(&other, &two).await;
}

#[tokio::test]
async fn a_server_whose_clock_was_set_back_may_have_forgotten() {
    let server = old_server();
    let store = store(&server).await;
    let one = with_lease("one", SHORT);
    let term = lead(&store, &one).await;
    store.release(&one, term).await.unwrap();
    server.cli(&["HSET", MARKER, "since", &(term.0 + 3_600_000).to_string()]);
    let holder = refused(store.claim(&one).await.unwrap());
    assert_eq!(holder.owner, FORGOTTEN);
    assert!(holder.expires_in.unwrap() <= SHORT, "{holder:?}");
    granted_in_time(&store, &one).await;
}
