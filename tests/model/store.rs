//! The store: what `src/store/lease_store` does with the documents of one shard, each write as one atomic step.
//!
//! | there | here |
//! | --- | --- |
//! | the document: who leads, the last term, the sequence, the end, the wait | [`Document`] |
//! | its version, which names the write and the server's incarnation | [`Contents::stands`] |
//! | the marker, the led mark | [`Contents`] |
//! | a look, and what a claim judges | [`Store::judge`], with what the process remembers ([`Seen`]) |
//! | a claim's put, and what it reads after it | [`Store::take`] |
//! | a touch | [`Store::renew`]; where the server only compares ([`Kind::Comparing`]), a put |
//! | what a refused renewal concludes; the leader's put of what was forgotten | [`Store::conclude`], [`Store::heal`] |
//!
//! A read is answered at once, like a look; a write is a message. All leases are of one length.

use crate::clock::{LEASE, TICK, Tick};
use crate::mutants::Mutant;
use leaderrun::internals::lease::{Term, kept, usable};
use leaderrun::internals::store::{Holder, Release};
use leaderrun::internals::time::BootInstant;
use std::time::Duration;

/// A candidate, and the host it is on, and its session: each host has one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u8);

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", char::from(b'A' + self.0))
    }
}

/// What the server does with a renewal and with the end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It prolongs the lease of a leadership, from when the request arrives.
    Touching,
    /// It only compares versions: a renewal is a put, whose end the client wrote when it was sent.
    Comparing,
    /// It ends leases itself and says when one has ended, as etcd does. A renewal keeps the lease alive and writes nothing.
    Leasing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Document {
    pub leadership: Option<(Id, Term)>,
    /// Of the last leader.
    term: Term,
    sequence: u64,
    /// Of the lease. Without a leadership: until then the tree of a leader that was revoked may live.
    pub ends: Tick,
    /// Until then the tree of an earlier leader may live.
    wait: Tick,
    knows_led: bool,
    write: u8,
}

impl Document {
    /// An earlier renewal than this one was not applied.
    pub fn skipped(&self, sequence: u64) -> bool {
        sequence > self.sequence + 1
    }

    fn waits_until(&self) -> Tick {
        if self.leadership.is_none() { self.wait.max(self.ends) } else { self.wait }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Marker {
    /// When it is a lease old.
    old_at: Tick,
    incarnation: u8,
    write: u8,
}

/// What a reader sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contents {
    pub document: Option<Document>,
    /// None: the server was emptied.
    marker: Option<Marker>,
    led: bool,
    incarnation: u8,
}

impl Contents {
    /// Nobody led, and the server has been there for long.
    const FIRST: Self = Self {
        document: None,
        marker: Some(Marker { old_at: 0, incarnation: 0, write: 0 }),
        led: false,
        incarnation: 0,
    };

    pub fn term(&self) -> Term {
        self.document.map_or(Term(0), |document| document.term)
    }

    /// The last term, and the last renewal in it.
    fn progress(&self) -> (Term, u64) {
        let renewal = |document: Document| document.leadership.map_or(u64::MAX, |_| document.sequence);
        (self.term(), self.document.map_or(0, renewal))
    }

    /// The first to see this writes the marker.
    pub fn lacks_marker(&self) -> bool {
        self.marker.is_none_or(|marker| marker.incarnation != self.incarnation)
    }

    /// Whether the server may have forgotten a lease. While dates are distrusted, they end no wait.
    fn has_forgotten(&self, date: Tick, distrusted: bool) -> bool {
        let is_young = |marker: Marker| marker.old_at > 0 && (distrusted || date < marker.old_at);
        self.lacks_marker() || self.marker.is_some_and(is_young)
    }

