//! Orders for a shard with slots: a pause is for all slots or for one, a handover is for one.
//!
//! The hazard: a candidate that must not lead in one slot may lead in another. So the election learns the orders of a
//! slot only while it leads there. For a standby they are applied here: it skips the slot.

use super::Slots;
use crate::election::{Directives, Handover, Pause};
use crate::lease::{Candidate, Term};
use crate::notes::orders::{self, Orders};
use crate::store::{Answer, ErrorKind, Page};
use crate::time::BootInstant;
use std::time::Duration;

/// From one look at the orders that hold a slot to the next.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What is known of the orders of each slot.
pub(super) struct Holds(Vec<Known>);

#[derive(Clone, Default)]
struct Known {
    is_read: bool,
    /// What holds it, and when to read the orders again. The slot is not claimed before that.
    on_hold: Option<(String, BootInstant)>,
    /// The last handover that did not name this candidate.
    yielding: Option<Yielding>,
}

/// A handover that lets others try first. Each handover holds this candidate back only once.
#[derive(Clone)]
struct Yielding {
    term: Term,
    hold: Duration,
    until: BootInstant,
}

pub(super) enum Gate {
    Open,
    /// In these words.
    OnHold(String),
}

impl Holds {
    pub fn of(slots: usize) -> Self {
        Self(vec![Known::default(); slots])
    }

    /// What is known of a slot. None if its orders have to be read.
    fn known(&self, slot: usize, now: BootInstant) -> Option<Gate> {
        let Known { is_read, on_hold, .. } = &self.0[slot];
        match on_hold {
            None => is_read.then_some(Gate::Open),
            Some((said, look_at)) => (now < *look_at).then(|| Gate::OnHold(said.clone())),
        }
    }

    /// True if there was a hold on the slot when its orders were last read.
    pub fn has(&self, slot: usize) -> bool {
        self.0[slot].on_hold.is_some()
    }

    /// When the first of these slots, which are on hold, is due for another look.
    fn look_at(&self, slots: &[usize]) -> BootInstant {
        let look_at = |&slot: &usize| self.0[slot].on_hold.as_ref().map(|(_, look_at)| *look_at);
        slots.iter().filter_map(look_at).min().unwrap_or_else(BootInstant::now)
    }

    /// Takes note of a release. Others have the time of the handover from now on, however long COMMAND took to end.
    pub fn released(&mut self, slot: usize, term: Term) {
        let Known { on_hold, yielding, .. } = &mut self.0[slot];
        if let Some(yielding) = yielding.as_mut().filter(|yielding| yielding.term == term) {
            let now = BootInstant::now();
            yielding.until = now.plus(yielding.hold);
            // That time may have been over before.
            *on_hold = Some(("handed over".to_owned(), yielding.until.min(now.plus(LOOK_EVERY))));
        }
    }

    fn yield_until(&mut self, slot: usize, handover: &Handover, now: BootInstant) -> BootInstant {
        let Handover { term, hold, .. } = *handover;
        let known = self.0[slot].yielding.take().filter(|known| known.term == term);
        self.0[slot].yielding.insert(known.unwrap_or(Yielding { term, hold, until: now.plus(hold) })).until
    }

    /// Takes note of the directives for a slot, and says whether it may be claimed.
    fn apply(&mut self, slot: usize, directives: &Directives, now: BootInstant) -> Gate {
        let mut hold = None;
        if let Some(handover) = directives.handover.as_ref().filter(|handover| !handover.welcome) {
            let until = self.yield_until(slot, handover, now);
            hold = (now < until).then(|| (format!("handed over {}", handover.said), until));
        }
        if let Some(Pause { said, left, .. }) = &directives.pause {
            hold = Some((format!("paused {said}"), left.map_or(BootInstant::NEVER, |left| now.plus(left))));
        }
        let known = &mut self.0[slot];
        known.is_read = true;
        known.on_hold = hold.map(|(said, until)| (said, until.min(now.plus(LOOK_EVERY))));
        known.on_hold.as_ref().map_or(Gate::Open, |(said, _)| Gate::OnHold(said.clone()))
    }
}

