//! What a dialect's client has to do for the rows of a table: connect, send statements, hear of changes, and say what
//! an operator should know of the server.
//!
//! The hazards:
//!
//! - A connection may be dead without any sign of it. So when it is dropped, its socket is closed at once, and no
//!   request waits for an answer any more.
//! - A statement that no request waits for may go on in the server, behind a row that is locked. So a client sets
//!   timeouts in the server too.
//! - A pooler or a proxy gives each transaction another session, with other settings. So no request relies on what an
//!   earlier one left in the session.

use super::failure::{Failure, Site};
use super::server::Server;
use crate::store::socket::{Place, Socket};
use crate::store::{Finding, StoreError};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

/// The values of a row, as the server writes them. None is NULL.
pub type Cells = Vec<Option<String>>;

pub fn value(rows: &[Cells], column: usize) -> &str {
    rows.first().and_then(|row| row.get(column)?.as_deref()).unwrap_or_default()
}

pub fn is_true(rows: &[Cells], column: usize) -> bool {
    ["t", "1"].contains(&value(rows, column))
}

pub struct News {
    /// The names of shards whose documents were written. None where the server tells nobody.
    pub inbox: Option<Receiver<Arc<str>>>,
    /// A standby looks after this time without news.
    pub patience: Duration,
}

impl News {
    /// Waits until the documents of these shards are worth a look. False: nothing more will be heard.
    pub async fn wait(&mut self, shards: &[String]) -> bool {
        let Self { inbox, patience } = self;
        let change = async {
            let Some(inbox) = inbox else { return pending().await };
            loop {
                match inbox.recv().await {
                    Ok(shard) if shards.iter().all(|of| **of != *shard) => {}
                    // Lagged: more came than the inbox holds.
                    Ok(_) | Err(RecvError::Lagged(_)) => return true,
                    Err(RecvError::Closed) => return false,
                }
            }
        };
        timeout(*patience, change).await.unwrap_or(true)
    }
}

/// A connection to a server. It ends when it is dropped.
#[async_trait::async_trait]
pub trait Connection: Send + Sync + Sized + 'static {
    /// Whether several requests can be under way on it. A server answers them one after another.
    const TAKES_SEVERAL: bool;

    /// Logs in, and asks what kind of server it is. An error means that no request was sent.
    async fn begin(server: &Server<Self>, site: Site, place: &Place, socket: Socket) -> Result<Self, StoreError>;

    /// False once it is known to have ended.
    fn is_open(&self) -> bool {
        true
    }

    /// Whether it has begun to listen. Such a connection is kept rather than another one.
    fn listens(&self) -> bool {
        false
    }

    /// Sends statements as one transaction, in one round trip. The first failure ends it. Returns the rows of the last
    /// statement that has some.
    async fn tell(&self, statements: &str) -> Result<Vec<Cells>, Failure>;

    /// A change after this is heard.
    async fn subscribe(server: &Server<Self>) -> Result<News, StoreError>;

    async fn findings(&self, server: &Server<Self>) -> Result<Vec<Finding>, StoreError> {
        let _ = server;
        Ok(Vec::new())
    }
}
