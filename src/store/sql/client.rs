//! What a dialect's client has to do for the rows of a table: connect, send statements, hear of changes, and say what an
//! operator should know of the server.

use super::failure::{Failure, Site};
use super::server::Server;
use crate::store::socket::Place;
use crate::store::{Finding, StoreError};
use std::sync::atomic::AtomicBool;
use tokio::time::Instant;

/// The values of a row, each as the server writes it. None is NULL.
pub type Cells = Vec<Option<String>>;

/// The reason why a wait for changes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The document of the shard with this index was written.
    Changed(usize),
    /// Something may have been missed: look at all.
    Look,
    /// Nothing more will be heard: subscribe again.
    Ended,
}

/// A standby that listens for changes.
#[async_trait::async_trait]
pub trait Subscription: Send {
    async fn next(&mut self, shards: &[&str]) -> Wake;
}

/// A connection to a server, with all that was found out about it. It ends when it is dropped.
#[async_trait::async_trait]
pub trait Connection: Send + Sync + Sized + 'static {
    /// The way in.
    type Login: Send + Sync;
    type Subscription: Subscription;

    /// As people call the server.
    const KIND: &'static str;
    /// Whether several requests can be under way on it. A server answers them one after another.
    const TAKES_SEVERAL: bool;

    /// Connects, logs in, and asks what is on the other side. `reached` is set once the network connection is made: the
    /// rest is up to the server.
    ///
    /// # Errors
    /// In one line. No request was sent.
    async fn begin(
        login: &Self::Login,
        site: Site,
        place: &Place,
        deadline: Instant,
        reached: &AtomicBool,
    ) -> Result<Self, StoreError>;

    /// False once it is known to have ended.
    fn is_open(&self) -> bool;

    /// Whether it is worth more than another one.
    fn listens(&self) -> bool {
        false
    }

    /// Sends statements, in one round trip. The first failure ends the rest. Returns the rows of the last one that has some.
    async fn tell(&self, statements: &str) -> Result<Vec<Cells>, Failure>;

    /// Makes one transaction of the statements of a request.
    fn transaction(&self, statements: &str) -> String;

    /// Begins to listen: a change after this is heard.
    async fn subscribe(server: &Server<Self>) -> Result<Self::Subscription, StoreError>;

    /// Whether there is a table of this name.
    async fn has_table(&self) -> Result<bool, Failure>;

    /// Whether the table itself prevents a DELETE of what has to stay. It may cost the connection.
    async fn keeps(self) -> Result<bool, Failure>;

    /// The server's version for people, and the versions that will do, if this one is too old.
    async fn version(&self) -> Result<(String, Option<&'static str>), Failure>;

    /// What is good or bad about the server and its settings.
    async fn findings(&self, server: &Server<Self>) -> Result<Vec<Finding>, StoreError>;
}
