//! The requests. A failed condition is an outcome, not an error: servers report a lost race as `412`, `409`, `304`, or
//! `404` for an object that is gone, and all of them mean: look again.

use super::address::{Address, Kind};
use super::connection::Wire;
use super::failure::{self, Place};
use crate::store::StoreError;
use crate::store::allowance::{self, MOST};
use crate::store::error::innermost;
use crate::store::expiry::ServerTime;
use crate::store::lease_store::documents::{Content, Found, Version};
use crate::store::record::Record;
use crate::store::server_clock::Clock;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use std::sync::Arc;

const PAGE: usize = 1000;

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
    pub(super) kind: Kind,
    server: String,
    pub name: String,
    prefix: String,
}

impl ServerTime for Objects {
    fn clock(&self) -> Clock {
        self.wire.clock()
    }
}

impl Objects {
    pub(super) fn new(
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

    fn failure(&self, action: Action, error: &(dyn std::error::Error + 'static)) -> StoreError {
        let wrong_wall_clock = self.wrong_wall_clock();
        let place = Place { bucket: &self.name, server: &self.server, wrong_wall_clock };
        failure::failure(&place, action[self.kind as usize], error)
    }

    /// What conditions compare: Google's generation, the others' `ETag`.
    fn version(&self, e_tag: Option<String>, version: Option<String>) -> Option<String> {
        match self.kind {
            Kind::S3 | Kind::Azure => e_tag,
            Kind::Gcs => version,
        }
    }

    pub(super) async fn read(&self, key: &str) -> Result<Found, StoreError> {
        let answer = match self.client.get(&self.path(key)).await {
            Ok(answer) => answer,
            Err(Error::NotFound { .. }) => return Ok(Found { content: Content::Absent, version: Version::default() }),
            Err(error) if failure::is_too_long(&error) => {
                let why = format!("it has more than {} MiB", MOST >> 20);
                return Ok(Found { content: Content::Unreadable(why), version: Version::default() });
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
        Ok(found(Record::read(&bytes), write))
    }

    /// Writes over this version, or over an absence. None: something else stands there.
    pub(super) async fn write(
        &self,
        key: &str,
        record: Record,
        over: Option<&str>,
    ) -> Result<Option<Found>, StoreError> {
        let mode = over.map(str::to_owned).map_or(PutMode::Create, |over| {
            let (e_tag, version) = if self.kind == Kind::Gcs { (None, Some(over)) } else { (Some(over), None) };
            PutMode::Update(UpdateVersion { e_tag, version })
        });
        let put = self.client.put_opts(&self.path(key), record.json().into(), PutOptions::from(mode)).await;
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
        if let Some(version) = version {
            return Ok(Some(found(Ok(record), version)));
        }
        // The write was applied, but only a read can tell its version.
        let stands = self.read(key).await.map_err(StoreError::after_a_part)?;
        let ours = Content::Ours(record.document());
        Ok(Some(stands).filter(|stands| stands.content == ours))
    }

    /// Unconditional, so only for what decides nothing.
    pub(super) async fn delete(&self, key: &str) -> Result<(), StoreError> {
        match self.client.delete(&self.path(key)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failure(DELETE, &error)),
        }
    }

    pub(super) async fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let whole = format!("{}{prefix}", self.prefix);
        let mut asked = whole.as_str();
        if self.kind == Kind::Azure {
            // The library leaves out the object whose name is the prefix itself.
            asked = asked.get(..asked.len().saturating_sub(1)).unwrap_or_default();
        }
        let mut all = Vec::new();
        let mut options = PaginatedListOptions { max_keys: Some(PAGE), ..PaginatedListOptions::default() };
        loop {
            let page = self.pages.list_paginated(Some(asked), options.clone()).await;
            let page = page.map_err(|error| self.failure(LIST, &error))?;
            let found = page.result.objects.iter().map(|object| object.location.as_ref());
            let named = found.filter(|name| name.starts_with(&whole));
            all.extend(named.filter_map(|name| Some(name.strip_prefix(&self.prefix)?.to_owned())));
            allowance::listed(all.len(), &self.server)?;
            options.page_token = page.page_token.filter(|token| !token.is_empty());
            if options.page_token.is_none() {
                return Ok(all);
            }
        }
    }
}

fn found(record: Result<Record, String>, write: String) -> Found {
    Found { content: record.map(Record::document).into(), version: Version { write, incarnation: String::new() } }
}
