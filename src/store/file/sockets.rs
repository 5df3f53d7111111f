//! Finds a leader whose path has come to lead to another file than the one that it locked.
//!
//! A lock is on a file, and a path may come to lead to another file: the directory is deleted, it or one above it is
//! moved away and made again, something is mounted over it, or a symbolic link is changed. The next candidate finds a
//! new file there and locks it. So a holder also listens on a socket in the abstract namespace (unix(7)), which nobody
//! can move or delete. A socket's name says which paths its holder stands for:
//!
//! - the path as the user gave it, and the path without symbolic links: both as this mount namespace and this root see
//!   it;
//! - the path within its file system, which is the same in all mount namespaces.
//!
//! The name ends with a random number, so nobody can take it first. A candidate binds its own name, and then looks for
//! all names with one of its own paths in them: of two candidates that come at once, at least one sees the other. It
//! counts only listeners of users who may write the directory by its owner and its mode: root, its owner, the members
//! of the group that shares it, and the candidate's own user. It ignores listeners of other users. It connects to a
//! listener only if the kernel does not name its user otherwise.
//!
//! At its next renewal the holder finds that its path leads elsewhere, and stops its tree. The socket stays bound until
//! the last of candidate, backstop and guard is gone. Three holders are not seen: one in another network namespace; one
//! whose path leads to the directory by another mount, once the directory is on another file system; and one who could
//! write the old directory but may not write the new one.

use super::files::is_shared;
use super::listeners::{self, Listener};
use crate::lease::{Session, Shard};
use crate::mounts::{Mount, mounts, read_table};
use crate::store::stable_hash::fnv1a;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Component, Path, PathBuf};

const PREFIX: &str = "leaderrun/file/";

#[derive(Debug)]
pub(super) struct PathSockets {
    /// A number for each path that leads to the directory.
    paths: Vec<String>,
    trusted: Trusted,
}

#[derive(Debug)]
pub(super) enum Taken {
    /// The listener, unless the kernel gave none.
    Ours(Option<UnixListener>),
    Theirs,
}

impl PathSockets {
    pub(super) fn of(directory: &Path, shard: &Shard) -> io::Result<Self> {
        let found = fs::metadata(directory)?;
        let real = fs::canonicalize(directory)?;
        let mut paths = Vec::new();
        if let Ok(space) = Space::ours() {
            paths.push(space.number(directory, shard));
            paths.push(space.number(&real, shard));
        }
        if let Some(path) = path_on_disk(&real) {
            paths.push(number(&[
                b"disk",
                &found.dev().to_ne_bytes(),
                path.as_os_str().as_bytes(),
                shard.as_str().as_bytes(),
            ]));
        }
        paths.sort();
        paths.dedup();
        Ok(Self { paths, trusted: Trusted::of(&found) })
    }

    /// Binds the name, unless another holder of one of the paths listens.
    pub(super) fn take(&self) -> Taken {
        let random = Session::random().map(|session| session.as_str().replace('-', ""));
        let own = format!("{PREFIX}{}/{:.16}", self.paths.join("/"), random.unwrap_or_default());
        let bound = bind(&own);
        let is_rival = |name: &str| name != own && self.is_of_one_path(name);
        let mut known = HashMap::new();
        let counts = |listener| match listener {
            Listener::User(user) => *known.entry(user).or_insert_with(|| self.trusted.has(user)),
            Listener::Unknown => true,
        };
        match listeners::any(is_rival, counts) {
            Ok(true) => return Taken::Theirs,
            Ok(false) => {}
            Err(error) => tracing::debug!("cannot list the listening sockets: {error}"),
        }
        Taken::Ours(bound.ok())
    }

    fn is_of_one_path(&self, name: &str) -> bool {
        // The last part is random.
        let paths = name.strip_prefix(PREFIX).and_then(|paths| paths.rsplit_once('/')).map_or("", |(paths, _)| paths);
        paths.split('/').any(|path| self.paths.iter().any(|own| own == path))
    }
}

fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// The users who may write a directory.
#[derive(Debug)]
struct Trusted {
    users: [u32; 3],
    group: Option<u32>,
}

impl Trusted {
    fn of(directory: &Metadata) -> Self {
        let users = [0, nix::unistd::geteuid().as_raw(), directory.uid()];
        Self { users, group: is_shared(directory).then(|| directory.gid()) }
    }

