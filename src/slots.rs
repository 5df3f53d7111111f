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

mod holds;

use crate::election::Directives;
use crate::lease::{Candidate, Shard, Term};
use crate::notes::orders;
use crate::store::{
    Claim, ErrorKind, Holder, Leases, Location, Observation, Release, Renewal, Report, Store, StoreError, parallel,
};
use crate::time::BootInstant;
use holds::{Gate, Holds};
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
            Err(error) if error.kind == ErrorKind::Denied => {}
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
                Err(error) if error.kind == ErrorKind::Misconfigured => {
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
pub struct Slots {
    inner: Arc<dyn Store>,
    candidate: Candidate,
    /// Their shards, in their order. Below, a slot is its place in here.
    shards: Vec<Shard>,
    /// The most that a request may take.
    patience: Duration,
    state: Mutex<State>,
}

struct State {
    claimed: Option<Claimed>,
    /// Where the next claim begins.
    first: usize,
    holds: Holds,
}

/// The one slot that we hold, or may hold.
#[derive(Clone, Copy)]
struct Claimed {
    slot: usize,
    /// None while that is in doubt.
    term: Option<Term>,
    /// In doubt: when something was last sent that may have made or prolonged the lease.
    asked: BootInstant,
}

impl Claimed {
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
    /// Orders keep us from it, in these words.
    OnHold(String),
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

/// Where one of several leaders of a shard leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 1 on.
    pub slot: u32,
    /// The name under which the store has its lease.
    pub shard: Shard,
}

/// What a candidate campaigns for in a store: the lease of its shard, or of one of the shard's slots.
pub struct Campaign {
    store: Arc<dyn Store>,
    slots: Option<Slots>,
}

impl Campaign {
    /// For the one lease of the candidate's shard.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, slots: None }
    }

    /// For one of `slots` slots of the candidate's shard; a request takes `patience` at most.
    ///
    /// # Errors
    /// Where the name of a slot would be too long.
    pub fn with_slots(
        store: Arc<dyn Store>,
        candidate: &Candidate,
        slots: u32,
        patience: Duration,
    ) -> Result<Self, String> {
        let slots = Slots::new(Arc::clone(&store), candidate, slots, patience)?;
        Ok(Self { store, slots: Some(slots) })
    }

    /// The notes of the shard and of its slots, and what the store is like.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    #[must_use]
    pub fn leases(&self) -> &dyn Leases {
        match &self.slots {
            Some(slots) => slots,
            None => &*self.store,
        }
    }

    /// What operators' orders mean for the candidate.
    ///
    /// # Errors
    /// As [`orders::read`].
    pub async fn directives(&self, candidate: &Candidate) -> Result<Directives, StoreError> {
        match &self.slots {
            Some(slots) => slots.directives(candidate).await,
            None => Ok(orders::read(&*self.store, &candidate.shard).await?.directives(candidate)),
        }
    }

    /// The slot in which the candidate leads; None where a shard has one leader alone, or while it leads nothing.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.slots.as_ref()?.place()
    }
}