    /// Whether the version that was `read` stands, and the lease in it. Where the server cannot compare the marker with
    /// the absence of a document, the claim reads it again.
    fn stands(&self, read: &Self, kind: Kind, mutant: Option<Mutant>) -> bool {
        let without = |of| mutant == Some(of);
        let same_server = self.incarnation == read.incarnation || without(Mutant::VersionWithoutIncarnation);
        let same_marker =
            self.marker == read.marker || kind == Kind::Comparing || without(Mutant::AbsenceWithoutMarker);
        let same_document = self.document == read.document || without(Mutant::TakeoverWithoutComparing);
        same_server && same_document && (self.document.is_some() || same_marker)
    }
}

/// How long a lease is kept, on a clock as fast as one may be.
fn whole() -> Duration {
    kept(TICK * u32::from(LEASE))
}

/// What a process remembers of the shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    most: (Term, u64),
    /// When a document first showed less.
    fell: Option<BootInstant>,
    /// When the last claim or renewal was sent that was granted.
    pub granted: BootInstant,
    /// How far ahead the server's clock was, where it may be set.
    ahead: Option<Tick>,
    /// Dates contradicted each other, so until then none ends a lease.
    distrusts_until: BootInstant,
    /// Whose lease it saw, with which sequence, and since when.
    sighting: Option<(Id, Term, u64, BootInstant)>,
}

impl Seen {
    pub const NOTHING: Self = Self {
        most: (Term(0), 0),
        fell: None,
        granted: BootInstant::from_nanos(0),
        ahead: None,
        distrusts_until: BootInstant::from_nanos(0),
        sighting: None,
    };

    pub fn learns(&mut self, progress: (Term, u64)) {
        self.most = self.most.max(progress);
        self.fell = None;
    }

    /// Whether it can tell that a copy is older than these contents, and than what a leader of this term wrote.
    pub fn knows(&self, contents: &Contents, last: Term) -> bool {
        self.most >= contents.progress().max((last, 0))
    }

    pub fn knows_date(&self) -> bool {
        self.ahead.is_some()
    }

    /// The server's answer shows its clock.
    pub fn samples(&mut self, store: &Store, now: BootInstant, mutant: Option<Mutant>) {
        if self.ahead.is_some_and(|ahead| Some(ahead) != store.ahead) && mutant != Some(Mutant::DateAlone) {
            self.distrusts_until = now.plus(whole());
        }
        self.ahead = store.ahead;
    }

    /// Whether this lease has stood unchanged for as long as it lasts.
    fn has_stood(&mut self, leadership: (Id, Term), sequence: u64, now: BootInstant) -> bool {
        let (id, term) = leadership;
        let since = match self.sighting {
            Some((seen_id, seen_term, seen, since)) if (seen_id, seen_term, seen) == (id, term, sequence) => since,
            _ => now,
        };
        self.sighting = Some((id, term, sequence, since));
        now >= since.plus(whole())
    }
}

/// When a host does something: in true time and on its clock.
#[derive(Clone, Copy)]
pub struct Moment {
    pub tick: Tick,
    pub now: BootInstant,
}

/// What a claim came to.
pub enum Taken {
    Granted {
        term: Term,
        /// Some if the tree of an earlier leader may live for so long.
        wait: Option<Tick>,
        /// The lease was this session's before.
        again: bool,
    },
    /// Something else stands there than was judged.
    Changed,
}

/// What a write for a leadership came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Touched {
    Done,
    Overtaken,
    Refused,
}

/// What a leader concludes from what stands after its renewal was refused.
pub enum Conclusion {
    Again,
    Overtaken,
    Lost,
    Heal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    pub kind: Kind,
    pub contents: Contents,
    /// All but the last write, where a copy is kept.
    copy: Option<Contents>,
    writes: u8,
    /// How far its clock was set forward. None: nobody sets it.
    ahead: Option<Tick>,
    /// Something else than its end or its holder may have ended a lease.
    pub is_disturbed: bool,
}

