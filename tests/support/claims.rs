//! Candidates and operators that ask a store directly, without a program around them.

use super::fleet::PATIENCE;
use leaderrun::internals::lease::{Candidate, Session, Shard, Term};
use leaderrun::internals::store::{Claim, Finding, Grant, Holder, Store, Verdict};
use leaderrun::internals::time::BootInstant;
use std::time::{Duration, Instant};

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

/// Claims, and expects no wait.
pub async fn lead(store: &dyn Store, candidate: &Candidate) -> Term {
    let grant = granted(store.claim(candidate).await.expect("the store answers"));
    assert_eq!(grant.start_after, None, "{grant:?}");
    grant.term
}

/// Claims until it is granted, as a standby would after an expiry.
pub async fn granted_in_time(store: &dyn Store, candidate: &Candidate) -> Grant {
    let begun = Instant::now();
    loop {
        match store.claim(candidate).await.expect("the store answers") {
            Claim::Granted(grant) => return grant,
            Claim::Refused(_) => assert!(begun.elapsed() < PATIENCE, "it never expires"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How long from now a grant makes its leader wait.
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

/// What a check of a store found of this kind.
pub fn texts(findings: &[Finding], verdict: Verdict) -> Vec<&str> {
    findings.iter().filter(|finding| finding.verdict == verdict).map(|finding| finding.text.as_str()).collect()
}
