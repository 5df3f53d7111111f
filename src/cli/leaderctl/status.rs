//! `leaderctl status`: who leads a shard, for people and for programs.

use super::jobs::{State, words};
use super::object;
use super::prelude::*;
use super::shard_notes::ordered;
use super::slots::{ParentPause, Waiting, listed, parent_pause};
use crate::lease::JobId;
use crate::notes::jobs::index::{self, Indexed};
use crate::notes::jobs::period::Turn;
use crate::notes::jobs::{self, Ledger};
use crate::notes::orders::Orders;
use crate::notes::standbys::Standby;
use std::fmt::Write as _;

#[derive(Debug, Args)]
pub struct StatusFlags {
    /// The names of the shards
    #[arg(value_name = "SHARD", required = true)]
    shards: Vec<Shard>,

    /// Name standbys also where a request costs money or burdens a cluster
    #[arg(long)]
    standbys: bool,

    /// Print one JSON object for each shard
    #[arg(long)]
    json: bool,
}

const MOST_JOBS: usize = 3;

#[derive(Debug, Default)]
pub struct Shown {
    pub report: Report,
    /// None if they were not read.
    pub orders: Option<Orders>,
    /// Read with the orders. None if no job ran.
    pub ledger: Option<Ledger>,
    /// The newest first. Read with the orders.
    pub jobs: Vec<Indexed>,
    /// None if they were not read, or if the shard alone is led.
    pub slots: Option<Slots>,
    pub parent_pause: Option<ParentPause>,
    /// None if they were not counted.
    pub standbys: Option<usize>,
    /// The standbys themselves; None if they were not counted, or only that.
    pub waiting: Option<Vec<Standby>>,
    pub trouble: Option<String>,
}

