//! The store `file:DIR`: leases that processes of one machine hold on local files.
//!
//! A lease is a kernel lock on `DIR/SHARD.lock` (an open file description lock, fcntl(2)), held open by candidate,
//! backstop and guard alike. The kernel frees it when the last of them is gone, however they went, so nothing
//! expires and a takeover needs no timeout. `DIR/SHARD.json` beside it tells people who holds it, and remembers
//! the term; it is replaced as a whole (rename), so no crash leaves it half-written.
//!
//! The hazards:
//!
//! - *The directory, or one above it, is replaced while a leader runs.* The next candidate would make new files and lock
//!   those. So a holder also takes a `Seat`, which does not depend on where the files are. The holder itself notices
//!   at its next renewal that the path of its file leads elsewhere, and stops.
//! - *The file is deleted between opening and locking it.* What was locked is compared with what the path names.
//! - *Other users of the machine* lock what they may read, and plant what is no file: see `state` and `lock`. No call
//!   here waits for what another process does, but for the thread that sleeps until a lock is ours.
//! - *A network file system* may grant one lock to two machines, or lose it while its server is away: refused.
//! - *The record is lost* (a power failure may undo a rename that was not synced; syncing would make every start
//!   wait for the disk). Terms rise all the same: each is at least the number of milliseconds since 1970.

mod lock;
mod notes;
mod record;
mod seat;
mod watch;

use super::{
    Administration, Claim, Delivery, ErrorKind, Finding, Grant, Holder, Leases, Observation, Release, Renewal, Report,
    Store, StoreError,
};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::text::in_words;
use crate::time::wall_clock_millis;
use lock::Lock;
use seat::{Seat, Taken};
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How often somebody looks who cannot sleep until something changes: whether a seat is free, and whether the file that
/// a standby waits for is still the one to wait for.
const LOOKS_APART: Duration = Duration::from_millis(100);
const DOUBTS_APART: Duration = Duration::from_secs(1);

/// File systems whose locks other machines see late, or not at all, as `/proc/self/mountinfo` names them.
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

#[derive(Debug)]
pub struct FileStore {
    directory: PathBuf,
    held: Mutex<HashMap<Shard, Held>>,
    /// Locks that a waiting thread has won and nobody has claimed yet.
    won: Mutex<HashMap<Shard, Held>>,
    /// Of each thread that sleeps until a lock is ours.
    waiters: Arc<Mutex<HashMap<Shard, Waiter>>>,
}

/// Whom a thread is to tell that it has won.
#[derive(Debug)]
struct Waiter {
    /// Device and number of the file that it waits for.
    file: (u64, u64),
    done: oneshot::Sender<io::Result<Held>>,
}

/// What a lease hangs on. Closing it is the release, once backstop and guard have closed theirs.
#[derive(Debug)]
struct Held {
    lock: File,
    seats: Vec<UnixListener>,
}

/// `DIR/SHARD.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    shard: String,
    owner: String,
    session: Session,
    host: String,
    pid: u32,
    term: Term,
    since_millis: u64,
    released: bool,
}

impl Record {
    fn read(text: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        // No term could follow.
        if record.term == Term(u64::MAX) { Err("its term is the last one".to_owned()) } else { Ok(record) }
    }
}

enum Try {
    Won(Held),
    LockedOut,
}

