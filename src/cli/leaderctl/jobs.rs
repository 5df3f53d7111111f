//! `leaderctl jobs`: what became of the jobs of a shard.
//!
//! The hazard: a run without an end is still running, or ended without a record of that. Only the leader tells the two
//! apart, which takes a second request, and the run may end between the two. So if nobody leads, the record is read
//! again: the end of a run is recorded before its lease is released.

use super::age::ago;
use super::list::{aligned, word};
use super::operator::Operator;
use super::slots::Slots;
use super::{PROGRAM, as_json, inspect, print_lines, printed, rfc3339};
use crate::exit;
use crate::lease::{JobId, Shard, Term};
use crate::notes::jobs::index::{self, Indexed};
use crate::notes::jobs::period::Turn;
use crate::notes::jobs::{self, Cleared, Ledger, Run};
use crate::observe::terminal;
use crate::store::{Report, Store, StoreError, within};
use crate::text::on_one_line;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct JobsFlags {
    /// The name of the shard
    #[arg(value_name = "SHARD")]
    shard: Shard,

    /// Show only this job, which runs once [default: the newest 100]
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    job: Option<JobId>,

    /// Forget the runs of this job, so that it may run again
    #[arg(long, value_name = "ID", allow_hyphen_values = true, conflicts_with_all = ["job", "json"])]
    clear: Option<JobId>,

    /// Print each job as one JSON object
    #[arg(long)]
    json: bool,
}

/// What `jobs --json` prints. Fields are added, never renamed or removed.
#[derive(Debug, Default, Serialize)]
struct Became<'a> {
    shard: &'a str,
    /// None for a job that runs once a period.
    job: Option<&'a str>,
    /// None for a job that runs once, like `period`.
    every_seconds: Option<f64>,
    /// The period of its last run, as long as its ledger lasts.
    period: Option<String>,
    state: State,
    /// None if it never ran, like all members below.
    host: Option<&'a str>,
    /// None also in a list, if it runs once or its ledger is over.
    owner: Option<&'a str>,
    term: Option<u64>,
    /// RFC 3339.
    started: Option<String>,
    /// None while it runs, and if nobody recorded it.
    ended: Option<String>,
    /// The same, and if COMMAND itself was not reaped.
    exit_status: Option<u8>,
    /// The same, and where `owner` is none.
    how: Option<&'a str>,
    attempts: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum State {
    #[default]
    Never,
    Running,
    Succeeded,
    Failed,
}

impl State {
    fn of(term: Term, to_millis: Option<u64>, status: Option<u8>, report: &Report) -> Self {
        if status == Some(0) {
            Self::Succeeded
        } else if to_millis.is_none() && report.leads(term) {
            Self::Running
        } else {
            Self::Failed
        }
    }

    fn of_run(run: &Run, report: &Report) -> Self {
        Self::of(run.term, run.to_millis, run.status, report)
    }

    pub fn of_indexed(job: &Indexed, report: &Report) -> Self {
        Self::of(job.term, job.to_millis, job.status, report)
    }

    fn word(self) -> &'static str {
        self.into()
    }

    fn exit_status(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failed => exit::ctl::FAILED,
            Self::Never | Self::Running => exit::NOT_ACQUIRED,
        }
    }
}

/// A job in few words: its name, state, status, host, age and number of runs.
pub fn words(job: &Indexed, report: &Report) -> String {
    let Indexed { job: name, attempts, from_millis, to_millis, status, host, .. } = job;
    let state = State::of_indexed(job, report);
    let status = match (state, status) {
        (State::Failed, Some(status)) => format!(" with {status}"),
        (State::Failed, None) => " without a status".to_owned(),
        _ => String::new(),
    };
    let began = if state == State::Running { "since " } else { "" };
    let runs = if *attempts > 1 { format!(" (run {attempts})") } else { String::new() };
    format!("job {name} {}{status} on {host} {began}{}{runs}", state.word(), ago(to_millis.unwrap_or(*from_millis)))
}

