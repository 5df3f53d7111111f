//! The lease protocol of every store that keeps documents ([`Documents`]).
//!
//! ```text
//! election ── Leases, Notes, Administration
//!               └─ LeaseStore: claims, renewals, releases, revocations, terms, waits, orders, notes, lists
//!                   └─ dyn Documents: get, put, touch, remove, list, watch, and the server's clock
//! ```
//!
//! The hazard: a server only compares and writes, and everything around it can fail. Requests arrive late, twice, or
//! not at all; answers are lost; clocks are set; a server restarts without its last writes; people delete records.
//! These rules hold all the same:
//!
//! - A write replaces only what its writer judged ([`Over`](documents::Over)), so a late one changes nothing.
//! - A renewal is a touch: it applies only to the leadership that it names, and never moves the sequence back. Neither
//!   a renewal nor an operator's write makes the server refuse the other.
//! - Ends are on the server's clock. What this process saw on its own clock may delay a takeover (`seen`). It speeds
//!   one up only if the lease stood unchanged for its whole duration.
//! - While the store may have forgotten a lease, no claim is granted, and a leader writes its document again (`marker`,
//!   `renewal`).
//! - The document contains the wait for a tree that may still run, so the wait outlives the candidate that found it.
//! - After a lost answer, the next step reads the document again.

mod beside;
mod claim;
mod document;
pub mod documents;
mod marker;
#[cfg(test)]
#[path = "../../tests/support/memory.rs"]
pub mod memory;
mod notes;
mod operators;
mod renewal;
mod seen;
pub mod touch;
mod trial;
mod watch;

use super::{Delivery, Holder, NoteRead, Page, Store, StoreError};
use crate::lease::Shard;
use crate::time::BootInstant;
use document::Document;
use documents::{Content, Documents, Found, Key, Marking, Properties};
use marker::{Marker, Reader};
use parking_lot::Mutex;
use seen::{Seen, Standing};
use std::collections::HashMap;
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::sync::Notify;

/// How often a write that lost a race reads again before it gives up.
const MOST_ATTEMPTS: usize = 8;

pub struct LeaseStore {
    documents: Box<dyn Documents>,
    properties: Properties,
    seen: Mutex<HashMap<Shard, Seen>>,
    marker: Mutex<Option<Marker>>,
    /// The notes that this process read or wrote last, so that it need not read them to write them.
    known_notes: Mutex<HashMap<(Shard, Page), Found>>,
    renewed: Notify,
    /// Notified when a look differs from what the watch showed: the watch may hang for ever.
    is_behind: Notify,
    /// Gives the warning about the leader's other lock only once.
    other_lock: Once,
}

/// A store that keeps its leases in these documents.
pub fn over(documents: impl Documents + 'static) -> Arc<dyn Store> {
    Arc::new(LeaseStore::new(documents))
}

impl LeaseStore {
    pub fn new(documents: impl Documents + 'static) -> Self {
        let (seen, marker, known_notes) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (renewed, is_behind) = (Notify::new(), Notify::new());
        let properties = documents.properties();
        let other_lock = Once::new();
        let documents = Box::new(documents);
        Self { documents, properties, seen, marker, known_notes, renewed, is_behind, other_lock }
    }

    /// Reads the document of a shard, and remembers it. Reads the marker too if `with_marker`, or if none is known of
    /// the incarnation that answers. Reads the led mark of a shared document if `with_marker` and this reader may write,
    /// or if the document is not ours and may not be behind.
    async fn look(
        &self,
        shard: &Shard,
        may_be_behind: bool,
        with_marker: bool,
        reader: Reader,
    ) -> Result<Standing, StoreError> {
        let sent = BootInstant::now();
        let keys = [Key::Shard(shard), Key::Marker, Key::Led(shard)];
        let wants_led_mark = self.properties.is_shared && reader != Reader::Look;
        let with_marker = with_marker || (self.marker.lock().is_none() && self.properties.marking != Marking::ByInit);
        let keys = &keys[..if with_marker { 2 + usize::from(wants_led_mark) } else { 1 }];
        let pushed =
            || self.with_seen(shard, |seen| Some(seen.known.as_ref().filter(|_| seen.is_pushed)?.found.clone()));
        let mut found = match pushed().filter(|_| may_be_behind && !with_marker) {
            Some(pushed) => vec![pushed].into_iter(),
            None => self.get(keys, may_be_behind).await?.into_iter(),
        };
        let missing = || StoreError::unknown(format!("no answer about {}", self.documents.name(Key::Shard(shard))));
        let mut standing = self.understand(shard, found.next().ok_or_else(missing)?)?;
        if pushed().is_some_and(|pushed| pushed.version.write != standing.found.version.write) {
            self.is_behind.notify_one();
        }
        if let Some(marker) = found.next() {
            self.accept_or_write_marker(marker, sent, reader).await?;
        } else if !self.is_of_the_marker(&standing.found) {
            self.read_marker(reader).await?;
        }
        self.remember(shard, &standing);
        if let Some(mark) = found.next() {
            self.with_seen(shard, |seen| seen.led_mark = Some(mark.clone()));
            standing.led = Some(mark);
        }
        if may_be_behind { Ok(standing) } else { self.with_led_mark(shard, standing).await }
    }

    /// Whether what was found comes from the incarnation that the marker names.
    fn is_of_the_marker(&self, found: &Found) -> bool {
        self.properties.marking == Marking::ByInit
            || self.marker.lock().as_ref().is_some_and(|marker| marker.version.incarnation == found.version.incarnation)
    }

