//! When items end. What happens around them is tested once for every store (tests/lease_store).

use super::*;

const HOUR: u64 = 3_600_000;

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
