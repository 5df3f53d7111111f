//! MySQL and MariaDB: their client.
//!
//! The hazards: the library may not see a password's way to the server (`relay`), or a connection is silent (`server`).

mod address;
mod check;
mod connection;
mod failure;
mod relay;
mod server;
mod setup;

pub use super::places::Place;
pub use crate::store::tls_mode::TlsMode;
pub use address::Address;

use super::Rows;
use crate::store::StoreError;
use crate::store::lease_store::LeaseStore;
use crate::store::tls::install_provider;
use server::Server;
use std::sync::Arc;
use std::time::Duration;

pub type Mysql = LeaseStore<Rows<Server>>;

impl Mysql {
    /// Opens the store. Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        install_provider();
        Ok(Self::new(Rows::new(Arc::new(Server::new(address, request_timeout)?))))
    }
}

/// A name between backticks.
fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::statements::literal;

    #[test]
    fn no_text_and_no_name_ends_early() {
        assert_eq!(literal("a'\\ä"), "_utf8mb4 X'61275cc3a4'");
        assert_eq!(quoted("my `own`\\"), "`my ``own``\\`");
    }
}
