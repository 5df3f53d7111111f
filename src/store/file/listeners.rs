//! The listening sockets of this machine with names in the abstract namespace (unix(7)), and their users.
//!
//! The hazard: every user may take any free name, connect to any socket, and fill its queue. So this module asks the
//! kernel for names and users (sock_diag(7)). Where the kernel does not tell, a connection shows the user, and a socket
//! whose queue is full counts as a leader's, because to wait is safe.

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, UnixAddr, connect, getsockopt, recvfrom,
    sendto, socket, sockopt::PeerCredentials,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// From linux/sock_diag.h, linux/netlink.h, linux/unix_diag.h and net/tcp_states.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const UDIAG_SHOW_NAME: u32 = 0x1;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
/// Bound but not listening yet, or listening.
const STATES: u32 = 1 << 7 | 1 << 10;

const HEADER: usize = 16;
const ENTRY: usize = 16;
const BUFFER: usize = 32 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    User(u32),
    /// Its queue is full, and the kernel tells no more.
    Unknown,
}

/// Whether `counts` accepts one of the listeners whose names `wanted` accepts.
pub(super) fn any(wanted: impl Fn(&str) -> bool, mut counts: impl FnMut(Listener) -> bool) -> io::Result<bool> {
    let mut heed = |name: &[u8], user: Option<u32>| {
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| wanted(name)) else { return false };
        user.map(Listener::User).or_else(|| visit(name)).is_some_and(&mut counts)
    };
    match ask_kernel(&mut heed) {
        Ok(found) => Ok(found),
        Err(error) => {
            tracing::debug!("the kernel does not report the owners of sockets: {error}");
            let table = std::fs::read_to_string("/proc/net/unix")?;
            let mut names = table.lines().filter_map(|line| line.split(' ').next_back()?.strip_prefix('@'));
            Ok(names.any(|name| heed(name.as_bytes(), None)))
        }
    }
}

/// Stops at the first one for which `heed` returns true.
fn ask_kernel(heed: &mut dyn FnMut(&[u8], Option<u32>) -> bool) -> io::Result<bool> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let kernel = NetlinkAddr::new(0, 0);
    let diag = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag)?;
    sendto(diag.as_raw_fd(), &request(), &kernel, MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let (length, from) = recvfrom::<NetlinkAddr>(diag.as_raw_fd(), &mut buffer)?;
        // Other processes can send to this socket too.
        if from.is_none_or(|from| from.pid() != 0) {
            continue;
        }
        match read_answer(&buffer[..length], heed)? {
            Some(found) => return Ok(found),
            None if length == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => {}
        }
    }
}

