//! Renewals, and the document that a leader writes again after the store forgot it.
//!
//! The hazard: a renewal that does not find its leadership is not told why. If it was revoked or deleted by hand, or
//! another candidate leads, it is lost. But if the server restarted empty or with an older copy, COMMAND must go on.
//! While claims are refused for that reason, the leader writes its document again, over exactly what it saw, and keeps
//! the orders and the wait that stood there.
//!
//! Where a renewal is a put, renewals that are under way together replace the same write, and only one is applied. All
//! are sent, because a connection may hang. Once one is known to be applied, the others stop waiting.
//!
//! An answer from an incarnation that the marker does not name proves nothing, because another candidate may lead in
//! the one that it names. The renewal counts once the marker names the same.

use super::document::LedMark;
use super::documents::{Ends, Found, Key, Leadership, Life, Over, Touch, Touched};
use super::marker::Reader;
use super::seen::{Own, Standing};
use super::{LeaseStore, MOST_ATTEMPTS};
use crate::lease::{Candidate, Shard, Term, usable};
use crate::store::{ErrorKind, Note, Page, Renewal, Renewed, StoreError};
use crate::time::{BootInstant, millis};

/// A renewal that another one overtook is sent again if the wait cost less than this part of the lease.
const RESEND_PART: u32 = 16;

