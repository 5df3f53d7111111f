//! PostgreSQL: its client, and the advisory lock of other programs.
//!
//! The hazards: a pooler stands before the server (`connection`, `watch`), or a connection is silent (`server`).

mod address;
mod advisory;
mod check;
mod connection;
mod failure;
mod grants;
mod server;
mod setup;
mod watch;

pub use super::places::Place;
pub use address::Address;

use super::Rows;
use crate::store::StoreError;
use crate::store::foreign_lock::Beside;
use crate::store::lease_store::LeaseStore;
use crate::store::stable_hash::fnv1a;
use crate::store::tls::install_provider;
pub use crate::store::tls_mode::TlsMode;
use address::LONGEST_NAME;
use advisory::Advisory;
use server::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};

pub type Postgres = Beside<LeaseStore<Rows<Server>>, Advisory>;

impl Postgres {
    /// Opens the store. Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    #[expect(clippy::unused_async, reason = "all stores are opened in one way")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        install_provider();
        let server = Arc::new(Server::new(address, request_timeout)?);
        let lock = address.advisory_lock.map(|key| Advisory::new(key, &server)).transpose()?;
        Ok(Self::new(LeaseStore::new(Rows::new(server)), lock))
    }
}

/// Names that need no quotes. PostgreSQL's reserved words (table "user", schema "all") need them.
const PLAIN: [&str; 2] = ["public", "leaderrun"];

/// A name, with quotes unless it certainly needs none.
fn quoted(name: &str) -> String {
    if PLAIN.contains(&name) { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// The channel of a table. Its name has room for 63 bytes; a longer one is replaced by a hash.
fn channel(address: &Address) -> String {
    let whole = format!("leaderrun {}.{}", address.schema, address.table);
    if whole.len() <= LONGEST_NAME { whole } else { format!("leaderrun {:016x}", fnv1a(whole.bytes())) }
}

fn text<T: ToSql + Sync>(value: &T) -> (&(dyn ToSql + Sync), Type) {
    (value, Type::TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{self, Fate};
    use grants::Relation;

    #[test]
    fn any_name_is_quoted_so_that_nothing_ends_it_early() {
        fuzz::run_a_tenth("name of a table", |source, input| {
            let seeds: [&[u8]; 5] = [b"leaderrun", b"public", b"my \"own\"", b"user", b"a\"; DROP TABLE b; --"];
            let name = &*String::from_utf8_lossy(&source.bend(&seeds)).into_owned();
            input.show(|| name.to_owned());

            let text = quoted(name);
            if text == name {
                assert!(PLAIN.contains(&name));
                return Fate::Refused;
            }
            let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).expect("it has quotes");
            assert_eq!(inner.replace("\"\"", ""), name.replace('"', ""));
            assert_eq!(inner.replace("\"\"", "\""), name);
            assert!(channel(&address(name, name)).len() <= 63);
            Fate::Accepted
        });
    }

    fn address(schema: &str, table: &str) -> Address {
        let mut address = Address::read("//h/db").unwrap();
        (address.schema, address.table) = (schema.to_owned(), table.to_owned());
        address
    }

    #[test]
    fn names_are_quoted_where_they_need_it() {
        assert_eq!(Relation::of(&address("my \"own\"", "user")).to_string(), "\"my \"\"own\"\"\".\"user\"");
        assert_eq!(Relation::of(&address("public", "leaderrun")).to_string(), "public.leaderrun");
    }

    #[test]
    fn a_channel_has_a_name_that_postgresql_does_not_cut() {
        assert_eq!(channel(&address("public", "leaderrun")), "leaderrun public.leaderrun");
        assert_eq!(channel(&address("public", &"x".repeat(62))), "leaderrun 540ef498b640fe20");
        let (long, other) = ("x".repeat(62), "x".repeat(63));
        assert_ne!(channel(&address("public", &long)), channel(&address("public", &other)));
    }
}
