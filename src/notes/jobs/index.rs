//! The index of a shard's jobs, in one note. It lists jobs that run once, whose names people would have to know
//! otherwise, and keeps a job with a period visible when its ledger is over.
//!
//! The hazard: the index is written in the background, after the ledger, and has room for some jobs only. So nothing is
//! decided by it: whether a job may run is in its ledger.

use super::{Frequency, Ledger, last, of_job};
use crate::lease::{JobId, Shard, Term, show};
use crate::notes::update::{Edit, Start, update};
use crate::store::notes::LONGEST;
use crate::store::{Answer, Note, Notes, Page, StoreError};
use crate::text::on_one_line;
use std::fmt;
use std::time::Duration;

/// The most jobs in an index. Long names leave room for fewer.
const MOST: usize = 100;
const HEADER: &str = "leaderrun jobs";
/// In place of a name, before the period in milliseconds.
const EVERY: &str = "every:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Once(JobId),
    Every { millis: u64 },
}

impl Name {
    pub fn once(&self) -> Option<&JobId> {
        match self {
            Self::Once(job) => Some(job),
            Self::Every { .. } => None,
        }
    }

    pub fn every(&self) -> Option<Duration> {
        match self {
            Self::Once(_) => None,
            Self::Every { millis } => Some(Duration::from_millis(*millis)),
        }
    }

    /// A shard has one job that runs once a period, even if the period was changed.
    fn is_same(&self, other: &Self) -> bool {
        self == other || matches!((self, other), (Self::Every { .. }, Self::Every { .. }))
    }

    fn read(word: &str) -> Option<Self> {
        Some(match word.strip_prefix(EVERY) {
            Some(millis) => Self::Every { millis: millis.parse().ok()? },
            None => Self::Once(word.parse().ok()?),
        })
    }

    fn word(&self) -> String {
        match self {
            Self::Once(job) => job.to_string(),
            Self::Every { millis } => format!("{EVERY}{millis}"),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once(job) => job.fmt(f),
            Self::Every { millis } => write!(f, "(every_{})", show(Duration::from_millis(*millis)).replace(' ', "")),
        }
    }
}

/// The last run of a job, or the one that succeeded: a line of the note with the name, the term, the number of runs,
/// the times, the status, and the host, which may have blanks. A hyphen means unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    pub job: Name,
    pub term: Term,
    pub attempts: u32,
    /// Milliseconds since 1970, by its host's own clock.
    pub from_millis: u64,
    pub to_millis: Option<u64>,
    pub status: Option<u8>,
    pub host: String,
}

impl Indexed {
    pub fn of(job: Name, ledger: &Ledger) -> Self {
        let run = ledger.counting();
        Self {
            job,
            term: run.term,
            attempts: ledger.attempts,
            from_millis: run.from_millis,
            to_millis: run.to_millis,
            status: run.status,
            host: on_one_line(run.host.clone()),
        }
    }

    pub fn of_period(ledger: &Ledger) -> Self {
        Self::of(Name::Every { millis: ledger.period.map_or(0, |turn| turn.every_millis) }, ledger)
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.splitn(7, ' ');
        let mut next = || words.next();
        let known = |word: &str| Some(word.to_owned()).filter(|word| word != "-");
        Some(Self {
            job: Name::read(next()?)?,
            term: Term(next()?.parse().ok()?),
            attempts: next()?.parse().ok()?,
            from_millis: next()?.parse().ok()?,
            to_millis: known(next()?).map(|word| word.parse()).transpose().ok()?,
            status: known(next()?).map(|word| word.parse()).transpose().ok()?,
            host: next()?.to_owned(),
        })
    }

    fn line(&self) -> String {
        let Self { job, term, attempts, from_millis, to_millis, status, host } = self;
        let known = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        let to = known(*to_millis);
        let status = known(status.map(u64::from));
        let job = job.word();
        format!("\n{job} {} {attempts} {from_millis} {to} {status} {host}", term.0)
    }

    /// Whether this is a later run than `other`, or has the end of that run. A success stays, whatever ran after it.
    fn is_after(&self, other: &Self) -> bool {
        other.status != Some(0) && (self.term, self.to_millis.is_some()) > (other.term, other.to_millis.is_some())
    }
}

/// The jobs of a shard, newest first, without the job of `ledger`, which says more.
pub async fn read(store: &dyn Notes, shard: &Shard, ledger: Option<&Ledger>) -> Answer<Vec<Indexed>> {
    read_in(store.read(shard, &Page::Jobs).await?.as_ref(), shard, ledger)
}

