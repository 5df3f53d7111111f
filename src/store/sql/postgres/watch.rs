//! How a standby hears of a release: LISTEN.
//!
//! The hazards:
//!
//! - A notification from before LISTEN never arrives. So a standby looks once after it has begun to listen.
//! - A pooler in transaction mode accepts LISTEN, and delivers nothing. So unless the server sees our own socket, a
//!   token is sent over another connection, and must arrive. Over the same connection it would arrive even with such a
//!   pooler.
//! - Nobody listens while this process leads. Notifications that are not read are dropped, not kept.

use super::connection::{Connection, ended};
use super::server::Server;
use super::{quoted, text};
use crate::lease::{self, Session};
use crate::store::StoreError;
use crate::store::sql::client::{Subscription, Wake};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};

/// How long a token may take. Without a pooler, it takes one round trip.
const TOKEN_TIME: Duration = Duration::from_secs(2);
/// How often a standby looks if notifications do not arrive.
pub const POLL: Duration = Duration::from_secs(2);
/// No shard's name begins with this.
const TOKEN: &str = "?";

/// A standby's connection that listens.
pub struct Listener {
    inbox: broadcast::Receiver<Arc<str>>,
    end: watch::Receiver<()>,
    /// Notifications of changes arrive.
    pub pushes: bool,
}

#[async_trait::async_trait]
impl Subscription for Listener {
    async fn next(&mut self, shards: &[&str]) -> Wake {
        let Self { inbox, end, pushes } = self;
        let patience = async { if *pushes { std::future::pending().await } else { tokio::time::sleep(POLL).await } };
        let change = async {
            loop {
                match inbox.recv().await {
                    Ok(payload) => {
                        if let Some(index) = shards.iter().position(|&shard| *payload == *shard) {
                            return Wake::Changed(index);
                        }
                    }
                    // There were more than the inbox holds.
                    Err(broadcast::error::RecvError::Lagged(_)) => return Wake::Look,
                    Err(broadcast::error::RecvError::Closed) => return Wake::Ended,
                }
            }
        };
        tokio::select! {
            biased;
            wake = change => wake,
            () = ended(end.clone()) => Wake::Ended,
            () = patience => Wake::Look,
        }
    }
}

/// What we know about whether the server, or a pooler before it, delivers notifications.
#[derive(Default)]
pub struct Known {
    /// A token has arrived once.
    proven: AtomicBool,
    /// It was reported that no token arrives.
    told: AtomicBool,
}

impl Server {
    /// Begins to listen, on the kept connection.
    pub async fn listen(&self) -> Result<Listener, StoreError> {
        let deadline = self.deadline();
        let listen = format!("LISTEN {}", quoted(&self.statements.channel));
        let mut again = false;
        let (mut subscription, connection) = loop {
            let loan = self.borrow(deadline).await?;
            let connection = Arc::clone(&loan.connection);
            let subscription = Listener { inbox: connection.subscribe(), end: connection.end(), pushes: true };
            if !connection.listens() {
                match timeout_at(deadline, connection.listen(&listen)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) if loan.reused && !again => {
                        again = true;
                        continue;
                    }
                    Ok(Err(error)) => return Err(connection.unanswered(&self.site, &error)),
                    Err(_) => return Err(self.site.silent()),
                }
            }
            loan.give_back();
            break (subscription, connection);
        };
        subscription.pushes = if let Some(known) = connection.pushes.get() {
            *known
        } else {
            let arrives = connection.direct
                || self.token_arrives(&mut subscription.inbox, connection.backend.pid).await? == Some(true);
            *connection.pushes.get_or_init(|| arrives)
        };
        if !subscription.pushes && !self.known.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{} does not pass on notifications, as a pooler in transaction mode does not: a release is seen up to {} \
                 later",
                self.site.server,
                lease::show(POLL)
            );
        }
        Ok(subscription)
    }

    /// Whether `connection`, which no other request uses, always has the same session of the server. None if that
    /// cannot be determined for certain.
    pub async fn is_dedicated(&self, connection: &Connection) -> Result<Option<bool>, StoreError> {
        if connection.direct {
            return Ok(Some(true));
        }
        let mut inbox = connection.subscribe();
        let listen = format!("LISTEN {}", quoted(&self.statements.channel));
        match timeout_at(self.deadline(), connection.listen(&listen)).await {
            Ok(Ok(())) => self.token_arrives(&mut inbox, connection.backend.pid).await,
            Ok(Err(error)) => Err(connection.unanswered(&self.site, &error)),
            Err(_) => Err(StoreError::not_applied(format!("{} did not answer in time", self.site.server))),
        }
    }

    /// Sends a token to a connection that listens and that had the backend `pid` when it began. None if the token did
    /// not arrive in time: there may be a pooler, or the server may be slow.
    async fn token_arrives(
        &self,
        inbox: &mut broadcast::Receiver<Arc<str>>,
        pid: i32,
    ) -> Result<Option<bool>, StoreError> {
        if self.known.proven.load(Ordering::Relaxed) {
            return Ok(Some(true));
        }
        let random = Session::random();
        let random =
            random.map_err(|error| StoreError::not_applied(format!("no random bytes for a token: {error}")))?;
        let token = format!("{TOKEN}{}", random.as_str());
        let deadline = self.deadline();
        let (other, _) = self.connect(deadline).await?;
        // Two connections at once with the same backend: a pooler.
        if other.backend.pid == pid {
            return Ok(Some(false));
        }
        let notify = "SELECT pg_notify($1, $2)::text";
        match timeout_at(deadline, other.ask(notify, &[text(&self.statements.channel), text(&token)])).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(other.unanswered(&self.site, &error)),
            Err(_) => return Err(StoreError::not_applied(format!("{} did not answer in time", self.site.server))),
        }
        let arrival = async {
            loop {
                match inbox.recv().await {
                    Ok(payload) if *payload == *token => return true,
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return false,
                }
            }
        };
        let arrived = timeout_at(Instant::now() + TOKEN_TIME, arrival).await.unwrap_or(false);
        if arrived {
            self.known.proven.store(true, Ordering::Relaxed);
        }
        Ok(arrived.then_some(true))
    }
}
