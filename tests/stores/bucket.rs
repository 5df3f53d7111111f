//! The store `s3://` against moto's S3.

mod access;
mod check;
mod hostile;
mod protocol;
mod tls;

use crate::support::bucket::{ENVIRONMENT, PREFIX, Server, url};
use crate::support::claims::*;
use crate::support::prelude::*;
use crate::support::wire::{Fate, Proxy, Response};
use leaderrun::internals::store::bucket::{Address, Objects};
use leaderrun::internals::store::lease_store::LeaseStore;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);

fn address(endpoint: &str) -> Address {
    let rest = format!("//locks/{PREFIX}?region=eu-west-1&endpoint={endpoint}");
    Address::read("s3", &rest).expect("the address is right")
}

async fn store(endpoint: &str) -> LeaseStore {
    LeaseStore::new(Objects::open(&address(endpoint), REQUEST_TIMEOUT).await.expect("the address is right"))
}

fn old_server() -> Server {
    let mut server = Server::durable();
    server.grow_old();
    server
}
