//! The file by which a tree shows when it was alive: `struct life` of `programs/life.h`.

use crate::support::prelude::*;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// More than `struct life` takes.
const BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Beginning,
    Attacking,
    /// The system did not let it: what is left is a process like any other.
    Denied,
}

pub struct Life {
    path: PathBuf,
    file: File,
}

impl Life {
    /// One that has not begun. Everybody may write it.
    pub fn at(path: PathBuf) -> Self {
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file can be made");
        file.set_len(BYTES).expect("it can grow");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("it is ours");
        Self { path, file }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn word(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, index * 8).expect("it is long enough");
        u64::from_ne_bytes(bytes)
    }

    /// When it was seen alive first.
    pub fn first(&self) -> Option<BootInstant> {
        Some(self.word(0)).filter(|&at| at > 0).map(BootInstant::from_nanos)
    }

    /// When it was seen alive last.
    pub fn last(&self) -> BootInstant {
        BootInstant::from_nanos(self.word(1))
    }

    pub fn until(&self) -> BootInstant {
        BootInstant::from_nanos(self.word(2))
    }

    pub fn go(&self) {
        self.file.write_all_at(&1_u64.to_ne_bytes(), 3 * 8).expect("it can be written");
    }

    pub fn progress(&self) -> Progress {
        match self.word(4) {
            0 => Progress::Beginning,
            1 => Progress::Attacking,
            _ => Progress::Denied,
        }
    }

    pub fn births(&self) -> u64 {
        self.word(5)
    }

    /// No process of it is left, wherever it may be: the kernel says so, for each of them has the lock.
    pub fn is_over(&self) -> bool {
        let again = File::open(&self.path).expect("it is there");
        Flock::lock(again, FlockArg::LockExclusiveNonblock).is_ok()
    }
}
