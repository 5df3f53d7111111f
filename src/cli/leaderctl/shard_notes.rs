//! What the notes of many shards say: who paused them, and how their jobs went.
//!
//! The hazard: a store lists leases in a few requests, but some stores read each note on its own: three requests for
//! each shard. So where requests cost money, and where there are very many shards, the user must ask for it. And one
//! note that cannot be read must not hide all shards: what is wrong with it stands in its place.

use super::jobs::words;
use super::prelude::*;
use super::slots::ParentPause;
use crate::notes::jobs;
use crate::notes::jobs::index::{self, Indexed};
use crate::notes::orders::{HandoverOrder, Orders};
use crate::store::{Page, Store};

/// The most shards whose notes are read without being asked for.
const MOST: usize = 1000;

/// Adds what the notes say. Leaves the shards as they are if the notes are not to be read unasked.
pub async fn add_notes(store: &dyn Store, list: &mut [(Shard, Shown)], asked: bool) -> Answer<()> {
    if !asked && (store.is_metered() || list.len() > MOST) {
        return Ok(());
    }
    let names: BTreeSet<Shard> =
        list.iter().flat_map(|(shard, _)| [Some(shard.clone()), shard.parent()]).flatten().collect();
    let pages = |shard: &Shard| [Page::Orders, Page::Runs, Page::Jobs].map(|page| (shard.clone(), page));
    let wanted: Vec<_> = names.iter().flat_map(pages).collect();
    let mut texts = store.read_notes(&wanted).await?.into_iter();
    let mut read = BTreeMap::new();
    for shard in names {
        let (Some(orders), Some(runs), Some(index)) = (texts.next(), texts.next(), texts.next()) else { break };
        let found = orders.and_then(|orders| {
            let ledger = jobs::last_in(runs?.as_ref(), &shard)?;
            let jobs = index::read_in(index?.as_ref(), &shard, ledger.as_ref())?;
            Ok((Orders::read(orders.as_ref(), &shard)?, ledger, jobs))
        });
        read.insert(shard, found);
    }
    for (shard, shown) in list {
        shown.parent_pause = shard.parent().and_then(|parent| {
            let (orders, ..) = read.get(&parent)?.as_ref().ok()?;
            Some(ParentPause { pause: orders.pause.clone()?, parent })
        });
        match read.get(shard) {
            Some(Ok((orders, ledger, jobs))) => {
                shown.orders = Some(orders.clone());
                shown.ledger.clone_from(ledger);
                shown.jobs.clone_from(jobs);
            }
            Some(Err(error)) => shown.trouble = Some(error.message.clone()),
            None => {}
        }
    }
    Ok(())
}

/// Pauses, a handover and the last runs, on one line.
pub fn note(shown: &Shown) -> String {
    let periodic = shown.ledger.as_ref().map(Indexed::of_period);
    let runs = periodic.iter().chain(shown.jobs.first()).map(|job| words(job, &shown.report));
    let all = ordered(shown, ago).chain(runs).chain(shown.trouble.clone());
    on_one_line(all.collect::<Vec<_>>().join("; "))
}

/// What operators ordered, in words. `when` says when.
pub fn ordered(shown: &Shown, when: fn(u64) -> String) -> impl Iterator<Item = String> {
    let handover = shown.orders.as_ref().and_then(|orders| orders.handover.as_ref());
    let handover = handover.map(|HandoverOrder { term, to, by, since_millis, .. }| {
        let to = to.as_deref().unwrap_or("anybody else");
        format!("handover of term {term} to {to}, by {by} {}", when(*since_millis))
    });
    pauses(shown, when).map(|(_, words)| words).chain(handover)
}

/// The pauses of the shard and of all slots of its parent, in words.
pub fn pauses(
    Shown { orders, parent_pause, .. }: &Shown,
    when: fn(u64) -> String,
) -> impl Iterator<Item = (&PauseOrder, String)> {
    let own = orders.as_ref().and_then(|orders| orders.pause.as_ref()).map(|pause| (pause, String::new()));
    let above = parent_pause.as_ref();
    let above = above.map(|ParentPause { parent, pause }| (pause, format!(" with all slots of {parent}")));
    own.into_iter().chain(above).map(move |(pause, with)| {
        let PauseOrder { by, since_millis, reason, keep, left, .. } = pause;
        let until = left.map_or("until it is resumed".to_owned(), |left| format!("for another {}", show_seconds(left)));
        let keep = if *keep { ", the leader goes on" } else { "" };
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        (pause, format!("paused{with} by {by} {}, {until}{keep}{reason}", when(*since_millis)))
    })
}