impl Slots {
    /// Tells whether orders allow a claim of a slot. Reads them before the first claim, and again while there is a
    /// hold.
    pub(super) async fn gate(&self, slot: usize) -> Answer<Gate> {
        let known = self.state.lock().holds.known(slot, BootInstant::now());
        if let Some(gate) = known {
            return Ok(gate);
        }
        let orders = orders::read(&*self.inner, &self.shards[slot]).await?;
        Ok(self.state.lock().holds.apply(slot, &orders.directives(&self.candidate), BootInstant::now()))
    }

    /// Returns one of these slots, which are on hold, once its orders allow a claim. Where the store can, one request
    /// reads the orders of all: there may be many slots, and many candidates that wait for them.
    pub(super) async fn opened(&self, slots: &[usize]) -> Answer<usize> {
        loop {
            let look_at = self.state.lock().holds.look_at(slots);
            tokio::time::sleep(look_at.since(BootInstant::now())).await;
            match self.read_gates(slots).await {
                Ok(Some(open)) => return Ok(open),
                Ok(None) => {}
                Err(error) => match error.kind {
                    ErrorKind::NotApplied | ErrorKind::Unknown => tokio::time::sleep(LOOK_EVERY).await,
                    ErrorKind::Denied | ErrorKind::Misconfigured => return Err(error),
                },
            }
        }
    }

    /// Reads the orders of these slots. Returns one that may be claimed.
    async fn read_gates(&self, slots: &[usize]) -> Answer<Option<usize>> {
        let pages: Vec<_> = slots.iter().map(|&slot| (self.shards[slot].clone(), Page::Orders)).collect();
        let notes = self.inner.read_notes(&pages).await?;
        let mut open = None;
        for (&slot, note) in slots.iter().zip(notes) {
            let directives = Orders::read(note?.as_ref(), &self.shards[slot])?.directives(&self.candidate);
            if matches!(self.state.lock().holds.apply(slot, &directives, BootInstant::now()), Gate::Open) {
                open = Some(slot);
            }
        }
        Ok(open)
    }

    /// The directives for the candidate: from the orders of the shard, and while it leads, from those of its slot.
    pub async fn directives(&self, candidate: &Candidate) -> Answer<Directives> {
        let Some(led) = self.led() else {
            let pause = pause_of_all(&orders::read(&*self.inner, &candidate.shard).await?, candidate);
            return Ok(Directives { pause, handover: None });
        };
        let (all, own) =
            tokio::join!(orders::read(&*self.inner, &candidate.shard), orders::read(&*self.inner, &self.shards[led.0]));
        Ok(self.leader_directives(led, &all?, &own?))
    }

    pub(super) fn leader_directives(&self, (slot, term): (usize, Term), all: &Orders, own: &Orders) -> Directives {
        let pause = pause_of_all(all, &self.candidate);
        let mut directives = own.directives(&self.candidate);
        let now = BootInstant::now();
        let mut state = self.state.lock();
        let _ = state.holds.apply(slot, &directives, now);
        if let Some(handover) = directives.handover.as_mut().filter(|handover| handover.term != term) {
            // The election has not waited for this handover, but the slot has.
            handover.welcome |= state.holds.yield_until(slot, handover, now) <= now;
        }
        // A pause of the shard that lets leaders stay must not hide a pause of the slot that does not.
        directives.pause = match directives.pause {
            Some(strict) if !strict.keep => Some(strict),
            own => pause.or(own),
        };
        directives
    }
}

/// A shard with slots has no lease of its own that could be handed over.
fn pause_of_all(orders: &Orders, candidate: &Candidate) -> Option<Pause> {
    orders.directives(candidate).pause
}
