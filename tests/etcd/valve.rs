//! A TCP proxy that knows one request from the others by what is written in it, and has it arrive late, or its answer
//! never.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The request waits here until it is let go; nothing that follows on its connection ever passes.
    Hold,
    /// The request passes, and nothing ever comes back on its connection.
    LoseAnswer,
}

/// In every put of a document that names a leader.
pub const CLAIM: &str = "since_ms";

#[derive(Clone)]
pub struct Valve {
    pub address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    rule: Option<(&'static str, Fate)>,
    open: bool,
}

impl Valve {
    pub fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let valve = Self { address: listener.local_addr().expect("it is bound"), state: Arc::default() };
        let this = valve.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let this = this.clone();
                thread::spawn(move || this.serve(&client, target));
            }
        });
        valve
    }

    /// For the next request that has `marker` in it.
    pub fn once(&self, marker: &'static str, fate: Fate) {
        self.state.0.lock().expect("nobody panicked").rule = Some((marker, fate));
    }

    /// What was held arrives now.
    pub fn let_go(&self) {
        self.state.0.lock().expect("nobody panicked").open = true;
        self.state.1.notify_all();
    }

    fn serve(&self, client: &TcpStream, target: SocketAddr) {
        let Ok(server) = TcpStream::connect(target) else { return };
        let deaf = Arc::new(Mutex::new(false));
        let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let deaf_too = Arc::clone(&deaf);
        thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(length @ 1..) = back_from.read(&mut buffer) {
                if *deaf_too.lock().expect("nobody panicked") {
                    continue;
                }
                if back_to.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
            let _ = back_to.shutdown(std::net::Shutdown::Both);
        });
        let (mut from, mut to) = (client.try_clone().unwrap(), server);
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let chunk = &buffer[..length];
            match self.fate(chunk) {
                Some(Fate::Hold) => {
                    let state = self.state.0.lock().expect("nobody panicked");
                    drop(self.state.1.wait_while(state, |state| !state.open).expect("nobody panicked"));
                    let _ = to.write_all(chunk);
                    // Open for as long as the program, so that the server does not see that nobody waits.
                    std::mem::forget(to);
                    return;
                }
                Some(Fate::LoseAnswer) => *deaf.lock().expect("nobody panicked") = true,
                None => {}
            }
            if to.write_all(chunk).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    }

    fn fate(&self, chunk: &[u8]) -> Option<Fate> {
        let mut state = self.state.0.lock().expect("nobody panicked");
        let (marker, fate) = state.rule?;
        if !chunk.windows(marker.len()).any(|window| window == marker.as_bytes()) {
            return None;
        }
        state.rule = None;
        Some(fate)
    }
}
