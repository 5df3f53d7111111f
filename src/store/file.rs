//! The store `file:DIR`: leases that processes of one machine hold on local files.
//!
//! A lease is a kernel lock on `DIR/SHARD.lock` (an open file description lock, fcntl(2)). Candidate, backstop and
//! guard all hold it open. The kernel frees it when the last of them is gone, however they ended, so nothing expires
//! and a takeover needs no timeout. `DIR/SHARD.json` tells people who holds the lock, and keeps the term. It is
//! replaced as a whole (rename), so no crash leaves it half-written.
//!
//! The hazards:
//!
//! - *The directory, or one above it, is replaced while a leader runs.* The next candidate would make new files and
//!   lock those. So a holder also listens on a socket (`sockets`), which does not depend on where the files are. At its
//!   next renewal the holder notices that the path leads elsewhere, and stops.
//! - *The file is deleted between opening and locking it.* So the locked file is compared with the one that the path
//!   names.
//! - *Other users of the machine* lock files that they may read, and put other things in the place of files: see
//!   `files` and `lock`. Only a thread that sleeps until a lock is ours waits for other processes.
//! - *A network file system* may grant one lock to two machines, or lose it while its server is unreachable. So it
//!   is refused.
//! - *The record is lost* (a power failure may undo a rename that was not synced; syncing would make every start wait
//!   for the disk). Terms rise all the same: each is at least the number of milliseconds since 1970.

mod administration;
mod claim;
mod files;
mod listeners;
mod lock;
mod network_file_system;
mod notes;
mod record;
mod sockets;
mod watch;

use super::{Delivery, Holder, Store, StoreError};
use crate::lease::Shard;
use crate::text::in_words;
use network_file_system::refuse_file_system;
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use parking_lot::Mutex;
use sockets::PathSockets;
use std::collections::HashMap;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use watch::Waiter;

#[derive(Debug)]
pub struct FileStore {
    directory: PathBuf,
    held: Mutex<HashMap<Shard, Held>>,
    /// Locks that a waiting thread has won and no claim has taken yet.
    won: Mutex<HashMap<Shard, Held>>,
    waiters: Arc<Mutex<HashMap<Shard, Waiter>>>,
}

/// The file and the socket that hold a lease. Closing them is the release, once backstop and guard have closed theirs.
#[derive(Debug)]
struct Held {
    // Closed before the lock, or a candidate that gets the lock would still find the socket.
    socket: Option<UnixListener>,
    lock: File,
}

