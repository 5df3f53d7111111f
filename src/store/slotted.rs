//! Several leaders of one shard, each in a slot of its own: a candidate's view of a store.
//!
//! Slot 2 of the shard `S` is the shard `S/2`, with a lease, terms and orders of its own. So whatever holds for a shard
//! holds for a slot, and all that an operator has for shards works for slots.
//!
//! The hazards:
//!
//! - *An answer may be lost.* A claim without a definite answer may have been granted, or may yet be; a candidate that
//!   went on to the next slot would hold two. So the slot of such a claim is asked for again, first and alone, until the
//!   store has said whose it is; and whoever leaves before that releases it.
//! - *A claim goes to one slot after another, and is cut off as a whole.* On a slow network it would be cut off at the
//!   same slot each time. So what was learnt is kept, the next claim begins where the last one ended, and the rest is
//!   left to the next look where the first answer took long.
//! - *A slot that is paused looks free.* Whoever took it would give it back and take it again, without end. So a slot
//!   that orders bar from us is passed over, and its orders are read again now and then.

mod orders;

use super::{
    Claim, Delivery, Finding, Holder, Location, Note, Notes, Observation, Page, Place, Release, Renewal, Report, Store,
    StoreError, parallel,
};
use crate::election::Mandate;
use crate::lease::{Candidate, Shard, Term};
use crate::store::Conclusion;
use crate::time::BootInstant;
use orders::{Bars, Gate};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Slots of a shard, at most: a standby looks at each of them.
pub const MOST: u32 = 64;

/// The name of slot `slot` of `shard`.
///
/// # Errors
/// Where it would be too long.
pub fn name(shard: &Shard, slot: u32) -> Result<Shard, String> {
    Shard::from_str(&format!("{shard}/{slot}")).map_err(|why| format!("slot {slot} cannot be named: {why}"))
}

/// The shard of which `shard` may be a slot, and which.
#[must_use]
pub fn parent(shard: &Shard) -> Option<(Shard, u32)> {
    let (parent, number) = shard.as_str().rsplit_once('/')?;
    let slot = number.parse().ok().filter(|slot: &u32| (1..=MOST).contains(slot) && slot.to_string() == number)?;
    Some((parent.parse().ok()?, slot))
}

/// What [`Store::inspect`] tells of the slots of `shard`, as far as there is something to tell.
///
/// It takes no more permission than to look at a shard: where a list takes some, or money, each slot that there may be
/// is asked for by its name.
///
/// # Errors
/// As [`Store::inspect`].
pub async fn inspect(store: &dyn Store, shard: &Shard) -> Result<Vec<(Shard, Report)>, StoreError> {
    if !store.is_metered() {
        match store.list(&format!("{shard}/")).await {
            Err(error) if error.conclusion == Conclusion::Denied => {}
            list => {
                let is_slot = |found: &Shard| parent(found).is_some_and(|(parent, _)| parent == *shard);
                let mut slots: Vec<_> = list?.into_iter().filter(|(found, _)| is_slot(found)).collect();
                slots.sort_by_key(|(slot, _)| parent(slot).map(|(_, number)| number));
                return Ok(slots);
            }
        }
    }
    let slots: Vec<Shard> = (1..=MOST).map_while(|slot| name(shard, slot).ok()).collect();
    let mut known = Vec::new();
    for some in slots.chunks(store.lanes()) {
        let looks = some.iter().map(|slot| async move { (slot, store.inspect(slot).await) });
        for (slot, report) in parallel::all(looks).await {
            let report = match report {
                // As a list shows what something else wrote.
                Err(error) if error.conclusion == Conclusion::Misconfigured => {
                    Report { holder: Some(Holder::stranger()), last_term: None }
                }
                report => report?,
            };
            if report != Report::default() {
                known.push((slot.clone(), report));
            }
        }
    }
    Ok(known)
}

/// # Errors
/// One line, where the store at `location` cannot have so many leaders of a shard.
pub fn check(location: &Location, slots: u32) -> Result<(), String> {
    match location {
        #[cfg(feature = "postgres")]
        Location::Postgres(address) if address.advisory_lock.is_some() && slots > 1 => {
            Err(format!("--slots {slots}: advisory_lock= lets one candidate lead at a time: leave one of them out"))
        }
        _ => {
            let _ = slots;
            Ok(())
        }
    }
}

