//! Several leaders of one shard, each in a slot of its own: a layer over a store, for one candidate.
//!
//! To a store, slot 2 of the shard `S` is a shard with the name `S#2`, which no shard of a user can have, with its own
//! lease, terms and orders. So everything that works for a shard works for a slot, operators' commands among them.
//!
//! The hazards:
//!
//! - *An answer may be lost.* A claim without a definite answer may have been granted, or may yet be. A candidate that
//!   went on to the next slot could hold two. So it asks for the slot of such a claim again, before any other, until
//!   the store has said who holds it. A candidate that leaves before that releases the slot.
//! - *A claim tries one slot after another, and a timeout cuts off the whole claim.* On a slow network that would
//!   happen at the same slot every time. So a claim keeps what it has learnt, the next claim begins where the last one
//!   ended, and after a slow first answer the rest is left to the next look.
//! - *A paused slot looks free.* A candidate that took it would give it back and take it again, without end. So a
//!   candidate skips a slot that is on hold, and reads the slot's orders again from time to time.

mod holds;

use crate::election::Directives;
use crate::lease::{Candidate, MOST_SLOTS, Shard, Term};
use crate::notes::hosts;
use crate::notes::orders::{self, Orders};
use crate::store::parallel::FEW;
use crate::store::stable_hash::fnv1a;
use crate::store::{
    Answer, Claim, Delivery, ErrorKind, Holder, Leases, Location, Note, Observation, Release, Renewal, Renewed, Report,
    Store, StoreError, parallel,
};
use crate::time::BootInstant;
use holds::{Gate, Holds};
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub fn name(shard: &Shard, slot: u32) -> Result<Shard, String> {
    Shard::from_str(&format!("{shard}#{slot}")).map_err(|why| format!("slot {slot} cannot be named: {why}"))
}