impl FileStore {
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let absolute = std::path::absolute(directory)
            .map_err(|error| StoreError::misconfigured(format!("cannot find {}: {error}", directory.display())))?;
        Ok(Self { directory: absolute, held: Mutex::default(), won: Mutex::default(), waiters: Arc::default() })
    }

    fn path(&self, shard: &Shard, ending: &str) -> PathBuf {
        // '=' is not in the alphabet of shards. So no two shards share a file, and no file is outside the directory.
        self.directory.join(format!("{}.{ending}", shard.as_str().replace('/', "=")))
    }

    fn shard_of(name: &str) -> Option<Shard> {
        let name = name.strip_suffix(".lock").or_else(|| name.strip_suffix(".json"))?;
        name.replace('=', "/").parse().ok()
    }

    /// Names that are not text are not ours.
    fn names(&self) -> Result<Vec<String>, StoreError> {
        let name = |entry: io::Result<DirEntry>| entry.map(|entry| entry.file_name().into_string().ok()).transpose();
        match fs::read_dir(&self.directory).and_then(|entries| entries.filter_map(name).collect()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.can_be_made().map(|()| Vec::new()),
            names => names.map_err(|error| explain("cannot read the directory", &self.directory, &error)),
        }
    }

    /// A directory that is missing has no shards, but is no store if nobody can make it.
    fn can_be_made(&self) -> Result<(), StoreError> {
        let above = self.directory.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
        refuse_file_system(above)?;
        let checked = if above == self.directory { Ok(()) } else { access(above, AccessFlags::W_OK) };
        checked.map_err(|error| explain("cannot create the directory", &self.directory, &error.into()))
    }

    fn make_directory(&self) -> Result<(), StoreError> {
        files::make_directory(&self.directory)
            .map_err(|error| explain("cannot create the directory", &self.directory, &error))?;
        refuse_file_system(&self.directory)
    }

    /// If `act` returns None, makes the directory, and runs `act` again.
    fn in_directory<T>(&self, act: impl Fn() -> Result<Option<T>, StoreError>) -> Result<T, StoreError> {
        if let Some(done) = act()? {
            refuse_file_system(&self.directory)?;
            return Ok(done);
        }
        self.make_directory()?;
        act()?.ok_or_else(|| StoreError::not_applied(format!("the directory {} was removed", self.directory.display())))
    }

    fn sockets(&self, shard: &Shard) -> Result<PathSockets, StoreError> {
        PathSockets::of(&self.directory, shard).map_err(|error| {
            let directory = self.directory.display();
            StoreError::not_applied(format!("cannot look at {directory}: {}", in_words(&error)))
        })
    }

    fn is_current(&self, held: &Held, shard: &Shard) -> bool {
        files::names(&self.path(shard, "lock"), &held.lock) == Ok(true)
    }

    fn lock_state(&self, shard: &Shard) -> Result<lock::State, StoreError> {
        let path = self.path(shard, "lock");
        match files::open(&path, File::options().read(true), "cannot open")? {
            Some(file) => lock::state(&file, &path),
            None => Ok(lock::State::Free),
        }
    }

    fn held_by(&self, shard: &Shard) -> Result<Option<Holder>, StoreError> {
        if self.lock_state(shard)? == lock::State::Held { self.holder(shard).map(Some) } else { Ok(None) }
    }
}

impl Store for FileStore {
    fn delivery(&self) -> Delivery {
        Delivery::Kernel
    }
}

fn explain(what: &str, path: &Path, error: &io::Error) -> StoreError {
    let message = |advice: &str| format!("{what} {}: {}{advice}", path.display(), in_words(error));
    let elsewhere = || StoreError::misconfigured(message(": name another directory with --store file:DIR"));
    let explained = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            StoreError::denied(message(": ask its owner, or name a directory of your own with --store file:DIR"))
        }
        io::ErrorKind::NotADirectory
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotFound
        | io::ErrorKind::IsADirectory
        // Of a file system that cannot do this.
        | io::ErrorKind::Unsupported
        | io::ErrorKind::InvalidFilename => elsewhere(),
        // A link that leads nowhere or in a circle.
        _ if error.raw_os_error() == Some(Errno::ELOOP as i32) => elsewhere(),
        io::ErrorKind::AlreadyExists if path.is_symlink() => elsewhere(),
        _ => StoreError::not_applied(message("")),
    };
    explained.because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    #[test]
    fn a_file_system_that_cannot_do_what_a_store_needs_is_no_outage() {
        let unknown_call = Errno::ENOSYS.into();
        assert_eq!(explain("cannot write", Path::new("/d/x"), &unknown_call).kind, ErrorKind::Misconfigured);
    }

    #[test]
    fn a_file_of_a_shard_shows_its_name_and_drafts_and_other_files_do_not() {
        let store = FileStore::open(Path::new("/d")).unwrap();
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        for shard in ["a/b:c", "a.lock", "x.json", "x.json/y", "_-"] {
            let shard: Shard = shard.parse().unwrap();
            for ending in ["lock", "json"] {
                assert_eq!(FileStore::shard_of(&name(store.path(&shard, ending))).as_ref(), Some(&shard));
            }
            assert_eq!(FileStore::shard_of(&name(store.path(&shard, "json.new"))), None);
        }
        for other in ["lock", ".lock", "a b.lock", "..=x.lock", "notes.txt", "a"] {
            assert_eq!(FileStore::shard_of(other), None, "{other}");
        }
    }
}
