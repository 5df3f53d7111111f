//! `leaderctl list`: who leads each shard, in a line for each.
//!
//! The hazard: there may be very many shards, and a store shows them in pages. So a long list is printed page by page:
//! the first line does not wait for the last one.

use super::age::{ago, coarse};
use super::shard_notes::{MOST, Notes, note};
use super::slots::{self, PausedShards, sessions};
use super::status::{Shown, as_json};
use super::{Client, printed, say, shares};
use crate::lease::{Prefix, Shard};
use crate::notes::hosts;
use crate::notes::standbys::{Announced, Standby};
use crate::store::{Answer, Report};
use crate::text::on_one_line;
use clap::Args;
use std::collections::BTreeSet;
use std::io::{self, BufWriter, IsTerminal, Write, stdout};
use std::process::ExitCode;

const COLUMNS: usize = 9;
const GAP: usize = 2;
/// The columns with names, which are shortened where the output is a terminal: the shard's last of all.
const SHARD: usize = 0;
const LEADER_AND_HOST: [usize; 2] = [1, 2];
/// The shortest that a name becomes: both ends of it still tell it apart.
const SHORTEST: usize = 11;
const LEFT_OUT: &str = "...";

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
    pub async fn show(&self, client: Client<'_>) -> Answer<ExitCode> {
        let (standbys, mut paused_shards) = self.announced(client).await?;
        let mut table = Table::new(self.json);
        let (mut list, mut pages) = (Vec::new(), 0);
        let mut take = |page| {
            list.extend(paused_shards.up_to_end_of(page));
            // So many that their notes are not read unasked: nothing more is known of them later.
            if !self.orders && list.len() > MOST {
                pages += 1;
                table.print(&shown(&std::mem::take(&mut list), standbys.as_deref(), None));
            }
        };
        client.store.list_in_pages(self.prefix.as_str(), &mut take).await?;
        list.extend(paused_shards.among(Vec::new()));
        let notes = if pages > 0 { None } else { Notes::of(client.store, &list, self.orders).await? };
        let list = worth_showing(shown(&list, standbys.as_deref(), notes.as_ref()));
        table.print(&list);
        // A name that was mistyped may be that of a store which is empty.
        if list.is_empty() && pages == 0 && !self.json {
            let prefix = self.prefix.as_str();
            let names =
                if prefix.is_empty() { String::new() } else { format!(" a shard whose name begins with {prefix}") };
            say(format_args!("nobody has led{names} in {} so far", client.location));
        }
        if let Some(standbys) = standbys.filter(|_| !self.json && pages == 0) {
            let waiting: BTreeSet<&str> = standbys.iter().map(|(_, standby)| standby.host.as_str()).collect();
            let leading = list.iter().filter_map(|(_, shown)| shown.report.holder.as_ref()?.host.as_deref());
            let held = hosts::held(client.store, leading.chain(waiting.iter().copied()).collect::<BTreeSet<_>>());
            // What is beside the list must not hide it.
            let held = held.await.unwrap_or_default();
            let told = shares::told(list.iter().map(|(shard, shown)| (shard, shown)), waiting, &held);
            if let Some(told) = told.filter(|told| told.needs_attention || stdout().is_terminal()) {
                say(told.words);
            }
        }
        let unread = |(_, shown): &(Shard, Shown)| shown.orders.is_none() && shown.trouble.is_none();
        if !self.json && (pages > 0 || list.iter().any(unread)) {
            say("pauses and jobs are not shown: --orders reads them");
        }
        Ok(printed(table.written))
    }

    /// The standbys, None if they are not to be counted unasked; and the paused shards that were never led. Read before
    /// the list: a standby that leads by then is not counted.
    async fn announced(&self, client: Client<'_>) -> Answer<(Option<Vec<(Shard, Standby)>>, PausedShards)> {
        let counts = self.standbys || !client.store.is_metered();
        if !counts && !self.orders {
            return Ok((None, PausedShards::default()));
        }
        let Announced { standbys, paused } = slots::announced(client, self.prefix.as_str()).await?;
        Ok((counts.then_some(standbys), PausedShards::named(paused)))
    }
}

/// Leaves out shards that were never led and are not paused any more.
fn worth_showing(mut list: Vec<(Shard, Shown)>) -> Vec<(Shard, Shown)> {
    list.retain(|(_, shown)| {
        let is_over = shown.orders.as_ref().is_some_and(|orders| orders.pause.is_none());
        shown.report != Report::default() || !is_over
    });
    list
}

/// What is shown of each shard of a list. `standbys` and `notes` are None if they were not read.
pub fn shown(
    list: &[(Shard, Report)],
    standbys: Option<&[(Shard, Standby)]>,
    notes: Option<&Notes>,
) -> Vec<(Shard, Shown)> {
    let standbys = standbys.map(slots::by_name);
    let leaders = sessions(list.iter().filter_map(|(_, report)| report.holder.as_ref()));
    let shown = |(shard, report): &(Shard, Report)| {
        let standbys = standbys.as_ref().map(|all| slots::waiting(all, shard, &leaders).len());
        let mut shown = Shown { report: report.clone(), standbys, ..Shown::default() };
        if let Some(notes) = notes {
            notes.add_to(shard, &mut shown);
        }
        (shard.clone(), shown)
    };
    list.iter().map(shown).collect()
}

