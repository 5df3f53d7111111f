//! The store `postgres://`: one row for each shard in a table, judged by the server's clock.
//!
//! The hazards, and the defence against each:
//!
//! - Two candidates claim at once. `INSERT ... ON CONFLICT DO UPDATE ... WHERE` locks the row and then looks at its
//!   latest version, under READ COMMITTED as well: the second claim sees the first. Under a stricter isolation it fails
//!   (40001), and then nothing was applied. Every other write is an `UPDATE ... WHERE`, which does the same.
//! - A write arrives late: it waited for a row that was locked, or in a connection that we gave up. A renewal names
//!   session, term and sequence, and applies only over a lower sequence. Claims and releases carry the instant at which
//!   they were sent, on the `CLOCK_BOOTTIME` that all processes of a session share. A claim or release that was sent
//!   before the last one that was applied, or was applied before, does nothing.
//! - The table forgets: it was dropped, truncated, restored from a dump or recovered from a backup, or the server
//!   failed over to a replica that had not received everything. A marker row says since when the table remembers. It is
//!   believed only if the transaction that it names wrote it (another one wrote a restored row), and while the server's
//!   timeline is the one that it names (a failover or a recovery begins another). Otherwise it is written again. A
//!   candidate that is granted a lease less than one lease after that must wait (`Grant::start_after`), whatever the
//!   row says.
//! - A user deletes the row of a lease that is held. A rule on the table prevents it (`table`).
//! - The server's clock is set. Leases end by it, so they end early or late by that much. Nothing here can detect that;
//!   a server whose clock is slewed, not set, does not have the problem.
//! - An operator ends another candidate's lease (`revoke`). Its row then belongs to nobody until the lease would have
//!   ended (`statement`), and only then the next lease is granted.
//! - A pooler stands before the server (`connection`, `watch`), or the connection is silent (`server`).

mod address;
mod administration;
mod advisory;
mod check;
mod claim;
mod connection;
mod failure;
mod grants;
mod list;
mod notes;
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
use advisory::Advisory;
use server::{Answer, Server};
use statement::{numbers, text};
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio_postgres::Row;

pub struct Postgres {
    server: Server,
    advisory: Option<Advisory>,
    /// Until when renewals do not read orders, in nanoseconds of the boot clock: they could not.
    orders_apart_until: AtomicU64,
}

impl Postgres {
    /// Opens the store. Makes no connection yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    #[expect(clippy::unused_async, reason = "as the other stores are opened")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        install_provider();
        let server = Server::new(address, request_timeout)?;
        let advisory = address.advisory_lock.map(Advisory::new).transpose()?;
        Ok(Self { server, advisory, orders_apart_until: AtomicU64::new(0) })
    }

    fn garbage(&self, shard: &Shard) -> StoreError {
        foreign(shard, &self.server.statements.table)
    }

    fn not_understood(&self) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {}", self.server.site.server))
    }

    fn first<'a>(&self, answer: &'a Answer) -> Result<&'a Row, StoreError> {
        answer.rows.first().ok_or_else(|| self.not_understood())
    }

    async fn look(&self, shard: &Shard) -> Result<Look, StoreError> {
        let ours = self.advisory.iter().flat_map(|advisory| advisory.lock.own()).map(|backend| backend.pid).collect();
        let name = shard.as_str();
        let parameters = [text(&name), numbers(&ours)];
        let answer = self.server.ask(|_| self.server.statements.look(), &parameters, self.server.deadline()).await?;
        let row = self.first(&answer)?;
        let seen = statement::seen(row);
        if seen == Seen::Garbage {
            return Err(self.garbage(shard));
        }
        let pid = row.try_get::<_, Option<i64>>(0).ok().flatten();
        let stranger = self.advisory.as_ref().zip(pid).map(|(advisory, pid)| {
            advisory.stranger(pid, row.try_get(1).unwrap_or_default(), row.try_get(2).unwrap_or_default())
        });
        Ok(Look { seen, stranger })
    }
}

#[async_trait::async_trait]
impl Store for Postgres {
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
