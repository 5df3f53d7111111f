//! Lists the shards, and their leaders.
//!
//! The hazard: a record alone does not show whether its lease has ended, because this process has not watched it. So
//! each record is judged by the server's clock, which is asked once, before the records are read: a record that is
//! written after that has just begun.

use super::address::shard_of;
use super::record::Content;
use super::{Nats, slack};
use crate::store::{EachPage, Holder, Report, StoreError};
use crate::time::BootInstant;
use futures_util::stream::{self, StreamExt};

/// How many shards are in a page, and how many requests are under way at once.
const PAGE: usize = 250;
const AT_ONCE: usize = 64;

pub async fn list(store: &Nats, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
    let (info, keys) = store.bucket.keys().await?;
    let time = store.bucket.time(&info).await?;
    let told = BootInstant::now();
    let mut shards: Vec<_> = keys.iter().filter_map(|key| shard_of(key)).collect();
    shards.retain(|shard| shard.as_str().starts_with(prefix));
    shards.retain(|shard| !store.lock.as_ref().is_some_and(|lock| lock.is_record_of(&store.bucket, shard)));
    shards.sort();
    let looks = shards.into_iter().map(|shard| async move { Ok::<_, StoreError>((store.look(&shard).await?, shard)) });
    let mut pages = stream::iter(looks).buffered(AT_ONCE).chunks(PAGE);
    while let Some(page) = pages.next().await {
        let mut list = Vec::with_capacity(page.len());
        for found in page {
            let (snapshot, shard) = found?;
            let Some(mut snapshot) = snapshot else { continue };
            let report = match &snapshot.content {
                Content::Record(_) => {
                    if let Some(stamp) = snapshot.stamp.filter(|_| !snapshot.dated) {
                        snapshot.learn_age(time.since(stamp).saturating_sub(slack(&info)), told);
                    }
                    snapshot.report()
                }
                Content::Foreign => Report { holder: Some(Holder::stranger()), last_term: None },
                // The key was deleted, so the shard is not listed.
                Content::Deleted => continue,
            };
            list.push((shard, report));
        }
        each(list);
    }
    Ok(())
}
