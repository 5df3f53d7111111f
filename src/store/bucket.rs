//! The stores `s3://`, `gs://` and `azblob://`: one object for each document in a bucket, changed only by conditional
//! writes (`If-None-Match: *`, `If-Match: ETAG`).
//!
//! The hazard: object storage compares and swaps one object, and looks at no clock. So a renewal is a write too, ends
//! are written from the upper bound of the server's clock (`server_clock`) and judged by the lower, and an operator's
//! write and a renewal refuse each other. If a server ignores conditions, or checks them and writes in two steps, two
//! candidates both lead. So `leaderctl store init` tries the server before it writes the marker, and without the marker
//! nobody leads. `store init` makes no bucket: its name, region and rules are an operator's choice.
//!
//! A failed condition is an outcome, not an error: servers report a lost race as `412`, `409`, `304`, or `404` for an
//! object that is gone, and all of them mean: look again.

mod address;
mod connection;
mod document;
mod failure;

pub use address::{Address, Kind};

use super::allowance::{self, MOST};
use super::error::innermost;
use super::expiry::ServerTime;
use super::lease_store::documents::{
    Content, Documents, Draft, EachListed, Found, Key, List, Listed, Marking, Over, Properties, Version,
};
use super::record::Record;
use super::server_clock::Clock;
use super::{Delivery, StoreError, parallel};
use connection::Wire;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use std::sync::Arc;

const PAGE: usize = 256;
const LIST_PAGE: usize = 1000;

/// The right that a request needs, as each [`Kind`] calls it.
type Action = [&'static str; 3];
const GET: Action = ["s3:GetObject", "storage.objects.get", "reading blobs"];
const PUT: Action = ["s3:PutObject", "storage.objects.create and storage.objects.delete", "writing blobs"];
const DELETE: Action = ["s3:DeleteObject", "storage.objects.delete", "deleting blobs"];
const LIST: Action = ["s3:ListBucket", "storage.objects.list", "listing blobs"];

pub struct Objects {
    client: Arc<dyn ObjectStore>,
    pages: Arc<dyn PaginatedListStore>,
    wire: Wire,
    kind: Kind,
    server: String,
    name: String,
    prefix: String,
}

impl ServerTime for Objects {
    fn clock(&self) -> Clock {
        self.wire.clock.lock().clone()
    }
}

impl Objects {
    fn new(
        address: &Address,
        client: object_store::Result<impl ObjectStore + PaginatedListStore>,
        wire: Wire,
        server: String,
    ) -> Result<Self, StoreError> {
        let client = Arc::new(client.map_err(|error| {
            StoreError::misconfigured(format!("cannot use {address} in {server}: {}", innermost(&error)))
        })?);
        Ok(Self {
            client: Arc::clone(&client) as _,
            pages: client,
            wire,
            kind: address.kind,
            server,
            name: address.to_string(),
            prefix: address.prefix.clone(),
        })
    }

    fn path(&self, key: &str) -> Path {
        let whole = format!("{}{key}", self.prefix);
        // Names of shards, sessions and jobs need no encoding.
        Path::parse(&whole).unwrap_or_else(|_| Path::from(whole))
    }

    /// What conditions compare: Google's generation, the others' `ETag`.
    fn version(&self, e_tag: Option<String>, version: Option<String>) -> Option<String> {
        if self.kind == Kind::Gcs { version } else { e_tag }
    }

    async fn read(&self, key: &str) -> Result<Found, StoreError> {
        let answer = match self.client.get(&self.path(key)).await {
            Ok(answer) => answer,
            Err(Error::NotFound { .. }) => return Ok(found(Content::Absent, String::new())),
            Err(error) if failure::is_too_long(&error) => {
                let why = format!("it has more than {} MiB", MOST >> 20);
                return Ok(found(Content::Unreadable(why), String::new()));
            }
            Err(error) => return Err(self.failure(GET, &error)),
        };
        let write = self.version(answer.meta.e_tag.clone(), answer.meta.version.clone());
        let write = write.ok_or_else(|| {
            StoreError::misconfigured(format!(
                "{} does not say which version of an object it read or wrote, so nothing can be compared: use another \
                 server",
                self.server
            ))
        })?;
        let bytes = answer.bytes().await.map_err(|error| self.failure(GET, &error))?;
        Ok(found(Record::read(&bytes).map(Record::document).into(), write))
    }

    async fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let whole = format!("{}{prefix}", self.prefix);
        let mut asked = whole.as_str();
        if self.kind == Kind::Azure {
            // The library leaves out the object whose name is the prefix itself.
            asked = asked.get(..asked.len().saturating_sub(1)).unwrap_or_default();
        }
        let mut all = Vec::new();
        let mut options = PaginatedListOptions { max_keys: Some(LIST_PAGE), ..PaginatedListOptions::default() };
        loop {
            let page = self.pages.list_paginated(Some(asked), options.clone()).await;
            let page = page.map_err(|error| self.failure(LIST, &error))?;
            let names = page.result.objects.iter().map(|object| object.location.as_ref());
            let names = names.filter(|name| name.starts_with(&whole));
            all.extend(names.filter_map(|name| Some(name.strip_prefix(&self.prefix)?.to_owned())));
            allowance::listed(all.len(), &self.server)?;
            options.page_token = page.page_token.filter(|token| !token.is_empty());
            if options.page_token.is_none() {
                return Ok(all);
            }
        }
    }
}

fn found(content: Content, write: String) -> Found {
    Found { content, version: Version { write, incarnation: String::new() } }
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
        let mode = if over.content == Content::Absent {
            PutMode::Create
        } else {
            let write = Some(over.version.write.clone());
            let (e_tag, version) = if self.kind == Kind::Gcs { (None, write) } else { (write, None) };
            PutMode::Update(UpdateVersion { e_tag, version })
        };
        let key = document::key_of(key);
        let put = self.client.put_opts(&self.path(&key), record.json().into(), PutOptions::from(mode)).await;
        let version = match put {
            Ok(written) => self.version(written.e_tag, written.version),
            Err(error) if failure::names_no_version(&error) => None,
            Err(
                Error::AlreadyExists { .. }
                | Error::Precondition { .. }
                | Error::NotModified { .. }
                | Error::NotFound { .. },
            ) => return Ok(None),
            Err(error) => return Err(self.failure(PUT, &error)),
        };
        let ours = Content::Ours(record.document());
        if let Some(version) = version {
            return Ok(Some(found(ours, version)));
        }
        // The write was applied, but only a read can tell its version.
        let stands = self.read(&key).await.map_err(StoreError::after_a_part)?;
        Ok(Some(stands).filter(|stands| stands.content == ours))
    }

    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError> {
        match self.client.delete(&self.path(&document::key_of(key))).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failure(DELETE, &error)),
        }
    }

    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError> {
        let mut named = Vec::new();
        for beginning in document::beginnings(list) {
            let keys = self.keys(&beginning).await?;
            named.extend(keys.into_iter().filter_map(|key| document::listed(&key).map(|listed| (listed, key))));
        }
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
