//! The files of a directory: how they are opened, read, and made.
//!
//! The hazards:
//!
//! - *A lock needs no permission to write.* Every user who may open a file for reading may keep others from locking it
//!   (fcntl(2)). So a user who may not write the directory must not be able to open our files. The directory decides on
//!   their modes; the umask does not, nor does the version that made them.
//! - *Something else is in the place of a file of ours.* Opening a pipe waits for its other end, a symbolic link leads
//!   anywhere, and a file may not fit into memory. So this module opens only regular files, without waiting, and reads
//!   up to a limit.

use super::{explain, in_words};
use crate::lease::Session;
use crate::store::StoreError;
use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, fchown, geteuid};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Enough for the longest owner of a command line, with every letter escaped.
const LONGEST: u64 = 1024 * 1024;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
const SET_GROUP: u32 = 0o2000;
const ALL_BITS: u32 = 0o7777;

/// Whether a group shares the directory: its members may replace each other's files.
pub(super) fn is_shared(directory: &Metadata) -> bool {
    directory.mode() & (GROUP_WRITES | OTHERS_WRITE | STICKY) == GROUP_WRITES
}

/// `failed` begins the message if the file may not be opened.
pub(super) fn open(path: &Path, options: &mut OpenOptions, failed: &str) -> Result<Option<File>, StoreError> {
    // O_NONBLOCK also keeps us from waiting until another process gives up its lease on the file (F_SETLEASE).
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = options.custom_flags(flags.bits()).open(path).and_then(|file| Ok((file.metadata()?, file)));
    match opened {
        Ok((found, file)) if found.is_file() => Ok(Some(file)),
        Ok(_) => Err(misplaced(path, "is not a regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => Err(misplaced(path, "is not a regular file")),
            Ok(_) | Err(_) => Err(explain(failed, path, &error)),
        },
    }
}

fn misplaced(path: &Path, how: &str) -> StoreError {
    StoreError::misconfigured(format!("{} {how}: remove it, or name another directory", path.display()))
}

pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(file) = open(path, File::options().read(true), "cannot read")? else { return Ok(None) };
    let mut text = Vec::new();
    match file.take(LONGEST + 1).read_to_end(&mut text) {
        Ok(length) if length as u64 > LONGEST => Err(misplaced(path, "is larger than any file of leaderrun")),
        Ok(_) => Ok(Some(text)),
        Err(error) => Err(explain("cannot read", path, &error)),
    }
}

/// Replaces `path` by a file with `text`, by way of `draft`, which only the caller uses.
pub(super) fn replace(path: &Path, draft: &Path, text: &[u8]) -> io::Result<()> {
    remove(draft)?;
    create(draft)?.write_all(text)?;
    fs::rename(draft, path)
}

pub(super) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the file if it is missing. None if the directory is missing.
pub(super) fn open_lock(path: &Path) -> Result<Option<File>, StoreError> {
    loop {
        if let Some(file) = open(path, File::options().read(true).write(true), "cannot open")? {
            close_to_other_users(path, &file);
            return Ok(Some(file));
        }
        match create_whole(path) {
            Ok(file) => return Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(explain("cannot create", path, &error)),
        }
    }
}

/// Makes a file that has the right mode as soon as others see it: with another mode they are denied, and leave.
fn create_whole(path: &Path) -> io::Result<File> {
    let directory = directory_of(path)?;
    if !is_shared(&directory) && directory.uid() == geteuid().as_raw() {
        return create(path);
    }
    let draft = beside(path, &format!(".{}", Session::random()?.as_str()));
    let file = create(&draft)?;
    let linked = fs::hard_link(&draft, path);
    let _ = fs::remove_file(&draft);
    linked.map(|()| file)
}

fn create(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    hand_over(&file, &directory_of(path)?)?;
    Ok(file)
}

/// Gives a new file to the owner of the directory: root's file in a user's directory goes to that user, and a member's
/// file in a group's directory goes to that group, whatever the member's primary group is.
fn hand_over(made: &File, directory: &Metadata) -> io::Result<()> {
    let now = made.metadata()?;
    let is_root = geteuid().is_root();
    let owner = (is_root && now.uid() != directory.uid()).then(|| Uid::from_raw(directory.uid()));
    let may_give = is_root || is_shared(directory);
    let group = (may_give && now.gid() != directory.gid()).then(|| Gid::from_raw(directory.gid()));
    if owner.is_some() || group.is_some() {
        // If we may not give it away, it stays ours alone.
        let _ = fchown(made, owner, group);
    }
    set_right_mode(made, directory)
}

fn set_right_mode(file: &File, directory: &Metadata) -> io::Result<()> {
    let now = file.metadata()?;
    let mode = right_mode(&now, directory);
    if mode == now.mode() & ALL_BITS { Ok(()) } else { file.set_permissions(Permissions::from_mode(mode)) }
}

fn right_mode(file: &Metadata, directory: &Metadata) -> u32 {
    let rights = if file.is_dir() { 0o7 } else { 0o6 };
    let is_the_groups = is_shared(directory) && file.gid() == directory.gid();
    let group = if is_the_groups { rights << 3 } else { 0 };
    let kept = if file.is_dir() { file.mode() & SET_GROUP } else { 0 };
    rights << 6 | group | kept
}

/// Closes a file to other users, who may be able to read it, for example after a restore from a backup. Files that are
/// not ours stay as they are, and so do files with a second name, which may not belong to a store at all. A user may
/// move root's files into a directory of theirs, and must not be able to read them afterwards. So a directory, or a
/// file with content, is closed but keeps its owner. Only an empty file, as our locks are, is handed over.
fn close_to_other_users(path: &Path, file: &File) {
    let (Ok(found), Ok(directory)) = (file.metadata(), directory_of(path)) else { return };
    let us = geteuid();
    let is_ours = found.uid() == us.as_raw() || us.is_root() && found.uid() == directory.uid();
    if found.is_file() && found.nlink() == 1 && found.len() == 0 && is_ours {
        let _ = hand_over(file, &directory);
    } else if is_ours && (found.is_dir() || found.nlink() == 1) {
        let mode = found.mode() & right_mode(&found, &directory);
        if mode != found.mode() & ALL_BITS {
            let _ = file.set_permissions(Permissions::from_mode(mode));
        }
    }
}

/// A group shares the directory if it shares the parent.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => set_right_mode(&open_directory(path)?, &directory_of(path)?),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => hand_over(&open_directory(path)?, &directory_of(path)?),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            close_to_other_users(path, &open_directory(path)?);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_DIRECTORY;
    File::options().read(true).custom_flags(flags.bits()).open(path)
}

fn directory_of(path: &Path) -> io::Result<Metadata> {
    fs::metadata(path.parent().unwrap_or(Path::new("/")))
}

pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut longer = OsString::from(path);
    longer.push(ending);
    longer.into()
}

/// Whether `path` names the file that is open as `file`.
pub(super) fn names(path: &Path, file: &File) -> Result<bool, StoreError> {
    let unknown =
        |error: io::Error| StoreError::not_applied(format!("cannot look at {}: {}", path.display(), in_words(&error)));
    let open = file.metadata().map_err(unknown)?;
    match fs::symlink_metadata(path) {
        Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(unknown(error)),
    }
}
