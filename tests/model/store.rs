//! The abstract store: one record, changed by atomic steps, judged by the store's own clock.
//!
//! Two kinds, after the real ones. `Atomic` (memory, Redis, PostgreSQL, etcd): the server judges and writes in one step
//! and counts the lease from the arrival of the request. `Conditional` (DynamoDB): the candidate reads and judges, the
//! write applies only if the record is what was judged, and the lease counts from the sending, so late writes of
//! one session can undo each other unless they are told apart.

use crate::clock::{LEASE, TICK, Tick};
use crate::mutants::Mutant;
use leaderrun::internals::lease::Term;
use leaderrun::internals::store::{Holder, Observation, Release, Renewal};

/// A candidate, and the host it is on, and its session: each host has one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u8);

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", char::from(b'A' + self.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Atomic,
    Conditional,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub session: Id,
    pub term: Term,
    /// The highest beat that was applied in this term.
    sequence: u64,
    pub expires: Tick,
}

impl Record {
    /// An earlier renewal than `beat` was not applied.
    pub fn skipped(&self, sequence: u64) -> bool {
        sequence > self.sequence + 1
    }

    pub fn holder(&self, now: Tick) -> Holder {
        Holder {
            owner: format!("{:?}", self.session),
            term: Some(self.term),
            expires_in: Some(TICK * u32::from(self.expires.saturating_sub(now))),
            ..Holder::default()
        }
    }
}

/// What was in the store when it was judged to be free to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen(pub Option<Record>);

/// What a claim came to.
pub enum Taken {
    Granted {
        term: Term,
        /// Some when the store cannot show that the last tree was stopped: it is dead after so long.
        wait: Option<Tick>,
        /// The record was this session's before.
        again: bool,
    },
    /// The record is not what it was judged to be.
    Changed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    pub kind: Kind,
    pub record: Option<Record>,
    last_term: u64,
    /// When it lost all that it knew.
    pub wiped_at: Option<Tick>,
}

impl Store {
    pub fn new(kind: Kind) -> Self {
        Self { kind, record: None, last_term: 0, wiped_at: None }
    }

    /// The record, if it still counts.
    pub fn lease(&self, now: Tick) -> Option<&Record> {
        self.record.as_ref().filter(|record| now < record.expires)
    }

    pub fn observe(&self, now: Tick) -> Observation {
        self.lease(now).map_or(Observation::Free, |record| Observation::Held(record.holder(now)))
    }

    /// The first half of a claim: what stands in its way, or else what was judged to be free to take.
    pub fn judge(&self, by: Id, now: Tick) -> Result<Seen, Record> {
        match self.lease(now) {
            Some(record) if record.session != by => Err(*record),
            Some(_) | None => Ok(Seen(self.record)),
        }
    }

    /// The second half. `sent` is when the candidate began.
    pub fn take(&mut self, by: Id, judged: Seen, sent: Tick, now: Tick, mutant: Option<Mutant>) -> Taken {
        if self.record != judged.0 && mutant != Some(Mutant::TakeoverWithoutComparing) {
            return Taken::Changed;
        }
        let again = self.record.is_some_and(|record| record.session == by);
        let young = self.wiped_at.map(|wiped_at| (wiped_at + LEASE).saturating_sub(now)).filter(|&wait| wait > 0);
        let wait = match mutant {
            Some(Mutant::WipeForgotten) => None,
            Some(Mutant::WipeForgottenOnSecondClaim) => young.filter(|_| self.record.is_none()),
            _ => young,
        };
        if !(again && mutant == Some(Mutant::TermKeptOnSecondClaim)) {
            self.last_term += 1;
        }
        let term = Term(self.last_term);
        self.record = Some(Record { session: by, term, sequence: 0, expires: self.end(sent, now) });
        Taken::Granted { term, wait, again }
    }

    pub fn renew(
        &mut self,
        by: Id,
        term: Term,
        sequence: u64,
        sent: Tick,
        now: Tick,
        mutant: Option<Mutant>,
    ) -> Renewal {
        let expires = self.end(sent, now);
        match &mut self.record {
            Some(record) if record.session == by => {
                let overtaken = match self.kind {
                    Kind::Atomic => sequence <= record.sequence,
                    Kind::Conditional => (term, sequence) <= (record.term, record.sequence),
                };
                if overtaken && mutant != Some(Mutant::RenewalsOutOfOrder) {
                    return Renewal::Overtaken;
                }
                (record.term, record.sequence, record.expires) = (record.term.max(term), sequence, expires);
                Renewal::Renewed
            }
            Some(record) if mutant == Some(Mutant::RenewalOfAnySession) => {
                *record = Record { session: by, term: record.term, sequence, expires };
                Renewal::Renewed
            }
            Some(_) | None => Renewal::Lost(self.lease(now).map(|record| record.holder(now))),
        }
    }

    /// Term 0 stands for whichever it is.
    pub fn release(&mut self, by: Id, term: Term, mutant: Option<Mutant>) -> Release {
        let any_session = mutant == Some(Mutant::ReleaseOfAnySession);
        let any_term = mutant == Some(Mutant::ReleaseOfAnyTerm) || term == Term(0);
        match &self.record {
            Some(record) if any_session || (record.session == by && (record.term <= term || any_term)) => {
                self.record = None;
                Release::Released
            }
            Some(_) | None => Release::NotHeld,
        }
    }

    /// All records are gone. Terms go on above what they can have been, as from the store's time.
    pub fn wipe(&mut self, now: Tick, mutant: Option<Mutant>) {
        self.record = None;
        self.wiped_at = Some(now);
        self.last_term = if mutant == Some(Mutant::TermsForgotten) { 0 } else { 100 * (u64::from(now) + 1) };
    }

    fn end(&self, sent: Tick, now: Tick) -> Tick {
        match self.kind {
            Kind::Atomic => now + LEASE,
            Kind::Conditional => sent + LEASE,
        }
    }
}
