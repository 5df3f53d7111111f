//! The gate of a job: it books a run before COMMAND starts, and settles the entry when the run has ended.

use super::period::Period;
use super::{Frequency, Job, Judged, Ledger, Run, index};
use crate::election::{Behind, Booked, Booking, Ended, Ran, Skipped};
use crate::lease::{Candidate, Shard, Term, show};
use crate::notes::update::{Edit, Start, update};
use crate::store::{Answer, Note, Notes};
use crate::text::on_one_line;
use crate::time::BootInstant;
use std::time::Duration;
use tokio::sync::Mutex;

/// The least time for which a ledger is kept when an end is written: its own may be over just then.
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct JobGate {
    job: Job,
    pub(super) entry: Mutex<Option<Entry>>,
}

/// An entry that we made, or may have made.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    ledger: Ledger,
    /// Until when the store keeps it.
    pub(super) until: BootInstant,
    before: Option<Standing>,
    booked: Booked,
    /// Its run has begun, and may have ended.
    pub(super) has_run: bool,
}

#[derive(Clone, Debug)]
struct Standing {
    text: String,
    until: BootInstant,
}

impl Standing {
    fn of(note: &Note) -> Self {
        Self { text: note.text.clone(), until: until(note.lasts) }
    }

    /// None if its time is over.
    fn again(&self) -> Option<Note> {
        let left = left_until(self.until);
        (left != Some(Duration::ZERO)).then(|| Note::lasting(self.text.clone(), left))
    }
}

pub(super) fn until(lasts: Option<Duration>) -> BootInstant {
    lasts.map_or(BootInstant::NEVER, |lasts| BootInstant::now().plus(lasts))
}

fn left_until(until: BootInstant) -> Option<Duration> {
    (until != BootInstant::NEVER).then(|| until.since(BootInstant::now()))
}

impl JobGate {
    pub fn new(job: Job) -> Self {
        Self { job, entry: Mutex::new(None) }
    }

    /// Books a run that is about to start, unless the job is done. The candidate holds the lease. It calls this again
    /// if it does not know whether the entry was made.
    pub async fn book(&self, store: &dyn Notes, candidate: &Candidate, term: Term, behind: &Behind) -> Answer<Booking> {
        let shard = &candidate.shard;
        let page = self.job.frequency.page();
        let mut entry = self.entry.lock().await;
        let session = Some(&candidate.session).filter(|_| !entry.as_ref().is_some_and(|entry| entry.has_run));
        update(store, shard, &page, "ledger", Start::Read, |standing| {
            let kept = Ledger::read(standing, &page, shard)?;
            let counts = |note: &Note| match &self.job.frequency {
                Frequency::Every(period) => period.believes(note.lasts),
                Frequency::Once(_) => true,
            };
            let ledger = kept.as_ref().filter(|_| standing.is_some_and(counts));
            let judged = self.job.judge(ledger, shard, session, behind);
            let is_ours = judged == Judged::Ours;
            let (attempts, turn, lasts) = match judged {
                Judged::Skip(skipped) => {
                    return Ok(Edit::Leave(Booking::Done(Skipped { said: on_one_line(skipped.said), ..skipped })));
                }
                Judged::Run(attempts, turn) => {
                    let lasts = match &self.job.frequency {
                        // A repeat belongs to the period that it repeats.
                        Frequency::Every(_) if attempts > 1 => standing.and_then(|note| note.lasts),
                        Frequency::Every(period) => {
                            // `kept`, because a ledger of a much longer period is there and does not count.
                            point_out_another(kept.as_ref(), *period, shard);
                            Some(period.lasts())
                        }
                        Frequency::Once(_) => None,
                    };
                    (attempts, turn, lasts)
                }
                Judged::Ours => {
                    let ours = ledger.expect("it was judged");
                    if let Some(entry) = entry.as_ref().filter(|_| ours.run.term == term) {
                        return Ok(Edit::Leave(Booking::Booked(entry.booked.clone())));
                    }
                    (ours.attempts, ours.period, standing.and_then(|note| note.lasts))
                }
            };
            let run = Run::of(candidate, term);
            let (before, booked) = match entry.take() {
                // Replaces our own entry of an earlier term.
                Some(earlier) if is_ours => (earlier.before, earlier.booked),
                _ => (standing.map(Standing::of), self.job.booked(attempts, turn, ledger)),
            };
            let ledger = Ledger { period: turn, attempts, run, succeeded: None };
            let draft = Note::lasting(ledger.text(), lasts);
            // Kept before the request is sent, because the answer may be lost.
            *entry = Some(Entry { ledger, until: until(lasts), before, booked: booked.clone(), has_run: false });
            Ok(Edit::Replace(Some(draft), Booking::Booked(booked)))
        })
        .await
    }

    pub async fn index(&self, store: &dyn Notes, shard: &Shard) -> Answer<()> {
        index::write(store, shard, &self.job.frequency).await
    }

    /// Records how the run ended, or (None) that it never began.
    pub async fn settle(&self, store: &dyn Notes, shard: &Shard, ran: Option<&Ran>) -> Answer<()> {
        let mut entry = self.entry.lock().await;
        let Some(Entry { ledger: ours, until, before, has_run, .. }) = &mut *entry else { return Ok(()) };
        *has_run |= ran.is_some();
        let page = self.job.frequency.page();
        let after = |mut standing: Ledger, lasts: Option<Duration>| {
            // A ledger of a later period must not be changed.
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
                        return Edit::Replace(before.as_ref().and_then(Standing::again), ());
                    };
                    (standing.run, standing.attempts) = (run, standing.attempts.saturating_sub(1));
                }
                Some(_) | None => return Edit::Leave(()),
            }
            let lasts = if first { left_until(*until) } else { lasts };
            Edit::Replace(Some(Note::lasting(standing.text(), lasts.map(|left| left.max(SHORTEST)))), ())
        };
        // The store may have forgotten the entry during the run. After a loss of the lease, it is also gone where an operator
        // has cleared the job.
        let again = || {
            let ran = ran.filter(|ran| !matches!(ran.how, Ended::Lost(_)))?;
            let text = Ledger { run: ours.run.settled(ran), ..ours.clone() }.text();
            Standing { text, until: *until }.again()
        };
        let is_settled = |run: &Run| run.is_of(&ours.run.session, ours.run.term) && run.to_millis.is_some();
        let start = Start::Expect(Some(ours.text()));
        update(store, shard, &page, "ledger", start, |standing| {
            let lasts = standing.and_then(|note| note.lasts);
            let ledger = Ledger::read(standing, &page, shard)?;
            let Some(ledger) = ledger.filter(|standing| !standing.is_before(ours)) else {
                return Ok(again().map_or(Edit::Leave(()), |note| Edit::Replace(Some(note), ())));
            };
            // Written by an earlier attempt whose answer was lost.
            if is_settled(&ledger.run) || ledger.succeeded.as_ref().is_some_and(is_settled) {
                return Ok(Edit::Leave(()));
            }
            Ok(after(ledger, lasts))
        })
        .await
    }
}

fn point_out_another(ledger: Option<&Ledger>, period: Period, shard: &Shard) {
    let last = ledger.and_then(|ledger| ledger.period).map(|turn| Duration::from_millis(turn.every_millis));
    if let Some(last) = last.filter(|&last| last != period.every()) {
        tracing::warn!("the last run in {shard} was of a job every {}: two jobs need two shards", show(last));
    }
}
