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
