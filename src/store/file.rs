//! The store `file:DIR`: leases that processes of one machine hold on local files.
//!
//! A lease is a kernel lock on `DIR/SHARD.lock` (an open file description lock, fcntl(2)), held open by candidate,
//! backstop and guard alike. The kernel frees it when the last of them is gone, however they went, so nothing
//! expires and a takeover needs no timeout. `DIR/SHARD.json` beside it tells people who holds it, and remembers
//! the term; it is replaced as a whole (rename), so no crash leaves it half-written.
//!
//! The hazards:
//!
//! - *Somebody deletes the files while a leader runs.* The next candidate would make new ones and lock those. So a
//!   holder also listens on a socket in the abstract namespace (unix(7)), which cannot be deleted: whoever finds
//!   it in use waits. The holder itself notices at its next renewal that its file is gone, and stops.
//! - *The file is deleted between opening and locking it.* What was locked is compared with what the path names.
//! - *A network file system* may grant one lock to two machines, or lose it while its server is away: refused.
//! - *The record is lost* (a power failure may undo a rename that was not synced; syncing would make every start
//!   wait for the disk). Terms rise all the same: each is at least the number of milliseconds since 1970.

mod notes;

use super::{
    Claim, Conclusion, Delivery, Finding, Grant, Holder, Observation, Release, Renewal, Report, Store, StoreError,
};
use crate::lease::{Candidate, Session, Shard, Term};
use crate::time::wall_clock_millis;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

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
    lock: Arc<File>,
    /// None when another user sits on the name: then only the lock protects.
    seat: Option<Arc<UnixListener>>,
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
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
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
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.directory)
            .map_err(|error| explain("cannot create the directory", &self.directory, &error))?;
        refuse_network(&self.directory)
    }

    fn open_lock(&self, shard: &Shard) -> Result<File, StoreError> {
        let path = self.path(shard, "lock");
        let open = || File::options().read(true).write(true).create(true).truncate(false).mode(0o644).open(&path);
        match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.make_directory()?;
                open().map_err(|error| explain("cannot open", &path, &error))
            }
            Ok(file) => {
                refuse_network(&self.directory)?;
                Ok(file)
            }
            Err(error) => Err(explain("cannot open", &path, &error)),
        }
    }

    fn attempt(&self, shard: &Shard) -> Result<Try, StoreError> {
        loop {
            let file = self.open_lock(shard)?;
            match set_lock(&file, false) {
                Ok(()) => {}
                Err(Errno::EAGAIN | Errno::EACCES) => return Ok(Try::LockedOut),
                Err(error) => return Err(explain("cannot lock", &self.path(shard, "lock"), &error.into())),
            }
            if !is_named(&file, &self.path(shard, "lock")) {
                continue;
            }
            let seat = match Seat::of(&self.directory, shard) {
                Some(seat) => match seat.take() {
                    Taken::Ours(listener) => Some(Arc::new(listener)),
                    Taken::Theirs => return Ok(Try::LockedOut),
                    Taken::Squatted => None,
                },
                None => None,
            };
            return Ok(Try::Won(Held { lock: Arc::new(file), seat }));
        }
    }

    /// Who asks again is answered by the thread that sleeps already: nothing can wake it but the lock, so one that waits
    /// for one lock of several, again and again, would leave a thread behind each time.
    fn wait_apart(&self, shard: &Shard) -> Result<oneshot::Receiver<io::Result<Held>>, StoreError> {
        let path = self.path(shard, "lock");
        let file = self.open_lock(shard)?;
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
        let seat = Seat::of(&self.directory, shard);
        let (threads_waiters, of) = (Arc::clone(&self.waiters), shard.clone());
        let wait = move || {
            let won = wait_for(file, seat);
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
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound) => return Ok(None),
            Err(error) => return Err(explain("cannot read", &path, &error)),
        };
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
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|error| explain("cannot write", &path, &error))
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
        lock(&self.won).get(shard).is_some_and(|held| is_named(&held.lock, &self.path(shard, "lock")))
    }

    /// Asks the kernel without locking: a lock taken to look would turn away a candidate.
    fn is_locked(&self, shard: &Shard) -> Result<bool, StoreError> {
        let path = self.path(shard, "lock");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(explain("cannot open", &path, &error)),
        };
        let mut wanted = write_lock();
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut wanted))
            .map_err(|error| explain("cannot look at the lock", &path, &error.into()))?;
        Ok(i32::from(wanted.l_type) != libc::F_UNLCK)
    }
}

