//! What a poll reads, and when items end. What happens around them is tested once for every store (tests/lease_store).

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const HOUR: u64 = 3_600_000;

#[tokio::test]
async fn a_poll_reads_one_item_at_half_the_price() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let (leader, standby) = (store(&server.endpoint(), &table).await, store(&proxy.endpoint(), &table).await);
    let one = candidate("one");
    lead(&leader, &one).await;
    // The first look of a process knows the table's marker as well.
    assert!(matches!(standby.observe(&one.shard).await.unwrap(), Observation::Held(_)));
    proxy.actions();
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
async fn dynamodbs_ttl_takes_a_note_a_day_after_its_end_and_never_one_without() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    let soon = Note::lasting("soon".to_owned(), Some(Duration::from_mins(1)));
    let begun = millis_now();
    assert_eq!(store.replace(&shard(), &Page::History, None, Some(&soon)).await, Ok(true));
    let took = millis_now() - begun;
    let note = item(&client, &table, "HISTORY").await.expect("it stands");
    assert_eq!(note["text"], text("soon"));
    let (lasts, ttl) = (millis_in(&note, "expiresMs") - begun, millis_in(&note, "ttl"));
    assert!((59_000..=63_000 + took).contains(&lasts), "it lasts for {lasts} ms");
    assert!(ttl * 1000 >= millis_in(&note, "expiresMs") + 24 * HOUR, "{ttl}");

    let ever = Note::for_ever("ever");
    assert_eq!(store.replace(&shard(), &Page::History, Some("soon"), Some(&ever)).await, Ok(true));
    let note = item(&client, &table, "HISTORY").await.expect("it stands");
    assert!(!note.contains_key("ttl") && !note.contains_key("expiresMs"), "{note:?}");
}
