//! The ledger of a job's runs: at most one run succeeds for each period, or for each name. The ledger is a note beside
//! the lease. The holder of the lease writes it before COMMAND starts, and again when COMMAND has ended.
//!
//! The hazards:
//!
//! - Hosts' clocks differ, and cron starts a job when its own host's clock shows the time. So a period does not begin
//!   at a multiple of its length: it has that multiple in its middle (see [`Period::at`]).
//! - A host may die while COMMAND runs, or be unable to say how it ended. So a run is booked before it starts, and a
//!   run without an end counts as failed. It may have done its work, so it is repeated only if the user allows that.
//! - The answer to the request that books a run may be lost. An entry names the session that made it, so the candidate
//!   recognises its own entry when it asks again. An entry whose run never began is withdrawn: left there, it would
//!   count as a failed run.
//! - The lease keeps two runs apart, not the ledger: a store that forgets this note forgets that a job was done.

use super::update::{Edit, Start, update};
use crate::election::{Booking, Ended, Ran, Skipped};
use crate::exit;
use crate::lease::{Candidate, JobId, Session, Shard, Term, show};
use crate::store::{Note, Notes, Page, StoreError};
use crate::text::on_one_line;
use crate::time::{rfc3339, wall_clock_millis, whole_millis};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use tokio::sync::Mutex;

/// The most letters of how a run ended.
const LONGEST_END: usize = 100;
/// The shortest period. A clock that cron runs by is not wrong by this much.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);
const LONGEST_PERIOD: Duration = Duration::from_hours(24 * 366);

/// A job that is due, and how often it may fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub occasion: Occasion,
    /// How many more runs may follow one that failed.
    pub retry_failed: u32,
}

/// The period or the name for which one successful run is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occasion {
    Period(Period),
    Once(JobId),
}

/// A period of a job, by wall clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    every_millis: u64,
    /// When the job is due: a multiple of `every_millis` since 1970.
    due_millis: u64,
}

impl Period {
    /// The period of a job that is started at `now_millis`: the one whose due time is nearest.
    ///
    /// A job is due at `t`. A host whose clock is off by `e`, or a cron that is late by `e`, starts it when other
    /// clocks show `t + e`. The multiple of `every` nearest to that is `t` exactly while `-every / 2 <= e < every / 2`.
    /// If periods began at `t`, a host whose clock is a second early would be in the period before, and would run the
    /// job once more.
    ///
    /// # Errors
    /// A fragment that says which values `every` may have.
    pub fn at(now_millis: u64, every: Duration) -> Result<Self, String> {
        if !(SHORTEST_PERIOD..=LONGEST_PERIOD).contains(&every) || !every.subsec_nanos().is_multiple_of(1_000_000) {
            return Err("write a duration from 1s to 366 days, in whole milliseconds".to_owned());
        }
        let every_millis = whole_millis(every);
        let number = now_millis.saturating_add(every_millis / 2) / every_millis;
        Ok(Self { every_millis, due_millis: number.saturating_mul(every_millis) })
    }

    /// A warning, if a job started at `now_millis` is so near to the edge of its period that clocks may disagree about
    /// the period.
    #[must_use]
    pub fn doubt(self, now_millis: u64) -> Option<String> {
        let off = now_millis.abs_diff(self.due_millis);
        (off > self.every_millis / 8 * 3).then(|| {
            format!(
                "started {} from when it is due: hosts whose clocks differ may take this for two periods; start it near \
                 a multiple of {} since 1970 in UTC",
                show(Duration::from_millis(off)),
                show(Duration::from_millis(self.every_millis))
            )
        })
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&rfc3339(self.due_millis))
    }
}

impl Occasion {
    fn page(&self) -> Page {
        match self {
            Self::Period(_) => Page::Runs,
            Self::Once(job) => Page::Once(job.clone()),
        }
    }

