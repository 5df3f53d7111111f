//! Lists the shards, and their leaders.
//!
//! The hazard: one answer of etcd has room for some megabytes, and one request has limited time. So keys are read in
//! pages, and each page is as of its own revision: one revision for all might be compacted away before the last page.
//! And a renewal does not change a lock: only its etcd lease knows when that was, and one request shows one etcd lease.
//! So a long list does not say when leases were renewed.

use super::Etcd;
use super::proto::{KeyValue, RANGE, RangeRequest, RangeResponse};
use super::record::{self, Entry, Last, Lock};
use crate::lease::Shard;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::{EachPage, Holder, Report, StoreError, parallel};
use std::collections::BTreeMap;

/// How many keys one request reads.
const RANGE_PAGE: i64 = 250;

/// The most etcd leases that are asked for the time they have left. Ten thousand take longer than a second.
pub const MOST_ASKED: usize = 1000;

/// Lists in pages of locks. Each is followed by what is known of the last leaderships up to its end.
pub async fn list(etcd: &Etcd, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
    let (locks, lasts) = (etcd.keys.locks(), etcd.keys.lasts());
    let (mut locked, mut led) = (Below::new(&locks, prefix), Below::new(&lasts, prefix));
    let mut listed = 0;
    while !locked.ended {
        // In this order: a shard that is released in between is shown as free.
        let found = locked.page(etcd).await?;
        let (server, asks) = (&locked.server, locked.count <= MOST_ASKED);
        let held = of_shards(found).map(|(shard, kv)| async move {
            let holder = match record::read_lock(server, &kv) {
                Ok(lock) if asks => holder(etcd, lock).await?,
                Ok(lock) => lock.holder(None),
                Err(_) => record::foreign(&kv),
            };
            Ok((shard, Report { holder: Some(holder), last_term: None }))
        });
        let mut reports: BTreeMap<Shard, Report> = parallel::answers(held).await?.into_iter().collect();
        led.up_to(&locked);
        while !led.ended {
            let found = led.page(etcd).await?;
            for (shard, kv) in of_shards(found) {
                let last = record::read::<Last>(&led.server, &kv).ok();
                reports.entry(shard).or_default().last_term = last.as_ref().map(Entry::<Last>::term);
            }
        }
        listed += reports.len();
        if listed > MOST_LISTED {
            return Err(allowance::too_long(&format!("etcd at {}", locked.server)));
        }
        each(reports.into_iter().collect());
    }
    Ok(())
}

async fn holder(etcd: &Etcd, lock: Entry<Lock>) -> Result<Holder, StoreError> {
    let lock = &lock;
    etcd.client.operate(|connection| Box::pin(async move { etcd.holder(&connection, lock).await })).await
}

/// The shards among the keys. A key that is not the name of a shard is skipped.
fn of_shards(found: Vec<(String, KeyValue)>) -> impl Iterator<Item = (Shard, KeyValue)> {
    found.into_iter().filter_map(|(name, kv)| Some((name.parse().ok()?, kv)))
}

/// The keys whose names below `root` begin with a prefix, page by page.
pub struct Below<'a> {
    root: &'a str,
    key: Vec<u8>,
    range_end: Vec<u8>,
    after_all: Vec<u8>,
    pub ended: bool,
    /// How many keys there were in all, according to the first page.
    count: usize,
    /// The server that answered last.
    pub server: String,
}

impl<'a> Below<'a> {
    pub fn new(root: &'a str, prefix: &str) -> Self {
        let key = format!("{root}{prefix}").into_bytes();
        let after_all = after_all(&key);
        Self { root, key, range_end: after_all.clone(), after_all, ended: false, count: 0, server: String::new() }
    }

    /// Goes on, as far as `other` has come.
    fn up_to(&mut self, other: &Self) {
        self.range_end = if other.ended {
            self.after_all.clone()
        } else {
            [self.root.as_bytes(), &other.key[other.root.len()..]].concat()
        };
        self.ended = false;
    }

    pub async fn page(&mut self, etcd: &Etcd) -> Result<Vec<(String, KeyValue)>, StoreError> {
        let request = &RangeRequest { key: self.key.clone(), range_end: self.range_end.clone(), limit: RANGE_PAGE };
        let (answer, server) = etcd
            .client
            .operate(|connection| {
                Box::pin(async move {
                    let answer: RangeResponse = etcd.client.call(&connection, RANGE, request.clone()).await?;
                    Ok((answer, connection.server.clone()))
                })
            })
            .await?;
        self.server = server;
        // That of a later page is of the keys from there on.
        self.count = self.count.max(usize::try_from(answer.count).unwrap_or(0));
        match answer.kvs.last() {
            Some(last) if answer.more => self.key = [&last.key[..], b"\0"].concat(),
            Some(_) | None => {
                self.key.clone_from(&self.range_end);
                self.ended = true;
            }
        }
        let name = |kv: &KeyValue| Some(std::str::from_utf8(&kv.key).ok()?.strip_prefix(self.root)?.to_owned());
        Ok(answer.kvs.into_iter().filter_map(|kv| Some((name(&kv)?, kv))).collect())
    }
}

/// All keys whose names below `root` begin with `prefix`.
pub async fn below(etcd: &Etcd, root: &str, prefix: &str) -> Result<Vec<(String, KeyValue)>, StoreError> {
    let (mut pages, mut found) = (Below::new(root, prefix), Vec::new());
    while !pages.ended {
        found.extend(pages.page(etcd).await?);
        if found.len() > MOST_LISTED {
            return Err(allowance::too_long(&format!("etcd at {}", pages.server)));
        }
    }
    Ok(found)
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
