//! How a standby hears of a release: LISTEN.
//!
//! The hazards:
//!
//! - What was notified before LISTEN is never heard. So who waits looks once after it began to listen.
//! - A pooler in transaction mode takes LISTEN, says yes, and delivers nothing. So unless the server sees our own
//!   socket, a token is sent over another connection, and has to arrive: over the same one it would, pooler or not.
//! - Nobody listens while this process leads. What is not taken is dropped, not kept.

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

/// How long a token may be under way. It takes a round trip, unless there is a pooler.
const TOKEN_TIME: Duration = Duration::from_secs(2);
/// Where nothing is told, this is how often who waits looks.
pub const POLL: Duration = Duration::from_secs(2);
/// A stranger's advisory lock is looked at after so long, then less and less often.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// From the end of a connection to the next one.
const PAUSE: Duration = Duration::from_millis(50);
/// No shard's name begins with this.
const TOKEN: &str = "?";

/// What one waits on.
pub struct Subscription {
    inbox: broadcast::Receiver<Arc<str>>,
    end: watch::Receiver<()>,
    /// Releases are told.
    pub pushes: bool,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Of the shards that were named, the one in this place.
    Released(usize),
    Silence,
    /// The connection ended: something may have been missed.
    Ended,
}

impl Subscription {
    /// Waits until one of `shards` was released, for `at_most` if that is some.
    pub async fn news(&mut self, shards: &[Shard], at_most: Option<Duration>) -> News {
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
                            return News::Released(index);
                        }
                    }
                    // More than there was room for: it may have been among them.
                    Err(broadcast::error::RecvError::Lagged(_)) => return News::Released(0),
                    Err(broadcast::error::RecvError::Closed) => return News::Ended,
                }
            }
        };
        tokio::select! {
            biased;
            news = release => news,
            () = ended(end.clone()) => News::Ended,
            () = patience => News::Silence,
        }
    }
}

/// What is known of how a server, or what stands before it, delivers.
#[derive(Default)]
pub struct Known {
    /// A token arrived once.
    proven: AtomicBool,
    /// It was said that none does.
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
                    // Whoever holds the lock alone tells nobody when it lets it go.
                    (Some(_), _) if holder.session.is_none() => {
                        pause = (pause * 2).min(POLL);
                        Some(pause)
                    }
                    // A lock outlives its row when its holder vanished, so the end of the row is not the end of it.
                    (_, Some(_)) => holder.expires_in.map(|left| left + POLL / 4),
                    (_, None) => None,
                };
                match subscription.news(std::slice::from_ref(shard), at_most).await {
                    News::Released(_) => return Ok(()),
                    News::Silence => {}
                    News::Ended => break,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One connection hears of them all. With an advisory lock there is no more than one.
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
                match subscription.news(shards, (!subscription.pushes).then_some(POLL)).await {
                    News::Released(index) => return Ok(index),
                    News::Silence => {}
                    News::Ended => break,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Server {
    /// Begins to listen, on the connection that is kept.
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

    /// Whether `connection`, which nobody else uses, stays one and the same session of the server. None when it cannot be
    /// told for sure.
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

    /// Sends a token to a connection that listens and, when it began, had the backend `pid`. None when it did not
    /// arrive in time, which a pooler explains, and a slow server as well.
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
        // Two connections at once, and one backend for both: a pooler.
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
