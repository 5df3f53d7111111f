//! The network before a server: a TCP proxy that forgets connections, and neither end notices; that holds one request, or
//! loses its answer; and that delays, holds and loses what is said on it.
//!
//! The hazard that it makes: a request may arrive after its client has given it up and has done other things. So what a
//! connection has taken from its client is delivered, however late, also when the client has closed it.

use super::proxy::RUNTIME;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

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

/// What happens to what is said next, on any connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mischief {
    #[default]
    None,
    /// Each message takes that much longer, in both directions.
    Delay(Duration),
    /// The next request arrives, and its answer does not: the connection is reset.
    LoseAnswer,
    /// The next request does not arrive: the connection is reset.
    LoseRequest,
    /// Requests arrive that much later, whatever becomes of their client.
    HoldRequests(Duration),
}

/// Until the test ends.
#[derive(Clone)]
pub struct Gate {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    mischief: Mischief,
    rule: Option<(&'static str, Fate)>,
    lets_go: watch::Sender<bool>,
}

struct Connection {
    passes: Passes,
    is_open: bool,
    severed: Arc<Notify>,
}

impl Gate {
    pub fn to(server: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        listener.set_nonblocking(true).expect("it is a socket");
        let gate = Self { address: listener.local_addr().expect("it is bound"), state: Arc::default() };
        let this = gate.clone();
        RUNTIME.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("the runtime runs");
            loop {
                if let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(this.clone().serve(client, server));
                }
            }
        });
        gate
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked")
    }

    async fn serve(self, mut client: TcpStream, server: SocketAddr) {
        let Ok(mut server) = TcpStream::connect(server).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let severed = Arc::new(Notify::new());
        let number = self.open(Connection { passes: Passes::All, is_open: true, severed: Arc::clone(&severed) });
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let is_severed = tokio::select! {
            () = self.requests(number, from_client, to_server) => false,
            () = self.answers(number, from_server, to_client) => false,
            () = severed.notified() => true,
        };
        self.state().connections[number].is_open = false;
        if is_severed {
            drop(client);
            // The server is told nothing.
            pending::<()>().await;
        }
    }

    fn open(&self, connection: Connection) -> usize {
        let mut state = self.state();
        state.connections.push(connection);
        state.connections.len() - 1
    }

    /// Returns when the connection is to end at both ends.
    async fn requests(&self, number: usize, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let chunk = &buffer[..length];
            let mischief = self.state().mischief;
            match mischief {
                Mischief::Delay(delay) | Mischief::HoldRequests(delay) => sleep(delay).await,
                Mischief::LoseRequest if self.takes(Mischief::LoseRequest) => return reset(from.as_ref()),
                Mischief::None | Mischief::LoseAnswer | Mischief::LoseRequest => {}
            }
            if self.holds(number, chunk) {
                let mut lets_go = self.state().lets_go.subscribe();
                lets_go.wait_for(|lets_go| *lets_go).await.expect("the sender lives");
                let _ = to.write_all(chunk).await;
                return pending().await;
            }
            if self.passes(number, true) && to.write_all(chunk).await.is_err() {
                break;
            }
        }
        self.state().connections[number].is_open = false;
        if !self.passes(number, true) {
            return pending().await;
        }
        let _ = to.shutdown().await;
        // A server that is told at once that its client is gone may not look at what came before.
        sleep(Duration::from_millis(20)).await;
    }

    async fn answers(&self, number: usize, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if self.takes(Mischief::LoseAnswer) {
                return reset(to.as_ref());
            }
            let mischief = self.state().mischief;
            if let Mischief::Delay(delay) = mischief {
                sleep(delay).await;
            }
            if self.passes(number, false) && to.write_all(&buffer[..length]).await.is_err() {
                // The client is gone. What the server says to it is read, so that it hears all of what it was told.
                while from.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
                return;
            }
        }
        if !self.passes(number, false) {
            pending::<()>().await;
        }
    }

    fn passes(&self, number: usize, is_request: bool) -> bool {
        let passes = self.state().connections[number].passes;
        passes == Passes::All || is_request && passes == Passes::Requests
    }

    /// Whether that was to be done, which is done once.
    fn takes(&self, wanted: Mischief) -> bool {
        let mut state = self.state();
        let is_wanted = state.mischief == wanted;
        if is_wanted {
            state.mischief = Mischief::None;
        }
        is_wanted
    }

    /// Whether this waits until it is let go.
    fn holds(&self, number: usize, chunk: &[u8]) -> bool {
        let mut state = self.state();
        let Some((text, fate)) = state.rule else { return false };
        if !chunk.windows(text.len()).any(|window| window == text.as_bytes()) {
            return false;
        }
        state.rule = None;
        if fate == Fate::LoseAnswer {
            state.connections[number].passes = Passes::Requests;
        }
        fate == Fate::Hold
    }

    /// From now on.
    pub fn set(&self, mischief: Mischief) {
        self.state().mischief = mischief;
    }

    /// Whether what was set to happen once has happened.
    pub fn is_fair(&self) -> bool {
        self.state().mischief == Mischief::None
    }

    /// For the next request that has `text` in it.
    pub fn once(&self, text: &'static str, fate: Fate) {
        self.state().rule = Some((text, fate));
    }

    pub fn let_go(&self) {
        self.state().lets_go.send_replace(true);
    }

    fn let_pass(&self, passes: Passes) {
        self.state().connections.iter_mut().for_each(|connection| connection.passes = passes);
    }

    /// Nothing passes any more on the connections that there are; their ends stay open.
    pub fn forget(&self) {
        self.let_pass(Passes::Nothing);
    }

    /// The same, but what clients say still arrives.
    pub fn lose_answers(&self) {
        self.let_pass(Passes::Requests);
    }

    /// Ends the connections that there are, as their clients see it. The server is told nothing.
    pub fn sever(&self) {
        self.forget();
        self.state().connections.iter().for_each(|connection| connection.severed.notify_one());
    }

    pub fn connections(&self) -> usize {
        self.state().connections.iter().filter(|connection| connection.is_open).count()
    }
}

/// socket(7), SO_LINGER: closing sends RST, which the client notices at once.
fn reset(client: &TcpStream) {
    let _ = client.set_zero_linger();
}
