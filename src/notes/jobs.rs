//! The ledger of a job's runs: at most one run succeeds for each period, or for each name. The ledger is a note beside
//! the lease. The holder of the lease writes it before COMMAND starts, and again when COMMAND has ended.
//!
//! The hazards:
//!
//! - A host may die while COMMAND runs, or be unable to say how it ended. So a run is booked before it starts, and a
//!   run without an end counts as failed. It may have done its work, so nothing repeats it by itself unless the user
//!   allows that. A candidate that is started later repeats a job with a name, because somebody wants it to run; one
//!   that waited behind the failed run does not.
//! - The answer to the request that books a run may be lost. An entry names the session that made it, so the candidate
//!   recognises its own entry when it asks again. An entry whose run never began is withdrawn: left there, it would
//!   count as a failed run.
//! - The lease keeps two runs apart, not the ledger: a store that forgets this note forgets that a job was done.

pub mod index;
pub mod period;

use self::period::{Period, Turn};
use super::update::{Edit, Start, update, update_and_make_sure};
use crate::election::{Behind, Booked, Booking, Ended, Ran, Skipped};
use crate::exit;
use crate::lease::{Candidate, JobId, Session, Shard, Term, show};
use crate::store::{Note, Notes, Page, StoreError};
use crate::text::on_one_line;
use crate::time::{BootInstant, rfc3339_seconds, wall_clock_millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::Mutex;

/// The most letters of how a run ended.
const LONGEST_END: usize = 100;
/// How long a note is kept whose time is over just now.
const SHORTEST: Duration = Duration::from_secs(1);

/// A job that is due, and how often it may fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub occasion: Occasion,
    /// How many more runs may follow one that failed. None: those of later periods, or of candidates that are started
    /// later.
    pub retry_failed: Option<u32>,
    /// The exit status of a candidate that did not run the job, because another one has.
    pub done_exit_code: u8,
}

/// The period or the name for which one successful run is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occasion {
    Period(Period),
    Once(JobId),
}

impl Occasion {
    fn page(&self) -> Page {
        match self {
            Self::Period(_) => Page::Runs,
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
    /// How many runs there were in this period, or under this name.
    pub attempts: u32,
    /// The last of these runs.
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
    /// The exit status as a shell shows it; 0 is success. None while the run lasts, and where nobody could say.
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
            // These ends set the status, whatever COMMAND returned.
            (Ended::Overran, _) => Some(exit::OVERRAN),
            (Ended::Lost(_), _) => Some(exit::LOST),
            (_, Some(end)) => Some(end.exit_status()),
            (Ended::NotStarted(error), None) => Some(error.exit_status()),
            (_, None) => None,
        };
        let ended = on_one_line(ran.how.to_string()).chars().take(LONGEST_END).collect();
        Self { to_millis: Some(wall_clock_millis()), status, ended: Some(ended), ..self.clone() }
    }

    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == Some(0)
    }

    /// How the run ended, as far as anybody knows.
    #[must_use]
    pub fn end(&self) -> &str {
        self.ended.as_deref().unwrap_or("nobody wrote down how it ended")
    }

    /// When the run ended, or began if it has no end.
    fn when(&self) -> String {
        rfc3339_seconds(self.to_millis.unwrap_or(self.from_millis))
    }

    fn is_of(&self, session: &Session, term: Term) -> bool {
        self.session == *session && self.term == term
    }
}

impl Ledger {
    /// The run that counts: the one that succeeded, or else the last one.
    #[must_use]
    pub fn counting(&self) -> &Run {
        self.succeeded.as_ref().unwrap_or(&self.run)
    }

    fn read(text: Option<&str>, page: &Page, shard: &Shard) -> Result<Option<Self>, StoreError> {
        let Some(text) = text else { return Ok(None) };
        let ledger: Result<Self, _> = serde_json::from_str(text);
        match ledger {
            Ok(ledger) if ledger.period.is_some() == (*page == Page::Runs) => Ok(Some(ledger)),
            read => {
                let error = read.map_or_else(|error| error.to_string(), |_| "it is about another job".to_owned());
                Err(StoreError::misconfigured(format!(
                    "the ledger of runs of shard {shard} was written by something else ({error}): use another shard"
                )))
            }
        }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("a ledger is plain data")
    }
}