    /// The environment variable that tells COMMAND its occasion.
    #[must_use]
    pub fn variable(&self) -> (&'static str, String) {
        match self {
            Self::Period(period) => ("LEADERRUN_DUE", period.to_string()),
            // Not the variable of the option: a leaderrun inside COMMAND would read it and take its own job for done.
            Self::Once(job) => ("LEADERRUN_JOB", job.to_string()),
        }
    }
}

/// The text of the note. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// When the period was due; None for a job that runs once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_millis: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_millis: Option<u64>,
    /// How many runs there were in this period.
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
        rfc3339(self.to_millis.unwrap_or(self.from_millis))
    }
}

impl Ledger {
    /// The run that counts: the one that succeeded, or else the last one.
    #[must_use]
    pub fn counting(&self) -> &Run {
        self.succeeded.as_ref().unwrap_or(&self.run)
    }

    fn read(text: Option<&str>, shard: &Shard) -> Result<Option<Self>, StoreError> {
        text.map(serde_json::from_str).transpose().map_err(|error| {
            StoreError::misconfigured(format!(
                "the ledger of runs of shard {shard} was written by something else ({error}): use another shard"
            ))
        })
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("a ledger is plain data")
    }

    /// Whether the ledger is about this occasion.
    fn is_of(&self, occasion: &Occasion) -> bool {
        match occasion {
            Occasion::Period(period) => self.due_millis == Some(period.due_millis),
            Occasion::Once(_) => true,
        }
    }
}

/// The last run of a job that runs once a period. None if it has not run.
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
    Ledger::read(text_of(note), shard)
}

