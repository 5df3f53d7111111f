//! `leaderctl status`: who leads a shard, for people and for programs.

use super::slots::{self, Kin, Slots};
use super::{inspect, job, printed, rfc3339};
use crate::lease::{JobId, Shard, show, show_seconds};
use crate::notes::jobs::{self, Ledger};
use crate::notes::orders::{self, Orders};
use crate::store::{Report, Store, StoreError, within};
use crate::text::on_one_line;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct StatusFlags {
    /// The name of the shard
    #[arg(value_name = "SHARD", value_parser = clap::value_parser!(Shard))]
    shard: Shard,

    /// Show only the job that runs once under this name
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(JobId), allow_hyphen_values = true,
          conflicts_with = "standbys")]
    once: Option<JobId>,

    /// Count standbys even if that costs money
    #[arg(long)]
    standbys: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is shown about a shard.
#[derive(Debug, Default)]
pub struct Shown {
    pub report: Report,
    /// None if they were not read.
    pub orders: Option<Orders>,
    /// Read with the orders; None if no job ran.
    pub ledger: Option<Ledger>,
    pub kin: Kin,
    /// None if they were not counted.
    pub standbys: Option<usize>,
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
    /// None if it does not expire, or if the record lacks it.
    renewed_seconds_ago: Option<f64>,
    /// None if it does not expire.
    expires_in_seconds: Option<f64>,
    last_term: Option<u64>,
    /// None if they were not counted.
    standbys: Option<usize>,
    /// Only from the verbs that read orders: those that show or change one shard.
    #[serde(flatten)]
    orders: Option<Ordered<'a>>,
}

#[derive(Debug, Serialize)]
struct Ordered<'a> {
    /// None if they were not looked for.
    led_slots: Option<Vec<&'a str>>,
    paused: bool,
    pause: Option<Pause<'a>>,
    parent_pause: Option<ParentPause<'a>>,
    handover: Option<Handover<'a>>,
    last_run: Option<LastRun<'a>>,
}

#[derive(Debug, Serialize)]
struct Pause<'a> {
    by: &'a str,
    since: String,
    reason: Option<&'a str>,
    keep: bool,
    /// None if it lasts until it is resumed.
    ends_in_seconds: Option<f64>,
}

/// Of the shard that it is a slot of.
#[derive(Debug, Serialize)]
struct ParentPause<'a> {
    shard: &'a str,
    #[serde(flatten)]
    pause: Pause<'a>,
}

#[derive(Debug, Serialize)]
struct Handover<'a> {
    term: u64,
    by: &'a str,
    since: String,
    /// None for any other candidate.
    to: Option<&'a str>,
}

/// The last run of a job that runs once a period.
#[derive(Debug, Serialize)]
struct LastRun<'a> {
    /// When it was due.
    slot: Option<String>,
    every_seconds: Option<f64>,
    host: &'a str,
    owner: &'a str,
    term: u64,
    started: String,
    /// None while it runs, and if nobody recorded it.
    ended: Option<String>,
    /// The same, and if COMMAND itself was not reaped.
    exit_status: Option<u8>,
    how: Option<&'a str>,
    /// How many runs there were in this period.
    attempts: u32,
}

impl<'a> LastRun<'a> {
    fn of(ledger: &'a Ledger) -> Self {
        let run = ledger.counting();
        Self {
            slot: ledger.due_millis.map(rfc3339),
            every_seconds: ledger.every_millis.map(|millis| Duration::from_millis(millis).as_secs_f64()),
            host: &run.host,
            owner: &run.owner,
            term: run.term.0,
            started: rfc3339(run.from_millis),
            ended: run.to_millis.map(rfc3339),
            exit_status: run.status,
            how: run.ended.as_deref(),
            attempts: ledger.attempts,
        }
    }
}

impl<'a> Pause<'a> {
    fn of(pause: &'a orders::PauseOrder) -> Self {
        Self {
            by: &pause.by,
            since: rfc3339(pause.since_millis),
            reason: pause.reason.as_deref(),
            keep: pause.keep,
            ends_in_seconds: pause.left.map(|left| left.as_secs_f64()),
        }
    }
}

impl<'a> Ordered<'a> {
    fn of(orders: &'a Orders, kin: &'a Kin, ledger: Option<&'a Ledger>) -> Self {
        let pause = orders.pause.as_ref().map(Pause::of);
        let parent_pause = kin.pause.as_ref();
        let parent_pause =
            parent_pause.map(|above| ParentPause { shard: above.parent.as_str(), pause: Pause::of(&above.pause) });
        let handover = orders.handover.as_ref().map(|handover| Handover {
            term: handover.term.0,
            by: &handover.by,
            since: rfc3339(handover.since_millis),
            to: handover.to.as_deref(),
        });
        let led_slots = kin.slots.as_ref().map(|slots| slots.led().map(|(slot, _)| slot.as_str()).collect());
        Self { led_slots, paused: pause.is_some(), pause, parent_pause, handover, last_run: ledger.map(LastRun::of) }
    }
}

impl StatusFlags {
    /// # Errors
    /// As [`Store::inspect`].
    pub async fn show(&self, store: &dyn Store, timeout: Duration) -> Result<ExitCode, StoreError> {
        if let Some(job) = &self.once {
            return job::show(store, timeout, &self.shard, job, self.json).await;
        }
        let report = inspect(store, &self.shard, timeout).await?;
        let orders = within(timeout, orders::read(store, &self.shard)).await?;
        let ledger = within(timeout, jobs::last(store, &self.shard)).await?;
        let kin = Kin::of(store, &self.shard, &report, timeout).await?;
        let standbys = if self.standbys || !store.is_metered() {
            let all = slots::standbys(store, self.shard.as_str(), timeout).await?;
            let leaders = kin.slots.iter().flat_map(Slots::led).map(|(_, holder)| holder);
            Some(slots::waiting(&all, &self.shard, &slots::sessions(report.holder.iter().chain(leaders))))
        } else {
            None
        };
        let shown = Shown { report, orders: Some(orders), ledger, kin, standbys };
        let text = if self.json { as_json(&self.shard, &shown) } else { as_text(&self.shard, &shown) };
        Ok(printed(writeln!(stdout(), "{text}")))
    }
}

