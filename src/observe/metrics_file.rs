//! `--metrics-file`: the result of each run of COMMAND in a file, for the textfile collector of node_exporter, which
//! also sees a job that lives for a second.
//!
//! The hazards: a file system may hang, and the thread of the event loop renews the lease. So another thread writes,
//! and a candidate that ends waits only a moment for it. The collector may read at any instant, so the file is replaced
//! as a whole. And a failed run must not hide the last success, which is read from the file that is replaced.

use super::Observer;
use crate::election::{Action, Ended, Event, Notice, TreeEvent, Why};
use crate::exit;
use crate::lease::{Candidate, JobId, Shard, Term};
use crate::text::in_words;
use crate::time::{BootInstant, wall_clock_millis};
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const LAST: Duration = Duration::from_secs(2);
const SUCCESS: &str = "job_last_success_timestamp_seconds";
const STATUS: &str = "job_last_status";
const END: &str = "last_exit_status";

pub struct MetricsFile {
    results: Option<Sender<News>>,
    /// What `-E` chose: the exit status if another candidate leads, or the shard is paused.
    conflict: u8,
    /// Disconnected when all is written.
    written: Receiver<()>,
    is_job: bool,
    term: Term,
    /// When COMMAND was started last, by the clock that cannot be set, and in milliseconds since 1970.
    started: Option<(BootInstant, u64)>,
    pending: Option<Run>,
}

#[derive(Clone, Copy, Debug)]
enum News {
    Run(Run),
    End(u8, Why),
}

#[derive(Clone, Copy, Debug)]
struct Run {
    term: Term,
    started_millis: u64,
    ended_millis: u64,
    took: Duration,
    status: u8,
}

const ROOM: usize = 4096;

impl MetricsFile {
    /// Makes sure that the file can be written, and starts the thread that writes it.
    pub fn open(path: &Path, candidate: &Candidate, once: Option<&JobId>, conflict: u8) -> Result<Self, String> {
        let refused =
            |error: &io::Error| format!("cannot write --metrics-file {}: {}", path.display(), in_words(error));
        let draft = path.with_extension(format!("prom.{}", std::process::id()));
        let written = draft_file(&draft).and_then(|mut file| file.write_all(&[b'\n'; ROOM]));
        written.and_then(|()| fs::remove_file(&draft)).map_err(|error| refused(&error))?;
        let labels = labels(&candidate.shard, once);
        let (results, asked) = channel::<News>();
        let (done, written) = channel();
        let path = path.to_owned();
        thread::Builder::new()
            .name("metrics-file".to_owned())
            .spawn(move || {
                let _done = done;
                for news in asked {
                    if let Err(error) = replace(&path, &draft, &labels, news) {
                        tracing::warn!("cannot write {}: {}", path.display(), in_words(&error));
                    }
                }
            })
            .map_err(|error| format!("cannot start a thread for --metrics-file: {}", in_words(&error)))?;
        Ok(Self {
            results: Some(results),
            conflict,
            written,
            term: Term(0),
            is_job: once.is_some(),
            started: None,
            pending: None,
        })
    }

    /// COMMAND ended. How it counts is known when the leadership ends, or when COMMAND starts again.
    fn ended(&mut self, status: u8) {
        let Some((started, started_millis)) = self.started.take() else { return };
        let took = BootInstant::now().since(started);
        let ended_millis = wall_clock_millis();
        self.pending = Some(Run { term: self.term, started_millis, ended_millis, took, status });
    }

    fn write(&mut self) {
        if let Some(run) = self.pending.take() {
            self.send(News::Run(run));
        }
    }

    fn send(&self, news: News) {
        if let Some(results) = &self.results {
            let _ = results.send(news);
        }
    }
}

impl Observer for MetricsFile {
    fn saw(&mut self, event: &Event) {
        match event {
            Event::Tree(TreeEvent::Started) => {
                self.write();
                self.started = Some((BootInstant::now(), wall_clock_millis()));
            }
            Event::Tree(TreeEvent::Ended(end)) => self.ended(end.exit_status()),
            _ => {}
        }
    }

