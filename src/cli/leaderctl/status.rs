//! `leaderctl status`: who leads a shard, for people and for programs.

use super::{inspect, printed, rfc3339};
use crate::lease::{Shard, show};
use crate::store::{Report, Store, StoreError, on_one_line};
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct StatusFlags {
    /// The name that is led
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// What `status --json` and each line of `list --json` prints. Fields are added, never renamed or removed.
#[derive(Debug, Serialize)]
struct Status<'a> {
    shard: &'a str,
    held: bool,
    owner: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    term: Option<u64>,
    /// RFC 3339.
    since: Option<String>,
    /// None where it does not expire.
    expires_in_seconds: Option<f64>,
    last_term: Option<u64>,
}

impl StatusFlags {
    /// # Errors
    /// As [`Store::inspect`].
    pub async fn show(&self, store: &dyn Store, timeout: Duration) -> Result<ExitCode, StoreError> {
        let report = inspect(store, &self.shard, timeout).await?;
        let text = if self.json { as_json(&self.shard, &report) } else { as_text(&self.shard, &report) };
        Ok(printed(writeln!(stdout(), "{text}")))
    }
}

/// One line.
pub fn as_json(shard: &Shard, report: &Report) -> String {
    let holder = report.holder.as_ref();
    let status = Status {
        shard: shard.as_str(),
        held: holder.is_some(),
        owner: holder.map(|holder| holder.owner.as_str()),
        host: holder.and_then(|holder| holder.host.as_deref()),
        pid: holder.and_then(|holder| holder.pid),
        term: holder.and_then(|holder| holder.term).map(|term| term.0),
        since: holder.and_then(|holder| holder.since_millis).map(rfc3339),
        expires_in_seconds: holder.and_then(|holder| holder.expires_in).map(|left| left.as_secs_f64()),
        last_term: report.last_term.map(|term| term.0),
    };
    serde_json::to_string(&status).expect("a status is plain data")
}

fn as_text(shard: &Shard, report: &Report) -> String {
    let Some(holder) = &report.holder else {
        let last = report.last_term.map(|term| format!(" (last term {term})")).unwrap_or_default();
        return format!("{shard}: free{last}");
    };
    let mut text = format!("{shard}: led by {}", on_one_line(holder.owner.clone()));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, "\n  {name:<11}{value}");
        }
    };
    add("host", holder.host.clone().map(on_one_line));
    add("pid", holder.pid.map(|pid| pid.to_string()));
    add("term", holder.term.map(|term| term.to_string()));
    add("since", holder.since_millis.map(rfc3339));
    add("expires in", holder.expires_in.map(show));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use crate::lease::Term;
    use crate::store::Holder;

    #[test]
    fn holders_of_any_names_and_numbers_are_shown_on_their_lines() {
        let shard: Shard = "db/main".parse().unwrap();
        fuzz::run_a_tenth("status of a holder", |source, input| {
            let holder = Holder {
                owner: source.text(),
                host: source.one_in(2).then(|| source.text()),
                term: source.one_in(2).then(|| Term(source.number())),
                since_millis: source.one_in(2).then(|| source.number()),
                expires_in: source.one_in(2).then(|| source.duration()),
                ..Holder::default()
            };
            input.show(|| format!("{holder:?}"));
            let told = [
                holder.host.is_some(),
                holder.term.is_some(),
                holder.since_millis.is_some(),
                holder.expires_in.is_some(),
            ];
            let lines = 1 + told.iter().filter(|told| **told).count();
            let text = as_text(&shard, &Report { holder: Some(holder), last_term: None });
            assert_eq!(text.split('\n').count(), lines, "{text:?}");
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
            if lines > 1 { Fate::Accepted } else { Fate::Refused }
        });
    }
}