impl FileStore {
    /// # Errors
    /// Where `directory` is relative and the working directory is gone.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let absolute = std::path::absolute(directory)
            .map_err(|error| StoreError::misconfigured(format!("cannot find {}: {error}", directory.display())))?;
        Ok(Self { directory: absolute, held: Mutex::default(), won: Mutex::default(), waiters: Arc::default() })
    }

    fn path(&self, shard: &Shard, ending: &str) -> PathBuf {
        // '=' is not in the alphabet of shards, so no two shards share a file, and none leaves the directory.
        self.directory.join(format!("{}.{ending}", shard.as_str().replace('/', "=")))
    }

    /// Which shard a file of this name is of: the inverse of [`FileStore::path`]. None for drafts, and for what is none
    /// of ours.
    fn shard_of(name: &str) -> Option<Shard> {
        let name = name.strip_suffix(".lock").or_else(|| name.strip_suffix(".json"))?;
        // With a slash in it, it would be no file name, so every one here stands for an '='.
        name.replace('=', "/").parse().ok()
    }

    /// All shards of which there is a file.
    fn shards(&self) -> Result<BTreeSet<Shard>, StoreError> {
        let unreadable = |error: io::Error| explain("cannot read the directory", &self.directory, &error);
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(unreadable(error)),
        };
        let mut shards = BTreeSet::new();
        for entry in entries {
            let name = entry.map_err(unreadable)?.file_name();
            shards.extend(name.to_str().and_then(Self::shard_of));
        }
        Ok(shards)
    }

    fn make_directory(&self) -> Result<(), StoreError> {
        record::make_directory(&self.directory)
            .map_err(|error| explain("cannot create the directory", &self.directory, &error))?;
        refuse_network(&self.directory)
    }

    /// Does what needs the directory, which it makes where there is none. `act` answers None where that is so.
    fn in_directory<T>(&self, act: impl Fn() -> Result<Option<T>, StoreError>) -> Result<T, StoreError> {
        if let Some(done) = act()? {
            refuse_network(&self.directory)?;
            return Ok(done);
        }
        self.make_directory()?;
        act()?.ok_or_else(|| StoreError::not_applied(format!("{} went away", self.directory.display())))
    }

    fn attempt(&self, shard: &Shard) -> Result<Try, StoreError> {
        let path = self.path(shard, "lock");
        let Lock::Ours(lock) = self.in_directory(|| lock::take(&path))? else { return Ok(Try::LockedOut) };
        Ok(match self.seat(shard)?.take() {
            Taken::Ours(seats) => Try::Won(Held { lock, seats }),
            Taken::Theirs => Try::LockedOut,
        })
    }

    fn seat(&self, shard: &Shard) -> Result<Seat, StoreError> {
        Seat::of(&self.directory, shard).map_err(|error| {
            let directory = self.directory.display();
            StoreError::not_applied(format!("cannot look at {directory}: {}", in_words(&error)))
        })
    }

    /// Who asks again is answered by the thread that sleeps already: nothing can wake it but the lock, so one that waits
    /// for one lock of several, again and again, would leave a thread behind each time.
    fn wait_apart(&self, shard: &Shard) -> Result<oneshot::Receiver<io::Result<Held>>, StoreError> {
        let path = self.path(shard, "lock");
        let file = self.in_directory(|| record::open_lock(&path))?;
        let opened = file.metadata().map_err(|error| explain("cannot look at", &path, &error))?;
        let opened = (opened.dev(), opened.ino());
        let (done, outcome) = oneshot::channel();
        let waiters = Arc::clone(&self.waiters);
        let mut waiting = lock(&waiters);
        let known = waiting.get_mut(shard).filter(|known| known.file == opened);
        if let Some(known) = known {
            known.done = done;
            return Ok(outcome);
        }
        let seat = self.seat(shard)?;
        let (threads_waiters, of) = (Arc::clone(&self.waiters), shard.clone());
        let wait = move || {
            let won = wait_for(file, &seat);
            let waiter = match lock(&threads_waiters).entry(of) {
                Entry::Occupied(waiter) if waiter.get().file == opened => Some(waiter.remove()),
                // Of a file that took the place of ours.
                Entry::Occupied(_) | Entry::Vacant(_) => None,
            };
            // Nobody listens any more when the standby left meanwhile: then the lock is closed again here.
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

    fn read_record(&self, shard: &Shard) -> Result<Option<Record>, StoreError> {
        let path = self.path(shard, "json");
        let Some(text) = record::read(&path)? else { return Ok(None) };
        Record::read(&text).map(Some).map_err(|why| {
            let path = path.display();
            StoreError::misconfigured(format!(
                "the record {path} was written by something else ({why}): remove it, or name another directory"
            ))
        })
    }

    fn write_record(&self, record: &Record, shard: &Shard) -> Result<(), StoreError> {
        let path = self.path(shard, "json");
        // Only the holder of the lock writes, so one name for the draft is enough.
        let draft = self.path(shard, "json.new");
        let text = serde_json::to_vec(record).expect("a record is plain data");
        record::replace(&path, &draft, &text).map_err(|error| explain("cannot write", &path, &error))
    }

    fn holder(&self, shard: &Shard) -> Result<Holder, StoreError> {
        Ok(self.read_record(shard)?.map_or_else(
            || Holder { owner: "a process that has not written its record yet".to_owned(), ..Holder::default() },
            |record| Holder {
                owner: record.owner,
                session: Some(record.session),
                host: Some(record.host),
                pid: Some(record.pid),
                term: Some(record.term),
                since_millis: Some(record.since_millis),
                expires_in: None,
                renewed_ago: None,
            },
        ))
    }

    fn has_won(&self, shard: &Shard) -> bool {
        lock(&self.won).get(shard).is_some_and(|held| self.is_current(held, shard))
    }

    fn is_current(&self, held: &Held, shard: &Shard) -> bool {
        record::names(&self.path(shard, "lock"), &held.lock) == Ok(true)
    }

    fn lock_state(&self, shard: &Shard) -> Result<lock::State, StoreError> {
        let path = self.path(shard, "lock");
        match record::open(&path, File::options().read(true), "cannot open")? {
            Some(file) => lock::state(&file, &path),
            None => Ok(lock::State::Free),
        }
    }

    fn is_locked(&self, shard: &Shard) -> Result<bool, StoreError> {
        Ok(self.lock_state(shard)? == lock::State::Held)
    }

    /// Returns when what a thread sleeps for is not what a leader would have locked: nothing else would wake a standby.
    async fn misled(&self, shard: &Shard) {
        let waits_for = lock(&self.waiters).get(shard).map(|waiter| waiter.file);
        loop {
            tokio::time::sleep(DOUBTS_APART).await;
            let named = fs::symlink_metadata(self.path(shard, "lock")).map(|found| (found.dev(), found.ino()));
            if named.ok() != waits_for || self.lock_state(shard) == Ok(lock::State::Read) {
                return;
            }
        }
    }
}

#[async_trait::async_trait]
impl Leases for FileStore {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let shard = &candidate.shard;
        // Ours already when a claim is made again; that is another leadership, with a term of its own.
        let ours = lock(&self.held).remove(shard).or_else(|| lock(&self.won).remove(shard));
        let held = match ours {
            Some(held) if self.is_current(&held, shard) => held,
            Some(_) | None => match self.attempt(shard)? {
                Try::Won(held) => held,
                Try::LockedOut => return Ok(Claim::Refused(self.holder(shard)?)),
            },
        };
        let last = self.read_record(shard)?.map_or(Term(0), |record| record.term);
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
        lock(&self.held).insert(shard.clone(), held);
        Ok(Claim::Granted(Grant { term, start_after: None }))
    }

    async fn observe(&self, shard: &Shard) -> Result<Observation, StoreError> {
        // A lock that we have won ourselves, and not yet claimed, keeps nobody out but others.
        Ok(if !self.has_won(shard) && self.is_locked(shard)? {
            Observation::Held(self.holder(shard)?)
        } else {
            Observation::Free
        })
    }

    /// Nothing needs prolonging; but a lock on a file that is not there any more is worth nothing.
    async fn renew(&self, candidate: &Candidate, _term: Term, _beat: u64) -> Result<Renewal, StoreError> {
        let shard = &candidate.shard;
        if let Some(held) = lock(&self.held).get(shard)
            && record::names(&self.path(shard, "lock"), &held.lock)?
        {
            return Ok(Renewal::Renewed);
        }
        // Whatever stands in its place: it is not ours.
        let holder =
            self.is_locked(shard).and_then(|locked| if locked { self.holder(shard).map(Some) } else { Ok(None) });
        Ok(Renewal::Lost(holder.ok().flatten()))
    }

    async fn release(&self, candidate: &Candidate, _term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        lock(&self.won).remove(shard);
        let Some(held) = lock(&self.held).remove(shard) else { return Ok(Release::NotHeld) };
        if self.is_current(&held, shard) {
            // The lock is what counts: a full disk must not keep it.
            if let Ok(Some(record)) = self.read_record(shard) {
                let _ = self.write_record(&Record { released: true, ..record }, shard);
            }
        }
        Ok(Release::Released)
    }

    /// A thread of its own sleeps in the kernel until the lock is ours.
    async fn changed(&self, shard: &Shard) -> Result<(), StoreError> {
        if self.has_won(shard) {
            return Ok(());
        }
        let path = self.path(shard, "lock");
        let won = self.wait_apart(shard)?;
        let won = tokio::select! {
            won = won => won,
            () = self.misled(shard) => return Ok(()),
        };
        match won {
            Ok(Ok(held)) => {
                lock(&self.won).insert(shard.clone(), held);
                Ok(())
            }
            Ok(Err(error)) => Err(explain("cannot lock", &path, &error)),
            Err(_) => Err(StoreError::not_applied(format!("something else waits for {} by now", path.display()))),
        }
    }

    fn with_lease_files(&self, shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        let held = lock(&self.held);
        let descriptors = held.get(shard).map(|held| {
            let seats = held.seats.iter().map(UnixListener::as_fd);
            std::iter::once(held.lock.as_fd()).chain(seats).collect::<Vec<BorrowedFd<'_>>>()
        });
        act(&descriptors.unwrap_or_default());
    }
}

