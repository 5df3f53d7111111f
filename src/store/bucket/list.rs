//! Lists the shards, and their leaders.
//!
//! The hazard: a list tells names alone, so each shard is read by a request of its own, as of another instant. The
//! names come in the order of the keys, where a '/' is another letter, so they are put in order before the first is
//! read.

use super::Bucket;
use super::record::{Found, SHARDS, name_of, shard_of};
use crate::lease::Shard;
use crate::store::{EachPage, ErrorKind, Holder, Report, StoreError, parallel};
use crate::time::BootInstant;

/// How many shards are read before they are reported.
const PAGE: usize = 256;

pub async fn list_in_pages(store: &Bucket, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
    let listed = store.list_all(&format!("{SHARDS}{}", name_of(prefix))).await?;
    let named = listed.iter().filter_map(|listed| shard_of(listed.key.strip_prefix(SHARDS)?));
    let mut shards: Vec<Shard> = named.collect();
    shards.sort_unstable();
    for page in shards.chunks(PAGE) {
        let looks = page.iter().cloned().map(|shard| async move {
            let report = report(store, &shard).await?;
            Ok((shard, report))
        });
        let mut reports = parallel::answers(looks).await?;
        reports.sort_by(|(one, _), (other, _)| one.cmp(other));
        let listed: Vec<_> = reports.into_iter().filter_map(|(shard, report)| Some((shard, report?))).collect();
        if !listed.is_empty() {
            each(listed);
        }
    }
    Ok(())
}

/// The report on a shard. None if it was never led, or was forgotten.
async fn report(store: &Bucket, shard: &Shard) -> Result<Option<Report>, StoreError> {
    let sent = BootInstant::now();
    let record = match store.glance(shard).await {
        Ok(Some(Found { record, .. })) => record,
        Ok(None) => return Ok(None),
        // Written by something else.
        Err(error) if error.kind == ErrorKind::Misconfigured => {
            return Ok(Some(Report { holder: Some(Holder::stranger()), last_term: None }));
        }
        Err(error) => return Err(error),
    };
    let last_term = record.last_term();
    Ok(record.is_listed().then(|| Report { holder: store.holder(shard, &record, sent), last_term }))
}