/// The last run of a job that runs once a period. None if it has not run, or if the store has forgotten it.
///
/// # Errors
/// As [`Notes::read`]; misconfigured where another program wrote the note.
pub async fn last<S: Notes + ?Sized>(store: &S, shard: &Shard) -> Result<Option<Ledger>, StoreError> {
    last_in(store.read(shard, &Page::Runs).await?.as_ref(), shard)
}

/// The same, from the note on [`Page::Runs`].
///
/// # Errors
/// Misconfigured where another program wrote the note.
pub fn last_in(note: Option<&Note>, shard: &Shard) -> Result<Option<Ledger>, StoreError> {
    Ledger::read(text_of(note), &Page::Runs, shard)
}

/// The ledger of a job that runs once. None if it has not run.
pub async fn of_job<S: Notes + ?Sized>(store: &S, shard: &Shard, job: &JobId) -> Result<Option<Ledger>, StoreError> {
    let page = Page::Once(job.clone());
    let note = store.read(shard, &page).await?;
    Ledger::read(text_of(note.as_ref()), &page, shard)
}

/// What became of an order to clear a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    Done,
    Never,
    Running,
}

/// Forgets the runs of a job that runs once, so that it may run again. `leads` is the term that led after `seen` was
/// read. A run that began since then has no end and is not the one in `seen`, so it counts as running.
///
/// # Errors
/// As [`Notes::read`] and [`Notes::replace`]; misconfigured where another program wrote the note.
pub async fn clear<S: Notes + ?Sized>(
    store: &S,
    shard: &Shard,
    job: &JobId,
    seen: Option<&Ledger>,
    leads: Option<Term>,
) -> Result<Cleared, StoreError> {
    let page = Page::Once(job.clone());
    let mut is_ours = false;
    update_and_make_sure(store, shard, &page, "ledger", |standing| {
        let Some(ledger) = Ledger::read(text_of(standing), &page, shard)? else {
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
enum Verdict {
    /// The candidate may run the job: this is the number of the run, and its period.
    Run(u32, Option<Turn>),
    /// The ledger holds our own entry, and its run has not begun.
    Ours,
    Skip(Skipped),
}

/// Who asks to run a job.
#[derive(Clone, Copy, Debug)]
struct Asking<'a> {
    shard: &'a Shard,
    /// None if it can have no entry whose run has not begun.
    session: Option<&'a Session>,
    behind: &'a Behind,
}

impl Behind {
    /// Whether the candidate already waited while this run was under way.
    fn covers(&self, run: &Run) -> bool {
        self.session.as_ref() == Some(&run.session) || self.term.is_some_and(|first| first <= run.term)
    }
}

impl Job {
    /// The name of a job that runs once.
    #[must_use]
    pub fn once(&self) -> Option<&JobId> {
        match &self.occasion {
            Occasion::Once(job) => Some(job),
            Occasion::Period(_) => None,
        }
    }

    fn judge(&self, ledger: Option<&Ledger>, asking: Asking<'_>) -> Verdict {
        let is_ours = |run: &Run| asking.session == Some(&run.session) && run.to_millis.is_none();
        let turn = match &self.occasion {
            Occasion::Period(period) => {
                let last = ledger.and_then(|ledger| ledger.period);
                if let Some(turn) = period.turn(last) {
                    return Verdict::Run(1, Some(turn));
                }
                last
            }
            Occasion::Once(_) => None,
        };
        let Some(ledger) = ledger else { return Verdict::Run(1, turn) };
        if ledger.counting().is_success() {
            return Verdict::Skip(Skipped {
                said: self.done_already(ledger, asking.shard),
                status: self.done_exit_code,
                failed: false,
            });
        }
        if is_ours(&ledger.run) {
            return Verdict::Ours;
        }
        let may_run = match (self.retry_failed, &self.occasion) {
            (Some(most), _) => ledger.attempts <= most,
            (None, Occasion::Period(_)) => false,
            (None, Occasion::Once(_)) => !asking.behind.covers(&ledger.run),
        };
        if may_run {
            return Verdict::Run(ledger.attempts.saturating_add(1), turn);
        }
        let status = match &self.occasion {
            // The host that failed has reported it, and the next period is another chance.
            Occasion::Period(_) => self.done_exit_code,
            // The status must not say that the job was done.
            Occasion::Once(_) => ledger.run.status.unwrap_or(exit::NOT_ACQUIRED),
        };
        Verdict::Skip(Skipped { said: self.failed_already(ledger, asking.shard), status, failed: true })
    }

    /// Why the job is not run, and how to run it again.
    fn done_already(&self, ledger: &Ledger, shard: &Shard) -> String {
        let run = ledger.counting();
        let (host, when) = (&run.host, run.when());
        match &self.occasion {
            Occasion::Period(_) => {
                let due = ledger.period.map(Turn::due).unwrap_or_default();
                format!("skipped: {host} did the run of {due} at {when}; leave --every out to run besides")
            }
            Occasion::Once(job) => format!(
                "skipped: {host} did job {job} at {when}; to run it again: leaderctl jobs {shard} --clear {job}"
            ),
        }
    }

    fn failed_already(&self, ledger: &Ledger, shard: &Shard) -> String {
        let (run, attempts) = (&ledger.run, ledger.attempts);
        let (host, when, end) = (&run.host, run.when(), run.end());
        let runs = if attempts == 1 { String::new() } else { format!(", run {attempts}") };
        match (&self.occasion, self.retry_failed) {
            (Occasion::Period(_), retry_failed) => {
                let due = ledger.period.map(Turn::due).unwrap_or_default();
                let more = retry_failed.unwrap_or(0).saturating_add(1).max(attempts);
                format!(
                    "skipped: the run of {due} failed on {host} at {when}{runs}: {end}; --retry-failed {more} allows \
                     another one"
                )
            }
            (Occasion::Once(job), None) => format!(
                "not run again: job {job} failed on {host} at {when}{runs}, while this candidate waited: {end}; start \
                 it again to repeat it"
            ),
            (Occasion::Once(job), Some(_)) => format!(
                "not run again: job {job} failed on {host} at {when}{runs}: {end}; to run it again: leaderctl jobs \
                 {shard} --clear {job}"
            ),
        }
    }

    /// What COMMAND is told about a run.
    fn booked(&self, attempts: u32, turn: Option<Turn>, before: Option<&Ledger>) -> Booked {
        let name = match &self.occasion {
            Occasion::Period(_) => ("LEADERRUN_DUE", turn.map(Turn::due).unwrap_or_default()),
            // Not the variable of the option: a leaderrun inside COMMAND would read it and take its own job for done.
            Occasion::Once(job) => ("LEADERRUN_JOB", job.to_string()),
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
            counts_as: counts_as.map(|due| format!("counts as the run of {due}; leave --every out to run besides")),
        }
    }
}

/// Books and settles one candidate's runs in the ledger.
#[derive(Debug)]
pub struct JobGate {
    job: Job,
    /// The writer holds the lock.
    entry: Mutex<Option<Entry>>,
}

/// An entry that we made, or may have made.
#[derive(Clone, Debug)]
struct Entry {
    ledger: Ledger,
    /// Until when the store keeps it.
    until: BootInstant,
    /// What the entry replaced.
    before: Option<Standing>,
    booked: Booked,
    /// Its run has begun, and may have ended.
    has_run: bool,
}

/// A note as it stood.
#[derive(Clone, Debug)]
struct Standing {
    text: String,
    until: BootInstant,
}

impl Standing {
    fn of(note: &Note) -> Self {
        Self { text: note.text.clone(), until: until(note.lasts) }
    }

    /// The note for what is left of its time; None if it is over.
    fn again(&self) -> Option<Note> {
        let left = left_until(self.until);
        (left != Some(Duration::ZERO)).then(|| Note::lasting(self.text.clone(), left))
    }
}

fn until(lasts: Option<Duration>) -> BootInstant {
    lasts.map_or(BootInstant::NEVER, |lasts| BootInstant::now().plus(lasts))
}

/// None: for ever.
fn left_until(until: BootInstant) -> Option<Duration> {
    (until != BootInstant::NEVER).then(|| until.since(BootInstant::now()))
}

impl JobGate {
    #[must_use]
    pub fn new(job: Job) -> Self {
        Self { job, entry: Mutex::new(None) }
    }

    /// Books a run that is about to start, unless the job is done. The candidate must hold the lease. It calls this
    /// again when it does not know whether the entry was made.
    pub async fn book<S: Notes + ?Sized>(
        &self,
        store: &S,
        candidate: &Candidate,
        term: Term,
        behind: &Behind,
    ) -> Result<Booking, StoreError> {
        let (shard, page) = (&candidate.shard, self.job.occasion.page());
        let mut entry = self.entry.lock().await;
        let session = Some(&candidate.session).filter(|_| !entry.as_ref().is_some_and(|entry| entry.has_run));
        let asking = Asking { shard, session, behind };
        update(store, shard, &page, "ledger", Start::Read, |standing| {
            let ledger = Ledger::read(text_of(standing), &page, shard)?;
            let counts = |note: &Note| match &self.job.occasion {
                Occasion::Period(period) => period.believes(note.lasts),
                Occasion::Once(_) => true,
            };
            let ledger = ledger.filter(|_| standing.is_some_and(counts));
            let verdict = self.job.judge(ledger.as_ref(), asking);
            let is_ours = verdict == Verdict::Ours;
            let (attempts, turn, lasts) = match verdict {
                Verdict::Skip(skipped) => {
                    return Ok(Edit::Leave(Booking::Done(Skipped { said: on_one_line(skipped.said), ..skipped })));
                }
                Verdict::Run(attempts, turn) => {
                    let lasts = match &self.job.occasion {
                        // A repeat belongs to the period that it repeats.
                        Occasion::Period(_) if attempts > 1 => standing.and_then(|note| note.lasts),
                        Occasion::Period(period) => {
                            point_out_another(ledger.as_ref(), *period, shard);
                            Some(period.lasts())
                        }
                        Occasion::Once(_) => None,
                    };
                    (attempts, turn, lasts)
                }
                Verdict::Ours => {
                    let ours = ledger.as_ref().expect("it was judged");
                    if let Some(entry) = entry.as_ref().filter(|_| ours.run.term == term) {
                        return Ok(Edit::Leave(Booking::Booked(entry.booked.clone())));
                    }
                    (ours.attempts, ours.period, standing.and_then(|note| note.lasts))
                }
            };
            let run = Run::of(candidate, term);
            let (before, booked) = match entry.take() {
                // This entry replaces our own of an earlier term.
                Some(earlier) if is_ours => (earlier.before, earlier.booked),
                _ => (standing.map(Standing::of), self.job.booked(attempts, turn, ledger.as_ref())),
            };
            let ledger = Ledger { period: turn, attempts, run, succeeded: None };
            let draft = Note::lasting(ledger.text(), lasts);
            // Stored before the request is sent, because the answer may be lost.
            *entry = Some(Entry { ledger, until: until(lasts), before, booked: booked.clone(), has_run: false });
            Ok(Edit::Replace(Some(draft), Booking::Booked(booked)))
        })
        .await
    }

    /// Brings the index of jobs up to date, for people.
    pub async fn index<S: Notes + ?Sized>(&self, store: &S, shard: &Shard) -> Result<(), StoreError> {
        index::write(store, shard, &self.job.occasion).await
    }

    /// Records how the run ended, or (None) that it never began.
    pub async fn settle<S: Notes + ?Sized>(
        &self,
        store: &S,
        shard: &Shard,
        ran: Option<&Ran>,
    ) -> Result<(), StoreError> {
        let mut entry = self.entry.lock().await;
        let Some(Entry { ledger: ours, until, before, has_run, .. }) = &mut *entry else { return Ok(()) };
        *has_run |= ran.is_some();
        let page = self.job.occasion.page();
        let after = |mut standing: Ledger, lasts: Option<Duration>| -> Option<Option<Note>> {
            // If the ledger is about a later period, we must not change it.
            let same = standing.period == ours.period;
            let first = same && standing.run.is_of(&ours.run.session, ours.run.term);
            match ran {
                Some(ran) if first => standing.run = ours.run.settled(ran),
                Some(ran) if same && ours.run.settled(ran).is_success() => {
                    standing.succeeded = Some(ours.run.settled(ran));
                }
                None if first => {
                    // If another run succeeded meanwhile, its result stays.
                    let Some(run) = standing.succeeded.take() else {
                        return Some(before.as_ref().and_then(Standing::again));
                    };
                    (standing.run, standing.attempts) = (run, standing.attempts.saturating_sub(1));
                }
                Some(_) | None => return None,
            }
            let lasts = if first { left_until(*until) } else { lasts };
            Some(Some(Note::lasting(standing.text(), lasts.map(|left| left.max(SHORTEST)))))
        };
        let is_settled = |run: &Run| run.is_of(&ours.run.session, ours.run.term) && run.to_millis.is_some();
        // Probably nobody has written since.
        let start = Start::Expect(Some(ours.text()));
        update(store, shard, &page, "ledger", start, |standing| {
            let lasts = standing.and_then(|note| note.lasts);
            let Some(ledger) = Ledger::read(text_of(standing), &page, shard)? else { return Ok(Edit::Leave(())) };
            // An earlier attempt wrote this, and its answer was lost.
            if is_settled(&ledger.run) || ledger.succeeded.as_ref().is_some_and(is_settled) {
                return Ok(Edit::Leave(()));
            }
            Ok(after(ledger, lasts).map_or(Edit::Leave(()), |note| Edit::Replace(note, ())))
        })
        .await
    }
}

/// Warns if the last run was of a job with another period.
fn point_out_another(ledger: Option<&Ledger>, period: Period, shard: &Shard) {
    let last = ledger.and_then(|ledger| ledger.period).map(|turn| Duration::from_millis(turn.every_millis));
    if let Some(last) = last.filter(|&last| last != period.every()) {
        tracing::warn!("the last run in {shard} was of a job every {}: two jobs need two shards", show(last));
    }
}

fn text_of(note: Option<&Note>) -> Option<&str> {
    note.map(|note| note.text.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::CommandEnd;
    use crate::fuzz;
    use crate::store::lease_store::memory::Reference;
    use crate::store::notes;

    const MINUTE: u64 = 60_000;
    const EVERY: Duration = Duration::from_mins(5);
    const ALONE: Behind = Behind { session: None, term: None };

    fn period(started_millis: u64) -> Period {
        Period::new(started_millis, EVERY).unwrap()
    }

    fn run(session: &str, status: Option<u8>) -> Run {
        Run {
            owner: "\"".repeat(256),
            host: "h".repeat(64),
            session: Session::from_record(session),
            term: Term(u64::MAX),
            from_millis: u64::MAX,
            to_millis: status.map(|_| u64::MAX),
            status,
            ended: status.map(|_| "\u{10ffff}".repeat(LONGEST_END)),
        }
    }

    fn ledger(due_millis: u64, attempts: u32, status: Option<u8>) -> Ledger {
        let period = Turn { due_millis, next_millis: due_millis.saturating_add(5 * MINUTE), every_millis: 5 * MINUTE };
        Ledger { period: Some(period), attempts, run: run("a", status), succeeded: None }
    }

    fn once(name: &str, retry_failed: Option<u32>) -> Job {
        Job { occasion: Occasion::Once(name.parse().unwrap()), retry_failed, done_exit_code: 0 }
    }

    fn every(started_millis: u64, retry_failed: Option<u32>) -> Job {
        Job { occasion: Occasion::Period(period(started_millis)), retry_failed, done_exit_code: 0 }
    }

    fn judge(job: &Job, ledger: Option<&Ledger>, session: &str, behind: Option<u64>) -> Verdict {
        let behind = &Behind { session: None, term: behind.map(Term) };
        let (shard, session) = ("db/a".parse().unwrap(), Session::from_record(session));
        job.judge(ledger, Asking { shard: &shard, session: Some(&session), behind })
    }

    #[track_caller]
    fn assert_skips(verdict: Verdict, status: u8, words: &str) {
        let Verdict::Skip(skipped) = verdict else { panic!("{verdict:?}") };
        assert!(skipped.status == status && skipped.said.contains(words), "{skipped:?}");
    }

    #[test]
    fn the_longest_ledger_is_no_longer_than_a_note_may_be() {
        let ledger = Ledger { succeeded: Some(run(&"s".repeat(36), Some(0))), ..ledger(u64::MAX, u32::MAX, Some(1)) };
        assert!(ledger.text().len() <= notes::LONGEST, "{}", ledger.text().len());
    }

    #[test]
    fn a_period_runs_again_until_it_succeeds_or_reaches_its_limit_of_failures() {
        let due = 100 * 5 * MINUTE;
        let later = Turn { due_millis: due + 5 * MINUTE, next_millis: due + 10 * MINUTE, every_millis: 5 * MINUTE };
        let now = Turn { due_millis: due, next_millis: due + 5 * MINUTE, every_millis: 5 * MINUTE };
        assert_eq!(judge(&every(due, None), None, "b", None), Verdict::Run(1, Some(now)));
        let failed = |attempts, status| ledger(due, attempts, status);
        assert_eq!(
            judge(&every(due + 5 * MINUTE, None), Some(&failed(9, Some(1))), "b", None),
            Verdict::Run(1, Some(later))
        );
        let done = Job { done_exit_code: 7, ..every(due + 1000, Some(9)) };
        assert_skips(judge(&done, Some(&failed(1, Some(0))), "b", None), 7, "leave --every out to run besides");
        for status in [Some(1), None] {
            for job in [every(due + 1000, None), every(due + 1000, Some(0))] {
                assert_skips(judge(&job, Some(&failed(1, status)), "b", None), 0, "--retry-failed 1 allows another");
            }
            // The repeat belongs to the period that it repeats.
            let once_more = every(due + 1000, Some(1));
            assert_eq!(judge(&once_more, Some(&failed(1, status)), "b", Some(1)), Verdict::Run(2, Some(now)));
            assert_skips(judge(&once_more, Some(&failed(2, status)), "b", None), 0, "--retry-failed 2 allows another");
        }
        let late = Ledger { succeeded: Some(run("c", Some(0))), ..failed(2, Some(1)) };
        assert_skips(judge(&every(due, Some(9)), Some(&late), "b", None), 0, "skipped: ");
        assert_eq!(judge(&every(due, None), Some(&failed(1, None)), "a", None), Verdict::Ours);
        assert_skips(judge(&every(due, None), Some(&failed(1, Some(3))), "a", None), 0, "failed on");
    }

    #[test]
    fn a_job_with_a_name_that_failed_is_repeated_by_a_later_start_and_not_by_who_waited_behind_it() {
        let failed = |attempts, status| {
            let run = Run { term: Term(5), host: "db1".to_owned(), ..run("a", status) };
            Ledger { period: None, attempts, run, succeeded: None }
        };
        for status in [Some(3), None] {
            for behind in [None, Some(6)] {
                assert_eq!(judge(&once("id", None), Some(&failed(9, status)), "b", behind), Verdict::Run(10, None));
            }
            // It was started when the failed run, or one before that, was under way.
            for behind in [Some(5), Some(4)] {
                let verdict = judge(&once("id", None), Some(&failed(1, status)), "b", behind);
                assert_skips(verdict, status.unwrap_or(75), "start it again");
                assert_eq!(judge(&once("id", Some(1)), Some(&failed(1, status)), "b", behind), Verdict::Run(2, None));
            }
            // Its store did not report the term.
            let (shard, by_name) =
                ("db/a".parse().unwrap(), Behind { session: Some(failed(1, status).run.session), term: None });
            let asking = Asking { shard: &shard, session: None, behind: &by_name };
            assert_skips(
                once("id", None).judge(Some(&failed(1, status)), asking),
                status.unwrap_or(75),
                "start it again",
            );
            for behind in [None, Some(5)] {
                let way = "leaderctl jobs db/a --clear id";
                let never = once("id", Some(0));
                assert_skips(judge(&never, Some(&failed(1, status)), "b", behind), status.unwrap_or(75), way);
            }
        }
        assert_skips(judge(&once("id", None), Some(&failed(2, Some(0))), "b", None), 0, "skipped: db1 did job id at ");
    }

    #[test]
    fn command_is_told_which_run_this_is_and_how_the_one_before_ended() {
        let told = |attempts, before: Option<&Ledger>| once("id", Some(1)).booked(attempts, None, before);
        let words = |booked: &Booked| {
            booked.variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let first = told(1, None);
        assert_eq!(words(&first), "LEADERRUN_JOB=id LEADERRUN_ATTEMPT=1 LEADERRUN_PREVIOUS=none");
        assert!(first.again && first.counts_as.is_none());
        let failed = |status| Ledger { period: None, ..ledger(0, 1, status) };
        let second = told(2, Some(&failed(Some(3))));
        assert_eq!(words(&second), "LEADERRUN_JOB=id LEADERRUN_ATTEMPT=2 LEADERRUN_PREVIOUS=failed:3");
        assert!(!second.again);
        assert!(words(&told(2, Some(&failed(None)))).ends_with("LEADERRUN_PREVIOUS=unknown"));
        // The period before is another matter.
        let turn = period(1_800_000_001_000).turn(None);
        let next = every(0, None).booked(1, turn, Some(&ledger(0, 1, Some(3))));
        assert_eq!(words(&next), "LEADERRUN_DUE=2027-01-15T08:00:00Z LEADERRUN_ATTEMPT=1 LEADERRUN_PREVIOUS=none");
        assert!(!next.again && next.counts_as.unwrap().contains("the run of 2027-01-15T08:00:01Z"));
    }

    fn candidate(session: &str) -> Candidate {
        Candidate {
            owner: session.to_owned(),
            session: Session::from_record(session),
            host: format!("host of {session}"),
            ..Candidate::example()
        }
    }

    fn ended(status: i32) -> Ran {
        let end = CommandEnd::Exited(status);
        Ran { how: Ended::ByItself(end), end: Some(end) }
    }

    #[tokio::test]
    async fn an_entry_whose_run_never_began_restores_the_earlier_text() {
        let (store, shard) = (Reference::default(), "db".parse::<Shard>().unwrap());
        let job_gate = |retry_failed| JobGate::new(every(0, retry_failed));
        let (first, second) = (job_gate(None), job_gate(Some(1)));
        assert!(matches!(first.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
        // Book again, as after a lost answer, and in another term.
        assert!(matches!(first.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
        assert!(matches!(first.book(&store, &candidate("a"), Term(2), &ALONE).await, Ok(Booking::Booked(_))));
        assert_eq!(last(&store, &shard).await.unwrap().unwrap().attempts, 1);
        assert_eq!(first.settle(&store, &shard, None).await, Ok(()));
        assert_eq!(last(&store, &shard).await, Ok(None));
        assert_eq!(first.settle(&store, &shard, None).await, Ok(()), "also twice");

        assert!(matches!(first.book(&store, &candidate("a"), Term(3), &ALONE).await, Ok(Booking::Booked(_))));
        let before = last(&store, &shard).await;
        assert!(matches!(second.book(&store, &candidate("b"), Term(4), &ALONE).await, Ok(Booking::Booked(_))));
        assert_eq!(second.settle(&store, &shard, None).await, Ok(()));
        assert_eq!(last(&store, &shard).await, before);
        assert!(matches!(job_gate(None).book(&store, &candidate("c"), Term(5), &ALONE).await, Ok(Booking::Done(_))));
    }

    #[tokio::test]
    async fn a_run_that_counted_as_failed_and_then_succeeds_is_the_one_that_counts() {
        let (store, shard) = (Reference::default(), "db".parse::<Shard>().unwrap());
        let job_gate = || JobGate::new(once("a", Some(1)));
        for withdrawn in [false, true] {
            let (first, second) = (job_gate(), job_gate());
            assert!(matches!(first.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
            assert!(matches!(second.book(&store, &candidate("b"), Term(2), &ALONE).await, Ok(Booking::Booked(_))));
            assert_eq!(first.settle(&store, &shard, Some(&ended(0))).await, Ok(()));
            assert_eq!(first.settle(&store, &shard, Some(&ended(0))).await, Ok(()), "also twice");
            let failed = ended(1);
            assert_eq!(second.settle(&store, &shard, Some(&failed).filter(|_| !withdrawn)).await, Ok(()));
            let third = job_gate().book(&store, &candidate("c"), Term(3), &ALONE).await;
            assert!(matches!(third, Ok(Booking::Done(skipped)) if skipped.said.contains("host of a did job a at ")));
            let page = Page::Once("a".parse().unwrap());
            let note = store.read(&shard, &page).await.unwrap().unwrap();
            assert_eq!(store.replace(&shard, &page, Some(&note.text), None).await, Ok(true));
        }
        assert_eq!(last(&store, &shard).await, Ok(None), "it has no periods");
    }

    #[tokio::test]
    async fn the_store_forgets_a_period_two_durations_after_its_first_run() {
        let (store, shard) = (Reference::default(), "db".parse::<Shard>().unwrap());
        let left = async || store.read(&shard, &Page::Runs).await.unwrap().unwrap().lasts.unwrap();
        let is_near = |left: Duration, wanted: Duration| left <= wanted && left > wanted - Duration::from_secs(20);
        let first = JobGate::new(every(0, Some(1)));
        assert!(matches!(first.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
        assert!(is_near(left().await, 2 * EVERY));
        // Minutes later.
        let page = &Page::Runs;
        let note = store.read(&shard, page).await.unwrap().unwrap();
        let aged = Note::lasting(note.text.clone(), Some(EVERY));
        assert_eq!(store.replace(&shard, page, Some(&note.text), Some(&aged)).await, Ok(true));
        first.entry.lock().await.as_mut().unwrap().until = until(Some(EVERY));
        assert_eq!(first.settle(&store, &shard, Some(&ended(1))).await, Ok(()));
        assert!(is_near(left().await, EVERY), "its end is no other run");
        let second = JobGate::new(every(1000, Some(1)));
        assert!(matches!(second.book(&store, &candidate("b"), Term(2), &ALONE).await, Ok(Booking::Booked(_))));
        assert!(is_near(left().await, EVERY), "a repeat belongs to its period");
        assert_eq!(second.settle(&store, &shard, None).await, Ok(()));
        assert!(is_near(left().await, EVERY), "nor does it count if it never began");
    }

    #[tokio::test]
    async fn a_run_whose_end_could_not_be_written_is_not_taken_for_one_that_never_began() {
        let (store, shard) = (Reference::default(), "db".parse::<Shard>().unwrap());
        let gate = JobGate::new(once("a", Some(1)));
        assert!(matches!(gate.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
        // The store does not take the end.
        gate.entry.lock().await.as_mut().unwrap().has_run = true;
        let Ok(Booking::Booked(second)) = gate.book(&store, &candidate("a"), Term(2), &ALONE).await else { panic!() };
        assert!(second.variables.contains(&("LEADERRUN_PREVIOUS", "unknown".to_owned())), "{second:?}");
        assert_eq!(gate.settle(&store, &shard, Some(&ended(1))).await, Ok(()));
        assert!(matches!(gate.book(&store, &candidate("a"), Term(3), &ALONE).await, Ok(Booking::Done(_))));
    }

    #[test]
    fn a_ledger_of_another_format_is_refused() {
        let shard = "db".parse().unwrap();
        let of_a_period = ledger(0, 1, Some(0)).text();
        let of_a_name = Ledger { period: None, ..ledger(0, 1, Some(0)) }.text();
        let id = Page::Once("id".parse().unwrap());
        for (text, page) in [(of_a_name, Page::Runs), (of_a_period, id), ("{}".to_owned(), Page::Runs)] {
            let error = Ledger::read(Some(&text), &page, &shard).unwrap_err();
            assert_eq!(error.exit_status(), exit::CONFIGURATION, "{text}: {error:?}");
        }
    }

    #[test]
    fn a_million_notes_are_a_ledger_or_refused() {
        let short = |run: Run| Run { owner: "me".to_owned(), ended: Some("exited with 0".to_owned()), ..run };
        let one = Ledger { run: short(run("a", None)), ..ledger(0, 1, None) };
        let two = Ledger { succeeded: Some(short(run("b", Some(0)))), attempts: 2, ..one.clone() };
        let asking = Asking { shard: &"a".parse().unwrap(), session: None, behind: &ALONE };
        let (one, two) = (one.text(), two.text());
        let shard: Shard = "a".parse().unwrap();
        fuzz::bent_text("ledger of runs", &[&one, &two], |text, _| {
            let read = Ledger::read(Some(text), &Page::Runs, &shard);
            match &read {
                Ok(ledger) => {
                    let ledger = ledger.as_ref().expect("there is one");
                    assert_eq!(Ledger::read(Some(&ledger.text()), &Page::Runs, &shard).unwrap().as_ref(), Some(ledger));
                    let _ = every(5 * MINUTE, Some(1)).judge(Some(ledger), asking);
                }
                Err(error) => fuzz::assert_is_one_line(&error.message),
            }
            (&read).into()
        });
    }
}
