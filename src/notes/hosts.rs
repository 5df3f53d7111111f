//! Hosts that are held back, for maintenance: their candidates claim nothing for some time.
//!
//! The order is a pause of a shard that is named after the host and that nobody leads. Candidates read it after a
//! grant, and while it holds them back; a leader that runs COMMAND does not read it again. So it costs one request for
//! each grant, and none for a renewal.
//!
//! The hazard: a store may deny a candidate the notes of another shard. An election is safe without this order, so one
//! that cannot be read holds no candidate back.

use super::orders::{self, Orders, PauseOrder};
use crate::election::Pause;
use crate::lease::{Candidate, Shard};
use crate::store::{Answer, ErrorKind, Notes, Page, Store};
use std::collections::BTreeMap;

/// The shard whose orders are those of a host. None if the host's name cannot be part of one.
pub fn shard_of(host: &str) -> Option<Shard> {
    if host.is_empty() || host.contains(['/', '#']) { None } else { format!("leaderctl/host/{host}").parse().ok() }
}

pub async fn pause(store: &dyn Notes, candidate: &Candidate) -> Answer<Option<Pause>> {
    let Some(shard) = shard_of(&candidate.host) else { return Ok(None) };
    let order = match orders::read(store, &shard).await {
        Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => None,
        orders => orders?.pause,
    };
    let order = order.filter(|order| order.is_for(&candidate.shard));
    Ok(order.map(|order| Pause { keep: true, left: order.left, said: order.said_of(&candidate.host) }))
}

pub async fn held<'a>(
    store: &dyn Store,
    hosts: impl IntoIterator<Item = &'a str>,
) -> Answer<BTreeMap<String, PauseOrder>> {
    let hosts: Vec<_> = hosts.into_iter().filter_map(|host| Some((host, shard_of(host)?))).collect();
    let pages: Vec<_> = hosts.iter().map(|(_, shard)| (shard.clone(), Page::Orders)).collect();
    let notes = store.read_notes(&pages).await?;
    let held = hosts.into_iter().zip(notes).filter_map(|((host, shard), note)| {
        let orders = Orders::read(note.ok()?.as_ref(), &shard).ok()?;
        Some((host.to_owned(), orders.pause?))
    });
    Ok(held.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Session;
    use crate::store::lease_store::memory::reference;
    use std::time::Duration;

    #[tokio::test]
    async fn a_host_is_held_back_from_the_shards_that_the_order_names_and_no_other_host_is() {
        let store = reference();
        let mut order = orders::pause(None, true, Some(Duration::from_mins(1))).unwrap();
        order.prefix = Some("db/".to_owned());
        let shard = shard_of("web1").unwrap();
        orders::change(&store, &shard, |orders| orders.pause.replace(order.clone()).is_none()).await.unwrap();
        let candidate = |host: &str, shard: &str| Candidate {
            host: host.to_owned(),
            shard: shard.parse().unwrap(),
            session: Session::from_record("s"),
            ..Candidate::example()
        };
        let pause = pause(&store, &candidate("web1", "db/main")).await.unwrap().unwrap();
        assert!(pause.keep && pause.left.is_some() && pause.said.starts_with("on web1 by "), "{pause:?}");
        for (host, shard) in [("web1", "report"), ("web2", "db/main"), ("we#b", "db/main")] {
            assert_eq!(super::pause(&store, &candidate(host, shard)).await, Ok(None), "{host} {shard}");
        }
        let held = held(&store, ["web1", "web2", "a/b"]).await.unwrap();
        assert_eq!(held.keys().collect::<Vec<_>>(), ["web1"]);
    }
}
