//! The table of mounts, as `/proc/self/mountinfo` shows it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Enough for the table of most machines. The kernel tells no size, and each further read costs it another pass.
const USUAL_SIZE: usize = 16 << 10;

/// A line of proc_pid_mountinfo(5): `36 35 98:0 ROOT POINT OPTIONS TAGS... - KIND SOURCE OPTIONS`.
#[derive(Debug)]
pub struct Mount<'a> {
    pub id: &'a str,
    /// `MAJOR:MINOR`.
    pub device: &'a str,
    /// The directory of the file system that is mounted.
    pub root: OsString,
    pub point: OsString,
    pub kind: &'a str,
    /// Those of the mount, and those of the file system.
    pub options: [&'a str; 2],
}

impl Mount<'_> {
    /// The directory in which this mount of a cgroup file system shows the cgroup `own`. None if it does not.
    pub fn directory_of(&self, own: &str) -> Option<PathBuf> {
        let below = Path::new(own).strip_prefix(Path::new(&self.root)).ok()?;
        // Joining an empty path would add a slash at the end.
        Some(if below.as_os_str().is_empty() { PathBuf::from(&self.point) } else { Path::new(&self.point).join(below) })
    }
}

/// Reads the table of this process.
pub fn read_table() -> Result<String, String> {
    const PATH: &str = "/proc/self/mountinfo";
    let mut table = String::with_capacity(USUAL_SIZE);
    let read = File::open(PATH).and_then(|mut file| file.read_to_string(&mut table));
    read.map(|_| table).map_err(|error| format!("{PATH}: {error}"))
}

/// The mounts in their order: a later one may hide an earlier one.
pub fn mounts(table: &str) -> impl DoubleEndedIterator<Item = Mount<'_>> {
    table.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let mut next = || fields.next();
        let id = next()?;
        let _parent = next()?;
        let device = next()?;
        let root = next()?;
        let point = next()?;
        let own = next()?;
        let mut fields = system.split(' ');
        let kind = fields.next()?;
        let options = [own, fields.nth(1).unwrap_or_default()];
        Some(Mount { id, device, root: unescape(root), point: unescape(point), kind, options })
    })
}

/// Undoes the kernel's escapes: it writes a space, a tab, a line break and a backslash as three octal digits.
fn unescape(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes)
}
