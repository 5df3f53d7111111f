//! Notes: many hosts that write the same one over a network that loses, delays and doubles what they say.

use crate::clock::elapsed;
use crate::fleet::simulate;
use crate::network::Network;
use crate::random::Random;
use crate::story::{Backend, Kind};
use crate::world::World;
use leaderrun::internals::lease::{Candidate, Session, Shard};
use leaderrun::internals::store::{Claim, Note, Page, Store};
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

async fn hosts(kind: Kind, network: &Network) -> Vec<Arc<dyn Store>> {
    let backend = Backend::new(kind);
    let mut hosts = Vec::new();
    for host in 0..HOSTS {
        hosts.push(backend.clone().open(host, network.clone(), World::default(), TIMEOUT).await);
    }
    hosts
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
    for kind in [Kind::DynamoDb, Kind::Reference] {
        for seed in 0..20 {
            let count = simulate(async {
                let network = Network::new(Random::new(seed));
                network.set_rough(true);
                let replaced = Replaced::default();
                let mut writers = tokio::task::JoinSet::new();
                for (host, store) in hosts(kind, &network).await.into_iter().enumerate() {
                    writers.spawn(write_often(host, store, Arc::clone(&replaced)));
                }
                writers.join_all().await;
                replaced.lock().expect("nobody panicked").len()
            });
            assert!(count > WRITES, "{kind:?} {seed}: only {count} writes");
        }
    }
}

/// An operator who died before the stamp, or whose release knows of none, leaves orders that nothing tells of.
#[test]
fn orders_without_a_stamp_are_heard_within_about_a_minute() {
    simulate(async {
        let network = Network::new(Random::new(1));
        let backend = Backend::new(Kind::DynamoDb);
        let Backend::DynamoDb(table) = &backend else { unreachable!("it is DynamoDB") };
        table.mark(0);
        let store = backend.clone().open(0, network, World::default(), TIMEOUT).await;
        let one = Candidate {
            shard: shard(),
            owner: "one".to_owned(),
            session: Session::from_record("s-1"),
            host: "host".to_owned(),
            pid: 7,
            lease: Duration::from_secs(15),
        };
        let Ok(Claim::Granted(grant)) = store.claim(&one).await else { panic!("it is free") };
        let (mut begun, mut reads) = (elapsed(), 0);
        for sequence in 1..=60 {
            if sequence == 30 {
                table.put_unstamped(&shard(), "unheard of");
                begun = elapsed();
            }
            let brought = store.renew_and_read(&one, grant.term, sequence, &[shard()]).await.expect("it is answered");
            let orders = if let Some(orders) = brought.orders {
                orders.into_iter().next().flatten()
            } else {
                reads += 1;
                store.read(&shard(), &Page::Orders).await.expect("it is answered")
            };
            if orders.is_some() {
                let took = elapsed() - begun;
                assert!(took > Duration::ZERO && took < Duration::from_secs(66), "{took:?}");
                assert!((2..=5).contains(&reads), "{reads} reads");
                return;
            }
            sleep(Duration::from_secs(5)).await;
        }
        panic!("it is never heard");
    });
}

#[test]
fn a_note_ends_within_four_seconds_of_its_time_for_every_host() {
    const LASTS: Duration = Duration::from_secs(10);
    for kind in [Kind::DynamoDb, Kind::Reference] {
        for seed in 0..20 {
            simulate(async {
                let network = Network::new(Random::new(seed));
                let hosts = hosts(kind, &network).await;
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
