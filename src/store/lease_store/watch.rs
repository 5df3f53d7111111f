//! How a standby hears that a lease may be free: a watch of the documents, begun again whenever it ends.
//!
//! The hazard: a watch ends, or is silent for ever on a connection that hangs. So a pause follows an end, and a look
//! that finds something else than was shown ends the watch.

use super::LeaseStore;
use super::documents::{Found, Key};
use crate::lease::Shard;
use crate::store::StoreError;
use crate::time::BootInstant;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::sleep;

/// The pause after a watch that ended. It doubles from the first to the second while no watch begins.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// Once it is dropped, looks ask the server again.
struct Watching<'a>(&'a LeaseStore);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.seen.lock().values_mut().for_each(|seen| seen.is_pushed = false);
    }
}

impl LeaseStore {
    /// As [`Leases::any_changed`](crate::store::Leases::any_changed), of the leases alone.
    pub(super) async fn any_lease_changed(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        let keys: Vec<Key<'_>> = shards.iter().map(Key::Shard).collect();
        let pushes_documents = self.properties.pushes_documents;
        let mut pause = PAUSE.0;
        loop {
            let watching = Watching(self);
            let mut has_begun = false;
            let mut free = None;
            let mut each = |index: usize, found: Found| {
                has_begun = true;
                let sent = BootInstant::now();
                let Some(shard) = shards.get(index) else { return ControlFlow::Continue(()) };
                let is_held = match self.understand(shard, found) {
                    Ok(standing) => {
                        let is_given_back = standing.found.leadership().is_none()
                            && self.known(shard).is_some_and(|known| known.found.leadership().is_some());
                        self.remember(shard, &standing);
                        self.with_seen(shard, |seen| seen.is_pushed = pushes_documents);
                        // A lease that the store may have forgotten ends by time alone, and a claim has said when.
                        let is_awaited = || !is_given_back && self.until_known(shard, &standing).is_some();
                        self.holder(shard, &standing, sent).is_some() || is_awaited()
                    }
                    // A look says what is wrong with it.
                    Err(_) => false,
                };
                if is_held {
                    return ControlFlow::Continue(());
                }
                free = Some(index);
                ControlFlow::Break(())
            };
            let ended = tokio::select! {
                biased;
                ended = self.documents.watch(&keys, &mut each) => ended,
                () = self.is_behind.notified() => Ok(()),
            };
            drop(watching);
            match (free, ended) {
                (Some(index), _) => return Ok(index),
                (None, Err(error)) if !pushes_documents || error.kind.is_final() => return Err(error),
                (None, _) => {}
            }
            pause = if has_begun { PAUSE.0 } else { pause };
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}