impl JobsFlags {
    pub fn changes_something(&self) -> bool {
        self.clear.is_some()
    }

    pub async fn show(&self, store: &dyn Store, patience: Duration) -> Result<ExitCode, StoreError> {
        match (&self.clear, &self.job) {
            (Some(job), _) => self.forget(store, patience, job).await,
            (None, Some(job)) => self.show_one(store, patience, job).await,
            (None, None) => self.show_all(store, patience).await,
        }
    }

    fn operator<'a>(&'a self, store: &'a dyn Store, patience: Duration) -> Operator<'a> {
        Operator { store, patience, shard: &self.shard, json: self.json }
    }

    async fn forget(&self, store: &dyn Store, patience: Duration, job: &JobId) -> Result<ExitCode, StoreError> {
        let (shard, operator) = (&self.shard, self.operator(store, patience));
        let seen = within(patience, jobs::of_job(store, shard, job)).await?;
        let leads = operator.inspect().await?.holder.and_then(|holder| holder.term);
        match within(patience, jobs::clear(store, shard, job, seen.as_ref(), leads)).await? {
            Cleared::Done => {
                within(patience, index::write_named(store, shard, job)).await?;
                operator.done(&format!("job {job} may run again")).await
            }
            Cleared::Running => Ok(operator.refuse(&format!("job {job} is running: clear it when it has ended"))),
            Cleared::Never => self.never(&operator, job).await,
        }
    }

    async fn never(&self, operator: &Operator<'_>, job: &JobId) -> Result<ExitCode, StoreError> {
        let refused = self.unknown(operator, &operator.inspect().await?).await?;
        Ok(refused.unwrap_or_else(|| operator.refuse(&format!("job {job} has never run"))))
    }

    async fn unknown(&self, operator: &Operator<'_>, report: &Report) -> Result<Option<ExitCode>, StoreError> {
        let slots = Slots::of(operator.store, operator.shard, operator.patience).await?;
        operator.refuse_unknown(report, &slots).await
    }

    async fn show_one(&self, store: &dyn Store, patience: Duration, job: &JobId) -> Result<ExitCode, StoreError> {
        let shard = &self.shard;
        let mut ledger = within(patience, jobs::of_job(store, shard, job)).await?;
        let report = inspect(store, shard, patience).await?;
        let in_doubt = |ledger: &Ledger| {
            let run = ledger.counting();
            run.to_millis.is_none() && State::of_run(run, &report) == State::Failed
        };
        if ledger.as_ref().is_some_and(in_doubt) {
            ledger = within(patience, jobs::of_job(store, shard, job)).await?;
        }
        let (state, text) = match &ledger {
            None if self.json => match self.unknown(&self.operator(store, patience), &report).await? {
                Some(refused) => return Ok(refused),
                None => (State::Never, as_json(&Became::never(shard, Some(job)))),
            },
            None => return self.never(&self.operator(store, patience), job).await,
            Some(ledger) => {
                let state = State::of_run(ledger.counting(), &report);
                let json = || as_json(&Became::of(shard, Some(job), ledger, state));
                (state, if self.json { json() } else { as_text(shard, job, state, ledger) })
            }
        };
        let written = printed(writeln!(stdout(), "{text}"));
        Ok(if written == ExitCode::SUCCESS { state.exit_status().into() } else { written })
    }

