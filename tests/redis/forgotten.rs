//! A server that has forgotten leases, all or some, must not let a second tree run, nor disturb the first.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use crate::support::server::Server as _;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Release, Renewal};
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
async fn deleting_all_keys_by_their_prefix_is_a_wipe() {
    let mut server = old_server();
    forgets(&mut server, |server| {
        server.cli(&["DEL", LOCK, MARKER]);
    })
    .await;
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
    assert_eq!(session_in(&server), one.session.as_str());
    assert_eq!(refused(first.claim(&one).await.unwrap()).owner, FORGOTTEN);
    assert_eq!(second.renew(&two, term, 1).await, Ok(Renewal::Renewed));
    refused(first.claim(&one).await.unwrap());
    assert!(matches!(first.renew(&one, old, 9).await, Ok(Renewal::Lost(Some(_)))));
}

/// Replaces the contents.
fn copy_all(from: &Path, to: &Path) {
    let script = "rm -rf \"$2\"/* && cp -a \"$1\"/. \"$2\"/";
    let status = Command::new("sh").args(["-c", script, "sh"]).args([from, to]).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn all_keys_of_a_shard_deleted_by_hand_make_the_next_leader_wait_and_terms_rise() {
    let server = old_server();
    let (store, other) = (store(&server).await, store(&server).await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    for key in server.cli(&["KEYS", "*db/main*"]).lines() {
        server.cli(&["DEL", key]);
    }
    // A new candidate has seen nothing of it.
    let grant = granted(other.claim(&candidate("two")).await.unwrap());
    assert!(grant.term > term);
    let wait = wait_of(&grant);
    assert!(wait > LEASE / 2 && wait < LEASE + Duration::from_secs(2), "{wait:?}");
    assert!(matches!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(_)))));
}
