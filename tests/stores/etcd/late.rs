//! Requests that arrive late, and answers that never come.

use super::*;
use crate::support::gate::{Fate, Gate};

const SHORT: Duration = Duration::from_secs(3);
/// In every put of a document that names a leader.
const CLAIM: &str = "since_ms";

/// An old server, a way to it that misbehaves, and a store that takes this way.
async fn behind_a_gate() -> (Server, Gate, Arc<dyn Store>) {
    let server = old_server().await;
    let gate = Gate::to(server.address());
    let store = open_with(&server.url(gate.address), SHORT).await;
    (server, gate, store)
}

/// Lets the held transaction arrive, and waits until etcd has answered it.
async fn arrive(server: &Server, gate: &Gate) {
    let before = server.answered("Txn");
    gate.let_go();
    eventually("the late transaction is answered", async || server.answered("Txn") > before).await;
}

#[tokio::test]
async fn a_claim_that_was_given_up_comes_to_nothing_however_late_it_arrives() {
    let (server, gate, store) = behind_a_gate().await;
    let one = candidate("one");
    gate.once(CLAIM, Fate::Hold);
    unknown(store.claim(&one).await, "");
    // As a candidate does that leaves after a claim in doubt.
    assert_eq!(store.release(&one, Term(0)).await, Ok(Release::NotHeld));
    arrive(&server, &gate).await;
    assert_eq!(store.observe(&one.shard).await, Ok(Observation::Free));
    // A put under a lease that is gone must not be the end of etcd either.
    lead(&*store, &one).await;
}

#[tokio::test]
async fn the_lock_of_a_claim_that_was_given_up_is_free_at_once_and_makes_nobody_wait() {
    let (server, gate, store) = behind_a_gate().await;
    let other = open(&server.own_url()).await;
    gate.once(CLAIM, Fate::LoseAnswer);
    store.claim(&candidate("one")).await.unwrap_err();
    let begun = Instant::now();
    let grant = granted_in_time(&*other, &candidate("two")).await;
    assert_eq!(grant.start_after, None);
    assert!(begun.elapsed() < LEASE / 2, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_note_whose_writer_did_not_wait_for_the_answer_lasts_as_long_as_any() {
    let (server, gate, _) = behind_a_gate().await;
    let (shard, lasts) = (shard(), Duration::from_mins(10));
    let note = Note::lasting("unheard".to_owned(), Some(lasts));
    gate.once("unheard", Fate::LoseAnswer);
    let store = open_with(&server.url(gate.address), PATIENCE).await;
    let other = open(&server.own_url()).await;
    let mut write = store.replace(&shard, &Page::Orders, None, Some(&note));
    eventually("it is written", async || {
        timeout(Duration::from_millis(50), &mut write).await.expect_err("it does not hear the answer");
        other.read(&shard, &Page::Orders).await.unwrap().is_some()
    })
    .await;
    drop(write);
    // Time enough to revoke its etcd lease.
    sleep(Duration::from_secs(1)).await;
    let note = other.read(&shard, &Page::Orders).await.unwrap().expect("it is there");
    assert!(note.lasts.is_some_and(|left| left > lasts - Duration::from_secs(20)), "{note:?}");
}

#[tokio::test]
async fn a_lock_that_was_claimed_again_does_not_hang_on_the_lease_of_the_first_claim() {
    let server = old_server().await;
    let store = open(&server.own_url()).await;
    let one = with_lease("one", Duration::from_mins(1));
    let unheard = lead(&*store, &one).await;
    let first = server.lease_of(LOCK);
    let term = lead(&*store, &one).await;
    // It may have been a leadership that ran out, and this is another one.
    assert!(term > unheard);
    let leases = || server.etcdctl(&["lease", "list"]);
    eventually("the lease of the first claim is gone", async || !leases().contains(&first)).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

/// etcd removes an expired key up to half a second late. A renewal that arrives in between sees the lock, and is told at
/// the same time that its lease is gone.
#[tokio::test]
async fn a_renewal_between_the_expiry_and_its_execution_is_no_renewal() {
    let server = old_server().await;
    let (first, second) = (open(&server.own_url()).await, open(&server.own_url()).await);
    for delay in [1000, 1100, 1300] {
        let (one, two) = (with_lease("one", Duration::from_secs(1)), candidate("two"));
        let term = lead(&*first, &one).await;
        tokio::time::sleep(Duration::from_millis(delay)).await;
        let sent = Instant::now();
        match first.renew(&one, term, 1).await.unwrap() {
            Renewal::Renewed => {
                let claim = second.claim(&two).await.unwrap();
                assert!(matches!(claim, Claim::Refused(_)) || sent.elapsed() > one.lease, "{claim:?} after {delay} ms");
                first.release(&one, term).await.unwrap();
            }
            Renewal::Lost(None) => {}
            other => panic!("{other:?}"),
        }
        // etcd may not have removed the key yet.
        let grant = granted_in_time(&*second, &two).await;
        second.release(&two, grant.term).await.unwrap();
    }
}