/// What is printed, in parts. Each part is printed at once: JSON, or aligned lines with one word for each column,
/// whatever a record contains, so that programs can split them at blanks. What else there is to say comes last.
///
/// A terminal has a `width`: long names are shortened in the middle, and the rest gets a line of its own. Elsewhere
/// names stay as they are, because a program may search for them or pass them on.
///
/// A column is as wide as its widest word so far.
struct Table {
    json: bool,
    width: Option<usize>,
    widths: [usize; COLUMNS],
    headed: bool,
    written: io::Result<()>,
}

impl Table {
    fn new(json: bool) -> Self {
        let width = stdout().is_terminal().then(columns);
        Self { json, width, widths: [0; COLUMNS], headed: false, written: Ok(()) }
    }

    fn print(&mut self, list: &[(Shard, Shown)]) {
        if self.written.is_err() {
            return;
        }
        let lines = if self.json {
            list.iter().map(|(shard, shown)| as_json(shard, shown)).collect()
        } else {
            self.lines(list)
        };
        let mut out = BufWriter::new(stdout().lock());
        self.written = lines.iter().try_for_each(|line| writeln!(out, "{line}")).and_then(|()| out.flush());
    }

    /// The next lines; the first part begins with the names of the columns.
    fn lines(&mut self, list: &[(Shard, Shown)]) -> Vec<String> {
        let width = self.width;
        let header = ["SHARD", "LEADER", "HOST", "PID", "TERM", "SINCE", "RENEWED", "EXPIRES", "STANDBYS"];
        let header = (header.map(str::to_owned), if width.is_none() { "NOTE".to_owned() } else { String::new() });
        let header = (!std::mem::replace(&mut self.headed, true)).then_some(header);
        let rows = list.iter().map(|(shard, shown)| (row(shard, shown), note(shown)));
        let rows: Vec<_> = header.into_iter().chain(rows).collect();
        for (row, _) in &rows {
            widen(&mut self.widths, row);
        }
        let mut widths = self.widths;
        if let Some(width) = width {
            narrow(&mut widths, width);
        }
        let mut lines = Vec::new();
        for (row, note) in &rows {
            let line = line(row, widths);
            match width {
                None => lines.push(format!("{line}  {note}").trim_end().to_owned()),
                Some(width) => {
                    lines.push(line.trim_end().to_owned());
                    let beneath: String = format!("  {note}").chars().take(width).collect();
                    lines.extend((!note.is_empty()).then_some(beneath));
                }
            }
        }
        lines
    }
}

pub fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let mut widths = [0; N];
    for row in rows {
        widen(&mut widths, row);
    }
    rows.iter().map(|row| line(row, widths).trim_end().to_owned()).collect()
}

fn widen<const N: usize>(widths: &mut [usize; N], row: &[String; N]) {
    for (widest, word) in widths.iter_mut().zip(row) {
        *widest = (*widest).max(word.chars().count());
    }
}

fn line<const N: usize>(row: &[String; N], widths: [usize; N]) -> String {
    let padded = row.iter().zip(widths).map(|(word, width)| format!("{:<width$}", shortened(word, width)));
    padded.collect::<Vec<_>>().join("  ")
}

/// Takes from the widest names until a line fits, or they are as short as they may become.
fn narrow(widths: &mut [usize; COLUMNS], most: usize) {
    while widths.iter().sum::<usize>() + GAP * (COLUMNS - 1) > most {
        let widest = LEADER_AND_HOST.into_iter().max_by_key(|&column| widths[column]);
        let widest = widest.filter(|&column| widths[column] > SHORTEST).unwrap_or(SHARD);
        if widths[widest] <= SHORTEST {
            return;
        }
        widths[widest] -= 1;
    }
}

/// A word with at most `width` letters, without its middle if it has more.
fn shortened(word: &str, width: usize) -> String {
    let letters: Vec<char> = word.chars().collect();
    if letters.len() <= width {
        return word.to_owned();
    }
    let kept = width.saturating_sub(LEFT_OUT.len());
    let (from, to) = (kept.div_ceil(2), letters.len() - kept / 2);
    letters[..from].iter().copied().chain(LEFT_OUT.chars()).chain(letters[to..].iter().copied()).collect()
}

fn row(shard: &Shard, Shown { report, standbys, .. }: &Shown) -> [String; COLUMNS] {
    let holder = report.holder.as_ref();
    // A free shard shows its last term.
    let term = if holder.is_some() { holder.and_then(|holder| holder.term) } else { report.last_term };
    [
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
    .map(|cell| word(cell.unwrap_or_default()))
}

/// The columns of the terminal, or of a VT100.
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
