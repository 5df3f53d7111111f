//! The orphan release: the backstop gives back the lease of a candidate that is gone, once the tree is dead.
//!
//! Without it, the lease would end by itself later.
//!
//! The hazard: a release while part of the tree lives lets a second tree start. So only a backstop without any
//! descendant left gets here. The release names the session, so it cannot affect a successor's lease.

use crate::lease::{Candidate, Term};
use crate::notes::history;
use crate::observe::terminal;
use crate::runtime;
use crate::store::url::Secret;
use crate::store::{ErrorKind, Location, Release, Store};
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);

/// All that a release needs to know. It may hold a password, so it travels through memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OrphanRelease {
    pub store_url: Secret,
    pub candidate: Candidate,
    pub term: Term,
}

impl OrphanRelease {
    /// Makes the release, and says what became of it. The tree must be dead.
    pub fn make(&self) {
        let Self { candidate: Candidate { shard, owner, .. }, term, .. } = self;
        let said = match self.release() {
            Ok(released) => {
                let what = match released {
                    Release::Released => "released after it was killed",
                    Release::NotHeld => "killed, and its lease was no longer held",
                };
                format!("{what} shard={:?} term={term} owner={owner:?}", shard.as_str())
            }
            Err(message) => format!("not released after it was killed: {message}"),
        };
        terminal::say_last(format_args!("{}leaderrun: {said}", terminal::time()));
    }

    fn release(&self) -> Result<Release, String> {
        let Self { store_url, candidate, term } = self;
        runtime::check_threads()?;
        let runtime = runtime::of_one_thread().build().map_err(|error| error.to_string())?;
        let released = runtime.block_on(async {
            let location = Location::from_url(store_url.expose())?;
            let store = location.open(REQUEST_TIMEOUT).await.map_err(|error| error.message)?;
            let released = give_back(&*store, candidate, *term).await?;
            // The history is for people; nothing depends on it.
            let closed = history::close_killed(&*store, &candidate.shard, *term);
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, closed).await;
            Ok(released)
        });
        // A name lookup may hang for a long time, and nobody needs its result.
        runtime.shutdown_background();
        released
    }
}

/// Releases the lease. Retries until the store answers or the lease has ended by itself. The tree must be dead.
pub async fn give_back(store: &dyn Store, candidate: &Candidate, term: Term) -> Result<Release, String> {
    let give_up = BootInstant::now().plus(candidate.lease);
    loop {
        let message = match tokio::time::timeout(REQUEST_TIMEOUT, store.release(candidate, term)).await {
            Ok(Ok(released)) => return Ok(released),
            Ok(Err(error)) => match error.kind {
                ErrorKind::NotApplied | ErrorKind::Unknown => error.message,
                ErrorKind::Denied | ErrorKind::Misconfigured => return Err(error.message),
            },
            Err(_) => "the store did not answer".to_owned(),
        };
        if BootInstant::now() >= give_up {
            return Err(message);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
