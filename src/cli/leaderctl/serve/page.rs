//! The page: tables of shards and hosts, which need no script. A small one replaces the rows that changed.
//!
//! The hazard: an owner, a host or a reason may be any text. So maud escapes each value, [`plain`] takes control
//! characters out, and nothing here is `PreEscaped`.

use super::super::fleet::{Condition, Seen, Snapshot};
use super::super::history::{self, ended};
use super::super::prelude::*;
use super::super::shard_notes::note;
use super::super::timeline::{State, Stretch, stretches};
use crate::time::rfc3339_seconds;
use maud::{DOCTYPE, Markup, html};
use std::cmp::Reverse;
use std::fmt::Display;
use url::form_urlencoded;

pub const STYLE: &str = include_str!("page.css");
pub const SCRIPT: &str = include_str!("page.js");
pub const ICON: &str = include_str!("icon.svg");

/// The most rows of a page, unless the visitor asks for all.
const ROWS: usize = 500;
const NAMED: usize = 24;
const WIDE: u64 = 1000;
const COLOURS: usize = 12;

const RANGES: [(&str, &str, u64); 5] =
    [("1h", "hour", 1), ("6h", "6 hours", 6), ("1d", "day", 24), ("7d", "7 days", 168), ("30d", "30 days", 720)];
const SORTS: [(&str, &str); 4] =
    [("attention", "attention"), ("name", "name"), ("host", "host"), ("since", "last change")];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    search: String,
    condition: String,
    sort: usize,
    range: usize,
    all: bool,
}

impl Wish {
    pub fn read(query: &str) -> Self {
        let mut wish = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "q" => wish.search = value.trim().chars().take(200).collect(),
                "state" => wish.condition = value.chars().take(20).collect(),
                "sort" => wish.sort = SORTS.iter().position(|(sort, _)| *sort == value).unwrap_or(0),
                "range" => wish.range = RANGES.iter().position(|(range, ..)| *range == value).unwrap_or(0),
                "all" => wish.all = true,
                _ => {}
            }
        }
        wish
    }

    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let mut add = |name, value: &str, usual: bool| {
            if !usual {
                query.append_pair(name, value);
            }
        };
        add("q", &self.search, self.search.is_empty());
        add("state", &self.condition, self.condition.is_empty());
        add("sort", SORTS[self.sort].0, self.sort == 0);
        add("range", RANGES[self.range].0, self.range == 0);
        add("all", "1", !self.all);
        format!("?{}", query.finish())
    }

    fn accepts(&self, shard: &Shard, seen: &Seen) -> bool {
        let in_note = || note(&seen.shown).to_lowercase().contains(&self.search.to_lowercase());
        (self.condition.is_empty() || seen.condition().into_str() == self.condition)
            && (seen.is_called(shard, &self.search) || in_note())
    }

    fn span(&self) -> u64 {
        RANGES[self.range].2 * 3_600_000
    }
}

/// Text of others, without control characters.
fn plain(text: impl Display) -> String {
    on_one_line(text.to_string())
}

fn document(title: &str, now: u64, heading: &Markup, main: &Markup, footer: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="/icon.svg";
                link rel="stylesheet" href="/page.css";
                script src="/page.js" defer {}
            }
            body data-now=(now) {
                a.skip href="#live" { "Skip to the shards" }
                header { (heading) }
                main #live { (main) }
                (footer)
            }
        }
    };
    page.into_string()
}

/// The script keeps an age up to date.
fn age(millis: u64, now: u64) -> Markup {
    html! {
        time datetime=(rfc3339(millis)) title=(rfc3339_seconds(millis)) {
            (coarse(Duration::from_millis(now.saturating_sub(millis))))
        }
    }
}

fn reading(snapshot: &Snapshot, now: u64) -> Markup {
    html! {
        @match (&snapshot.trouble, snapshot.reading) {
            (Some(trouble), reading) => p #reading .trouble role="alert" {
                strong { "The store has not answered for " (age(trouble.since_millis, now)) }
                ": " (plain(&trouble.message)) ". "
                @if let Some(reading) = reading {
                    "This page shows what was known at " (rfc3339_seconds(reading.at_millis)) "."
                } @else {
                    "It has not answered since leaderctl serve started."
                }
            },
            (None, Some(reading)) => p #reading {
                "As of "
                time.at datetime=(rfc3339(reading.at_millis)) { (rfc3339_seconds(reading.at_millis)) }
            },
            (None, None) => p #reading { "The store is being read for the first time." },
        }
    }
}

