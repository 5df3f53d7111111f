//! The lines that `top` draws, from the picture and from what the user chose.

use super::super::age::coarse;
use super::super::fleet::{Condition, Picture, Seen};
use super::super::history;
use super::super::noted::note;
use super::super::timeline::{LEGEND, as_text};
use crate::lease::Shard;
use crate::text::on_one_line;
use crate::time::{rfc3339_seconds, wall_clock_millis};
use std::cmp::Reverse;
use std::time::Duration;

/// ECMA-48: red, yellow, reversed, faint, bold, and no attribute.
const BAD: &str = "\x1b[31m";
const DOUBTFUL: &str = "\x1b[33m";
const CHOSEN: &str = "\x1b[7m";
const FAINT: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const USUAL: &str = "\x1b[m";
/// How many lines there are around the table.
const AROUND: usize = 4;

pub enum Mode {
    Table,
    Search,
    /// The chosen shard alone.
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

pub struct View {
    pub mode: Mode,
    pub search: String,
    /// None while there are no shards.
    pub chosen: Option<Shard>,
    /// The first row of the table that is shown.
    top: usize,
    /// How many rows the choice moves in the next drawing.
    step: isize,
}

impl Default for View {
    fn default() -> Self {
        Self { mode: Mode::Table, search: String::new(), chosen: None, top: 0, step: 0 }
    }
}

impl View {
    pub fn go(&mut self, rows: isize) {
        self.step += rows;
    }

    /// The lines of a terminal of this size.
    pub fn lines(&mut self, picture: &Picture, rows: usize, columns: usize) -> Vec<String> {
        let is_meant = |(shard, seen): &(&Shard, &Seen)| seen.is_called(shard, &self.search);
        let mut found: Vec<_> = picture.shards.iter().filter(is_meant).collect();
        found.sort_by_key(|(_, seen)| Reverse(seen.condition()));
        let place = found.iter().position(|(shard, _)| Some(*shard) == self.chosen.as_ref()).unwrap_or(0);
        let place = place.saturating_add_signed(std::mem::take(&mut self.step)).min(found.len().saturating_sub(1));
        self.chosen = found.get(place).map(|(shard, _)| (*shard).clone());
        let mut lines = vec![head(picture, columns)];
        let room = rows.saturating_sub(AROUND).max(1);
        if let (Mode::Detail, Some((shard, seen))) = (&self.mode, found.get(place)) {
            lines.extend(detail(shard, seen, columns).into_iter().take(room + 1));
        } else {
            self.top = self.top.clamp((place + 1).saturating_sub(room), place);
            lines.extend(table(&found, self.top, room, place, columns));
        }
        lines.resize(rows.saturating_sub(1).max(lines.len()), String::new());
        lines.push(self.foot(columns));
        lines
    }

    fn foot(&self, columns: usize) -> String {
        let text = match &self.mode {
            Mode::Search => format!("/{}_   Enter keeps the search, Esc ends it", self.search),
            Mode::Pause { shard, reason } => format!("pause {shard}? Reason: {reason}_   Enter pauses, Esc cancels"),
            Mode::Ask { verb, shard } => format!("{verb} {shard}? y for yes, any other key for no"),
            Mode::Told(why) => (*why).to_owned(),
            Mode::Detail => "Enter back  p pause  r resume  s step-down  j k next".to_owned(),
            Mode::Table if !self.search.is_empty() => {
                format!("found by \"{}\": Esc shows all  Enter shows one  p r s  q", self.search)
            }
            Mode::Table => "/ search  Enter shows one  p pause  r resume  s step-down  q leave".to_owned(),
        };
        painted(BOLD, &cut(&text, columns))
    }
}

/// How long ago a time was, by this host's clock.
fn age(millis: u64) -> String {
    coarse(Duration::from_millis(wall_clock_millis().saturating_sub(millis)))
}

/// One line of at most this many letters.
fn cut(text: &str, columns: usize) -> String {
    on_one_line(text.to_owned()).chars().take(columns).collect()
}

fn painted(colour: &str, text: &str) -> String {
    if colour.is_empty() { text.to_owned() } else { format!("{colour}{text}{USUAL}") }
}

fn colour(condition: Condition) -> &'static str {
    match condition {
        Condition::Leaderless | Condition::Late | Condition::Failed => BAD,
        Condition::Paused | Condition::Alone => DOUBTFUL,
        Condition::Free | Condition::Idle => FAINT,
        Condition::Led => "",
    }
}

/// The counts, or for how long the store has not answered.
fn head(picture: &Picture, columns: usize) -> String {
    if let Some(trouble) = &picture.trouble {
        let known = picture.reading.map(|reading| format!("; known at {}", rfc3339_seconds(reading.at_millis)));
        let text =
            format!("no answer for {}{}: {}", age(trouble.since_millis), known.unwrap_or_default(), trouble.message);
        return painted(BAD, &cut(&text, columns));
    }
    let Some(reading) = picture.reading else { return cut("reading the store for the first time", columns) };
    let counts = picture.counts().into_iter().rev().map(|(condition, count)| format!("{count} {}", condition.word()));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let all = picture.shards.len();
    let name = if all == 1 { "shard" } else { "shards" };
    cut(&format!("{all} {name}: {counts}  {}", rfc3339_seconds(reading.at_millis)), columns)
}

