//! The picture as JSON. `openapi.yaml` describes it, and tests compare the two.

use super::super::fleet::{Picture, Seen};
use super::super::history;
use super::super::{as_json, status::Status};
use crate::lease::Shard;
use crate::time::{BootInstant, rfc3339};
use serde::Serialize;

/// The beginning of every answer. Fields are added, never renamed or removed.
#[derive(Debug, Serialize)]
struct Reading<'a> {
    /// RFC 3339. None before the first answer of the store.
    read: Option<String>,
    age_seconds: Option<f64>,
    trouble: Option<Trouble<'a>>,
}

#[derive(Debug, Serialize)]
struct Trouble<'a> {
    since: String,
    message: &'a str,
}

#[derive(Debug, Serialize)]
struct Shards<'a> {
    #[serde(flatten)]
    reading: Reading<'a>,
    shards: Vec<One<'a>>,
}

/// A shard as `list --json` prints it, with its condition.
#[derive(Debug, Serialize)]
struct One<'a> {
    #[serde(flatten)]
    status: Status<'a>,
    condition: &'static str,
    needs_attention: bool,
    /// RFC 3339. None while the shard is led, and if it is not known.
    leaderless_since: Option<String>,
}

#[derive(Debug, Serialize)]
struct History<'a> {
    #[serde(flatten)]
    reading: Reading<'a>,
    shard: &'a str,
    #[serde(rename = "history")]
    leaderships: Vec<history::Line<'a>>,
}

#[derive(Debug, Serialize)]
struct Hosts<'a> {
    #[serde(flatten)]
    reading: Reading<'a>,
    hosts: Vec<Host<'a>>,
}

#[derive(Debug, Serialize)]
struct Host<'a> {
    host: &'a str,
    leads: Vec<&'a str>,
}

fn reading(picture: &Picture) -> Reading<'_> {
    let now = BootInstant::now();
    Reading {
        read: picture.reading.map(|reading| rfc3339(reading.at_millis)),
        age_seconds: picture.reading.map(|reading| now.since(reading.at).as_secs_f64()),
        trouble: picture
            .trouble
            .as_ref()
            .map(|trouble| Trouble { since: rfc3339(trouble.since_millis), message: &trouble.message }),
    }
}

fn one<'a>(shard: &'a Shard, seen: &'a Seen) -> One<'a> {
    let condition = seen.condition();
    One {
        status: Status::of(shard, &seen.shown),
        condition: condition.name(),
        needs_attention: condition.needs_attention(),
        leaderless_since: seen.free_since.filter(|_| seen.holder().is_none()).map(rfc3339),
    }
}

fn text(value: &impl Serialize) -> String {
    as_json(value) + "\n"
}

pub fn shards(picture: &Picture) -> String {
    let shards = picture.shards.iter().map(|(shard, seen)| one(shard, seen)).collect();
    text(&Shards { reading: reading(picture), shards })
}

pub fn history_of(picture: &Picture, shard: &Shard, seen: &Seen) -> String {
    let leads = seen.holder().and_then(|holder| holder.term);
    let leaderships = seen.history.iter().map(|entry| history::Line::of(shard, entry, leads)).collect();
    text(&History { reading: reading(picture), shard: shard.as_str(), leaderships })
}

pub fn hosts(picture: &Picture) -> String {
    let hosts = picture.hosts().into_iter();
    let hosts = hosts.map(|(host, leads)| Host { host, leads: leads.into_iter().map(Shard::as_str).collect() });
    text(&Hosts { reading: reading(picture), hosts: hosts.collect() })
}
