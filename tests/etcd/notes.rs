//! Notes, and the etcd leases that end them.

use super::*;

const ORDERS: &str = "leaderrun/note/db/main=orders";

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
async fn the_announcements_of_a_process_share_one_etcd_lease() {
    let server = Server::start();
    let store = open(&server.own_url()).await;
    let pages = [standby(), standby()];
    for round in 0..5 {
        for page in &pages {
            let before = (round > 0).then(|| (round - 1).to_string());
            let note = lasting(&round.to_string());
            assert_eq!(store.replace(&shard(), page, before.as_deref(), Some(&note)).await, Ok(true));
        }
    }
    assert_eq!((server.calls(&["LeaseGrant"]), server.calls(&["LeaseRevoke"])), (1, 0));
    leases_left(&server, 1).await;
    assert_eq!(store.standbys("").await.unwrap().len(), 2);
    let lease = server.lease_in(&format!("leaderrun/standby/db/main={}", session(&pages[0])));
    server.etcdctl(&["lease", "revoke", &lease]);
    assert_eq!(store.standbys("").await.unwrap(), []);
    // The next one makes another.
    assert_eq!(store.replace(&shard(), &pages[0], Some("4"), Some(&lasting("5"))).await, Ok(false));
    assert_eq!(store.replace(&shard(), &pages[0], None, Some(&lasting("5"))).await, Ok(true));
    assert_eq!(store.standbys("").await.unwrap().len(), 1);
}

fn session(page: &Page) -> String {
    let Page::Standby(session) = page else { panic!("it is none of a standby") };
    session.as_str().to_owned()
}

#[tokio::test]
async fn a_note_whose_writer_heard_no_answer_lasts_as_long_as_any() {
    let server = Server::start();
    let store = open(&server.own_url()).await;
    let shard = shard();
    store.read(&shard, &Page::Orders).await.unwrap();
    let lasts = Duration::from_mins(10);
    let draft = Note::lasting("unheard".to_owned(), Some(lasts));
    for attempt in 0.. {
        assert!(attempt < 1000, "no answer was ever lost");
        let mut write = Box::pin(store.replace(&shard, &Page::Orders, None, Some(&draft)));
        // Given up somewhere between the grant of its etcd lease and the answer.
        let given_up = tokio::time::timeout(Duration::from_micros(100 * attempt), &mut write).await.is_err();
        drop(write);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let note = open(&server.own_url()).await.read(&shard, &Page::Orders).await.unwrap();
        match note {
            Some(note) if given_up => {
                assert!(note.lasts.is_some_and(|left| left > lasts - Duration::from_secs(20)), "{note:?}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(server.value(ORDERS).is_some_and(|value| value.contains("unheard")));
                return;
            }
            Some(_) => {
                assert_eq!(store.replace(&shard, &Page::Orders, Some("unheard"), None).await, Ok(true));
            }
            None => {}
        }
    }
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
