//! The adapter alone, over a store in memory, whose answers are lost, late or refused on demand.

use crate::memory::{Name, Step, reference_by};
use crate::support::claims::eventually;
use crate::support::prelude::*;
use crate::way::{Fate, Line};
use leaderrun::internals::lease::{Candidate, Session, Shard, Term};
use leaderrun::internals::notes::orders::{self, Orders};
use leaderrun::internals::slots::Slots;
use leaderrun::internals::store::file::FileStore;
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::{Administration, Claim, Leases, Release, Store, StoreError};

/// A machine that stalls is not a slow network.
const PATIENCE: Duration = Duration::from_mins(1);

/// A store in memory that has forgotten nobody, and the way to it.
struct Bent {
    memory: Arc<LeaseStore>,
    line: Line,
}

impl Default for Bent {
    fn default() -> Self {
        let line = Line::where_each(|| {});
        Self { memory: Arc::new(reference_by(line.clone())), line }
    }
}

impl Bent {
    /// Of the next claim.
    fn claim(&self, fate: Fate) {
        self.line.next(|step| matches!(step, Step::Put(Name::Shard(_))), fate);
    }

    /// Of the next request, before anything is read.
    fn request(&self, fate: Fate) {
        self.line.next(|_| true, fate);
    }

    /// The shards whose leases it was asked for since then.
    fn asked(&self) -> Vec<Shard> {
        let mut asked: Vec<Shard> = Vec::new();
        for step in self.line.steps() {
            let names = match step {
                Step::Get { names, .. } => names,
                Step::Put(name) => vec![name],
                Step::Touch(_) | Step::Remove(_) | Step::List => Vec::new(),
            };
            for name in names {
                if let Name::Shard(shard) = name
                    && !asked.contains(&shard)
                {
                    asked.push(shard);
                }
            }
        }
        asked
    }
}

struct One {
    candidate: Candidate,
    store: Slots,
}

impl One {
    fn of(bent: &Bent, owner: &str, slots: u32) -> Self {
        Self::on(bent.memory.clone(), owner, slots)
    }

    fn on(store: Arc<dyn Store>, owner: &str, slots: u32) -> Self {
        let candidate = Candidate {
            shard: "s".parse().unwrap(),
            owner: owner.to_owned(),
            session: Session::random().unwrap(),
            host: owner.to_owned(),
            pid: 7,
            lease: Duration::from_mins(1),
        };
        let store = Slots::new(store, &candidate, slots, PATIENCE).unwrap();
        Self { candidate, store }
    }

    async fn claim(&self) -> Result<Claim, StoreError> {
        self.store.claim(&self.candidate).await
    }

    #[track_caller]
    fn led(&self, claim: Result<Claim, StoreError>) -> (u32, Term) {
        let Ok(Claim::Granted(grant)) = claim else { panic!("{claim:?}") };
        (self.store.slot().and_then(|slot| slot.slot()).expect("it leads"), grant.term)
    }

    async fn lead(&self) -> (u32, Term) {
        let claim = self.claim().await;
        self.led(claim)
    }

    async fn release(&self, term: Term) -> Result<Release, StoreError> {
        self.store.release(&self.candidate, term).await
    }
}

fn slot(number: u32) -> Shard {
    format!("s#{number}").parse().unwrap()
}

async fn taken(bent: &Bent, number: u32) {
    let other = Candidate { shard: slot(number), ..One::of(bent, "other", 1).candidate };
    assert!(matches!(bent.memory.claim(&other).await, Ok(Claim::Granted(_))));
}

async fn order(bent: &Bent, shard: &Shard, edit: impl Fn(&mut Orders)) {
    let edit = |orders: &mut Orders| {
        edit(orders);
        true
    };
    orders::change(&*bent.memory, shard, edit).await.unwrap();
}

async fn pause(bent: &Bent, shard: &Shard) {
    let pause = orders::pause(None, false, None).unwrap();
    order(bent, shard, |orders| orders.pause = Some(pause.clone())).await;
}

