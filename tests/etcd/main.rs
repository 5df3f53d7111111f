//! The store `etcd://` against real etcds: what is particular to it. What every store promises is tested by the
//! conformance suite.

#![cfg(feature = "etcd")]

#[path = "../support/mod.rs"]
mod support;

mod auth;
mod cluster;
mod faults;
mod forgotten;
mod late;
mod news;
mod records;
mod tls;
mod valve;

use leaderrun::lease::{Candidate, Session, Shard, Term};
use leaderrun::store::{Claim, Finding, Grant, Holder, Location, Store, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::etcd::Server;
use support::fleet::PATIENCE;
use support::server::Server as _;

const LEASE: Duration = Duration::from_secs(15);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

async fn open(url: &str) -> Arc<dyn Store> {
    open_with(url, REQUEST_TIMEOUT).await
}

async fn open_with(url: &str, request_timeout: Duration) -> Arc<dyn Store> {
    let location = Location::from_url(url).expect("the URL is right");
    location.open(request_timeout).await.expect("the configuration is right")
}

/// A server whose prefix is older than any lease.
async fn old_server() -> Server {
    let mut server = Server::start();
    make_old(&mut server).await;
    server
}

async fn make_old(server: &mut Server) {
    open(&server.store_url()).await.prepare().await.expect("the server answers");
    server.grow_old();
}

fn candidate(owner: &str) -> Candidate {
    with_lease(owner, LEASE)
}

fn with_lease(owner: &str, lease: Duration) -> Candidate {
    Candidate {
        shard: shard(),
        owner: owner.to_owned(),
        session: Session::random().expect("the kernel has random bytes"),
        host: "here".to_owned(),
        pid: 7,
        lease,
    }
}

fn shard() -> Shard {
    "db/main".parse().expect("a shard")
}

const LOCK: &str = "leaderrun/lock/db/main";
const LAST: &str = "leaderrun/last/db/main";

#[track_caller]
fn granted(claim: Claim) -> Grant {
    match claim {
        Claim::Granted(grant) => grant,
        Claim::Refused(holder) => panic!("refused, for {holder:?} holds it"),
    }
}

#[track_caller]
fn refused(claim: Claim) -> Holder {
    match claim {
        Claim::Refused(holder) => holder,
        Claim::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Claims, and expects no wait.
async fn lead(store: &dyn Store, candidate: &Candidate) -> Term {
    let grant = granted(store.claim(candidate).await.expect("the store answers"));
    assert_eq!(grant.start_after, None, "{grant:?}");
    grant.term
}

/// Claims until it is granted, as a standby would after an expiry.
async fn granted_in_time(store: &dyn Store, candidate: &Candidate) -> Grant {
    let begun = Instant::now();
    loop {
        match store.claim(candidate).await.expect("the store answers") {
            Claim::Granted(grant) => return grant,
            Claim::Refused(_) => assert!(begun.elapsed() < PATIENCE, "it never expires"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How long from now a grant makes its leader wait.
#[track_caller]
fn wait_of(grant: &Grant) -> Duration {
    grant.start_after.expect("it has to wait").since(leaderrun::time::BootInstant::now())
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// As `verdict text` lines.
fn shown(findings: &[Finding]) -> String {
    let lines = findings.iter().map(|finding| format!("{:?} {}", finding.verdict, finding.text));
    lines.collect::<Vec<_>>().join("\n")
}

fn has_bad(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.verdict == Verdict::Bad)
}
