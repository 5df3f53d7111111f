//! What the notes of many shards say: who paused them, and how their jobs went.
//!
//! The hazard: a store lists leases in a few requests, but some stores read each note on its own: three requests for
//! each shard. So where requests cost money, and where there are very many shards, the user must ask for it. And one
//! note that cannot be read must not hide all shards: what is wrong with it stands in its place.

use super::jobs::words;
use super::prelude::*;
use super::slots::ParentPause;
use crate::notes::jobs;
use crate::notes::jobs::index;
use crate::notes::orders::Orders;
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

/// Pauses, a handover and the last run, on one line.
pub fn note(shown: &Shown) -> String {
    let pauses = pauses(shown).map(|(_, words)| words);
    let handover = shown.orders.as_ref().and_then(|orders| orders.handover.as_ref()).map(|handover| {
        let to = handover.to.as_ref().map(|to| format!(" to {to}")).unwrap_or_default();
        format!("step-down{to} ordered by {} {}", handover.by, ago(handover.since_millis))
    });
    let run = shown.ledger.as_ref().map(|ledger| {
        let run = ledger.counting();
        let runs = shown.report.leads(run.term);
        match run.to_millis {
            Some(to) => format!("last run {} on {}: {}", ago(to), run.host, run.end()),
            None if runs => format!("runs on {} since {}", run.host, ago(run.from_millis)),
            None => format!("last run began {} on {}: {}", ago(run.from_millis), run.host, run.end()),
        }
    });
    let named = shown.jobs.first().map(|job| words(job, &shown.report));
    let all = pauses.chain([handover, run, named, shown.trouble.clone()].into_iter().flatten());
    on_one_line(all.collect::<Vec<_>>().join("; "))
}

/// The pauses of the shard and of all slots of its parent, in words.
pub fn pauses(Shown { orders, parent_pause, .. }: &Shown) -> impl Iterator<Item = (&PauseOrder, String)> {
    let own = orders.as_ref().and_then(|orders| orders.pause.as_ref());
    let own = own.map(|pause| (pause, format!("paused {}", paused(pause))));
    let above = parent_pause
        .as_ref()
        .map(|ParentPause { parent, pause }| (pause, format!("paused with all slots of {parent} {}", paused(pause))));
    own.into_iter().chain(above)
}

fn paused(PauseOrder { by, since_millis, reason, keep, left, .. }: &PauseOrder) -> String {
    let until = left.map_or("until it is resumed".to_owned(), |left| format!("for another {}", show_seconds(left)));
    let keep = if *keep { ", the leader goes on" } else { "" };
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("by {by} {}, {until}{keep}{reason}", ago(*since_millis))
}
