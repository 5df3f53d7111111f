//! The marker: since when, and in which incarnation, the store has forgotten nothing. And the led mark of a shard.
//!
//! The hazard: a store that restarted empty, failed over to a replica that was behind, or was wiped looks like one
//! where nobody leads. So while the marker is younger than a lease **nobody is granted**, and a leader whose last grant
//! is younger than that writes its document again. The first to see that the marker is absent, or names another
//! incarnation than the server does, writes it (if the store's [`Marking`] lets it): if only claims did, a store and a
//! leader that die together would cost two leases.
//!
//! A document can be deleted alone, and then its absence looks like a shard that is new. So another document, the led
//! mark, says that the shard was led, and how long its longest lease was.

use super::document::{LedMark, MarkerText};
use super::documents::{Content, Draft, Ends, Found, Key, Life, Marking, Over, Version};
use super::{LeaseStore, MOST_ATTEMPTS};
use crate::lease::Shard;
use crate::store::server_clock::{WIDE, Wait};
use crate::store::{ErrorKind, StoreError};
use crate::time::{BootInstant, millis};
use std::time::Duration;

/// How long a marker is young where the server has no clock: longer than any lease is kept.
const YOUTH: Duration = Duration::from_hours(27);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    pub created_ms: u64,
    /// Which write made it, and the incarnation that it names.
    pub version: Version,
    first_seen: BootInstant,
    /// Where the server has no clock: an instant, and the least age then. None: it is older than any lease.
    age: Option<(BootInstant, Duration)>,
    /// When the last read was sent that showed it.
    pub read: BootInstant,
}

/// Who reads the marker, and may have to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    Look,
    /// A claim of a lease of this duration. Under [`Marking::ByWriters`] it does not overwrite another server's marker
    /// that is younger than that, and is refused: two candidates at two servers would overwrite it for ever.
    Claim(Duration),
    Writer,
}

impl LeaseStore {
    /// Reads the marker as it stands. None if there is none, and this reader may not write it.
    pub(super) async fn read_marker(&self, reader: Reader) -> Result<Option<Marker>, StoreError> {
        let sent = BootInstant::now();
        let found = self.get_one(Key::Marker).await?;
        self.accept_or_write_marker(found, sent, reader).await
    }

    /// Reads the marker for an operator. True: it did not name this incarnation before. None: there is none.
    pub(super) async fn refresh_marker(&self, reader: Reader) -> Result<Option<bool>, StoreError> {
        let before = self.get_one(Key::Marker).await?.version;
        Ok(self.read_marker(reader).await?.map(|marker| marker.version != before))
    }

