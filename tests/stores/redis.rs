//! The stores `redis://` and its kin against real redis-servers.

mod access;
mod check;
mod connection;
mod foreign;
mod lock_key;
mod replicas;
mod script;
mod watch;

use crate::REQUEST_TIMEOUT;
use crate::support::claims::*;
use crate::support::prelude::*;
use crate::support::redis::Server;
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::redis::{Address, Hashes};
use std::net::TcpListener;

const FORGOTTEN: &str = "a leader that the store may have forgotten";

fn open(url: &str) -> Result<LeaseStore, StoreError> {
    open_with(url, REQUEST_TIMEOUT)
}

fn open_with(url: &str, request_timeout: Duration) -> Result<LeaseStore, StoreError> {
    let (scheme, rest) = url.split_once(':').expect("a scheme");
    Hashes::open(&Address::read(scheme, rest).expect("a store URL"), request_timeout).map(LeaseStore::new)
}

fn store(server: &Server) -> LeaseStore {
    open(&server.own_url()).expect("the address is right")
}

/// A server whom everybody has known for long.
fn old_server() -> Server {
    let server = Server::start();
    server.age();
    server
}

fn session_in(server: &Server) -> String {
    server.cli(&["HGET", LOCK, "session"])
}

const LOCK: &str = "leaderrun:{leases}:lock:db/main";
const MARKER: &str = "leaderrun:{leases}:store";
