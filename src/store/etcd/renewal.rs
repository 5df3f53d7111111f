//! A renewal: the etcd lease is kept alive, and what stands is read, over one connection to one member. See the hazards
//! of this store.

use super::connection::Connection;
use super::document::Revisions;
use super::proto::{LeaseResponse, TxnRequest, is_unchanged, put};
use super::{Keys, MOST_ATTEMPTS, lease};
use crate::store::lease_store::documents::{Documents, Key, Life, Touch, Touched};
use crate::store::{ErrorKind, StoreError};
use std::sync::Arc;

/// Whether the key that was read stays for a whole lease from when both requests were sent: its etcd lease was kept
/// alive, and by the present leader of etcd. See the hazards of this store.
fn is_proof(kept: &LeaseResponse, raft_term: u64) -> bool {
    kept.header.as_ref().is_some_and(|header| header.raft_term == raft_term && raft_term > 0)
}

impl Keys {
    pub(super) async fn touch_on(&self, connection: Arc<Connection>, touch: Touch<'_>) -> Result<Touched, StoreError> {
        let key = Key::Shard(touch.shard);
        let mut lease = touch.known.map_or(0, |known| Revisions::read(&known.version.write).lease);
        let mut also = touch.also;
        for _ in 0..MOST_ATTEMPTS {
            let keys = [&[key], also].concat();
            let read = self.transact(Arc::clone(&connection), TxnRequest::default(), &keys);
            // In this order: see the hazards of this store.
            let (kept, read) = tokio::join!(self.leases.keep_alive(&connection, lease), read);
            let mut answer = match read {
                // If reading the other keys is denied, that must not cost the lease.
                Err(error) if error.kind == ErrorKind::Denied && !also.is_empty() => {
                    also = &[];
                    continue;
                }
                read => read?,
            };
            let stands = answer.stands.remove(0);
            let named = if stands.found.leadership() == Some(touch.leadership) { stands.lease } else { 0 };
            if named != 0 && named != lease {
                lease = named;
                continue;
            }
            let is_others = stands.beside.as_ref().is_some_and(|beside| beside.lease != lease);
            if named == 0 || kept.as_ref().is_ok_and(|kept| kept.ttl_seconds <= 0 || is_others) {
                return Ok(Touched::Refused);
            }
            let kept = kept?;
            if !is_proof(&kept, answer.header.raft_term) {
                continue;
            }
            if lease::seconds(kept.ttl_seconds) < touch.lease {
                return Err(StoreError::unknown(format!(
                    "etcd at {} kept the lease of shard {} for {} s only",
                    connection.server, touch.shard, kept.ttl_seconds
                )));
            }
            if stands.beside.is_none() {
                // It was deleted by hand; its document still names it, and its etcd lease lives.
                let (document, lock) = (self.names.of(key), self.names.lock(touch.shard));
                let before = Revisions::read(&stands.found.version.write);
                let put_back = TxnRequest {
                    compare: vec![is_unchanged(&document, before.document), is_unchanged(&lock, 0)],
                    success: vec![put(&lock, touch.owner.into(), lease)],
                    failure: Vec::new(),
                };
                self.transact(Arc::clone(&connection), put_back, &[]).await?;
                continue;
            }
            let is_whole = also.len() == touch.also.len();
            let others = if is_whole { self.judge_all(&connection, also, answer.stands).await.ok() } else { None };
            let found = stands.with(Life::Left { at_most: lease::seconds(kept.ttl_seconds) });
            return Ok(Touched::Done { found, also: others });
        }
        Err(StoreError::unknown(format!(
            "etcd at {} changes its leader, or {}, while the lease is renewed",
            connection.server,
            self.name(key)
        )))
    }
}
