//! The snapshot as JSON. `openapi.yaml` describes it, and tests compare the two.

use super::super::fleet::{Seen, Snapshot};
use super::super::prelude::*;
use super::super::{history, status};

fn reading(snapshot: &Snapshot) -> impl Serialize + use<'_> {
    let now = BootInstant::now();
    object! {
        read: snapshot.reading.map(|reading| rfc3339(reading.at_millis)),
        age_seconds: snapshot.reading.map(|reading| now.since(reading.at).as_secs_f64()),
        trouble: snapshot.trouble.as_ref().map(|trouble| object! {
            since: rfc3339(trouble.since_millis),
            message: &trouble.message,
        }),
    }
}

fn one<'a>(shard: &'a Shard, seen: &'a Seen) -> impl Serialize + use<'a> {
    let condition = seen.condition();
    object! {
        #[serde(flatten)]
        status: status::object(shard, &seen.shown),
        condition: condition.into_str(),
        needs_attention: condition.needs_attention(),
        leaderless_since: seen.free_since.filter(|_| seen.holder().is_none()).map(rfc3339),
    }
}

fn text(value: &impl Serialize) -> String {
    as_json(value) + "\n"
}

pub fn shards(snapshot: &Snapshot) -> String {
    text(&object! {
        #[serde(flatten)]
        reading: reading(snapshot),
        shards: snapshot.shards.iter().map(|(shard, seen)| one(shard, seen)).collect::<Vec<_>>(),
    })
}

pub fn history_of(snapshot: &Snapshot, shard: &Shard, seen: &Seen) -> String {
    let leads = seen.leads();
    text(&object! {
        #[serde(flatten)]
        reading: reading(snapshot),
        shard: shard.as_str(),
        history: seen.history.iter().map(|entry| history::object(shard, entry, leads)).collect::<Vec<_>>(),
    })
}

pub fn hosts(snapshot: &Snapshot) -> String {
    text(&object! {
        #[serde(flatten)]
        reading: reading(snapshot),
        hosts: snapshot.hosts().into_iter().map(|(host, leads)| object! {
            host,
            leads: leads.into_iter().map(Shard::as_str).collect::<Vec<_>>(),
        }).collect::<Vec<_>>(),
    })
}