/// A store as one candidate sees it whose shard has slots.
pub struct Slotted {
    inner: Arc<dyn Store>,
    candidate: Candidate,
    /// Their shards, in their order. Below, a slot is its place in here.
    slots: Vec<Shard>,
    /// The most that a request may take.
    patience: Duration,
    state: Mutex<State>,
}

struct State {
    hold: Option<Hold>,
    /// Where the next claim begins.
    first: usize,
    bars: Bars,
}

/// The one slot that we hold, or may hold.
#[derive(Clone, Copy)]
struct Hold {
    slot: usize,
    /// None while that is in doubt.
    term: Option<Term>,
    /// In doubt: when something was last sent that may have made or prolonged the lease.
    asked: BootInstant,
}

impl Hold {
    fn doubt(&mut self) {
        if self.term.take().is_some() {
            self.asked = BootInstant::now();
        }
    }
}

/// What a look at a slot showed.
enum Sight {
    Free,
    Held(Holder),
    /// Orders bar us from it, in these words.
    Barred(String),
}

/// Who is in the way, of all slots: whose lease ends first.
#[derive(Default)]
struct InTheWay {
    holder: Option<Holder>,
    /// Does not count where there is somebody who holds a slot.
    nobody: Option<Holder>,
}

impl InTheWay {
    fn add(&mut self, holder: Holder) {
        let end = |holder: &Holder| holder.expires_in.unwrap_or(Duration::MAX);
        if self.holder.as_ref().is_none_or(|known| end(&holder) < end(known)) {
            self.holder = Some(holder);
        }
    }

    fn add_barred(&mut self, shard: &Shard, said: &str) {
        self.nobody.get_or_insert_with(|| Holder { owner: format!("nobody ({shard} is {said})"), ..Holder::default() });
    }

    fn told(self) -> Holder {
        self.holder.or(self.nobody).expect("a shard has slots, and each was asked for")
    }
}

impl Slotted {
    /// `candidate` is of a shard with `slots` slots; a request takes `patience` at most.
    ///
    /// # Errors
    /// Where a name would be too long.
    pub fn new(inner: Arc<dyn Store>, candidate: &Candidate, slots: u32, patience: Duration) -> Result<Self, String> {
        let slots = (1..=slots).map(|slot| name(&candidate.shard, slot)).collect::<Result<Vec<_>, _>>()?;
        assert!(!slots.is_empty(), "a shard has a slot at least");
        // Each begins elsewhere, so that they are not all in each other's way; and one with a name of its own begins
        // where it began the last time.
        let mut hasher = DefaultHasher::new();
        candidate.owner.hash(&mut hasher);
        let first = usize::try_from(hasher.finish() % slots.len() as u64).expect("there are not so many");
        let state = Mutex::new(State { hold: None, first, bars: Bars::of(slots.len()) });
        Ok(Self { inner, candidate: candidate.clone(), slots, patience, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) % self.slots.len()
    }

    /// All of them, in the order in which they are asked for.
    fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.state().first, self.slots.len());
        (0..count).map(move |step| (first + step) % count)
    }

    fn in_slot(&self, slot: usize, candidate: &Candidate) -> Candidate {
        Candidate { shard: self.slots[slot].clone(), ..candidate.clone() }
    }

    /// Some while we lead there.
    fn led(&self) -> Option<(usize, Term)> {
        self.state().hold.and_then(|hold| Some((hold.slot, hold.term?)))
    }

    /// In doubt from before it is sent until the store has said whose it is: also when this is dropped.
    async fn claim_slot(&self, slot: usize, candidate: &Candidate) -> Result<Claim, StoreError> {
        let before = {
            let mut state = self.state();
            let before = state.hold.replace(Hold { slot, term: None, asked: BootInstant::now() });
            assert!(before.is_none_or(|hold| hold.slot == slot), "nothing is claimed while another slot is in doubt");
            before
        };
        let answer = self.inner.claim(&self.in_slot(slot, candidate)).await;
        let mut state = self.state();
        match &answer {
            Ok(Claim::Granted(grant)) => {
                state.hold = Some(Hold { slot, term: Some(grant.term), asked: BootInstant::now() });
                state.first = slot;
            }
            Ok(Claim::Refused(_)) => {
                state.hold = None;
                state.first = self.after(slot);
            }
            Err(StoreError { conclusion: Conclusion::Unknown, .. }) => {}
            Err(error) => {
                if let Some(before) = before.filter(|before| !self.is_over(before, candidate, error)) {
                    // This claim was not applied. The one in doubt may have been.
                    state.hold = Some(before);
                    return answer;
                }
                state.hold = None;
                // What is wrong with this one need not be with the next.
                state.first = self.after(slot);
            }
        }
        answer
    }

    /// Whether a doubt is over without an answer: the store would give none for ever, and no lease lives so long.
    fn is_over(&self, doubt: &Hold, candidate: &Candidate, error: &StoreError) -> bool {
        let for_ever = matches!(error.conclusion, Conclusion::Denied | Conclusion::Misconfigured);
        for_ever && self.inner.expires() && BootInstant::now().since(doubt.asked) > candidate.lease
    }

    async fn look_at(&self, slot: usize) -> Result<Sight, StoreError> {
        Ok(match self.gate(slot).await? {
            Gate::Barred { said, .. } => Sight::Barred(said),
            Gate::Open => match self.inner.observe(&self.slots[slot]).await? {
                Observation::Free => Sight::Free,
                Observation::Held(holder) => Sight::Held(holder),
            },
        })
    }

    /// In the order in which they are asked for.
    async fn look_at_all(&self, but: Option<usize>) -> Vec<(usize, Result<Sight, StoreError>)> {
        let slots: Vec<usize> = self.in_order().filter(|&slot| Some(slot) != but).collect();
        let mut sights = Vec::with_capacity(slots.len());
        for some in slots.chunks(self.inner.lanes()) {
            sights
                .extend(parallel::all(some.iter().map(|&slot| async move { (slot, self.look_at(slot).await) })).await);
        }
        sights
    }

    /// What the kernel has given us beside the slot that we lead, it gets back.
    async fn let_others_go(&self, slot: usize, candidate: &Candidate) {
        if !self.inner.expires() {
            for other in (0..self.slots.len()).filter(|&other| other != slot) {
                let _ = self.inner.release(&self.in_slot(other, candidate), Term(0)).await;
            }
        }
    }
}

