//! The snapshot as Prometheus reads it.
//!
//! The hazard: an alert on a metric that is missing never fires. So each metric that could raise an alert is there for
//! every shard from the first reading on, and keeps its last value while the store is unreachable: the age of the
//! reading shows that it is old. Names of shards are the only labels that grow with the store, up to a bound.
//!
//! The text is written straight from the snapshot. For 20,000 shards, a registry of the prometheus crate takes 470 MB
//! instead of 35 MB, and fifty times as long, on the thread that reads the store.

use super::super::fleet::{Condition, Job, Seen, Snapshot, lateness};
use super::super::prelude::ago;
use super::super::shard_notes::pauses;
use crate::election::Reason;
use crate::lease::JobId;
use crate::store::ErrorKind;
use crate::time::{BootInstant, wall_clock_millis};
use std::fmt::{Display, Write as _};
use strum::VariantArray;

/// The most shards with metrics, in the order of their names. The others are only counted.
pub const MOST: usize = 20_000;

pub fn text(snapshot: &Snapshot) -> String {
    let mut page = Metrics { text: String::with_capacity(4096 + snapshot.shards.len() * 1024), snapshot };
    let now = BootInstant::now();
    page.of_the_reading(now);
    page.of_shards(now);
    page.of_jobs();
    page.text
}

struct Metrics<'a> {
    text: String,
    snapshot: &'a Snapshot,
}

fn seconds(seconds: f64) -> f64 {
    (seconds.max(0.0) * 1000.0).round() / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "a time in milliseconds has 41 bits")]
