//! The store `etcd://` against real etcds.

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
use crate::support::prelude::*;
use crate::{REQUEST_TIMEOUT, open, open_with};
use tokio::time::{sleep, timeout};

/// A server whose prefix is older than any lease.
async fn old_server() -> Server {
    let mut server = Server::start();
    open(&server.own_url()).await.prepare().await.expect("the server answers");
    server.grow_old();
    server
}

const LOCK: &str = "leaderrun/lock/db/main";
const DOCUMENT: &str = "leaderrun/shard/db/main";
