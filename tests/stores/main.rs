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