impl Store {
    pub fn new(kind: Kind, keeps_copy: bool, is_set: bool) -> Self {
        let copy = keeps_copy.then_some(Contents::FIRST);
        Self { kind, contents: Contents::FIRST, copy, writes: 0, ahead: is_set.then_some(0), is_disturbed: false }
    }

    fn date(&self, tick: Tick) -> Tick {
        tick + self.ahead.unwrap_or_default()
    }

    /// Who holds the lease on the server's clock.
    pub fn lease(&self, tick: Tick) -> Option<Id> {
        let document = self.contents.document.filter(|document| self.date(tick) < document.ends)?;
        document.leadership.map(|(id, _)| id)
    }

    pub fn holder(&self, tick: Tick) -> Holder {
        let document = self.contents.document;
        let leadership = document.and_then(|document| document.leadership);
        let left = document.map_or(0, |document| document.ends.saturating_sub(self.date(tick)));
        Holder {
            owner: leadership.map(|(id, _)| format!("{id:?}")).unwrap_or_default(),
            term: leadership.map(|(_, term)| term),
            expires_in: Some(TICK * u32::from(left.max(1))),
            ..Holder::default()
        }
    }

    /// What a claim, or a look, judges to be free to take. None: somebody holds it, or the store may have forgotten who.
    pub fn judge(&self, by: Id, seen: &mut Seen, at: Moment, mutant: Option<Mutant>) -> Option<Contents> {
        let date = self.date(at.tick);
        let read = self.contents;
        let same_term = read.term() == seen.most.0 && mutant == Some(Mutant::OlderRenewalIgnored);
        if read.document.is_none() || read.progress() >= seen.most || same_term {
            seen.learns(read.progress());
        } else {
            seen.fell.get_or_insert(at.now);
        }
        seen.samples(self, at.now, mutant);
        let distrusted = at.now < seen.distrusts_until;
        let fell =
            seen.fell.is_some_and(|fell| at.now < fell.plus(whole())) && mutant != Some(Mutant::FallenTermIgnored);
        let is_young = read.has_forgotten(date, distrusted) && mutant != Some(Mutant::YoungMarkerIgnored);
        let is_held = read.document.is_some_and(|document| match document.leadership {
            // What was revoked may have been kept alive since.
            None => self.kind == Kind::Leasing && date < document.ends,
            Some((id, _)) if id == by => false,
            Some(_) if self.ahead.is_none() || self.kind == Kind::Leasing => date < document.ends,
            Some(leadership) => {
                let has_stood = seen.has_stood(leadership, document.sequence, at.now);
                if distrusted { !has_stood } else { date < document.ends }
            }
        });
        (!fell && !is_young && !is_held).then_some(read)
    }

    fn writes(&mut self) -> u8 {
        self.copy = self.copy.map(|_| self.contents);
        self.writes += 1;
        self.writes
    }

    /// A claim's put over what was judged, and what it reads after that. `sent` is when the claim began.
    pub fn take(
        &mut self,
        by: Id,
        read: &Contents,
        seen: &Seen,
        sent: Tick,
        at: Moment,
        mutant: Option<Mutant>,
    ) -> Taken {
        if !self.contents.stands(read, self.kind, mutant) {
            return Taken::Changed;
        }
        let before = self.contents;
        let again = before.document.is_some_and(|document| document.leadership.is_some_and(|(id, _)| id == by));
        let date = self.date(at.tick);
        let knows_led = before.document.is_some_and(|document| document.knows_led);
        let was_led = match mutant {
            Some(Mutant::NoLedMark) => false,
            Some(Mutant::LedMarkReadBefore) => read.led,
            _ => before.led,
        };
        // The marker was read again as well, where the put could not compare it.
        let forgot =
            before.document.is_none() && before.marker != read.marker && mutant != Some(Mutant::AbsenceWithoutMarker);
        let fell = before.term() < seen.most.0 && mutant != Some(Mutant::FallenTermIgnored);
        let is_doubtful = !knows_led && (was_led || forgot || fell);
        let told = before.document.map_or(0, |document| document.waits_until());
        let wait = match told {
            told if told > 0 && at.now < seen.distrusts_until => date + LEASE,
            told if is_doubtful => told.max(date + LEASE),
            told => told,
        };
        // Above all that may be forgotten: terms come from the time, and rise more slowly.
        let since = 100 * u64::from(if is_doubtful { at.tick + LEASE } else { at.tick });
        let term = match mutant {
            Some(Mutant::TermKeptOnSecondClaim) if again => before.term(),
            Some(Mutant::TermsForgotten) => Term(before.term().0 + 1),
            _ => Term(before.term().max(seen.most.0).0.max(since) + 1),
        };
        let kept_wait = if mutant == Some(Mutant::WaitForgotten) { 0 } else { wait };
        let write = self.writes();
        self.contents.led = true;
        self.contents.document = Some(Document {
            leadership: Some((by, term)),
            term,
            sequence: 0,
            ends: self.end(sent, at.tick),
            wait: if kept_wait > date { kept_wait } else { 0 },
            knows_led: true,
            write,
        });
        Taken::Granted { term, wait: (wait > date).then(|| wait - date), again }
    }

