//! Candidates and operators that ask a store directly, without a program around them.

use super::prelude::*;
use super::said::has_all;
pub use leaderrun::internals::lease::{Candidate, Session, Shard, Term};
pub use leaderrun::internals::store::{
    Administration as _, Claim, Doubt, ErrorKind, Finding, Grant, Holder, Leases as _, Location, Note, Notes as _,
    Observation, Page, Release, Renewal, Store, StoreError, Verdict,
};
use tokio::task::{JoinHandle, JoinSet};

pub const LEASE: Duration = Duration::from_secs(15);

pub fn shard() -> Shard {
    "db/main".parse().expect("a shard")
}

pub fn candidate(owner: &str) -> Candidate {
    Candidate {
        shard: shard(),
        owner: owner.to_owned(),
        session: Session::random().expect("the kernel has random bytes"),
        host: "here".to_owned(),
        pid: 7,
        lease: LEASE,
    }
}

pub fn with_lease(owner: &str, lease: Duration) -> Candidate {
    Candidate { lease, ..candidate(owner) }
}

#[track_caller]
pub fn granted(claim: Claim) -> Grant {
    match claim {
        Claim::Granted(grant) => grant,
        Claim::Refused(holder) => panic!("refused, for {holder:?} holds it"),
    }
}

#[track_caller]
pub fn refused(claim: Claim) -> Holder {
    match claim {
        Claim::Refused(holder) => holder,
        Claim::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Claims, again after a request whose answer was late, as where a server is busy.
async fn answered(store: &dyn Store, candidate: &Candidate) -> Claim {
    let begun = Instant::now();
    let may_be_late = |error: &StoreError| matches!(error.kind, ErrorKind::NotApplied | ErrorKind::Unknown);
    loop {
        match store.claim(candidate).await {
            Err(error) if may_be_late(&error) && begun.elapsed() < PATIENCE => {}
            answer => return answer.expect("the store answers"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Claims, and expects no wait.
pub async fn lead(store: &dyn Store, candidate: &Candidate) -> Term {
    let grant = granted(answered(store, candidate).await);
    assert_eq!(grant.start_after, None, "{grant:?}");
    grant.term
}

/// A candidate called `one`, and the term in which it leads now.
pub async fn one_leads(store: &dyn Store) -> (Candidate, Term) {
    one_leads_for(store, LEASE).await
}

pub async fn one_leads_for(store: &dyn Store, lease: Duration) -> (Candidate, Term) {
    let one = with_lease("one", lease);
    let term = lead(store, &one).await;
    (one, term)
}

/// Claims until it is granted, as a standby would after an expiry.
pub async fn granted_in_time(store: &dyn Store, candidate: &Candidate) -> Grant {
    let begun = Instant::now();
    loop {
        match answered(store, candidate).await {
            Claim::Granted(grant) => return grant,
            Claim::Refused(_) => assert!(begun.elapsed() < PATIENCE, "it never expires"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Candidates claim at once, each by a store of its own, again and again: each time one wins, in a higher term.
pub async fn one_wins_every_race(stores: &[Arc<dyn Store>], shard: &str, races: usize) {
    let mut last = Term(0);
    for race in 0..races {
        // A lease that outlasts the race, however slow the machine.
        let candidate = |index| Candidate {
            shard: shard.parse().expect("a shard"),
            ..with_lease(&format!("c{index}"), Duration::from_mins(5))
        };
        let candidates: Vec<_> = (0..stores.len()).map(candidate).collect();
        // Nobody has to look any more, so all of them write at once.
        for store in stores {
            eventually("a look is answered", async || store.observe(&candidates[0].shard).await.is_ok()).await;
        }
        let mut claims = JoinSet::new();
        for (index, (store, candidate)) in stores.iter().zip(&candidates).enumerate() {
            let (store, candidate) = (Arc::clone(store), candidate.clone());
            claims.spawn(async move {
                let begun = Instant::now();
                loop {
                    match store.claim(&candidate).await {
                        Ok(claim) => return (index, claim),
                        Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
                    }
                }
            });
        }
        let winners = claims.join_all().await.into_iter().filter_map(|(index, claim)| match claim {
            Claim::Granted(grant) => Some((index, grant.term)),
            Claim::Refused(_) => None,
        });
        let winners: Vec<_> = winners.collect();
        let [(winner, term)] = winners[..] else { panic!("race {race}: {winners:?}") };
        assert!(term > last, "race {race}: term {term} after {last}");
        last = term;
        assert_eq!(stores[winner].release(&candidates[winner], term).await, Ok(Release::Released));
    }
}

pub fn wait_of(grant: &Grant) -> Duration {
    grant.start_after.map_or(Duration::ZERO, |until| until.since(BootInstant::now()))
}

/// Waits until it is so; the tasks of a store go on meanwhile.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for news of the shard, as a standby does, while the test goes on.
pub fn listens<S: Store + ?Sized + 'static>(store: &Arc<S>) -> JoinHandle<Result<(), StoreError>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { store.changed(&shard()).await })
}

pub fn renews<S: Store + ?Sized + 'static>(
    store: &Arc<S>,
    candidate: &Candidate,
    term: Term,
    sequence: u64,
) -> JoinHandle<Result<Renewal, StoreError>> {
    let (store, candidate) = (Arc::clone(store), candidate.clone());
    tokio::spawn(async move { store.renew(&candidate, term, sequence).await })
}

pub fn texts(findings: &[Finding], verdict: Verdict) -> Vec<&str> {
    findings.iter().filter(|finding| finding.verdict == verdict).map(|finding| finding.text.as_str()).collect()
}

/// It fails in this way, with a message of one line that has these parts, separated by …, and no password in it.
#[track_caller]
pub fn failed<T>(answer: Result<T, StoreError>, kind: ErrorKind, parts: &str) -> String {
    let Err(error) = answer else { panic!("it did not fail: {parts}") };
    assert_eq!(error.kind, kind, "{error}");
    assert!(has_all(&error.message, parts) && !error.message.contains('\n'), "{error} lacks something of {parts}");
    error.message
}

macro_rules! failures {
    ($($name:ident: $kind:ident,)*) => {$(
        #[track_caller]
        pub fn $name<T>(answer: Result<T, StoreError>, parts: &str) -> String {
            failed(answer, ErrorKind::$kind, parts)
        }
    )*};
}

failures! {
    denied: Denied,
    misconfigured: Misconfigured,
    not_applied: NotApplied,
    unknown: Unknown,
}

/// Some of the findings of this kind have each of these parts.
#[track_caller]
pub fn finds(findings: &[Finding], verdict: Verdict, parts: &str) {
    let texts = texts(findings, verdict);
    assert!(parts.split(" … ").all(|part| texts.iter().any(|text| text.contains(part))), "{parts}: {findings:#?}");
}

#[track_caller]
pub fn all_good(findings: &[Finding]) {
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{findings:#?}");
}
