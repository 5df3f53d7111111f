//! `leaderctl list`: who leads each shard, in a line for each.

use super::prelude::*;
use super::shard_notes::{add_notes, note};
use super::shares;
use super::slots::{Known, Waiting};
use super::status::as_json;
use crate::notes::hosts;
use crate::notes::standbys::Standby;
use std::io::{IsTerminal, stdout};

#[derive(Debug, Args)]
pub struct ListFlags {
    /// List only shards whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: Prefix,

    /// Count standbys also where a request costs money or burdens a cluster
    #[arg(long)]
    standbys: bool,

    /// Show pauses and jobs also there, and of more than 1,000 shards
    #[arg(long)]
    orders: bool,

    /// Print one JSON object in a line for each shard
    #[arg(long)]
    json: bool,
}

impl ListFlags {
    pub async fn show(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let Known { standbys, paused } = slots::known(client, self.prefix.as_str(), self.standbys, self.orders).await?;
        let list = slots::with_paused(client.store.list(self.prefix.as_str()).await?, paused);
        let mut list = shown(list, standbys.as_deref());
        add_notes(client.store, &mut list, self.orders).await?;
        // Not shards that were never led and are not paused any more.
        list.retain(|(_, shown)| {
            let is_over = shown.orders.as_ref().is_some_and(|orders| orders.pause.is_none());
            shown.report != Report::default() || !is_over
        });
        if self.json {
            return print_lines(list.iter().map(|(shard, shown)| as_json(shard, shown)));
        }
        print_lines(table(&list))?;
        // A mistyped URL may name an empty store.
        if list.is_empty() {
            let prefix = self.prefix.as_str();
            let names =
                if prefix.is_empty() { String::new() } else { format!(" a shard whose name begins with {prefix}") };
            say(format_args!("nobody has led{names} in {} so far", client.location));
        }
        if let Some(standbys) = standbys {
            let waiting: BTreeSet<&str> = standbys.iter().map(|(_, standby)| standby.host.as_str()).collect();
            let leading = list.iter().filter_map(|(_, shown)| shown.report.holder.as_ref()?.host.as_deref());
            let held = hosts::held(client.store, leading.chain(waiting.iter().copied()).collect::<BTreeSet<_>>());
            // A failure must not hide the list.
            let held = held.await.unwrap_or_default();
            let shards = list.iter().map(|(shard, shown)| (shard, shown));
            if let Some(told) = shares::told(shards, waiting, &held, stdout().is_terminal()) {
                say(told);
            }
        }
        let unread = |(_, shown): &(Shard, Shown)| shown.orders.is_none() && shown.trouble.is_none();
        if list.iter().any(unread) {
            say("pauses and jobs are not shown: --orders reads them");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `standbys` are None if they were not read.
pub fn shown(list: Vec<(Shard, Report)>, standbys: Option<&[(Shard, Standby)]>) -> Vec<(Shard, Shown)> {
    let leaders = list.iter().filter_map(|(_, report)| report.holder.as_ref());
    let waiting = standbys.map(|standbys| Waiting::of(standbys, leaders));
    let counts: Vec<_> =
        list.iter().map(|(shard, _)| waiting.as_ref().map(|waiting| waiting.at(shard).len())).collect();
    let shown = |((shard, report), standbys)| (shard, Shown { report, standbys, ..Shown::default() });
    list.into_iter().zip(counts).map(shown).collect()
}

/// One word in each column but the last, whatever a record contains, so that programs can split lines at blanks.
fn table(list: &[(Shard, Shown)]) -> Vec<String> {
    let header = ["SHARD", "LEADER", "HOST", "PID", "TERM", "SINCE", "RENEWED", "EXPIRES", "STANDBYS", "NOTE"];
    let rows = list.iter().map(|(shard, shown)| row(shard, shown));
    aligned(&std::iter::once(header.map(str::to_owned)).chain(rows).collect::<Vec<_>>())
}

pub fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let mut widths = [0; N];
    for row in rows {
        for (widest, word) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(word.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let padded = row.iter().zip(widths).map(|(word, width)| format!("{word:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn row(shard: &Shard, shown: &Shown) -> [String; 10] {
    let Shown { report, standbys, .. } = shown;
    let holder = report.holder.as_ref();
    // A free shard shows its last term.
    let term = if holder.is_some() { holder.and_then(|holder| holder.term) } else { report.last_term };
    let [shard, owner, host, pid, term, since, renewed, expires, standbys] = [
        Some(shard.to_string()),
        holder.map(|holder| holder.owner.clone()),
        holder.and_then(|holder| holder.host.clone()),
        holder.and_then(|holder| holder.pid).map(|pid| pid.to_string()),
        term.map(|term| term.to_string()),
        holder.and_then(|holder| holder.since_millis).map(|since| ago(since).replace(" ago", "")),
        holder.and_then(|holder| holder.renewed_ago).map(coarse),
        holder.and_then(|holder| holder.expires_in).map(coarse),
        standbys.map(|count| count.to_string()),
    ]
    .map(|cell| word(cell.unwrap_or_default()));
    [shard, owner, host, pid, term, since, renewed, expires, standbys, note(shown)]
}

pub fn columns() -> usize {
    match crate::sys::terminal_size(stdout()) {
        Some((rows, columns)) if rows >= 3 && columns > 0 => usize::from(columns),
        _ => 80,
    }
}

/// One word; a hyphen if there is none.
pub fn word(text: String) -> String {
    let text = on_one_line(text).replace(char::is_whitespace, "_");
    if text.is_empty() { "-".to_owned() } else { text }
}
