//! The library: the same election inside a program, with real stores and, where something is killed or frozen, as real
//! processes. Whatever happens, no two of them work at once.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod examples;
mod inside;
mod surface;
mod workers;

use leaderrun::{Builder, Member};
use support::prelude::*;

/// Of the workers, and where the end of a lease is waited for.
const LEASE: Duration = Duration::from_secs(6);
/// What comes long before it has not waited for its end. A member that outstays its lease ends this very program, and with
/// it every other test: this one outlasts any stall of the machine.
const LONG: Duration = Duration::from_mins(1);

impl Place {
    #[cfg(feature = "redis")]
    fn redis() -> Self {
        Self::remote(Box::new(support::redis::Server::start()))
    }

    /// As the candidates of other tests are timed, with a lease of [`LONG`].
    fn builder(&self, owner: &str) -> Builder {
        let seconds = Duration::from_secs;
        let builder = Member::builder(&self.url, "shard").owner(owner);
        builder.lease(LONG).renew(seconds(1)).kill_after(seconds(1)).retry(seconds(1))
    }

    async fn join(&self, owner: &str) -> Member {
        self.builder(owner).join().await.expect("the store can be opened")
    }
}
