//! How a standby waits: a thread of its own sleeps in the kernel until the lock is ours.
//!
//! The hazard: only the lock on the file that it has open wakes such a thread. So the standby also looks at the path.
//! If another file is in its place, or the file is locked for reading, the wait ends. The thread stays until it gets
//! the lock, and then ends because nobody needs it.

use super::sockets::{PathSockets, Taken};
use super::{FileStore, Held, explain, files, lock};
use crate::lease::Shard;
use crate::store::StoreError;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Between two looks at the sockets, which wake nobody.
const LOOKS_APART: Duration = Duration::from_millis(100);
/// Between two looks at the path.
const DOUBTS_APART: Duration = Duration::from_secs(1);

/// A standby to tell when its thread has won the lock.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Device and inode number of the file that it waits for.
    file: (u64, u64),
    done: oneshot::Sender<io::Result<Held>>,
}

impl FileStore {
    pub(super) async fn wait_for_lock(&self, shard: &Shard) -> Result<(), StoreError> {
        if self.has_won(shard) {
            return Ok(());
        }
        let path = self.path(shard, "lock");
        let won = self.wait_apart(shard)?;
        let won = tokio::select! {
            won = won => won,
            () = self.waits_for_wrong_file(shard) => return Ok(()),
        };
        match won {
            Ok(Ok(held)) => {
                self.won.lock().insert(shard.clone(), held);
                Ok(())
            }
            Ok(Err(error)) => Err(explain("cannot lock", &path, &error)),
            Err(_) => {
                Err(StoreError::not_applied(format!("another wait for {} has replaced this one", path.display())))
            }
        }
    }

    /// One thread sleeps for each lock, however often this is called: only the lock can wake it.
    fn wait_apart(&self, shard: &Shard) -> Result<oneshot::Receiver<io::Result<Held>>, StoreError> {
        let path = self.path(shard, "lock");
        let file = self.in_directory(|| files::open_lock(&path))?;
        let opened = file.metadata().map_err(|error| explain("cannot look at", &path, &error))?;
        let opened = (opened.dev(), opened.ino());
        let (done, outcome) = oneshot::channel();
        let waiters = Arc::clone(&self.waiters);
        let mut waiting = waiters.lock();
        let known = waiting.get_mut(shard).filter(|known| known.file == opened);
        if let Some(known) = known {
            known.done = done;
            return Ok(outcome);
        }
        let sockets = self.sockets(shard)?;
        let (threads_waiters, of) = (Arc::clone(&self.waiters), shard.clone());
        let watched = path.clone();
        let wait = move || {
            let won = wait_for(file, &watched, &sockets);
            let waiter = match threads_waiters.lock().entry(of) {
                Entry::Occupied(waiter) if waiter.get().file == opened => Some(waiter.remove()),
                // Another file has taken the place of ours.
                Entry::Occupied(_) | Entry::Vacant(_) => None,
            };
            // If the standby has left meanwhile, nobody listens, and the lock is closed here.
            let _ = waiter.map(|waiter| waiter.done.send(won));
        };
        std::thread::Builder::new()
            .name("file lock".to_owned())
            .stack_size(64 * 1024)
            .spawn(wait)
            .map_err(|error| explain("cannot wait for", &path, &error))?;
        waiting.insert(shard.clone(), Waiter { file: opened, done });
        Ok(outcome)
    }

    /// Returns when the thread sleeps for a file that a leader would no longer lock.
    async fn waits_for_wrong_file(&self, shard: &Shard) {
        let waits_for = self.waiters.lock().get(shard).map(|waiter| waiter.file);
        loop {
            tokio::time::sleep(DOUBTS_APART).await;
            let named = fs::symlink_metadata(self.path(shard, "lock")).map(|found| (found.dev(), found.ino()));
            if named.ok() != waits_for || self.lock_state(shard) == Ok(lock::State::Read) {
                return;
            }
        }
    }
}

fn wait_for(file: File, path: &Path, sockets: &PathSockets) -> io::Result<Held> {
    lock::wait(&file)?;
    loop {
        match sockets.take() {
            Taken::Ours(socket) => return Ok(Held { lock: file, socket }),
            // Our file was replaced, and a claim will see that. Others may hold the new one as long as they like.
            Taken::Theirs if files::names(path, &file) == Ok(false) => return Ok(Held { lock: file, socket: None }),
            Taken::Theirs => std::thread::sleep(LOOKS_APART),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Candidate;
    use crate::store::{Claim, Leases};

    #[tokio::test]
    async fn a_thread_whose_file_was_replaced_does_not_wait_for_the_leader() {
        let scratch = tempfile::TempDir::new().unwrap();
        let (leader, standby) = (FileStore::open(scratch.path()).unwrap(), FileStore::open(scratch.path()).unwrap());
        let candidate = Candidate::example();
        let path = leader.path(&candidate.shard, "lock");
        let replaced = files::open_lock(&path).unwrap().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(matches!(leader.claim(&candidate).await, Ok(Claim::Granted(_))));
        let sockets = standby.sockets(&candidate.shard).unwrap();
        let wait = tokio::task::spawn_blocking(move || wait_for(replaced, &path, &sockets));
        let held = tokio::time::timeout(Duration::from_mins(1), wait).await.expect("it ends").unwrap().unwrap();
        assert!(held.socket.is_none() && !standby.is_current(&held, &candidate.shard));
    }
}
