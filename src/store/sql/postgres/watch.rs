//! How a standby hears of a release: LISTEN.
//!
//! The hazards:
//!
//! - A notification from before LISTEN never arrives. So a standby looks once after it has begun to listen.
//! - A pooler in transaction mode accepts LISTEN, and delivers nothing. So unless the server sees our own socket, a
//!   token is sent over another connection, and must arrive. Over the same connection it would arrive even with such a
//!   pooler.
//! - Nobody listens while this process leads. Notifications that are not read are dropped, not kept.

use super::{Connection, quoted};
use crate::lease;
use crate::store::StoreError;
use crate::store::lease_store::documents::random_name;
use crate::store::sql::client::{Subscription, Wake};
use crate::store::sql::server::Server;
use crate::store::sql::statements::Dialect;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};

/// How long a token may take. Without a pooler, it takes one round trip.
const TOKEN_TIME: Duration = Duration::from_secs(2);
/// How often a standby looks if notifications do not arrive.
pub const POLL: Duration = Duration::from_secs(2);

/// A standby's connection that listens.
pub struct Listener {
    inbox: Receiver<Arc<str>>,
    /// Notifications of changes arrive.
    pub pushes: bool,
}

#[async_trait::async_trait]
impl Subscription for Listener {
    async fn next(&mut self, shards: &[&str]) -> Wake {
        let Self { inbox, pushes } = self;
        let change = async {
            loop {
                match inbox.recv().await {
                    Ok(payload) => {
                        if let Some(index) = shards.iter().position(|&shard| *payload == *shard) {
                            return Wake::Changed(index);
                        }
                    }
                    // There were more than the inbox holds.
                    Err(RecvError::Lagged(_)) => return Wake::Look,
                    Err(RecvError::Closed) => return Wake::Ended,
                }
            }
        };
        let patience = async { if *pushes { pending().await } else { sleep(POLL).await } };
        tokio::select! {
            biased;
            wake = change => wake,
            () = patience => Wake::Look,
        }
    }
}

/// Begins to listen, on the kept connection.
pub async fn listen(server: &Server<Connection>) -> Result<Listener, StoreError> {
    let pooled = server.borrow(server.deadline()).await?;
    let connection = pooled.connection();
    let mut inbox = connection.inbox();
    if !connection.listens.load(Ordering::Relaxed) {
        server.tell(connection, &format!("LISTEN {}", quoted(&server.statements.channel))).await?;
        connection.listens.store(true, Ordering::Relaxed);
    }
    let pushes = match connection.pushes.get() {
        _ if connection.direct => true,
        Some(known) => *known,
        None => {
            let arrives = token_arrives(server, connection, &mut inbox).await? == Some(true);
            *connection.pushes.get_or_init(|| arrives)
        }
    };
    pooled.give_back();
    if !pushes && !server.login.warned.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{} does not pass on notifications, as a pooler in transaction mode does not: a release is seen up to {} later",
            server.site.server,
            lease::show(POLL)
        );
    }
    Ok(Listener { inbox, pushes })
}

/// Whether this connection, which no other request uses, always has the same session of the server. None if that cannot be
/// determined for certain.
pub async fn is_dedicated(server: &Server<Connection>, connection: &Connection) -> Result<Option<bool>, StoreError> {
    if connection.direct {
        return Ok(Some(true));
    }
    let mut inbox = connection.inbox();
    server.tell(connection, &format!("LISTEN {}", quoted(&server.statements.channel))).await?;
    token_arrives(server, connection, &mut inbox).await
}

/// Sends a token to a connection that listens. None if it did not arrive in time: there may be a pooler, or the server may
/// be slow.
async fn token_arrives(
    server: &Server<Connection>,
    connection: &Connection,
    inbox: &mut Receiver<Arc<str>>,
) -> Result<Option<bool>, StoreError> {
    if server.login.proven.load(Ordering::Relaxed) {
        return Ok(Some(true));
    }
    // No shard's name begins like this.
    let token = format!("?{}", random_name()?);
    let other = server.connect(server.deadline()).await?;
    // Two connections at once with the same session: a pooler.
    let session = "SELECT pg_backend_pid()";
    if server.tell(connection, session).await? == server.tell(&other, session).await? {
        return Ok(Some(false));
    }
    let channel = Dialect::Postgres.word(&server.statements.channel);
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
    server.login.proven.fetch_or(arrived, Ordering::Relaxed);
    Ok(arrived.then_some(true))
}