/// The ledger of a job that runs once. None if it has not run.
pub async fn of_job<S: Notes + ?Sized>(store: &S, shard: &Shard, job: &JobId) -> Result<Option<Ledger>, StoreError> {
    let note = store.read(shard, &Page::Once(job.clone())).await?;
    Ledger::read(text_of(note.as_ref()), shard)
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The candidate may run the job: this is the number of the run.
    Run(u32),
    /// The ledger holds our own entry, and its run has not begun.
    Ours,
    Skip(Skipped),
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

    /// The length of the ledger's periods, if it differs from ours.
    fn other_length(&self, ledger: &Ledger) -> Option<u64> {
        match &self.occasion {
            Occasion::Period(period) => ledger.every_millis.filter(|&every| every != period.every_millis),
            Occasion::Once(_) => None,
        }
    }

    fn judge(&self, ledger: Option<&Ledger>, session: &Session) -> Verdict {
        let Some(ledger) = ledger else { return Verdict::Run(1) };
        let run = ledger.counting();
        if let (Occasion::Period(period), Some(due)) = (&self.occasion, ledger.due_millis) {
            if due > period.due_millis {
                let (due, at) = (rfc3339(due), run.when());
                let said = format!("the later period {due} was run already by {} at {at}", run.host);
                return Verdict::Skip(Skipped { said, status: 0, failed: false });
            }
            if due < period.due_millis {
                return Verdict::Run(1);
            }
        }
        if run.is_success() {
            let said = format!("done already by {} at {}", run.host, run.when());
            return Verdict::Skip(Skipped { said, status: 0, failed: false });
        }
        if run.session == *session && run.to_millis.is_none() {
            return Verdict::Ours;
        }
        if ledger.attempts > self.retry_failed {
            let said = format!("failed already on {} at {}: {}", run.host, run.when(), run.end());
            let status = match &self.occasion {
                // The host that failed has reported it, and the next period is another chance.
                Occasion::Period(_) => 0,
                // The job gets no other chance, so the status must not say that it was done.
                Occasion::Once(_) => run.status.unwrap_or(exit::NOT_ACQUIRED),
            };
            return Verdict::Skip(Skipped { said, status, failed: true });
        }
        Verdict::Run(ledger.attempts.saturating_add(1))
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
    /// The text that the entry replaced.
    before: Option<String>,
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
    ) -> Result<Booking, StoreError> {
        let (shard, page) = (&candidate.shard, self.job.occasion.page());
        let mut entry = self.entry.lock().await;
        update(store, shard, &page, "ledger", Start::Read, |standing| {
            let ledger = Ledger::read(text_of(standing), shard)?;
            if let Some(other) = ledger.as_ref().and_then(|ledger| self.job.other_length(ledger)) {
                let last = show(Duration::from_millis(other));
                tracing::warn!("the last run in {shard} was of a job every {last}: two jobs need two shards");
            }
            let (attempts, before) = match self.job.judge(ledger.as_ref(), &candidate.session) {
                Verdict::Skip(skipped) => {
                    return Ok(Edit::Leave(Booking::Done(Skipped { said: on_one_line(skipped.said), ..skipped })));
                }
                Verdict::Run(attempts) => (attempts, text_of(standing).map(str::to_owned)),
                Verdict::Ours => {
                    let ours = ledger.expect("it was judged");
                    if ours.run.term == term && entry.is_some() {
                        return Ok(Edit::Leave(Booking::Booked));
                    }
                    (ours.attempts, entry.take().and_then(|entry| entry.before))
                }
            };
            let (due_millis, every_millis) = match &self.job.occasion {
                Occasion::Period(period) => (Some(period.due_millis), Some(period.every_millis)),
                Occasion::Once(_) => (None, None),
            };
            let run = Run::of(candidate, term);
            let ledger = Ledger { due_millis, every_millis, attempts, run, succeeded: None };
            let draft = Note::for_ever(ledger.text());
            // Stored before the request is sent, because the answer may be lost.
            *entry = Some(Entry { ledger, before });
            Ok(Edit::Replace(Some(draft), Booking::Booked))
        })
        .await
    }

    /// Records how the run ended, or (None) that it never began.
    pub async fn settle<S: Notes + ?Sized>(
        &self,
        store: &S,
        shard: &Shard,
        ran: Option<&Ran>,
    ) -> Result<(), StoreError> {
        let entry = self.entry.lock().await;
        let Some(Entry { ledger: ours, before }) = &*entry else { return Ok(()) };
        let page = self.job.occasion.page();
        let after = |mut standing: Ledger| -> Option<Option<String>> {
            // If the ledger is about a later period, we must not change it.
            let same = standing.is_of(&self.job.occasion);
            let first = same && standing.run.session == ours.run.session && standing.run.term == ours.run.term;
            match ran {
                Some(ran) if first => standing.run = ours.run.settled(ran),
                Some(ran) if same && ours.run.settled(ran).is_success() => {
                    standing.succeeded = Some(ours.run.settled(ran));
                }
                None if first => {
                    // If another run succeeded meanwhile, its result stays.
                    let Some(run) = standing.succeeded.take() else { return Some(before.clone()) };
                    (standing.run, standing.attempts) = (run, standing.attempts.saturating_sub(1));
                }
                Some(_) | None => return None,
            }
            Some(Some(standing.text()))
        };
        let is_settled =
            |run: &Run| run.session == ours.run.session && run.term == ours.run.term && run.to_millis.is_some();
        // Probably nobody has written since.
        let start = Start::Expect(Some(ours.text()));
        update(store, shard, &page, "ledger", start, |standing| {
            let Some(ledger) = Ledger::read(text_of(standing), shard)? else { return Ok(Edit::Leave(())) };
            // An earlier attempt wrote this, and its answer was lost.
            if is_settled(&ledger.run) || ledger.succeeded.as_ref().is_some_and(is_settled) {
                return Ok(Edit::Leave(()));
            }
            Ok(after(ledger).map_or(Edit::Leave(()), |text| Edit::Replace(text.map(Note::for_ever), ())))
        })
        .await
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
    use crate::store::memory::Memory;
    use crate::store::notes;

    const MINUTE: u64 = 60_000;

    fn period(now_millis: u64) -> Period {
        Period::at(now_millis, Duration::from_mins(5)).unwrap()
    }

    #[test]
    fn a_job_that_is_started_early_or_late_is_in_the_period_that_it_is_due_in() {
        let due = 5_929_000 * 5 * MINUTE;
        let half = 5 * MINUTE / 2;
        for started in [due, due - 1000, due + 1000, due - half, due + half - 1] {
            assert_eq!(period(started), Period { every_millis: 5 * MINUTE, due_millis: due }, "{started}");
        }
        assert_eq!(period(due - half - 1).due_millis, due - 5 * MINUTE);
        assert_eq!(period(due + half).due_millis, due + 5 * MINUTE);
        assert_eq!(period(due + 1).doubt(due + 1000), None);
        assert!(period(due + half - 1).doubt(due + half - 1).is_some());
        assert_eq!(period(0).due_millis, 0);
        assert_eq!(period(1_800_000_000_000).to_string(), "2027-01-15T08:00:00.000Z");
    }

    #[test]
    fn useless_period_lengths_are_refused() {
        for bad in [0, 1, 999, 1000 * 86_400 * 367] {
            assert!(Period::at(7, Duration::from_millis(bad)).is_err(), "{bad}");
        }
        assert!(Period::at(7, Duration::from_nanos(1_000_000_001)).is_err());
        assert!(Period::at(u64::MAX, Duration::from_millis(1500)).is_ok());
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
        let every_millis = Some(5 * MINUTE);
        Ledger { due_millis: Some(due_millis), every_millis, attempts, run: run("a", status), succeeded: None }
    }

    #[test]
    fn the_longest_ledger_is_no_longer_than_a_note_may_be() {
        let ledger = Ledger { succeeded: Some(run(&"s".repeat(36), Some(0))), ..ledger(u64::MAX, u32::MAX, Some(1)) };
        assert!(ledger.text().len() <= notes::LONGEST, "{}", ledger.text().len());
    }

    #[test]
    fn a_period_runs_again_until_it_succeeds_or_reaches_its_limit_of_failures() {
        let due = 100 * 5 * MINUTE;
        let job = |retry_failed| Job { occasion: Occasion::Period(period(due)), retry_failed };
        let judge = |job: Job, ledger: &Ledger| job.judge(Some(ledger), &Session::from_record("b"));
        let skipped = |verdict: Verdict, word: &str| matches!(verdict, Verdict::Skip(why) if why.said.contains(word));
        assert_eq!(job(0).judge(None, &Session::from_record("b")), Verdict::Run(1));
        assert_eq!(judge(job(0), &ledger(due - 5 * MINUTE, 9, Some(0))), Verdict::Run(1));
        assert!(skipped(judge(job(9), &ledger(due + 5 * MINUTE, 1, Some(1))), "later period"));
        assert!(skipped(judge(job(9), &ledger(due, 1, Some(0))), "done already"));
        for status in [Some(1), None] {
            assert!(skipped(judge(job(0), &ledger(due, 1, status)), "failed already"));
            assert_eq!(judge(job(1), &ledger(due, 1, status)), Verdict::Run(2));
            assert!(skipped(judge(job(1), &ledger(due, 2, status)), "failed already"));
        }
        let late = Ledger { succeeded: Some(run("c", Some(0))), ..ledger(due, 2, Some(1)) };
        assert!(skipped(judge(job(9), &late), "done already"));
        let own = |status| job(0).judge(Some(&ledger(due, 1, status)), &Session::from_record("a"));
        assert_eq!(own(None), Verdict::Ours);
        assert!(skipped(own(Some(3)), "failed already"));
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
        let (store, shard) = (Memory::default(), "db".parse::<Shard>().unwrap());
        let job_gate = |retry_failed| JobGate::new(Job { occasion: Occasion::Period(period(0)), retry_failed });
        let (first, second) = (job_gate(0), job_gate(1));
        assert_eq!(first.book(&store, &candidate("a"), Term(1)).await, Ok(Booking::Booked));
        // Book again, as after a lost answer, and in another term.
        assert_eq!(first.book(&store, &candidate("a"), Term(1)).await, Ok(Booking::Booked));
        assert_eq!(first.book(&store, &candidate("a"), Term(2)).await, Ok(Booking::Booked));
        assert_eq!(last(&store, &shard).await.unwrap().unwrap().attempts, 1);
        assert_eq!(first.settle(&store, &shard, None).await, Ok(()));
        assert_eq!(last(&store, &shard).await, Ok(None));
        assert_eq!(first.settle(&store, &shard, None).await, Ok(()), "also twice");

        assert_eq!(first.book(&store, &candidate("a"), Term(3)).await, Ok(Booking::Booked));
        let before = last(&store, &shard).await;
        assert_eq!(second.book(&store, &candidate("b"), Term(4)).await, Ok(Booking::Booked));
        assert_eq!(second.settle(&store, &shard, None).await, Ok(()));
        assert_eq!(last(&store, &shard).await, before);
        assert!(matches!(job_gate(0).book(&store, &candidate("c"), Term(5)).await, Ok(Booking::Done(_))));
    }

    #[tokio::test]
    async fn a_run_that_counted_as_failed_and_then_succeeds_is_the_one_that_counts() {
        let (store, shard) = (Memory::default(), "db".parse::<Shard>().unwrap());
        let job_gate = || JobGate::new(Job { occasion: Occasion::Once("a".parse().unwrap()), retry_failed: 1 });
        for withdrawn in [false, true] {
            let (first, second) = (job_gate(), job_gate());
            assert_eq!(first.book(&store, &candidate("a"), Term(1)).await, Ok(Booking::Booked));
            assert_eq!(second.book(&store, &candidate("b"), Term(2)).await, Ok(Booking::Booked));
            assert_eq!(first.settle(&store, &shard, Some(&ended(0))).await, Ok(()));
            assert_eq!(first.settle(&store, &shard, Some(&ended(0))).await, Ok(()), "also twice");
            let failed = ended(1);
            assert_eq!(second.settle(&store, &shard, Some(&failed).filter(|_| !withdrawn)).await, Ok(()));
            let third = job_gate().book(&store, &candidate("c"), Term(3)).await;
            assert!(matches!(third, Ok(Booking::Done(skipped)) if skipped.said.contains("done already by host of a")));
            let page = Page::Once("a".parse().unwrap());
            let note = store.read(&shard, &page).await.unwrap().unwrap();
            assert_eq!(store.replace(&shard, &page, Some(&note.text), None).await, Ok(true));
        }
        assert_eq!(last(&store, &shard).await, Ok(None), "it has no periods");
    }

    #[test]
    fn a_million_notes_are_a_ledger_or_refused() {
        let short = |run: Run| Run { owner: "me".to_owned(), ended: Some("exited with 0".to_owned()), ..run };
        let one = Ledger { run: short(run("a", None)), ..ledger(0, 1, None) };
        let two = Ledger { succeeded: Some(short(run("b", Some(0)))), attempts: 2, ..one.clone() };
        let (one, two) = (one.text(), two.text());
        let shard: Shard = "a".parse().unwrap();
        fuzz::bent_text("ledger of runs", &[&one, &two], |text, _| {
            let read = Ledger::read(Some(text), &shard);
            match &read {
                Ok(ledger) => {
                    let ledger = ledger.as_ref().expect("there is one");
                    assert_eq!(Ledger::read(Some(&ledger.text()), &shard).unwrap().as_ref(), Some(ledger));
                    let job = Job { occasion: Occasion::Period(period(5 * MINUTE)), retry_failed: 1 };
                    let _ = job.judge(Some(ledger), &Session::from_record("a"));
                }
                Err(error) => fuzz::assert_is_one_line(&error.message),
            }
            (&read).into()
        });
    }
}
