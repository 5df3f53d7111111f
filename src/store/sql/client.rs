//! What a dialect's client has to do for the rows of a table: send a request, hear of changes, make the table, check.

use super::statements::Statements;
use crate::store::{Finding, StoreError};

/// A value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Null,
    Number(i64),
    Text(String),
    /// None of these.
    Strange,
}

impl Cell {
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub fn number(&self) -> Option<u64> {
        if let Self::Number(number) = self { u64::try_from(*number).ok() } else { None }
    }
}

/// A value that stands beside the text of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(i64),
    Text(String),
}

/// What is sent in one trip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub text: String,
    pub values: Vec<Value>,
}

pub struct Answer {
    pub rows: Vec<Vec<Cell>>,
    /// The request was sent twice, and may have been applied twice.
    pub again: bool,
}

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

/// A server, and the connections to it. Every error is mapped already to what may be concluded from it.
///
/// A method is cancelled by dropping its future. As after an answer that was lost, its request may have been applied.
#[async_trait::async_trait]
pub trait Client: Send + Sync {
    /// Where the table is, for people: `PostgreSQL at db:5432`.
    fn place(&self) -> String;

    fn statements(&self) -> &Statements;

    /// Sends a request, which must be safe to apply twice.
    async fn ask(&self, request: &Request) -> Result<Answer, StoreError>;

    /// Begins to listen: a change after this is heard.
    async fn subscribe(&self) -> Result<Box<dyn Subscription>, StoreError>;

    /// Makes the table. Returns a line for each step.
    async fn prepare(&self) -> Result<Vec<String>, StoreError>;

    /// What kind of server and table it is: after a bad finding nothing is tried.
    async fn identify(&self) -> Result<Vec<Finding>, StoreError>;

    /// What else `store check` has to say.
    async fn findings(&self) -> Result<Vec<Finding>, StoreError>;
}
