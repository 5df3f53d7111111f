//! How a standby hears of a release: LISTEN.
//!
//! The hazards:
//!
//! - A notification from before LISTEN never arrives. So a standby looks once after it has begun to listen.
//! - A pooler in transaction mode accepts LISTEN, and delivers nothing. So unless the server sees our own socket, a
//!   token is sent over another connection, and must arrive. (Over the same one it would arrive even with a pooler.)
//! - Nobody listens while this process leads. So unread notifications are dropped.

use super::Connection;
use crate::store::StoreError;
use crate::store::lease_store::documents::random_name;
use crate::store::sql::dialect::Dialect::Postgres;
use crate::store::sql::server::Server;
use std::iter;

/// Whether notifications arrive on this connection, and so whether it always has the same session. The server is asked
/// once.
pub async fn hears(server: &Server<Connection>, connection: &Connection) -> Result<bool, StoreError> {
    let ask = || async {
        let mut inbox = connection.inbox.resubscribe();
        let channel = &server.statements.channel;
        server.tell(connection, &format!("LISTEN {}", Postgres.quoted(channel))).await?;
        if connection.direct {
            return Ok(true);
        }
        let other = server.connect(server.deadline()).await?;
        // Two open connections with the same session: a pooler.
        let session = "SELECT pg_backend_pid()";
        if server.tell(connection, session).await? == server.tell(&other, session).await? {
            return Ok(false);
        }
        // No shard's name begins like this.
        let token = format!("?{}", random_name()?);
        server.tell(&other, &format!("SELECT pg_notify({}, '{token}')", Postgres.literal(channel))).await?;
        // What a session was told before it is asked something arrives before its answer.
        server.tell(connection, session).await?;
        Ok(iter::from_fn(|| inbox.try_recv().ok()).any(|payload| *payload == *token))
    };
    connection.hears.get_or_try_init(ask).await.copied()
}
