//! What operators do with a directory of leases: list, forget, `leaderctl store init` and `leaderctl store check`.
//!
//! The hazard: locks on a network file system may be granted to two machines, or get lost. The store refuses such a
//! directory.

use super::lock::Lock;
use super::{FileStore, explain, lock};
use crate::lease::{Candidate, Shard, Term};
use crate::mounts::mounts;
use crate::store::{Administration, EachPage, ErrorKind, Finding, Holder, Leases, Release, Report, StoreError};
use crate::time::wall_clock_millis;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

/// File systems whose locks other machines see late or not at all, as `/proc/self/mountinfo` names them.
const NETWORKED: [&str; 16] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse.ceph",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.sshfs",
    "gfs2",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "smb3",
    "smbfs",
];

#[async_trait::async_trait]
impl Administration for FileStore {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let record = self.read_record(shard)?;
        let holder = if self.is_locked(shard)? { Some(self.holder(shard)?) } else { None };
        Ok(Report { holder, last_term: record.map(|record| record.term) })
    }

    async fn list_in_pages(&self, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
        let mut list = Vec::new();
        for shard in self.shards()?.into_iter().filter(|shard| shard.as_str().starts_with(prefix)) {
            let report = match self.inspect(&shard).await {
                Err(error) if error.kind == ErrorKind::Misconfigured => {
                    Report { holder: Some(Holder::stranger()), last_term: None }
                }
                report => report?,
            };
            // A free lock without a record belongs to a standby that left before any candidate led.
            if report != Report::default() {
                list.push((shard, report));
            }
        }
        each(list);
        Ok(())
    }

    async fn revoke(&self, shard: &Shard, _term: Term) -> Result<Release, StoreError> {
        if !self.is_locked(shard)? {
            return Ok(Release::NotHeld);
        }
        let Holder { owner, pid, .. } = self.holder(shard)?;
        let process = pid.map_or_else(|| "its process".to_owned(), |pid| format!("process {pid}"));
        Err(StoreError::misconfigured(format!(
            "{} is held open by {owner}: the kernel frees it when its holder has ended, so end {process}",
            self.path(shard, "lock").display(),
        )))
    }

    /// Removes the lock's file last, while it is locked: a candidate that waits for it finds that it is gone, and makes
    /// another one.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let file = self.path(shard, "lock");
        if !self.held.lock().get(shard).is_some_and(|held| self.is_current(held, shard)) {
            return Ok(Release::NotHeld);
        }
        self.forget_notes(shard).await?;
        // If the clock is behind, the record must stay, because the next term would not be higher.
        if term.0 < wall_clock_millis() {
            // Candidates that were killed leave drafts.
            let drafts = ["lock.new", "lock.old", "json.new"].map(|ending| self.path(shard, ending));
            for path in drafts.into_iter().chain([self.path(shard, "json"), file]) {
                remove(&path)?;
            }
        }
        self.release(candidate, term).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let existed = self.directory.is_dir();
        self.make_directory()?;
        let directory = self.directory.display();
        Ok(vec![if existed { format!("{directory} exists") } else { format!("created {directory}") }])
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let directory = self.directory.display();
        if !self.directory.is_dir() {
            return Ok(vec![Finding::bad(format!("no directory {directory}: make it with leaderctl store init"))]);
        }
        let mut findings = vec![Finding::good(format!("{directory} exists"))];
        findings.push(match refuse_network(&self.directory) {
            Ok(()) => Finding::good("it is on a local file system".to_owned()),
            Err(error) => Finding::bad(error.message),
        });
        let scratch = self.directory.join(format!("=check-{}.lock", std::process::id()));
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
}

impl FileStore {
    /// All shards that have a file.
    fn shards(&self) -> Result<BTreeSet<Shard>, StoreError> {
        Ok(self.names()?.iter().filter_map(|name| Self::shard_of(name)).collect())
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(explain("cannot remove", path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(super) fn refuse_network(directory: &Path) -> Result<(), StoreError> {
    let Ok(device) = fs::metadata(directory).map(|metadata| metadata.dev()) else { return Ok(()) };
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    match file_system(&table, device) {
        Some(kind) if NETWORKED.contains(&kind) => Err(StoreError::misconfigured(format!(
            "{} is on a network file system ({kind}), whose locks cannot be relied on: \
             name a local directory, or a store made for many machines",
            directory.display()
        ))),
        Some(_) | None => Ok(()),
    }
}

/// The type of the file system on `device`.
fn file_system(table: &str, device: u64) -> Option<&str> {
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    mounts(table).find(|mount| mount.device == wanted).map(|mount| mount.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn a_million_tables_of_mounts_are_searched() {
        let mounts: &[u8] =
            b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:51 / /srv rw shared:9 - nfs4 host:/x rw\n41 22 0:52 / /a\\040b rw";
        fuzz::bent_text("mountinfo", &[std::str::from_utf8(mounts).unwrap()], |text, source| {
            let device = *source.of(&[libc::makedev(8, 1), libc::makedev(0, 51), u64::MAX, 0]);
            let found = file_system(text, device);
            assert!(found.is_none_or(|found| !found.contains(' ') && text.contains(&format!(" - {found}"))));
            (&found).into()
        });
    }

    #[test]
    fn a_network_file_system_is_known_by_its_mount() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:51 / /srv rw shared:9 - nfs4 host:/x rw\n";
        assert_eq!(file_system(mounts, libc::makedev(8, 1)), Some("ext4"));
        assert_eq!(file_system(mounts, libc::makedev(0, 51)), Some("nfs4"));
        assert_eq!(file_system(mounts, libc::makedev(0, 52)), None);
        assert!(NETWORKED.contains(&"nfs4"));
    }
}