    async fn show_all(&self, store: &dyn Store, patience: Duration) -> Result<ExitCode, StoreError> {
        let shard = &self.shard;
        let periodic = within(patience, jobs::last(store, shard)).await?;
        let mut all = within(patience, index::read(store, shard, periodic.as_ref())).await?;
        let report = inspect(store, shard, patience).await?;
        // The index may be behind the ledger, if its writer died.
        for known in &mut all {
            if known.to_millis.is_none()
                && State::of_indexed(known, &report) == State::Failed
                && let Some(job) = known.job.once()
                && let Some(ledger) = within(patience, jobs::of_job(store, shard, job)).await?
            {
                *known = Indexed::of(known.job.clone(), &ledger);
            }
        }
        if all.is_empty() && periodic.is_none() {
            if let Some(refused) = self.unknown(&self.operator(store, patience), &report).await? {
                return Ok(refused);
            }
            if !self.json {
                terminal::say(format_args!("{PROGRAM}: no job of {shard} has run so far"));
            }
            return Ok(ExitCode::SUCCESS);
        }
        if self.json {
            let periodic = periodic
                .iter()
                .map(|ledger| as_json(&Became::of(shard, None, ledger, State::of_run(ledger.counting(), &report))));
            let all = all.iter().map(|job| as_json(&Became::indexed(shard, job, State::of_indexed(job, &report))));
            return Ok(print_lines(periodic.chain(all)));
        }
        let periodic = periodic.iter().map(Indexed::of_period);
        let rows = periodic.chain(all).map(|job| row(&job, &report));
        let header = ["JOB", "STATE", "STATUS", "HOST", "AGE", "ATTEMPTS"].map(str::to_owned);
        Ok(print_lines(aligned(&[header].into_iter().chain(rows).collect::<Vec<_>>())))
    }
}

fn row(job: &Indexed, report: &Report) -> [String; 6] {
    [
        job.job.to_string(),
        State::of_indexed(job, report).word().to_owned(),
        job.status.map(|status| status.to_string()).unwrap_or_default(),
        job.host.clone(),
        ago(job.to_millis.unwrap_or(job.from_millis)).trim_end_matches(" ago").to_owned(),
        job.attempts.to_string(),
    ]
    .map(word)
}

impl<'a> Became<'a> {
    fn never(shard: &'a Shard, job: Option<&'a JobId>) -> Self {
        Self { shard: shard.as_str(), job: job.map(JobId::as_str), ..Self::default() }
    }

    fn of(shard: &'a Shard, job: Option<&'a JobId>, ledger: &'a Ledger, state: State) -> Self {
        let run = ledger.counting();
        Self {
            shard: shard.as_str(),
            job: job.map(JobId::as_str),
            every_seconds: ledger.period.map(|turn| Duration::from_millis(turn.every_millis).as_secs_f64()),
            period: ledger.period.map(Turn::due),
            state,
            host: Some(&run.host),
            owner: Some(&run.owner),
            term: Some(run.term.0),
            started: Some(rfc3339(run.from_millis)),
            ended: run.to_millis.map(rfc3339),
            exit_status: run.status,
            how: run.ended.as_deref(),
            attempts: ledger.attempts,
        }
    }

    fn indexed(shard: &'a Shard, job: &'a Indexed, state: State) -> Self {
        Self {
            every_seconds: job.job.every().map(|every| every.as_secs_f64()),
            state,
            host: Some(&job.host),
            term: Some(job.term.0),
            started: Some(rfc3339(job.from_millis)),
            ended: job.to_millis.map(rfc3339),
            exit_status: job.status,
            attempts: job.attempts,
            ..Self::never(shard, job.job.once())
        }
    }
}

fn as_text(shard: &Shard, job: &JobId, state: State, ledger: &Ledger) -> String {
    let word = match state {
        State::Never => "has never run",
        State::Running => "is running",
        State::Succeeded => "has succeeded",
        State::Failed => "has failed",
    };
    let mut text = format!("{shard}: job {job} {word}");
    let run = ledger.counting();
    let ended = (state != State::Running).then(|| run.to_millis.map_or("?".to_owned(), rfc3339));
    let how = (state != State::Running).then(|| run.end().to_owned());
    for (name, value) in [
        ("host", Some(run.host.clone())),
        ("owner", Some(run.owner.clone())),
        ("term", Some(run.term.to_string())),
        ("started", Some(rfc3339(run.from_millis))),
        ("ended", ended),
        ("how", how),
        ("attempts", Some(ledger.attempts.to_string())),
    ] {
        if let Some(value) = value {
            let _ = write!(text, "\n  {name:<11}{}", on_one_line(value));
        }
    }
    text
}
