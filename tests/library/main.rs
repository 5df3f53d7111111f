//! The library: the same election inside a program, with real stores and, where something is killed or frozen, as real
//! processes. Whatever happens, no two of them work at once.

#[path = "../support/mod.rs"]
mod support;

mod examples;
mod inside;
mod surface;
mod workers;

use leaderrun::{Builder, Member};
use std::time::Duration;
use support::fleet::Fleet;

const LEASE: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_mins(1);

/// A store, and processes that use it.
struct Place {
    fleet: Fleet,
    url: String,
    #[cfg(feature = "redis")]
    server: Option<support::redis::Server>,
}

impl Place {
    fn local() -> Self {
        let fleet = Fleet::new();
        let url = format!("file:{}", fleet.scratch.path().join("store").display());
        Self {
            fleet,
            url,
            #[cfg(feature = "redis")]
            server: None,
        }
    }

    #[cfg(feature = "redis")]
    fn redis() -> Self {
        let server = support::redis::Server::start();
        support::server::prepare(&server);
        server.age();
        Self { fleet: Fleet::new(), url: server.plain_url(), server: Some(server) }
    }

    #[cfg(feature = "redis")]
    fn server(&self) -> &support::redis::Server {
        self.server.as_ref().expect("it is behind a network")
    }

    /// As the candidates of other tests are timed.
    fn builder(&self, owner: &str) -> Builder {
        let seconds = Duration::from_secs;
        let builder = Member::builder(&self.url, "shard").owner(owner);
        builder.lease(LEASE).renew(seconds(1)).kill_after(seconds(1)).retry(seconds(1))
    }

    /// With a lease of [`LONG`]: what comes long before that has not waited for its end.
    async fn join_for_long(&self, owner: &str) -> Member {
        self.builder(owner).lease(LONG).join().await.expect("the store can be opened")
    }

    async fn join(&self, owner: &str) -> Member {
        self.builder(owner).join().await.expect("the store can be opened")
    }
}

/// Each of these on `file:` and on a store behind a network.
macro_rules! on_both {
    ($(async $name:ident),* $(,)?) => {
        mod file {
            $(#[tokio::test] async fn $name() { super::$name(crate::Place::local()).await })*
        }
        #[cfg(feature = "redis")]
        mod redis {
            $(#[tokio::test] async fn $name() { super::$name(crate::Place::redis()).await })*
        }
    };
    ($(&$name:ident),* $(,)?) => {
        mod file {
            $(#[test] fn $name() { super::$name(&crate::Place::local()) })*
        }
        #[cfg(feature = "redis")]
        mod redis {
            $(#[test] fn $name() { super::$name(&crate::Place::redis()) })*
        }
    };
    ($($name:ident),* $(,)?) => {
        mod file {
            $(#[test] fn $name() { super::$name(crate::Place::local()) })*
        }
        #[cfg(feature = "redis")]
        mod redis {
            $(#[test] fn $name() { super::$name(crate::Place::redis()) })*
        }
    };
}
pub(crate) use on_both;