fn table(found: &[(&Shard, &Seen)], top: usize, room: usize, place: usize, columns: usize) -> Vec<String> {
    let shown = &found[top.min(found.len())..found.len().min(top + room)];
    let cells: Vec<[String; 6]> = shown.iter().map(|(shard, seen)| row(shard, seen)).collect();
    let names = ["STATE", "SHARD", "LEADER", "HOST", "SINCE", "STANDBYS"].map(str::to_owned);
    let most = [10, (columns / 3).max(12), (columns / 4).max(10), (columns / 6).max(8), 5, 8];
    let widths: Vec<usize> = (0..names.len())
        .map(|at| {
            let letters = |cells: &[String; 6]| cells[at].chars().count();
            cells.iter().map(letters).chain([names[at].len()]).max().unwrap_or(0).min(most[at])
        })
        .collect();
    let line = |cells: &[String; 6], note: &str| {
        let cells = cells.iter().zip(&widths).map(|(cell, &width)| format!("{:<width$}", cut(cell, width)));
        cut(&format!("{}  {note}", cells.collect::<Vec<_>>().join("  ")), columns)
    };
    let mut lines = vec![painted(FAINT, &line(&names, "NOTE"))];
    for (index, ((_, seen), cells)) in shown.iter().zip(&cells).enumerate() {
        let text = line(cells, &note(&seen.shown));
        let paint = if top + index == place { CHOSEN } else { colour(seen.condition()) };
        lines.push(painted(paint, &text));
    }
    if found.is_empty() {
        lines.push("no shard".to_owned());
    }
    lines
}

fn row(shard: &Shard, seen: &Seen) -> [String; 6] {
    let holder = seen.holder();
    let since = seen.since().map(age);
    [
        seen.condition().word(),
        shard.to_string(),
        holder.map(|holder| holder.owner.clone()).unwrap_or_default(),
        holder.and_then(|holder| holder.host.clone()).unwrap_or_default(),
        since.unwrap_or_default(),
        seen.shown.standbys.map(|count| count.to_string()).unwrap_or_default(),
    ]
    .map(on_one_line)
}

fn detail(shard: &Shard, seen: &Seen, columns: usize) -> Vec<String> {
    let mut lines = vec![painted(BOLD, &cut(&format!("{shard}: {}", seen.condition().word()), columns))];
    let note = note(&seen.shown);
    lines.extend((!note.is_empty()).then(|| cut(&note, columns)));
    lines.push(String::new());
    lines.extend(as_text(&seen.present(wall_clock_millis()).stretches(&seen.history), columns));
    lines.push(painted(FAINT, &cut(LEGEND, columns)));
    lines.push(String::new());
    let leads = seen.holder().and_then(|holder| holder.term);
    let entries = seen.history.iter().rev();
    lines.extend(entries.map(|entry| cut(&history::as_text(entry, history::ended(entry, leads)), columns)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Holder, Report};

    fn picture(shards: &[(&str, Option<&str>)]) -> Picture {
        let mut picture = Picture::default();
        for (shard, owner) in shards {
            let holder = owner.map(|owner| Holder { owner: owner.to_owned(), ..Holder::default() });
            let mut seen = Seen::default();
            seen.shown.report = Report { holder, last_term: None };
            seen.shown.standbys = Some(1);
            picture.shards.insert(shard.parse().unwrap(), seen);
        }
        picture
    }

    #[test]
    fn what_needs_attention_is_above_and_the_chosen_shard_stays_chosen() {
        let mut view = View::default();
        let before = picture(&[("a", Some("x\u{1b}[2J")), ("b", None), ("c", Some("y"))]);
        let lines = view.lines(&before, 10, 60);
        assert_eq!(lines.len(), 10);
        assert!(lines[2].contains("no leader  b") && lines[2].starts_with(CHOSEN), "{lines:#?}");
        assert!(lines[3].contains("led        a") && !lines[3].contains("\u{1b}[2J"), "{lines:#?}");
        view.go(2);
        view.lines(&before, 10, 60);
        assert_eq!(view.chosen.as_ref().unwrap().as_str(), "c");
        let after = picture(&[("a", None), ("b", Some("x")), ("c", Some("y"))]);
        view.lines(&after, 10, 60);
        assert_eq!(view.chosen.as_ref().unwrap().as_str(), "c");
        view.go(-9);
        view.lines(&after, 10, 60);
        assert_eq!(view.chosen.as_ref().unwrap().as_str(), "a");
        view.search = "X".to_owned();
        view.lines(&after, 10, 60);
        assert_eq!(view.chosen.as_ref().unwrap().as_str(), "b");
    }

    #[test]
    fn every_line_fits_whatever_the_size() {
        let names: Vec<String> = (0..50).map(|number| format!("a/long/name/of-a-shard/{number}")).collect();
        let shards: Vec<_> = names.iter().map(|name| (name.as_str(), Some("an owner with a long name"))).collect();
        let picture = picture(&shards);
        for (rows, columns) in [(3, 10), (24, 80), (10, 200)] {
            for mode in [Mode::Table, Mode::Detail, Mode::Search] {
                let mut view = View { mode, ..View::default() };
                view.go(49);
                let lines = view.lines(&picture, rows, columns);
                for line in &lines {
                    let mut text = line.clone();
                    for paint in [BAD, DOUBTFUL, CHOSEN, FAINT, BOLD, USUAL] {
                        text = text.replace(paint, "");
                    }
                    assert!(text.chars().count() <= columns, "{rows} {columns}: {text:?}");
                }
                assert!(lines.len() <= rows.max(5), "{rows} {columns}: {lines:#?}");
            }
        }
    }
}
