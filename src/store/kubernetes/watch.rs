//! Watches Leases: the server pushes each of their states.
//!
//! The hazard: a watch may be silent for ever, since its connection hangs, and a standby would not hear of a release. So
//! the server is asked to say once a minute that it is there, and to end the watch after some minutes. And a look that
//! finds another state than was pushed has the watch begin again.

use super::connection::{Api, Connection};
use super::document::{Lease, name_of};
use super::failure::{self, Refusal, Verb};
use super::{Objects, Pushed};
use crate::store::allowance::{self, MOST};
use crate::store::lease_store::documents::{EachSeen, Key};
use crate::store::{StoreError, parallel};
use crate::time::BootInstant;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::StatusCode;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long the server keeps a watch.
const LASTS: Duration = Duration::from_mins(4);
/// The server says once a minute that it is there.
const SILENCE: Duration = Duration::from_secs(90);

/// A watch of one Lease.
struct Watch {
    index: usize,
    connection: Arc<Connection>,
    body: Body,
    /// What was read beyond the last whole event.
    rest: Vec<u8>,
    events: VecDeque<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

enum Seen {
    Stands(Box<Lease>),
    Deleted,
    /// The watch is over, and has to begin again.
    Over,
}

/// Forgets what was pushed, once nobody listens any more.
struct Listening<'a>(&'a Objects);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.pushed.lock().clear();
    }
}

impl Objects {
    /// Shows what stands and what is pushed, until `each` breaks. Returns `Continue` when the watch has to begin again.
    pub(super) async fn follow(
        &self,
        keys: &[Key<'_>],
        each: &mut EachSeen<'_>,
        has_worked: &mut bool,
    ) -> Result<ControlFlow<()>, StoreError> {
        let names: Vec<String> = keys.iter().map(|key| name_of(*key, self.lease())).collect();
        let begun = names.iter().enumerate().map(|(index, name)| async move {
            let (lease, version) = self.api.get_for_watch(name).await?;
            Ok::<_, StoreError>((lease, Watch::begin(&self.api, index, name, &version).await?))
        });
        let _listening = Listening(self);
        let mut show = |index: usize, lease: Option<Lease>| {
            let found = self.found(keys[index], lease)?;
            let pushed = Pushed { at: BootInstant::now(), found: found.clone() };
            self.pushed.lock().insert(names[index].clone(), pushed);
            Ok::<_, StoreError>(each(index, found))
        };
        let mut watches = FuturesUnordered::new();
        for begun in parallel::all(begun).await {
            let (lease, watch) = begun?;
            let Some(watch) = watch else { return Ok(ControlFlow::Continue(())) };
            if show(watch.index, lease)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            watches.push(watch.next());
        }
        *has_worked = true;
        loop {
            let seen = tokio::select! {
                seen = watches.next() => seen,
                () = self.is_behind.notified() => return Ok(ControlFlow::Continue(())),
            };
            let Some((watch, seen)) = seen else { return std::future::pending().await };
            let lease = match seen? {
                Seen::Stands(lease) => Some(*lease),
                Seen::Deleted => None,
                Seen::Over => return Ok(ControlFlow::Continue(())),
            };
            if show(watch.index, lease)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            watches.push(watch.next());
        }
    }
}

impl Watch {
    /// None if the server has forgotten what came after this version.
    async fn begin(api: &Api, index: usize, name: &str, version: &str) -> Result<Option<Self>, StoreError> {
        let query = format!(
            "fieldSelector=metadata.name={name}&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds={}",
            LASTS.as_secs()
        );
        match api.watch(&query).await {
            Ok((connection, body)) => {
                Ok(Some(Self { index, connection, body, rest: Vec::new(), events: VecDeque::new() }))
            }
            Err(Refusal { status: Some(StatusCode::GONE), .. }) => Ok(None),
            Err(refusal) => Err(refusal.error),
        }
    }

    async fn next(mut self) -> (Self, Result<Seen, StoreError>) {
        let seen = self.event().await;
        (self, seen)
    }

    async fn event(&mut self) -> Result<Seen, StoreError> {
        loop {
            while let Some(Event { kind, object }) = self.events.pop_front() {
                match kind.as_str() {
                    "ADDED" | "MODIFIED" => {
                        let lease = serde_json::from_value(object).map_err(|error| self.strange(&error))?;
                        return Ok(Seen::Stands(Box::new(lease)));
                    }
                    "DELETED" => return Ok(Seen::Deleted),
                    "BOOKMARK" => {}
                    _ => return self.ended(&object),
                }
            }
            let Ok(frame) = timeout(SILENCE, self.body.frame()).await else {
                let server = &self.connection.server;
                return Err(StoreError::unknown(format!("kubernetes at {server} pushes nothing")));
            };
            let Some(frame) = frame else { return Ok(Seen::Over) };
            let frame = frame.map_err(|error| failure::broken(&self.connection, Verb::Watch, &error).error)?;
            self.rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            self.split()?;
        }
    }

    /// Takes the whole events out of what was read: one a line.
    fn split(&mut self) -> Result<(), StoreError> {
        if self.rest.len() > MOST {
            let place = format!("kubernetes at {}", self.connection.server);
            return Err(StoreError::unknown(allowance::complaint(&place, "kubernetes", MOST)));
        }
        let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let rest = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, rest);
        for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            self.events.push_back(serde_json::from_slice(line).map_err(|error| self.strange(&error))?);
        }
        Ok(())
    }

    fn ended(&self, status: &Value) -> Result<Seen, StoreError> {
        let code = status["code"].as_u64().and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok());
        match code {
            Some(StatusCode::GONE) | None => Ok(Seen::Over),
            Some(code) => {
                let body = status.to_string();
                Err(failure::refused(&self.connection, Verb::Watch, code, body.as_bytes()).error)
            }
        }
    }

    fn strange(&self, error: &serde_json::Error) -> StoreError {
        StoreError::unknown(format!("kubernetes at {} pushes something else: {error}", self.connection.server))
    }
}