#[tokio::test]
async fn a_claim_in_doubt_is_asked_again_first_and_alone() {
    for fate in [Fate::Unheard, Fate::Lost] {
        let bent = Bent::default();
        let one = One::of(&bent, "c0", 4);
        bent.claim(fate);
        bent.claim(Fate::Lost);
        bent.request(Fate::Refused);
        assert!(one.claim().await.is_err());
        let first = bent.asked();
        for _ in 0..2 {
            assert!(one.claim().await.is_err() && one.store.slot().is_none());
            assert_eq!(bent.asked(), first);
        }
        assert_eq!(first, [slot(one.lead().await.0)]);
        assert_eq!(bent.asked(), first);
        assert_eq!(bent.memory.list("s#").await.unwrap().iter().filter(|(_, r)| r.holder.is_some()).count(), 1);
    }
}

#[tokio::test]
async fn a_claim_that_is_cut_off_is_in_doubt_and_who_leaves_releases_it() {
    let bent = Bent::default();
    let one = One::of(&bent, "c0", 4);
    bent.claim(Fate::UnheardHangs);
    assert!(tokio::time::timeout(Duration::from_millis(20), one.claim()).await.is_err());
    let held: Vec<_> = bent.memory.list("s#").await.unwrap();
    assert!(held.len() == 1 && held[0].1.holder.is_some() && one.store.slot().is_none());
    assert_eq!(one.release(Term(0)).await, Ok(Release::Released));
    assert_eq!(bent.memory.inspect(&held[0].0).await.unwrap().holder, None);
    bent.line.steps();
    assert_eq!(one.release(Term(0)).await, Ok(Release::NotHeld));
    assert_eq!(bent.line.steps(), [], "nothing was in doubt any more");
}

#[tokio::test]
async fn only_a_definite_refusal_ends_a_doubt() {
    let bent = Bent::default();
    let one = One::of(&bent, "c0", 2);
    bent.claim(Fate::Lost);
    assert!(one.claim().await.is_err());
    let asked = bent.asked();
    let number = asked[0].slot().expect("it is a slot");
    taken(&bent, number).await;
    bent.line.steps();
    bent.request(Fate::Denied);
    assert!(one.claim().await.is_err());
    assert_eq!(bent.asked(), asked);
    assert_eq!(one.lead().await.0, 3 - number);
}

#[tokio::test]
async fn the_kernel_gets_back_what_it_gave_beside_the_slot_that_is_led() {
    let scratch = tempfile::TempDir::new().unwrap();
    let (store, other) = (Arc::new(FileStore::open(scratch.path()).unwrap()), FileStore::open(scratch.path()).unwrap());
    let one = One::on(store.clone(), "c0", 3);
    let in_slot = |number| Candidate { shard: slot(number), ..one.candidate.clone() };
    for number in 1..=3 {
        assert!(matches!(store.claim(&in_slot(number)).await, Ok(Claim::Granted(_))));
    }
    let (led, _) = one.lead().await;
    for number in 1..=3 {
        let stranger = Candidate { session: Session::random().unwrap(), ..in_slot(number) };
        let claim = other.claim(&stranger).await;
        assert_eq!(matches!(claim, Ok(Claim::Granted(_))), number != led, "{number}: {claim:?}");
    }
}

#[tokio::test]
async fn a_pause_of_the_shard_that_keeps_leaders_does_not_hide_one_of_a_slot_that_does_not() {
    let bent = Bent::default();
    let one = One::of(&bent, "c0", 1);
    one.lead().await;
    let keep = orders::pause(None, true, None).unwrap();
    order(&bent, &one.candidate.shard, |orders| orders.pause = Some(keep.clone())).await;
    assert!(one.store.directives(&one.candidate).await.unwrap().pause.unwrap().keep);
    pause(&bent, &slot(1)).await;
    assert!(!one.store.directives(&one.candidate).await.unwrap().pause.unwrap().keep);
    order(&bent, &one.candidate.shard, |orders| orders.pause = None).await;
    order(&bent, &slot(1), |orders| orders.pause = Some(keep.clone())).await;
    assert!(one.store.directives(&one.candidate).await.unwrap().pause.unwrap().keep);
    pause(&bent, &one.candidate.shard).await;
    assert!(!one.store.directives(&one.candidate).await.unwrap().pause.unwrap().keep);
}

