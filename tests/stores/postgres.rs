//! The store `postgres://` against a real PostgreSQL.

mod access;
mod advisory;
mod check;
mod encrypted;
mod faults;
mod forgotten;
mod pooler;
mod rows;
mod watch;

use crate::REQUEST_TIMEOUT;
use crate::support::claims::*;
use crate::support::postgres::{LOCKS, Server, shared};
use crate::support::prelude::*;
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::sql::postgres;
use leaderrun::internals::store::sql::{Address, Dialect};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

fn try_open(url: &str, request_timeout: Duration) -> Result<LeaseStore, StoreError> {
    let rest = url.strip_prefix("postgres:").expect("one of ours");
    postgres::open(&Address::read(Dialect::Postgres, rest).expect("a store URL"), request_timeout).map(LeaseStore::new)
}

fn open(url: &str) -> LeaseStore {
    try_open(url, REQUEST_TIMEOUT).expect("the address is right")
}

own_table!("application_name=leaderrun");

/// A store with a table that has remembered for an hour, on a server of one's own.
async fn ready(server: &Server) -> LeaseStore {
    let store = open(&server.url_with("application_name=leaderrun"));
    store.prepare().await.expect("it can be made");
    server.age(LOCKS);
    store
}

/// Another program's session, with what it holds.
struct Stranger(Client);

impl Stranger {
    async fn at(server: &Server) -> Self {
        let login = format!("host=127.0.0.1 port={} user=postgres application_name=stranger", server.port());
        let (client, connection) = tokio_postgres::connect(&login, NoTls).await.expect("it is let in");
        tokio::spawn(connection);
        Self(client)
    }

    async fn ask(&self, statements: &str) -> String {
        let answer = self.0.simple_query(statements).await.expect("an answer");
        let value = |part| if let SimpleQueryMessage::Row(row) = part { row.get(0).map(str::to_owned) } else { None };
        answer.into_iter().find_map(value).unwrap_or_default()
    }
}
