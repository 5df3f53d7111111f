//! What is particular to each store, on a real server of its kind. What every store promises is tested by the conformance
//! suite (tests/conformance.rs). `cargo test --test stores redis::` runs the tests of one store.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

/// A table of one's own on the SQL server that the tests share; it has remembered for an hour.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! own_table {
    ($options:literal) => {
        struct Table {
            server: &'static Server,
            name: String,
        }

        impl Table {
            async fn new() -> Self {
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let table = Self { server: shared(), name: format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)) };
                table.store().prepare().await.expect("it can be made");
                table.server.age(&table.name);
                table
            }

            fn url(&self) -> String {
                self.url_with($options)
            }

            fn url_with(&self, options: &str) -> String {
                self.server.url_with(&format!("table={}&{options}", self.name))
            }

            fn store(&self) -> LeaseStore {
                open(&self.url())
            }

            /// What the server's client says of a query with $T in place of the table.
            fn sql(&self, statements: &str) -> String {
                self.server.sql(&statements.replace("$T", &self.name))
            }
        }
    };
}

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
use support::prelude::*;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

async fn open(url: &str) -> Arc<dyn Store> {
    open_with(url, REQUEST_TIMEOUT).await
}

async fn open_with(url: &str, request_timeout: Duration) -> Arc<dyn Store> {
    let location = Location::from_url(url).expect("the URL is right");
    location.open(request_timeout).await.expect("it opens without a server")
}

/// `restore` brings the rows back that `dump` has seen, while `first` leads.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn rows_that_come_back_let_nobody_else_lead<D>(
    first: &dyn Store,
    second: &dyn Store,
    dump: impl AsyncFnOnce() -> D,
    restore: impl AsyncFnOnce(D),
) {
    use support::claims::*;
    // Longer than a leader is busy with clients of the server, on a machine that stalls.
    let [one, two] = ["one", "two"].map(|owner| with_lease(owner, Duration::from_secs(10)));
    let term = lead(first, &one).await;
    first.release(&one, term).await.unwrap();
    // It knows the very row that comes back, and that the table has remembered for long.
    let known = lead(second, &two).await;
    second.release(&two, known).await.unwrap();
    let dumped = dump().await;
    let lost = lead(first, &one).await;
    restore(dumped).await;
    assert_eq!(refused(second.claim(&two).await.unwrap()).doubt, Some(Doubt::Forgotten));
    assert_eq!(first.renew(&one, lost, 1).await, Ok(Renewal::Renewed));
    assert!(granted_in_time(second, &two).await.term > lost);
}
