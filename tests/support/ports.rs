//! Ports for servers that do not choose one themselves.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below those that the kernel hands out by itself. They are as many as [`FAR`]: no neighbour of one belongs to another place.
const FIRST: u16 = 20_000;
const PLACES: u16 = 25;
const PORTS_OF_A_PLACE: u16 = 400;
/// SeaweedFS takes two ports at a time, which are so far apart.
pub const FAR: u16 = PLACES * PORTS_OF_A_PLACE;

/// A port that nobody listens on, and another one at each call. Test programs that run side by side have places of their
/// own, for a server listens some time after this was asked.
pub fn free_port() -> u16 {
    static PLACE: OnceLock<(u16, UnixListener)> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let (place, _) = PLACE.get_or_init(place);
    loop {
        let port = FIRST + place * PORTS_OF_A_PLACE + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS_OF_A_PLACE;
        if is_free(port) {
            return port;
        }
    }
}

/// Does not listen there: what another thread starts at this instant has all open files, until it is another program, and
/// whoever connected to it would take it for the server.
pub fn is_free(port: u16) -> bool {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    setsockopt(&socket, sockopt::ReuseAddr, &true).expect("a socket has this option");
    bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).is_ok()
}

/// One that no other process has. The name of the socket is held until this process ends.
fn place() -> (u16, UnixListener) {
    // Not leaderrun-*, for those are the sockets of candidates.
    let first = u16::try_from(std::process::id() % u32::from(PLACES)).expect("small");
    let places = (first..PLACES).chain(0..first);
    let mut held = places.filter_map(|place| {
        let name = SocketAddr::from_abstract_name(format!("ports-of-tests-{place}")).expect("a short name");
        Some((place, UnixListener::bind_addr(&name).ok()?))
    });
    held.next().expect("fewer test programs run than there are places")
}
