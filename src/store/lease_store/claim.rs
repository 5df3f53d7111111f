//! Claims, looks and releases.
//!
//! The hazard: a granted claim says that no other tree runs. So a claim first makes sure that nobody holds the lease
//! and that the store has forgotten no leader. Its write replaces exactly what it read. Whether an earlier document was
//! deleted, or the store forgot meanwhile, can be known only once the document is ours. So the claim reads that after
//! the write, and if it has to wait, it writes the wait down before it answers.

use super::document::{Document, Lease, LedMark};
use super::documents::{Draft, Ends, Key, Leadership, Life, Marking, Over};
use super::marker::{Marker, Reader};
use super::seen::{Own, Standing};
use super::{LeaseStore, MOST_ATTEMPTS, forgotten};
use crate::lease::{Candidate, Shard, Term};
use crate::store::foreign_lock::ForeignLock;
use crate::store::server_clock::{WIDE, Wait};
use crate::store::{
    Claim, Delivery, ErrorKind, Grant, Holder, Leases, Observation, Release, Renewed, StoreError, Takeover,
};
use crate::time::{BootInstant, millis};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tokio::time::sleep;

/// The first pause between looks while another program holds the lock beside the lease; later pauses are longer.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(1);

#[async_trait::async_trait]
impl Leases for LeaseStore {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        match self.lock_of(&candidate.shard) {
            Some(lock) => self.claim_with_lock(lock, candidate).await,
            None => self.claim_lease(candidate).await,
        }
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        match self.observe_lease(shard).await? {
            Observation::Free => {
                let held = |holder| Observation::Held(self.held_by_lock(holder));
                Ok(self.lock_holder(shard).await?.map_or(Observation::Free, held))
            }
            held @ Observation::Held(_) => Ok(held),
        }
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let renewed = self.renew_lease(candidate, term, sequence, shards).await?;
        self.with_lock(renewed, candidate, term).await
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let let_go = self.let_go(candidate, term).await;
        let released = self.give_back(candidate, term, false).await?;
        let_go.map(|()| released)
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        self.any_changed(std::slice::from_ref(shard)).await.map(drop)
    }

    async fn any_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        let mut pause = FIRST_LOOK;
        loop {
            let index = self.any_lease_changed(shards).await?;
            if self.lock_holder(&shards[index]).await?.is_none() {
                return Ok(index);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    async fn doubted(&self, shard: &Shard) {
        match self.documents.lock() {
            Some(lock) => tokio::select! {
                () = self.documents.doubted(shard) => {}
                () = lock.doubted() => {}
            },
            None => self.documents.doubted(shard).await,
        }
    }

    fn with_lease_files(&self, _: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        let descriptor = self.documents.lock().and_then(ForeignLock::descriptor);
        act(descriptor.as_slice());
    }
}

impl LeaseStore {
    pub(super) async fn claim_lease(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let mut is_taken = false;
        let claimed = self.claim_in_steps(candidate, &mut is_taken).await;
        claimed.map_err(|error| if is_taken { error.after_a_part() } else { error })
    }

    pub(super) async fn observe_lease(&self, shard: &Shard) -> Result<Observation, StoreError> {
        let sent = BootInstant::now();
        let standing = self.look(shard, true, false, Reader::Look).await?;
        if let Some(holder) = self.holder(shard, &standing, sent) {
            return Ok(Observation::Held(holder));
        }
        let left = self.until_known(shard, &standing).map(|until| until.since(BootInstant::now()));
        Ok(left.map_or(Observation::Free, |left| Observation::Held(forgotten(left, standing.term() == 0))))
    }

    /// `is_taken` becomes true once the first write has taken the lease, even if a later one fails.
    async fn claim_in_steps(&self, candidate: &Candidate, is_taken: &mut bool) -> Result<Claim, StoreError> {
        let shard = &candidate.shard;
        self.with_seen(shard, |seen| seen.claims = candidate.lease);
        let mut known = self.claimable(candidate);
        // Where the store announces changes, the known document is as new as a look, and the next term only has to
        // exceed its term. So no look is needed to learn the time.
        let mut looked_for_the_time = known.is_some() && self.properties.delivery == Delivery::Push;
        for _ in 0..MOST_ATTEMPTS {
            let sent = BootInstant::now();
            let standing = if let Some(known) = known.take() {
                known
            } else {
                let is_led = self.known(shard).is_some_and(|known| known.knows_led());
                self.look(shard, false, !is_led, Reader::Claim(candidate.lease)).await?
            };
            if !looked_for_the_time && self.documents.clock().is_wide(BootInstant::now()) {
                // The request took long, so the time is not known well. Terms must not run far ahead of it: look again.
                looked_for_the_time = true;
                continue;
            }
            let marker = self.marker_for(&standing, sent, candidate.lease).await?;
            if let Some(holder) = self.in_the_way(candidate, &standing, sent) {
                self.compare_locks(shard, &standing);
                return Ok(Claim::Refused(holder));
            }
            if let Some(grant) = self.attempt(candidate, &standing, &marker, is_taken).await? {
                return Ok(Claim::Granted(grant));
            }
        }
        Err(self.too_fast(Key::Shard(shard)))
    }

    /// The document as it was last seen, if it could be taken then without another look.
    fn claimable(&self, candidate: &Candidate) -> Option<Standing> {
        self.with_seen(&candidate.shard, |seen| {
            let known = seen.known.as_ref().filter(|known| known.knows_led() && !seen.is_older(known))?;
            let ours = known.found.ours()?;
            let is_free = match &ours.leadership {
                None => !matches!(ours.life, Life::Left { .. }),
                Some(of) => of.session == candidate.session || ours.life == Life::Over || seen.has_ended(ours),
            };
            (is_free && self.is_of_the_marker(&known.found)).then(|| known.clone())
        })
    }

    /// The marker, read after `sent` unless the document knows of a leadership: otherwise only the marker tells a new
    /// shard from a store that has forgotten.
    async fn marker_for(&self, standing: &Standing, sent: BootInstant, lease: Duration) -> Result<Marker, StoreError> {
        let known = self.marker.lock().clone();
        let marker = match known.filter(|marker| standing.knows_led() || marker.read >= sent) {
            Some(marker) => Some(marker),
            None => self.read_marker(Reader::Claim(lease)).await?,
        };
        marker.ok_or_else(|| {
            StoreError::misconfigured(format!(
                "{} was not tried yet, and a server that ignores conditions lets two candidates lead: run leaderctl \
                 --store URL store init",
                self.documents.place()
            ))
        })
    }

    /// What keeps this candidate from leading: a lease that stands, or one that the store may have forgotten.
    fn in_the_way(&self, candidate: &Candidate, standing: &Standing, sent: BootInstant) -> Option<Holder> {
        let shard = &candidate.shard;
        let now = BootInstant::now();
        self.with_seen(shard, |seen| seen.judge(standing, now));
        let left = self.until_known(shard, standing).map(|until| until.since(now));
        // The marker is another server's: wait until it is old enough to be written again.
        let is_elsewhere = self.properties.marking == Marking::ByWriters && !self.is_of_the_marker(&standing.found);
        let left = left.or_else(|| is_elsewhere.then_some(Duration::from_millis(1)));
        let is_mine = standing.session() == Some(&candidate.session);
        let Some(holder) = self.holder(shard, standing, sent).filter(|_| !is_mine) else {
            let highest = self.with_seen(shard, |seen| seen.highest());
            return left.map(|left| forgotten(left, standing.term() == 0 && highest == 0));
        };
        let expires_in = holder.expires_in.map(|known| known.max(left.unwrap_or_default()));
        Some(Holder { expires_in, ..holder })
    }

    /// The wait that a document asks for. None if it is over.
    pub(super) fn wait_of(&self, shard: &Shard, standing: &Standing) -> Option<(Wait, BootInstant)> {
        let clock = self.documents.clock();
        // Where the server has no clock, another host's clock wrote the wait's end, and ours must not end it.
        let wall_millis = if self.properties.has_clock { self.documents.wall_clock_millis() } else { 0 };
        self.with_seen(shard, |seen| seen.wait(standing, &clock, wall_millis, BootInstant::now()))
    }

    /// The draft from which the next write starts: what stands, without a wait that is over.
    pub(super) fn continued(&self, shard: &Shard, standing: &Standing) -> Document {
        let mut draft = standing.document.clone().unwrap_or_else(|| {
            let mut draft = Document::new(shard);
            draft.orders = standing.orders();
            draft
        });
        draft.set_wait(self.wait_of(shard, standing).map(|(wait, _)| wait));
        draft
    }

    /// None if the write was refused. `sequence` is that of the renewal for which a leader writes itself again.
    pub(super) async fn rewrite(
        &self,
        shard: &Shard,
        draft: &Document,
        sequence: u64,
        ends: Ends,
        over: Over<'_>,
    ) -> Result<Option<Standing>, StoreError> {
        let text = draft.text();
        let leadership = draft.leadership();
        let owner = draft.lease.as_ref().map(|lease| lease.owner.as_str());
        let written = Draft { text: &text, leadership: leadership.as_ref(), sequence, ends, owner };
        let put = self.documents.put(Key::Shard(shard), written, over).await;
        if put.as_ref().map_or_else(|error| error.kind == ErrorKind::Unknown, Option::is_none) {
            self.doubt(shard);
        }
        let Some(found) = put? else { return Ok(None) };
        let standing = self.understand(shard, found)?;
        self.remember(shard, &standing);
        Ok(Some(standing))
    }

    /// Takes the document with a write over exactly what was judged. None if the claim has to judge again.
    async fn attempt(
        &self,
        candidate: &Candidate,
        standing: &Standing,
        marker: &Marker,
        is_taken: &mut bool,
    ) -> Result<Option<Grant>, StoreError> {
        let shard = &candidate.shard;
        let is_first = !standing.knows_led();
        let highest = self.with_seen(shard, |seen| seen.highest());
        let mut start_after = self.wait_of(shard, standing).map(|(_, over)| over);
        let mut takeover = standing.document.as_ref().map_or(Takeover::First, Document::takeover);
        let mut draft = self.continued(shard, standing);
        draft.term = draft.term.max(highest).max(self.term_before(marker, is_first)) + 1;
        let lock = self.lock_of(shard).map(ForeignLock::name);
        draft.lease = Some(Lease::new(candidate, lock, self.documents.wall_clock_millis()));
        draft.forgotten = false;
        let sent = BootInstant::now();
        let over = Over::Exactly(&standing.found);
        let Some(mut written) = self.rewrite(shard, &draft, 0, Ends::In(candidate.lease), over).await? else {
            return Ok(None);
        };
        *is_taken = true;
        let now = BootInstant::now();
        if !self.documents.clock().agreed_for(now, now.since(sent)) {
            // The end that was written may be too early.
            return Ok(None);
        }
        let knows_all = draft.led_ms >= millis(candidate.lease);
        let after = if knows_all && !self.properties.is_shared {
            None
        } else {
            Some(self.read_after_write(candidate, &draft, is_first.then_some(marker)).await?)
        };
        // Somebody has led since. Perhaps an older copy of our document was put back, and this claim took that.
        let is_older = knows_all && after.as_ref().is_some_and(|after| after.before.shared.term > standing.term());
        if is_older {
            // Or it was deleted before the mark said that we lead.
            let stands = self.look(shard, false, false, Reader::Writer).await?;
            if stands.found.leadership() != draft.leadership().as_ref() {
                return Ok(None);
            }
        }
        if let Some(after) = after.filter(|_| !knows_all || is_older) {
            let mut ends = Ends::Keep;
            let mut wait = None;
            draft.term = draft.term.max(after.term);
            let led = &after.before.shared;
            let longest = after.before.lease().max(candidate.lease);
            let last = standing.term().max(led.term);
            if after.is_doubtful || (is_first && last < highest) || (is_older && !led.released) {
                takeover = Takeover::Expired;
                let dead_at = BootInstant::now().plus(longest);
                start_after = start_after.max(Some(dead_at));
                wait = start_after.map(|start| self.wait_until(start));
                ends = Ends::In(candidate.lease);
            }
            let is_new = standing.document.is_none();
            if let Some(document) = written.document.as_mut().filter(|_| self.properties.is_shared && is_new) {
                // The orders may have changed before the document was ours.
                document.orders.clone_from(&led.orders);
            }
            let term = draft.term;
            let complete = |draft: &mut Document| {
                (draft.term, draft.led_ms) = (term, draft.led_ms.max(millis(longest)));
                draft.set_wait(wait.or(draft.wait()));
            };
            let Some(completed) = self.complete(shard, ends, written, complete).await? else {
                return Ok(None);
            };
            // Where the server has no clock, the wait lasts from now.
            self.wait_of(shard, &completed);
            written = completed;
        }
        if written.found.version.incarnation != standing.found.version.incarnation {
            let dead_at = BootInstant::now().plus(standing.longest_lease().max(candidate.lease));
            start_after = start_after.max(Some(dead_at));
            takeover = Takeover::Expired;
        }
        let term = Term(draft.term);
        let leadership = Leadership { session: candidate.session.clone(), term };
        let document = written.document.unwrap_or(draft);
        self.with_seen(shard, |seen| {
            seen.own = Some(Own { leadership, sequence: 0, requested: 0, granted: sent, start_after, document });
        });
        Ok(Some(Grant { term, start_after, takeover }))
    }

    /// At least every term that may be forgotten, whether the shard was deleted or the server failed over to an older
    /// copy.
    fn term_before(&self, marker: &Marker, is_first: bool) -> u64 {
        if !self.properties.has_clock {
            // Two hosts' clocks are not compared. So only that of the marker's writer counts, and what changed since.
            return marker.created_ms.saturating_add(self.documents.changes());
        }
        // Milliseconds since 1970 rise faster than leaderships do. Terms must not run far ahead of the time, so take the
        // earliest that it may be if it is not known well.
        let (now, time) = (BootInstant::now(), &self.documents);
        let is_vague = !is_first && self.properties.delivery == Delivery::Push && time.clock().is_wide(now);
        if is_vague { time.least_server_millis() } else { time.server_millis(now) }
    }

    /// Changes the text of our document, even if its orders changed meanwhile. None if it is not ours any more.
    pub(super) async fn complete(
        &self,
        shard: &Shard,
        ends: Ends,
        mut standing: Standing,
        change: impl Fn(&mut Document),
    ) -> Result<Option<Standing>, StoreError> {
        let session = standing.session().cloned();
        for _ in 0..MOST_ATTEMPTS {
            let Some(mut draft) = standing.document.clone() else { return Ok(None) };
            change(&mut draft);
            // No standby need hear of it.
            if let Some(written) = self.rewrite(shard, &draft, 0, ends, Over::Exactly(&standing.found)).await? {
                return Ok(Some(written));
            }
            standing = self.look(shard, false, false, Reader::Writer).await?;
            if standing.session().is_none_or(|of| session.as_ref() != Some(of)) {
                return Ok(None);
            }
        }
        Err(self.too_fast(Key::Shard(shard)))
    }

    fn wait_until(&self, start: BootInstant) -> Wait {
        Wait { until_millis: self.documents.server_millis(start), duration: start.since(BootInstant::now()) }
    }

    /// Reads what can be known only after the document was taken, and records the claim in the led mark. `marker`: the
    /// one that the claim relied on, if the document knew of no leadership.
    async fn read_after_write(
        &self,
        candidate: &Candidate,
        draft: &Document,
        marker: Option<&Marker>,
    ) -> Result<Aftermath, StoreError> {
        let shard = &candidate.shard;
        let looked = async {
            let sent = BootInstant::now();
            // The mark is written over exactly what is known of it. If that is not refused, the mark was the same when
            // the document became ours.
            let known = self.known_led_mark(shard).filter(|_| self.properties.is_shared);
            let mut keys = Vec::new();
            keys.extend(known.is_none().then_some(Key::Led(shard)));
            keys.extend(marker.map(|_| Key::Marker));
            let found = if keys.is_empty() { Vec::new() } else { self.get(&keys, false).await? };
            let mut found = found.into_iter();
            let led = known.or_else(|| found.next());
            let mut has_forgotten = false;
            if let Some((before, found)) = marker.zip(found.next()) {
                let now = self.accept_or_write_marker(found, sent, Reader::Writer).await?;
                has_forgotten = now.is_none_or(|now| now.version != before.version);
            }
            let last = marker.map_or(0, |marker| self.term_before(marker, true));
            let is_doubtful =
                |mark: &LedMark| has_forgotten || (marker.is_some() && mark.says_led() && !mark.shared.released);
            // Above the terms of all leaders since: their terms began with the time too, and no estimate of it was
            // wrong by more than `WIDE`. Where a leader's tree may still run, the mark also records the term, or two
            // leaders could have the same term after two deletions.
            let term_over = |mark: &LedMark| {
                let ahead = millis(mark.lease().max(candidate.lease).saturating_add(WIDE));
                let late = if is_doubtful(mark) { last.max(mark.shared.term) + ahead } else { 0 };
                draft.term.max(mark.shared.term + 1).max(late)
            };
            let change = |mark: &mut LedMark| {
                if self.properties.is_shared || is_doubtful(mark) {
                    mark.shared.led(term_over(mark));
                }
                mark.has_lease(candidate.lease);
            };
            let before = self.change_led_mark(shard, led, change).await?;
            Ok::<_, StoreError>(Aftermath { is_doubtful: is_doubtful(&before), term: term_over(&before), before })
        };
        let looked = looked.await;
        // Where it is shared, the led mark may say that an earlier tree still runs, and a release would overwrite that.
        if !self.properties.is_shared && looked.as_ref().is_err_and(|error| error.kind.is_final()) {
            // We will not ask again soon, so others should not have to wait until the lease ends.
            let _ = self.give_back(candidate, Term(draft.term), false).await;
        }
        looked
    }

    /// Until when this process refuses its claims because the store may have forgotten a leader. None: it does not.
    pub(super) fn until_known(&self, shard: &Shard, standing: &Standing) -> Option<BootInstant> {
        let now = BootInstant::now();
        let marker = self.marker.lock().clone();
        let (longest, unrisen) = self.with_seen(shard, |seen| {
            let longest = standing.longest_lease().max(seen.claims);
            (longest, seen.until_risen(longest, now))
        });
        marker.and_then(|marker| self.until_remembered(&marker, longest)).max(unrisen)
    }

    /// Gives the lease back, and forgets the orders if the shard `is_forgotten`.
    pub(super) async fn give_back(
        &self,
        candidate: &Candidate,
        term: Term,
        is_forgotten: bool,
    ) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let mut known = self.known(shard).filter(|known| known.is_led_by(candidate, term));
        for _ in 0..MOST_ATTEMPTS {
            let standing = match known.take() {
                Some(known) => known,
                None => self.look(shard, false, false, Reader::Writer).await?,
            };
            if !standing.is_led_by(candidate, term) {
                return Ok(Release::NotHeld);
            }
            let mut draft = self.continued(shard, &standing);
            draft.lease = None;
            draft.term = draft.term.max(term.0);
            if is_forgotten {
                (draft.orders, draft.forgotten) = (None, true);
            }
            let ends = match (self.properties.is_shared, self.wait_of(shard, &standing)) {
                // Other programs have to wait as well.
                (true, Some((_, over))) => Ends::In(over.since(BootInstant::now())),
                (true, None) => {
                    let change = |mark: &mut LedMark| mark.shared.has_ended(draft.term, is_forgotten);
                    self.change_led_mark(shard, self.known_led_mark(shard), change).await?;
                    Ends::Now
                }
                (false, _) => Ends::Now,
            };
            if self.rewrite(shard, &draft, 0, ends, Over::Text(&standing.found)).await?.is_some() {
                self.with_seen(shard, |seen| seen.own = None);
                return Ok(Release::Released);
            }
        }
        Err(self.too_fast(Key::Shard(shard)))
    }
}

struct Aftermath {
    /// The led mark before this claim was written into it.
    before: LedMark,
    /// A tree that the document does not name may run.
    is_doubtful: bool,
    /// The least term that this claim may have.
    term: u64,
}
