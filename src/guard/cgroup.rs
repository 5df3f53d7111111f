//! A cgroup (version 2) for each tree. The kernel kills it in one step.
//!
//! The hazards:
//!
//! - *A writable cgroup is not necessarily ours.* Root can write all of them, and a service manager relies on those
//!   that it made. A directory is ours if systemd delegated it (`Delegate=` sets an extended attribute), or if it is
//!   the root of a container's cgroup namespace. leaderrun makes directories in it, and writes the directory's own
//!   files only to enable the cpu controller that systemd delegated.
//! - *A process in an inner node is in the way* once the owner enables controllers. So leaderrun moves itself to
//!   `supervisor`, and each COMMAND starts in a leaf `payload-N` beside it.
//! - *A crash leaves a leaf behind*, perhaps with a tree in it. Every process that owns a leaf holds a lock on it,
//!   which the kernel frees with the last of them. The next start kills and removes every leaf that it can lock.
//! - *`cgroup.kill` skips a zombie whose threads live on.* So processes that are still listed are killed one by one.
//!
//! The kernel documents the files in Documentation/admin-guide/cgroup-v2.rst, and systemd the rules of delegation in
//! CGROUP_DELEGATION.md.

use super::walk::each_number;
use crate::mounts::mounts;
use crate::sys::{self, Pinned};
use crate::time::BootInstant;
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{AccessFlags, Pid, UnlinkatFlags, Whence, faccessat, getpid, lseek, unlinkat, write};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SUPERVISOR: &CStr = c"supervisor";
/// The largest share of the processors (`cpu.weight`). The kernel gives a cgroup 100.
pub const WEIGHT: &str = "10000";
const LEAF: &str = "payload-";
/// Names to try for a leaf. A leaderrun in another PID namespace may have taken some.
const TRIES: u32 = 100;
/// How long leaves of an earlier crash may take to die.
const SWEEP: Duration = Duration::from_secs(1);

/// The cgroup that was delegated to us.
#[derive(Debug)]
pub struct Cgroup {
    directory: OwnedFd,
    path: PathBuf,
    is_delegated: bool,
}

/// The cgroup of one tree.
#[derive(Debug)]
pub struct Leaf {
    name: CString,
    /// Locked while this process, or one that inherited it, has it open.
    directory: File,
    kill: OwnedFd,
    members: OwnedFd,
    events: File,
}

impl Cgroup {
    /// The cgroup of this process, if it was delegated to us. `table` has the mounts.
    pub fn ours(table: &str) -> Result<Self, String> {
        let membership = read_text("/proc/self/cgroup")?;
        let own = own_path(&membership).ok_or("this process is in no cgroup of version 2")?;
        // A later mount may hide an earlier one.
        let opened = directories_of(table, own).filter_map(|path| Some((File::open(&path).ok()?, path))).last();
        let (directory, path) = opened.ok_or("no mounted cgroup2 file system shows the cgroup of this process")?;
        let directory = OwnedFd::from(directory);
        let shown = path.display();
        let there = |name: &CStr, access| faccessat(&directory, name, access, AtFlags::AT_EACCESS);
        // The root of the whole hierarchy has no such file.
        let is_namespaces_root = own == "/" && there(c"cgroup.events", AccessFlags::F_OK).is_ok();
        let is_delegated = is_delegated(&directory);
        if !(is_delegated || is_namespaces_root) {
            return Err(format!("{shown} was not delegated to leaderrun: Delegate=yes in a unit does that"));
        }
        for name in [c".", c"cgroup.procs"] {
            there(name, AccessFlags::W_OK).map_err(|error| format!("{shown} cannot be written: {}", error.desc()))?;
        }
        there(c"cgroup.kill", AccessFlags::F_OK)
            .map_err(|_| format!("{shown} has no cgroup.kill, which needs Linux 5.14"))?;
        Ok(Self { directory, path, is_delegated })
    }

    /// Whether systemd delegated the shares of the processors too.
    pub fn has_weight(&self) -> bool {
        let controllers = fs::read_to_string(self.path.join("cgroup.controllers")).unwrap_or_default();
        self.is_delegated && controllers.split_ascii_whitespace().any(|name| name == "cpu")
    }