impl LeaseStore {
    pub(super) async fn renew_lease(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let shard = &candidate.shard;
        let began = BootInstant::now();
        let leadership = Leadership { session: candidate.session.clone(), term };
        let mut also: Vec<Key<'_>> = if self.properties.has_clock {
            shards.iter().filter(|other| *other != shard).map(Key::Shard).collect()
        } else {
            shards.iter().map(|of| Key::Note(of, &Page::Orders)).collect()
        };
        let others = also.len();
        self.with_own(shard, &leadership, |own| own.requested = own.requested.max(sequence));
        let mut again = false;
        for _ in 0..MOST_ATTEMPTS {
            let sent = BootInstant::now();
            if self.own(shard, &leadership).is_some_and(|own| sequence <= own.sequence) {
                return Ok(Renewed::alone(Renewal::Overtaken));
            }
            let known = self.known(shard);
            let touch = Touch {
                shard,
                leadership: &leadership,
                owner: &candidate.owner,
                sequence,
                again,
                lease: candidate.lease,
                known: known.as_ref().map(|known| &known.found),
                also: &also,
            };
            let touched = tokio::select! {
                biased;
                touched = self.documents.touch(touch) => touched,
                () = self.is_passed(shard, &leadership) => {
                    // The server refuses this renewal, wherever it is now. Send it again if it is the latest and the
                    // wait cost little. Otherwise a later one, sent or not, counts from a later time.
                    let is_last = self.own(shard, &leadership).is_some_and(|own| own.requested <= sequence);
                    if is_last && BootInstant::now().since(began) < candidate.lease / RESEND_PART {
                        continue;
                    }
                    return Ok(Renewed::alone(Renewal::Overtaken));
                }
            };
            let touched = touched.inspect_err(|error| {
                if error.kind == ErrorKind::Unknown {
                    self.doubt(shard);
                }
            })?;
            let (found, mut told) = match touched {
                Touched::Overtaken => return Ok(Renewed::alone(Renewal::Overtaken)),
                Touched::Refused => match self.conclude(candidate, &leadership, sequence).await? {
                    Some(renewal) => return Ok(Renewed::alone(renewal)),
                    None => continue,
                },
                Touched::Done { found, also } => (found, also),
            };
            let asked = also.len() > others;
            let marker = told.as_mut().filter(|_| asked).and_then(Vec::pop);
            if let Some(marker) = marker {
                self.accept_or_write_marker(marker, began, Reader::Writer).await?;
            }
            let standing = self.understand(shard, found)?;
            if !self.is_of_the_marker(&standing.found) {
                self.read_marker(Reader::Writer).await?;
                also.truncate(others);
                also.push(Key::Marker);
                continue;
            }
            self.remember(shard, &standing);
            // If an answer since then contradicted what was known of the server's clock, an end that we wrote may be too
            // early. The bounds then cover both clocks, so one more write is enough.
            let now = BootInstant::now();
            if !again && !self.properties.tells_time && !self.documents.clock().agreed_for(now, now.since(sent)) {
                again = true;
                continue;
            }
            self.with_own(shard, &leadership, |own| {
                own.sequence = own.sequence.max(sequence);
                own.granted = own.granted.max(began);
            });
            self.renewed.notify_waiters();
            let orders = told.and_then(|told| {
                if self.properties.has_clock {
                    return self.orders_with(shard, &standing, shards, told);
                }
                also.iter().zip(told).map(|(key, found)| self.note_in(*key, &found).ok()).collect()
            });
            self.end_wait(shard, standing).await;
            return Ok(Renewed { renewal: Renewal::Renewed, orders });
        }
        Err(self.too_fast(Key::Shard(shard)))
    }

    /// Returns once another renewal of ours has replaced the write that this one names. Never where renewals replace
    /// nothing.
    async fn is_passed(&self, shard: &Shard, leadership: &Leadership) {
        if !self.properties.compares_only {
            return std::future::pending().await;
        }
        let applied = || self.own(shard, leadership).map(|own| own.sequence);
        let before = applied();
        loop {
            let renewed = self.renewed.notified();
            if applied() != before {
                return;
            }
            renewed.await;
        }
    }

    fn with_own<T>(&self, shard: &Shard, leadership: &Leadership, act: impl FnOnce(&mut Own) -> T) -> Option<T> {
        self.with_seen(shard, |seen| seen.own.as_mut().filter(|own| own.leadership == *leadership).map(act))
    }

    fn own(&self, shard: &Shard, leadership: &Leadership) -> Option<Own> {
        self.with_own(shard, leadership, |own| own.clone())
    }

    /// Removes a wait that is over from our document where the server has no clock: others could not tell.
    async fn end_wait(&self, shard: &Shard, standing: Standing) {
        let says_wait = standing.document.as_ref().is_some_and(|document| document.wait().is_some());
        if self.properties.has_clock || !says_wait || self.wait_of(shard, &standing).is_some() {
            return;
        }
        // If that fails, the next renewal tries again.
        let _ = self.complete(shard, Ends::Keep, standing, |draft| draft.set_wait(None)).await;
    }

    /// What a renewal concludes from a document that does not name its leadership. None: send it again, because the
    /// document may name it now, perhaps because this wrote it again.
    async fn conclude(
        &self,
        candidate: &Candidate,
        leadership: &Leadership,
        sequence: u64,
    ) -> Result<Option<Renewal>, StoreError> {
        let shard = &candidate.shard;
        let sent = BootInstant::now();
        let standing = self.look(shard, false, true, Reader::Writer).await?;
        if standing.found.leadership() == Some(leadership) {
            // What the server itself has ended cannot be renewed.
            let is_over = standing.found.ours().is_some_and(|ours| ours.life == Life::Over);
            return Ok(if is_over { Some(Renewal::Lost(None)) } else { None });
        }
        let is_later = |of: &Leadership| of.session == candidate.session && of.term > leadership.term;
        if standing.found.leadership().is_some_and(is_later) {
            return Ok(Some(Renewal::Overtaken));
        }
        let holder = self.holder(shard, &standing, sent);
        let is_revoked = standing.document.as_ref().is_some_and(|document| document.revoked == Some(leadership.term.0));
        let lost = || Ok(Some(if is_revoked { Renewal::Revoked } else { Renewal::Lost(holder.clone()) }));
        let Some(own) = self.own(shard, leadership) else { return lost() };
        let is_anothers = holder.is_some() && standing.session() != Some(&candidate.session);
        // Nothing can be written while another's lease lives that the server itself ends.
        let is_ended_by_server = standing.document.is_none() || !self.properties.has_clock;
        // A leader that still waits for an earlier leader's tree gives way once that leader has written itself again.
        let waits = own.start_after.is_some_and(|start| start > sent);
        // A document that has reached this term knows that it ended.
        if is_anothers && (is_ended_by_server || waits) || standing.term() >= leadership.term.0 {
            return lost();
        }
        let marker = self.marker.lock().clone();
        let longest = standing.longest_lease().max(candidate.lease);
        let has_forgotten = marker.is_none_or(|marker| self.until_remembered(&marker, longest).is_some());
        // A lower term than ours comes from an older copy, whatever the marker says. But another session whose lease
        // stands there may have led since.
        let is_older = standing.document.is_some() && !is_anothers;
        if BootInstant::now() >= own.granted.plus(usable(candidate.lease)) || !(has_forgotten || is_older) {
            return lost();
        }
        self.heal(candidate, &own, sequence, &standing).await.map(|()| None)
    }

    /// Writes our document again, unless it changed meanwhile.
    async fn heal(
        &self,
        candidate: &Candidate,
        own: &Own,
        sequence: u64,
        standing: &Standing,
    ) -> Result<(), StoreError> {
        let shard = &candidate.shard;
        let mut draft = self.continued(shard, standing);
        let waits = [draft.wait(), own.document.wait()].into_iter().flatten();
        draft.set_wait(waits.max_by_key(|wait| wait.until_millis));
        (draft.term, draft.lease) = (own.leadership.term.0, own.document.lease.clone());
        let longest = own.document.longest_lease().max(candidate.lease);
        (draft.led_ms, draft.forgotten) = (millis(longest), false);
        // First the mark: once the document names us, renewals count, and none would miss the mark.
        let change = |mark: &mut LedMark| {
            mark.has_lease(longest);
            if self.properties.is_shared {
                mark.shared.led(own.leadership.term.0);
            }
        };
        self.change_led_mark(shard, None, change).await?;
        let over = Over::Exactly(&standing.found);
        self.rewrite(shard, &draft, sequence, Ends::In(candidate.lease), over).await.map(drop)
    }

    pub(super) fn orders_in(&self, standing: &Standing) -> Option<Note> {
        let now_millis = self.documents.least_server_millis();
        standing.orders()?.note(now_millis)
    }

    /// None if one of them cannot be read.
    fn orders_with(
        &self,
        own: &Shard,
        standing: &Standing,
        shards: &[Shard],
        told: Vec<Found>,
    ) -> Option<Vec<Option<Note>>> {
        let mut told = told.into_iter();
        let orders = shards.iter().map(|shard| {
            if shard == own {
                return Some(self.orders_in(standing));
            }
            let standing = self.understand(shard, told.next()?).ok()?;
            (!self.needs_led_mark(&standing)).then(|| self.orders_in(&standing))
        });
        orders.collect()
    }
}
