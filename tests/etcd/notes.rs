//! Notes, and the etcd leases that end them.

use super::*;
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::{ErrorKind, Note, Page, Renewal};

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
    let store = open(&server.store_url()).await;
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
    let store = open(&server.store_url()).await;
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
    let store = open(&server.store_url()).await;
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
        let note = open(&server.store_url()).await.read(&shard, &Page::Orders).await.unwrap();
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
async fn a_note_that_is_replaced_again_and_again_is_there_whenever_it_is_read() {
    let server = Server::start();
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let (shard, page) = (shard(), standby());
    assert_eq!(first.replace(&shard, &page, None, Some(&lasting("0"))).await, Ok(true));
    let writing = async {
        for number in 0..200 {
            let (before, after) = (number.to_string(), lasting(&(number + 1).to_string()));
            assert_eq!(first.replace(&shard, &page, Some(&before), Some(&after)).await, Ok(true));
        }
    };
    let reading = async {
        loop {
            // Faster than it can be read, it says.
            match second.read(&shard, &page).await {
                Ok(note) => assert!(note.is_some()),
                Err(error) => assert_eq!(error.kind, ErrorKind::NotApplied, "{error}"),
            }
            match second.standbys("").await {
                Ok(standbys) => assert_eq!(standbys.len(), 1),
                Err(error) => assert_eq!(error.kind, ErrorKind::NotApplied, "{error}"),
            }
        }
    };
    tokio::select! {
        () = writing => {}
        () = reading => unreachable!("it goes on"),
    }
}

#[tokio::test]
async fn what_something_else_wrote_is_named_or_left_out() {
    let server = Server::start();
    let store = open(&server.store_url()).await;
    let (shard, page) = (shard(), standby());
    assert_eq!(store.replace(&shard, &page, None, Some(&lasting("ours"))).await, Ok(true));
    let bytes = |key: &str| {
        let shell = format!("printf 'a\\377' | ETCDCTL_API=3 etcdctl --endpoints http://{} put {key}", server.host());
        assert!(std::process::Command::new("sh").args(["-c", &shell]).status().unwrap().success());
    };
    bytes(ORDERS);
    bytes("leaderrun/standby/db/main=x");
    for key in ["db/main", "no name=x", "=x"] {
        server.put(&format!("leaderrun/standby/{key}"), "theirs");
    }
    let error = store.read(&shard, &Page::Orders).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misconfigured);
    assert!(error.message.contains(ORDERS), "{error}");
    let standbys = store.standbys("").await.unwrap();
    assert_eq!(standbys.iter().map(|(_, note)| note.text.as_str()).collect::<Vec<_>>(), ["ours"]);
}

#[tokio::test]
async fn hundreds_of_standbys_are_each_found_once() {
    let server = Server::start();
    let store = open(&server.store_url()).await;
    for number in 0..300 {
        let shard = format!("s{}/{}", number % 3, number % 2).parse().unwrap();
        let note = Note::lasting(number.to_string(), Some(Duration::from_mins(number + 1)));
        assert_eq!(store.replace(&shard, &standby(), None, Some(&note)).await, Ok(true));
    }
    let standbys = store.standbys("s").await.unwrap();
    for (_, note) in &standbys {
        let minutes = Duration::from_mins(note.text.parse::<u64>().unwrap() + 1);
        assert!(note.lasts.is_some_and(|left| left <= minutes && left > minutes - Duration::from_mins(1)), "{note:?}");
    }
    let mut numbers: Vec<u64> = standbys.iter().map(|(_, note)| note.text.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
    assert_eq!(store.standbys("s1/").await.unwrap().len(), 100);
}

#[tokio::test]
async fn a_note_for_longer_than_etcd_grants_lasts_for_ever() {
    let server = Server::start();
    let store = open(&server.store_url()).await;
    for lasts in [Duration::MAX, Duration::from_secs(9_500_000_000)] {
        let (page, note) = (standby(), Note::lasting("ever".to_owned(), Some(lasts)));
        assert_eq!(store.replace(&shard(), &page, None, Some(&note)).await, Ok(true));
        assert_eq!(store.read(&shard(), &page).await, Ok(Some(Note::for_ever("ever"))));
    }
    let (page, note) = (standby(), Note::lasting("long".to_owned(), Some(Duration::from_hours(1_944_444))));
    assert_eq!(store.replace(&shard(), &page, None, Some(&note)).await, Ok(true));
    assert!(store.read(&shard(), &page).await.unwrap().unwrap().lasts.is_some());
}

#[tokio::test]
async fn orders_come_with_the_answer_to_a_renewal_and_do_it_no_harm() {
    let server = Server::start();
    let store = open(&server.store_url()).await;
    let one = candidate("one");
    store.vouch().await.unwrap();
    let term = lead(&*store, &one).await;
    let sequence = std::cell::Cell::new(0);
    let renew = async || {
        sequence.set(sequence.get() + 1);
        let renewed = store.renew_and_read(&one, term, sequence.get(), &[shard(), shard()]).await.unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
        renewed.orders
    };
    assert_eq!(renew().await, Some(vec![None, None]));
    assert_eq!(store.replace(&shard(), &Page::Orders, None, Some(&Note::for_ever("one"))).await, Ok(true));
    assert_eq!(renew().await, Some(vec![Some(Note::for_ever("one")), Some(Note::for_ever("one"))]));
    assert_eq!(store.replace(&shard(), &Page::Orders, Some("one"), Some(&lasting("two"))).await, Ok(true));
    let orders = renew().await.expect("they came").remove(0).expect("they stand");
    assert!(orders.text == "two" && orders.lasts.is_some_and(|left| left > Duration::from_secs(50)), "{orders:?}");
    server.etcdctl(&["del", ORDERS]);
    assert_eq!(renew().await, Some(vec![None, None]));
}