impl Slots {
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
        let state = Mutex::new(State { claimed: None, first, holds: Holds::of(slots.len()) });
        Ok(Self { inner, candidate: candidate.clone(), shards: slots, patience, state })
    }

    /// Where the candidate leads; None while it leads nothing.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let (slot, _) = self.led()?;
        let number = u32::try_from(slot + 1).expect("there are not so many");
        Some(Place { slot: number, shard: self.shards[slot].clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) % self.shards.len()
    }

    /// All of them, in the order in which they are asked for.
    fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.state().first, self.shards.len());
        (0..count).map(move |step| (first + step) % count)
    }

    fn in_slot(&self, slot: usize, candidate: &Candidate) -> Candidate {
        Candidate { shard: self.shards[slot].clone(), ..candidate.clone() }
    }

    /// Some while we lead there.
    fn led(&self) -> Option<(usize, Term)> {
        self.state().claimed.and_then(|hold| Some((hold.slot, hold.term?)))
    }

    /// In doubt from before it is sent until the store has said whose it is: also when this is dropped.
    async fn claim_slot(&self, slot: usize, candidate: &Candidate) -> Result<Claim, StoreError> {
        let before = {
            let mut state = self.state();
            let before = state.claimed.replace(Claimed { slot, term: None, asked: BootInstant::now() });
            assert!(before.is_none_or(|hold| hold.slot == slot), "nothing is claimed while another slot is in doubt");
            before
        };
        let answer = self.inner.claim(&self.in_slot(slot, candidate)).await;
        let mut state = self.state();
        match &answer {
            Ok(Claim::Granted(grant)) => {
                state.claimed = Some(Claimed { slot, term: Some(grant.term), asked: BootInstant::now() });
                state.first = slot;
            }
            Ok(Claim::Refused(_)) => {
                state.claimed = None;
                state.first = self.after(slot);
            }
            Err(StoreError { kind: ErrorKind::Unknown, .. }) => {}
            Err(error) => {
                if let Some(before) = before.filter(|before| !self.is_over(before, candidate, error)) {
                    // This claim was not applied. The one in doubt may have been.
                    state.claimed = Some(before);
                    return answer;
                }
                state.claimed = None;
                // What is wrong with this one need not be with the next.
                state.first = self.after(slot);
            }
        }
        answer
    }

    /// Whether a doubt is over without an answer: the store would give none for ever, and no lease lives so long.
    fn is_over(&self, doubt: &Claimed, candidate: &Candidate, error: &StoreError) -> bool {
        let for_ever = matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured);
        for_ever && self.inner.expires() && BootInstant::now().since(doubt.asked) > candidate.lease
    }

    async fn look_at(&self, slot: usize) -> Result<Sight, StoreError> {
        Ok(match self.gate(slot).await? {
            Gate::Held { said, .. } => Sight::OnHold(said),
            Gate::Open => match self.inner.observe(&self.shards[slot]).await? {
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
            for other in (0..self.shards.len()).filter(|&other| other != slot) {
                let _ = self.inner.release(&self.in_slot(other, candidate), Term(0)).await;
            }
        }
    }
}

#[async_trait::async_trait]
impl Leases for Slots {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let begun = BootInstant::now();
        // Who has waited so long for a first answer would be cut off before the last.
        let takes_long = || BootInstant::now().since(begun) > self.patience / 3;
        let mut in_the_way = InTheWay::default();
        let (in_doubt, first) = {
            let mut state = self.state();
            if let Some(hold) = &mut state.claimed {
                hold.doubt();
            }
            (state.claimed.is_some(), state.claimed.map_or(state.first, |hold| hold.slot))
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
                Ok(Sight::OnHold(said)) => in_the_way.add_barred(&self.shards[slot], &said),
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
                Ok(Sight::OnHold(said)) => in_the_way.add_barred(&self.shards[slot], &said),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or_else(|| Ok(Observation::Held(in_the_way.told())), Err)
    }

    async fn renew(&self, candidate: &Candidate, term: Term, sequence: u64) -> Result<Renewal, StoreError> {
        let Some(hold) = self.state().claimed else { return Ok(Renewal::Lost(None)) };
        let renewed = self.inner.renew(&self.in_slot(hold.slot, candidate), term, sequence).await;
        // What was won while the claim was answered is heard of only after that.
        self.let_others_go(hold.slot, candidate).await;
        renewed
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let slot = {
            let mut state = self.state();
            let Some(hold) = &mut state.claimed else { return Ok(Release::NotHeld) };
            hold.doubt();
            hold.slot
        };
        let released = self.inner.release(&self.in_slot(slot, candidate), term).await?;
        let mut state = self.state();
        state.claimed = None;
        state.first = slot;
        state.holds.released(slot, term);
        Ok(released)
    }

    async fn changed(&self, _shard: &Shard) -> Result<(), StoreError> {
        let (barred, open): (Vec<usize>, Vec<usize>) = {
            let state = self.state();
            (0..self.shards.len()).partition(|&slot| state.holds.has(slot))
        };
        let shards: Vec<Shard> = open.iter().map(|&slot| self.shards[slot].clone()).collect();
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
            Some((slot, _)) => self.inner.doubted(&self.shards[slot]).await,
            None => std::future::pending().await,
        }
    }

    fn with_lease_files(&self, shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        self.inner.with_lease_files(self.led().map_or(shard, |(slot, _)| &self.shards[slot]), act);
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