#[async_trait::async_trait]
impl Administration for FileStore {
    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let record = self.read_record(shard)?;
        let holder = if self.is_locked(shard)? { Some(self.holder(shard)?) } else { None };
        Ok(Report { holder, last_term: record.map(|record| record.term) })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        let mut list = Vec::new();
        for shard in self.shards()?.into_iter().filter(|shard| shard.as_str().starts_with(prefix)) {
            let report = match self.inspect(&shard).await {
                Err(error) if error.kind == ErrorKind::Misconfigured => {
                    Report { holder: Some(Holder::stranger()), last_term: None }
                }
                report => report?,
            };
            // A lock that nobody holds, without a record, is of a standby that left before anybody led.
            if report != Report::default() {
                list.push((shard, report));
            }
        }
        Ok(list)
    }

    async fn revoke(&self, shard: &Shard, _term: Term) -> Result<Release, StoreError> {
        if !self.is_locked(shard)? {
            return Ok(Release::NotHeld);
        }
        let Holder { owner, pid, .. } = self.holder(shard)?;
        let process = pid.map_or_else(|| "its process".to_owned(), |pid| format!("process {pid}"));
        Err(StoreError::misconfigured(format!(
            "{} is held open by {owner}: the kernel frees it when that has ended, so end {process}",
            self.path(shard, "lock").display(),
        )))
    }

    /// The lock's file goes last, while it is locked: who waits for it finds that it is gone, and makes another one.
    async fn forget(&self, candidate: &Candidate, term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        let file = self.path(shard, "lock");
        if !lock(&self.held).get(shard).is_some_and(|held| self.is_current(held, shard)) {
            return Ok(Release::NotHeld);
        }
        self.forget_notes(shard).await?;
        // Unless the clock is behind: the next term would not be higher.
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
        // A second description of the same file must be refused.
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

impl Store for FileStore {
    fn delivery(&self) -> Delivery {
        Delivery::Kernel
    }

    fn expires(&self) -> bool {
        false
    }
}

fn wait_for(file: File, seat: &Seat) -> io::Result<Held> {
    lock::wait(&file)?;
    loop {
        match seat.take() {
            Taken::Ours(seats) => return Ok(Held { lock: file, seats }),
            Taken::Theirs => std::thread::sleep(LOOKS_APART),
        }
    }
}

/// If it is there.
fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(explain("cannot remove", path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn explain(what: &str, path: &Path, error: &io::Error) -> StoreError {
    let message = |advice: &str| format!("{what} {}: {}{advice}", path.display(), in_words(error));
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            StoreError::denied(message(": ask its owner, or name a directory of your own with --store file:DIR"))
        }
        io::ErrorKind::NotADirectory
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotFound
        | io::ErrorKind::IsADirectory => {
            StoreError::misconfigured(message(": name another directory with --store file:DIR"))
        }
        _ => StoreError::not_applied(message("")),
    }
}

fn refuse_network(directory: &Path) -> Result<(), StoreError> {
    let Ok(device) = fs::metadata(directory).map(|metadata| metadata.dev()) else { return Ok(()) };
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    match file_system(&mounts, device) {
        Some(kind) if NETWORKED.contains(&kind) => Err(StoreError::misconfigured(format!(
            "{} is on a network file system ({kind}), whose locks cannot be relied on: \
             name a local directory, or a store made for many machines",
            directory.display()
        ))),
        Some(_) | None => Ok(()),
    }
}

/// The type of the file system on `device`, from proc_pid_mountinfo(5):
/// `36 35 98:0 /root /mount options shared:1 - TYPE source super-options`.
fn file_system(mounts: &str, device: u64) -> Option<&str> {
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (before.split(' ').nth(2)? == wanted).then(|| after.split(' ').next())?
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    fn record(term: u64) -> Record {
        Record {
            shard: "db/main".to_owned(),
            owner: "me \"and\" you".to_owned(),
            session: Session::from_record("s-1"),
            host: "host".to_owned(),
            pid: 7,
            term: Term(term),
            since_millis: 1_795_268_611_017,
            released: false,
        }
    }

    #[tokio::test]
    async fn a_record_with_the_last_of_all_terms_is_refused_and_not_followed_by_a_lower_one() {
        let scratch = tempfile::TempDir::new().unwrap();
        let store = FileStore::open(scratch.path()).unwrap();
        let text = serde_json::to_vec(&record(u64::MAX)).unwrap();
        fs::write(scratch.path().join("db=main.json"), text).unwrap();
        let candidate = Candidate {
            shard: "db/main".parse().unwrap(),
            owner: "me".to_owned(),
            session: Session::from_record("s-2"),
            host: "host".to_owned(),
            pid: 7,
            lease: std::time::Duration::from_secs(15),
        };
        let error = store.claim(&candidate).await.unwrap_err();
        assert!(error.message.contains("db=main.json was written by something else (its term"), "{error}");
        assert_eq!(store.observe(&candidate.shard).await, Ok(Observation::Free));
    }

    #[test]
    fn a_million_records_are_read_as_they_were_written_or_refused() {
        let ours = [record(1), record(u64::MAX), Record { released: true, ..record(1_795_268_611_017) }];
        let ours = ours.map(|record| serde_json::to_vec(&record).unwrap());
        let seeds: Vec<&[u8]> = ours.iter().map(Vec::as_slice).collect();
        fuzz::bent("record of file:", &seeds, |text, _| {
            let read = Record::read(text);
            match &read {
                Ok(record) => {
                    assert_eq!(Record::read(&serde_json::to_vec(record).unwrap()).as_ref(), Ok(record));
                    assert!(record.term.0.checked_add(1).is_some());
                }
                Err(why) => fuzz::assert_is_one_line(why),
            }
            (&read).into()
        });
    }

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

    #[test]
    fn shards_keep_to_their_directory() {
        let store = FileStore::open(Path::new("/d")).unwrap();
        let path = |name: &str| store.path(&name.parse().unwrap(), "lock");
        assert_eq!(path("a/b:c"), Path::new("/d/a=b:c.lock"));
        assert_ne!(path("a/b"), path("a.b"));
    }

    #[test]
    fn the_files_of_a_shard_tell_its_name_and_drafts_and_strangers_none() {
        let store = FileStore::open(Path::new("/d")).unwrap();
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        for shard in ["a/b:c", "a.lock", "x.json", "x.json/y", "/", "_-"] {
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
