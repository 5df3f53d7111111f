//! Lists: a page of documents in each request, and what is left of their etcd leases.
//!
//! The hazard: etcd tells what is left of one etcd lease at a time. So a long list asks for none of them: it reads which
//! leaders' keys stand.

use super::connection::Connection;
use super::document::{Record, Revisions};
use super::proto::{RangeRequest, RangeResponse, TxnRequest, range};
use super::{Answer, Keys, found};
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::lease_store::documents::{Content, EachListed, Found, Life, List, Listed, Part, Version};
use crate::store::{StoreError, parallel};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// How many keys one request lists.
const PAGE: i64 = 250;
/// The most etcd leases that a list asks for the time they have left. Ten thousand take longer than a second.
const MOST_ASKED: i64 = 1000;

impl Keys {
    pub(super) async fn list_in_pages(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        for beginning in self.names.beginnings(list) {
            let range_end = after_all(&beginning);
            let mut next = Some(beginning);
            let mut asks = None;
            let mut count = 0;
            while let Some(key) = next {
                let request = RangeRequest { key, range_end: range_end.clone(), limit: PAGE };
                let (part, answer) = self.range(request).await?;
                let asks = *asks.get_or_insert(part.count <= MOST_ASKED);
                count += part.kvs.len();
                if count > MOST_LISTED {
                    return Err(allowance::too_long(&self.client.to_string()));
                }
                next = part.kvs.last().filter(|_| part.more).map(|last| after(&last.key));
                let held = if asks { None } else { Some(self.held(&part).await?) };
                each(self.listed(part, &answer, held.as_ref()).await?);
            }
        }
        Ok(())
    }

    async fn range(&self, request: RangeRequest) -> Result<(RangeResponse, Answer), StoreError> {
        let read = async |connection: Arc<Connection>| {
            let request = TxnRequest { success: vec![range(request.clone())], ..TxnRequest::default() };
            let mut answer = self.transact(&connection, request).await?;
            Ok((answer.found.next().unwrap_or_default(), answer))
        };
        self.client.operate(|connection| Box::pin(read(connection))).await
    }

    /// The keys of leaders beside a page of documents.
    async fn held(&self, page: &RangeResponse) -> Result<HashSet<Vec<u8>>, StoreError> {
        let listed = page.kvs.iter().filter_map(|kv| self.names.listed(&kv.key));
        let locks: Vec<_> = listed.map(|(shard, _)| self.names.lock(&shard)).collect();
        let [key, ..] = &locks[..] else { return Ok(HashSet::new()) };
        let range_end = after(locks.last().unwrap_or(key));
        let (found, _) = self.range(RangeRequest { key: key.clone(), range_end, limit: 0 }).await?;
        Ok(found.kvs.into_iter().map(|kv| kv.key).collect())
    }

    /// The documents of a page. `held` are the keys of leaders; None: each etcd lease is asked.
    async fn listed(
        &self,
        page: RangeResponse,
        answer: &Answer,
        held: Option<&HashSet<Vec<u8>>>,
    ) -> Result<Vec<Listed>, StoreError> {
        let named = page.kvs.into_iter().filter_map(|kv| Some((self.names.listed(&kv.key)?, kv)));
        let judged = named.map(|((shard, part), kv)| async move {
            let record = match Record::read(&kv.value) {
                Ok(record) => record,
                Err(why) => {
                    let found = Found { content: Content::Unreadable(why), version: Version::default() };
                    return Ok(Listed { shard, part, found });
                }
            };
            let life = match held {
                _ if record.lease == 0 => Life::ForEver,
                None => self.left(record.lease).await?.map_or(Life::Over, |at_most| Life::Left { at_most }),
                Some(held) if part == Part::Lease && !held.contains(&self.names.lock(&shard)) => Life::Over,
                Some(_) => Life::ForEver,
            };
            let (marker, document, lease) = (answer.marker, kv.mod_revision, record.lease);
            let revisions = Revisions { marker, document, lease, ..Revisions::default() };
            let version = Version { write: revisions.to_string(), incarnation: answer.incarnation.clone() };
            Ok(Listed { shard, part, found: found(Some(record), life, version) })
        });
        parallel::answers(judged).await
    }

    /// What is left of an etcd lease that a list found.
    async fn left(&self, lease: i64) -> Result<Option<Duration>, StoreError> {
        let left = async |connection: Arc<Connection>| self.leases.left(&connection, lease).await;
        self.client.operate(|connection| Box::pin(left(connection))).await
    }
}

/// The first key after this one.
fn after(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}

/// The first key after all that begin with `key`. The last byte of `key` must not be 255.
fn after_all(key: &[u8]) -> Vec<u8> {
    let mut end = key.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}