/// The reports of [`Administration::inspect`](crate::store::Administration::inspect) on the slots of `shard`, without
/// empty ones.
///
/// It needs no more permission than looking at a shard. If listing needs more, or costs money, it asks for each
/// possible slot by name. (Kubernetes is metered to spare its API server, and one list spares it more.)
pub async fn inspect(store: &dyn Store, shard: &Shard) -> Answer<Vec<(Shard, Report)>> {
    if !store.is_metered() || store.delivery() == Delivery::Push {
        match store.list(&format!("{shard}#")).await {
            Err(error) if error.kind == ErrorKind::Denied => {}
            list => {
                let is_slot = |found: &Shard| found.parent().as_ref() == Some(shard);
                let mut slots: Vec<_> = list?.into_iter().filter(|(found, _)| is_slot(found)).collect();
                slots.sort_by_key(|(slot, _)| slot.slot());
                return Ok(slots);
            }
        }
    }
    let slots: Vec<Shard> = (1..=MOST_SLOTS).map_while(|slot| name(shard, slot).ok()).collect();
    let mut known = Vec::new();
    for some in slots.chunks(FEW) {
        let looks = some.iter().map(|slot| async move { (slot, store.inspect(slot).await) });
        for (slot, report) in parallel::all(looks).await {
            let report = match report {
                // A list also shows records that another program wrote.
                Err(error) if error.kind == ErrorKind::Misconfigured => {
                    Report { holder: Some(Holder::unknown()), last_term: None }
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

/// Checks that the store at `location` can have `slots` leaders of a shard.
pub fn check(location: &Location, slots: u32) -> Result<(), String> {
    match location.foreign_lock() {
        Some(option) if slots > 1 => Err(format!(
            "--slots {slots} does not work with {option}= in the store URL, which allows one leader: leave one of them out"
        )),
        _ => Ok(()),
    }
}

/// The slots of a shard, as one candidate sees them in a store.
pub struct Slots {
    inner: Arc<dyn Store>,
    candidate: Candidate,
    /// The shard of each slot, in order. Below, a slot is an index into this.
    shards: Vec<Shard>,
    patience: Duration,
    state: Mutex<State>,
}

struct State {
    claimed: Option<Claimed>,
    first: usize,
    holds: Holds,
}

/// The one slot that the candidate holds or may hold.
#[derive(Clone, Copy)]
struct Claimed {
    slot: usize,
    /// None while it is in doubt.
    term: Option<Term>,
    /// When the last request was sent that may have made or prolonged the lease. Read while it is in doubt.
    asked: BootInstant,
}

impl Claimed {
    fn doubt(&mut self) {
        if self.term.take().is_some() {
            self.asked = BootInstant::now();
        }
    }
}

/// What keeps a claim from a slot: its holder, or (true) orders, with nobody as the holder.
type InTheWay = Vec<(bool, Holder)>;

/// The holder to report when all slots are taken: the one whose lease ends first. A slot on hold is reported only if no
/// slot has a holder.
fn first_to_end(in_the_way: InTheWay) -> Holder {
    let end = |(on_hold, holder): &(bool, Holder)| (*on_hold, holder.expires_in.unwrap_or(Duration::MAX));
    in_the_way.into_iter().min_by_key(end).expect("a shard has slots, and each was asked for").1
}

/// The lease that a candidate campaigns for: that of its shard, or of one of the shard's slots.
pub struct Campaign {
    store: Arc<dyn Store>,
    slots: Option<Slots>,
    /// Nothing has held the host back since the last claim.
    host_may_lead: AtomicBool,
}

impl Campaign {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, slots: None, host_may_lead: AtomicBool::new(false) }
    }

    /// A campaign for one of `slots` slots of the candidate's shard. A request takes at most `patience`.
    pub fn with_slots(
        store: Arc<dyn Store>,
        candidate: &Candidate,
        slots: u32,
        patience: Duration,
    ) -> Result<Self, String> {
        let slots = Slots::new(Arc::clone(&store), candidate, slots, patience)?;
        Ok(Self { slots: Some(slots), ..Self::new(store) })
    }

    /// The store, for notes of the shard and its slots, and for its properties.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    pub fn leases(&self) -> &dyn Leases {
        match &self.slots {
            Some(slots) => slots,
            None => &*self.store,
        }
    }

    pub async fn claim(&self, candidate: &Candidate) -> Answer<Claim> {
        self.host_may_lead.store(false, Ordering::Relaxed);
        self.leases().claim(candidate).await
    }

    /// The directives for the candidate, from operators' orders. Those for its host count until they let it lead: after
    /// that, a leader need not ask again.
    pub async fn directives(&self, candidate: &Candidate) -> Answer<Directives> {
        let own = async {
            match &self.slots {
                Some(slots) => slots.directives(candidate).await,
                None => Ok(orders::read(&*self.store, &candidate.shard).await?.directives(candidate)),
            }
        };
        if self.host_may_lead.load(Ordering::Relaxed) {
            return own.await;
        }
        let (own, host) = tokio::join!(own, hosts::pause(&*self.store, candidate));
        let mut directives = own?;
        let host = host?;
        self.host_may_lead.store(host.is_none(), Ordering::Relaxed);
        directives.pause = directives.pause.or(host);
        Ok(directives)
    }

    /// Renews the lease. Returns also the directives, if the orders came with the answer. Orders that cannot be read
    /// are no error: they did not come.
    pub async fn renew(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
    ) -> Answer<(Renewal, Option<Directives>)> {
        let led = self.slots.as_ref().and_then(Slots::led);
        let shards: Vec<Shard> = [candidate.shard.clone()].into_iter().chain(self.slot()).collect();
        let Renewed { renewal, orders } = self.leases().renew_and_read(candidate, term, sequence, &shards).await?;
        let read = |notes: Vec<Option<Note>>| {
            let orders = notes.iter().zip(&shards).map(|(note, shard)| Orders::read(note.as_ref(), shard).ok());
            match (&orders.collect::<Option<Vec<_>>>()?[..], &self.slots) {
                ([own], None) => Some(own.directives(candidate)),
                // The slot may have been released meanwhile.
                ([all, own], Some(slots)) if slots.led() == led => Some(slots.leader_directives(led?, all, own)),
                _ => None,
            }
        };
        Ok((renewal, orders.and_then(read)))
    }

    /// The slot in which the candidate leads. None without slots, or while it does not lead.
    pub fn slot(&self) -> Option<Shard> {
        self.slots.as_ref()?.slot()
    }
}

impl Slots {
    /// The slots of `candidate`'s shard. A request takes at most `patience`.
    pub fn new(inner: Arc<dyn Store>, candidate: &Candidate, slots: u32, patience: Duration) -> Result<Self, String> {
        let slots = (1..=slots).map(|slot| name(&candidate.shard, slot)).collect::<Result<Vec<_>, _>>()?;
        assert!(!slots.is_empty(), "a shard has a slot at least");
        // Candidates begin at different slots, to stay out of each other's way. One with a fixed owner name begins at
        // the same slot each time.
        let first = fnv1a(candidate.owner.bytes()) % slots.len() as u64;
        let first = usize::try_from(first).expect("there are not so many");
        let state = Mutex::new(State { claimed: None, first, holds: Holds::of(slots.len()) });
        Ok(Self { inner, candidate: candidate.clone(), shards: slots, patience, state })
    }

    pub fn slot(&self) -> Option<Shard> {
        self.led().map(|(slot, _)| self.shards[slot].clone())
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) % self.shards.len()
    }

    /// All slots, in the order in which a claim tries them.
    fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let first = self.state.lock().first;
        let count = self.shards.len();
        (0..count).map(move |step| (first + step) % count)
    }

    fn in_slot(&self, slot: usize, candidate: &Candidate) -> Candidate {
        Candidate { shard: self.shards[slot].clone(), ..candidate.clone() }
    }

    fn led(&self) -> Option<(usize, Term)> {
        self.state.lock().claimed.and_then(|claimed| Some((claimed.slot, claimed.term?)))
    }

    /// Claims a slot. The slot is in doubt from before the request until the store has said who holds it, even if this
    /// is dropped.
    async fn claim_slot(&self, slot: usize, candidate: &Candidate) -> Answer<Claim> {
        let before = {
            let mut state = self.state.lock();
            let before = state.claimed.replace(Claimed { slot, term: None, asked: BootInstant::now() });
            assert!(before.is_none_or(|claimed| claimed.slot == slot), "another slot is in doubt: it comes first");
            before
        };
        let answer = self.inner.claim(&self.in_slot(slot, candidate)).await;
        let mut state = self.state.lock();
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
                    // This claim was not applied, but the earlier one, still in doubt, may have been.
                    state.claimed = Some(before);
                    return answer;
                }
                state.claimed = None;
                // The next slot need not have the same fault.
                state.first = self.after(slot);
            }
        }
        answer
    }

    /// True if a doubt is over without an answer: the store would never give one, and the lease would have expired by
    /// now.
    fn is_over(&self, doubt: &Claimed, candidate: &Candidate, error: &StoreError) -> bool {
        let for_ever = matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured);
        for_ever && self.inner.expires() && BootInstant::now().since(doubt.asked) > candidate.lease
    }

    /// What keeps a claim from this slot, if anything does.
    async fn look_at(&self, slot: usize) -> Answer<Option<(bool, Holder)>> {
        let shard = &self.shards[slot];
        if let Gate::OnHold(said) = self.gate(slot).await? {
            let owner = format!("nobody ({shard} is {said})");
            return Ok(Some((true, Holder { owner, ..Holder::default() })));
        }
        Ok(match self.inner.observe(shard).await? {
            Observation::Free => None,
            Observation::Held(holder) => Some((false, holder)),
        })
    }

    /// Looks at all slots but one. Returns the free ones, in the order in which a claim tries them, and the last
    /// failure.
    async fn look_at_all(&self, but: Option<usize>, in_the_way: &mut InTheWay) -> (Vec<usize>, Option<StoreError>) {
        let slots: Vec<usize> = self.in_order().filter(|&slot| Some(slot) != but).collect();
        let mut free = Vec::new();
        let mut failure = None;
        for some in slots.chunks(FEW) {
            let sights = parallel::all(some.iter().map(|&slot| self.look_at(slot))).await;
            for (&slot, sight) in some.iter().zip(sights) {
                match sight {
                    Ok(None) => free.push(slot),
                    Ok(Some(obstacle)) => in_the_way.push(obstacle),
                    Err(error) => failure = Some(error),
                }
            }
        }
        (free, failure)
    }

    /// One step of a claim that began at `begun`. Returns the answer of the whole claim if this step ends it.
    async fn try_slot(
        &self,
        slot: usize,
        candidate: &Candidate,
        begun: BootInstant,
        in_the_way: &mut InTheWay,
    ) -> Answer<Option<Claim>> {
        match self.claim_slot(slot, candidate).await? {
            Claim::Granted(grant) => {
                self.release_other_slots(slot, candidate).await;
                return Ok(Some(Claim::Granted(grant)));
            }
            Claim::Refused(holder) => in_the_way.push((false, holder)),
        }
        // After such a slow answer, the timeout would come before the last.
        let takes_long = BootInstant::now().since(begun) > self.patience / 3;
        Ok(takes_long.then(|| Claim::Refused(first_to_end(std::mem::take(in_the_way)))))
    }

    /// Releases every slot but the one that the candidate leads: the kernel may have granted several.
    async fn release_other_slots(&self, slot: usize, candidate: &Candidate) {
        if !self.inner.expires() {
            for other in (0..self.shards.len()).filter(|&other| other != slot) {
                let _ = self.inner.release(&self.in_slot(other, candidate), Term(0)).await;
            }
        }
    }
}

