//! The store `etcd://` against real etcds: what is particular to it. What every store promises is tested by the
//! conformance suite.

mod auth;
mod cluster;
mod faults;
mod forgotten;
mod late;
mod notes;
mod records;
mod tls;
mod watch;

use crate::support::claims::*;
use crate::support::etcd::Server;
use crate::support::fleet::PATIENCE;
use crate::support::server::Server as _;
use leaderrun::internals::lease::{Candidate, Session, Term};
use leaderrun::internals::store::{
    Claim, Doubt, ErrorKind, Finding, Location, Note, Observation, Page, Release, Renewal, Store, StoreError, Verdict,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

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
    open(&server.own_url()).await.prepare().await.expect("the server answers");
    server.grow_old();
    server
}

const LOCK: &str = "leaderrun/lock/db/main";
const DOCUMENT: &str = "leaderrun/shard/db/main";