fn choice<'a>(name: &str, chosen: usize, all: impl Iterator<Item = (&'a str, &'a str)>) -> Markup {
    html! {
        select name=(name) {
            @for (index, (value, words)) in all.enumerate() {
                option value=(value) selected[index == chosen] { (words) }
            }
        }
    }
}

fn form(wish: &Wish, searches: bool) -> Markup {
    html! {
        form #wish method="get" role="search" {
            @if searches {
                label {
                    "Search "
                    input type="search" name="q" placeholder="shard, leader, host, reason" autocomplete="off"
                        value=(plain(&wish.search));
                }
                label { "Sort by " (choice("sort", wish.sort, SORTS.into_iter())) }
            }
            label {
                "Last "
                (choice("range", wish.range, RANGES.into_iter().map(|(value, words, _)| (value, words))))
            }
            @if !wish.condition.is_empty() {
                input type="hidden" name="state" value=(plain(&wish.condition));
            }
            button { "Show" }
        }
    }
}

fn timeline(snapshot: &Snapshot, seen: &Seen, span: u64, now: u64) -> Markup {
    let from = now.saturating_sub(span);
    let stretches = stretches(&seen.shown, &seen.history, now);
    let place = |time: u64| time.saturating_sub(from).min(span) * WIDE / span.max(1);
    let shown = || stretches.iter().filter(|stretch| stretch.to >= from);
    html! {
        svg.line viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label=(summary(&stretches, from)) {
            @for stretch in shown() {
                @let (class, top, height) = band(snapshot, stretch);
                @let begin = place(stretch.from);
                rect class=(class) x=(begin) y=(top) width=((place(stretch.to) - begin).max(2)) height=(height) {
                    title { (plain(title(stretch))) }
                }
            }
            @for stretch in shown() {
                @if let Some(mark) = stretch.mark {
                    rect class={ "mark " (mark.into_str()) } x=(place(stretch.to).saturating_sub(3)) y="0" width="5"
                        height="20" {
                        title { (mark.into_str()) ": " (plain(title(stretch))) }
                    }
                }
            }
        }
    }
}

fn band(snapshot: &Snapshot, stretch: &Stretch<'_>) -> (String, u8, u8) {
    let host = || colour(snapshot, stretch.host);
    match stretch.state {
        State::Led => (host(), 3, 14),
        State::Untold => (format!("{} untold", host()), 3, 14),
        State::Free => ("free".to_owned(), 7, 6),
        State::Paused => ("paused".to_owned(), 8, 4),
        State::Idle => ("idle".to_owned(), 9, 2),
    }
}

fn colour(snapshot: &Snapshot, host: &str) -> String {
    format!("h{}", snapshot.number_of(host) % COLOURS)
}

fn summary(stretches: &[Stretch<'_>], from: u64) -> String {
    let shown: Vec<_> = stretches.iter().filter(|stretch| stretch.to >= from).collect();
    let led = shown.iter().filter(|stretch| matches!(stretch.state, State::Led | State::Untold)).count();
    let free = shown.iter().filter(|stretch| stretch.state == State::Free);
    let gaps: u64 = free.map(|stretch| stretch.to - stretch.from.max(from)).sum();
    match (led, gaps) {
        (0, 0) => "nothing is known".to_owned(),
        (_, 0) => format!("leaderships: {led}"),
        (_, gaps) => format!("leaderships: {led}, without a leader for {}", coarse(Duration::from_millis(gaps))),
    }
}

pub fn fleet(snapshot: &Snapshot, wish: &Wish, now: u64) -> String {
    let attention = snapshot.shards.values().filter(|seen| seen.condition().needs_attention()).count();
    let title = match (attention, &snapshot.trouble) {
        (_, Some(_)) => "store unreachable - leaderrun".to_owned(),
        (0, None) => "leaderrun".to_owned(),
        (count, None) => format!("({count}) leaderrun"),
    };
    let mut rows: Vec<_> = snapshot.shards.iter().filter(|(shard, seen)| wish.accepts(shard, seen)).collect();
    let host = |seen: &Seen| seen.holder().and_then(|holder| holder.host.clone());
    match SORTS[wish.sort].0 {
        "attention" => rows.sort_by_key(|(_, seen)| Reverse(seen.condition())),
        "host" => rows.sort_by_cached_key(|(_, seen)| (host(seen).is_none(), host(seen))),
        "since" => rows.sort_by_key(|(_, seen)| Reverse(seen.since())),
        _ => {}
    }
    let found = rows.len();
    let most = if wish.all { found } else { ROWS };
    let main = html! {
        (reading(snapshot, now))
        (counts(snapshot, wish))
        section #shards {
            h2 { "Shards" }
            table {
                (head(&[("", "State"), ("", "Shard"), ("", "Leader"), ("", "Host"), ("n", "Since"), ("n term", "Term"),
                    ("n", "Standbys"), ("", &format!("Last {}", RANGES[wish.range].1))]))
                tbody {
                    @for (shard, seen) in rows.into_iter().take(most) {
                        (row(snapshot, shard, seen, wish, now))
                    }
                }
            }
            @if found == 0 {
                p.none {
                    @if snapshot.shards.is_empty() { "No shard has been led yet." } @else { "No shard matches." }
                }
            }
            @if found > most {
                p.none { a href=(Wish { all: true, ..wish.clone() }.query()) { (found - most) " more" } }
            }
        }
        (legend())
        (hosts(snapshot, wish))
    };
    let footer = html! {
        footer {
            "This page is read-only: use leaderctl to pause a shard or to hand it over. "
            a href="/api/shards" { "JSON" } " "
            a href="/api/openapi.yaml" { "OpenAPI" } " "
            a href="/metrics" { "Metrics" }
        }
    };
    document(&title, now, &html! { h1 { "leaderrun" } (form(wish, true)) }, &main, &footer)
}

