//! Watches leaders' keys: for a release or an expiry, and for what ends a lease by hand.
//!
//! The hazard: what happens before etcd has begun a watch is not shown by it, and etcd forgets the revisions from which
//! it could be shown. So the documents are looked at once etcd has begun all watches, and again at each deletion.

use super::proto::{NO_PUT, WatchCreateRequest, WatchRequest};
use super::{Keys, has_key};
use crate::lease::Shard;
use crate::store::StoreError;
use crate::store::lease_store::documents::{Documents, EachSeen, Found, Key};
use futures_util::stream::{self, StreamExt};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tonic::Status;

/// From one failed watch of our own key to the next.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);

impl Keys {
    /// A key that is taken over is deleted first: by its holder, by hand, or with its etcd lease.
    pub(super) async fn follow(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let connection = self.client.connection();
        let watched = keys.iter().zip(1..).filter_map(|(&key, watch_id)| {
            Some(WatchCreateRequest { key: self.names.beside(key)?, filters: vec![NO_PUT], watch_id })
        });
        let watched: Vec<_> = watched.map(|of| WatchRequest { create_request: Some(of) }).collect();
        let mut to_begin = watched.len();
        // etcd ends the watch once our side of it ends, which is when this is dropped.
        let (_open, dropped) = oneshot::channel::<Infallible>();
        let requests = stream::iter(watched).chain(stream::pending().take_until(dropped));
        let mut watch = self.client.watch(&connection, requests).await?;
        let ended = loop {
            let seen = match watch.next().await {
                Some(Ok(seen)) if seen.canceled => break Status::unavailable(seen.cancel_reason),
                Some(Ok(seen)) => seen,
                Some(Err(status)) => break status,
                None => break Status::unavailable("the watch ended"),
            };
            to_begin = to_begin.saturating_sub(usize::from(seen.created));
            let index = usize::try_from(seen.watch_id.saturating_sub(1)).unwrap_or(usize::MAX);
            let shown = match to_begin {
                0 if seen.created => 0..keys.len(),
                0 if !seen.events.is_empty() && index < keys.len() => index..index + 1,
                _ => continue,
            };
            for (index, found) in shown.clone().zip(self.get(&keys[shown], false).await?) {
                if each(index, found).is_break() {
                    return Ok(());
                }
            }
        };
        Err(self.client.watch_ended(&connection, &ended))
    }

    /// Returns once the key of our own leadership may be gone.
    pub(super) async fn doubt(&self, shard: &Shard) {
        loop {
            let mut is_first = true;
            // After that, it was deleted, whatever stands there by now.
            let mut each = |_, found: Found| {
                let is_there = std::mem::take(&mut is_first) && has_key(&found);
                if is_there { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            if self.follow(&[Key::Shard(shard)], &mut each).await.is_ok() {
                return;
            }
            sleep(DOUBT_PAUSE).await;
        }
    }
}
