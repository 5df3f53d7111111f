//! Keeps a connection open for as long as a tree lives, though the candidate is gone.
//!
//! The hazard: some locks live as long as a session of the server, and a session as long as its connection. Such a lock
//! would be free as soon as the candidate is killed, while the tree still runs. Therefore guard and backstop inherit an
//! *anchor*: one end of a socket pair, with a descriptor of the connection in its queue that is never read. The kernel
//! keeps the connection open while any process has that end. If the connection is lost and made again, the new
//! descriptor goes into the queue, so the anchor never becomes stale.
//!
//! The opposite hazard: a frozen candidate keeps its connection, and so the lock, long after its tree is dead. So the
//! backstop takes the descriptor out of the queue then, and shuts the connection down ([`cut`]): the server sees it
//! end, even if other processes still have it open.

use crate::sys;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, recv, recvmsg, sendmsg,
    shutdown, socketpair,
};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// The descriptors that guard and backstop inherit.
#[derive(Debug)]
pub struct Anchor {
    /// The end that they have too. It is read only to empty it.
    keep: OwnedFd,
    put: OwnedFd,
    /// How many descriptors wait in the queue.
    queued: Mutex<usize>,
}

impl Anchor {
    pub fn new() -> nix::Result<Self> {
        let (keep, put) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok(Self { keep, put, queued: Mutex::new(0) })
    }

    /// Keeps these descriptors instead of the last ones, without a gap in between.
    pub fn hold<'a>(&self, descriptors: impl IntoIterator<Item = &'a OwnedFd>) -> nix::Result<()> {
        let mut queued = self.queued.lock();
        let former = *queued;
        for descriptor in descriptors {
            let (one_byte, raw) = ([IoSlice::new(b"k")], [descriptor.as_raw_fd()]);
            let rights = [ControlMessage::ScmRights(&raw)];
            sendmsg::<()>(self.put.as_raw_fd(), &one_byte, &rights, MsgFlags::MSG_DONTWAIT, None)?;
            *queued += 1;
        }
        // Takes messages out of the queue, without room for their descriptors: the kernel closes those.
        for _ in 0..former {
            let _ = recv(self.keep.as_raw_fd(), &mut [0; 1], MsgFlags::MSG_DONTWAIT);
            *queued -= 1;
        }
        Ok(())
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.keep.as_fd()
    }
}

/// Shuts the connections down whose descriptors wait in this anchor. The tree must be dead.
pub fn cut(anchor: BorrowedFd<'_>) {
    loop {
        let (mut byte, mut space) = ([0; 1], nix::cmsg_space!(RawFd));
        let mut buffer = [IoSliceMut::new(&mut byte)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let Ok(message) = recvmsg::<()>(anchor.as_raw_fd(), &mut buffer, Some(&mut space), flags) else { return };
        // The end of the other side: the candidate is gone, and its connections with it.
        if message.bytes == 0 {
            return;
        }
        let Ok(parts) = message.cmsgs() else { continue };
        for part in parts {
            let ControlMessageOwned::ScmRights(numbers) = part else { continue };
            for connection in numbers.into_iter().filter_map(|number| sys::adopt(number).ok()) {
                let _ = shutdown(connection.as_raw_fd(), Shutdown::Both);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn the_connection_of_the_last_hold_ends_for_the_server_though_the_candidate_keeps_it_open() {
        let anchor = Anchor::new().unwrap();
        let pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
        for (ours, servers) in &pairs {
            servers.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            anchor.hold(&[OwnedFd::from(ours.try_clone().unwrap())]).unwrap();
        }
        let [(_former, mut formers), (_ours, mut servers)] = pairs;
        assert!(servers.read(&mut [0]).is_err(), "it is open");
        cut(anchor.descriptor());
        assert_eq!(servers.read(&mut [0]).unwrap(), 0);
        assert!(formers.read(&mut [0]).is_err(), "the former one was given up before");
        cut(anchor.descriptor());
        anchor.hold([]).unwrap();
    }
}
