//! What the bucket forgot: dropped and made again, emptied, a record deleted by hand, garbage in its place.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;

#[tokio::test]
async fn in_a_bucket_that_is_younger_than_the_lease_the_first_leader_waits() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    let left = wait_of(&granted(store.claim(&candidate("one")).await.unwrap()));
    assert!(left > LEASE - Duration::from_secs(10) && left <= LEASE - SHORT, "{left:?}");
}

#[tokio::test]
async fn who_does_not_hold_the_lease_leaves_the_led_mark_in_its_place() {
    let server = server().await;
    let (old, new) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = short("one");
    let term = lead(&*old, &one).await;
    assert_eq!(new.forget(&short("two"), term).await, Ok(Release::NotHeld));
    assert!(server.client().message(LED_MARK).is_some());
    assert_eq!(old.release(&one, term).await, Ok(Release::Released));
    assert_eq!(old.forget(&one, term).await, Ok(Release::NotHeld));
    assert!(server.client().message(LED_MARK).is_some());
}

#[tokio::test]
async fn in_a_bucket_that_is_older_than_the_lease_nobody_waits() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    let one = short("one");
    let first = lead(&*store, &one).await;
    assert_eq!(store.release(&one, first).await, Ok(Release::Released));
    let two = short("two");
    assert!(lead(&*store, &two).await > first);
    // That one crashes.
    let other = open(&server.own_url()).await;
    assert_eq!(granted_in_time(&*other, &short("three")).await.start_after, None);
}

#[tokio::test]
async fn a_bucket_without_a_marker_gets_one_and_the_leader_waits() {
    let server = server().await;
    server.client().purge(MARKER);
    let store = open(&server.own_url()).await;
    assert!(wait_of(&granted(store.claim(&short("one")).await.unwrap())) > Duration::ZERO);
    assert!(server.client().message(MARKER).is_some());
}

#[tokio::test]
async fn after_the_bucket_was_dropped_and_made_again_the_old_leader_has_lost_and_the_new_one_waits() {
    let server = server().await;
    let (old, new) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let (one, two) = (short("one"), candidate("two"));
    let before = lead(&*old, &one).await;
    server.client().api(&format!("STREAM.DELETE.KV_{BUCKET}"), &serde_json::Value::Null);
    let error = old.renew(&one, before, 1).await.unwrap_err();
    assert!(error.kind == ErrorKind::Misconfigured && error.message.contains("leaderctl store init"), "{error}");
    new.prepare().await.unwrap();
    let grant = granted(new.claim(&two).await.unwrap());
    assert!(wait_of(&grant) > LEASE - Duration::from_secs(8), "{grant:?}");
    assert!(grant.term > before, "{} after {before}", grant.term);
    let lost = old.renew(&one, before, 2).await.unwrap();
    assert!(matches!(lost, Renewal::Lost(Some(holder)) if holder.owner == "two"));
    assert_eq!(old.release(&one, before).await, Ok(Release::NotHeld));
    assert_eq!(new.renew(&two, grant.term, 1).await, Ok(Renewal::Renewed));
}

/// The claimant may have known the old bucket, and the old leader renews into the new one by the number of a revision.
#[tokio::test]
async fn revisions_of_a_bucket_that_was_made_again_do_not_meet_the_old_ones() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    granted(store.claim(&short("one")).await.unwrap());
    let before = server.client().revision(KEY);
    server.client().api(&format!("STREAM.DELETE.KV_{BUCKET}"), &serde_json::Value::Null);
    store.prepare().await.unwrap();
    let info = server.client().info();
    assert!(info["state"]["first_seq"].as_u64().unwrap() > before, "{info} {before}");
}

#[tokio::test]
async fn an_emptied_bucket_makes_the_leader_wait() {
    let server = server().await;
    let (old, new) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = short("one");
    let before = lead(&*old, &one).await;
    server.client().api(&format!("STREAM.PURGE.KV_{BUCKET}"), &serde_json::Value::Null);
    let grant = granted(new.claim(&short("two")).await.unwrap());
    assert!(wait_of(&grant) > Duration::ZERO && grant.term > before, "{grant:?}");
    assert!(matches!(old.renew(&one, before, 1).await, Ok(Renewal::Lost(Some(_)))));
}

#[tokio::test]
async fn a_lock_that_was_purged_by_hand_makes_the_next_leader_wait_a_whole_lease() {
    let server = server().await;
    let (old, new) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = short("one");
    let before = lead(&*old, &one).await;
    server.client().purge(KEY);
    let grant = granted(new.claim(&short("two")).await.unwrap());
    assert!(wait_of(&grant) > SHORT / 5 && wait_of(&grant) <= SHORT, "{grant:?}");
    assert!(grant.term > before, "{} after {before}", grant.term);
    assert!(matches!(old.renew(&one, before, 1).await, Ok(Renewal::Lost(Some(_)))));
}

