//! Notes as keys, each with its plain text. A note that lasts for a time is attached to an etcd lease of its own.
//!
//! The hazards:
//!
//! - A write may be applied although its answer was lost, and then its note must last as promised. So its etcd lease is
//!   revoked only if etcd said that the write was not applied. Otherwise the lease ends by itself, with or without a
//!   note.
//! - A note that is replaced leaves its etcd lease behind, which would live on for nothing. It is revoked later. A
//!   reader that has just read that note then finds no lease under it, and reads the note again.
//! - etcd counts in whole seconds, and may remove an ended note a second late. So a note lasts longer, never shorter; a
//!   change of etcd's leader gives it its whole time again.

use super::connection::Connection;
use super::failure::Failure;
use super::keys::STANDBY_MARK;
use super::list::{MOST_ASKED, below};
use super::proto::{KeyValue, RangeResponse, TXN, TxnRequest, TxnResponse, delete, get, is_absent, is_value, put};
use super::record::{unreadable, whole_seconds};
use super::unclaimed::UnclaimedLeases;
use super::{Etcd, MOST_ATTEMPTS};
use crate::lease::Shard;
use crate::store::notes::unless_store_fails;
use crate::store::{ErrorKind, Note, NoteRead, Notes, Page, StoreError, parallel};
use std::sync::Arc;
use std::time::Duration;

/// The longest lease for notes, in seconds: more than 200 years. etcd refuses leases that are longer than 285 years.
const FOR_EVER: i64 = 7_000_000_000;

/// The most notes that one transaction reads. Servers take 128 operations, unless --max-txn-ops says otherwise.
const GETS: usize = 100;

/// The state of a note that was found.
enum Found {
    Stands(Note),
    /// The note has ended, or was replaced since.
    Gone,
}

/// The duration of the note's etcd lease. None: for ever.
fn time_to_grant(draft: &Note) -> Option<Duration> {
    draft.lasts.filter(|&lasts| whole_seconds(lasts) < FOR_EVER)
}

impl Etcd {
    /// Examines a note, after a linearizable read on the same connection.
    async fn examine(&self, connection: &Arc<Connection>, kv: &KeyValue) -> Result<Found, StoreError> {
        let text = String::from_utf8(kv.value.clone());
        let text = text.map_err(|_| unreadable(&connection.server, &kv.key))?;
        if kv.lease == 0 {
            return Ok(Found::Stands(Note::for_ever(text)));
        }
        let left = self.time_to_live(connection, kv.lease).await?;
        Ok(left.map_or(Found::Gone, |left| Found::Stands(Note::lasting(text, Some(left.at_most)))))
    }

    /// What a linearizable read finds under `key`, and in the same request the orders of `shards`. The orders are None
    /// if they need a second look: they end some time, or cannot be read.
    pub(super) async fn get_with_orders(
        &self,
        connection: &Arc<Connection>,
        key: &[u8],
        shards: &[Shard],
    ) -> Result<(RangeResponse, Option<Vec<Option<Note>>>), Failure> {
        if shards.is_empty() {
            return Ok((self.get(connection, key.to_vec()).await?, None));
        }
        let orders = shards.iter().map(|shard| get(&self.keys.note(shard, &Page::Orders)));
        let success = [get(key)].into_iter().chain(orders).collect();
        let request = TxnRequest { success, ..TxnRequest::default() };
        let answer: Result<TxnResponse, Failure> = self.client.call(connection, TXN, request).await;
        let answer = match answer {
            // A key whose orders are denied must not cost the lease.
            Err(failure) if failure.error.kind == ErrorKind::Denied => None,
            answer => Some(answer?),
        };
        let header = answer.as_ref().and_then(|answer| answer.header.clone());
        let found: Vec<Option<KeyValue>> = answer.into_iter().flat_map(TxnResponse::found).collect();
        let [lock, orders @ ..] = &found[..] else {
            return Ok((self.get(connection, key.to_vec()).await?, None));
        };
        let note = |kv: &Option<KeyValue>| match kv {
            None => Some(None),
            Some(kv) if kv.lease == 0 => Some(Some(Note::for_ever(std::str::from_utf8(&kv.value).ok()?))),
            Some(_) => None,
        };
        let orders = orders.iter().map(note).collect::<Option<Vec<_>>>().filter(|notes| notes.len() == shards.len());
        Ok((RangeResponse { header, kvs: lock.iter().cloned().collect(), ..RangeResponse::default() }, orders))
    }

