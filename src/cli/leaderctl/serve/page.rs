//! The page: tables of shards and hosts that need no script. A small script fetches the page again and replaces the rows
//! that changed.
//!
//! The hazard: an owner, a host or a reason may be any text that somebody could write into the store. So text enters a
//! page only through [`Html::text`] or [`Html::attribute`], which escape it, and all else is written here.

use super::super::age::coarse;
use super::super::fleet::{Condition, Picture, Seen};
use super::super::history::{self, ended};
use super::super::noted::note;
use super::super::timeline::{Mark, State, Stretch};
use crate::lease::Shard;
use crate::text::on_one_line;
use crate::time::{rfc3339, rfc3339_seconds};
use std::cmp::Reverse;
use std::fmt::{Display, Write as _};
use std::time::Duration;
use url::form_urlencoded;

pub const STYLE: &str = include_str!("page.css");
pub const SCRIPT: &str = include_str!("page.js");
pub const ICON: &str = include_str!("icon.svg");

/// The most rows of a page, unless the visitor asks for all.
const ROWS: usize = 500;
/// The most shards that the row of a host names.
const NAMED: usize = 24;
/// The width of a timeline in its own units.
const WIDE: u64 = 1000;
/// Colours of hosts.
const COLOURS: usize = 12;

const RANGES: [(&str, &str, u64); 5] =
    [("1h", "hour", 1), ("6h", "6 hours", 6), ("1d", "day", 24), ("7d", "7 days", 168), ("30d", "30 days", 720)];
const SORTS: [(&str, &str); 4] =
    [("attention", "attention"), ("name", "name"), ("host", "host"), ("since", "last change")];

/// What a visitor asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    search: String,
    condition: String,
    /// The place in [`SORTS`].
    sort: usize,
    /// The place in [`RANGES`].
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

    /// The query of a link to the same page.
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
        (self.condition.is_empty() || seen.condition().name() == self.condition)
            && (seen.is_called(shard, &self.search) || in_note())
    }

    fn span(&self) -> u64 {
        RANGES[self.range].2 * 3_600_000
    }
}

/// A page that is being written.
#[derive(Default)]
struct Html(String);

impl Html {
    /// HTML from this file, as it is.
    fn raw(&mut self, html: &str) -> &mut Self {
        self.0.push_str(html);
        self
    }