fn request() -> Vec<u8> {
    let family = u8::try_from(libc::AF_UNIX).expect("small");
    let mut body = vec![family, 0, 0, 0];
    // States, inode, what to show, and a cookie of eight bytes.
    for word in [STATES, 0, UDIAG_SHOW_NAME | UDIAG_SHOW_UID, 0, 0] {
        body.extend(word.to_ne_bytes());
    }
    let length = u32::try_from(HEADER + body.len()).expect("small");
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    // A sequence number, and the sender, which the kernel knows.
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Some at the last message, or at the first one for which `heed` returns true.
fn read_answer(mut rest: &[u8], heed: &mut dyn FnMut(&[u8], Option<u32>) -> bool) -> io::Result<Option<bool>> {
    while let Some((header, _)) = rest.split_at_checked(HEADER) {
        let length = usize::try_from(word(header)).unwrap_or(usize::MAX);
        let message = rest.get(HEADER..length).ok_or(io::ErrorKind::InvalidData)?;
        match short(&header[4..]) {
            NLMSG_DONE => return Ok(Some(false)),
            NLMSG_ERROR => {
                let errno = message.get(..4).map_or(0, |bytes| word(bytes).cast_signed());
                return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
            }
            SOCK_DIAG_BY_FAMILY => {
                let (name, user) = read_entry(message.get(ENTRY..).unwrap_or_default());
                if name.is_some_and(|name| heed(name, user)) {
                    return Ok(Some(true));
                }
            }
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

/// The name of a socket, if it is in the abstract namespace, and its user.
fn read_entry(mut attributes: &[u8]) -> (Option<&[u8]>, Option<u32>) {
    let (mut name, mut user) = (None, None);
    while let Some((header, _)) = attributes.split_at_checked(4) {
        let length = usize::from(short(header));
        let Some(value) = attributes.get(4..length) else { break };
        match short(&header[2..]) {
            UNIX_DIAG_NAME => name = value.strip_prefix(b"\0"),
            UNIX_DIAG_UID => user = value.get(..4).map(word),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    (name, user)
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn short(bytes: &[u8]) -> u16 {
    u16::from_ne_bytes([bytes[0], bytes[1]])
}

/// None if nobody listens.
fn visit(name: &str) -> Option<Listener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    let address = UnixAddr::new_abstract(name.as_bytes()).ok()?;
    match connect(stream.as_raw_fd(), &address) {
        Ok(()) => {
            Some(getsockopt(&stream, PeerCredentials).map_or(Listener::Unknown, |peer| Listener::User(peer.uid())))
        }
        Err(Errno::ECONNREFUSED) => None,
        Err(_) => Some(Listener::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    fn listener(name: &str) -> UnixListener {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    fn listeners_on(name: &str) -> Vec<Listener> {
        let mut found = Vec::new();
        any(
            |other| other == name,
            |listener| {
                found.push(listener);
                false
            },
        )
        .unwrap();
        found
    }

    #[test]
    fn the_user_of_a_listener_with_a_full_queue_is_known() {
        let us = nix::unistd::geteuid().as_raw();
        let name = format!("leaderrun-test-{}", std::process::id());
        assert_eq!(listeners_on(&name), []);
        let _listener = listener(&name);
        assert_eq!(listeners_on(&name), [Listener::User(us)]);
        assert_eq!(visit(&name), Some(Listener::User(us)));
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let small = format!("{name}-small");
        let full = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        nix::sys::socket::bind(full.as_raw_fd(), &UnixAddr::new_abstract(small.as_bytes()).unwrap()).unwrap();
        assert_eq!(visit(&small), None);
        nix::sys::socket::listen(&full, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let _connected = std::os::unix::net::UnixStream::connect_addr(&SocketAddr::from_abstract_name(&small).unwrap());
        assert_eq!(visit(&small), Some(Listener::Unknown));
        assert_eq!(listeners_on(&small), [Listener::User(us)]);
    }

    #[test]
    fn a_million_answers_of_the_kernel_are_read_or_refused() {
        let entry = |name: &[u8], user: u32| {
            let mut attributes = u16::try_from(4 + name.len()).unwrap().to_ne_bytes().to_vec();
            attributes.extend(UNIX_DIAG_NAME.to_ne_bytes());
            attributes.extend(name);
            attributes.resize(attributes.len().next_multiple_of(4), 0);
            attributes.extend(8_u16.to_ne_bytes());
            attributes.extend(UNIX_DIAG_UID.to_ne_bytes());
            attributes.extend(user.to_ne_bytes());
            let mut message = u32::try_from(HEADER + ENTRY + attributes.len()).unwrap().to_ne_bytes().to_vec();
            message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            message.resize(HEADER + ENTRY, 0);
            message.extend(attributes);
            message
        };
        let two = [entry(b"\0leaderrun/x", 7), entry(b"/run/y", 8)].concat();
        let mut heard = Vec::new();
        let mut hear = |name: &[u8], user: Option<u32>| {
            heard.push((name.to_vec(), user));
            false
        };
        assert_eq!(read_answer(&two, &mut hear).unwrap(), None);
        assert_eq!(heard, [(b"leaderrun/x".to_vec(), Some(7))]);
        fuzz::bent("answer of sock_diag", &[&two, &request()], |text, _| {
            let read = read_answer(text, &mut |name, _| name.is_empty());
            let told = read.as_ref().map_err(ToString::to_string);
            (&told.copied()).into()
        });
    }
}