#[tokio::test]
async fn one_request_reads_the_orders_of_all_slots_that_are_on_hold() {
    let bent = Bent::default();
    for number in 1..=8 {
        pause(&bent, &slot(number)).await;
    }
    let one = One::of(&bent, "one", 8);
    let refused = one.claim().await;
    assert!(matches!(refused, Ok(Claim::Refused(_))), "{refused:?}");
    bent.line.steps();
    let shard = &one.candidate.shard;
    let waited = tokio::time::timeout(Duration::from_secs(3), one.store.changed(shard)).await;
    assert!(waited.is_err(), "{waited:?}");
    let reads = bent.line.steps();
    assert!((1..=2).contains(&reads.len()), "{reads:?}");
    order(&bent, &slot(5), |orders| orders.pause = None).await;
    let waited = tokio::time::timeout(PATIENCE, one.store.changed(shard)).await;
    assert_eq!(waited, Ok(Ok(())));
    assert_eq!(one.lead().await.0, 5);
}

#[tokio::test]
async fn a_doubt_that_is_never_answered_ends_with_the_lease() {
    const LEASE: Duration = Duration::from_secs(1);
    // Where the machine stalls for the lease, the doubt is over when it is asked again.
    let (bent, one, asked) = loop {
        let bent = Bent::default();
        let mut one = One::of(&bent, "c0", 2);
        one.candidate.lease = LEASE;
        bent.claim(Fate::Unheard);
        bent.request(Fate::Denied);
        let begun = Instant::now();
        assert!(one.claim().await.is_err() && one.claim().await.is_err());
        let asked = bent.asked();
        if begun.elapsed() < LEASE {
            break (bent, one, asked);
        }
    };
    assert_eq!(asked.len(), 1, "{asked:?}");
    tokio::time::sleep(LEASE * 2).await;
    bent.request(Fate::Refused);
    bent.request(Fate::Denied);
    assert!(one.claim().await.is_err() && one.claim().await.is_err());
    assert_eq!(bent.asked(), asked, "a store that is out of reach may answer yet");
    assert_ne!(slot(one.lead().await.0), asked[0]);
}

/// Of this process, those that sleep until a lock is theirs.
fn sleepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "file lock").count()
}

#[tokio::test]
async fn who_waits_for_several_locks_again_and_again_has_one_thread_for_each() {
    let scratch = tempfile::TempDir::new().unwrap();
    let (other, store) = (FileStore::open(scratch.path()).unwrap(), FileStore::open(scratch.path()).unwrap());
    let all = [slot(1), slot(2)].map(|shard| Candidate { shard, ..One::of(&Bent::default(), "c0", 1).candidate });
    for candidate in &all {
        assert!(matches!(other.claim(candidate).await, Ok(Claim::Granted(_))));
    }
    let shards = all.clone().map(|candidate| candidate.shard);
    for _ in 0..20 {
        let waited = tokio::time::timeout(Duration::from_millis(5), store.any_changed(&shards)).await;
        assert!(waited.is_err(), "{waited:?}");
    }
    // A thread gives itself its name, which a busy machine lets it do later.
    eventually("both sleep", async || sleepers() >= 2).await;
    assert_eq!(sleepers(), 2);
    let released = async { other.release(&all[1], Term(0)).await };
    let (changed, released) = tokio::join!(store.any_changed(&shards), released);
    assert_eq!((changed, released), (Ok(1), Ok(Release::Released)));
    let two = Candidate { session: Session::random().unwrap(), ..all[1].clone() };
    assert!(matches!(store.claim(&two).await, Ok(Claim::Granted(_))), "its thread has won");
}