    /// Reads many notes, in few requests.
    pub(super) async fn read_many(&self, wanted: &[(Shard, Page)]) -> Result<Vec<NoteRead>, StoreError> {
        let mut notes = Vec::with_capacity(wanted.len());
        for some in wanted.chunks(GETS) {
            let read = async |connection| self.read_page(&connection, some).await;
            notes.extend(match self.client.operate(|connection| Box::pin(read(connection))).await {
                // What is wrong with one of them, such as a key that is denied, does not hide the others.
                Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
                    let reads = some.iter().map(async |(shard, page)| unless_store_fails(self.read(shard, page).await));
                    parallel::all(reads).await.into_iter().collect::<Result<Vec<_>, _>>()?
                }
                notes => notes?,
            });
        }
        Ok(notes)
    }

    /// The same of few notes, in one request, and one more for each that ends some time.
    async fn read_page(
        &self,
        connection: &Arc<Connection>,
        wanted: &[(Shard, Page)],
    ) -> Result<Vec<NoteRead>, StoreError> {
        let success = wanted.iter().map(|(shard, page)| get(&self.keys.note(shard, page))).collect();
        let request = TxnRequest { success, ..TxnRequest::default() };
        let answer: TxnResponse = self.client.call(connection, TXN, request).await?;
        let found: Vec<Option<KeyValue>> = answer.found().collect();
        if found.len() != wanted.len() {
            return Err(StoreError::unknown(format!("cannot understand the answer of {}", connection.server)));
        }
        let note = async |kv: Option<KeyValue>| {
            let Some(kv) = kv else { return Ok(Ok(None)) };
            unless_store_fails(match self.examine(connection, &kv).await {
                Ok(Found::Stands(note)) => Ok(Some(note)),
                Ok(Found::Gone) => self.read_on(connection, &kv.key).await,
                Err(error) => Err(error),
            })
        };
        parallel::all(found.into_iter().map(note)).await.into_iter().collect()
    }

    async fn read_on(&self, connection: &Arc<Connection>, key: &[u8]) -> Result<Option<Note>, StoreError> {
        for _ in 0..MOST_ATTEMPTS {
            let found = self.get(connection, key.to_vec()).await?;
            let Some(kv) = found.kvs.first() else { return Ok(None) };
            if let Found::Stands(note) = self.examine(connection, kv).await? {
                return Ok(Some(note));
            }
        }
        let key = String::from_utf8_lossy(key);
        Err(StoreError::not_applied(format!("the note {key} changes faster than it can be read")))
    }

    async fn replace_on(
        &self,
        connection: &Arc<Connection>,
        key: &[u8],
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let mut etcd_lease = 0;
        if let Some(lasts) = draft.and_then(time_to_grant) {
            let unclaimed = UnclaimedLeases::new_lease(&self.unclaimed)?;
            self.grant(connection, unclaimed.id, lasts).await?;
            etcd_lease = unclaimed.id;
            unclaimed.keep();
        }
        let written = match draft {
            Some(draft) => Some(put(key, draft.text.clone().into_bytes(), etcd_lease)),
            None => expected.map(|_| delete(key)),
        };
        let request = TxnRequest {
            compare: vec![expected.map_or_else(|| is_absent(key), |text| is_value(key, text.as_bytes()))],
            // In this order, so that the get finds what was there before the write.
            success: [get(key)].into_iter().chain(written).collect(),
            failure: Vec::new(),
        };
        let answer: Result<TxnResponse, StoreError> =
            self.client.call(connection, TXN, request).await.map_err(StoreError::from);
        let useless = match &answer {
            Ok(answer) => !answer.succeeded,
            Err(error) => error.kind != ErrorKind::Unknown,
        };
        if useless {
            self.revoke_later(etcd_lease);
        }
        let answer = answer?;
        let succeeded = answer.succeeded;
        if let Some(before) = answer.found().next().flatten() {
            self.revoke_later(before.lease);
        }
        Ok(succeeded)
    }

    fn revoke_later(&self, etcd_lease: i64) {
        if etcd_lease != 0 {
            UnclaimedLeases::revoke_later(&self.unclaimed, etcd_lease);
        }
    }
}

#[async_trait::async_trait]
impl Notes for Etcd {
    async fn read(&self, shard: &Shard, page: &Page) -> Result<Option<Note>, StoreError> {
        let key = self.keys.note(shard, page);
        let read = async |connection| self.read_on(&connection, &key).await;
        self.client.operate(|connection| Box::pin(read(connection))).await
    }

    async fn replace(
        &self,
        shard: &Shard,
        page: &Page,
        expected: Option<&str>,
        draft: Option<&Note>,
    ) -> Result<bool, StoreError> {
        let key = self.keys.note(shard, page);
        let replace = async |connection| self.replace_on(&connection, &key, expected, draft).await;
        self.client.operate(|connection| Box::pin(replace(connection))).await
    }

    async fn standbys(&self, prefix: &str) -> Result<Vec<(Shard, Note)>, StoreError> {
        let found = below(self, &self.keys.standbys(), prefix).await?;
        let asks = found.len() <= MOST_ASKED;
        let notes = found.into_iter().filter_map(|(name, kv)| {
            // Other keys here were written by another program.
            let shard: Shard = name.split_once(STANDBY_MARK)?.0.parse().ok()?;
            let text = std::str::from_utf8(&kv.value).ok()?.to_owned();
            Some(async move {
                if !asks {
                    // It stands: its etcd lease would have taken the key with it.
                    return Ok(Some((shard, Note::for_ever(text))));
                }
                let ask = async |connection: Arc<Connection>| match self.examine(&connection, &kv).await? {
                    Found::Stands(note) => Ok(Some(note)),
                    Found::Gone => self.read_on(&connection, &kv.key).await,
                };
                let note = self.client.operate(|connection| Box::pin(ask(connection))).await?;
                Ok(note.map(|note| (shard, note)))
            })
        });
        Ok(parallel::answers(notes).await?.into_iter().flatten().collect())
    }
}
