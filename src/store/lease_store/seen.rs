//! What this process remembers of a shard, and how much of a lease is left by that.
//!
//! The hazard: a server's clock may be set, and then every lease on it seems to have ended; or a document may be older
//! than one that was seen before. What this process remembers protects against both:
//!
//! - After a date that contradicts earlier answers, no date ends a lease for the duration of one. So what was once left
//!   of a lease on our own clock stays left, whatever the server says later.
//! - A lease that was seen unchanged (session, term and sequence) for all of its duration has ended, whatever dates
//!   say. Where a renewal leaves no trace ([`Life::Left`]), that says nothing.
//! - A document with a lower term than one that was seen, or of an earlier renewal in that term, comes from a store
//!   that has forgotten.

use super::document::{Document, LedMark, Orders};
use super::documents::{Content, Found, Leadership, Life, Ours};
use crate::lease::{Candidate, Session, Term, kept};
use crate::store::server_clock::{Clock, Wait, left_of_lease};
use crate::time::BootInstant;
use std::time::Duration;

/// A document as it was read or written, and its text as it was understood.
#[derive(Clone, Debug)]
pub struct Standing {
    pub found: Found,
    /// None if it is absent or foreign.
    pub document: Option<Document>,
    /// The led mark, where it was asked for because there is no document.
    pub led: Option<Found>,
}

impl Standing {
    pub fn session(&self) -> Option<&Session> {
        self.found.leadership().map(|leadership| &leadership.session)
    }

    /// Whether it names a leadership of this session, of this term or an earlier one. Term zero: any term.
    pub fn is_led_by(&self, candidate: &Candidate, term: Term) -> bool {
        let named = self.found.leadership();
        named.is_some_and(|of| of.session == candidate.session && (term.0 == 0 || of.term <= term))
    }

    pub fn term(&self) -> u64 {
        self.document.as_ref().map_or(0, |document| document.term)
    }

    pub fn last_term(&self) -> Option<Term> {
        match &self.document {
            Some(document) => document.last_term(),
            None => self.led_mark()?.shared.last_term(),
        }
    }

    /// How far the shard had come when this stood.
    pub fn progress(&self) -> Progress {
        let ours = self.found.ours().filter(|ours| ours.leadership.is_some());
        Progress { term: self.term(), sequence: ours.map_or(u64::MAX, |ours| ours.sequence) }
    }

    fn led_mark(&self) -> Option<LedMark> {
        self.led.as_ref().map(LedMark::read)
    }

    pub fn orders(&self) -> Option<Orders> {
        match &self.document {
            Some(document) => document.orders.clone(),
            None => self.led_mark()?.shared.orders,
        }
    }

    pub fn knows_led(&self) -> bool {
        self.document.as_ref().is_some_and(Document::knows_led)
    }

    pub fn longest_lease(&self) -> Duration {
        self.document.as_ref().map_or(Duration::ZERO, Document::longest_lease)
    }

    /// The wait of a document without a lease: its tree may live until the end that stands.
    fn ending(&self) -> Option<Wait> {
        let ours = self.found.ours().filter(|ours| ours.leadership.is_none())?;
        let Life::Ends(until_millis) = ours.life else { return None };
        let duration = self.document.as_ref()?.wait()?.duration;
        Some(Wait { until_millis, duration })
    }

    /// The later one of two waits: that of its text, and that until the end that stands.
    pub fn wait(&self) -> Option<Wait> {
        let told = self.document.as_ref().and_then(Document::wait);
        told.into_iter().chain(self.ending()).max_by_key(|wait| wait.until_millis)
    }
}

/// It never shrinks while the store forgets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Progress {
    pub term: u64,
    /// Of the last renewal; above all once nobody leads any more.
    pub sequence: u64,
}

#[derive(Debug, Default)]
pub struct Seen {
    /// The document as it stood when it was last read or written. None: the next write has to look first.
    pub known: Option<Standing>,
    /// A watch shows each state of it, so a look need not ask.
    pub is_pushed: bool,
    /// The led mark of a shared document as this process read or wrote it last.
    pub led_mark: Option<Found>,
    /// The lease that this process claims; zero before its first claim.
    pub claims: Duration,
    sighting: Option<Sighting>,
    wait: Option<(Wait, BootInstant)>,
    /// The most that any document showed.
    most: Option<Progress>,
    /// When a document first showed less.
    fell: Option<BootInstant>,
    pub own: Option<Own>,
}

#[derive(Clone, Debug)]
pub struct Own {
    pub leadership: Leadership,
    pub sequence: u64,
    /// The highest sequence that was asked for.
    pub requested: u64,
    /// When the last claim or renewal was sent that was granted.
    pub granted: BootInstant,
    /// Until then an earlier leader's tree may run.
    pub start_after: Option<BootInstant>,
    pub document: Document,
}

#[derive(Clone, Debug)]
struct Sighting {
    /// Differs for each holder, and after each of its renewals.
    sign: String,
    /// When an answer first showed this sign, and what our wall clock showed then.
    since: BootInstant,
    wall_millis: u64,
    /// Once true, it stays true for this sign.
    has_ended: bool,
}

