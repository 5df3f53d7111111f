//! `leaderctl list --watch`: a table that is redrawn on a terminal; elsewhere, a line for each change.

use super::list::{as_columns, row};
use super::noted::{note, pauses};
use super::status::{Shown, as_json};
use super::{printed, rfc3339, say_retrying};
use crate::lease::Shard;
use crate::notes::jobs::Ledger;
use crate::store::StoreError;
use crate::text::on_one_line;
use crate::time::wall_clock_millis;
use std::collections::BTreeMap;
use std::io::{BufWriter, IsTerminal, Write, stdout};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::sleep;

const EVERY: Duration = Duration::from_secs(2);
/// ECMA-48: move the cursor to the upper left, clear the rest of the line, clear what is below.
pub const HOME: &str = "\x1b[H";
pub const CLEAR_LINE: &str = "\x1b[K";
pub const CLEAR_BELOW: &str = "\x1b[J";

pub struct Live {
    json: bool,
    terminal: bool,
    /// What was last printed for each shard.
    known: BTreeMap<Shard, String>,
}

impl Live {
    pub fn new(json: bool) -> Self {
        Self { json, terminal: !json && stdout().is_terminal(), known: BTreeMap::new() }
    }

    /// Continues until the output cannot be written, or its reader is gone. `read` reads the list again; an outage of
    /// the store is reported once.
    pub async fn show(
        mut self,
        first: Vec<(Shard, Shown)>,
        read: impl AsyncFn() -> Result<Vec<(Shard, Shown)>, StoreError>,
    ) -> Result<ExitCode, StoreError> {
        let mut list = first;
        let mut trouble: Option<String> = None;
        loop {
            let written = if self.terminal { draw(&list, trouble.as_deref()) } else { self.changes(&list) };
            if written.is_err() {
                return Ok(printed(written));
            }
            sleep(EVERY).await;
            match read().await {
                Ok(read) => (list, trouble) = (read, None),
                Err(error) => {
                    if trouble.is_none() && !self.terminal {
                        say_retrying(&error);
                    }
                    trouble = Some(on_one_line(error.message));
                }
            }
        }
    }

    fn changes(&mut self, list: &[(Shard, Shown)]) -> std::io::Result<()> {
        let mut out = BufWriter::new(stdout().lock());
        for (shard, shown) in list {
            let lasting = lasting(shown);
            if self.known.get(shard) != Some(&lasting) {
                if self.json {
                    writeln!(out, "{}", as_json(shard, shown))?;
                } else {
                    let words = format!("{} {}", row(shard, shown).join(" "), note(shown));
                    writeln!(out, "{} {}", rfc3339(wall_clock_millis()), words.trim_end())?;
                }
                self.known.insert(shard.clone(), lasting);
            }
        }
        out.flush()
    }
}

/// What does not change just because time passes.
fn lasting(shown: &Shown) -> String {
    let Shown { report, standbys, orders, ledger, .. } = shown;
    let mut report = report.clone();
    if let Some(holder) = &mut report.holder {
        (holder.renewed_ago, holder.expires_in) = (None, None);
    }
    let pauses: Vec<_> = pauses(shown).map(|(pause, _)| &pause.id).collect();
    let handover = orders.as_ref().and_then(|orders| orders.handover.as_ref()).map(|handover| handover.id.clone());
    format!("{:?}", (report, standbys, pauses, handover, ledger.as_ref().map(Ledger::counting)))
}

fn draw(list: &[(Shard, Shown)], trouble: Option<&str>) -> std::io::Result<()> {
    let (rows, columns) = size();
    let mut lines = as_columns(list, Some(columns));
    let status = trouble.map_or_else(|| rfc3339(wall_clock_millis()), |trouble| format!("{trouble}; retrying"));
    lines.insert(0, status);
    if lines.len() >= rows {
        let left_out = lines.len() - rows + 2;
        lines.truncate(rows.saturating_sub(2));
        lines.push(format!("... and {left_out} more"));
    }
    let mut out = BufWriter::new(stdout().lock());
    write!(out, "{HOME}")?;
    for line in lines {
        let line: String = line.chars().take(columns).collect();
        writeln!(out, "{line}{CLEAR_LINE}")?;
    }
    write!(out, "{CLEAR_BELOW}")?;
    out.flush()
}

/// The columns of the terminal, or of a VT100.
pub fn columns() -> usize {
    size().1
}

/// The rows and columns of the terminal, or of a VT100.
pub fn size() -> (usize, usize) {
    let usual = (24, 80);
    crate::sys::terminal_size(stdout()).map_or(usual, |(rows, columns)| {
        if rows < 3 || columns == 0 { usual } else { (usize::from(rows), usize::from(columns)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Holder, Report};

    #[test]
    fn a_lease_that_runs_down_is_no_change_and_another_leader_is_one() {
        let shown = |owner: &str, seconds| {
            let (renewed_ago, expires_in) =
                (Some(Duration::from_secs(15 - seconds)), Some(Duration::from_secs(seconds)));
            let holder = Holder { owner: owner.to_owned(), renewed_ago, expires_in, ..Holder::default() };
            Shown { report: Report { holder: Some(holder), last_term: None }, standbys: Some(1), ..Shown::default() }
        };
        assert_eq!(lasting(&shown("a", 9)), lasting(&shown("a", 3)));
        assert_ne!(lasting(&shown("a", 9)), lasting(&shown("b", 9)));
    }
}
