//! Refuses a directory on a network file system, which may grant one lock to two machines, or lose it; and on one of the
//! kernel, where nobody can make a file.

use crate::mounts::{mounts, read_table};
use crate::store::StoreError;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// File systems whose locks other machines see late or not at all, as `/proc/self/mountinfo` names them.
const NETWORKED: &str = "9p afs beegfs ceph cifs coda fuse.blobfuse2 fuse.ceph fuse.gcsfuse fuse.glusterfs fuse.juicefs \
    fuse.mfs fuse.rclone fuse.s3fs fuse.sshfs fuse.vmhgfs-fuse gfs2 gpfs lustre nfs nfs4 ocfs2 orangefs pvfs2 smb3 smbfs \
    vboxsf virtiofs";

const KERNELS: [&str; 4] = ["proc", "sysfs", "cgroup", "cgroup2"];

fn is_networked(kind: &str) -> bool {
    NETWORKED.split_whitespace().any(|networked| networked == kind)
}

pub fn refuse_file_system(directory: &Path) -> Result<(), StoreError> {
    let Ok(device) = fs::metadata(directory).map(|metadata| metadata.dev()) else { return Ok(()) };
    let Ok(table) = read_table() else { return Ok(()) };
    match file_system(&table, device) {
        Some(kind) if is_networked(kind) => Err(StoreError::misconfigured(format!(
            "{} is on a network file system ({kind}), whose locks cannot be relied on: \
             name a local directory, or a store made for many machines",
            directory.display()
        ))),
        Some(kind) if KERNELS.contains(&kind) => Err(StoreError::misconfigured(format!(
            "cannot create a file in {}: name another directory with --store file:DIR",
            directory.display()
        ))),
        Some(_) | None => Ok(()),
    }
}

fn file_system(table: &str, device: u64) -> Option<&str> {
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    mounts(table).find(|mount| mount.device == wanted).map(|mount| mount.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_is_known_by_its_mount() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:51 / /srv rw shared:9 - nfs4 host:/x rw\n";
        assert_eq!(file_system(mounts, libc::makedev(8, 1)), Some("ext4"));
        assert_eq!(file_system(mounts, libc::makedev(0, 51)), Some("nfs4"));
        assert_eq!(file_system(mounts, libc::makedev(0, 52)), None);
        assert!(is_networked("nfs4") && !is_networked("ext4"));
    }
}
