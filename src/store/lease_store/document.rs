//! The text of a shard's document, of the led mark and of the marker.
//!
//! The hazard: releases share a store. A document of a later release may have members that this one does not know: it
//! keeps them in what it writes back. A release that gives a known member another meaning raises `format`, and earlier
//! releases refuse the document.

use super::documents::{Content, Found, Leadership, Ours, of_format};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::store::expiry::ServerTime;
use crate::store::server_clock::Wait;
use crate::store::{Holder, Note, Takeover};
use crate::time::{BootInstant, millis};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

const FORMAT: u64 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    format: u64,
    shard: String,
    /// The term of the last leadership; zero if the shard was never led.
    pub term: u64,
    /// Some while somebody leads.
    pub lease: Option<Lease>,
    /// Some if a tree that the document does not name may run.
    wait: Option<Waiting>,
    /// The longest lease that the led mark is known to record; zero if none is known.
    pub led_ms: u64,
    /// The last term that an operator ended by force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
    /// An operator had the shard forgotten. The document stays, so that terms rise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgotten: bool,
    pub orders: Option<Orders>,
    /// Members of later releases.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The leader, as it describes itself. What decides stands beside the text ([`Ours`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub owner: String,
    pub session: Session,
    pub host: String,
    pub pid: u32,
    /// The lock of other programs that it also holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    #[serde(rename = "lease_ms")]
    millis: u64,
    since_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    until_ms: u64,
    wait_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    text: String,
    /// Server time, in milliseconds since 1970; an upper bound of when they end.
    ends_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedMark {
    format: u64,
    /// The longest lease; zero if nobody has led.
    lease_ms: u64,
    /// What other programs may delete with the shard's document: see [`Properties`](super::Properties).
    #[serde(default, skip_serializing_if = "Shared::is_empty")]
    pub shared: Shared,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The copy of a part of the shard's document that counts while the document is absent or another program's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// The last term; zero if the shard was never led.
    pub term: u64,
    /// The tree of that term is dead.
    pub released: bool,
    pub forgotten: bool,
    pub orders: Option<Orders>,
}

impl Shared {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn led(&mut self, term: u64) {
        if self.term <= term {
            (self.term, self.released, self.forgotten) = (term, false, false);
        }
    }

    pub fn has_ended(&mut self, term: u64, is_forgotten: bool) {
        if self.term > term {
            return;
        }
        (self.term, self.released, self.forgotten) = (term, true, is_forgotten);
        if is_forgotten {
            self.orders = None;
        }
    }

    pub fn last_term(&self) -> Option<Term> {
        (self.term > 0 && !self.forgotten).then_some(Term(self.term))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerText {
    format: u64,
    what: String,
    /// Server time, in milliseconds since 1970: since when nothing was forgotten.
    pub created_ms: u64,
    /// The incarnation to which this applies.
    pub incarnation: String,
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    of_format(text, FORMAT)
}

fn written(text: &impl Serialize) -> String {
    serde_json::to_string(text).expect("it is plain data")
}

impl Document {
    pub fn new(shard: &Shard) -> Self {
        Self {
            format: FORMAT,
            shard: shard.to_string(),
            term: 0,
            lease: None,
            wait: None,
            led_ms: 0,
            revoked: None,
            forgotten: false,
            orders: None,
            rest: Map::new(),
        }
    }

    /// The error: why it is not the document of this shard.
    pub fn read(shard: &Shard, ours: &Ours) -> Result<Self, String> {
        let document: Self = read(&ours.text)?;
        if document.shard != shard.as_str() {
            return Err("it is the document of another shard".to_owned());
        }
        // No higher term could follow.
        if document.term == u64::MAX { Err("its term is the last one".to_owned()) } else { Ok(document) }
    }

    pub fn text(&self) -> String {
        written(self)
    }

    pub fn leadership(&self) -> Option<Leadership> {
        Some(Leadership { session: self.lease.as_ref()?.session.clone(), term: Term(self.term) })
    }

    /// Whether it knows of a leadership, and that the led mark records it.
    pub fn knows_led(&self) -> bool {
        self.term > 0 && self.led_ms > 0
    }

    /// The last term, for people. None while the first claim is under way: that may find a led mark, and then takes a
    /// higher term.
    pub fn last_term(&self) -> Option<Term> {
        (self.knows_led() && !self.forgotten).then_some(Term(self.term))
    }

    pub fn is_listed(&self) -> bool {
        self.term > 0 && !self.forgotten
    }

    /// How the last leadership ended, if another session may lead now.
    pub fn takeover(&self) -> Takeover {
        if !self.is_listed() {
            return Takeover::First;
        }
        match &self.lease {
            Some(_) => Takeover::Expired,
            None if self.revoked == Some(self.term) => Takeover::Revoked,
            None => Takeover::Released,
        }
    }

    pub fn wait(&self) -> Option<Wait> {
        let wait = self.wait?;
        Some(Wait { until_millis: wait.until_ms, duration: Duration::from_millis(wait.wait_ms) })
    }

    pub fn set_wait(&mut self, wait: Option<Wait>) {
        self.wait = wait.map(|wait| Waiting { until_ms: wait.until_millis, wait_ms: millis(wait.duration) });
    }

    /// The longest lease of which it knows.
    pub fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.led_ms).max(self.lease.as_ref().map_or(Duration::ZERO, Lease::duration))
    }

