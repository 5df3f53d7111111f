//! A firewall before a server: it forgets connections, and neither end notices; or it holds one request, or loses its
//! answer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

/// What passes on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passes {
    All,
    Requests,
    Nothing,
}

/// Of the next request with a certain text in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It waits here until it is let go; nothing that follows on its connection ever passes.
    Hold,
    LoseAnswer,
}

/// Until the test ends.
#[derive(Clone)]
pub struct Gate {
    pub address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    rule: Option<(&'static str, Fate)>,
    lets_go: bool,
}

struct Connection {
    client: TcpStream,
    passes: Passes,
    /// By its client.
    is_open: bool,
}

impl Gate {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let gate = Self { address: listener.local_addr().expect("it is bound"), state: Arc::default() };
        let this = gate.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let again = |stream: &TcpStream| stream.try_clone().expect("a socket can be cloned");
                let connection = Connection { client: again(&client), passes: Passes::All, is_open: true };
                let mut state = this.state();
                let number = state.connections.len();
                state.connections.push(connection);
                let (forth, back) = (this.clone(), this.clone());
                let (answers, hears) = (again(&server), again(&client));
                thread::spawn(move || forth.pass_on(client, server, number, true));
                thread::spawn(move || back.pass_on(answers, hears, number, false));
            }
        });
        gate
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().expect("nobody panicked")
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, number: usize, is_forth: bool) {
        let passes = || {
            let passes = self.state().connections[number].passes;
            passes == Passes::All || is_forth && passes == Passes::Requests
        };
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let chunk = &buffer[..length];
            if is_forth && self.holds(number, chunk) {
                let _ = to.write_all(chunk);
                return;
            }
            if passes() && to.write_all(chunk).is_err() {
                break;
            }
        }
        if is_forth {
            self.state().connections[number].is_open = false;
        }
        if passes() {
            let _ = to.shutdown(Shutdown::Both);
        }
    }

    /// Returns true once something that was held is let go.
    fn holds(&self, number: usize, chunk: &[u8]) -> bool {
        let mut state = self.state();
        let Some((text, fate)) = state.rule else { return false };
        if !chunk.windows(text.len()).any(|window| window == text.as_bytes()) {
            return false;
        }
        state.rule = None;
        if fate == Fate::LoseAnswer {
            state.connections[number].passes = Passes::Requests;
            return false;
        }
        drop(self.state.1.wait_while(state, |state| !state.lets_go).expect("nobody panicked"));
        true
    }

    /// For the next request that has `text` in it.
    pub fn once(&self, text: &'static str, fate: Fate) {
        self.state().rule = Some((text, fate));
    }

    /// What is held arrives now.
    pub fn let_go(&self) {
        self.state().lets_go = true;
        self.state.1.notify_all();
    }

    fn set(&self, passes: Passes) {
        self.state().connections.iter_mut().for_each(|connection| connection.passes = passes);
    }

    /// Nothing passes any more on the connections that there are; their ends stay open.
    pub fn forget(&self) {
        self.set(Passes::Nothing);
    }

    /// The same, but what clients say still arrives.
    pub fn lose_answers(&self) {
        self.set(Passes::Requests);
    }

    /// Ends the connections that there are, as their clients see it. The server is told nothing.
    pub fn sever(&self) {
        self.forget();
        for Connection { client, .. } in &self.state().connections {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    /// How many connections clients have open.
    pub fn connections(&self) -> usize {
        self.state().connections.iter().filter(|connection| connection.is_open).count()
    }
}