fn sign_of(ours: &Ours) -> String {
    let named = ours.leadership.as_ref();
    let holder = named.map_or_else(String::new, |of| format!("{} {}", of.session.as_str(), of.term));
    format!("{holder} {}", ours.sequence)
}

impl Seen {
    /// How long nobody else may have the lease; zero if another candidate may now. None: as long as its holder lives.
    /// `read_sent` is when the read was sent that showed it, and `wall_millis` our wall clock, as a second witness.
    pub fn left(
        &mut self,
        standing: &Standing,
        clock: &Clock,
        read_sent: BootInstant,
        now: BootInstant,
        wall_millis: u64,
    ) -> Option<Duration> {
        let (sign, life, whole) = match &standing.found.content {
            Content::Ours(ours) if ours.leadership.is_some() || matches!(ours.life, Life::Left { .. }) => {
                let whole = standing.document.as_ref().and_then(|document| Some(document.lease.as_ref()?.duration()));
                (sign_of(ours), ours.life, whole)
            }
            Content::Foreign { sign, life, .. } => {
                let whole = if let Life::Unchanged { whole } = life { Some(*whole) } else { None };
                (format!("foreign {sign}"), *life, whole)
            }
            Content::Absent | Content::Ours(_) => {
                self.sighting = None;
                return Some(Duration::ZERO);
            }
            Content::Unreadable(_) => return None,
        };
        let ends = match life {
            Life::Over => return Some(Duration::ZERO),
            Life::ForEver => return None,
            Life::Left { at_most } => return Some(at_most.max(Duration::from_millis(1))),
            Life::Ends(millis) => Some(millis),
            Life::Unchanged { .. } => None,
        };
        let mut sighting = self.sighting.take().filter(|known| known.sign == sign).unwrap_or(Sighting {
            sign,
            since: now,
            wall_millis,
            has_ended: false,
        });
        let stood = read_sent.since(sighting.since);
        let left = match (ends, whole) {
            _ if sighting.has_ended => Duration::ZERO,
            (Some(ends), Some(whole)) => left_of_lease(clock, whole, ends, stood, now, wall_millis),
            (None, whole) => kept(whole.unwrap_or_default()).saturating_sub(stood),
            (Some(ends), None) => sighting.left_of_unknown(ends, clock, now, wall_millis),
        };
        sighting.has_ended = left.is_zero();
        self.sighting = Some(sighting);
        Some(left)
    }

    pub fn has_ended(&self, ours: &Ours) -> bool {
        self.sighting.as_ref().is_some_and(|sighting| sighting.has_ended && sighting.sign == sign_of(ours))
    }

    /// The wait that a document asks for, and when it is over. None if it is.
    pub fn wait(
        &mut self,
        standing: &Standing,
        clock: &Clock,
        wall_millis: u64,
        now: BootInstant,
    ) -> Option<(Wait, BootInstant)> {
        let wait = standing.wait()?;
        let first_seen = self.wait.filter(|(known, _)| *known == wait).map_or(now, |(_, first_seen)| first_seen);
        self.wait = Some((wait, first_seen));
        let by_age = first_seen.plus(wait.duration);
        let over = wait.over_by(clock, wall_millis, now)?.min(by_age);
        (over > now).then_some((wait, over))
    }

    /// Notes whether the document is older than what was seen before, if it was read as it stands and learnt.
    pub fn judge(&mut self, standing: &Standing, now: BootInstant) {
        if standing.document.is_none() || !self.is_older(standing) {
            self.fell = None;
        } else {
            self.fell.get_or_insert(now);
        }
    }

    pub fn is_older(&self, standing: &Standing) -> bool {
        Some(standing.progress()) < self.most
    }

    /// Until when nobody may lead, because the document judged last is older than one seen before: a lease of this
    /// duration may have been forgotten.
    pub fn until_risen(&self, lease: Duration, now: BootInstant) -> Option<BootInstant> {
        self.fell.map(|fell| fell.plus(lease)).filter(|until| *until > now)
    }

    /// The highest term that any document showed.
    pub fn highest(&self) -> u64 {
        self.most.map_or(0, |most| most.term)
    }

    pub fn learn(&mut self, progress: Progress) {
        if Some(progress) >= self.most {
            self.most = Some(progress);
            // Less after this means that the store has forgotten again.
            self.fell = None;
        }
    }
}

/// How long dates must agree before one may end another program's lease of unknown duration. If they do not, the lease
/// must also stand unchanged for this long.
const UNKNOWN_LEASE: Duration = Duration::from_mins(1);

impl Sighting {
    fn left_of_unknown(&self, ends: u64, clock: &Clock, now: BootInstant, wall_millis: u64) -> Duration {
        let until = |millis: u64| Duration::from_millis(ends.saturating_sub(millis));
        let stood = now.since(self.since);
        let patience = UNKNOWN_LEASE.saturating_sub(stood);
        match clock.bounds(now) {
            Some(bounds) if clock.agreed_for(now, UNKNOWN_LEASE) => until(bounds.lower),
            Some(bounds) => until(bounds.lower).max(patience),
            // Our wall clock alone, but not if it jumps, and not if it is ahead at first sight.
            None => until(wall_millis).max(until(self.wall_millis).saturating_sub(stood)).max(patience),
        }
    }
}