    pub fn holder(&self) -> Holder {
        let term = (self.knows_led() && self.lease.is_some()).then_some(Term(self.term));
        self.lease.as_ref().map_or_else(Holder::default, |lease| Holder {
            owner: lease.owner.clone(),
            session: Some(lease.session.clone()),
            host: Some(lease.host.clone()),
            pid: Some(lease.pid),
            term,
            since_millis: Some(lease.since_ms),
            ..Holder::default()
        })
    }
}

impl Lease {
    pub fn new(candidate: &Candidate, lock: Option<String>, since_millis: u64) -> Self {
        Self {
            owner: candidate.owner.clone(),
            session: candidate.session.clone(),
            host: candidate.host.clone(),
            pid: candidate.pid,
            lock,
            millis: millis(candidate.lease),
            since_ms: since_millis,
        }
    }

    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

impl Orders {
    /// Orders that last from now, when they are sent.
    pub fn new(draft: &Note, time: &(impl ServerTime + ?Sized)) -> Self {
        Self { text: draft.text.clone(), ends_ms: draft.lasts.map(|lasts| time.expiry(BootInstant::now(), lasts)) }
    }

    /// The note, or None if it has ended. `now_millis` is the earliest time that the server's clock may show.
    pub fn note(&self, now_millis: u64) -> Option<Note> {
        let left = self.ends_ms.map(|ends| Duration::from_millis(ends.saturating_sub(now_millis)));
        (left != Some(Duration::ZERO) && !self.text.is_empty()).then(|| Note::lasting(self.text.clone(), left))
    }
}

impl LedMark {
    /// A mark that cannot be read says at least that the shard was led.
    pub fn read(mark: &Found) -> Self {
        let known = match &mark.content {
            Content::Absent => Some(Self::new()),
            Content::Ours(ours) => read(&ours.text).ok(),
            Content::Foreign { .. } | Content::Unreadable(_) => None,
        };
        known.unwrap_or_else(|| Self { lease_ms: 1, ..Self::new() })
    }

    fn new() -> Self {
        Self { format: FORMAT, lease_ms: 0, shared: Shared::default(), rest: Map::new() }
    }

    /// Whether it says that the shard was led. (It may have orders alone.)
    pub fn says_led(&self) -> bool {
        self.lease_ms > 0
    }

    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub fn has_lease(&mut self, lease: Duration) {
        self.lease_ms = self.lease_ms.max(millis(lease));
    }

    pub fn text(&self) -> String {
        written(self)
    }
}

impl MarkerText {
    pub fn new(created_ms: u64, incarnation: &str) -> Self {
        let what = "leaderrun keeps leases beside this: see leaderrun-stores(7)".to_owned();
        Self { format: FORMAT, what, created_ms, incarnation: incarnation.to_owned() }
    }

    /// The error: why it is not a marker.
    pub fn read(ours: &Ours) -> Result<Self, String> {
        read(&ours.text)
    }

    pub fn text(&self) -> String {
        written(self)
    }
}
