//! Locks on files: open file description locks (fcntl(2)) on the whole of a file, for writing. They are tried, not
//! waited for.
//!
//! The hazard: a user who may read a file may also lock it for reading, for as long as they like, and a file that was
//! restored from a backup may be readable to all. Such a lock is not a lease. So a file that is locked for reading is
//! moved out of the way, and another one takes its place. Processes that had the first file open find that the path no
//! longer names it.

use super::explain;
use super::files::{beside, names, open_lock, remove};
use crate::store::StoreError;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::{self, File};
use std::io;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// The lock of a leader, or of a process that writes notes.
    Held,
    /// A lock for reading, which does not count.
    Read,
}

#[derive(Debug)]
pub(super) enum Lock {
    Ours(File),
    Theirs,
}

/// Makes the file if it is missing. None if the directory is missing.
pub(super) fn take(path: &Path) -> Result<Option<Lock>, StoreError> {
    loop {
        let Some(file) = open_lock(path)? else { return Ok(None) };
        if try_lock(&file, path)? {
            if names(path, &file)? {
                return Ok(Some(Lock::Ours(file)));
            }
        } else if state(&file, path)? == State::Read {
            return Ok(Some(replace(&file, path)?.map_or(Lock::Theirs, Lock::Ours)));
        } else {
            return Ok(Some(Lock::Theirs));
        }
    }
}

/// Asks the kernel without locking: a lock taken only to look would turn a candidate away.
pub(super) fn state(file: &File, path: &Path) -> Result<State, StoreError> {
    let mut wanted = write_lock();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut wanted))
        .map_err(|error| explain("cannot look at the lock", path, &error.into()))?;
    Ok(match i32::from(wanted.l_type) {
        libc::F_UNLCK => State::Free,
        libc::F_RDLCK => State::Read,
        _ => State::Held,
    })
}

pub(super) fn wait(file: &File) -> io::Result<()> {
    let wanted = write_lock();
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLKW(&wanted)) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn try_lock(file: &File, path: &Path) -> Result<bool, StoreError> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&write_lock())) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(explain("cannot lock", path, &error.into())),
    }
}

fn write_lock() -> libc::flock {
    let [kind, whence] = [libc::F_WRLCK, libc::SEEK_SET].map(|constant| i16::try_from(constant).expect("small"));
    libc::flock { l_type: kind, l_whence: whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Puts a file that we have locked in the place of `old`, which is locked for reading. None if another process does so
/// or was faster.
fn replace(old: &File, path: &Path) -> Result<Option<File>, StoreError> {
    let (draft, kept) = (beside(path, ".new"), beside(path, ".old"));
    let failed = |error: io::Error| explain("cannot replace", path, &error);
    let Some(new) = open_lock(&draft)? else { return Ok(None) };
    // The holder of the draft's lock replaces the file: one process at a time.
    if !try_lock(&new, &draft)? {
        // It is not a draft of ours.
        if state(&new, &draft)? == State::Read {
            remove(&draft).map_err(failed)?;
        }
        return Ok(None);
    }
    if !names(&draft, &new)? {
        return Ok(None);
    }
    remove(&kept).and_then(|_| fs::hard_link(path, &kept)).map_err(failed)?;
    if !names(&kept, old)? || state(old, path)? != State::Read {
        remove(&kept).and_then(|_| remove(&draft)).map_err(failed)?;
        return Ok(None);
    }
    fs::rename(&draft, path).map_err(failed)?;
    // Since we looked, the reader may have left and a candidate may have locked `old`. If that candidate saw that
    // `path` names `old`, it did so before the line above, and so its lock is older too: it leads.
    if state(old, path)? == State::Held {
        fs::rename(&kept, path).map_err(failed)?;
        return Ok(None);
    }
    remove(&kept).map_err(failed)?;
    Ok(names(path, &new)?.then_some(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_lock(file: &File) {
        let kind = i16::try_from(libc::F_RDLCK).unwrap();
        fcntl(file, FcntlArg::F_OFD_SETLK(&libc::flock { l_type: kind, ..write_lock() })).unwrap();
    }

    #[test]
    fn a_file_that_is_locked_for_reading_is_replaced_by_one_candidate_of_many() {
        let scratch = tempfile::TempDir::new().unwrap();
        let path = scratch.path().join("s.lock");
        for _ in 0..20 {
            let _ = fs::remove_file(&path);
            let reader = File::create_new(&path).and_then(|_| File::open(&path)).unwrap();
            read_lock(&reader);
            // All continue until one has the lock, and keep what they have until all have tried.
            let locked: Vec<File> = std::thread::scope(|scope| {
                let tries: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            let mut tries = std::iter::repeat_with(|| take(&path)).take(20);
                            tries.find_map(|tried| match tried {
                                Ok(Some(Lock::Ours(file))) => Some(file),
                                Ok(Some(Lock::Theirs) | None) | Err(_) => None,
                            })
                        })
                    })
                    .collect();
                tries.into_iter().filter_map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(locked.len(), 1);
            assert!(names(&path, &locked[0]).unwrap());
            assert_eq!(state(&File::open(&path).unwrap(), &path), Ok(State::Held));
        }
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_that_a_leader_has_locked_is_not_replaced() {
        let scratch = tempfile::TempDir::new().unwrap();
        let path = scratch.path().join("s.lock");
        let Ok(Some(Lock::Ours(leaders))) = take(&path) else { panic!("it is free") };
        assert!(matches!(take(&path), Ok(Some(Lock::Theirs))));
        let again = File::open(&path).unwrap();
        assert!(matches!(replace(&again, &path), Ok(None)));
        assert!(names(&path, &leaders).unwrap());
    }
}
