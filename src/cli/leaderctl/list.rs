//! `leaderctl list`: who leads each shard, in a line for each.

use super::live::Live;
use super::slots::{self, sessions, waiting};
use super::status::{Shown, as_json};
use super::{printed, rfc3339};
use crate::lease::{Prefix, Shard, show};
use crate::store::{Report, Store, StoreError};
use crate::text::on_one_line;
use clap::Args;
use std::io::{BufWriter, Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

const COLUMNS: usize = 9;

#[derive(Debug, Args)]
pub struct ListFlags {
    /// List only shards whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true, value_parser = clap::value_parser!(Prefix))]
    prefix: Prefix,

    /// Count standbys even if that costs money
    #[arg(long)]
    standbys: bool,

    /// Continue: redraw the table on a terminal, or print a line for each change
    #[arg(long)]
    watch: bool,

    /// Print one JSON object in a line for each shard
    #[arg(long)]
    json: bool,
}

impl ListFlags {
    /// # Errors
    /// As [`Store::list`].
    pub async fn show(&self, store: &dyn Store, patience: Duration) -> Result<ExitCode, StoreError> {
        let list = self.read(store, patience).await?;
        if self.watch {
            return Live::new(self.json).show(list, async || self.read(store, patience).await).await;
        }
        let lines = if self.json {
            list.iter().map(|(shard, shown)| as_json(shard, shown)).collect()
        } else {
            as_columns(&list)
        };
        let mut out = BufWriter::new(stdout().lock());
        Ok(printed(lines.iter().try_for_each(|line| writeln!(out, "{line}")).and_then(|()| out.flush())))
    }

    async fn read(&self, store: &dyn Store, patience: Duration) -> Result<Vec<(Shard, Shown)>, StoreError> {
        let prefix = self.prefix.as_str();
        let list = store.list(prefix).await?;
        let standbys = if self.standbys || !store.is_metered() {
            Some(slots::standbys(store, prefix, patience).await?)
        } else {
            None
        };
        let leaders = sessions(list.iter().filter_map(|(_, report)| report.holder.as_ref()));
        let shown = |(shard, report): &(Shard, Report)| {
            let standbys = standbys.as_ref().map(|all| waiting(all, shard, &leaders).count());
            (shard.clone(), Shown { report: report.clone(), standbys, ..Shown::default() })
        };
        Ok(list.iter().map(shown).collect())
    }
}

/// Aligned lines with one word for each column, whatever a record contains, so that programs can split them at blanks.
pub fn as_columns(list: &[(Shard, Shown)]) -> Vec<String> {
    let header = ["SHARD", "LEADER", "HOST", "PID", "TERM", "SINCE", "RENEWED-AGO", "EXPIRES-IN", "STANDBYS"];
    let header = header.map(str::to_owned);
    let rows: Vec<_> = std::iter::once(header).chain(list.iter().map(|(shard, shown)| row(shard, shown))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let padded = row.iter().zip(widths).map(|(word, width)| format!("{word:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

pub fn row(shard: &Shard, Shown { report, standbys, .. }: &Shown) -> [String; COLUMNS] {
    let holder = report.holder.as_ref();
    // A free shard shows its last term.
    let term = if holder.is_some() { holder.and_then(|holder| holder.term) } else { report.last_term };
    [
        Some(shard.to_string()),
        holder.map(|holder| holder.owner.clone()),
        holder.and_then(|holder| holder.host.clone()),
        holder.and_then(|holder| holder.pid).map(|pid| pid.to_string()),
        term.map(|term| term.to_string()),
        holder.and_then(|holder| holder.since_millis).map(rfc3339),
        holder.and_then(|holder| holder.renewed_ago).map(|ago| show(ago).replace(' ', "")),
        holder.and_then(|holder| holder.expires_in).map(|left| show(left).replace(' ', "")),
        standbys.map(|count| count.to_string()),
    ]
    .map(|cell| word(cell.unwrap_or_default()))
}

/// One word; a hyphen if there is none.
fn word(text: String) -> String {
    let text = on_one_line(text).replace(char::is_whitespace, "_");
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use crate::lease::Term;
    use crate::store::Holder;

    #[test]
    fn a_line_of_a_list_has_a_word_for_each_column_whatever_a_record_says() {
        fuzz::run_a_tenth("line of a list", |source, input| {
            let holder = Holder {
                owner: source.text(),
                host: source.one_in(2).then(|| source.text()),
                pid: source.one_in(2).then_some(7),
                term: source.one_in(2).then(|| Term(source.number())),
                since_millis: source.one_in(2).then(|| source.number()),
                expires_in: source.one_in(2).then(|| source.duration()),
                renewed_ago: source.one_in(2).then(|| source.duration()),
                ..Holder::default()
            };
            input.show(|| format!("{holder:?}"));
            let holder = source.below(8).ne(&0).then_some(holder);
            let fate = if holder.is_some() { Fate::Accepted } else { Fate::Refused };
            let report = Report { holder, last_term: source.one_in(2).then(|| Term(source.number())) };
            let shown = Shown { report, standbys: source.one_in(2).then_some(3), ..Shown::default() };
            for line in as_columns(&[("db/main".parse().unwrap(), shown)]) {
                assert_eq!(line.split_whitespace().count(), COLUMNS, "{line:?}");
                assert!(!line.contains(char::is_control), "{line:?}");
            }
            fate
        });
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_word_and_free_shards_show_their_last_term() {
        let holder = Holder {
            owner: "a long\u{1b}name".to_owned(),
            host: Some("db1".to_owned()),
            pid: Some(7),
            term: Some(Term(12)),
            since_millis: Some(0),
            expires_in: Some(Duration::from_millis(9_250)),
            renewed_ago: Some(Duration::from_millis(5_750)),
            ..Holder::default()
        };
        let shown = |report, standbys| Shown { report, standbys, ..Shown::default() };
        let led = shown(Report { holder: Some(holder), last_term: Some(Term(12)) }, Some(2));
        let free = shown(Report { holder: None, last_term: Some(Term(3)) }, None);
        let lines = as_columns(&[("a".parse().unwrap(), led), ("db/main".parse().unwrap(), free)]);
        assert_eq!(
            lines,
            [
                "SHARD    LEADER       HOST  PID  TERM  SINCE                     RENEWED-AGO  EXPIRES-IN  STANDBYS",
                "a        a_long_name  db1   7    12    1970-01-01T00:00:00.000Z  5s750ms      9s250ms     2",
                "db/main  -            -     -    3     -                         -            -           -",
            ]
        );
    }
}