    /// Gives this process and its helpers the largest share of the processors, and COMMAND's leaves what is usual. Call
    /// it after [`Self::make_room`].
    pub fn weigh(&self) {
        // Refused while somebody else's processes are in the directory itself.
        let _ = fs::write(self.path.join("cgroup.subtree_control"), "+cpu");
        let _ = fs::write(self.path.join("supervisor/cpu.weight"), WEIGHT);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the leaves of an earlier crash with everything that lives in them, and moves this process out of the
    /// way.
    pub fn make_room(&self) -> io::Result<()> {
        match mkdirat(&self.directory, SUPERVISOR, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let supervisor = open(&self.directory, SUPERVISOR, OFlag::O_DIRECTORY)?;
        write(open(&supervisor, c"cgroup.procs", OFlag::O_WRONLY)?, b"0")?;
        self.sweep()
    }

    /// Kills and removes the leaves that dead leaderruns left.
    fn sweep(&self) -> io::Result<()> {
        let names = directories_in(&self.directory)?;
        // A leaf that has vanished or is locked is not left over from a crash.
        let abandoned = names.into_iter().filter(|name| is_leaf(name)).filter_map(|name| {
            let directory = File::from(open(&self.directory, &name, OFlag::O_DIRECTORY).ok()?);
            directory.try_lock().ok()?;
            Leaf::of(name, directory).ok()
        });
        let mut abandoned: Vec<Leaf> = abandoned.collect();
        let give_up = BootInstant::now().plus(SWEEP);
        loop {
            for leaf in &abandoned {
                leaf.kill();
                leaf.signal_each(Signal::SIGKILL, |_| true);
            }
            abandoned.retain(|leaf| {
                let is_empty = leaf.is_empty();
                if is_empty {
                    leaf.remove();
                }
                !is_empty
            });
            if abandoned.is_empty() {
                return Ok(());
            }
            if BootInstant::now() >= give_up {
                let names: Vec<_> = abandoned.iter().map(|leaf| leaf.name.to_string_lossy()).collect();
                tracing::warn!("processes left over from another leaderrun are still alive in {}", names.join(", "));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Makes a leaf for one tree.
    pub fn new_leaf(&self) -> io::Result<Leaf> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // A standby may become the leader right after a crash.
        self.sweep()?;
        for _ in 0..TRIES {
            let name = format!("{LEAF}{}-{}", getpid(), COUNT.fetch_add(1, Ordering::Relaxed));
            let name = CString::new(name).expect("a number has no NUL");
            match mkdirat(&self.directory, name.as_c_str(), Mode::from_bits_truncate(0o755)) {
                // An earlier process with our number made it, here or in another PID namespace.
                Err(Errno::EEXIST) => continue,
                made => made?,
            }
            // Before it is locked, another leaderrun may take it for left over, and remove it.
            let Ok(directory) = open(&self.directory, &name, OFlag::O_DIRECTORY).map(File::from) else { continue };
            if directory.try_lock_shared().is_ok()
                && let Ok(leaf) = Leaf::of(name, directory)
            {
                return Ok(leaf);
            }
        }
        Err(io::Error::other("cannot make a cgroup for the command"))
    }
}

impl Leaf {
    /// Opens a leaf by its directory. This process or an ancestor has locked it.
    pub fn of(name: CString, directory: File) -> io::Result<Self> {
        Ok(Self {
            kill: open(&directory, c"cgroup.kill", OFlag::O_WRONLY)?,
            members: open(&directory, c"cgroup.procs", OFlag::O_RDONLY)?,
            events: open(&directory, c"cgroup.events", OFlag::O_RDONLY)?.into(),
            name,
            directory,
        })
    }

    pub fn name(&self) -> &CStr {
        &self.name
    }

    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// A file that polls as POLLPRI when the last member leaves or the first one enters.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Has the kernel kill all members, and all that they fork meanwhile.
    pub fn kill(&self) {
        let _ = write(&self.kill, b"1");
    }

    /// True when no member lives, counting the threads of zombies.
    pub fn is_empty(&self) -> bool {
        let mut text = [0; 256];
        // A directory could only be removed when it had no members.
        match nix::sys::uio::pread(&self.events, &mut text, 0) {
            Ok(length) => text[..length].split(|&byte| byte == b'\n').any(|line| line == b"populated 0"),
            Err(error) => error == Errno::ENODEV,
        }
    }

    /// Sends `signal` to each member that `is_meant`.
    ///
    /// Between reading a number and signalling it, the process may end and a stranger may get the number. So each
    /// process is pinned first. If its number is still listed after that, it is a member.
    pub fn signal_each(&self, signal: Signal, is_meant: impl Fn(Pid) -> bool) {
        const BATCH: usize = 32;
        let mut seen = 0;
        loop {
            let mut pinned: [Option<Pinned>; BATCH] = Default::default();
            let mut count = 0;
            let from = seen;
            self.each_member(|at, pid| {
                if at >= from && count < BATCH {
                    seen = at + 1;
                    // 0 is a process of another PID namespace.
                    if pid > 0 && is_meant(Pid::from_raw(pid)) {
                        pinned[count] = Pinned::new(Pid::from_raw(pid)).ok();
                        count += 1;
                    }
                }
            });
            if count == 0 {
                return;
            }
            self.each_member(|_, listed| {
                for process in pinned.iter().flatten().filter(|process| process.pid.as_raw() == listed) {
                    let _ = process.signal(signal);
                }
            });
        }
    }

    /// Calls `each` with every member's place in the list and number.
    fn each_member(&self, mut each: impl FnMut(usize, i32)) {
        let mut at = 0;
        if lseek(&self.members, 0, Whence::SeekSet).is_ok() {
            each_number(self.members.as_fd(), |number| {
                each(at, number);
                at += 1;
            });
        }
    }

    /// Removes the leaf and the cgroups that COMMAND made in it, if all are empty.
    pub fn remove(&self) {
        if let Ok(above) = open(&self.directory, c"..", OFlag::O_DIRECTORY) {
            remove_below(&self.directory);
            let _ = unlinkat(above, self.name.as_c_str(), UnlinkatFlags::RemoveDir);
        }
    }
}

fn remove_below(directory: impl AsFd) {
    for name in directories_in(&directory).unwrap_or_default() {
        if let Ok(inner) = open(&directory, &name, OFlag::O_DIRECTORY) {
            remove_below(inner);
        }
        let _ = unlinkat(&directory, name.as_c_str(), UnlinkatFlags::RemoveDir);
    }
}

fn directories_in(directory: impl AsFd) -> io::Result<Vec<CString>> {
    let mut entries = Dir::openat(directory, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let directories = entries.iter().filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name();
        let is_one = entry.file_type() == Some(Type::Directory) && !matches!(name.to_bytes(), b"." | b"..");
        is_one.then(|| name.to_owned())
    });
    Ok(directories.collect())
}

fn open(directory: impl AsFd, name: &CStr, flags: OFlag) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty())?)
}