impl StatusFlags {
    pub async fn show(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let mut counts = self.standbys || !client.store.is_metered();
        for shard in &self.shards {
            let mut shown = Shown::read(client, shard).await?;
            let announced = if counts { Some(slots::announced(client, shard.as_str()).await) } else { None };
            let standbys = match announced {
                Some(Err(error)) if error.kind == ErrorKind::Denied => {
                    say(format_args!("standbys are not shown: {}", error.message));
                    counts = false;
                    None
                }
                announced => announced.transpose()?.map(|announced| announced.standbys),
            };
            shown.waiting = standbys.map(|all| {
                let leaders = shown.slots.iter().flat_map(Slots::led).map(|(_, holder)| holder);
                let waiting = Waiting::of(&all, shown.report.holder.iter().chain(leaders));
                waiting.at(shard).into_iter().cloned().collect()
            });
            shown.standbys = shown.waiting.as_ref().map(Vec::len);
            print_lines([if self.json { as_json(shard, &shown) } else { as_text(shard, &shown) }])?;
            if !self.json && shown.was_never_led() {
                let unknown = Unknown::of_never_led(client, shard).await.ok().flatten();
                // A name that was never led is no slip unless it looks like one.
                if let Some(unknown) = unknown.filter(|it| it.nearest.is_some() || shown.is_paused()) {
                    say(unknown.told(shard));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Shown {
    /// All but the standbys. What is denied of slots is reported and left out.
    pub async fn read(client: Client<'_>, shard: &Shard) -> Answer<Self> {
        let report = client.inspect(shard).await?;
        let noted = Self::of_notes(client, shard).await?;
        let slots = match report.holder {
            Some(_) if client.store.is_metered() => None,
            _ => Some(Slots::of(client, shard).await?),
        };
        let parent_pause = match parent_pause(client, shard).await {
            Err(error) if error.kind == ErrorKind::Denied => {
                let why = error.message;
                say(format_args!("{shard}: cannot tell whether a pause of all slots applies to it: {why}"));
                None
            }
            pause => pause?,
        };
        let is_led = report.holder.is_some();
        if let Some(hidden) = slots.as_ref().and_then(|slots| slots.hidden.as_ref()).filter(|_| !is_led) {
            say(format_args!("{shard}: {}", hidden.message));
        }
        let slots = slots.filter(|slots| slots.hidden.is_none() && (!is_led || slots.led().next().is_some()));
        if let Some(slots) = slots.as_ref().filter(|_| is_led) {
            let led = listed(slots.led().map(|(slot, _)| slot));
            say(format_args!(
                "{shard}: {led} is led besides, because candidates with --slots do not compete with others"
            ));
        }
        Ok(Self { report, slots, parent_pause, ..noted })
    }

    pub async fn of_notes(client: Client<'_>, shard: &Shard) -> Answer<Self> {
        let orders = client.ask(orders::read(client.store, shard)).await?;
        let ledger = client.ask(jobs::last(client.store, shard)).await?;
        let jobs = client.ask(index::read(client.store, shard, ledger.as_ref())).await?;
        Ok(Self { orders: Some(orders), ledger, jobs, ..Self::default() })
    }

    pub fn is_paused(&self) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.pause.is_some()) || self.parent_pause.is_some()
    }

    pub fn is_job(&self) -> bool {
        self.ledger.is_some() || !self.jobs.is_empty()
    }

    /// Neither it nor a slot of it. False if the slots were not looked for.
    fn was_never_led(&self) -> bool {
        self.slots.as_ref().is_some_and(|slots| never_led(&self.report, slots))
    }

    /// Whether the store has seen a leader, a pause, or a standby. None if that was not read.
    fn is_known(&self) -> Option<bool> {
        let slots = self.slots.as_ref().is_some_and(|slots| slots.names().next().is_some());
        let waits = self.standbys.is_some_and(|count| count > 0);
        let known = self.report != Report::default() || slots || waits || self.is_paused();
        if known { Some(true) } else { self.was_never_led().then_some(false) }
    }
}

/// What `status --json` and each line of `list --json` prints.
pub fn object<'a>(shard: &'a Shard, shown: &'a Shown) -> impl Serialize + use<'a> {
    let Shown { report, standbys, orders, .. } = shown;
    let holder = report.holder.as_ref();
    object! {
        shard: shard.as_str(),
        known: shown.is_known(),
        held: holder.is_some(),
        owner: holder.map(|holder| holder.owner.as_str()),
        host: holder.and_then(|holder| holder.host.as_deref()),
        pid: holder.and_then(|holder| holder.pid),
        foreign_lock: holder.and_then(|holder| holder.foreign_lock.as_deref()),
        term: holder.and_then(|holder| holder.term),
        since: holder.and_then(|holder| holder.since_millis).map(rfc3339),
        renewed_seconds_ago: holder.and_then(|holder| holder.renewed_ago).map(|ago| ago.as_secs_f64()),
        expires_in_seconds: holder.and_then(|holder| holder.expires_in).map(|left| left.as_secs_f64()),
        last_term: report.last_term,
        standbys,
        #[serde(flatten)]
        orders: orders.as_ref().map(|orders| noted(orders, shown)),
    }
}

fn noted<'a>(orders: &'a Orders, shown: &'a Shown) -> impl Serialize + use<'a> {
    let Shown { report, slots, ledger, jobs, waiting, .. } = shown;
    object! {
        led_slots: slots.as_ref().map(|slots| slots.led().map(|(slot, _)| slot.as_str()).collect::<Vec<_>>()),
        paused: orders.pause.is_some(),
        pause: orders.pause.as_ref().map(pause),
        parent_pause: shown.parent_pause.as_ref().map(|above| object! {
            shard: above.parent.as_str(),
            #[serde(flatten)]
            pause: pause(&above.pause),
        }),
        handover: orders.handover.as_ref().map(|handover| object! {
            term: handover.term,
            by: &handover.by,
            since: rfc3339(handover.since_millis),
            to: &handover.to,
        }),
        last_run: ledger.as_ref().map(last_run_object),
        jobs: jobs.iter().map(|job| job_object(job, report)).collect::<Vec<_>>(),
        waiting: waiting.as_ref().map(|all| all.iter().map(|Standby { owner, host, since_millis, .. }| object! {
            owner,
            host,
            since: rfc3339(*since_millis),
        }).collect::<Vec<_>>()),
    }
}

fn pause(PauseOrder { by, since_millis, reason, keep, left, .. }: &PauseOrder) -> impl Serialize + use<'_> {
    object! {
        by,
        since: rfc3339(*since_millis),
        reason,
        keep,
        ends_in_seconds: left.map(|left| left.as_secs_f64()),
    }
}

fn last_run_object(ledger: &Ledger) -> impl Serialize + use<'_> {
    let run = ledger.counting();
    object! {
        period: ledger.period.map(Turn::due),
        every_seconds: ledger.period.map(|turn| Duration::from_millis(turn.every_millis).as_secs_f64()),
        host: &run.host,
        owner: &run.owner,
        term: run.term,
        started: rfc3339(run.from_millis),
        ended: run.to_millis.map(rfc3339),
        exit_status: run.status,
        how: &run.ended,
        attempts: ledger.attempts,
    }
}

/// The last run of a job, or the one that succeeded.
fn job_object<'a>(job: &'a Indexed, report: &Report) -> impl Serialize + use<'a> {
    object! {
        job: job.job.once().map(JobId::as_str),
        every_seconds: job.job.every().map(|every| every.as_secs_f64()),
        state: State::of(job, report).into_str(),
        host: &job.host,
        started: rfc3339(job.from_millis),
        ended: job.to_millis.map(rfc3339),
        exit_status: job.status,
        attempts: job.attempts,
    }
}

