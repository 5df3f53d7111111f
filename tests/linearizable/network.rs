//! The network between one candidate and the server: a TCP proxy that loses, delays and holds what is said on it.
//!
//! The hazard that it makes: a request may arrive after its client has given it up and has done other things. So what a
//! connection has taken from its client is delivered, however late, also when the client has closed it.

use super::support::proxy::RUNTIME;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::sleep;

/// What happens to what is said next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
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

pub struct Network {
    pub address: SocketAddr,
    mischief: Arc<Mutex<Mischief>>,
    accepting: tokio::task::AbortHandle,
}

impl Network {
    pub fn to(target: SocketAddr) -> Self {
        let (sender, bound) = mpsc::channel();
        let mischief = Arc::new(Mutex::new(Mischief::None));
        let shared = Arc::clone(&mischief);
        let accepting = RUNTIME.spawn(async move {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("loopback has a free port");
            sender.send(listener.local_addr().expect("it is bound")).expect("it is waited for");
            loop {
                if let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(serve(client, target, Arc::clone(&shared)));
                }
            }
        });
        let address = bound.recv().expect("the runtime runs");
        Self { address, mischief, accepting: accepting.abort_handle() }
    }

    pub fn set(&self, mischief: Mischief) {
        *self.mischief.lock().expect("nobody panicked") = mischief;
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

type Shared = Arc<Mutex<Mischief>>;

fn now(mischief: &Shared) -> Mischief {
    *mischief.lock().expect("nobody panicked")
}

/// Whether that was to be done, which is done once.
fn takes(mischief: &Shared, wanted: Mischief) -> bool {
    let mut mischief = mischief.lock().expect("nobody panicked");
    let is_wanted = *mischief == wanted;
    if is_wanted {
        *mischief = Mischief::None;
    }
    is_wanted
}

async fn serve(client: TcpStream, target: SocketAddr, mischief: Shared) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // socket(7), SO_LINGER: closing sends RST, which the client notices at once.
    let _ = client.set_zero_linger();
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let reset = Arc::new(Notify::new());
    let down = tokio::spawn(answers(from_server, to_client, Arc::clone(&mischief), Arc::clone(&reset)));
    tokio::select! {
        () = requests(from_client, to_server, mischief) => {}
        () = reset.notified() => {}
    }
    down.abort();
}

/// Returns when the server has heard all of it, or the connection is to be reset.
async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mischief: Shared) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        match now(&mischief) {
            Mischief::Delay(delay) | Mischief::HoldRequests(delay) => sleep(delay).await,
            Mischief::LoseRequest if takes(&mischief, Mischief::LoseRequest) => return,
            Mischief::None | Mischief::LoseAnswer | Mischief::LoseRequest => {}
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
    // A server that is told at once that its client is gone may not look at what came before.
    sleep(Duration::from_millis(20)).await;
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mischief: Shared, reset: Arc<Notify>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if takes(&mischief, Mischief::LoseAnswer) {
            reset.notify_one();
            return;
        }
        if let Mischief::Delay(delay) = now(&mischief) {
            sleep(delay).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            // The client is gone. What the server says to it is read, so that it hears all of what it was told.
            while from.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
            return;
        }
    }
    reset.notify_one();
}
