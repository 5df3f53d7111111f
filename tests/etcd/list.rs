//! Long lists.

use super::*;
use leaderrun::internals::notes::standbys;

const MANY: usize = 1001;
const AT_ONCE: usize = 20;

fn of(number: usize) -> Candidate {
    Candidate { shard: format!("many/{number:04}").parse().unwrap(), ..candidate("one") }
}

#[tokio::test]
async fn a_long_list_asks_for_no_lease_and_a_short_one_for_each() {
    let server = old_server().await;
    let store = open(&server.own_url()).await;
    let claims = |lane: usize| {
        let store = &store;
        async move {
            for number in (lane..MANY).step_by(AT_ONCE) {
                assert!(matches!(store.claim(&of(number)).await, Ok(Claim::Granted(_))));
            }
        }
    };
    parallel::all((0..AT_ONCE).map(claims)).await;
    let asked = || server.calls(&["LeaseTimeToLive"]);
    let before = asked();
    let list = store.list("many/").await.unwrap();
    let mut holders = list.iter().filter_map(|(_, report)| report.holder.as_ref());
    assert_eq!((list.len(), asked()), (MANY, before));
    assert!(holders.all(|holder| holder.term.is_some() && holder.expires_in.is_none()));
    let list = store.list("many/00").await.unwrap();
    assert_eq!((list.len(), asked()), (100, before + 100));
    let mut holders = list.iter().filter_map(|(_, report)| report.holder.as_ref());
    assert!(holders.all(|holder| holder.expires_in.is_some() && holder.renewed_ago.is_some()));
    assert_eq!(standbys::announced(&*store, "").await.unwrap().standbys, []);
}
