//! The stores `s3://`, `gs://` and `azblob://`: one object for each document in a bucket, changed only by conditional
//! writes (`If-None-Match: *`, `If-Match: ETAG`).
//!
//! The hazard: object storage compares and swaps one object, and looks at no clock while it does so. So a renewal is a
//! write too, ends are written from the upper bound of the server's clock (`server_clock`) and judged by the lower, and
//! an operator's write and a renewal refuse each other. A server may ignore conditions, or check them and write without
//! holding a lock in between. Then two candidates both lead. `leaderctl store init` tries that before it writes the
//! marker, and without the marker nobody leads.

mod address;
mod check;
mod connection;
mod document;
mod failure;
mod objects;
mod price;

pub use super::server_clock::WallClock;
pub use address::{Address, Kind};
pub use objects::Objects;
pub use price::price;

use super::expiry::ServerTime;
use super::lease_store::LeaseStore;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, Ends, Found, Key, Life, List, Listed, Marking, Ours, Over, Part, Put,
    Version,
};
use super::{Delivery, ErrorKind, Finding, Holder, StoreError, parallel};
use crate::lease::Session;
use crate::time::{BootInstant, wall_clock_millis};
use document::Object;
use objects::Outcome;
use std::time::Duration;

/// How many documents are read before they are listed.
const PAGE: usize = 256;

pub type Bucket = LeaseStore<Objects>;

impl Bucket {
    /// Opens the store. Sends no request to it yet.
    ///
    /// # Errors
    /// No region is known, or the endpoint is not a URL, or the credentials that the environment names make no sense.
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        Self::open_with_wall_clock(address, request_timeout, wall_clock_millis).await
    }

    /// Opens the store with another wall clock, for tests of a wrong one.
    ///
    /// # Errors
    /// As [`Bucket::open`].
    #[doc(hidden)]
    pub async fn open_with_wall_clock(
        address: &Address,
        request_timeout: Duration,
        wall_clock: WallClock,
    ) -> Result<Self, StoreError> {
        Objects::open(address, request_timeout, wall_clock).await.map(Self::new)
    }
}

impl Objects {
    async fn read(&self, key: &str) -> Result<Found, StoreError> {
        let Some((bytes, write)) = self.get(key).await? else {
            return Ok(Found { content: Content::Absent, version: Version::default() });
        };
        let ours = Object::read(&bytes).map_err(|why| self.foreign(key, &why))?;
        Ok(Found { content: Content::Ours(ours), version: Version { write, incarnation: String::new() } })
    }

    /// Reads an object for a list. One that something else wrote is a stranger's.
    async fn read_listed(&self, key: &str) -> Result<Found, StoreError> {
        match self.read(key).await {
            Err(error) if error.kind == ErrorKind::Misconfigured => {
                let content = Content::Foreign { holder: Holder::stranger(), sign: String::new(), life: Life::ForEver };
                Ok(Found { content, version: Version::default() })
            }
            read => read,
        }
    }

    async fn list_keys(&self, keys: Vec<String>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let named = keys.into_iter().filter_map(|key| document::listed(&key).map(|listed| (listed, key)));
        let mut named: Vec<_> = named.collect();
        // In the order of keys a '/' is another letter.
        named.sort_unstable_by(|((one, _), _), ((other, _), _)| one.cmp(other));
        for part in named.chunks(PAGE) {
            let looks = part.iter().cloned().map(|((shard, page), key)| async move {
                let found = self.read_listed(&key).await?;
                Ok(Listed { shard, part: page.map_or(Part::Lease, Part::Note), found })
            });
            let listed = parallel::answers(looks).await?;
            each(listed.into_iter().filter(|listed| listed.found.content != Content::Absent).collect());
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Documents for Objects {
    fn place(&self) -> String {
        self.name.clone()
    }

    fn name(&self, key: Key<'_>) -> String {
        format!("the object {}{}", self.name, document::key_of(key))
    }

    fn marking(&self) -> Marking {
        Marking::ByInit
    }

    fn tells_time(&self) -> bool {
        false
    }

    fn compares_only(&self) -> bool {
        true
    }

    fn delivery(&self) -> Delivery {
        Delivery::Poll
    }

    fn is_metered(&self) -> bool {
        true
    }

    async fn get(&self, keys: &[Key<'_>], _may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let keys: Vec<String> = keys.iter().map(|key| document::key_of(*key)).collect();
        let looks = keys.into_iter().enumerate().map(|(place, key)| async move {
            let found = self.read(&key).await?;
            Ok((place, found))
        });
        let mut found = parallel::answers(looks).await?;
        found.sort_unstable_by_key(|(place, _)| *place);
        Ok(found.into_iter().map(|(_, found)| found).collect())
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Put, StoreError> {
        let (Over::Exactly(over) | Over::Text(over)) = over;
        let sent = BootInstant::now();
        let (sequence, life) = match (draft.ends, over.ours()) {
            (Ends::Keep, Some(ours)) => (ours.sequence, ours.life),
            (Ends::Keep, None) | (Ends::Never, _) => (draft.sequence, Life::ForEver),
            (Ends::In(lasts), _) => (draft.sequence, Life::Ends(self.expiry(sent, lasts))),
            (Ends::Now, _) => (draft.sequence, Life::Ends(self.expiry(sent, Duration::ZERO))),
        };
        let ours = Ours { text: draft.text.to_owned(), leadership: draft.leadership.cloned(), sequence, life };
        let random = Session::random();
        let random =
            random.map_err(|error| StoreError::not_applied(format!("no random bytes for a write: {error}")))?;
        let bytes = Object::new(random.as_str().to_owned(), &ours).bytes();
        let over = Some(over.version.write.as_str()).filter(|_| over.content != Content::Absent);
        Ok(match self.put_over(&document::key_of(key), bytes, over).await? {
            Outcome::Refused => Put::Refused,
            Outcome::Done(version) => Put::Done(version.map(|write| Found {
                content: Content::Ours(ours),
                version: Version { write, incarnation: String::new() },
            })),
        })
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.delete(&document::key_of(key)).await
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let keys = match list {
            List::Shards(prefix) => self.keys(&document::shards(prefix)).await?,
            List::Standbys(prefix) => self.keys(&document::standbys(prefix)).await?,
            List::Notes(shard) => {
                let [notes, standbys] = document::notes(shard);
                let mut keys = self.keys(&notes).await?;
                keys.extend(self.keys(&standbys).await?);
                keys
            }
        };
        self.list_keys(keys, each).await
    }

    /// It makes no bucket: its name, region and rules are an operator's choice.
    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        check::findings(self).await
    }
}
