//! The ledger of a job's runs: at most one run succeeds for each period, or for each name. The ledger is a note beside
//! the lease. The holder of the lease writes it before COMMAND starts, and again when COMMAND has ended.
//!
//! The hazards:
//!
//! - A host may die while COMMAND runs, or be unable to say how it ended. So a run is booked before it starts, and a
//!   run without an end counts as failed. It may have done its work, so nothing repeats it by itself unless the user
//!   allows that. A candidate that is started later repeats a job with a name, because somebody wants it to run; one
//!   that waited behind the failed run does not.
//! - The answer to the request that books a run may be lost. So an entry names the session that made it, by which the
//!   candidate recognises its own. An entry whose run never began would count as a failed run, so it is withdrawn.
//! - The lease keeps two runs apart, not the ledger: a store that forgets this note forgets that a job was done.

mod gate;
pub mod index;
pub mod period;

pub use self::gate::JobGate;
use self::period::{Period, Turn};
use super::update::{Edit, Start, update};
use crate::election::{Behind, Booked, Ended, Ran, Skipped};
use crate::exit;
use crate::lease::{Candidate, JobId, Session, Shard, Term};
use crate::store::{Answer, Note, Notes, Page, StoreError};
use crate::text::on_one_line;
use crate::time::{rfc3339_seconds, wall_clock_millis};
use serde::{Deserialize, Serialize};

const LONGEST_END: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub frequency: Frequency,
    /// How many runs may follow failed ones. None: only runs in later periods, or of candidates that start later.
    pub retry_failed: Option<u32>,
    /// The exit status of a candidate that did not run the job because another one has.
    pub done_exit_code: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frequency {
    Every(Period),
    Once(JobId),
}

impl Frequency {
    fn page(&self) -> Page {
        match self {
            Self::Every(_) => Page::Runs,
            Self::Once(job) => Page::Once(job.clone()),
        }
    }
}

/// The text of the note. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// None for a job that runs once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Turn>,
    /// Runs in this period, or under this name.
    pub attempts: u32,
    pub run: Run,
    /// An earlier run that counted as failed, and then succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<Run>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub owner: String,
    pub host: String,
    pub session: Session,
    pub term: Term,
    /// Milliseconds since 1970, by its host's own clock.
    pub from_millis: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_millis: Option<u64>,
    /// The exit status as a shell shows it. None while the run lasts, or if nobody recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

impl Run {
    fn of(candidate: &Candidate, term: Term) -> Self {
        Self {
            owner: candidate.owner.clone(),
            host: candidate.host.clone(),
            session: candidate.session.clone(),
            term,
            from_millis: wall_clock_millis(),
            to_millis: None,
            status: None,
            ended: None,
        }
    }

    fn settled(&self, ran: &Ran) -> Self {
        let status = match (&ran.how, ran.end) {
            // Whatever COMMAND returned.
            (Ended::Overran, _) => Some(exit::OVERRAN),
            (Ended::Lost(_), _) => Some(exit::LOST),
            (_, Some(end)) => Some(end.exit_status()),
            (Ended::NotStarted(error), None) => Some(error.exit_status()),
            (_, None) => None,
        };
        let ended = on_one_line(ran.how.to_string()).chars().take(LONGEST_END).collect();
        Self { to_millis: Some(wall_clock_millis()), status, ended: Some(ended), ..self.clone() }
    }

    pub fn is_success(&self) -> bool {
        self.status == Some(0)
    }

    pub fn end(&self) -> &str {
        self.ended.as_deref().unwrap_or("nobody recorded how it ended")
    }

    fn when(&self) -> String {
        rfc3339_seconds(self.to_millis.unwrap_or(self.from_millis))
    }

    fn is_of(&self, session: &Session, term: Term) -> bool {
        self.session == *session && self.term == term
    }
}

impl Ledger {
    /// The run that succeeded, or else the last one.
    pub fn counting(&self) -> &Run {
        self.succeeded.as_ref().unwrap_or(&self.run)
    }

