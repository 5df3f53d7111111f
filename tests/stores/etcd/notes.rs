//! Notes, and the etcd leases that end them.

use super::*;

fn standby() -> Page {
    Page::Standby(Session::random().unwrap())
}

fn lasting(text: &str) -> Note {
    Note::lasting(text.to_owned(), Some(Duration::from_mins(1)))
}

async fn leases_left(server: &Server, count: usize) {
    let found = format!("found {count} leases");
    eventually(&found, async || server.etcdctl(&["lease", "list"]).starts_with(&found)).await;
}

#[tokio::test]
async fn a_note_that_is_replaced_leaves_no_etcd_lease() {
    let server = Server::start();
    let store = open(&server.own_url()).await;
    let shard = shard();
    let text = async || store.read(&shard, &Page::Orders).await.unwrap().map(|note| note.text);
    assert_eq!(store.replace(&shard, &Page::Orders, None, Some(&lasting("one"))).await, Ok(true));
    assert_eq!(store.replace(&shard, &Page::Orders, None, Some(&lasting("two"))).await, Ok(false));
    assert_eq!(store.replace(&shard, &Page::Orders, Some("one"), Some(&lasting("three"))).await, Ok(true));
    leases_left(&server, 1).await;
    assert_eq!(text().await.as_deref(), Some("three"));
    assert_eq!(store.replace(&shard, &Page::Orders, Some("three"), Some(&Note::for_ever("four"))).await, Ok(true));
    leases_left(&server, 0).await;
    assert_eq!(store.read(&shard, &Page::Orders).await, Ok(Some(Note::for_ever("four"))));
    assert_eq!(store.replace(&shard, &Page::Orders, Some("four"), Some(&lasting("five"))).await, Ok(true));
    assert_eq!(store.replace(&shard, &Page::Orders, Some("five"), None).await, Ok(true));
    leases_left(&server, 0).await;
    assert_eq!(text().await, None);
}

#[tokio::test]
async fn a_note_for_longer_than_etcd_grants_lasts_as_long_as_that() {
    let server = Server::start();
    let store = open(&server.own_url()).await;
    let (page, note) = (standby(), Note::lasting("long".to_owned(), Some(Duration::MAX)));
    assert_eq!(store.replace(&shard(), &page, None, Some(&note)).await, Ok(true));
    let read = store.read(&shard(), &page).await.unwrap().unwrap();
    assert!(read.lasts.is_some_and(|lasts| lasts > Duration::from_hours(1_900_000)), "{read:?}");
}
