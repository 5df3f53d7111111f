//! The adapter alone, over the reference store, whose answers are lost, late or refused on demand.

use crate::memory::reference;
use crate::support::claims::eventually;
use leaderrun::internals::lease::{Candidate, Session, Shard, Term};
use leaderrun::internals::notes::orders::{self, Orders};
use leaderrun::internals::slots::Slots;
use leaderrun::internals::store::Administration;
use leaderrun::internals::store::file::FileStore;
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::{
    Claim, Delivery, ErrorKind, Finding, Leases, Note, NoteRead, Notes, Observation, Page, Release, Renewed, Report,
    Store, StoreError,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A machine that stalls is not a slow network.
const PATIENCE: Duration = Duration::from_mins(1);

/// What becomes of a claim.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is applied, and nobody hears of it.
    Unheard,
    /// It is not applied, which nobody hears of either.
    Swallowed,
    /// Its answer takes for ever; it is applied.
    Hangs,
    /// It is refused in this way.
    Fails(ErrorKind),
}

/// The reference store, and what it was asked for.
struct Bent {
    memory: LeaseStore,
    fates: Mutex<VecDeque<Fate>>,
    asked: Mutex<Vec<String>>,
    /// How many requests read notes.
    reads: AtomicUsize,
    kernel: bool,
}

impl Default for Bent {
    fn default() -> Self {
        let reads = AtomicUsize::default();
        Self { memory: reference(), fates: Mutex::default(), asked: Mutex::default(), reads, kernel: false }
    }
}

impl Bent {
    fn next(&self, fates: &[Fate]) {
        self.fates.lock().unwrap().extend(fates);
    }

    /// Since it was asked last.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn note(&self, what: &str, shard: &Shard) {
        self.asked.lock().unwrap().push(format!("{what} {shard}"));
    }
}

#[async_trait::async_trait]
impl Leases for Bent {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        self.note("claim", &candidate.shard);
        let fate = self.fates.lock().unwrap().pop_front();
        match fate {
            None => self.memory.claim(candidate).await,
            Some(Fate::Swallowed) => Err(StoreError::unknown("no answer")),
            Some(Fate::Fails(kind)) => Err(StoreError { kind, message: "refused".to_owned(), cause: None }),
            Some(Fate::Unheard) => {
                self.memory.claim(candidate).await?;
                Err(StoreError::unknown("no answer"))
            }
            Some(Fate::Hangs) => {
                self.memory.claim(candidate).await?;
                std::future::pending().await
            }
        }
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        self.note("observe", shard);
        self.memory.observe(shard).await
    }

    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        term: Term,
        sequence: u64,
        shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        self.note("renew", &candidate.shard);
        self.memory.renew_and_read(candidate, term, sequence, shards).await
    }

    async fn release(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        self.note("release", &candidate.shard);
        self.memory.release(candidate, term).await
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        while self.memory.observe(shard).await? != Observation::Free {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Administration for Bent {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        self.memory.inspect(shard).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        self.memory.list(prefix).await
    }

    async fn revoke(&self, shard: &Shard, term: Term) -> Result<Release, StoreError> {
        self.memory.revoke(shard, term).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }
}

#[async_trait::async_trait]
impl Store for Bent {
    fn delivery(&self) -> Delivery {
        Delivery::Push
    }

    fn expires(&self) -> bool {
        !self.kernel
    }

    async fn read_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.memory.read_notes(wanted).await
    }
}

#[async_trait::async_trait]
impl Notes for Bent {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.memory.read(shard, page).await
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        self.memory.replace(shard, page, expected, draft).await
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        self.memory.standbys(prefix).await
    }
}

/// A candidate, and the store as it sees it.
struct One {
    candidate: Candidate,
    store: Slots,
}

impl One {
    fn of(bent: &Arc<Bent>, owner: &str, slots: u32) -> Self {
        let candidate = Candidate {
            shard: "s".parse().unwrap(),
            owner: owner.to_owned(),
            session: Session::random().unwrap(),
            host: owner.to_owned(),
            pid: 7,
            lease: Duration::from_mins(1),
        };
        let inner: Arc<dyn Store> = bent.clone();
        let store = Slots::new(inner, &candidate, slots, PATIENCE).unwrap();
        Self { candidate, store }
    }

    async fn claim(&self) -> Result<Claim, StoreError> {
        self.store.claim(&self.candidate).await
    }

