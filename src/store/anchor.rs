//! Keeps a connection open for as long as a tree lives, though the candidate is gone.
//!
//! The hazard: some locks live as long as a session of the server, and a session as long as its connection. Such a lock
//! would be free as soon as the candidate is killed, while the tree still runs. Therefore guard and backstop inherit an
//! *anchor*: one end of a socket pair, with a descriptor of the connection in its queue that is never read. The kernel
//! keeps the connection open while any process has that end. If the connection is lost and made again, the new
//! descriptor goes into the queue, so the anchor never becomes stale.

use crate::mutex::Mutex;
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The descriptors that guard and backstop inherit.
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

    /// Keeps this descriptor instead of the last one, without a gap in between.
    pub fn hold(&self, descriptor: &OwnedFd) -> nix::Result<()> {
        let mut queued = self.queued.lock();
        let (one_byte, raw) = ([IoSlice::new(b"k")], [descriptor.as_raw_fd()]);
        let rights = [ControlMessage::ScmRights(&raw)];
        sendmsg::<()>(self.put.as_raw_fd(), &one_byte, &rights, MsgFlags::MSG_DONTWAIT, None)?;
        *queued += 1;
        while *queued > 1 {
            self.take_out(&mut queued);
        }
        Ok(())
    }

    /// What guard and backstop inherit.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.keep.as_fd()
    }

    pub fn let_go(&self) {
        let mut queued = self.queued.lock();
        while *queued > 0 {
            self.take_out(&mut queued);
        }
    }

    /// Takes one message out of the queue. It is read without room for its descriptor, so the kernel closes that.
    fn take_out(&self, queued: &mut usize) {
        let _ = recv(self.keep.as_raw_fd(), &mut [0; 1], MsgFlags::MSG_DONTWAIT);
        *queued -= 1;
    }
}
