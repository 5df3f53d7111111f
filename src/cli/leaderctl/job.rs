//! `leaderctl status --once`: the state of a job that runs once.
//!
//! The hazard: a run without an end is still running, or ended without a record of that. Only the leader tells the two
//! apart, which takes a second request, and the run may end between the two. So if nobody leads, the record is read
//! again: the end of a run is recorded before its lease is released.

use super::{inspect, printed, rfc3339};
use crate::lease::{JobId, Shard};
use crate::notes::jobs::{self, Ledger, Run};
use crate::store::{Report, Store, StoreError, within};
use crate::text::on_one_line;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// What `status --once ID --json` prints. Fields are added, never renamed or removed.
#[derive(Debug, Serialize)]
struct Became<'a> {
    shard: &'a str,
    job: &'a str,
    state: State,
    /// None if it never ran, like all members below.
    host: Option<&'a str>,
    owner: Option<&'a str>,
    term: Option<u64>,
    /// RFC 3339.
    started: Option<String>,
    /// None while it runs, and if nobody recorded it.
    ended: Option<String>,
    /// The same, and if COMMAND itself was not reaped.
    exit_status: Option<u8>,
    how: Option<&'a str>,
    /// How many runs there were.
    attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Never,
    Running,
    Succeeded,
    Failed,
}

impl State {
    fn of(run: &Run, report: &Report) -> Self {
        if run.is_success() {
            Self::Succeeded
        } else if run.to_millis.is_none() && report.leads(run.term) {
            Self::Running
        } else {
            Self::Failed
        }
    }
}

pub async fn show(
    store: &dyn Store,
    patience: Duration,
    shard: &Shard,
    job: &JobId,
    json: bool,
) -> Result<ExitCode, StoreError> {
    let mut ledger = within(patience, jobs::of_job(store, shard, job)).await?;
    let report = inspect(store, shard, patience).await?;
    let in_doubt = |ledger: &Ledger| {
        let run = ledger.counting();
        run.to_millis.is_none() && State::of(run, &report) == State::Failed
    };
    if ledger.as_ref().is_some_and(in_doubt) {
        ledger = within(patience, jobs::of_job(store, shard, job)).await?;
    }
    let ledger = ledger.as_ref();
    let state = ledger.map_or(State::Never, |ledger| State::of(ledger.counting(), &report));
    let text = if json { as_json(shard, job, state, ledger) } else { as_text(shard, job, state, ledger) };
    Ok(printed(writeln!(stdout(), "{text}")))
}

fn as_json(shard: &Shard, job: &JobId, state: State, ledger: Option<&Ledger>) -> String {
    let run = ledger.map(Ledger::counting);
    let became = Became {
        shard: shard.as_str(),
        job: job.as_str(),
        state,
        host: run.map(|run| run.host.as_str()),
        owner: run.map(|run| run.owner.as_str()),
        term: run.map(|run| run.term.0),
        started: run.map(|run| rfc3339(run.from_millis)),
        ended: run.and_then(|run| run.to_millis).map(rfc3339),
        exit_status: run.and_then(|run| run.status),
        how: run.and_then(|run| run.ended.as_deref()),
        attempts: ledger.map_or(0, |ledger| ledger.attempts),
    };
    serde_json::to_string(&became).expect("a job is plain data")
}

fn as_text(shard: &Shard, job: &JobId, state: State, ledger: Option<&Ledger>) -> String {
    let word = match state {
        State::Never => "has never run",
        State::Running => "is running",
        State::Succeeded => "has succeeded",
        State::Failed => "has failed",
    };
    let mut text = format!("{shard}: job {job} {word}");
    let Some(ledger) = ledger else { return text };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Session, Term};
    use crate::store::Holder;

    fn ledger(status: Option<u8>, ended: Option<&str>) -> Ledger {
        let run = Run {
            owner: "me\n".to_owned(),
            host: "db1".to_owned(),
            session: Session::from_record("s"),
            term: Term(3),
            from_millis: 0,
            to_millis: ended.map(|_| 1000),
            status,
            ended: ended.map(str::to_owned),
        };
        Ledger { due_millis: None, every_millis: None, attempts: 2, run, succeeded: None }
    }

    #[test]
    fn a_run_without_an_end_goes_on_while_its_term_leads() {
        let led = |term| {
            let holder = Holder { term: Some(Term(term)), ..Holder::default() };
            Report { holder: Some(holder), last_term: None }
        };
        let state = |status, ended, report: &Report| State::of(&ledger(status, ended).run, report);
        assert_eq!(state(None, None, &led(3)), State::Running);
        assert_eq!(state(None, None, &led(4)), State::Failed);
        assert_eq!(state(None, None, &Report::default()), State::Failed);
        assert_eq!(state(Some(3), Some("exited with 3"), &led(3)), State::Failed);
        assert_eq!(state(None, Some("lost"), &led(3)), State::Failed);
        assert_eq!(state(Some(0), Some("exited with 0"), &Report::default()), State::Succeeded);
    }

    #[test]
    fn what_is_unknown_of_a_run_is_left_out() {
        let (shard, job) = ("db".parse().unwrap(), "2027".parse().unwrap());
        let text = |state, ledger: Option<Ledger>| as_text(&shard, &job, state, ledger.as_ref());
        assert_eq!(text(State::Never, None), "db: job 2027 has never run");
        let runs = text(State::Running, Some(ledger(None, None)));
        assert!(runs.starts_with("db: job 2027 is running\n  host       db1\n  owner      me \n"), "{runs}");
        assert!(!runs.contains("ended") && !runs.contains("how"), "{runs}");
        let crashed = text(State::Failed, Some(ledger(None, None)));
        assert!(crashed.contains("  ended      ?\n  how        nobody wrote down how it ended\n"), "{crashed}");
    }
}
