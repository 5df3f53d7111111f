//! The orphan release: the backstop gives back the lease of a candidate that is gone, once the tree is dead.
//!
//! Without it, the lease would end by itself later.
//!
//! The hazard: a release while part of the tree lives lets a second tree start. So only a backstop without any
//! descendant left gets here. The release names the session, so it cannot affect a successor's lease.

use super::in_memory;
use crate::lease::{Candidate, Term};
use crate::notes::history;
use crate::observe::terminal;
use crate::runtime;
use crate::store::url::Secret;
use crate::store::{ErrorKind, Location, Release, Store};
use crate::sys;
use crate::time::BootInstant;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The process name that makes a respawned leaderrun release the lease.
const RELEASE_NAME: &str = "lr-release";
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
    /// Turns this process into one that makes the release. The tree must be dead.
    pub fn execute(&self) -> io::Result<Infallible> {
        let file = in_memory(c"leaderrun release", false, self)?;
        let number = file.as_raw_fd().to_string();
        Err(Command::new("/proc/self/exe").arg0(RELEASE_NAME).arg(&number).exec())
    }

    async fn release(&self) -> Result<Release, String> {
        let Self { store_url, candidate, term } = self;
        let store =
            Location::from_url(store_url.expose())?.open(REQUEST_TIMEOUT).await.map_err(|error| error.message)?;
        let released = give_back(&*store, candidate, *term).await?;
        // The history is for people; nothing depends on it.
        let closed = history::close_killed(&*store, &candidate.shard, *term);
        let _ = tokio::time::timeout(REQUEST_TIMEOUT, closed).await;
        Ok(released)
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

/// Makes an orphan release if this process was respawned for that.
#[must_use]
pub fn run_if_respawned() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    if arguments.next()? != RELEASE_NAME {
        return None;
    }
    let done = arguments
        .next()
        .and_then(|number| number.to_str()?.parse().ok())
        .ok_or_else(|| "only leaderrun starts this program".to_owned())
        .and_then(|number| read(number).map_err(|error| format!("{error}: only leaderrun starts this program")))
        .and_then(|release| {
            runtime::check_threads()?;
            let runtime = runtime::of_one_thread().build().map_err(|error| error.to_string())?;
            let released = runtime.block_on(release.release());
            // A name lookup may hang for a long time, and nobody needs its result.
            runtime.shutdown_background();
            released.map(|released| (release, released))
        });
    Some(match done {
        Ok((OrphanRelease { candidate: Candidate { shard, owner, .. }, term, .. }, released)) => {
            let what = match released {
                Release::Released => "released after it was killed",
                Release::NotHeld => "killed, and its lease was no longer held",
            };
            terminal::say_last(format_args!(
                "{}leaderrun: {what} shard={:?} term={term} owner={owner:?}",
                terminal::time(),
                shard.as_str()
            ));
            ExitCode::SUCCESS
        }
        Err(message) => {
            terminal::say_last(format_args!(
                "{}leaderrun: not released after it was killed: {message}",
                terminal::time()
            ));
            ExitCode::from(crate::exit::UNAVAILABLE)
        }
    })
}

fn read(number: i32) -> io::Result<OrphanRelease> {
    Ok(serde_json::from_str(&io::read_to_string(File::from(sys::adopt(number)?))?)?)
}
