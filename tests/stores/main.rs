//! What is particular to each store, on a real server of its kind. What every store promises is tested by the conformance
//! suite (tests/conformance.rs). `cargo test --test stores redis::` runs the tests of one store.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "bucket")]
mod bucket;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
#[cfg(feature = "kubernetes")]
mod kubernetes;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use leaderrun::internals::store::{Location, Store};
use std::sync::Arc;
use std::time::Duration;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

async fn open(url: &str) -> Arc<dyn Store> {
    open_with(url, REQUEST_TIMEOUT).await
}

async fn open_with(url: &str, request_timeout: Duration) -> Arc<dyn Store> {
    let location = Location::from_url(url).expect("the URL is right");
    location.open(request_timeout).await.expect("it opens without a server")
}
