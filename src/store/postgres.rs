//! The store `postgres://`: one row a shard in a table, judged by the server's clock.
//!
//! The hazards, and what stands against each:
//!
//! - Two candidates claim at once. `INSERT ... ON CONFLICT DO UPDATE ... WHERE` locks the row and then looks at the
//!   latest version of it, under READ COMMITTED as well: whoever comes second sees the first. Under a stricter isolation
//!   it fails (40001), which applied nothing. Every other write is an `UPDATE ... WHERE`, which does the same.
//! - A write arrives late: it waited for a row that somebody had locked, or in a connection that we gave up. A renewal
//!   names session, term and beat, and applies only over a lower beat. Claims and releases carry the instant at which
//!   they were sent, on the CLOCK_BOOTTIME that all processes of a session share; one that was sent before the last one
//!   that was applied does nothing.
//! - The table forgets: dropped, truncated, restored from a dump, recovered from a backup, or the server failed over to
//!   a replica that had not heard everything. A marker row says since when the table remembers. It is believed only if
//!   the transaction that it names wrote it (a restored row was written by another) and while the server's timeline is
//!   the one that it names (a failover and a recovery begin another). Else it is written anew, and whoever is granted a
//!   lease within a lease from then on has to wait (`Grant::start_after`), whatever the row says.
//! - Somebody deletes the row of a lease that is held. A rule on the table has it not happen (`table`).
//! - The server's clock is set. Leases end by it, so they end early or late by that much. Nothing here can tell; a
//!   server whose clock is slewed, not set, has not the problem.
//! - Somebody ends a lease who does not hold it (`revoke`). Its row goes on as nobody's until the lease would have ended
//!   (`statement`), and only then is the next one granted.
//! - A pooler stands before the server (`connection`, `watch`), or the connection is silent (`server`).

mod address;
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
mod tls;
mod watch;

pub use address::{Address, Place, TlsMode};

use super::{Delivery, Holder, Store, StoreError};
use crate::lease::Shard;
use crate::store::tls::install_provider;
use advisory::Advisory;
use server::{Answer, Server};
use statement::{Seen, numbers, text};
use std::time::Duration;
use tokio_postgres::Row;

pub struct Postgres {
    server: Server,
    advisory: Option<Advisory>,
}

/// What a look at a shard showed.
struct Look {
    seen: Seen,
    /// Who holds the advisory lock, and is none of us.
    stranger: Option<Holder>,
}

impl Look {
    fn holder(&self) -> Option<Holder> {
        match &self.seen {
            Seen::Record(record) if !record.free => Some(record.holder()),
            Seen::Record(_) | Seen::Absent | Seen::Garbage => self.stranger.clone(),
        }
    }
}

impl Postgres {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// Misconfigured: no user, or files for TLS that cannot be used.
    #[expect(clippy::unused_async, reason = "as the other stores are opened")]
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        install_provider();
        let server = Server::new(address, request_timeout)?;
        let advisory = address.advisory_lock.map(Advisory::new).transpose()?;
        Ok(Self { server, advisory })
    }

    fn garbage(&self, shard: &Shard) -> StoreError {
        let table = &self.server.statements.table;
        StoreError::misconfigured(format!(
            "the row of shard {shard} in table {table} was written by something else: delete it, or use another table"
        ))
    }

    fn not_understood(&self) -> StoreError {
        StoreError::unknown(format!("cannot understand the answer of {}", self.server.site.server))
    }

    fn first<'a>(&self, answer: &'a Answer) -> Result<&'a Row, StoreError> {
        answer.rows.first().ok_or_else(|| self.not_understood())
    }

    async fn look(&self, shard: &Shard) -> Result<Look, StoreError> {
        let ours = self.advisory.as_ref().map(Advisory::own_pids).unwrap_or_default();
        let name = shard.as_str();
        let parameters = [text(&name), numbers(&ours)];
        let answer = self.server.ask(|_| self.server.statements.look(), &parameters, self.server.deadline()).await?;
        let row = self.first(&answer)?;
        let seen = Seen::read(row);
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

impl Store for Postgres {
    /// Whoever finds the one that is kept in use makes another, and closes it afterwards.
    fn lanes(&self) -> usize {
        2
    }

    fn delivery(&self) -> Delivery {
        Delivery::Push
    }
}
