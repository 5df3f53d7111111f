//! The store `mysql://` against a real MariaDB.

mod access;
mod check;
mod encrypted;
mod faults;
mod forgotten;
mod galera;
mod login;
mod rows;
mod settings;

use crate::REQUEST_TIMEOUT;
use crate::support::claims::*;
use crate::support::mysql::{ADMIN, DATABASE, Server, is_mariadb, shared};
use crate::support::prelude::*;
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::sql::mysql;
use leaderrun::internals::store::sql::{Address, Dialect};
use std::sync::atomic::{AtomicU32, Ordering};

fn open_for(url: &str, request_timeout: Duration) -> LeaseStore {
    let (_, rest) = url.split_once(':').expect("one of ours");
    mysql::open(&Address::read(Dialect::MySql, rest).expect("a store URL"), request_timeout)
        .map(LeaseStore::new)
        .expect("the address is right")
}

fn open(url: &str) -> LeaseStore {
    open_for(url, REQUEST_TIMEOUT)
}

own_table!("ssl-mode=PREFERRED");

impl Table {
    fn url_as(&self, user: &str) -> String {
        self.url().replace(&format!("//{ADMIN}@"), &format!("//{user}@"))
    }

    fn user(&self) -> String {
        let user = format!("user_{}", self.name);
        self.server.sql(&format!("CREATE USER {user}"));
        user
    }

    /// A user of one's own who may do what a candidate needs.
    fn candidate(&self) -> String {
        let user = self.user();
        self.sql(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON $T TO {user}"));
        user
    }
}
