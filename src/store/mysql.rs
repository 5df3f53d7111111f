//! The store `mysql://`: one row for each shard in a table of MySQL or MariaDB, judged by the server's clock.
//!
//! The hazards, and the defence against each:
//!
//! - Two candidates claim at once. Every write is one statement with its condition, which looks at the latest version
//!   of the row once that is locked, at every isolation level: the second claim sees the first. In a Galera cluster one
//!   of two writes on different nodes fails when it is committed (1213), and then nothing was applied.
//! - A write arrives late: it waited for a row that was locked, or in a connection that we gave up. A renewal names
//!   session, term and sequence, and applies only over a lower sequence. Claims and releases carry the instant at which
//!   they were sent, on the `CLOCK_BOOTTIME` that all processes of a session share. A claim or release that was sent
//!   before the last one that was applied, or was applied before, does nothing.
//! - A write is not committed: the session is without autocommit, by a setting of the server or by a proxy. Each answer
//!   says whether a transaction is open, and then it proves nothing (`connection`).
//! - The table forgets: it was dropped, truncated, restored from a dump, or the server failed over to a replica that
//!   had not received everything. A marker row says since when the table remembers. It is believed only if it was
//!   written into this very table on this very server (`statement`). Otherwise it is written again. A candidate that is
//!   granted a lease less than one lease after that must wait (`Grant::start_after`), whatever the row says.
//! - A user deletes the row of a lease that is held. A trigger on the table prevents it (`table`). Without the trigger,
//!   the first leader of a shard always waits.
//! - The server's clock is set. Leases end by it, so they end early or late by that much. Nothing here can detect that;
//!   a server whose clock is slewed, not set, does not have the problem. Nodes of a cluster that all accept writes have
//!   a clock each. So each counts as a server of its own, as after a failover: a candidate that is granted a lease by
//!   another node than the marker names must wait, and no renewal at another node counts before the marker names it.
//! - An operator ends another candidate's lease (`revoke`). Its row then belongs to nobody until the lease would have
//!   ended (`statement`), and only then the next lease is granted.

mod address;
mod administration;
mod check;
mod claim;
mod connection;
mod failure;
mod list;
mod notes;
mod relay;
mod server;
mod statement;
mod table;
mod watch;

pub use super::tls_mode::TlsMode;
pub use address::{Address, Place};

use super::rows::{self, Look, Seen, foreign};
use super::{Delivery, NoteRead, Page, Store, StoreError};
use crate::lease::Shard;
use crate::store::tls::install_provider;
use server::{Answer, Server};
use std::time::Duration;

pub struct Mysql {
    server: Server,
}

impl Mysql {
    /// Opens the store. Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    pub fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        install_provider();
        Ok(Self { server: Server::new(address, request_timeout)? })
    }

    fn garbage(&self, shard: &Shard) -> StoreError {
        foreign(shard, &self.server.site.table)
    }

    fn not_understood(&self) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {}", self.server.site.server))
    }

    /// What the look in this place of the answer showed.
    fn seen(&self, answer: &Answer, statement: usize) -> Result<Seen, StoreError> {
        statement::seen(answer.outcomes.get(statement)).ok_or_else(|| self.not_understood())
    }

    async fn look(&self, shard: &Shard) -> Result<Look, StoreError> {
        let answer = self.server.ask(&self.server.site, &self.server.statements.look(shard)).await?;
        self.look_in(shard, &answer, 0)
    }

    /// What the look in this place of the answer showed.
    fn look_in(&self, shard: &Shard, answer: &Answer, statement: usize) -> Result<Look, StoreError> {
        match self.seen(answer, statement)? {
            Seen::Garbage => Err(self.garbage(shard)),
            seen => Ok(Look { seen, stranger: None }),
        }
    }
}

#[async_trait::async_trait]
impl Store for Mysql {
    /// A request that finds the shared connection in use makes another one, and closes it afterwards.
    fn lanes(&self) -> usize {
        2
    }

    async fn read_notes(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        rows::read_notes(wanted, |some| self.read_page(some)).await
    }

    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
