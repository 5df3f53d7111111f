//! How a standby hears of a release: LISTEN.
//!
//! The hazards:
//!
//! - A notification from before LISTEN never arrives. So a standby looks once after it has begun to listen.
//! - A pooler in transaction mode accepts LISTEN, and delivers nothing. So unless the server sees our own socket, a
//!   token is sent over another connection, and must arrive. Over the same connection it would arrive even with such a
//!   pooler.
//! - Nobody listens while this process leads. Notifications that are not read are dropped, not kept.

use super::Postgres;
use super::connection::{Connection, ended};
use super::server::Server;
use super::statement::{quoted, text};
use crate::lease::{self, Shard};
use crate::store::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};

/// How long a token may take. Without a pooler, it takes one round trip.
const TOKEN_TIME: Duration = Duration::from_secs(2);
/// How often a standby looks if notifications do not arrive.
pub const POLL: Duration = Duration::from_secs(2);
/// The first pause between looks at another program's advisory lock; later pauses are longer.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// From the end of a connection to the next one.
const PAUSE: Duration = Duration::from_millis(50);
/// No shard's name begins with this.
const TOKEN: &str = "?";

/// A standby's connection that listens.
pub struct Subscription {
    inbox: broadcast::Receiver<Arc<str>>,
    end: watch::Receiver<()>,
    /// Notifications of releases arrive.
    pub pushes: bool,
}

/// The event that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The shard with this index was released.
    Released(usize),
    Silence,
    /// The connection ended: an event may have been missed.
    Ended,
}

impl Subscription {
    /// Waits until one of `shards` was released, for at most `at_most` if that is some.
    pub async fn next(&mut self, shards: &[Shard], at_most: Option<Duration>) -> Wake {
        let Self { inbox, end, .. } = self;
        let patience = async {
            match at_most {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        let release = async {
            loop {
                match inbox.recv().await {
                    Ok(payload) => {
                        if let Some(index) = shards.iter().position(|shard| *payload == *shard.as_str()) {
                            return Wake::Released(index);
                        }
                    }
                    // There were more than the inbox holds: a release may have been among them.
                    Err(broadcast::error::RecvError::Lagged(_)) => return Wake::Released(0),
                    Err(broadcast::error::RecvError::Closed) => return Wake::Ended,
                }
            }
        };
        tokio::select! {
            biased;
            wake = release => wake,
            () = ended(end.clone()) => Wake::Ended,
            () = patience => Wake::Silence,
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

impl Postgres {
    pub(super) async fn wait_for_change(&self, shard: &Shard) -> Result<(), StoreError> {
        loop {
            let mut subscription = self.server.subscribe().await?;
            let mut pause = FIRST_LOOK;
            loop {
                let look = self.look(shard).await?;
                let Some(holder) = look.holder() else { return Ok(()) };
                let at_most = match (&look.stranger, &self.advisory) {
                    _ if !subscription.pushes => Some(POLL),
                    // A program that holds the lock alone notifies nobody when it frees the lock.
                    (Some(_), _) if holder.session.is_none() => {
                        pause = (pause * 2).min(POLL);
                        Some(pause)
                    }
                    // If its holder vanished, the lock outlives its row. So look a little after the end of the row.
                    (_, Some(_)) => holder.expires_in.map(|left| left + POLL / 4),
                    (_, None) => None,
                };
                match subscription.next(std::slice::from_ref(shard), at_most).await {
                    Wake::Released(_) => return Ok(()),
                    Wake::Silence => {}
                    Wake::Ended => break,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One connection listens for all shards. With an advisory lock there is only one shard.
    pub(super) async fn wait_for_any_change(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        if let [shard] = shards {
            return self.wait_for_change(shard).await.map(|()| 0);
        }
        loop {
            let mut subscription = self.server.subscribe().await?;
            loop {
                for (index, shard) in shards.iter().enumerate() {
                    if self.look(shard).await?.holder().is_none() {
                        return Ok(index);
                    }
                }
                match subscription.next(shards, (!subscription.pushes).then_some(POLL)).await {
                    Wake::Released(index) => return Ok(index),
                    Wake::Silence => {}
                    Wake::Ended => break,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Server {
    /// Begins to listen, on the kept connection.
    pub async fn subscribe(&self) -> Result<Subscription, StoreError> {
        let deadline = self.deadline();
        let listen = format!("LISTEN {}", quoted(&self.channel));
        let mut again = false;
        let (mut subscription, connection) = loop {
            let loan = self.borrow(deadline).await?;
            let connection = Arc::clone(&loan.connection);
            let subscription = Subscription { inbox: connection.subscribe(), end: connection.end(), pushes: true };
            if !connection.listens() {
                match timeout_at(deadline, connection.listen(&listen)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) if loan.reused && !again => {
                        again = true;
                        continue;
                    }
                    Ok(Err(error)) => return Err(connection.unanswered(&self.site, &error)),
                    Err(_) => return Err(self.silent()),
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
        let listen = format!("LISTEN {}", quoted(&self.channel));
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
        let random = lease::Session::random();
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
        match timeout_at(deadline, other.ask(notify, &[text(&self.channel), text(&token)])).await {
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