    /// Escaped, for between tags and for within double quotes.
    fn text(&mut self, text: impl Display) -> &mut Self {
        for letter in on_one_line(text.to_string()).chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                letter => self.0.push(letter),
            }
        }
        self
    }

    fn attribute(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.raw(" ").raw(name).raw("=\"").text(value).raw("\"")
    }

    /// An age, which the script keeps up to date.
    fn age(&mut self, millis: u64, now: u64) -> &mut Self {
        self.raw("<time").attribute("datetime", rfc3339(millis)).attribute("title", rfc3339_seconds(millis)).raw(">");
        self.text(coarse(Duration::from_millis(now.saturating_sub(millis)))).raw("</time>")
    }

    fn begin(&mut self, title: &str, now: u64) -> &mut Self {
        self.raw(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>",
        );
        self.text(title)
            .raw("</title>\n<link rel=\"icon\" href=\"/icon.svg\">\n<link rel=\"stylesheet\" href=\"/page.css\">\n");
        self.raw("<script src=\"/page.js\" defer></script>\n</head>\n<body").attribute("data-now", now);
        self.raw(">\n<a class=\"skip\" href=\"#live\">Skip to the shards</a>\n")
    }

    /// The time of the last reading, or for how long the store has not answered.
    fn reading(&mut self, picture: &Picture, now: u64) -> &mut Self {
        self.raw("<p id=\"reading\"");
        match (&picture.trouble, picture.reading) {
            (Some(trouble), reading) => {
                self.raw(" class=\"trouble\" role=\"alert\"><strong>The store has not answered for ");
                self.age(trouble.since_millis, now).raw("</strong>: ").text(&trouble.message).raw(". ");
                match reading {
                    Some(reading) => {
                        self.raw("This page shows what was known at ").text(rfc3339_seconds(reading.at_millis))
                    }
                    None => self.raw("It has not answered since leaderctl serve started"),
                };
                self.raw(".</p>\n")
            }
            (None, Some(reading)) => {
                self.raw(">As of ").raw("<time class=\"at\"").attribute("datetime", rfc3339(reading.at_millis));
                self.raw(">").text(rfc3339_seconds(reading.at_millis)).raw("</time></p>\n")
            }
            (None, None) => self.raw(">The store is being read for the first time.</p>\n"),
        }
    }

    fn options<'a>(&mut self, name: &str, chosen: usize, all: impl Iterator<Item = (&'a str, &'a str)>) -> &mut Self {
        self.raw("<select").attribute("name", name).raw(">");
        for (index, (value, words)) in all.enumerate() {
            self.raw("<option").attribute("value", value).raw(if index == chosen { " selected>" } else { ">" });
            self.text(words).raw("</option>");
        }
        self.raw("</select>")
    }

    fn form(&mut self, wish: &Wish, searches: bool) -> &mut Self {
        self.raw("<form id=\"wish\" method=\"get\" role=\"search\">\n");
        if searches {
            self.raw("<label>Search <input type=\"search\" name=\"q\" placeholder=\"shard, leader, host, reason\" autocomplete=\"off\"");
            self.attribute("value", &wish.search).raw("></label>\n<label>Sort by ");
            self.options("sort", wish.sort, SORTS.into_iter()).raw("</label>\n");
        }
        self.raw("<label>Last ");
        self.options("range", wish.range, RANGES.into_iter().map(|(value, words, _)| (value, words))).raw("</label>\n");
        if !wish.condition.is_empty() {
            self.raw("<input type=\"hidden\" name=\"state\"").attribute("value", &wish.condition).raw(">\n");
        }
        self.raw("<button>Show</button>\n</form>\n")
    }

    fn timeline(&mut self, picture: &Picture, seen: &Seen, span: u64, now: u64) -> &mut Self {
        let from = now.saturating_sub(span);
        let stretches = seen.present(now).stretches(&seen.history);
        self.raw("<svg class=\"line\" viewBox=\"0 0 1000 20\" preserveAspectRatio=\"none\" role=\"img\"");
        self.attribute("aria-label", summary(&stretches, from)).raw(">");
        let place = |time: u64| time.saturating_sub(from).min(span) * WIDE / span.max(1);
        for stretch in stretches.iter().filter(|stretch| stretch.to >= from) {
            let (begin, end) = (place(stretch.from), place(stretch.to));
            let (class, top, height) = match stretch.state {
                State::Led => (format!("h{}", picture.number_of(stretch.host) % COLOURS), 3, 14),
                State::Untold => (format!("h{} untold", picture.number_of(stretch.host) % COLOURS), 3, 14),
                State::Free => ("free".to_owned(), 7, 6),
                State::Paused => ("paused".to_owned(), 8, 4),
                State::Idle => ("idle".to_owned(), 9, 2),
            };
            let _ = write!(
                self.0,
                "<rect class=\"{class}\" x=\"{begin}\" y=\"{top}\" width=\"{}\" height=\"{height}\"><title>",
                (end - begin).max(2)
            );
            self.text(stretch.title()).raw("</title></rect>");
        }
        for stretch in stretches.iter().filter(|stretch| stretch.to >= from) {
            let Some(mark) = stretch.mark else { continue };
            let at = place(stretch.to).saturating_sub(3);
            let name = mark_name(mark);
            let _ = write!(self.0, "<rect class=\"mark {name}\" x=\"{at}\" y=\"0\" width=\"5\" height=\"20\"><title>");
            self.text(format!("{name}: {}", stretch.title())).raw("</title></rect>");
        }
        self.raw("</svg>")
    }
}

/// The name of a mark: a class of the style, and a word for people.
fn mark_name(mark: Mark) -> &'static str {
    match mark {
        Mark::Killed => "killed",
        Mark::Lost => "lost",
        Mark::Failed => "failed",
        Mark::Paused => "ordered",
        Mark::HandedOver => "handover",
    }
}

