//! `leaderctl store check`: whether a directory can be used, and its locks can be relied on.

use super::lock::Lock;
use super::network_file_system::refuse_network;
use super::{FileStore, explain, lock};
use crate::store::{Finding, StoreError};
use std::fs;
use std::io;

/// Tries everything that an election relies on.
pub fn check(store: &FileStore) -> Result<Vec<Finding>, StoreError> {
    let directory = store.directory.display();
    match fs::metadata(&store.directory) {
        // It may be there. As with a server that lets nobody in, there is nothing to find.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(explain("cannot look for", &store.directory, &error));
        }
        Ok(_) | Err(_) => {}
    }
    if !store.directory.is_dir() {
        return Ok(vec![Finding::bad(format!("no directory {directory}: make it with leaderctl store init"))]);
    }
    let mut findings = vec![Finding::good(format!("{directory} exists"))];
    findings.push(match refuse_network(&store.directory) {
        Ok(()) => Finding::good("it is on a local file system".to_owned()),
        Err(error) => Finding::bad(error.message),
    });
    let scratch = store.directory.join(format!("=check-{}.lock", std::process::id()));
    // A second open file description of the same file must not get the lock.
    let tried = lock::take(&scratch).and_then(|first| Ok((first, lock::take(&scratch)?)));
    let _ = fs::remove_file(&scratch);
    findings.push(match tried {
        Ok((Some(Lock::Ours(_)), Some(Lock::Theirs))) => {
            Finding::good("it can be written, and locks exclude each other".to_owned())
        }
        Ok(_) => Finding::bad(format!("locks in {directory} do not exclude each other")),
        Err(error) => Finding::bad(error.message),
    });
    Ok(findings)
}