/// One line.
pub fn as_json(shard: &Shard, shown: &Shown) -> String {
    let report = &shown.report;
    let holder = report.holder.as_ref();
    let status = Status {
        shard: shard.as_str(),
        held: holder.is_some(),
        owner: holder.map(|holder| holder.owner.as_str()),
        host: holder.and_then(|holder| holder.host.as_deref()),
        pid: holder.and_then(|holder| holder.pid),
        term: holder.and_then(|holder| holder.term).map(|term| term.0),
        since: holder.and_then(|holder| holder.since_millis).map(rfc3339),
        renewed_seconds_ago: holder.and_then(|holder| holder.renewed_ago).map(|ago| ago.as_secs_f64()),
        expires_in_seconds: holder.and_then(|holder| holder.expires_in).map(|left| left.as_secs_f64()),
        last_term: report.last_term.map(|term| term.0),
        standbys: shown.standbys,
        orders: shown.orders.as_ref().map(|orders| Ordered::of(orders, &shown.kin, shown.ledger.as_ref())),
    };
    serde_json::to_string(&status).expect("a status is plain data")
}

fn as_text(shard: &Shard, shown: &Shown) -> String {
    let advice = shown.kin.slots.as_ref().and_then(Slots::advice);
    let mut text = match (&shown.report, advice) {
        (Report { holder: Some(holder), .. }, _) => format!("{shard}: led by {}", on_one_line(holder.owner.clone())),
        (Report { .. }, Some(advice)) => format!("{shard}: {advice}"),
        (Report { last_term: Some(term), .. }, None) => format!("{shard}: free (last term {term})"),
        (Report { .. }, None) => format!("{shard}: free"),
    };
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, "\n  {name:<11}{}", on_one_line(value));
        }
    };
    if let Some(holder) = &shown.report.holder {
        add("host", holder.host.clone());
        add("pid", holder.pid.map(|pid| pid.to_string()));
        add("term", holder.term.map(|term| term.to_string()));
        add("since", holder.since_millis.map(rfc3339));
        add("renewed", holder.renewed_ago.map(|ago| format!("{} ago", show(ago))));
        add("expires in", holder.expires_in.map(show));
    }
    // That nobody could take over matters if somebody leads.
    let standbys = shown.standbys.filter(|&count| count > 0 || shown.report.holder.is_some());
    add("standbys", standbys.map(|count| count.to_string()));
    let orders = shown.orders.as_ref();
    add("paused", orders.and_then(|orders| orders.pause.as_ref()).map(paused));
    add("paused", shown.kin.pause.as_ref().map(paused_above));
    add("handover", orders.and_then(|orders| orders.handover.as_ref()).map(handed_over));
    add("last run", shown.ledger.as_ref().map(|ledger| last_run(ledger, &shown.report)));
    text
}

/// By whom, since when, for how long, and why.
pub fn paused(pause: &orders::PauseOrder) -> String {
    let left = pause.left.map(|left| format!(", for another {}", show_seconds(left))).unwrap_or_default();
    let keep = if pause.keep { ", who leads goes on" } else { "" };
    let reason = pause.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("by {} since {}{left}{keep}{reason}", pause.by, rfc3339(pause.since_millis))
}

/// The same, of all slots of a shard.
pub fn paused_above(above: &slots::ParentPause) -> String {
    format!("all slots of {}, {}", above.parent, paused(&above.pause))
}

/// In which period, on which host, from when to when, and how it ended.
fn last_run(ledger: &Ledger, report: &Report) -> String {
    let run = ledger.counting();
    let runs = run.to_millis.is_none() && report.holder.as_ref().is_some_and(|holder| holder.term == Some(run.term));
    let period = ledger.due_millis.map(|due| format!("of period {}, ", rfc3339(due))).unwrap_or_default();
    let to = run.to_millis.map(|to| format!(" to {}", rfc3339(to))).unwrap_or_default();
    let end = if runs { "it runs" } else { run.end() };
    let attempts = if ledger.attempts > 1 { format!(" ({} attempts)", ledger.attempts) } else { String::new() };
    format!("{period}on {} from {}{to}: {end}{attempts}", run.host, rfc3339(run.from_millis))
}

pub fn handed_over(handover: &orders::HandoverOrder) -> String {
    let to = handover.to.as_deref().unwrap_or("anybody else");
    format!("of term {} to {to}, by {} since {}", handover.term, handover.by, rfc3339(handover.since_millis))
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
                renewed_ago: source.one_in(2).then(|| source.duration()),
                ..Holder::default()
            };
            input.show(|| format!("{holder:?}"));
            let told = [
                holder.host.is_some(),
                holder.term.is_some(),
                holder.since_millis.is_some(),
                holder.expires_in.is_some(),
                holder.renewed_ago.is_some(),
            ];
            let lines = 1 + told.iter().filter(|told| **told).count();
            let report = Report { holder: Some(holder), last_term: None };
            let text = as_text(&shard, &Shown { report, ..Shown::default() });
            assert_eq!(text.split('\n').count(), lines, "{text:?}");
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
            if lines > 1 { Fate::Accepted } else { Fate::Refused }
        });
    }
}