    /// `known`: the write that the leader knew when it sent this. None: it waits for the answer, and would look and send it
    /// again.
    pub fn renew(
        &mut self,
        (by, term): (Id, Term),
        sequence: u64,
        known: Option<u8>,
        sent: Tick,
        tick: Tick,
        mutant: Option<Mutant>,
    ) -> Touched {
        let ends = self.end(sent, tick);
        let Some(document) = self.contents.document else { return Touched::Refused };
        if self.kind == Kind::Leasing {
            let is_alive = document.term == term && self.date(tick) < document.ends;
            if is_alive {
                self.contents.document = Some(Document { ends, ..document });
            }
            let leads = is_alive && document.leadership == Some((by, term));
            return if leads { Touched::Done } else { Touched::Refused };
        }
        let any = mutant == Some(Mutant::RenewalOfAnySession);
        let (leads, later) = match document.leadership {
            Some((id, now)) if id == by => (now == term, now > term),
            _ => (false, false),
        };
        let disordered = mutant == Some(Mutant::RenewalsOutOfOrder);
        let replaced = self.kind == Kind::Comparing && known.is_some_and(|known| known != document.write);
        if later || (leads && sequence <= document.sequence && !disordered) {
            return Touched::Overtaken;
        }
        if !any && (!leads || (replaced && !disordered)) {
            return Touched::Refused;
        }
        let write = match self.kind {
            Kind::Touching | Kind::Leasing => {
                self.copy = self.copy.map(|_| self.contents);
                document.write
            }
            Kind::Comparing => self.writes(),
        };
        self.contents.document = Some(Document { leadership: Some((by, term)), sequence, ends, write, ..document });
        Touched::Done
    }

    pub fn conclude(&self, by: Id, term: Term, seen: &Seen, at: Moment) -> Conclusion {
        let read = &self.contents;
        let leadership = read.document.and_then(|document| document.leadership);
        match leadership {
            // What the server itself has ended cannot be renewed.
            Some((id, now)) if id == by && now == term => {
                let is_over = self.kind == Kind::Leasing && self.lease(at.tick).is_none();
                return if is_over { Conclusion::Lost } else { Conclusion::Again };
            }
            Some((id, now)) if id == by && now > term => return Conclusion::Overtaken,
            Some((id, _)) if id != by && self.lease(at.tick).is_some() => return Conclusion::Lost,
            _ => {}
        }
        let is_valid = at.now < seen.granted.plus(usable(whole()));
        let is_older = read.document.is_some();
        if read.term() >= term || !is_valid || !(is_older || read.has_forgotten(self.date(at.tick), false)) {
            return Conclusion::Lost;
        }
        Conclusion::Heal
    }

