//! Ports for servers that do not choose one themselves.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below those that the kernel hands out by itself.
const FIRST: u16 = 20_000;
const PLACES: u16 = 30;
const PORTS_OF_A_PLACE: u16 = 400;

/// A port that nobody listens on, and another one at each call. Test programs that run side by side have places of their
/// own, for a server listens some time after this was asked.
pub fn free_port() -> u16 {
    static PLACE: OnceLock<(u16, UnixListener)> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let (place, _) = PLACE.get_or_init(place);
    loop {
        let port = FIRST + place * PORTS_OF_A_PLACE + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS_OF_A_PLACE;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
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