#[async_trait::async_trait]
impl Leases for Slots {
    async fn claim(&self, candidate: &Candidate) -> Answer<Claim> {
        let begun = BootInstant::now();
        let mut in_the_way = InTheWay::new();
        let (in_doubt, first) = {
            let mut state = self.state.lock();
            if let Some(claimed) = &mut state.claimed {
                claimed.doubt();
            }
            (state.claimed.is_some(), state.claimed.map_or(state.first, |claimed| claimed.slot))
        };
        // If its orders cannot be read, the other slots are tried all the same.
        let first = (in_doubt || matches!(self.gate(first).await, Ok(Gate::Open))).then_some(first);
        if let Some(slot) = first
            && let Some(answer) = self.try_slot(slot, candidate, begun, &mut in_the_way).await?
        {
            return Ok(answer);
        }
        let (free, failure) = self.look_at_all(first, &mut in_the_way).await;
        for slot in free {
            if let Some(answer) = self.try_slot(slot, candidate, begun, &mut in_the_way).await? {
                return Ok(answer);
            }
        }
        failure.map_or_else(|| Ok(Claim::Refused(first_to_end(in_the_way))), Err)
    }

    async fn observe(&self, _shard: &Shard) -> Answer<Observation> {
        let mut in_the_way = InTheWay::new();
        let (free, failure) = self.look_at_all(None, &mut in_the_way).await;
        if let Some(&slot) = free.first() {
            self.state.lock().first = slot;
            return Ok(Observation::Free);
        }
        failure.map_or_else(|| Ok(Observation::Held(first_to_end(in_the_way))), Err)
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Answer<Renewed> {
        let Some(claimed) = self.state.lock().claimed else { return Ok(Renewed::alone(Renewal::Lost(None))) };
        let candidate_there = self.in_slot(claimed.slot, candidate);
        let renewed = self.inner.renew_and_read(&candidate_there, term, sequence, shards).await;
        // A slot that was won during the claim is known only now.
        self.release_other_slots(claimed.slot, candidate).await;
        renewed
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Answer<Release> {
        let slot = {
            let mut state = self.state.lock();
            let Some(claimed) = &mut state.claimed else { return Ok(Release::NotHeld) };
            claimed.doubt();
            claimed.slot
        };
        let released = self.inner.release(&self.in_slot(slot, candidate), term).await?;
        let mut state = self.state.lock();
        state.claimed = None;
        state.first = slot;
        state.holds.released(slot, term);
        Ok(released)
    }

    async fn changed(&self, _shard: &Shard) -> Answer<()> {
        let (on_hold, open): (Vec<usize>, Vec<usize>) = {
            let state = self.state.lock();
            (0..self.shards.len()).partition(|&slot| state.holds.has(slot))
        };
        let shards: Vec<Shard> = open.iter().map(|&slot| self.shards[slot].clone()).collect();
        let slot = tokio::select! {
            biased;
            changed = self.inner.any_changed(&shards), if !shards.is_empty() => open[changed?],
            opened = self.opened(&on_hold), if !on_hold.is_empty() => opened?,
        };
        self.state.lock().first = slot;
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