pub fn as_json(shard: &Shard, shown: &Shown) -> String {
    object::as_json(&object(shard, shown))
}

fn as_text(shard: &Shard, shown: &Shown) -> String {
    let mut text = format!("{shard}: {}", state(shown));
    let mut add = |name: &str, value| add_line(&mut text, name, value);
    if let Some(holder) = &shown.report.holder {
        add("host", holder.host.clone());
        add("pid", holder.pid.map(|pid| pid.to_string()));
        add("term", holder.term.map(|term| term.to_string()));
        add("since", holder.since_millis.map(dated));
        add("renewed", holder.renewed_ago.map(|ago| format!("{} ago", show(ago))));
        add("expires in", holder.expires_in.map(show));
    }
    // That no standby waits matters only while the shard has a leader.
    let standbys = shown.standbys.filter(|&count| count > 0 || shown.report.holder.is_some());
    add("standbys", standbys.map(|count| count.to_string()));
    for Standby { owner, host, since_millis, .. } in shown.waiting.iter().flatten() {
        add("standby", Some(format!("{owner} on {host} since {}", dated(*since_millis))));
    }
    for words in ordered(shown, since) {
        let (name, rest) = words.split_once(' ').expect("it begins with a word");
        add(name, Some(rest.to_owned()));
    }
    add("last run", shown.ledger.as_ref().map(|ledger| last_run(ledger, &shown.report)));
    for job in shown.jobs.iter().take(MOST_JOBS) {
        add("job", words(job, &shown.report).strip_prefix("job ").map(str::to_owned));
    }
    let more = shown.jobs.len().saturating_sub(MOST_JOBS);
    add("jobs", (more > 0).then(|| format!("{more} more: leaderctl jobs {shard}")));
    text
}

pub fn add_line(text: &mut String, name: &str, value: Option<String>) {
    if let Some(value) = value {
        let _ = write!(text, "\n  {name:<11}{}", on_one_line(value));
    }
}

fn state(shown: &Shown) -> String {
    let led = match (&shown.report.holder, shown.slots.as_ref().and_then(Slots::led_as)) {
        (Some(holder), _) => Some(format!("led by {}", holder.named())),
        (None, slots) => slots.map(|slots| format!("led as {slots}")),
    };
    let term = shown.report.last_term.map(|term| format!(" (last term {term})")).unwrap_or_default();
    match (shown.is_paused(), led) {
        (true, Some(led)) => format!("paused, {led}"),
        (false, Some(led)) => led,
        (true, None) if shown.was_never_led() => "paused, never led".to_owned(),
        (false, None) if shown.was_never_led() => "never led".to_owned(),
        (true, None) => format!("paused{term}"),
        (false, None) => format!("free{term}"),
    }
}

fn last_run(ledger: &Ledger, report: &Report) -> String {
    let run = ledger.counting();
    let runs = run.to_millis.is_none() && report.leads(run.term);
    let period = ledger.period.map(|turn| format!("of period {}, ", dated(turn.due_millis))).unwrap_or_default();
    let to = run.to_millis.map(|to| format!(" to {}", dated(to))).unwrap_or_default();
    let end = if runs { "it runs" } else { run.end() };
    let attempts = if ledger.attempts > 1 { format!(" ({} attempts)", ledger.attempts) } else { String::new() };
    format!("{period}on {} from {}{to}: {end}{attempts}", run.host, dated(run.from_millis))
}
