//! How a standby hears of a release: LISTEN.
//!
//! The hazards:
//!
//! - What was notified before LISTEN is never heard. So who waits looks once after it began to listen.
//! - A pooler in transaction mode takes LISTEN, says yes, and delivers nothing. So unless the server sees our own
//!   socket, a token is sent over another connection, and has to arrive: over the same one it would, pooler or not.
//! - Nobody listens while this process leads. What is not taken is dropped, not kept.

use super::server::Server;
use super::session::{Session, ended};
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

impl Server {
    /// Begins to listen, on the connection that is kept.
    pub async fn subscribe(&self) -> Result<Subscription, StoreError> {
        let deadline = self.deadline();
        let listen = format!("LISTEN {}", quoted(&self.channel));
        let mut again = false;
        let (mut subscription, session) = loop {
            let loan = self.borrow(deadline).await?;
            let session = Arc::clone(&loan.session);
            let subscription = Subscription { inbox: session.subscribe(), end: session.end(), pushes: true };
            if !session.listens() {
                match timeout_at(deadline, session.listen(&listen)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) if loan.reused && !again => {
                        again = true;
                        continue;
                    }
                    Ok(Err(error)) => return Err(session.unanswered(&self.site, &error)),
                    Err(_) => return Err(self.silent()),
                }
            }
            loan.give_back();
            break (subscription, session);
        };
        subscription.pushes = if let Some(known) = session.pushes.get() {
            *known
        } else {
            let arrives =
                session.direct || self.token_arrives(&mut subscription.inbox, session.backend.pid).await? == Some(true);
            *session.pushes.get_or_init(|| arrives)
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

    /// Whether `session`, which nobody else uses, stays one and the same session of the server. None when it cannot be
    /// told for sure.
    pub async fn is_dedicated(&self, session: &Session) -> Result<Option<bool>, StoreError> {
        if session.direct {
            return Ok(Some(true));
        }
        let mut inbox = session.subscribe();
        let listen = format!("LISTEN {}", quoted(&self.channel));
        match timeout_at(self.deadline(), session.listen(&listen)).await {
            Ok(Ok(())) => self.token_arrives(&mut inbox, session.backend.pid).await,
            Ok(Err(error)) => Err(session.unanswered(&self.site, &error)),
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