/// True for `payload-PID-N`. Other programs' directories must not pass for ours.
fn is_leaf(name: &CStr) -> bool {
    let numbers = name.to_str().ok().and_then(|name| name.strip_prefix(LEAF)?.split_once('-'));
    numbers.is_some_and(|(pid, count)| [pid, count].iter().all(|number| number.parse::<u32>().is_ok()))
}

/// True if systemd delegated the directory: it sets `trusted.delegate` for root, and `user.delegate`, which everybody
/// may read, for others.
fn is_delegated(directory: &OwnedFd) -> bool {
    let mut value = [0; 8];
    [c"trusted.delegate", c"user.delegate"]
        .iter()
        .any(|name| sys::extended_attribute(directory.as_fd(), name, &mut value).is_ok_and(|value| value == b"1"))
}

/// From cgroups(7): the line of version 2 in `/proc/self/cgroup` is `0::PATH`.
fn own_path(membership: &str) -> Option<&str> {
    membership.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The directories where the cgroup `own` may be.
fn directories_of(table: &str, own: &str) -> impl Iterator<Item = PathBuf> {
    mounts(table).filter(|mount| mount.kind == "cgroup2").filter_map(move |mount| mount.directory_of(own))
}

pub(super) fn read_text(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_cgroup_is_found_below_its_mount_point() {
        let membership = "4:memory:/x\n0::/system.slice/report.service\n";
        assert_eq!(own_path(membership), Some("/system.slice/report.service"));
        let mounts = "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 23 0:27 / /sys/fs/my\\040cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let directory_of = |mounts, own| directories_of(mounts, own).last();
        let directory = directory_of(mounts, "/system.slice/report.service");
        assert_eq!(directory, Some(PathBuf::from("/sys/fs/my cgroup/system.slice/report.service")));
        assert_eq!(directory_of(mounts, "/"), Some(PathBuf::from("/sys/fs/my cgroup")));
        assert_eq!(directory_of("", "/"), None);
        let part = "31 23 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(directory_of(part, "/docker/abc/x"), Some(PathBuf::from("/sys/fs/cgroup/x")));
        assert_eq!(directory_of(part, "/docker/abcd"), None);
    }

    #[test]
    fn the_helpers_weigh_most_where_that_was_delegated() {
        let scratch = tempfile::TempDir::new().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir(at("supervisor")).expect("it can be made");
        for name in ["cgroup.controllers", "cgroup.subtree_control", "supervisor/cpu.weight"] {
            fs::write(at(name), "").expect("it can be written");
        }
        let cgroup = |is_delegated| Cgroup {
            directory: File::open(scratch.path()).expect("it is there").into(),
            path: scratch.path().to_owned(),
            is_delegated,
        };
        assert!(!cgroup(true).has_weight());
        fs::write(at("cgroup.controllers"), "cpuset cpu memory\n").expect("it can be written");
        assert!(cgroup(true).has_weight() && !cgroup(false).has_weight());
        cgroup(true).weigh();
        let text = |name: &str| fs::read_to_string(at(name)).expect("it is there");
        assert_eq!([text("cgroup.subtree_control"), text("supervisor/cpu.weight")], ["+cpu", "10000"]);
    }

    #[test]
    fn only_directories_with_our_names_are_swept() {
        assert!(is_leaf(c"payload-12-0"));
        for name in [c"payload", c"payload-12", c"payload-a-1", c"payload-1-2-3"] {
            assert!(!is_leaf(name), "{name:?}");
        }
    }
}
