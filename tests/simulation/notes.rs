//! Notes: many hosts that write the same one over a network that loses, delays and doubles what they say.

use crate::clock::elapsed;
use crate::fleet::simulate;
use crate::network::Network;
use crate::random::Random;
use crate::story::Kind;
use crate::world::World;
use leaderrun::internals::lease::{Session, Shard};
use leaderrun::internals::store::{Note, Page, Store};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const HOSTS: usize = 5;
const WRITES: usize = 40;
const TIMEOUT: Duration = Duration::from_secs(2);

fn shard() -> Shard {
    "noted".parse().expect("a shard")
}

fn hosts(kind: Kind, network: &Network) -> Vec<Arc<dyn Store>> {
    let documents = kind.documents();
    (0..HOSTS).map(|host| documents.open(host, network.clone(), World::default())).collect()
}

/// Reads until there is an answer.
async fn text(store: &dyn Store, page: &Page) -> Option<String> {
    loop {
        if let Ok(Ok(note)) = timeout(TIMEOUT, store.read(&shard(), page)).await {
            return note.map(|note| note.text);
        }
    }
}

/// Which text was replaced by which, as far as writers were told.
type Replaced = Arc<Mutex<BTreeMap<Option<String>, String>>>;

async fn write_often(host: usize, store: Arc<dyn Store>, replaced: Replaced) {
    for number in 0..WRITES {
        let page = Page::Orders;
        let before = text(&*store, &page).await;
        let draft = Note::for_ever(format!("{host} {number}"));
        let written = timeout(TIMEOUT, store.replace(&shard(), &page, before.as_deref(), Some(&draft))).await;
        if let Ok(Ok(true)) = written {
            let mut replaced = replaced.lock().expect("nobody panicked");
            let other = replaced.insert(before.clone(), draft.text.clone());
            assert_eq!(other, None, "{before:?} was replaced twice, also by {}", draft.text);
        }
    }
}

#[test]
fn no_text_is_replaced_by_two_writers() {
    for kind in [Kind::Shared, Kind::Scripted, Kind::Comparing] {
        for seed in 0..20 {
            let count = simulate(async {
                let network = Network::new(Random::new(seed));
                network.set_rough(true);
                let replaced = Replaced::default();
                let mut writers = tokio::task::JoinSet::new();
                for (host, store) in hosts(kind, &network).into_iter().enumerate() {
                    writers.spawn(write_often(host, store, Arc::clone(&replaced)));
                }
                writers.join_all().await;
                replaced.lock().expect("nobody panicked").len()
            });
            assert!(count > WRITES, "{kind:?} {seed}: only {count} writes");
        }
    }
}

#[test]
fn a_note_ends_within_four_seconds_of_its_time_for_every_host() {
    const LASTS: Duration = Duration::from_secs(10);
    for kind in [Kind::Shared, Kind::Scripted, Kind::Comparing] {
        for seed in 0..20 {
            simulate(async {
                let network = Network::new(Random::new(seed));
                let hosts = hosts(kind, &network);
                let page = Page::Standby(Session::from_record("s-1"));
                let draft = Note::lasting("waits".to_owned(), Some(LASTS));
                let begun = elapsed();
                assert_eq!(hosts[0].replace(&shard(), &page, None, Some(&draft)).await, Ok(true));
                for host in &hosts {
                    while text(&**host, &page).await.is_some() {
                        sleep(Duration::from_millis(100)).await;
                    }
                    let lasted = elapsed() - begun;
                    let four_later = LASTS + Duration::from_secs(4);
                    assert!(lasted >= LASTS && lasted < four_later, "{kind:?} {seed}: {lasted:?}");
                }
            });
        }
    }
}