#[async_trait::async_trait]
impl Store for Slotted {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let begun = BootInstant::now();
        // Who has waited so long for a first answer would be cut off before the last.
        let takes_long = || BootInstant::now().since(begun) > self.patience / 3;
        let mut in_the_way = InTheWay::default();
        let (in_doubt, first) = {
            let mut state = self.state();
            if let Some(hold) = &mut state.hold {
                hold.doubt();
            }
            (state.hold.is_some(), state.hold.map_or(state.first, |hold| hold.slot))
        };
        // Should its orders be out of reach, the others are asked for all the same.
        let first = (in_doubt || matches!(self.gate(first).await, Ok(Gate::Open))).then_some(first);
        if let Some(slot) = first {
            match self.claim_slot(slot, candidate).await? {
                Claim::Granted(grant) => {
                    self.let_others_go(slot, candidate).await;
                    return Ok(Claim::Granted(grant));
                }
                Claim::Refused(holder) => in_the_way.add(holder),
            }
            if takes_long() {
                return Ok(Claim::Refused(in_the_way.told()));
            }
        }
        let mut failure = None;
        let mut free = Vec::new();
        for (slot, sight) in self.look_at_all(first).await {
            match sight {
                Ok(Sight::Free) => free.push(slot),
                Ok(Sight::Held(holder)) => in_the_way.add(holder),
                Ok(Sight::Barred(said)) => in_the_way.add_barred(&self.slots[slot], &said),
                Err(error) => failure = Some(error),
            }
        }
        for slot in free {
            match self.claim_slot(slot, candidate).await? {
                Claim::Granted(grant) => {
                    self.let_others_go(slot, candidate).await;
                    return Ok(Claim::Granted(grant));
                }
                Claim::Refused(holder) => in_the_way.add(holder),
            }
            if takes_long() {
                return Ok(Claim::Refused(in_the_way.told()));
            }
        }
        failure.map_or_else(|| Ok(Claim::Refused(in_the_way.told())), Err)
    }

    async fn observe(&self, _shard: &Shard) -> Result<Observation, StoreError> {
        let (mut in_the_way, mut failure) = (InTheWay::default(), None);
        for (slot, sight) in self.look_at_all(None).await {
            match sight {
                Ok(Sight::Free) => {
                    self.state().first = slot;
                    return Ok(Observation::Free);
                }
                Ok(Sight::Held(holder)) => in_the_way.add(holder),
                Ok(Sight::Barred(said)) => in_the_way.add_barred(&self.slots[slot], &said),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or_else(|| Ok(Observation::Held(in_the_way.told())), Err)
    }

    async fn renew(&self, candidate: &Candidate, term: Term, beat: u64) -> Result<Renewal, StoreError> {
        let Some(hold) = self.state().hold else { return Ok(Renewal::Lost(None)) };
        let renewed = self.inner.renew(&self.in_slot(hold.slot, candidate), term, beat).await;
        // What was won while the claim was answered is heard of only after that.
        self.let_others_go(hold.slot, candidate).await;
        renewed
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let slot = {
            let mut state = self.state();
            let Some(hold) = &mut state.hold else { return Ok(Release::NotHeld) };
            hold.doubt();
            hold.slot
        };
        let released = self.inner.release(&self.in_slot(slot, candidate), term).await?;
        let mut state = self.state();
        state.hold = None;
        state.first = slot;
        state.bars.released(slot, term);
        Ok(released)
    }

    async fn changed(&self, _shard: &Shard) -> Result<(), StoreError> {
        let (barred, open): (Vec<usize>, Vec<usize>) = {
            let state = self.state();
            (0..self.slots.len()).partition(|&slot| state.bars.has(slot))
        };
        let shards: Vec<Shard> = open.iter().map(|&slot| self.slots[slot].clone()).collect();
        let slot = tokio::select! {
            biased;
            changed = self.inner.any_changed(&shards), if !shards.is_empty() => open[changed?],
            opened = parallel::first(barred.iter().map(|&slot| self.opened(slot))), if !barred.is_empty() => opened?,
        };
        self.state().first = slot;
        Ok(())
    }

    async fn doubted(&self, _shard: &Shard) {
        match self.led() {
            Some((slot, _)) => self.inner.doubted(&self.slots[slot]).await,
            None => std::future::pending().await,
        }
    }

    async fn mandate(&self, candidate: &Candidate) -> Result<Mandate, StoreError> {
        self.mandate_of(candidate).await
    }

    fn place(&self) -> Option<Place> {
        let (slot, _) = self.led()?;
        let number = u32::try_from(slot + 1).expect("there are not so many");
        Some(Place { slot: number, shard: self.slots[slot].clone() })
    }

    fn with_tenure(&self, shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        self.inner.with_tenure(self.led().map_or(shard, |(slot, _)| &self.slots[slot]), act);
    }

    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.inner.inspect(shard).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        self.inner.list(prefix).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        self.inner.revoke(shard, term).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        self.inner.prepare().await
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        self.inner.check().await
    }

    fn delivery(&self) -> Delivery {
        self.inner.delivery()
    }

    fn expires(&self) -> bool {
        self.inner.expires()
    }

    fn is_metered(&self) -> bool {
        self.inner.is_metered()
    }

    fn hindrance(&self) -> Option<String> {
        self.inner.hindrance()
    }

    fn lanes(&self) -> usize {
        self.inner.lanes()
    }
}

/// Of the shard itself, or of a slot: whichever is named.
#[async_trait::async_trait]
impl Notes for Slotted {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        self.inner.read(shard, page).await
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        self.inner.replace(shard, page, expected, draft).await
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        self.inner.standbys(prefix).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_a_shard_and_tells_of_which() {
        let shard = |name: &str| name.parse::<Shard>().unwrap();
        assert_eq!(name(&shard("db/main"), 7).as_ref().map(Shard::as_str), Ok("db/main/7"));
        assert_eq!(parent(&shard("db/main/7")), Some((shard("db/main"), 7)));
        for none in ["7", "db/0", "db/65", "db/07", "db/x", "/7"] {
            assert_eq!(parent(&shard(none)), None, "{none}");
        }
        assert!(name(&shard(&"x".repeat(199)), 1).unwrap_err().contains("201 bytes"));
    }
}
