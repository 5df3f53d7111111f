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
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

/// How long a token may take. Without a pooler it takes one round trip.
const TOKEN_TIME: Duration = Duration::from_secs(2);

/// Whether notifications arrive on this connection, and so whether it always has the same session. None if that is not
/// certain. The server is asked once.
pub async fn hears(server: &Server<Connection>, connection: &Connection) -> Result<Option<bool>, StoreError> {
    let ask = || async {
        let inbox = connection.inbox.resubscribe();
        server.tell(connection, &format!("LISTEN {}", Postgres.quoted(&server.statements.channel))).await?;
        if connection.direct { Ok(Some(true)) } else { token_arrives(server, connection, inbox).await }
    };
    connection.hears.get_or_try_init(ask).await.copied()
}

/// Sends a token to a connection that listens. None if it did not arrive in time: the server may be slow.
async fn token_arrives(
    server: &Server<Connection>,
    connection: &Connection,
    mut inbox: Receiver<Arc<str>>,
) -> Result<Option<bool>, StoreError> {
    // No shard's name begins like this.
    let token = format!("?{}", random_name()?);
    let other = server.connect(server.deadline()).await?;
    // Two open connections with the same session: a pooler.
    let session = "SELECT pg_backend_pid()";
    if server.tell(connection, session).await? == server.tell(&other, session).await? {
        return Ok(Some(false));
    }
    let channel = Postgres.literal(&server.statements.channel);
    server.tell(&other, &format!("SELECT pg_notify({channel}, '{token}')")).await?;
    let arrival = async {
        loop {
            match inbox.recv().await {
                Ok(payload) if *payload == *token => return Some(true),
                Err(RecvError::Closed) => return None,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
            }
        }
    };
    Ok(timeout(TOKEN_TIME, arrival).await.unwrap_or_default())
}
