//! Claims, looks, renewals and releases of a file's lock. Their hazards are in `file`.

use super::lock::Lock;
use super::record::Record;
use super::sockets::Taken;
use super::{FileStore, Held, files, lock};
use crate::lease::{Candidate, Shard, Term};
use crate::store::{Claim, Grant, Holder, Leases, Observation, Release, Renewal, Renewed, StoreError, Takeover};
use crate::time::wall_clock_millis;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

#[async_trait::async_trait]
impl Leases for FileStore {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let shard = &candidate.shard;
        // If a claim is repeated, the lock is already ours. It begins another leadership, with its own term. If it
        // fails, nothing has happened, so the lock stays ours.
        let earlier = self.held.lock().remove(shard).filter(|held| self.is_current(held, shard));
        let is_repeated = earlier.is_some();
        let won = || self.won.lock().remove(shard).filter(|won| self.is_current(won, shard));
        let held = match earlier.or_else(won) {
            Some(held) => held,
            None => match self.attempt(shard)? {
                Some(held) => held,
                None => return Ok(Claim::Refused(self.holder(shard)?)),
            },
        };
        let begun = self.begin_term(candidate);
        if is_repeated || begun.is_ok() {
            self.held.lock().insert(shard.clone(), held);
        }
        let (term, takeover) = begun?;
        Ok(Claim::Granted(Grant { term, start_after: None, takeover }))
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        // A lock that we have won ourselves, but not claimed yet, does not keep us out.
        let holder = if self.has_won(shard) { None } else { self.held_by(shard)? };
        Ok(holder.map_or(Observation::Free, Observation::Held))
    }

    /// The lock needs no prolonging, but is worth nothing once its file was deleted.
    async fn renew_and_read(
        &self,
        candidate: &Candidate,
        _term: Term,
        _sequence: u64,
        _shards: &[Shard],
    ) -> Result<Renewed, StoreError> {
        let shard = &candidate.shard;
        if let Some(held) = self.held.lock().get(shard)
            && files::names(&self.path(shard, "lock"), &held.lock)?
        {
            return Ok(Renewed::alone(Renewal::Renewed));
        }
        // Our own record may be left behind.
        let other = |holder: &Holder| holder.session.as_ref() != Some(&candidate.session);
        Ok(Renewed::alone(Renewal::Lost(self.held_by(shard).ok().flatten().filter(other))))
    }

    async fn release(&self, candidate: &Candidate, _term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        self.won.lock().remove(shard);
        let Some(held) = self.held.lock().remove(shard) else { return Ok(Release::NotHeld) };
        if self.is_current(&held, shard) {
            // A full disk must not keep us from giving the lock back.
            if let Ok(Some(record)) = self.read_record(shard) {
                let _ = self.write_record(&Record { released: true, ..record }, shard);
            }
        }
        Ok(Release::Released)
    }

    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        self.wait_for_lock(shard).await
    }

    fn with_lease_files(&self, shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        let held = self.held.lock();
        let descriptors = held.get(shard).map(|held| {
            let socket = held.socket.iter().map(UnixListener::as_fd);
            socket.chain(std::iter::once(held.lock.as_fd())).collect::<Vec<BorrowedFd<'_>>>()
        });
        act(&descriptors.unwrap_or_default());
    }
}

impl FileStore {
    pub(super) fn has_won(&self, shard: &Shard) -> bool {
        self.won.lock().get(shard).is_some_and(|held| self.is_current(held, shard))
    }

    /// Only for the holder of the lock.
    fn begin_term(&self, candidate: &Candidate) -> Result<(Term, Takeover), StoreError> {
        let shard = &candidate.shard;
        let (last, takeover) = match self.read_record(shard)? {
            None => (Term(0), Takeover::First),
            Some(Record { term, released: true, .. }) => (term, Takeover::Released),
            Some(Record { term, .. }) => (term, Takeover::Expired),
        };
        let now_millis = wall_clock_millis();
        let term = Term((last.0 + 1).max(now_millis));
        let record = Record {
            shard: shard.to_string(),
            owner: candidate.owner.clone(),
            session: candidate.session.clone(),
            host: candidate.host.clone(),
            pid: candidate.pid,
            term,
            since_millis: now_millis,
            released: false,
        };
        self.write_record(&record, shard)?;
        Ok((term, takeover))
    }

    /// Takes the lock. None: another process has it.
    fn attempt(&self, shard: &Shard) -> Result<Option<Held>, StoreError> {
        let path = self.path(shard, "lock");
        let Lock::Ours(lock) = self.in_directory(|| lock::take(&path))? else { return Ok(None) };
        Ok(match self.sockets(shard)?.take() {
            Taken::Ours(socket) => Some(Held { socket, lock }),
            Taken::Theirs => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Session;
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    #[tokio::test]
    async fn a_claim_that_fails_changes_nothing() {
        let scratch = tempfile::TempDir::new().unwrap();
        let [one, two] = [(); 2].map(|()| FileStore::open(scratch.path()).unwrap());
        let first = Candidate::example();
        let second = Candidate { session: Session::random().unwrap(), ..first.clone() };
        // Where the record is to be drafted, nothing can be removed.
        let draft = one.path(&first.shard, "json.new");
        let prevent = |path: &Path| fs::create_dir_all(path.join("x")).unwrap();

        prevent(&draft);
        one.claim(&first).await.unwrap_err();
        // A child that another test starts has a copy of the lock until it executes its program.
        let begun = Instant::now();
        while two.observe(&first.shard).await.unwrap() != Observation::Free {
            assert!(begun.elapsed() < Duration::from_mins(1), "it stays locked");
            std::thread::yield_now();
        }
        fs::remove_dir_all(&draft).unwrap();

        let Ok(Claim::Granted(grant)) = one.claim(&first).await else { panic!("it is free") };
        prevent(&draft);
        one.claim(&first).await.unwrap_err();
        assert_eq!(one.renew_and_read(&first, grant.term, 1, &[]).await.unwrap().renewal, Renewal::Renewed);
        assert!(matches!(two.claim(&second).await, Ok(Claim::Refused(holder)) if holder.term == Some(grant.term)));
    }
}