    /// Whether `other` replaced this one, so that only a store which has lost writes still has it.
    fn is_before(&self, other: &Self) -> bool {
        let is_done = self.period == other.period && self.counting().is_success();
        self.run.term < other.run.term && !is_done
    }

    fn read(note: Option<&Note>, page: &Page, shard: &Shard) -> Answer<Option<Self>> {
        let Some(note) = note else { return Ok(None) };
        let ledger: Result<Self, _> = serde_json::from_str(&note.text);
        match ledger {
            Ok(ledger) if ledger.period.is_some() == (*page == Page::Runs) => Ok(Some(ledger)),
            read => {
                let error = read.map_or_else(|error| error.to_string(), |_| "it is about another job".to_owned());
                Err(StoreError::misconfigured(format!(
                    "the ledger of runs of shard {shard} was written by another program ({error}): use another shard"
                )))
            }
        }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("a ledger is plain data")
    }
}

/// Of a job that runs once a period. None if it has not run, or the store has forgotten it.
pub async fn last(store: &dyn Notes, shard: &Shard) -> Answer<Option<Ledger>> {
    last_in(store.read(shard, &Page::Runs).await?.as_ref(), shard)
}

pub fn last_in(note: Option<&Note>, shard: &Shard) -> Answer<Option<Ledger>> {
    Ledger::read(note, &Page::Runs, shard)
}

/// Of a job that runs once. None if it has not run.
pub async fn of_job(store: &dyn Notes, shard: &Shard, job: &JobId) -> Answer<Option<Ledger>> {
    let page = Page::Once(job.clone());
    Ledger::read(store.read(shard, &page).await?.as_ref(), &page, shard)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    Done,
    Never,
    Running,
}

/// Forgets the runs of a job that runs once, so that it may run again. `leads` is the term that led after `seen` was
/// read. A run that began since then has no end and is not the one in `seen`, so it counts as running.
pub async fn clear(
    store: &dyn Notes,
    shard: &Shard,
    job: &JobId,
    seen: Option<&Ledger>,
    leads: Option<Term>,
) -> Answer<Cleared> {
    let page = Page::Once(job.clone());
    let mut is_ours = false;
    update(store, shard, &page, "ledger", Start::ReadAndMakeSure, |standing| {
        let Some(ledger) = Ledger::read(standing, &page, shard)? else {
            // The answer to our own write may have been lost.
            return Ok(Edit::Leave(if is_ours { Cleared::Done } else { Cleared::Never }));
        };
        let is_seen = seen.is_some_and(|seen| seen.run == ledger.run);
        if ledger.run.to_millis.is_none() && (leads == Some(ledger.run.term) || !is_seen) {
            return Ok(Edit::Leave(Cleared::Running));
        }
        is_ours = true;
        Ok(Edit::Replace(None, Cleared::Done))
    })
    .await
}

#[derive(Debug, PartialEq, Eq)]
enum Judged {
    /// The job may run: the number of the run, and its period.
    Run(u32, Option<Turn>),
    /// The ledger has our own entry, whose run has not begun.
    Ours,
    Skip(Skipped),
}

impl Behind {
    /// Whether the candidate already waited while this run was under way.
    fn covers(&self, run: &Run) -> bool {
        self.session.as_ref() == Some(&run.session) || self.term.is_some_and(|first| first <= run.term)
    }
}

impl Job {
    pub fn once(&self) -> Option<&JobId> {
        match &self.frequency {
            Frequency::Once(job) => Some(job),
            Frequency::Every(_) => None,
        }
    }

