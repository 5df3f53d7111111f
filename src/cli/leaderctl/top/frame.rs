//! What `top` draws, from the snapshot and from what the user chose.

use super::super::fleet::{Condition, Seen, Snapshot};
use super::super::history;
use super::super::prelude::*;
use super::super::shard_notes::note;
use super::super::timeline::{LEGEND, as_text, stretches};
use crate::time::rfc3339_seconds;
use ratatui::Frame;
use ratatui::layout::Constraint::{Fill, Length};
use ratatui::layout::Layout;
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use std::cmp::Reverse;

#[derive(Default)]
pub enum Mode {
    /// The shards that match the search.
    #[default]
    Table,
    Search,
    Detail,
    /// Asks before it pauses.
    Pause {
        shard: Shard,
        reason: String,
    },
    /// Asks before it gives another order.
    Ask {
        verb: &'static str,
        shard: Shard,
    },
    /// Says why it does not.
    Told(&'static str),
}

#[derive(Default)]
pub struct View {
    pub mode: Mode,
    pub search: String,
    /// None while there are no shards.
    pub chosen: Option<Shard>,
    table: TableState,
    /// How many rows the choice moves in the next drawing.
    step: isize,
}

impl View {
    pub fn go(&mut self, rows: isize) {
        self.step += rows;
    }

    pub fn draw(&mut self, frame: &mut Frame<'_>, snapshot: &Snapshot) {
        let layout = Layout::vertical([Length(1), Fill(1), Length(1)]);
        let [above, middle, below] = layout.areas(frame.area());
        let is_meant = |(shard, seen): &(&Shard, &Seen)| seen.is_called(shard, &self.search);
        let mut found: Vec<_> = snapshot.shards.iter().filter(is_meant).collect();
        found.sort_by_key(|(_, seen)| Reverse(seen.condition()));
        let place = found.iter().position(|(shard, _)| Some(*shard) == self.chosen.as_ref()).unwrap_or(0);
        let place = place.saturating_add_signed(std::mem::take(&mut self.step)).min(found.len().saturating_sub(1));
        self.chosen = found.get(place).map(|(shard, _)| (*shard).clone());
        frame.render_widget(head(snapshot), above);
        match (&self.mode, found.get(place)) {
            (Mode::Detail, Some((shard, seen))) => {
                frame.render_widget(Paragraph::new(detail(shard, seen, middle.width)), middle);
            }
            (_, None) => frame.render_widget("no shard", middle),
            (_, Some(_)) => {
                self.table.select(Some(place));
                frame.render_stateful_widget(table(&found), middle, &mut self.table);
            }
        }
        frame.render_widget(Line::from(self.foot()).bold(), below);
    }

    fn foot(&self) -> String {
        match &self.mode {
            Mode::Search => format!("/{}_   Enter keeps the search, Esc ends it", self.search),
            Mode::Pause { shard, reason } => format!("pause {shard}? Reason: {reason}_   Enter pauses, Esc cancels"),
            Mode::Ask { verb, shard } => format!("{verb} {shard}? y for yes, any other key for no"),
            Mode::Told(why) => (*why).to_owned(),
            Mode::Detail => "Enter back  p pause  r resume  s step-down  j k next".to_owned(),
            Mode::Table if !self.search.is_empty() => {
                format!("found by \"{}\": Esc shows all  Enter shows one  p r s  q", self.search)
            }
            Mode::Table => "/ search  Enter shows one  p pause  r resume  s step-down  q leave".to_owned(),
        }
    }
}

fn age(millis: u64) -> String {
    coarse(Duration::from_millis(wall_clock_millis().saturating_sub(millis)))
}

fn style(condition: Condition) -> Style {
    match condition {
        Condition::Leaderless | Condition::Late | Condition::Failed => Style::new().red(),
        Condition::Paused | Condition::Alone => Style::new().yellow(),
        Condition::Free | Condition::Idle => Style::new().dim(),
        Condition::Led => Style::new(),
    }
}

fn head(snapshot: &Snapshot) -> Line<'static> {
    if let Some(trouble) = &snapshot.trouble {
        let known = snapshot.reading.map(|reading| format!("; known at {}", rfc3339_seconds(reading.at_millis)));
        let (age, known) = (age(trouble.since_millis), known.unwrap_or_default());
        return Line::from(on_one_line(format!("no answer for {age}{known}: {}", trouble.message))).red();
    }
    let Some(reading) = snapshot.reading else { return Line::from("reading the store for the first time") };
    let counts = snapshot.counts().into_iter().rev().map(|(condition, count)| format!("{count} {}", condition.word()));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let all = snapshot.shards.len();
    let name = if all == 1 { "shard" } else { "shards" };
    Line::from(format!("{all} {name}: {counts}  {}", rfc3339_seconds(reading.at_millis)))
}

fn table(found: &[(&Shard, &Seen)]) -> Table<'static> {
    let names = Row::new(["STATE", "SHARD", "LEADER", "HOST", "SINCE", "STANDBYS", "NOTE"]).dim();
    let rows = found.iter().map(|(shard, seen)| Row::new(cells(shard, seen)).style(style(seen.condition())));
    let widths = [Length(10), Fill(4), Fill(3), Fill(2), Length(5), Length(8), Fill(4)];
    Table::new(rows, widths).header(names).column_spacing(2).row_highlight_style(Style::new().reversed())
}

fn cells(shard: &Shard, seen: &Seen) -> [String; 7] {
    let holder = seen.holder();
    [
        seen.condition().word(),
        shard.to_string(),
        holder.map(|holder| holder.owner.clone()).unwrap_or_default(),
        holder.and_then(|holder| holder.host.clone()).unwrap_or_default(),
        seen.since().map(age).unwrap_or_default(),
        seen.shown.standbys.map(|count| count.to_string()).unwrap_or_default(),
        note(&seen.shown),
    ]
    .map(on_one_line)
}

fn detail(shard: &Shard, seen: &Seen, columns: u16) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(format!("{shard}: {}", seen.condition().word())).bold()];
    let note = note(&seen.shown);
    lines.extend((!note.is_empty()).then(|| Line::from(on_one_line(note))));
    lines.push(Line::default());
    let timeline = as_text(&stretches(&seen.shown, &seen.history, wall_clock_millis()), usize::from(columns));
    lines.extend(timeline.into_iter().map(Line::from));
    lines.push(Line::from(LEGEND).dim());
    lines.push(Line::default());
    let entries = seen.history.iter().rev();
    lines.extend(entries.map(|entry| Line::from(history::as_text(entry, history::ended(entry, seen.leads())))));
    lines
}
