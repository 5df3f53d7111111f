//! Lists: a page of documents in each request, and what is left of their etcd leases.
//!
//! The hazard: etcd tells what is left of one etcd lease at a time. So a long list asks for none of them: it reads
//! which leaders' keys stand.

use super::proto::{RangeRequest, RangeResponse, TxnRequest, range};
use super::{Answer, Keys};
use crate::store::allowance;
use crate::store::lease_store::documents::{EachListed, Key, Life, List, Listed, Part};
use crate::store::{StoreError, parallel};
use std::collections::HashSet;

const PAGE: i64 = 250;
/// The most etcd leases that a list asks for the time they have left. Ten thousand take longer than a second.
const MOST_ASKED: i64 = 1000;

impl Keys {
    pub(super) async fn list_in_pages(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        for beginning in self.names.beginnings(list) {
            // No text has this byte.
            let range_end = [&beginning[..], b"\xff"].concat();
            let mut next = Some(beginning);
            let mut asks = None;
            let mut count = 0;
            while let Some(key) = next {
                let request = RangeRequest { key, range_end: range_end.clone(), limit: PAGE };
                let answer = self.range(request).await?;
                let page = &answer.listed;
                let asks = *asks.get_or_insert(page.count <= MOST_ASKED);
                count += page.kvs.len();
                allowance::listed(count, &self.client.address.to_string())?;
                next = page.kvs.last().filter(|_| page.more).map(|last| after(&last.key));
                let held = if asks { None } else { Some(self.held(page).await?) };
                each(self.listed(&answer, held.as_ref()).await?);
            }
        }
        Ok(())
    }

    async fn range(&self, request: RangeRequest) -> Result<Answer, StoreError> {
        let request = &TxnRequest { success: vec![range(request)], ..TxnRequest::default() };
        self.client.operate(|on| self.transact(on, request.clone(), &[])).await
    }

    /// The keys of leaders beside a page of documents.
    async fn held(&self, page: &RangeResponse) -> Result<HashSet<Vec<u8>>, StoreError> {
        let listed = page.kvs.iter().filter_map(|kv| self.names.listed(&kv.key));
        let locks: Vec<_> = listed.map(|(shard, _)| self.names.lock(&shard)).collect();
        let [key, ..] = &locks[..] else { return Ok(HashSet::new()) };
        let range_end = after(locks.last().unwrap_or(key));
        let found = self.range(RangeRequest { key: key.clone(), range_end, limit: 0 }).await?;
        Ok(found.listed.kvs.into_iter().map(|kv| kv.key).collect())
    }

    /// `held` are the keys of leaders; None: each etcd lease is asked.
    async fn listed(&self, page: &Answer, held: Option<&HashSet<Vec<u8>>>) -> Result<Vec<Listed>, StoreError> {
        let named = page.listed.kvs.iter();
        let named = named.filter_map(|kv| Some((self.names.listed(&kv.key)?, page.understand(Some(kv), None))));
        let named: Vec<_> = named.collect();
        let judged = named.into_iter().map(|((shard, part), stands)| async move {
            let found = match held {
                None => {
                    let key = if let Part::Note(page) = &part { Key::Note(&shard, page) } else { Key::Shard(&shard) };
                    self.client.operate(|connection| self.judge(connection, key, stands.clone())).await?
                }
                Some(held) => {
                    let is_over = part == Part::Lease && stands.lease != 0 && !held.contains(&self.names.lock(&shard));
                    if is_over { stands.with(Life::Over) } else { stands.found }
                }
            };
            Ok(Listed { shard, part, found })
        });
        parallel::answers(judged).await
    }
}

fn after(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}
