//! What operators do with a directory of leases: list, forget, `leaderctl store init` and `store check`.
//!
//! The hazard: the kernel keeps a lease for as long as a process holds it open, whatever happens to its files. So
//! `revoke` names the process to end, and `forget` removes the file only while its own candidate holds the lock.

use super::lock::{self, Lock};
use super::network_file_system::refuse_file_system;
use super::{FileStore, explain, files};
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Administration, ErrorKind, Finding, Holder, Leases, Release, Report, StoreError};
use crate::time::wall_clock_millis;
use std::collections::BTreeSet;
use std::time::Duration;
use std::{fs, io};

/// How long `forget` waits for a clock that is behind the term. Two claims in one millisecond make it fall behind.
const WAITED_FOR: Duration = Duration::from_millis(10);
/// More bytes than the record of a lease has.
const RECORD: usize = 4096;

#[async_trait::async_trait]
impl Administration for FileStore {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let record = self.read_record(shard)?;
        let holder = self.held_by(shard)?;
        if record.is_none() && holder.is_none() {
            self.can_be_made()?;
        }
        Ok(Report { holder, last_term: record.map(|record| record.term) })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        let names = self.names()?;
        let shards: BTreeSet<Shard> = names.iter().filter_map(|name| Self::shard_of(name)).collect();
        let mut list = Vec::new();
        for shard in shards.into_iter().filter(|shard| shard.as_str().starts_with(prefix)) {
            let report = match self.inspect(&shard).await {
                Err(error) if error.kind == ErrorKind::Misconfigured => {
                    Report { holder: Some(Holder::unknown()), last_term: None }
                }
                report => report?,
            };
            // A free lock without a record belongs to a standby that left before any candidate led.
            if report != Report::default() {
                list.push((shard, report));
            }
        }
        Ok(list)
    }

    async fn revoke(&self, shard: &Shard, _term: Term) -> Result<Release, StoreError> {
        let Some(Holder { owner, pid, .. }) = self.held_by(shard)? else { return Ok(Release::NotHeld) };
        let process = pid.map_or_else(|| "its process".to_owned(), |pid| format!("process {pid}"));
        Err(StoreError::misconfigured(format!(
            "{} is held open by {owner}: the kernel frees it when its holder has ended, so end {process}",
            self.path(shard, "lock").display(),
        )))
    }

    /// Removes the lock's file last, while it is locked, so that a candidate that waits for it makes another one.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let file = self.path(shard, "lock");
        if !self.held.lock().get(shard).is_some_and(|held| self.is_current(held, shard)) {
            return Ok(Release::NotHeld);
        }
        self.forget_notes(shard).await?;
        // Without the record, the next term is the clock's milliseconds, and must exceed this one.
        let ahead = Duration::from_millis(term.0.saturating_add(1).saturating_sub(wall_clock_millis()));
        if ahead <= WAITED_FOR {
            tokio::time::sleep(ahead).await;
        }
        // If the clock is behind, the record must stay.
        if term.0 < wall_clock_millis() {
            // Candidates that were killed leave drafts.
            let drafts = ["lock.new", "lock.old", "json.new"].map(|ending| self.path(shard, ending));
            for path in drafts.into_iter().chain([self.path(shard, "json"), file]) {
                files::remove(&path).map_err(|error| explain("cannot remove", &path, &error))?;
            }
        }
        self.release(candidate, term).await
    }

    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        let existed = self.directory.is_dir();
        self.make_directory()?;
        let directory = format!("directory {}", self.directory.display());
        Ok(vec![if existed { format!("{directory} exists") } else { format!("created {directory}") }])
    }

    async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let directory = self.directory.display();
        match fs::metadata(&self.directory) {
            Ok(found) if found.is_dir() => {}
            // Whether the directory exists cannot be known.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(explain("cannot look for", &self.directory, &error));
            }
            Ok(_) | Err(_) => {
                return Ok(vec![Finding::bad(format!(
                    "no directory {directory}: create it with leaderctl store init"
                ))]);
            }
        }
        if let Err(error) = refuse_file_system(&self.directory) {
            return Ok(vec![Finding::bad(error.message)]);
        }
        let scratch = |ending: &str| self.directory.join(format!("=check-{}.{ending}", std::process::id()));
        let (lock, record, draft) = (scratch("lock"), scratch("json"), scratch("json.new"));
        // A second open file description of the same file must not get the lock.
        let tried = lock::take(&lock).and_then(|first| Ok((first, lock::take(&lock)?)));
        // A lock is an empty file, and takes no room on a full disk. A record does.
        let written = files::replace(&record, &draft, &[b' '; RECORD]);
        for scratch in [lock, record, draft] {
            let _ = fs::remove_file(scratch);
        }
        Ok(vec![match (tried, written) {
            (Err(error), _) => Finding::bad(error.message),
            (Ok(_), Err(error)) => Finding::bad(explain("cannot write in", &self.directory, &error).message),
            (Ok((Some(Lock::Ours(_)), Some(Lock::Theirs))), Ok(())) => Finding::good(format!(
                "{directory} is on a local file system and can be written, and locks there exclude each other"
            )),
            (Ok(_), Ok(())) => Finding::bad(format!("locks in {directory} do not exclude each other")),
        }])
    }
}
