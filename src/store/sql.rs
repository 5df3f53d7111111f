//! The stores `postgres://` and `mysql://`: a table with a row for each document, judged by the server's clock.
//!
//! The hazards, and the defence against each:
//!
//! - Two candidates claim at once. A write names the version over which it applies, in its condition, which the server
//!   checks again once it has locked the row, at every isolation level. Under a strict one the second write fails
//!   (40001), and so does one of two on different nodes of a Galera cluster, when it is committed (1213). Then nothing
//!   was applied.
//! - A write arrives late: it waited for a row that was locked, or in a connection that we gave up. Each write has a
//!   random name, and applies over exactly one other.
//! - The table forgets: it was dropped, truncated, restored from a dump or recovered from a backup, or the server
//!   failed over to a replica that had not received everything. See `statements` for how that is known.
//! - A user deletes the row of a lease that is held. A rule or a trigger on the table prevents it.
//! - The server's clock is set. A candidate that saw the lease before still waits for what it saw, but one that has
//!   just started cannot know.

mod address;
mod client;
mod dialect;
mod failure;
#[cfg(feature = "mysql")]
pub mod mysql;
mod operators;
#[cfg(feature = "postgres")]
pub mod postgres;
mod server;
mod statements;

pub use super::socket::Place;
pub use address::Address;
pub use dialect::Dialect;

use super::allowance;
use super::expiry::ServerTime;
use super::foreign_lock::ForeignLock;
use super::lease_store::documents::{
    Documents, Draft, EachListed, EachSeen, Found, Key, List, Listed, Marking, Over, Properties, Touch, Touched,
    random_name,
};
use super::server_clock::Clock;
use super::{Finding, StoreError};
use crate::lease;
use crate::time::BootInstant;
use client::Connection;
use parking_lot::Mutex;
use server::Server;
use statements::{Answer, LIST_PAGE, Spot};
use std::cmp::Ordering;
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;

/// How many documents one request reads: the longest notes must fit into `allowance`.
const PAGE: usize = 100;

/// How long the server may wait for a lock. It gives up before we do, so that its answer is definite.
fn patience(bound: Duration) -> Duration {
    bound - bound / 10
}

pub struct Rows<C: Connection> {
    server: Arc<Server<C>>,
    lock: Option<Box<dyn ForeignLock>>,
    clock: Mutex<Clock>,
    /// The warning that no notification arrives was given.
    warned: Once,
}

impl<C: Connection> Rows<C> {
    fn new(server: Arc<Server<C>>, lock: Option<Box<dyn ForeignLock>>) -> Self {
        Self { server, lock, clock: Mutex::default(), warned: Once::new() }
    }

    async fn ask(&self, request: &str) -> Result<Answer, StoreError> {
        let sent = BootInstant::now();
        let answer = self.server.ask(request, |rows| Answer::read(&rows)).await?;
        let received = BootInstant::now();
        self.clock.lock().sample_millis(answer.now_millis, sent, received);
        Ok(answer)
    }
}

impl<C: Connection> ServerTime for Rows<C> {
    fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }
}

#[async_trait::async_trait]
impl<C: Connection> Documents for Rows<C> {
    fn place(&self) -> String {
        self.server.site.server.clone()
    }

    fn name(&self, key: Key<'_>) -> String {
        let table = &self.server.statements.table;
        match Spot::of(key) {
            Spot { shard, part } if shard.is_empty() => format!("the row {part} of table {table}"),
            Spot { shard, part } => format!("the row {part} of shard {shard} in table {table}"),
        }
    }

    fn remedy(&self, key: Key<'_>) -> String {
        // The table forbids some deletions (`Statements::guard`).
        let remedy = match key {
            Key::Marker => "set its text to ''",
            Key::Shard(_) => "set its ends to 0 and delete it",
            _ => "delete it",
        };
        format!("{remedy}, or use another with table=NAME")
    }