    async fn get(&self, keys: &[Key<'_>], may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let found = self.documents.get(keys, may_be_behind).await?;
        keys.iter().zip(found).map(|(key, found)| self.readable(*key, found)).collect()
    }

    async fn get_one(&self, key: Key<'_>) -> Result<Found, StoreError> {
        self.readable(key, touch::get(&*self.documents, key).await?)
    }

    fn readable(&self, key: Key<'_>, found: Found) -> Result<Found, StoreError> {
        match &found.content {
            Content::Unreadable(why) => Err(self.strange(key, why)),
            Content::Absent | Content::Ours(_) | Content::Foreign { .. } => Ok(found),
        }
    }

    fn understand(&self, shard: &Shard, found: Found) -> Result<Standing, StoreError> {
        let found = self.readable(Key::Shard(shard), found)?;
        let document = found.ours().map(|ours| Document::read(shard, ours)).transpose();
        let document = document.map_err(|why| self.strange(Key::Shard(shard), &why))?;
        Ok(Standing { found, document, led: None })
    }

    /// Adds what the led mark says, where other programs write the document and there is none of ours.
    async fn with_led_mark(&self, shard: &Shard, standing: Standing) -> Result<Standing, StoreError> {
        if !self.needs_led_mark(&standing) {
            return Ok(standing);
        }
        let led = Some(self.get_one(Key::Led(shard)).await?);
        Ok(Standing { led, ..standing })
    }

    /// Whether the led mark may say more than was read.
    fn needs_led_mark(&self, standing: &Standing) -> bool {
        self.properties.is_shared && standing.document.is_none() && standing.led.is_none()
    }

    fn with_seen<T>(&self, shard: &Shard, act: impl FnOnce(&mut Seen) -> T) -> T {
        act(self.seen.lock().entry(shard.clone()).or_default())
    }

    fn remember(&self, shard: &Shard, standing: &Standing) {
        self.with_seen(shard, |seen| {
            seen.learn(standing.progress());
            let own = seen.own.as_mut().filter(|own| standing.found.leadership() == Some(&own.leadership));
            if let Some((own, document)) = own.zip(standing.document.as_ref()) {
                own.document.clone_from(document);
            }
            seen.known = Some(standing.clone());
        });
    }

    /// Makes the next write look first.
    fn doubt(&self, shard: &Shard) {
        self.with_seen(shard, |seen| seen.known = None);
    }

    fn known(&self, shard: &Shard) -> Option<Standing> {
        self.with_seen(shard, |seen| seen.known.clone())
    }

    fn wall_millis(&self) -> u64 {
        if self.properties.tells_time { u64::MAX } else { self.documents.wall_clock_millis() }
    }

    /// Who has the lease, by an answer to what was sent at `sent`.
    fn holder(&self, shard: &Shard, standing: &Standing, sent: BootInstant) -> Option<Holder> {
        let (clock, now, wall_millis) = (self.documents.clock(), BootInstant::now(), self.wall_millis());
        let left = self.with_seen(shard, |seen| seen.left(standing, &clock, sent, now, wall_millis));
        if left == Some(Duration::ZERO) {
            return None;
        }
        let holder = match (&standing.found.content, &standing.document) {
            (Content::Foreign { holder, .. }, _) => holder.clone(),
            (Content::Ours(ours), Some(document)) if ours.leadership.is_some() => document.holder(),
            _ => left_behind(standing, Duration::ZERO),
        };
        Some(Holder { expires_in: left.or(holder.expires_in), ..holder })
    }

    fn strange(&self, key: Key<'_>, why: &str) -> StoreError {
        documents::strange(&self.documents.name(key), why, &self.documents.remedy(key))
    }

    fn too_fast(&self, key: Key<'_>) -> StoreError {
        StoreError::unknown(format!("{} changes faster than it can be written", self.documents.name(key)))
    }
}

/// A leader that the document does not name any more, but whose tree may live for so long.
fn left_behind(standing: &Standing, left: Duration) -> Holder {
    let holder = forgotten(left, false);
    match &standing.document {
        // A claim since then was given up during the wait.
        Some(document) if document.revoked.is_some() => {
            let owner = "a leader whose lease was revoked".to_owned();
            Holder { owner, doubt: Some(super::Doubt::Revoked), ..holder }
        }
        _ => holder,
    }
}

/// A leader that the store may have forgotten.
fn forgotten(left: Duration, first: bool) -> Holder {
    let doubt = Some(if first { super::Doubt::FirstUse } else { super::Doubt::Forgotten });
    let owner = "a leader that the store may have forgotten".to_owned();
    Holder { owner, expires_in: Some(left), doubt, ..Holder::default() }
}

#[async_trait::async_trait]
impl Store for LeaseStore {
    fn delivery(&self) -> Delivery {
        self.properties.delivery
    }

    fn is_metered(&self) -> bool {
        self.properties.is_metered
    }

    fn shares_lock(&self) -> bool {
        self.documents.lock().is_some()
    }

    fn takeover_warning(&self) -> Option<String> {
        self.documents.clock().takeover_warning(BootInstant::now()).filter(|_| !self.properties.tells_time)
    }

    async fn read_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        self.read_many_notes(wanted).await
    }
}

#[cfg(test)]
impl Default for LeaseStore {
    fn default() -> Self {
        memory::reference()
    }
}