fn timestamp(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

impl Metrics<'_> {
    /// A family with a line for each of these labels. The names of shards and jobs need no escapes.
    fn family<L, V>(&mut self, name: &str, kind: &str, help: &str, lines: impl IntoIterator<Item = (L, V)>)
    where
        L: Display,
        V: Display,
    {
        let _ = write!(self.text, "# HELP leaderrun_{name} {help}\n# TYPE leaderrun_{name} {kind}\n");
        for (labels, value) in lines {
            let _ = writeln!(self.text, "leaderrun_{name}{labels} {value}");
        }
    }

    fn alone(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help, [("", value)]);
    }

    /// For each shard with a value.
    fn each<V: Display>(&mut self, name: &str, help: &str, value: impl Fn(&Seen) -> Option<V>) {
        let shards = self.snapshot.shards.iter().take(MOST);
        let lines = shards.filter_map(|(shard, seen)| Some((format!("{{shard=\"{shard}\"}}"), value(seen)?)));
        self.family(name, "gauge", help, lines);
    }

    fn of_the_reading(&mut self, now: BootInstant) {
        let version = env!("CARGO_PKG_VERSION");
        let commit = option_env!("SOURCE_COMMIT").unwrap_or_default();
        let help = "1, with the version and the commit of this leaderctl, if it is known.";
        let labels = format!("{{version=\"{version}\",commit=\"{commit}\"}}");
        self.family("build_info", "gauge", help, [(labels, 1)]);
        let snapshot = self.snapshot;
        let up = snapshot.reading.is_some() && snapshot.trouble.is_none();
        self.alone("store_up", "gauge", "1 if the store answered the last poll, else 0.", u8::from(up));
        let silence = snapshot.trouble.as_ref().map_or(0.0, |trouble| now.since(trouble.since).as_secs_f64());
        let help = "How long the store has returned only errors, 0 while it answers.";
        self.alone("store_trouble_seconds", "gauge", help, seconds(silence));
        let errors = ErrorKind::ALL.iter().map(|kind| {
            let labels = format!("{{conclusion=\"{}\"}}", kind.into_str());
            (labels, snapshot.errors.get(kind).unwrap_or(&0))
        });
        self.family("store_errors_total", "counter", "Requests that failed, by whether they were applied.", errors);
        self.alone("readings_total", "counter", "Polls of the store.", snapshot.readings);
        if let Some(reading) = snapshot.reading {
            let age = now.since(reading.at).as_secs_f64();
            self.alone("reading_age_seconds", "gauge", "How long ago the store answered the last poll.", seconds(age));
            let took = seconds(reading.took.as_secs_f64());
            self.alone("reading_seconds", "gauge", "How long the last poll took.", took);
        }
        let counts = snapshot.counts();
        let counts = Condition::VARIANTS.iter().map(|condition| {
            let labels = format!("{{condition=\"{}\"}}", condition.into_str());
            (labels, counts.get(condition).unwrap_or(&0))
        });
        self.family("shards", "gauge", "Shards, by condition.", counts);
        let left_out = snapshot.shards.len().saturating_sub(MOST);
        let help = "Shards without metrics, because there are too many: use --prefix.";
        self.alone("shards_left_out", "gauge", help, left_out);
    }

    fn of_shards(&mut self, now: BootInstant) {
        let wall = wall_clock_millis();
        let age = self.snapshot.reading.map_or(0.0, |reading| now.since(reading.at).as_secs_f64());
        self.each("shard_led", "1 if a leader held the lease, else 0.", |seen| Some(u8::from(seen.holder().is_some())));
        let help = "For how long nobody has led, as far as it is known; 0 while somebody leads.";
        self.each("shard_leaderless_seconds", help, |seen| match (seen.holder(), seen.free_since) {
            (Some(_), _) => Some(0.0),
            (None, since) => since.map(|since| seconds(timestamp(wall.saturating_sub(since)))),
        });
        let help = "1 if nobody leads although nobody ordered that: the last leader was lost, or candidates wait.";
        self.each("shard_leader_missing", help, |seen| Some(u8::from(seen.condition() == Condition::Leaderless)));
        self.each("shard_term", "The term of the leader, or the last one.", |seen| seen.term().map(|term| term.0));
        self.each("shard_standbys", "Candidates that wait, if they are counted.", |seen| seen.shown.standbys);
        self.each("shard_paused_seconds", "For how long the shard has been paused; 0 if it is not.", |seen| {
            seen.shown.orders.as_ref()?;
            let since = pauses(&seen.shown, ago).map(|(pause, _)| pause.since_millis).min();
            Some(since.map_or(0.0, |since| seconds(timestamp(wall.saturating_sub(since)).max(0.001))))
        });
        self.each("shard_lease_used_ratio", "The part of the lease that has passed since its last renewal.", |seen| {
            seen.holder().and_then(lateness).map(seconds)
        });
        self.each("shard_renewed_seconds", "Time since the last renewal of the lease.", |seen| {
            seen.holder()?.renewed_ago.map(|ago| seconds(ago.as_secs_f64() + age))
        });
        let help = "1 if its COMMAND runs once, or once a period, so that nobody need lead in between.";
        self.each("shard_is_job", help, |seen| Some(u8::from(seen.shown.is_job())));
        let ends = self.snapshot.shards.iter().take(MOST).flat_map(|(shard, seen)| {
            let labels = move |reason: &Reason| format!("{{shard=\"{shard}\",reason=\"{reason}\"}}");
            Reason::ALL.iter().map(labels).zip(seen.counters.ends)
        });
        let help = "Ends of leaderships since this leaderctl started, by their reasons.";
        self.family("shard_leadership_ends_total", "counter", help, ends);
    }

    fn of_jobs(&mut self) {
        type Value = fn(&Job) -> Option<f64>;
        let families: [(&str, &str, Value); 6] = [
            ("job_last_run_timestamp_seconds", "When the last run of the job began.", |job| {
                Some(timestamp(job.last.from_millis))
            }),
            ("job_last_success_timestamp_seconds", "When the job last succeeded.", |job| job.succeeded.map(timestamp)),
            ("job_last_duration_seconds", "How long the last run of the job took.", |job| {
                job.last.to_millis.map(|ended| timestamp(ended.saturating_sub(job.last.from_millis)))
            }),
            ("job_last_status", "The exit status of the last run of the job.", |job| job.last.status.map(f64::from)),
            ("job_due_timestamp_seconds", "When the period of the last run was due.", |job| {
                job.period.map(|turn| timestamp(turn.due_millis))
            }),
            ("job_period_seconds", "The length of the job's period.", |job| {
                job.period.map(|turn| timestamp(turn.every_millis))
            }),
        ];
        for (name, help, value) in families {
            let lines = self.snapshot.shards.iter().take(MOST).flat_map(|(shard, seen)| {
                seen.counters.jobs.iter().filter_map(move |(job, run)| {
                    let once = job.as_ref().map_or("", JobId::as_str);
                    Some((format!("{{shard=\"{shard}\",once=\"{once}\"}}"), value(run)?))
                })
            });
            self.family(name, "gauge", help, lines);
        }
    }
}
