//! `leaderctl history`: how the last leaderships of a shard went.

use super::list::columns;
use super::prelude::*;
use super::slots::listed;
use super::timeline::{self, stretches};
use crate::notes::history::{self, Entry, Ordered};

#[derive(Debug, Args)]
pub struct HistoryFlags {
    /// The name of the shard
    shard: Shard,

    /// Print each leadership as one JSON object
    #[arg(long)]
    json: bool,

    /// Draw who led when, a line for each host
    #[arg(long, conflicts_with = "json")]
    timeline: bool,
}

/// The end of a leadership that recorded none and does not lead any more.
const UNTOLD: &str = "killed or cut off, or its host crashed: it did not record how it ended";
/// The same after `leaderctl revoke`.
const REVOKED: &str = "it did not record how it ended; an operator revoked the lease";

impl HistoryFlags {
    pub async fn show(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let entries = client.ask(history::read(client.store, &self.shard)).await?;
        let report = client.inspect(&self.shard).await?;
        if entries.is_empty() {
            let operator = Operator { client, shard: &self.shard, json: self.json };
            let slots = operator.known_slots(&report).await?;
            let slots = listed(slots.names());
            let why = match &report {
                Report { holder: Some(holder), .. } if holder.is_foreign() => records_nothing(holder),
                Report { holder: Some(holder), .. } => format!("{holder} leads, and has not recorded that yet"),
                Report { last_term: Some(term), .. } => format!("no leadership is recorded; the last term was {term}"),
                Report { .. } if slots.is_empty() => "no leadership is recorded".to_owned(),
                Report { .. } => format!("no leadership is recorded; there were leaders of {slots}"),
            };
            if !self.json {
                say(format_args!("{}: {why}", self.shard));
            }
        } else if let Some(foreign) = report.holder.as_ref().filter(|holder| holder.is_foreign()) {
            say(format_args!("{}: {}", self.shard, records_nothing(foreign)));
        }
        if self.timeline {
            let shown = Shown { report, ..Shown::of_notes(client, &self.shard).await? };
            let mut lines = timeline::as_text(&stretches(&shown, &entries, wall_clock_millis()), columns());
            if !lines.is_empty() {
                lines.push(timeline::LEGEND.to_owned());
            }
            return print_lines(lines);
        }
        let leads = report.holder.and_then(|holder| holder.term);
        let lines = entries.iter().map(|entry| {
            if self.json { as_json(&object(&self.shard, entry, leads)) } else { as_text(entry, ended(entry, leads)) }
        });
        print_lines(lines)
    }
}

fn records_nothing(foreign: &Holder) -> String {
    format!("{foreign} leads, and records nothing here")
}

pub fn object<'a>(shard: &'a Shard, entry: &'a Entry, leads: Option<Term>) -> impl Serialize + use<'a> {
    object! {
        shard: shard.as_str(),
        term: entry.term,
        owner: &entry.owner,
        host: &entry.host,
        pid: entry.pid,
        from: rfc3339(entry.from_millis),
        to: entry.to_millis.map(rfc3339),
        ended: ended(entry, leads),
        reason: &entry.reason,
        exit_status: entry.exit_status,
        signal: entry.signal,
        ordered: entry.cause().map(|Ordered { what, by, at_millis, reason, to }| object! {
            what,
            by,
            at: rfc3339(*at_millis),
            reason,
            to,
        }),
    }
}

/// None while it lasts.
pub fn ended(entry: &Entry, leads: Option<Term>) -> Option<&str> {
    let how = if entry.cause().is_some() { REVOKED } else { UNTOLD };
    let untold = (leads != Some(entry.term)).then_some(how);
    entry.ended.as_deref().or(untold)
}

pub fn as_text(entry: &Entry, ended: Option<&str>) -> String {
    let to = match (entry.to_millis, ended) {
        (Some(to), _) => dated(to),
        (None, Some(_)) => "?".to_owned(),
        (None, None) => "now".to_owned(),
    };
    let Entry { term, owner, host, .. } = entry;
    let (from, how) = (dated(entry.from_millis), ended.unwrap_or("leads"));
    on_one_line(format!("{from} to {to}: term {term}, {owner} on {host}: {how}{}", cause_in_words(entry)))
}

pub fn cause_in_words(entry: &Entry) -> String {
    let cause = entry.cause().map(|Ordered { by, reason, to, .. }| {
        let to = to.as_ref().map(|to| format!(" to {to}")).unwrap_or_default();
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{to}, by {by}{reason}")
    });
    cause.unwrap_or_default()
}