    fn properties(&self) -> Properties {
        // A proxy may send looks to two nodes in turn.
        let is_mysql = self.server.statements.dialect == Dialect::MySql;
        let marking = if is_mysql { Marking::ByWriters } else { Marking::ByAnyone };
        Properties { marking, ..Properties::default() }
    }

    fn lock(&self) -> Option<&dyn ForeignLock> {
        self.lock.as_deref()
    }

    async fn get(&self, keys: &[Key<'_>], _may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let places: Vec<Spot> = keys.iter().map(|&key| Spot::of(key)).collect();
        let mut all = Vec::with_capacity(keys.len());
        for page in places.chunks(PAGE) {
            let answer = self.ask(&self.server.statements.get(page)).await?;
            all.extend(page.iter().map(|place| answer.at(place)));
        }
        Ok(all)
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError> {
        let version = random_name()?;
        let place = Spot::of(key);
        let put = self.server.statements.put(&place, &version, &draft, over);
        let found = self.ask(&put).await?.at(&place);
        Ok(Some(found).filter(|found| found.version.write == version))
    }

    async fn touch(&self, touch: Touch<'_>) -> Result<Touched, StoreError> {
        let key = Key::Shard(touch.shard);
        let place = Spot::of(key);
        let also: Vec<Spot> = touch.also.iter().map(|&key| Spot::of(key)).collect();
        let answer = self.ask(&self.server.statements.touch(&touch, &also)).await?;
        let found = answer.at(&place);
        let renewed = found.ours().filter(|ours| ours.leadership.as_ref() == Some(touch.leadership));
        match renewed.map(|ours| ours.sequence.cmp(&touch.sequence)) {
            None => Ok(Touched::Refused),
            Some(Ordering::Greater) => Ok(Touched::Overtaken),
            Some(Ordering::Equal) => {
                let also = also.iter().map(|place| answer.at(place)).collect();
                Ok(Touched::Done { found, also: Some(also) })
            }
            // Written after our statement had skipped it. The next renewal finds it.
            Some(Ordering::Less) => {
                Err(StoreError::unknown(format!("{} was written during a renewal", self.name(key))))
            }
        }
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.server.ask(&self.server.statements.remove(&Spot::of(key)), Some).await.map(drop)
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let (mut count, mut behind) = (0, Spot { shard: String::new(), part: String::new() });
        loop {
            let documents = self.ask(&self.server.statements.list(list, &behind)).await?.documents;
            let end = documents.last().filter(|_| documents.len() >= LIST_PAGE).map(|(place, _)| place.clone());
            count += documents.len();
            allowance::listed(count, &self.place())?;
            let listed = documents.into_iter().filter_map(|(place, found)| {
                // Another program may have written a name that no shard has.
                let (shard, part) = place.listed()?;
                Some(Listed { shard, part, found })
            });
            each(listed.collect());
            let Some(end) = end else { return Ok(()) };
            behind = end;
        }
    }

    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let shards: Vec<String> = keys.iter().map(|&key| Spot::of(key).shard).collect();
        let mut news = C::subscribe(&self.server).await?;
        if news.is_none() && self.server.statements.dialect == Dialect::Postgres {
            self.warned.call_once(|| {
                tracing::warn!(
                    "{} does not pass on notifications, as a pooler in transaction mode does not: a release is seen up to \
                     {} later",
                    self.place(),
                    lease::show(C::POLL)
                );
            });
        }
        loop {
            for (index, found) in self.get(keys, false).await?.into_iter().enumerate() {
                if each(index, found).is_break() {
                    return Ok(());
                }
            }
            let Some(news) = &mut news else {
                sleep(C::POLL).await;
                continue;
            };
            loop {
                match news.recv().await {
                    Ok(shard) if shards.iter().all(|of| **of != *shard) => {}
                    // Lagged: more came than the inbox holds.
                    Ok(_) | Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return Ok(()),
                }
            }
        }
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        operators::prepare(&self.server).await
    }

    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        operators::identify(&self.server).await
    }

    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        operators::findings(&self.server).await
    }
}
