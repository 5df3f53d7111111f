//! Lists the shards, and their leaders.
//!
//! The hazard: a record alone does not show whether its lease has ended, because this process has not watched it. So
//! each record is judged by the server's clock, which is asked once, before the records are read: a record that is
//! written after that has just begun.

use super::address::shard_of;
use super::record::Content;
use super::{Nats, slack};
use crate::lease::{Shard, Term};
use crate::store::{Holder, Report, StoreError, parallel};
use crate::time::BootInstant;

pub async fn list(store: &Nats, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
    let (info, keys) = store.bucket.keys().await?;
    let time = store.bucket.time(&info).await?;
    let told = BootInstant::now();
    let mut shards: Vec<_> = keys.iter().filter_map(|key| shard_of(key)).collect();
    shards.retain(|shard| shard.as_str().starts_with(prefix));
    let looks = shards.into_iter().map(|shard| async move { Ok((store.look(&shard).await?, shard)) });
    let mut list = Vec::new();
    for (snapshot, shard) in parallel::answers(looks).await? {
        let Some(mut snapshot) = snapshot else { continue };
        let report = match &snapshot.content {
            Content::Record(_) => {
                if let Some(stamp) = snapshot.stamp.filter(|_| !snapshot.dated) {
                    snapshot.learn_age(time.since(stamp).saturating_sub(slack(&info)), told);
                }
                let now = BootInstant::now();
                let holder = (!snapshot.left(now).is_zero()).then(|| snapshot.holder(now));
                Report { holder, last_term: snapshot.term().map(Term) }
            }
            Content::Foreign => Report { holder: Some(Holder::stranger()), last_term: None },
            // The key was deleted, so the shard is not listed.
            Content::Deleted => continue,
        };
        list.push((shard, report));
    }
    list.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(list)
}
