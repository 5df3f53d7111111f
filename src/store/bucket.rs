//! The stores `s3://`, `gs://` and `azblob://`: one object for each document in a bucket, changed only by conditional
//! writes (`If-None-Match: *`, `If-Match: ETAG`).
//!
//! The hazard: object storage compares and swaps one object, and looks at no clock. So a renewal is a write too, ends
//! are written from the upper bound of the server's clock (`server_clock`) and judged by the lower, and an operator's
//! write and a renewal refuse each other. If a server ignores conditions, or checks them and writes in two steps, two
//! candidates both lead. So `leaderctl store init` tries the server before it writes the marker, and without the marker
//! nobody leads. `store init` makes no bucket: its name, region and rules are an operator's choice.

mod address;
mod connection;
mod document;
mod failure;
mod objects;

pub use address::{Address, Kind};
pub use objects::Objects;

use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, Found, Key, List, Listed, Marking, Over, Properties,
};
use super::record::Record;
use super::{Delivery, StoreError, parallel};
use std::time::Duration;

const PAGE: usize = 256;

impl Objects {
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        connection::connect(address, request_timeout).await
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

    fn remedy(&self, _: Key<'_>) -> String {
        "delete it, or use another prefix".to_owned()
    }

    fn properties(&self) -> Properties {
        let (marking, delivery) = (Marking::ByInit, Delivery::Poll);
        let (tells_time, compares_only, is_metered) = (false, true, true);
        Properties { marking, delivery, tells_time, compares_only, is_metered, ..Properties::default() }
    }

    async fn get(&self, keys: &[Key<'_>], _may_be_behind: bool) -> Result<Vec<Found>, StoreError> {
        let keys: Vec<String> = keys.iter().map(|key| document::key_of(*key)).collect();
        parallel::answers(keys.into_iter().map(|key| async move { self.read(&key).await })).await
    }

    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError> {
        let (Over::Exactly(over) | Over::Text(over)) = over;
        let record = Record::new(&draft, over, self)?;
        let over = Some(over.version.write.as_str()).filter(|_| over.content != Content::Absent);
        self.write(&document::key_of(key), record, over).await
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.delete(&document::key_of(key)).await
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let mut named = Vec::new();
        for beginning in document::beginnings(list) {
            let keys = self.keys(&beginning).await?;
            named.extend(keys.into_iter().filter_map(|key| document::listed(&key).map(|listed| (listed, key))));
        }
        // In the order of keys a '/' is another letter.
        named.sort_unstable_by(|((one, _), _), ((other, _), _)| one.cmp(other));
        for page in named.chunks(PAGE) {
            let looks = page
                .iter()
                .cloned()
                .map(|((shard, part), key)| async move { Ok(Listed { shard, part, found: self.read(&key).await? }) });
            let listed = parallel::answers(looks).await?;
            each(listed.into_iter().filter(|listed| listed.found.content != Content::Absent).collect());
        }
        Ok(())
    }
}
