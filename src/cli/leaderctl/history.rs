//! `leaderctl history`: how the last leaderships of a shard went.

use super::{inspect, printed, rfc3339};
use crate::lease::{Shard, Term};
use crate::notes::history::{self, Entry};
use crate::store::{Store, StoreError, within};
use crate::text::on_one_line;
use clap::Args;
use serde::Serialize;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct HistoryFlags {
    /// The name of the shard
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// Print each leadership as one JSON object
    #[arg(long)]
    json: bool,
}

/// What each line of `history --json` prints. Fields are added, never renamed or removed.
#[derive(Debug, Serialize)]
struct Line<'a> {
    shard: &'a str,
    term: u64,
    owner: &'a str,
    host: &'a str,
    pid: u32,
    /// RFC 3339.
    from: String,
    /// None while it lasts, or if nobody recorded it.
    to: Option<String>,
    /// None while it lasts.
    ended: Option<&'a str>,
}

/// How a leadership ended that recorded no end and does not lead any more.
const UNTOLD: &str = "crashed, or was cut off: it did not say how it ended";

impl HistoryFlags {
    /// # Errors
    /// As [`history::read`].
    pub async fn show(&self, store: &dyn Store, patience: Duration) -> Result<ExitCode, StoreError> {
        let entries = within(patience, history::read(store, &self.shard)).await?;
        let leads = inspect(store, &self.shard, patience).await?.holder.and_then(|holder| holder.term);
        let lines = entries.iter().map(|entry| {
            let ended = ended(entry, leads);
            if self.json { self.as_json(entry, ended) } else { as_text(entry, ended) }
        });
        let mut out = stdout().lock();
        Ok(printed(lines.into_iter().try_for_each(|line| writeln!(out, "{line}"))))
    }

    fn as_json(&self, entry: &Entry, ended: Option<&str>) -> String {
        let line = Line {
            shard: self.shard.as_str(),
            term: entry.term.0,
            owner: &entry.owner,
            host: &entry.host,
            pid: entry.pid,
            from: rfc3339(entry.from_millis),
            to: entry.to_millis.map(rfc3339),
            ended,
        };
        serde_json::to_string(&line).expect("a line of history is plain data")
    }
}

fn ended(entry: &Entry, leads: Option<Term>) -> Option<&str> {
    let untold = (leads != Some(entry.term)).then_some(UNTOLD);
    entry.ended.as_deref().or(untold)
}

fn as_text(entry: &Entry, ended: Option<&str>) -> String {
    let to = match (entry.to_millis, ended) {
        (Some(to), _) => rfc3339(to),
        (None, Some(_)) => "?".to_owned(),
        (None, None) => "now".to_owned(),
    };
    let Entry { term, owner, host, .. } = entry;
    let (from, how) = (rfc3339(entry.from_millis), ended.unwrap_or("leads"));
    on_one_line(format!("{from} to {to}: term {term}, {owner} on {host}: {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leadership_without_an_end_leads_or_crashed() {
        let entry = Entry {
            term: Term(3),
            owner: "me\n".to_owned(),
            host: "db1".to_owned(),
            pid: 7,
            from_millis: 0,
            to_millis: None,
            ended: None,
        };
        let text = |leads| as_text(&entry, ended(&entry, leads));
        assert_eq!(text(Some(Term(3))), "1970-01-01T00:00:00.000Z to now: term 3, me  on db1: leads");
        assert_eq!(text(None), format!("1970-01-01T00:00:00.000Z to ?: term 3, me  on db1: {UNTOLD}"));
        assert_eq!(text(Some(Term(4))), text(None));
    }
}
