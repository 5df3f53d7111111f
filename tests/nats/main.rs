//! The store `nats://` against a real nats-server: what is particular to it. What every store promises is tested by the
//! conformance suite, and what it stands by the faults.

#![cfg(feature = "nats")]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod check;
mod forgotten;
mod lock_key;
mod protocol;

use leaderrun::internals::lease::{Candidate, Term};
use leaderrun::internals::store::{ErrorKind, Location, Observation, Release, Renewal, Store, StoreError, Verdict};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::claims::*;
use support::fleet::PATIENCE;
use support::nats::{BUCKET, Client, Server};
use support::server::Server as _;
use tokio::time::sleep;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

async fn open(url: &str) -> Arc<dyn Store> {
    open_with(url, REQUEST_TIMEOUT).await
}

async fn open_with(url: &str, request_timeout: Duration) -> Arc<dyn Store> {
    let location = Location::from_url(url).expect("the URL is right");
    location.open(request_timeout).await.expect("it opens without a server")
}

/// A server with a bucket that nobody has used before.
async fn server() -> Server {
    let server = Server::start();
    ready(&server.own_url()).await;
    server
}

/// Makes the bucket, and says that nobody has used it.
async fn ready(url: &str) {
    let store = open(url).await;
    store.prepare().await.expect("the bucket is made");
    store.vouch().await.expect("it is new");
}

const SHORT: Duration = Duration::from_millis(1500);

fn short(owner: &str) -> Candidate {
    with_lease(owner, SHORT)
}

/// Of that shard.
const KEY: &str = "=shard.db/main";

/// What does not come fails the test.
async fn in_time<T>(awaited: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, awaited).await.expect("it comes in time")
}

/// Whether the record is the candidate's.
fn leads(client: &mut Client, candidate: &Candidate) -> bool {
    client.record(KEY).is_some_and(|document| document["lease"]["session"] == candidate.session.as_str())
}