#[async_trait::async_trait]
impl Store for FileStore {
    async fn claim(&self, candidate: &Candidate) -> Result<Claim, StoreError> {
        let shard = &candidate.shard;
        // Ours already when a claim is made again; that is another leadership, with a term of its own.
        let ours = lock(&self.held).remove(shard).or_else(|| lock(&self.won).remove(shard));
        let held = match ours {
            Some(held) if is_named(&held.lock, &self.path(shard, "lock")) => held,
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

    /// Nothing needs prolonging; but a lock on a deleted file is worth nothing.
    async fn renew(&self, candidate: &Candidate, _term: Term, _beat: u64) -> Result<Renewal, StoreError> {
        let shard = &candidate.shard;
        let named = lock(&self.held).get(shard).map(|held| is_named(&held.lock, &self.path(shard, "lock")));
        if named == Some(true) {
            return Ok(Renewal::Renewed);
        }
        Ok(Renewal::Lost(if self.is_locked(shard)? { Some(self.holder(shard)?) } else { None }))
    }

    async fn release(&self, candidate: &Candidate, _term: Term) -> Result<Release, StoreError> {
        let shard = &candidate.shard;
        lock(&self.won).remove(shard);
        let Some(held) = lock(&self.held).remove(shard) else { return Ok(Release::NotHeld) };
        if is_named(&held.lock, &self.path(shard, "lock")) {
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
        match self.wait_apart(shard)?.await {
            Ok(Ok(held)) => {
                lock(&self.won).insert(shard.clone(), held);
                Ok(())
            }
            Ok(Err(error)) => Err(explain("cannot lock", &path, &error)),
            Err(_) => Err(StoreError::not_applied(format!("something else waits for {} by now", path.display()))),
        }
    }

    async fn inspect(&self, shard: &Shard) -> Result<Report, StoreError> {
        let record = self.read_record(shard)?;
        let holder = if self.is_locked(shard)? { Some(self.holder(shard)?) } else { None };
        Ok(Report { holder, last_term: record.map(|record| record.term) })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Shard, Report)>, StoreError> {
        let mut list = Vec::new();
        for shard in self.shards()?.into_iter().filter(|shard| shard.as_str().starts_with(prefix)) {
            let report = match self.inspect(&shard).await {
                Err(error) if error.conclusion == Conclusion::Misconfigured => {
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
        if !lock(&self.held).get(shard).is_some_and(|held| is_named(&held.lock, &file)) {
            return Ok(Release::NotHeld);
        }
        self.forget_notes(shard).await?;
        // Unless the clock is behind: the next term would not be higher.
        if term.0 < wall_clock_millis() {
            for path in [self.path(shard, "json"), file] {
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
        let tried = File::create(&scratch).and_then(|file| {
            set_lock(&file, false)?;
            // A second description of the same file must be refused.
            let second = File::options().write(true).open(&scratch)?;
            match set_lock(&second, false) {
                Err(Errno::EAGAIN | Errno::EACCES) => Ok(()),
                Ok(()) => Err(io::Error::other("two locks were granted at once")),
                Err(error) => Err(error.into()),
            }
        });
        let _ = fs::remove_file(&scratch);
        findings.push(match tried {
            Ok(()) => Finding::good("it can be written, and locks exclude each other".to_owned()),
            Err(error) => Finding::bad(explain("cannot lock a file in", &self.directory, &error).message),
        });
        Ok(findings)
    }

    fn delivery(&self) -> Delivery {
        Delivery::Kernel
    }

    fn expires(&self) -> bool {
        false
    }

    fn with_tenure(&self, shard: &Shard, act: &mut dyn FnMut(&[BorrowedFd<'_>])) {
        let held = lock(&self.held);
        let held = held.get(shard);
        let seat = held.and_then(|held| held.seat.as_ref());
        let mut descriptors: Vec<BorrowedFd<'_>> = held.iter().map(|held| held.lock.as_fd()).collect();
        descriptors.extend(seat.map(|seat| seat.as_fd()));
        act(&descriptors);
    }
}

/// The socket in the abstract namespace that a holder sits on.
#[derive(Debug)]
struct Seat {
    address: SocketAddr,
    /// Who may sit there: root, we, and the owner of the directory.
    trusted: [u32; 3],
}

enum Taken {
    Ours(UnixListener),
    Theirs,
    Squatted,
}

impl Seat {
    /// Named after the directory's place, not the directory, which may be deleted and made again. None where the
    /// place cannot be seen.
    fn of(directory: &Path, shard: &Shard) -> Option<Self> {
        let place = fs::metadata(directory.parent()?).ok()?;
        let mut hasher = DefaultHasher::new();
        (place.dev(), place.ino(), directory.file_name()?, shard).hash(&mut hasher);
        let name = format!("leaderrun/{:016x}", hasher.finish());
        let owner = fs::metadata(directory).ok()?.uid();
        let trusted = [0, nix::unistd::geteuid().as_raw(), owner];
        Some(Self { address: SocketAddr::from_abstract_name(name).ok()?, trusted })
    }

    fn take(&self) -> Taken {
        match UnixListener::bind_addr(&self.address) {
            Ok(listener) => Taken::Ours(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => match self.visit() {
                Some(stream) if !self.is_trusted(&stream) => Taken::Squatted,
                Some(_) | None => Taken::Theirs,
            },
            Err(_) => Taken::Squatted,
        }
    }

    /// Returns once nobody sits there.
    fn take_when_free(&self) -> Option<UnixListener> {
        loop {
            match self.take() {
                Taken::Ours(listener) => return Some(listener),
                Taken::Squatted => return None,
                Taken::Theirs => {
                    // The kernel ends this connection when the last copy of the listener is closed.
                    if let Some(mut stream) = self.visit() {
                        let _ = stream.read(&mut [0]);
                    }
                }
            }
        }
    }

    fn visit(&self) -> Option<UnixStream> {
        UnixStream::connect_addr(&self.address).ok()
    }

    fn is_trusted(&self, stream: &UnixStream) -> bool {
        getsockopt(stream, PeerCredentials).is_ok_and(|peer| self.trusted.contains(&peer.uid()))
    }
}

fn wait_for(file: File, seat: Option<Seat>) -> io::Result<Held> {
    loop {
        match set_lock(&file, true) {
            Ok(()) => break,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let seat = seat.and_then(|seat| seat.take_when_free()).map(Arc::new);
    Ok(Held { lock: Arc::new(file), seat })
}

fn write_lock() -> libc::flock {
    let [kind, whence] = [libc::F_WRLCK, libc::SEEK_SET].map(|constant| i16::try_from(constant).expect("small"));
    libc::flock { l_type: kind, l_whence: whence, l_start: 0, l_len: 0, l_pid: 0 }
}

fn set_lock(file: &File, wait: bool) -> nix::Result<()> {
    let wanted = write_lock();
    fcntl(file, if wait { FcntlArg::F_OFD_SETLKW(&wanted) } else { FcntlArg::F_OFD_SETLK(&wanted) }).map(drop)
}

/// True while `path` still names the very file that is open as `file`.
fn is_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        (Ok(_) | Err(_), _) => false,
    }
}

/// If it is there.
fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(explain("cannot remove", path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn explain(what: &str, path: &Path, error: &io::Error) -> StoreError {
    let message = |advice: &str| format!("{what} {}: {}{advice}", path.display(), in_words(error));
    match error.kind() {
        ErrorKind::PermissionDenied => {
            StoreError::denied(message(": ask its owner, or name a directory of your own with --store file:DIR"))
        }
        ErrorKind::NotADirectory | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound | ErrorKind::IsADirectory => {
            StoreError::misconfigured(message(": name another directory with --store file:DIR"))
        }
        _ => StoreError::not_applied(message("")),
    }
}

/// The kernel's words without std's ` (os error N)`.
pub(crate) fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    text.to_lowercase()
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
