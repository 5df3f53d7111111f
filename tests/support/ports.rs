//! Ports for servers that do not choose one themselves.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that nobody listens on, and that is given to nobody else: below those that the kernel hands out by itself,
/// another one at each call, and in another place for each test program.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let place = u16::try_from(std::process::id() % 120).expect("small") * 100;
    loop {
        let port = 20_000 + (place + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
