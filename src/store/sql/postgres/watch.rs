//! How a standby hears of a release: LISTEN.
//!
//! The hazards:
//!
//! - A notification from before LISTEN never arrives. So a standby looks once after it has begun to listen.
//! - A pooler in transaction mode accepts LISTEN, and delivers nothing. So unless the server sees our own socket, a
//!   token is sent over another connection, and must arrive. (Over the same one it would arrive even with a pooler.)
//! - Nobody listens while this process leads. So unread notifications are dropped.

use super::Connection;
use crate::lease;
use crate::store::StoreError;
use crate::store::lease_store::documents::random_name;
use crate::store::sql::client::News;
use crate::store::sql::dialect::Dialect::Postgres;
use crate::store::sql::server::Server;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

/// How long a token may take. Without a pooler it takes one round trip.
const TOKEN_TIME: Duration = Duration::from_secs(2);
/// How often a standby looks if notifications do not arrive.
pub const POLL: Duration = Duration::from_secs(2);

pub async fn listen(server: &Server<Connection>) -> Result<News, StoreError> {
    let shared = server.borrow(server.deadline()).await?;
    let inbox = shared.connection.inbox();
    let pushes = server.over(&shared, hears(server, &shared.connection)).await? == Some(true);
    if !pushes && !server.warned.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{} does not pass on notifications, as a pooler in transaction mode does not: a release is seen up to {} later",
            server.site.server,
            lease::show(POLL)
        );
    }
    Ok(News { inbox: Some(inbox), patience: if pushes { Duration::MAX } else { POLL } })
}

/// Whether this connection, which no other request uses, always has the same session. None if that is not certain.
pub async fn is_dedicated(server: &Server<Connection>, connection: &Connection) -> Result<Option<bool>, StoreError> {
    if connection.direct { Ok(Some(true)) } else { hears(server, connection).await }
}

/// Whether notifications arrive on this connection, which no other request uses. The server is asked once.
pub async fn hears(server: &Server<Connection>, connection: &Connection) -> Result<Option<bool>, StoreError> {
    let ask = || async {
        let mut inbox = connection.inbox();
        server.tell(connection, &format!("LISTEN {}", Postgres.quoted(&server.statements.channel))).await?;
        if connection.direct || server.notifies.load(Ordering::Relaxed) {
            return Ok(Some(true));
        }
        token_arrives(server, connection, &mut inbox).await
    };
    connection.hears.get_or_try_init(ask).await.copied()
}

/// Sends a token to a connection that listens. None if it did not arrive in time: the server may be slow.
async fn token_arrives(
    server: &Server<Connection>,
    connection: &Connection,
    inbox: &mut Receiver<Arc<str>>,
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
                Ok(payload) if *payload == *token => return true,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return false,
            }
        }
    };
    let arrived = timeout(TOKEN_TIME, arrival).await.unwrap_or(false);
    server.notifies.fetch_or(arrived, Ordering::Relaxed);
    Ok(arrived.then_some(true))
}
