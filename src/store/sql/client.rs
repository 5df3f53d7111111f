//! What a dialect's client has to do for the rows of a table: connect, send statements, hear of changes.
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
use super::statements::LIST_PAGE;
use crate::store::StoreError;
use crate::store::socket::{Place, Socket};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;

/// The values of a row, as the server writes them. None is NULL.
pub type Cells = Vec<Option<String>>;

/// More than an answer has: short rows take more memory here than in a packet.
pub const MOST_ROWS: usize = 2 * LIST_PAGE;

pub fn value(rows: &[Cells], column: usize) -> &str {
    rows.first().and_then(|row| row.get(column)?.as_deref()).unwrap_or_default()
}

pub fn is_true(rows: &[Cells], column: usize) -> bool {
    ["t", "1"].contains(&value(rows, column))
}

/// A connection to a server. It ends when it is dropped.
#[async_trait::async_trait]
pub trait Connection: Send + Sync + Sized + 'static {
    /// How often a standby looks where it is not told of changes.
    const POLL: Duration;
    /// Whether a request can be sent while another is under way.
    const TAKES_SEVERAL: bool;

    /// Logs in, and asks what kind of server it is. An error means that no request was sent.
    async fn begin(server: &Server<Self>, site: Site, place: &Place, socket: Socket) -> Result<Self, StoreError>;

    /// False once it is known to have ended.
    fn is_open(&self) -> bool;

    /// Sends statements as one transaction, in one round trip. The first failure ends it. Returns the rows of the last
    /// statement that has some. Several requests may be under way: the server answers them one after another.
    async fn tell(&self, statements: &str) -> Result<Vec<Cells>, Failure>;

    /// Receives the names of shards whose documents are written after this. None where the server tells nobody.
    async fn subscribe(server: &Server<Self>) -> Result<Option<Receiver<Arc<str>>>, StoreError> {
        let _ = server;
        Ok(None)
    }
}