    fn has(&self, user: u32) -> bool {
        self.users.contains(&user) || self.group.is_some_and(|group| is_member(user, group))
    }
}

/// Whether a process of the user is in the group, as the listener is a process. The machine's list of groups is not
/// asked, because it may be a server that does not answer.
fn is_member(user: u32, group: u32) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    processes.flatten().any(|entry| {
        let name = entry.file_name();
        name.as_bytes().first().is_some_and(u8::is_ascii_digit)
            && fs::read_to_string(entry.path().join("status")).is_ok_and(|status| shows_member(&status, user, group))
    })
}

/// Reads proc_pid_status(5). The effective group does not count: any user gets one from a set-group-ID program.
fn shows_member(status: &str, user: u32, group: u32) -> bool {
    let numbers = |field: &str| {
        let values = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        values.split_ascii_whitespace().filter_map(|value| value.parse::<u32>().ok())
    };
    // The real and the effective user.
    let is_theirs = numbers("Uid:").take(2).all(|number| number == user) && numbers("Uid:").next().is_some();
    is_theirs && (numbers("Gid:").next() == Some(group) || numbers("Groups:").any(|number| number == group))
}

/// The mount namespace and the root. In others the same path may name another file.
struct Space {
    mounts: (u64, u64),
    root: (u64, u64),
}

impl Space {
    fn ours() -> io::Result<Self> {
        let identity = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        Ok(Self { mounts: identity("/proc/self/ns/mnt")?, root: identity("/")? })
    }

    fn number(&self, path: &Path, shard: &Shard) -> String {
        let Self { mounts, root } = self;
        let space = [mounts.0, mounts.1, root.0, root.1].map(u64::to_ne_bytes).concat();
        // Removes double slashes.
        let path: PathBuf = path.components().collect();
        number(&[b"path", &space, path.as_os_str().as_bytes(), shard.as_str().as_bytes()])
    }
}

/// A number for a path. Two paths do not get the same one by accident, and only users who may write the directory could
/// do that on purpose.
fn number(parts: &[&[u8]]) -> String {
    let bytes = parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes().into_iter().chain(part.iter().copied()));
    format!("{:016x}", fnv1a(bytes))
}

fn path_on_disk(directory: &Path) -> Option<PathBuf> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let opened = File::options().read(true).custom_flags(flags).open(directory).ok()?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd())).ok()?;
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    on_disk(&read_table().ok()?, mount, directory)
}

fn on_disk(table: &str, mount: &str, directory: &Path) -> Option<PathBuf> {
    let Mount { root, point, .. } = mounts(table).find(|found| found.id == mount)?;
    let below = directory.strip_prefix(point).ok()?;
    Some(Path::new(&root).join(below).components().filter(|part| *part != Component::CurDir).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_path_on_its_disk_under_every_mount() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      40 22 8:1 /srv/my\\040data /mnt/a\\040b rw shared:9 - ext4 /dev/sda1 rw\n";
        let expected = Some(PathBuf::from("/srv/my data/store"));
        assert_eq!(on_disk(mounts, "22", Path::new("/srv/my data/store")), expected);
        assert_eq!(on_disk(mounts, "40", Path::new("/mnt/a b/store")), expected);
        assert_eq!(on_disk(mounts, "40", Path::new("/mnt/a b")), Some(PathBuf::from("/srv/my data")));
        assert_eq!(on_disk(mounts, "40", Path::new("/elsewhere")), None);
        assert_eq!(on_disk(mounts, "41", Path::new("/mnt/a b")), None);
    }

    #[test]
    fn the_number_of_a_path_is_the_same_in_every_release() {
        assert_eq!(number(&[b"path", &[1, 2], b"/var/lib", b"db"]), "7e45e1b7eda68e09");
    }

    #[test]
    fn members_of_a_group_are_known_by_their_processes() {
        let status = "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t1\t9\t9\t9\nGroups:\t3 4 \nNgid:\t0\n";
        for (user, group, expected) in
            [(7, 3, true), (7, 4, true), (7, 1, true), (7, 9, false), (8, 3, false), (7, 0, false)]
        {
            assert_eq!(shows_member(status, user, group), expected, "{user} {group}");
        }
        assert!(!shows_member("Uid:\t7\t0\t0\t0\nGid:\t3\t3\t3\t3\n", 7, 3), "of a program that is another user's");
        assert!(!shows_member("", 0, 0));
    }
}
