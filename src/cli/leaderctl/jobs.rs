//! `leaderctl jobs`: what became of the jobs of a shard.
//!
//! The hazard: a run without an end is still running, or nobody recorded its end. Who leads tells the two apart, but
//! that is a second request, and the run may end before it. So if nobody leads, the record is read again: the end of a
//! run is recorded before its lease is released.

use super::list::{aligned, word};
use super::prelude::*;
use super::status::add_line;
use crate::lease::JobId;
use crate::notes::jobs::index::{self, Indexed, Name};
use crate::notes::jobs::period::Turn;
use crate::notes::jobs::{self, Cleared, Ledger};

#[derive(Debug, Args)]
pub struct JobsFlags {
    /// The name of the shard
    shard: Shard,

    /// Show only this job, which runs once [default: the newest 100]
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    job: Option<JobId>,

    /// Forget the runs of this job, so that it may run again
    #[arg(long, value_name = "ID", allow_hyphen_values = true, conflicts_with_all = ["job", "json"])]
    pub clear: Option<JobId>,

    /// Print each job as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "lowercase")]
pub enum State {
    Never,
    Running,
    Succeeded,
    Failed,
}

impl State {
    pub fn of(job: &Indexed, report: &Report) -> Self {
        if job.status == Some(0) {
            Self::Succeeded
        } else if job.to_millis.is_none() && report.leads(job.term) {
            Self::Running
        } else {
            Self::Failed
        }
    }
}

pub fn words(job: &Indexed, report: &Report) -> String {
    let Indexed { job: name, attempts, from_millis, to_millis, status, host, .. } = job;
    let state = State::of(job, report);
    let status = match (state, status) {
        (State::Failed, Some(status)) => format!(" with {status}"),
        (State::Failed, None) => " without a status".to_owned(),
        _ => String::new(),
    };
    let began = if state == State::Running { "since " } else { "" };
    let runs = if *attempts > 1 { format!(" (run {attempts})") } else { String::new() };
    format!("job {name} {}{status} on {host} {began}{}{runs}", state.into_str(), ago(to_millis.unwrap_or(*from_millis)))
}

impl JobsFlags {
    pub async fn show(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let operator = &Operator { client, shard: &self.shard, json: self.json };
        match (&self.clear, &self.job) {
            (Some(job), _) => forget(operator, job).await,
            (None, Some(job)) => show_one(operator, job).await,
            (None, None) => show_all(operator).await,
        }
    }
}

async fn forget(operator: &Operator<'_>, job: &JobId) -> Result<ExitCode, Failure> {
    let Operator { client, shard, .. } = *operator;
    let seen = client.ask(jobs::of_job(client.store, shard, job)).await?;
    let report = operator.inspect().await?;
    let leads = report.holder.as_ref().and_then(|holder| holder.term);
    match client.ask(jobs::clear(client.store, shard, job, seen.as_ref(), leads)).await? {
        Cleared::Done => {
            client.ask(index::write_named(client.store, shard, job)).await?;
            operator.done(&format!("job {job} may run again")).await
        }
        Cleared::Running => Err(operator.refusal(&format!("job {job} is running: clear it when it has ended"))),
        Cleared::Never => {
            operator.known_slots(&report).await?;
            Err(operator.refusal(&format!("job {job} has never run")))
        }
    }
}

async fn show_one(operator: &Operator<'_>, job: &JobId) -> Result<ExitCode, Failure> {
    let Operator { client, shard, json } = *operator;
    let mut ledger = client.ask(jobs::of_job(client.store, shard, job)).await?;
    let report = client.inspect(shard).await?;
    let indexed = |ledger: &Ledger| Indexed::of(Name::Once(job.clone()), ledger);
    if ledger.as_ref().is_some_and(|ledger| is_in_doubt(&indexed(ledger), &report)) {
        ledger = client.ask(jobs::of_job(client.store, shard, job)).await?;
    }
    let known = ledger.as_ref().map(indexed);
    let state = known.as_ref().map_or(State::Never, |known| State::of(known, &report));
    if ledger.is_none() {
        operator.known_slots(&report).await?;
    }
    print_lines([match &ledger {
        _ if json => as_json(&object(shard, Some(job), state, known.as_ref(), ledger.as_ref())),
        Some(ledger) => as_text(shard, job, state, ledger),
        None => return Err(operator.refusal(&format!("job {job} has never run"))),
    }])?;
    Ok(match state {
        State::Succeeded => ExitCode::SUCCESS,
        State::Failed => exit::ctl::FAILED.into(),
        State::Never | State::Running => exit::NOT_ACQUIRED.into(),
    })
}

async fn show_all(operator: &Operator<'_>) -> Result<ExitCode, Failure> {
    let Operator { client, shard, json } = *operator;
    let periodic = client.ask(jobs::last(client.store, shard)).await?;
    let mut all = client.ask(index::read(client.store, shard, periodic.as_ref())).await?;
    let report = client.inspect(shard).await?;
    // The index is behind the ledger if its writer died.
    for known in &mut all {
        if is_in_doubt(known, &report)
            && let Some(job) = known.job.once()
            && let Some(ledger) = client.ask(jobs::of_job(client.store, shard, job)).await?
        {
            *known = Indexed::of(known.job.clone(), &ledger);
        }
    }
    if all.is_empty() && periodic.is_none() {
        operator.known_slots(&report).await?;
        if !json {
            say(format_args!("no job of {shard} has run so far"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let periodic = periodic.iter().map(|ledger| (Indexed::of_period(ledger), Some(ledger)));
    let all = periodic.chain(all.into_iter().map(|job| (job, None)));
    if json {
        return print_lines(all.map(|(known, ledger)| {
            let state = State::of(&known, &report);
            as_json(&object(shard, known.job.once(), state, Some(&known), ledger))
        }));
    }
    let rows = all.map(|(job, _)| row(&job, &report));
    let header = ["JOB", "STATE", "STATUS", "HOST", "AGE", "ATTEMPTS"].map(str::to_owned);
    print_lines(aligned(&[header].into_iter().chain(rows).collect::<Vec<_>>()))
}

/// The job ended between two requests, or nobody recorded its end.
fn is_in_doubt(job: &Indexed, report: &Report) -> bool {
    job.to_millis.is_none() && State::of(job, report) == State::Failed
}

fn row(job: &Indexed, report: &Report) -> [String; 6] {
    [
        job.job.to_string(),
        State::of(job, report).into_str().to_owned(),
        job.status.map(|status| status.to_string()).unwrap_or_default(),
        job.host.clone(),
        ago(job.to_millis.unwrap_or(job.from_millis)).trim_end_matches(" ago").to_owned(),
        job.attempts.to_string(),
    ]
    .map(word)
}

/// What `jobs --json` prints of a job.
fn object<'a>(
    shard: &'a Shard,
    job: Option<&'a JobId>,
    state: State,
    known: Option<&'a Indexed>,
    ledger: Option<&'a Ledger>,
) -> impl Serialize + use<'a> {
    let run = ledger.map(Ledger::counting);
    object! {
        shard: shard.as_str(),
        job: job.map(JobId::as_str),
        every_seconds: known.and_then(|known| known.job.every()).map(|every| every.as_secs_f64()),
        period: ledger.and_then(|ledger| ledger.period).map(Turn::due),
        state: state.into_str(),
        host: known.map(|known| &known.host),
        owner: run.map(|run| &run.owner),
        term: known.map(|known| known.term),
        started: known.map(|known| rfc3339(known.from_millis)),
        ended: known.and_then(|known| known.to_millis).map(rfc3339),
        exit_status: known.and_then(|known| known.status),
        how: run.and_then(|run| run.ended.as_deref()),
        attempts: known.map_or(0, |known| known.attempts),
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
        add_line(&mut text, name, value);
    }
    text
}