/// Columns by their class and name.
fn head(columns: &[(&str, &str)]) -> Markup {
    html! {
        thead {
            tr {
                @for (class, name) in columns {
                    th scope="col" class=[(!class.is_empty()).then_some(class)] { (name) }
                }
            }
        }
    }
}

fn counts(snapshot: &Snapshot, wish: &Wish) -> Markup {
    let all = Wish { condition: String::new(), ..wish.clone() };
    let name = if snapshot.shards.len() == 1 { "shard" } else { "shards" };
    let current = |condition: &str| (wish.condition == condition).then_some("true");
    html! {
        ul #counts {
            li {
                a href=(all.query()) aria-current=[current("")] { b { (snapshot.shards.len()) } " " (name) }
            }
            @for (condition, count) in snapshot.counts().into_iter().rev() {
                @let class = condition.into_str();
                @let only = Wish { condition: class.to_owned(), ..wish.clone() };
                li class=(class) {
                    a href=(only.query()) aria-current=[current(class)] { b { (count) } " " (condition.word()) }
                }
            }
        }
    }
}

/// A '#' would end the path.
fn link(shard: &Shard) -> String {
    format!("/shards/{}", shard.as_str().replace('#', "%23"))
}

fn row(snapshot: &Snapshot, shard: &Shard, seen: &Seen, wish: &Wish, now: u64) -> Markup {
    let (condition, holder) = (seen.condition(), seen.holder());
    let range = Wish { range: wish.range, ..Wish::default() };
    let note = words(seen, condition);
    html! {
        tr id={ "s-" (shard) } class=(condition.into_str()) {
            td.state { span { (condition.word()) } }
            th scope="row" {
                a href={ (link(shard)) (range.query().trim_end_matches('?')) } title=(shard) { (shard) }
            }
            @if let Some(holder) = holder {
                @let owner = plain(&holder.owner);
                td.leader title=(owner) { (owner) }
                td.host { (host_name(snapshot, holder.host.as_deref().unwrap_or_default())) }
            } @else {
                td.says colspan="2" { (note) }
            }
            td.n.since { @if let Some(since) = seen.since() { (age(since, now)) } }
            td.n.term { @if let Some(term) = seen.term() { (term) } }
            td.n.standbys { @if let Some(count) = seen.shown.standbys { (count) } }
            td.when {
                (timeline(snapshot, seen, wish.span(), now))
                @if holder.is_some() && !note.is_empty() { p.note { (note) } }
            }
        }
    }
}

fn host_name(snapshot: &Snapshot, host: &str) -> Markup {
    html! {
        @if !host.is_empty() {
            i class={ "dot " (colour(snapshot, host)) } {}
            (plain(host))
        }
    }
}

fn words(seen: &Seen, condition: Condition) -> String {
    let mut words = vec![note(&seen.shown)];
    if let (Condition::Leaderless, Some(last)) = (condition, seen.history.last()) {
        words.extend(ended(last, None).map(|end| format!("last led on {}: {end}", last.host)));
    }
    words.retain(|words| !words.is_empty());
    plain(words.join("; "))
}

