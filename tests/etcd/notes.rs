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
async fn a_note_for_longer_than_etcd_grants_lasts_for_ever() {
    let server = Server::start();
    let store = open(&server.own_url()).await;
    for lasts in [Duration::MAX, Duration::from_secs(9_500_000_000)] {
        let (page, note) = (standby(), Note::lasting("ever".to_owned(), Some(lasts)));
        assert_eq!(store.replace(&shard(), &page, None, Some(&note)).await, Ok(true));
        assert_eq!(store.read(&shard(), &page).await, Ok(Some(Note::for_ever("ever"))));
    }
    let (page, note) = (standby(), Note::lasting("long".to_owned(), Some(Duration::from_hours(1_944_444))));
    assert_eq!(store.replace(&shard(), &page, None, Some(&note)).await, Ok(true));
    assert!(store.read(&shard(), &page).await.unwrap().unwrap().lasts.is_some());
}