    fn did(&mut self, action: &Action) {
        match action {
            Action::Start { term, .. } => self.term = *term,
            // A loss before the next run is not how this one ended.
            Action::Say(Notice::Restarting { .. }) => self.write(),
            Action::Ended { how, .. } => {
                // Nobody saw it end.
                self.ended(exit::LOST);
                // Whatever COMMAND returned.
                if let Some(result) = &mut self.pending {
                    match how {
                        Ended::Overran => result.status = exit::OVERRAN,
                        Ended::Lost(_) => result.status = exit::LOST,
                        Ended::ByItself(_) | Ended::GaveUp { .. } => {}
                        // A job that was stopped may exit with 0. That does not mean that it is done.
                        Ended::Asked(signal) if self.is_job && result.status == 0 => {
                            result.status = exit::of_signal(*signal);
                        }
                        _ if self.is_job && result.status == 0 => result.status = exit::of_signal(15),
                        _ => {}
                    }
                }
                self.write();
            }
            Action::End(outcome) => self.send(News::End(outcome.exit_status(self.conflict), outcome.why())),
            _ => {}
        }
    }
}

impl Drop for MetricsFile {
    fn drop(&mut self) {
        self.write();
        self.results = None;
        let _ = self.written.recv_timeout(LAST);
    }
}

fn labels(shard: &Shard, once: Option<&JobId>) -> String {
    format!("{{shard=\"{shard}\",once=\"{}\"}}", once.map_or("", JobId::as_str))
}

fn draft_file(draft: &Path) -> io::Result<fs::File> {
    let _ = fs::remove_file(draft);
    // The collector is another user.
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(draft)
}

fn replace(path: &Path, draft: &Path, labels: &str, news: News) -> io::Result<()> {
    let before = fs::read_to_string(path).unwrap_or_default();
    let text = match news {
        News::Run(run) => with_run(&before, labels, run),
        News::End(status, why) => with_end(&before, labels, status, why),
    };
    let written = draft_file(draft).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(draft, path)).inspect_err(|_| drop(fs::remove_file(draft)))
}

/// The file as it is, if it is about this shard, with the end of the candidate, which is not a run.
fn with_end(before: &str, labels: &str, status: u8, why: Why) -> String {
    let runs = if before.contains(&format!("leaderrun_{STATUS}{labels} ")) { before } else { "" };
    let mut text: String = runs.lines().filter(|line| !line.contains(END)).flat_map(|line| [line, "\n"]).collect();
    let labels = labels.strip_suffix('}').unwrap_or(labels);
    let from = why.from();
    let why = why.into_str();
    let labels = format!("{labels},from=\"{from}\",why=\"{why}\"}}");
    text += &metric(END, "The exit status of the last leaderrun, whose it is and why.", &labels, status);
    text
}

fn metric(name: &str, help: &str, labels: &str, value: impl Display) -> String {
    format!("# HELP leaderrun_{name} {help}\n# TYPE leaderrun_{name} gauge\nleaderrun_{name}{labels} {value}\n")
}

fn with_run(before: &str, labels: &str, result: Run) -> String {
    let seconds = |millis: u64| Duration::from_millis(millis).as_secs_f64().to_string();
    let known = before.lines().find_map(|line| line.strip_prefix(&format!("leaderrun_{SUCCESS}{labels} ")));
    let success = if result.status == 0 { Some(seconds(result.ended_millis)) } else { known.map(str::to_owned) };
    let metrics = [
        ("job_last_run_timestamp_seconds", "When the last run began.", Some(seconds(result.started_millis))),
        (SUCCESS, "When a run last succeeded.", success.filter(|value| value.parse::<f64>().is_ok())),
        ("job_last_duration_seconds", "How long the last run took.", Some(result.took.as_secs_f64().to_string())),
        (STATUS, "The exit status of the last run.", Some(result.status.to_string())),
        ("job_last_term", "The term of the last run.", Some(result.term.to_string())),
    ];
    metrics.into_iter().filter_map(|(name, help, value)| Some(metric(name, help, labels, value?))).collect()
}