fn legend() -> Markup {
    html! {
        p #legend {
            @for (class, words) in [
                ("h0", "led, a colour for each host"),
                ("free", "nobody led"),
                ("paused", "paused"),
                ("idle", "between two runs"),
                ("mark killed", "killed"),
                ("mark lost", "lost"),
                ("mark failed", "failed"),
                ("mark ordered", "ended by a pause"),
                ("mark handover", "handed over"),
            ] {
                @let (x, width) = if class.starts_with("mark") { (4, 4) } else { (0, 12) };
                span {
                    svg viewBox="0 0 12 12" { rect class=(class) x=(x) width=(width) height="12" {} }
                    (words)
                }
                " "
            }
        }
    }
}

fn hosts(snapshot: &Snapshot, wish: &Wish) -> Markup {
    html! {
        section #hosts {
            h2 { "Hosts" }
            table {
                (head(&[("", "Host"), ("n", "Leads"), ("", "Shards")]))
                tbody {
                    @for (host, leads) in snapshot.hosts() {
                        tr {
                            th scope="row" { (host_name(snapshot, host)) }
                            td.n { (leads.len()) }
                            td.names {
                                @for shard in leads.iter().take(NAMED) {
                                    a href=(link(shard)) { (shard) } " "
                                }
                                @if leads.len() > NAMED {
                                    @let only = Wish { search: host.to_owned(), range: wish.range, ..Wish::default() };
                                    a href=(only.query()) { "and " (leads.len() - NAMED) " more" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

pub fn shard(snapshot: &Snapshot, shard: &Shard, seen: &Seen, wish: &Wish, now: u64) -> String {
    let (condition, holder) = (seen.condition(), seen.holder());
    let text = |value: Option<String>| value.unwrap_or_default();
    let facts = [
        ("Leader", text(holder.map(|holder| holder.owner.clone()))),
        ("Host", text(holder.and_then(|holder| holder.host.clone()))),
        ("Process", text(holder.and_then(|holder| holder.pid).map(|pid| pid.to_string()))),
        ("Since", text(seen.since().map(rfc3339_seconds))),
        ("Term", text(seen.term().map(|term| term.to_string()))),
        ("Standbys", text(seen.shown.standbys.map(|count| count.to_string()))),
        ("Note", words(seen, condition)),
    ];
    let main = html! {
        (reading(snapshot, now))
        section #shard class=(condition.into_str()) {
            h2 { span.state { span { (condition.word()) } } " " (shard) }
            div.when.tall { (timeline(snapshot, seen, wish.span(), now)) }
            p.axis { span { (rfc3339_seconds(now.saturating_sub(wish.span()))) } span { "now" } }
            dl {
                @for (name, value) in facts {
                    @if !value.is_empty() { div { dt { (name) } dd { (plain(value)) } } }
                }
            }
            (legend())
            h3 { "Leaderships" }
            table #history {
                (head(&[("", "From"), ("n", "For"), ("n", "Term"), ("", "Leader"), ("", "Host"), ("", "End")]))
                tbody {
                    @for entry in seen.history.iter().rev() {
                        @let end = ended(entry, seen.leads());
                        @let span = entry.to_millis.unwrap_or(now).saturating_sub(entry.from_millis);
                        tr {
                            td { (rfc3339_seconds(entry.from_millis)) }
                            td.n {
                                @if entry.to_millis.is_none() && end.is_some() {
                                    "?"
                                } @else {
                                    (coarse(Duration::from_millis(span)))
                                }
                            }
                            td.n { (entry.term) }
                            td { (plain(&entry.owner)) }
                            td { (host_name(snapshot, &entry.host)) }
                            td { (end.unwrap_or("leads")) (plain(history::cause_in_words(entry))) }
                        }
                    }
                }
            }
        }
    };
    document(
        &format!("{shard} - leaderrun"),
        now,
        &html! { h1 { a href="/" { "leaderrun" } } (form(wish, false)) },
        &main,
        &html! {},
    )
}

fn title(stretch: &Stretch<'_>) -> String {
    let span = coarse(Duration::from_millis(stretch.to - stretch.from));
    let from = rfc3339_seconds(stretch.from);
    let what = match (stretch.state, stretch.entry) {
        (State::Led | State::Untold, Some(entry)) => {
            let end = match (&entry.ended, stretch.state) {
                (Some(ended), _) => ended.as_str(),
                (None, State::Untold) => "nobody knows how it ended",
                (None, _) => "leads",
            };
            format!("{} on {}, term {}: {end}", entry.owner, entry.host, entry.term)
        }
        (State::Led | State::Untold, None) => format!("led on {}", stretch.host),
        (State::Free, _) => "nobody led".to_owned(),
        (State::Paused, _) => "paused".to_owned(),
        (State::Idle, _) => "between two runs".to_owned(),
    };
    on_one_line(format!("{from}, {span}: {what}"))
}