    /// The leader's put of what the store forgot, over what it saw.
    pub fn heal(&mut self, (by, term): (Id, Term), sequence: u64, read: &Contents, sent: Tick, tick: Tick) -> Touched {
        if self.contents.document != read.document || self.contents.incarnation != read.incarnation {
            return Touched::Refused;
        }
        let wait = self.contents.document.map_or(0, |document| document.waits_until());
        let ends = self.end(sent, tick);
        let write = self.writes();
        self.contents.led = true;
        let leadership = Some((by, term));
        self.contents.document = Some(Document { leadership, term, sequence, ends, wait, knows_led: true, write });
        Touched::Done
    }

    pub fn known_write(&self) -> u8 {
        self.contents.document.map_or(0, |document| document.write)
    }

    /// Term 0 stands for whichever it is. `known` as in [`Self::renew`].
    pub fn release(&mut self, by: Id, term: Term, known: Option<u8>, tick: Tick, mutant: Option<Mutant>) -> Release {
        let any = matches!(mutant, Some(Mutant::ReleaseOfAnyTerm | Mutant::ReleaseOfAnySession));
        let Some(document) = self.contents.document else { return Release::NotHeld };
        let is_ours = |(id, now): (Id, Term)| {
            let is_named = id == by || mutant == Some(Mutant::ReleaseOfAnySession);
            is_named && (now <= term || term == Term(0) || any)
        };
        if !document.leadership.is_some_and(is_ours) || (known.is_some_and(|known| known != document.write) && !any) {
            return Release::NotHeld;
        }
        self.ends_lease(self.date(tick));
        Release::Released
    }

    /// Takes the leadership out of the document, whose tree may live until `ends`.
    fn ends_lease(&mut self, ends: Tick) {
        let write = self.writes();
        self.contents.document =
            self.contents.document.map(|document| Document { leadership: None, sequence: 0, ends, write, ..document });
    }

    /// An operator ends a leadership, and those that follow wait until the end that stands.
    pub fn revoke(&mut self) {
        self.is_disturbed = true;
        self.ends_lease(self.contents.document.map_or(0, |document| document.ends));
    }

    /// Who first sees that the server has forgotten something says so.
    pub fn mark(&mut self, tick: Tick) {
        if self.contents.lacks_marker() {
            let write = self.writes();
            let old_at = self.date(tick) + LEASE;
            self.contents.marker = Some(Marker { old_at, incarnation: self.contents.incarnation, write });
        }
    }

    /// Everything is gone.
    pub fn wipe(&mut self) {
        self.is_disturbed = true;
        self.contents = Contents { marker: None, incarnation: self.contents.incarnation, ..Contents::FIRST };
        self.copy = self.copy.map(|_| self.contents);
    }

    /// Another server answers, which lacks the last write; or, in the same `incarnation`, that write was undone by hand.
    pub fn falls_back(&mut self, same_incarnation: bool) {
        self.is_disturbed = true;
        let incarnation = self.contents.incarnation + u8::from(!same_incarnation);
        if let Some(copy) = self.copy {
            self.contents = Contents { incarnation, ..copy };
        }
    }

    /// Somebody deletes the shard's document by hand.
    pub fn delete(&mut self) {
        self.is_disturbed = true;
        self.contents.document = None;
    }

    /// It restarts, and each lease that lives gets its whole time again.
    pub fn restart(&mut self, tick: Tick) {
        let date = self.date(tick);
        if let Some(document) = self.contents.document.as_mut().filter(|document| date < document.ends) {
            document.ends = date + LEASE;
        }
    }

    /// Somebody sets its clock forward.
    pub fn step(&mut self) {
        self.is_disturbed = true;
        self.ahead = self.ahead.map(|ahead| ahead + LEASE);
    }

    fn end(&self, sent: Tick, tick: Tick) -> Tick {
        match self.kind {
            Kind::Touching | Kind::Leasing => self.date(tick) + LEASE,
            Kind::Comparing => self.date(sent) + LEASE,
        }
    }
}
