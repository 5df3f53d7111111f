//! The store `nats://` against a real nats-server: what is particular to it. What every store promises is tested by the
//! conformance suite, and what it stands by the faults.

#![cfg(feature = "nats")]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod forgotten;
mod protocol;
mod provision;

use leaderrun::lease::{Candidate, Session, Shard, Term};
use leaderrun::store::{Claim, Conclusion, Finding, Grant, Holder, Location, Observation, Release, Renewal, Store};
use leaderrun::store::{StoreError, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::fleet::PATIENCE;
use support::nats::{BUCKET, Client, Server};
use support::server::Server as _;
use tokio::time::sleep;

const LEASE: Duration = Duration::from_secs(15);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

async fn open(url: &str) -> Arc<dyn Store> {
    open_with(url, REQUEST_TIMEOUT).await
}

async fn open_with(url: &str, request_timeout: Duration) -> Arc<dyn Store> {
    let location = Location::from_url(url).expect("the URL is right");
    location.open(request_timeout).await.expect("it opens without a server")
}

/// A server with a bucket that was made long enough ago for a lease of half a second.
async fn server() -> Server {
    let server = Server::start();
    open(&server.own_url()).await.prepare().await.expect("the bucket is made");
    sleep(SHORT + Duration::from_millis(20)).await;
    server
}

const SHORT: Duration = Duration::from_millis(500);

fn candidate(owner: &str) -> Candidate {
    Candidate {
        shard: shard(),
        owner: owner.to_owned(),
        session: Session::random().expect("the kernel has random bytes"),
        host: "here".to_owned(),
        pid: 7,
        lease: LEASE,
    }
}

fn with_lease(owner: &str, lease: Duration) -> Candidate {
    Candidate { lease, ..candidate(owner) }
}

fn short(owner: &str) -> Candidate {
    with_lease(owner, SHORT)
}

fn shard() -> Shard {
    "db/main".parse().expect("a shard")
}

/// Of that shard.
const KEY: &str = "db/main";
const LEDGER: &str = "=led.db/main";
const MARKER: &str = "=born";

#[track_caller]
fn granted(claim: Result<Claim, StoreError>) -> Grant {
    match claim.expect("the store answers") {
        Claim::Granted(grant) => grant,
        Claim::Refused(holder) => panic!("refused, for {holder:?} holds it"),
    }
}

#[track_caller]
fn refused(claim: Result<Claim, StoreError>) -> Holder {
    match claim.expect("the store answers") {
        Claim::Refused(holder) => holder,
        Claim::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

/// Claims, and expects no wait.
async fn lead(store: &dyn Store, candidate: &Candidate) -> Term {
    let grant = granted(store.claim(candidate).await);
    assert_eq!(grant.start_after, None, "{grant:?}");
    grant.term
}

/// How long a new leader has to hold back.
fn wait(grant: &Grant) -> Duration {
    grant.start_after.map_or(Duration::ZERO, |until| until.since(leaderrun::time::BootInstant::now()))
}

/// Claims until it is granted.
async fn lead_in_time(store: &dyn Store, candidate: &Candidate) -> Grant {
    let begun = Instant::now();
    loop {
        if let Claim::Granted(grant) = store.claim(candidate).await.expect("the store answers") {
            return grant;
        }
        assert!(begun.elapsed() < PATIENCE, "it never expires");
        sleep(Duration::from_millis(20)).await;
    }
}

/// What does not come fails the test.
async fn in_time<T>(awaited: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, awaited).await.expect("it comes in time")
}

/// Whether the record is the candidate's.
fn leads(client: &mut Client, candidate: &Candidate) -> bool {
    let record = client.record(KEY);
    record.is_some_and(|record| record["session"] == candidate.session.as_str() && record["released"].is_null())
}

fn texts(findings: &[Finding], verdict: Verdict) -> Vec<&str> {
    findings.iter().filter(|finding| finding.verdict == verdict).map(|finding| finding.text.as_str()).collect()
}
