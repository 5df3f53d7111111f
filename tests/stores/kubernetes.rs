//! The store `kubernetes:` against real API servers.

mod electors;
// They take `--listen`.
#[cfg(feature = "watch")]
mod examples;
mod leases;
mod login;
mod rights;
mod servers;

use crate::open;
use crate::support::claims::*;
use crate::support::kubernetes::{Server, name_of};
use crate::support::prelude::*;
use serde_json::json;
use tokio::time::{sleep, timeout};

async fn store(server: &Server) -> Arc<dyn Store> {
    open(&server.url_with("")).await
}

/// A namespace in which no lease can have been lost.
fn server() -> Server {
    let mut server = Server::shared();
    server.grow_old();
    server
}

fn of(shard: &str, owner: &str) -> Candidate {
    Candidate { shard: shard.parse().expect("a shard"), ..candidate(owner) }
}

fn time(lease: &Value, name: &str) -> std::time::SystemTime {
    let text = lease["spec"][name].as_str().unwrap_or_else(|| panic!("no {name} in {lease}"));
    assert_eq!(text.split_once('.').map(|(_, rest)| rest.len()), Some("000000Z".len()), "{text}");
    humantime::parse_rfc3339(text).expect("it is RFC 3339")
}