/// The timeline in words.
fn summary(stretches: &[Stretch<'_>], from: u64) -> String {
    let shown: Vec<_> = stretches.iter().filter(|stretch| stretch.to >= from).collect();
    let led = shown.iter().filter(|stretch| matches!(stretch.state, State::Led | State::Untold)).count();
    let gaps: u64 = shown
        .iter()
        .filter(|stretch| stretch.state == State::Free)
        .map(|stretch| stretch.to - stretch.from.max(from))
        .sum();
    match (led, gaps) {
        (0, 0) => "nothing is known".to_owned(),
        (_, 0) => format!("leaderships: {led}"),
        (_, gaps) => format!("leaderships: {led}, without a leader for {}", coarse(Duration::from_millis(gaps))),
    }
}

pub fn fleet(picture: &Picture, wish: &Wish, now: u64) -> String {
    let mut html = Html::default();
    let attention = picture.shards.values().filter(|seen| seen.condition().needs_attention()).count();
    let title = match (attention, &picture.trouble) {
        (_, Some(_)) => "store unreachable - leaderrun".to_owned(),
        (0, None) => "leaderrun".to_owned(),
        (count, None) => format!("({count}) leaderrun"),
    };
    html.begin(&title, now)
        .raw("<header>\n<h1>leaderrun</h1>\n")
        .form(wish, true)
        .raw("</header>\n<main id=\"live\">\n");
    html.reading(picture, now);
    counts(&mut html, picture, wish);
    let mut rows: Vec<_> = picture.shards.iter().filter(|(shard, seen)| wish.accepts(shard, seen)).collect();
    let host = |seen: &Seen| seen.holder().and_then(|holder| holder.host.clone());
    match SORTS[wish.sort].0 {
        "attention" => rows.sort_by_key(|(_, seen)| Reverse(seen.condition())),
        "host" => rows.sort_by_cached_key(|(_, seen)| (host(seen).is_none(), host(seen))),
        "since" => rows.sort_by_key(|(_, seen)| Reverse(seen.since())),
        _ => {}
    }
    let found = rows.len();
    let most = if wish.all { found } else { ROWS };
    html.raw(
        "<section id=\"shards\">\n<h2>Shards</h2>\n<table>\n<thead><tr><th scope=\"col\">State<th scope=\"col\">Shard",
    );
    html.raw("<th scope=\"col\">Leader<th scope=\"col\">Host<th scope=\"col\" class=\"n\">Since<th scope=\"col\" class=\"n term\">Term");
    html.raw("<th scope=\"col\" class=\"n\">Standbys<th scope=\"col\">Last ").text(RANGES[wish.range].1);
    html.raw("</tr></thead>\n<tbody>\n");
    for (shard, seen) in rows.into_iter().take(most) {
        row(&mut html, picture, shard, seen, wish, now);
    }
    html.raw("</tbody>\n</table>\n");
    if found == 0 {
        html.raw("<p class=\"none\">").text(if picture.shards.is_empty() {
            "No shard has been led yet."
        } else {
            "No shard matches."
        });
        html.raw("</p>\n");
    }
    if found > most {
        let all = Wish { all: true, ..wish.clone() };
        html.raw("<p class=\"none\"><a")
            .attribute("href", all.query())
            .raw(">")
            .text(format!("{} more", found - most))
            .raw("</a></p>\n");
    }
    html.raw("</section>\n");
    legend(&mut html);
    hosts(&mut html, picture, wish);
    html.raw("</main>\n<footer>This page is read-only: use leaderctl to pause a shard or to hand it over. <a href=\"/api/shards\">JSON</a> <a href=\"/api/openapi.yaml\">OpenAPI</a> <a href=\"/metrics\">Metrics</a></footer>\n</body>\n</html>\n");
    html.0
}

fn counts(html: &mut Html, picture: &Picture, wish: &Wish) {
    html.raw("<ul id=\"counts\">");
    let all = Wish { condition: String::new(), ..wish.clone() };
    html.raw("<li><a").attribute("href", all.query());
    html.raw(if wish.condition.is_empty() { " aria-current=\"true\">" } else { ">" });
    let name = if picture.shards.len() == 1 { "shard" } else { "shards" };
    html.raw("<b>").text(picture.shards.len()).raw("</b> ").raw(name).raw("</a></li>");
    for (condition, count) in picture.counts().into_iter().rev() {
        let only = Wish { condition: condition.name().to_owned(), ..wish.clone() };
        html.raw("<li").attribute("class", condition.name()).raw("><a").attribute("href", only.query());
        html.raw(if wish.condition == condition.name() { " aria-current=\"true\">" } else { ">" });
        html.raw("<b>").text(count).raw("</b> ").text(condition.word()).raw("</a></li>");
    }
    html.raw("</ul>\n");
}

fn row(html: &mut Html, picture: &Picture, shard: &Shard, seen: &Seen, wish: &Wish, now: u64) {
    let (condition, holder) = (seen.condition(), seen.holder());
    let range = Wish { range: wish.range, ..Wish::default() };
    html.raw("<tr").attribute("id", format!("s-{shard}")).attribute("class", condition.name());
    html.raw("><td class=\"state\"><span>").text(condition.word()).raw("</span></td><th scope=\"row\"><a");
    html.attribute("href", format!("/shards/{shard}{}", range.query().trim_end_matches('?')));
    html.attribute("title", shard).raw(">").text(shard).raw("</a></th>");
    let note = words(seen, condition);
    match holder {
        Some(holder) => {
            html.raw("<td class=\"leader\"").attribute("title", &holder.owner).raw(">").text(&holder.owner);
            html.raw("</td><td class=\"host\">");
            host_name(html, picture, holder.host.as_deref().unwrap_or_default());
        }
        None => {
            html.raw("<td class=\"says\" colspan=\"2\">").text(&note);
        }
    }
    html.raw("</td><td class=\"n since\">");
    if let Some(since) = seen.since() {
        html.age(since, now);
    }
    let term = holder.and_then(|holder| holder.term).or(seen.shown.report.last_term);
    html.raw("</td><td class=\"n term\">").text(term.map(|term| term.to_string()).unwrap_or_default());
    html.raw("</td><td class=\"n standbys\">");
    html.text(seen.shown.standbys.map(|count| count.to_string()).unwrap_or_default());
    html.raw("</td><td class=\"when\">").timeline(picture, seen, wish.span(), now);
    if holder.is_some() && !note.is_empty() {
        html.raw("<p class=\"note\">").text(note).raw("</p>");
    }
    html.raw("</td></tr>\n");
}

fn host_name(html: &mut Html, picture: &Picture, host: &str) {
    if host.is_empty() {
        return;
    }
    html.raw("<i class=\"dot h").text(picture.number_of(host) % COLOURS).raw("\"></i>").text(host);
}

/// What matters beside who leads.
fn words(seen: &Seen, condition: Condition) -> String {
    let mut words = vec![note(&seen.shown)];
    if let (Condition::Leaderless, Some(last)) = (condition, seen.history.last()) {
        words.extend(ended(last, None).map(|end| format!("last led on {}: {end}", last.host)));
    }
    // The note has the last run of a job that runs once a period.
    if let (None, Some((job, ledger))) = (&seen.shown.ledger, seen.once.last()) {
        let run = ledger.counting();
        let how = if run.to_millis.is_some() { run.end() } else { "began" };
        words.push(format!("{job} on {}: {how}", run.host));
    }
    words.retain(|words| !words.is_empty());
    words.join("; ")
}

fn legend(html: &mut Html) {
    html.raw("<p id=\"legend\">");
    for (class, words) in [
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
        html.raw("<span><svg viewBox=\"0 0 12 12\"><rect").attribute("class", class);
        let (x, width) = if class.starts_with("mark") { (4, 4) } else { (0, 12) };
        html.attribute("x", x).attribute("width", width).raw(" height=\"12\"/></svg>").text(words).raw("</span> ");
    }
    html.raw("</p>\n");
}

fn hosts(html: &mut Html, picture: &Picture, wish: &Wish) {
    html.raw("<section id=\"hosts\">\n<h2>Hosts</h2>\n<table>\n<thead><tr><th scope=\"col\">Host<th scope=\"col\" class=\"n\">Leads<th scope=\"col\">Shards</tr></thead>\n<tbody>\n");
    for (host, leads) in picture.hosts() {
        html.raw("<tr><th scope=\"row\">");
        host_name(html, picture, host);
        html.raw("</th><td class=\"n\">").text(leads.len()).raw("</td><td class=\"names\">");
        for shard in leads.iter().take(NAMED) {
            html.raw("<a").attribute("href", format!("/shards/{shard}")).raw(">").text(shard).raw("</a> ");
        }
        if leads.len() > NAMED {
            let only = Wish { search: host.to_owned(), range: wish.range, ..Wish::default() };
            html.raw("<a")
                .attribute("href", only.query())
                .raw(">")
                .text(format!("and {} more", leads.len() - NAMED))
                .raw("</a>");
        }
        html.raw("</td></tr>\n");
    }
    html.raw("</tbody>\n</table>\n</section>\n");
}

/// The page of one shard.
pub fn shard(picture: &Picture, shard: &Shard, seen: &Seen, wish: &Wish, now: u64) -> String {
    let (condition, holder) = (seen.condition(), seen.holder());
    let mut html = Html::default();
    html.begin(&format!("{shard} - leaderrun"), now);
    html.raw("<header>\n<h1><a href=\"/\">leaderrun</a></h1>\n")
        .form(wish, false)
        .raw("</header>\n<main id=\"live\">\n");
    html.reading(picture, now);
    html.raw("<section id=\"shard\"").attribute("class", condition.name()).raw(">\n<h2><span class=\"state\"><span>");
    html.text(condition.word()).raw("</span></span> ").text(shard).raw("</h2>\n<div class=\"when tall\">");
    html.timeline(picture, seen, wish.span(), now).raw("</div>\n<p class=\"axis\"><span>");
    html.text(rfc3339_seconds(now.saturating_sub(wish.span()))).raw("</span><span>now</span></p>\n<dl>\n");
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            html.raw("<div><dt>").text(name).raw("</dt><dd>").text(value).raw("</dd></div>\n");
        }
    };
    fact("Leader", holder.map(|holder| holder.owner.clone()).unwrap_or_default());
    fact("Host", holder.and_then(|holder| holder.host.clone()).unwrap_or_default());
    fact("Process", holder.and_then(|holder| holder.pid).map(|pid| pid.to_string()).unwrap_or_default());
    fact("Since", seen.since().map(rfc3339_seconds).unwrap_or_default());
    let term = holder.and_then(|holder| holder.term).or(seen.shown.report.last_term);
    fact("Term", term.map(|term| term.to_string()).unwrap_or_default());
    fact("Standbys", seen.shown.standbys.map(|count| count.to_string()).unwrap_or_default());
    fact("Note", words(seen, condition));
    html.raw("</dl>\n");
    legend(&mut html);
    html.raw("<h3>Leaderships</h3>\n<table id=\"history\">\n<thead><tr><th scope=\"col\">From<th scope=\"col\" class=\"n\">For<th scope=\"col\" class=\"n\">Term<th scope=\"col\">Leader<th scope=\"col\">Host<th scope=\"col\">End</tr></thead>\n<tbody>\n");
    let leads = holder.and_then(|holder| holder.term);
    for entry in seen.history.iter().rev() {
        let span = entry.to_millis.unwrap_or(now).saturating_sub(entry.from_millis);
        let end = ended(entry, leads);
        html.raw("<tr><td>").text(rfc3339_seconds(entry.from_millis)).raw("</td><td class=\"n\">");
        html.text(if entry.to_millis.is_none() && end.is_some() {
            "?".to_owned()
        } else {
            coarse(Duration::from_millis(span))
        });
        html.raw("</td><td class=\"n\">").text(entry.term).raw("</td><td>").text(&entry.owner).raw("</td><td>");
        host_name(&mut html, picture, &entry.host);
        html.raw("</td><td>").text(end.unwrap_or("leads")).text(history::cause_in_words(entry)).raw("</td></tr>\n");
    }
    html.raw("</tbody>\n</table>\n</section>\n</main>\n</body>\n</html>\n");
    html.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_visitor_asks_for_is_read_and_leads_there_again() {
        for query in ["?", "?q=a%26b+c&state=no_leader&sort=host&range=7d&all=1"] {
            assert_eq!(Wish::read(&query[1..]).query(), query);
        }
        assert_eq!(Wish::read("sort=x&range=&nothing=1"), Wish::default());
    }

    #[test]
    fn text_from_the_store_is_escaped() {
        let mut html = Html::default();
        html.text("<script>'&\"\n\u{1b}").attribute("title", "\"><img>");
        assert_eq!(html.0, "&lt;script&gt;&#39;&amp;&quot;   title=\"&quot;&gt;&lt;img&gt;\"");
    }
}
