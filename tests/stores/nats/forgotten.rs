//! What the bucket forgot: dropped and made again, emptied, a document deleted by hand, something else in its place.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;

#[tokio::test]
async fn revisions_of_a_bucket_that_was_made_again_do_not_meet_the_old_ones() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    lead(&*store, &short("one")).await;
    let before = server.client().revision(KEY);
    drop_bucket(&server);
    store.prepare().await.unwrap();
    let info = server.client().info();
    assert!(info["state"]["first_seq"].as_u64().unwrap() > before, "{info} {before}");
}

#[tokio::test]
async fn what_another_program_wrote_is_named_and_never_overwritten() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    for (headers, value, why) in [
        ("", "", "it has no header Leaderrun"),
        ("", r#"{"session":"s","owner":"one"}"#, "it has no header Leaderrun"),
        ("Leaderrun: {\"format\":2}\r\n", "{}", "its format is 2, and this release reads 1"),
        ("Leaderrun: {\"format\":1,\"write\":\"w\",\"term\":0,\"sequence\":0}\r\n", "hello", "expected value"),
    ] {
        let revision = server.client().put(KEY, headers, value);
        let claim = store.claim(&short("one")).await;
        misconfigured(claim, &format!("the key =shard.db/main of bucket locks in nats at … {why}"));
        assert_eq!(server.client().revision(KEY), revision, "{value:?} was overwritten");
    }
}