pub fn read_in(note: Option<&Note>, shard: &Shard, ledger: Option<&Ledger>) -> Answer<Vec<Indexed>> {
    let mut jobs = all_in(note, shard)?;
    jobs.retain(|known| ledger.is_none() || known.job.once().is_some());
    Ok(jobs)
}

fn all_in(note: Option<&Note>, shard: &Shard) -> Answer<Vec<Indexed>> {
    let Some(note) = note else { return Ok(Vec::new()) };
    let mut lines = note.text.split('\n');
    if lines.next() != Some(HEADER) {
        let message = format!("the index of jobs of shard {shard} was written by another program: use another shard");
        return Err(StoreError::misconfigured(message));
    }
    Ok(lines.filter_map(Indexed::read).collect())
}

fn text(jobs: &[Indexed]) -> String {
    let mut text = HEADER.to_owned();
    for line in jobs.iter().take(MOST).map(Indexed::line) {
        if text.len() + line.len() > LONGEST {
            break;
        }
        text.push_str(&line);
    }
    text
}

pub async fn write(store: &dyn Notes, shard: &Shard, job: &Frequency) -> Answer<()> {
    match job {
        Frequency::Once(job) => write_named(store, shard, job).await,
        // A ledger that is over was written here before that.
        Frequency::Every(_) => match last(store, shard).await? {
            Some(ledger) => {
                let new = Indexed::of_period(&ledger);
                put(store, shard, &new.job.clone(), Some(new)).await
            }
            None => Ok(()),
        },
    }
}

pub async fn write_named(store: &dyn Notes, shard: &Shard, job: &JobId) -> Answer<()> {
    let name = Name::Once(job.clone());
    let new = of_job(store, shard, job).await?.map(|ledger| Indexed::of(name.clone(), &ledger));
    put(store, shard, &name, new).await
}

async fn put(store: &dyn Notes, shard: &Shard, name: &Name, new: Option<Indexed>) -> Answer<()> {
    update(store, shard, &Page::Jobs, "index of jobs", Start::ReadAndMakeSure, |standing| {
        let mut jobs = all_in(standing, shard)?;
        let before = jobs.iter().position(|known| known.job.is_same(name)).map(|index| jobs.remove(index));
        if before == new || matches!((&before, &new), (Some(before), Some(new)) if before.is_after(new)) {
            return Ok(Edit::Leave(()));
        }
        jobs.splice(0..0, new.clone());
        Ok(Edit::Replace((!jobs.is_empty()).then(|| Note::for_ever(text(&jobs))), ()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexed(job: &str, term: u64) -> Indexed {
        let (from_millis, host) = (1_800_000_000_000, "db 1".to_owned());
        let (job, term) = (Name::read(job).unwrap(), Term(term));
        Indexed { job, term, attempts: 2, from_millis, to_millis: None, status: None, host }
    }

    fn note(jobs: &[Indexed]) -> Note {
        Note::for_ever(text(jobs))
    }

    #[test]
    fn an_index_has_the_newest_jobs_that_fit_into_a_note() {
        let shard = "db".parse().unwrap();
        for (name, fit) in [("x", 100), (&*"x".repeat(90), 31)] {
            let jobs: Vec<_> = (0..200).map(|number| indexed(&format!("{name}.{number}"), number)).collect();
            let read = all_in(Some(&note(&jobs)), &shard).unwrap();
            assert!(note(&jobs).text.len() <= LONGEST && read.len() >= fit, "{}", read.len());
            assert_eq!(read[..], jobs[..read.len()]);
        }
        let done = Indexed { to_millis: Some(1_800_000_001_000), status: Some(3), ..indexed("x", 7) };
        assert_eq!(text(&[done]), "leaderrun jobs\nx 7 2 1800000000000 1800000001000 3 db 1");
        let later = "leaderrun jobs\nanother line\nx 7 2 1800000000000 - - db 1";
        assert_eq!(all_in(Some(&Note::for_ever(later)), &shard), Ok(vec![indexed("x", 7)]));
        assert!(all_in(Some(&Note::for_ever("{}")), &shard).is_err());
    }

    #[test]
    fn a_later_run_and_the_end_of_a_run_are_not_replaced_by_what_came_before() {
        let ended = Indexed { to_millis: Some(1), ..indexed("x", 7) };
        assert!(ended.is_after(&indexed("x", 7)) && indexed("x", 8).is_after(&ended));
        assert!(!indexed("x", 7).is_after(&ended) && !ended.is_after(&ended));
        let done = Indexed { to_millis: Some(1), status: Some(0), ..indexed("x", 6) };
        assert!(!ended.is_after(&done) && ended.is_after(&indexed("x", 6)));
    }
}