    /// The slot that it is granted.
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

/// Of these, somebody else holds those.
async fn taken(bent: &Bent, slots: &[u32]) -> Vec<(Candidate, Term)> {
    let mut taken = Vec::new();
    for &number in slots {
        let mut other = One::of(&Arc::default(), "other", 1).candidate;
        other.shard = slot(number);
        let Ok(Claim::Granted(grant)) = bent.memory.claim(&other).await else { panic!("{number} is taken") };
        taken.push((other, grant.term));
    }
    taken
}

async fn order(bent: &Bent, shard: &Shard, edit: impl Fn(&mut Orders)) {
    let edit = |orders: &mut Orders| {
        edit(orders);
        true
    };
    orders::change(&bent.memory, shard, edit).await.unwrap();
}

async fn pause(bent: &Bent, shard: &Shard) {
    let pause = orders::pause(None, false, None).unwrap();
    order(bent, shard, |orders| orders.pause = Some(pause.clone())).await;
}

#[tokio::test]
async fn a_claim_in_doubt_is_asked_again_first_and_alone() {
    for fate in [Fate::Unheard, Fate::Swallowed] {
        let bent = Arc::new(Bent::default());
        let one = One::of(&bent, "c0", 4);
        bent.next(&[fate, Fate::Swallowed, Fate::Fails(ErrorKind::NotApplied)]);
        assert!(one.claim().await.is_err());
        let [first] = &bent.asked()[..] else { panic!("one was asked for") };
        for _ in 0..2 {
            assert!(one.claim().await.is_err() && one.store.slot().is_none());
            assert_eq!(bent.asked().join(" "), *first, "{fate:?}");
        }
        assert_eq!(format!("claim s#{}", one.lead().await.0), *first);
        assert_eq!(bent.asked().join(" "), *first);
        assert_eq!(bent.memory.list("s#").await.unwrap().iter().filter(|(_, r)| r.holder.is_some()).count(), 1);
    }
}

#[tokio::test]
async fn a_claim_that_is_cut_off_is_in_doubt_and_who_leaves_releases_it() {
    let bent = Arc::new(Bent::default());
    let one = One::of(&bent, "c0", 4);
    bent.next(&[Fate::Hangs]);
    assert!(tokio::time::timeout(Duration::from_millis(20), one.claim()).await.is_err());
    let held: Vec<_> = bent.memory.list("s#").await.unwrap();
    assert!(held.len() == 1 && held[0].1.holder.is_some() && one.store.slot().is_none());
    assert_eq!(one.release(Term(0)).await, Ok(Release::Released));
    assert_eq!(bent.memory.inspect(&held[0].0).await.unwrap().holder, None);
    bent.asked();
    assert_eq!(one.release(Term(0)).await, Ok(Release::NotHeld));
    assert!(bent.asked().is_empty(), "nothing was in doubt any more");
}

#[tokio::test]
async fn only_a_definite_refusal_ends_a_doubt() {
    let bent = Arc::new(Bent::default());
    let one = One::of(&bent, "c0", 2);
    bent.next(&[Fate::Swallowed]);
    assert!(one.claim().await.is_err());
    let asked = bent.asked();
    let number: u32 = asked[0].rsplit_once('#').unwrap().1.parse().unwrap();
    taken(&bent, &[number]).await;
    bent.next(&[Fate::Fails(ErrorKind::Denied)]);
    assert!(one.claim().await.is_err());
    assert_eq!(bent.asked(), asked);
    assert_eq!(one.lead().await.0, 3 - number);
}

#[tokio::test]
async fn the_kernel_gets_back_what_it_gave_beside_the_slot_that_is_led() {
    let bent = Arc::new(Bent { kernel: true, ..Bent::default() });
    let one = One::of(&bent, "c0", 3);
    let (led, _) = one.lead().await;
    let mut asked = bent.asked();
    assert_eq!(asked.remove(0), format!("claim s#{led}"));
    let others = (1..=3).filter(|&other| other != led);
    assert_eq!(asked, others.map(|other| format!("release s#{other}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_pause_of_the_shard_that_keeps_leaders_does_not_hide_one_of_a_slot_that_does_not() {
    let bent = Arc::new(Bent::default());
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
    let bent = Arc::new(Bent::default());
    for number in 1..=8 {
        pause(&bent, &slot(number)).await;
    }
    let one = One::of(&bent, "one", 8);
    let refused = one.claim().await;
    assert!(matches!(refused, Ok(Claim::Refused(_))), "{refused:?}");
    bent.reads.store(0, Ordering::Relaxed);
    let shard = &one.candidate.shard;
    let waited = tokio::time::timeout(Duration::from_secs(3), one.store.changed(shard)).await;
    assert!(waited.is_err(), "{waited:?}");
    let reads = bent.reads.load(Ordering::Relaxed);
    assert!((1..=2).contains(&reads), "{reads}");
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
        let bent = Arc::new(Bent::default());
        let mut one = One::of(&bent, "c0", 2);
        one.candidate.lease = LEASE;
        bent.next(&[Fate::Unheard, Fate::Fails(ErrorKind::Denied)]);
        let begun = Instant::now();
        assert!(one.claim().await.is_err() && one.claim().await.is_err());
        let asked = bent.asked();
        if begun.elapsed() < LEASE {
            break (bent, one, asked);
        }
    };
    assert_eq!(asked[0], asked[1]);
    tokio::time::sleep(LEASE * 2).await;
    bent.next(&[Fate::Fails(ErrorKind::NotApplied), Fate::Fails(ErrorKind::Denied)]);
    assert!(one.claim().await.is_err() && one.claim().await.is_err());
    assert_eq!(bent.asked(), asked, "a store that is out of reach may answer yet");
    assert_ne!(format!("claim s#{}", one.lead().await.0), asked[0]);
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
    let all = [slot(1), slot(2)].map(|shard| Candidate { shard, ..One::of(&Arc::default(), "c0", 1).candidate });
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