#[tokio::test]
async fn the_longest_lease_that_ever_was_is_waited_for_when_the_lock_vanished() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    let one = with_lease("one", Duration::from_mins(1));
    let grant = granted(store.claim(&one).await.unwrap());
    store.release(&one, grant.term).await.unwrap();
    let two = candidate("two");
    let grant = granted(store.claim(&two).await.unwrap());
    store.renew(&two, grant.term, 1).await.unwrap();
    server.client().purge(KEY);
    let left = wait_of(&granted(open(&server.own_url()).await.claim(&short("three")).await.unwrap()));
    assert!(left > Duration::from_secs(50) && left <= Duration::from_mins(1), "{left:?}");
}

#[tokio::test]
async fn a_lock_that_was_deleted_by_hand_makes_the_next_leader_wait_from_then() {
    let server = server().await;
    let (old, new) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = with_lease("one", 4 * SHORT);
    let before = granted(old.claim(&one).await.unwrap()).term;
    server.client().delete(KEY);
    assert_eq!(old.renew(&one, before, 1).await, Ok(Renewal::Lost(None)));
    assert_eq!(new.observe(&shard()).await, Ok(Observation::Free));
    sleep(SHORT).await;
    let grant = granted(new.claim(&with_lease("two", 4 * SHORT)).await.unwrap());
    assert!(wait_of(&grant) > Duration::ZERO && wait_of(&grant) <= 3 * SHORT, "{grant:?}");
    assert!(grant.term > before, "{} after {before}", grant.term);
}

#[tokio::test]
async fn a_lock_that_was_deleted_by_hand_makes_the_next_leader_wait_also_in_an_old_bucket() {
    let server = server().await;
    sleep(4 * SHORT).await;
    let store = open(&server.own_url()).await;
    lead(&*store, &with_lease("one", 4 * SHORT)).await;
    server.client().delete(KEY);
    let grant = granted(open(&server.own_url()).await.claim(&with_lease("two", 4 * SHORT)).await.unwrap());
    assert!(wait_of(&grant) > Duration::ZERO, "{grant:?}");
}

#[tokio::test]
async fn a_lock_that_was_deleted_longer_ago_than_a_lease_makes_nobody_wait() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    let one = short("one");
    lead(&*store, &one).await;
    server.client().delete(KEY);
    sleep(SHORT + Duration::from_millis(20)).await;
    lead(&*open(&server.own_url()).await, &short("two")).await;
}

/// The led mark was not written yet when the first leader of the shard crashed.
#[tokio::test]
async fn a_claim_over_a_record_without_a_led_mark_writes_one() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    lead(&*store, &short("one")).await;
    server.client().purge(LED_MARK);
    let other = open(&server.own_url()).await;
    granted_in_time(&*other, &short("two")).await;
    assert!(server.client().message(LED_MARK).is_some());
    server.client().purge(KEY);
    assert!(wait_of(&granted(store.claim(&short("three")).await.unwrap())) > Duration::ZERO);
}

#[tokio::test]
async fn terms_rise_over_releases_expiries_deletions_and_wipes() {
    let server = server().await;
    let mut last = Term(0);
    for round in 0..12 {
        let store = open(&server.own_url()).await;
        let one = short("one");
        let grant = granted_in_time(&*store, &one).await;
        assert!(grant.term > last, "round {round}: {} after {last}", grant.term);
        last = grant.term;
        match round % 4 {
            0 => drop(store.release(&one, last).await.unwrap()),
            1 => server.client().purge(KEY),
            2 => {
                server.client().api(&format!("STREAM.DELETE.KV_{BUCKET}"), &serde_json::Value::Null);
                store.prepare().await.unwrap();
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_record_of_another_program_is_respected_and_named() {
    for garbage in ["", "7", "hello", "{}", r#"{"session":1}"#, "\u{1}"] {
        let server = server().await;
        let store = open(&server.own_url()).await;
        let revision = server.client().put(KEY, "", garbage);
        for error in [
            store.claim(&short("one")).await.unwrap_err(),
            store.observe(&shard()).await.unwrap_err(),
            store.inspect(&shard()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Misconfigured);
            assert!(error.message.contains("nats kv del locks db/main"), "{error}");
        }
        assert_eq!(store.release(&short("one"), Term(1)).await, Ok(Release::NotHeld));
        assert_eq!(server.client().revision(KEY), revision, "{garbage:?} was overwritten");
    }
}

#[tokio::test]
async fn a_leader_whose_record_was_overwritten_has_lost() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    let one = short("one");
    let term = lead(&*store, &one).await;
    server.client().put(KEY, "", "hello");
    let Ok(Renewal::Lost(Some(holder))) = store.renew(&one, term, 1).await else { panic!("renewed over it") };
    assert_eq!(holder.owner, "something that writes other records");
}