    /// Understands a marker that a read sent at `sent` showed. Writes it if it is absent or wrong and this reader may.
    pub(super) async fn accept_or_write_marker(
        &self,
        mut found: Found,
        mut sent: BootInstant,
        reader: Reader,
    ) -> Result<Option<Marker>, StoreError> {
        let may_write = match self.properties.marking {
            Marking::ByAnyone => true,
            Marking::ByWriters => reader != Reader::Look,
            Marking::ByInit => false,
        };
        for _ in 0..MOST_ATTEMPTS {
            let text = match &found.content {
                Content::Absent => None,
                Content::Ours(ours) if ours.text.is_empty() => None,
                Content::Ours(ours) => Some(MarkerText::read(ours).map_err(|why| self.strange(Key::Marker, &why))?),
                Content::Foreign { .. } | Content::Unreadable(_) => {
                    return Err(self.strange(Key::Marker, "it is not a marker"));
                }
            };
            let latest = self.documents.server_millis(BootInstant::now());
            // Where dates have only seconds, two processes know different bounds of the time.
            let too_late = latest.saturating_add(millis(WIDE));
            let is_young = |text: &MarkerText| match (self.properties.marking, reader) {
                (Marking::ByWriters, Reader::Claim(lease)) => {
                    text.created_ms.saturating_add(millis(lease)) > self.documents.least_server_millis()
                }
                _ => false,
            };
            let is_kept = |text: &MarkerText| {
                let is_dated_right = text.created_ms <= too_late || !self.properties.has_clock;
                !may_write || is_dated_right && (text.incarnation == found.version.incarnation || is_young(text))
            };
            if let Some(text) = text.filter(is_kept) {
                let now = BootInstant::now();
                let age = match found.ours().map(|ours| ours.life) {
                    Some(Life::Left { at_most }) => Some((now, YOUTH.saturating_sub(at_most))),
                    _ => None,
                };
                let version = Version { incarnation: text.incarnation, ..found.version };
                let mut known = self.marker.lock();
                let first_seen =
                    known.take().filter(|known| known.version == version).map_or(now, |known| known.first_seen);
                let marker = Marker { created_ms: text.created_ms, version, first_seen, age, read: sent };
                return Ok(Some(known.insert(marker).clone()));
            }
            if !may_write {
                *self.marker.lock() = None;
                return Ok(None);
            }
            let text = MarkerText::new(latest, &found.version.incarnation).text();
            sent = BootInstant::now();
            found = match self.documents.put(Key::Marker, self.marker_of(&text, true), Over::Exactly(&found)).await {
                Ok(Some(written)) => written,
                Ok(None) => self.get_one(Key::Marker).await?,
                // A user who may only read leaves the writing to claims.
                Err(error) if reader == Reader::Look && error.kind == ErrorKind::Denied => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        Err(self.too_fast(Key::Marker))
    }

    /// Until when the store may have forgotten a lease of this duration. None if it has not.
    pub(super) fn until_remembered(&self, marker: &Marker, lease: Duration) -> Option<BootInstant> {
        let now = BootInstant::now();
        let over = if self.properties.has_clock {
            let until_millis = marker.created_ms.saturating_add(millis(lease));
            let wait = Wait { until_millis, duration: lease };
            wait.over_by(&self.documents.clock(), self.wall_millis(), now)?
        } else {
            let (at, age) = marker.age?;
            at.plus(lease.saturating_sub(age))
        };
        Some(over.min(marker.first_seen.plus(lease))).filter(|&over| over > now)
    }

    /// Writes the marker of `store init`; or, unless `is_young`, one that says that no candidate has used the store yet.
    pub(super) async fn write_marker(&self, is_young: bool) -> Result<(), StoreError> {
        let dated = is_young || !self.properties.has_clock;
        let created_ms = if dated { self.documents.server_millis(BootInstant::now()) } else { 0 };
        for _ in 0..MOST_ATTEMPTS {
            let found = self.get_one(Key::Marker).await?;
            let text = MarkerText::new(created_ms, &found.version.incarnation).text();
            let put = self.documents.put(Key::Marker, self.marker_of(&text, is_young), Over::Exactly(&found)).await?;
            if put.is_some() {
                *self.marker.lock() = None;
                return Ok(());
            }
        }
        Err(self.too_fast(Key::Marker))
    }

    fn marker_of<'a>(&self, text: &'a str, is_young: bool) -> Draft<'a> {
        let ends = is_young && !self.properties.has_clock;
        Draft { ends: if ends { Ends::In(YOUTH) } else { Ends::Never }, ..lasting(text) }
    }

    /// Changes the led mark, of which `found` is known. Returns it as it was before.
    pub(super) async fn change_led_mark(
        &self,
        shard: &Shard,
        found: Option<Found>,
        change: impl Fn(&mut LedMark),
    ) -> Result<LedMark, StoreError> {
        let key = Key::Led(shard);
        let mut known = found;
        for _ in 0..MOST_ATTEMPTS {
            let found = match known.take() {
                Some(found) => found,
                None => self.get_one(key).await?,
            };
            let before = LedMark::read(&found);
            let mut mark = before.clone();
            change(&mut mark);
            if mark == before || self.put_led_mark(shard, &mark, &found).await? {
                return Ok(before);
            }
        }
        Err(self.too_fast(key))
    }

    /// False if `over` does not stand any more.
    pub(super) async fn put_led_mark(&self, shard: &Shard, mark: &LedMark, over: &Found) -> Result<bool, StoreError> {
        let put = self.documents.put(Key::Led(shard), lasting(&mark.text()), Over::Exactly(over)).await?;
        let is_written = put.is_some();
        if is_written {
            self.with_seen(shard, |seen| seen.led_mark = put);
        }
        Ok(is_written)
    }

    pub(super) fn known_led_mark(&self, shard: &Shard) -> Option<Found> {
        self.with_seen(shard, |seen| seen.led_mark.clone())
    }
}

/// A text without a leadership and without an end.
pub fn lasting(text: &str) -> Draft<'_> {
    Draft { text, leadership: None, sequence: 0, ends: Ends::Never, owner: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Timing, TimingRequest, kept};

    #[test]
    fn youth_outlasts_every_lease() {
        let is_refused = |lease| Timing::new(TimingRequest { lease, ..TimingRequest::default() }).is_err();
        let longest = Duration::from_hours(24);
        assert!(!is_refused(longest) && is_refused(longest + Duration::from_secs(1)));
        assert!(kept(longest) < YOUTH);
    }
}
