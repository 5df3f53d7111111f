//! Lists the shards, and their leaders.
//!
//! The hazard: one answer of etcd has room for some megabytes, and one request has limited time. So keys are read in
//! pages, and each page is as of its own revision: one revision for all might be compacted away before the last page.

use super::Etcd;
use super::proto::{KeyValue, RANGE, RangeRequest, RangeResponse};
use super::record::{self, Entry, Last, Lock};
use crate::lease::Shard;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::{Holder, Report, StoreError, parallel};
use std::collections::BTreeMap;

/// How many keys one request reads.
const RANGE_PAGE: i64 = 250;

pub async fn list(etcd: &Etcd, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
    let (locks, lasts) = (etcd.keys.locks(), etcd.keys.lasts());
    // In this order: a shard that is released in between is shown as free.
    let (found, server) = below(etcd, &locks, prefix).await?;
    let held = of_shards(found).map(|(shard, kv)| {
        let server = &server;
        async move {
            let holder = match record::read_lock(server, &kv) {
                Ok(lock) => holder(etcd, lock).await?,
                Err(_) => record::foreign(&kv),
            };
            Ok((shard, Report { holder: Some(holder), last_term: None }))
        }
    });
    let mut reports: BTreeMap<Shard, Report> = parallel::answers(held).await?.into_iter().collect();
    let (found, server) = below(etcd, &lasts, prefix).await?;
    for (shard, kv) in of_shards(found) {
        let last = record::read::<Last>(&server, &kv).ok();
        reports.entry(shard).or_default().last_term = last.as_ref().map(Entry::<Last>::term);
    }
    Ok(reports.into_iter().collect())
}

async fn holder(etcd: &Etcd, lock: Entry<Lock>) -> Result<Holder, StoreError> {
    let lock = &lock;
    etcd.client.operate(|connection| Box::pin(async move { etcd.holder(&connection, lock).await })).await
}

/// The shards among the keys. A key that is not the name of a shard is skipped.
fn of_shards(found: Vec<(String, KeyValue)>) -> impl Iterator<Item = (Shard, KeyValue)> {
    found.into_iter().filter_map(|(name, kv)| Some((name.parse().ok()?, kv)))
}

/// All keys whose names below `root` begin with `prefix`, and the server that answered last.
pub async fn below(etcd: &Etcd, root: &str, prefix: &str) -> Result<(Vec<(String, KeyValue)>, String), StoreError> {
    let mut key = format!("{root}{prefix}").into_bytes();
    let range_end = after_all(&key);
    let mut found = Vec::new();
    loop {
        let request = &RangeRequest { key, range_end: range_end.clone(), limit: RANGE_PAGE };
        let (answer, server) = etcd
            .client
            .operate(|connection| {
                Box::pin(async move {
                    let answer: RangeResponse = etcd.client.call(&connection, RANGE, request.clone()).await?;
                    Ok((answer, connection.server.clone()))
                })
            })
            .await?;
        let next = answer.kvs.last().map(|last| [&last.key[..], b"\0"].concat());
        for kv in answer.kvs {
            let name = std::str::from_utf8(&kv.key).ok().and_then(|key| key.strip_prefix(root));
            if let Some(name) = name.map(str::to_owned) {
                found.push((name, kv));
            }
        }
        if found.len() > MOST_LISTED {
            return Err(allowance::too_long(&format!("etcd at {server}")));
        }
        match next {
            Some(next) if answer.more => key = next,
            Some(_) | None => return Ok((found, server)),
        }
    }
}

/// The first key after all that begin with `key`. The last byte of `key` must not be 255.
pub fn after_all(key: &[u8]) -> Vec<u8> {
    let mut end = key.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_the_last_key_with_the_prefix() {
        let end = after_all(b"p/lock/db.");
        assert_eq!(end, b"p/lock/db/");
        for inside in ["p/lock/db.", "p/lock/db.a", "p/lock/db.zzz"] {
            assert!((b"p/lock/db.".as_slice()..&end).contains(&inside.as_bytes()), "{inside}");
        }
        assert!(b"p/lock/db".as_slice() < b"p/lock/db.".as_slice());
    }
}