    /// `session` is None once the candidate's run has begun: its own entry then counts like one of others.
    fn judge(&self, ledger: Option<&Ledger>, shard: &Shard, session: Option<&Session>, behind: &Behind) -> Judged {
        let is_ours = |run: &Run| session == Some(&run.session) && run.to_millis.is_none();
        let turn = match &self.frequency {
            Frequency::Every(period) => {
                let last = ledger.and_then(|ledger| ledger.period);
                if let Some(turn) = period.turn(last) {
                    return Judged::Run(1, Some(turn));
                }
                last
            }
            Frequency::Once(_) => None,
        };
        let Some(ledger) = ledger else { return Judged::Run(1, turn) };
        if ledger.counting().is_success() {
            return Judged::Skip(Skipped {
                said: self.done_already(ledger, shard),
                status: self.done_exit_code,
                failed: false,
            });
        }
        if is_ours(&ledger.run) {
            return Judged::Ours;
        }
        let may_run = match (self.retry_failed, &self.frequency) {
            (Some(most), _) => ledger.attempts <= most,
            (None, Frequency::Every(_)) => false,
            (None, Frequency::Once(_)) => !behind.covers(&ledger.run),
        };
        if may_run {
            return Judged::Run(ledger.attempts.saturating_add(1), turn);
        }
        let status = match &self.frequency {
            // The host that failed has reported it, and the next period is another chance.
            Frequency::Every(_) => self.done_exit_code,
            // The status must not say that the job was done.
            Frequency::Once(_) => ledger.run.status.unwrap_or(exit::NOT_ACQUIRED),
        };
        Judged::Skip(Skipped { said: self.failed_already(ledger, shard), status, failed: true })
    }

    fn done_already(&self, ledger: &Ledger, shard: &Shard) -> String {
        let run = ledger.counting();
        let host = &run.host;
        let when = run.when();
        match &self.frequency {
            Frequency::Every(_) => {
                let due = ledger.period.map(Turn::due).unwrap_or_default();
                format!("skipped: {host} did the run of {due} at {when}; leave --every out for an extra run")
            }
            Frequency::Once(job) => format!(
                "skipped: {host} did job {job} at {when}; to run it again: leaderctl jobs {shard} --clear {job}"
            ),
        }
    }

    fn failed_already(&self, ledger: &Ledger, shard: &Shard) -> String {
        let run = &ledger.run;
        let attempts = ledger.attempts;
        let host = &run.host;
        let when = run.when();
        let end = run.end();
        let runs = if attempts == 1 { String::new() } else { format!(", run {attempts}") };
        match (&self.frequency, self.retry_failed) {
            (Frequency::Every(_), retry_failed) => {
                let due = ledger.period.map(Turn::due).unwrap_or_default();
                let more = retry_failed.unwrap_or(0).saturating_add(1).max(attempts);
                format!(
                    "skipped: the run of {due} failed on {host} at {when}{runs}: {end}; --retry-failed {more} allows \
                     another one"
                )
            }
            (Frequency::Once(job), None) => format!(
                "not run again: job {job} failed on {host} at {when}{runs}, while this candidate waited: {end}; start \
                 it again to repeat it"
            ),
            (Frequency::Once(job), Some(_)) => format!(
                "not run again: job {job} failed on {host} at {when}{runs}: {end}; to run it again: leaderctl jobs \
                 {shard} --clear {job}"
            ),
        }
    }

    fn booked(&self, attempts: u32, turn: Option<Turn>, before: Option<&Ledger>) -> Booked {
        let name = match &self.frequency {
            Frequency::Every(_) => ("LEADERRUN_DUE", turn.map(Turn::due).unwrap_or_default()),
            // Not the option's variable: a leaderrun inside COMMAND would read it and take its own job for done.
            Frequency::Once(job) => ("LEADERRUN_JOB", job.to_string()),
        };
        let previous = match before.filter(|_| attempts > 1).map(|before| before.run.status) {
            None => "none".to_owned(),
            Some(Some(status)) => format!("failed:{status}"),
            Some(None) => "unknown".to_owned(),
        };
        let counts_as = turn.filter(|_| attempts == 1).map(Turn::counts_as);
        Booked {
            variables: vec![name, ("LEADERRUN_ATTEMPT", attempts.to_string()), ("LEADERRUN_PREVIOUS", previous)],
            again: self.retry_failed.is_some_and(|most| attempts <= most),
            counts_as: counts_as.map(|due| format!("counts as the run of {due}; leave --every out for an extra run")),
        }
    }
}

#[cfg(test)]
mod tests;
