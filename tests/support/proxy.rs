//! A TCP proxy that misbehaves on demand: one between each candidate and its store.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    Fair,
    /// Nothing passes in either direction, and nobody is told.
    BlackHole,
    /// Every chunk is held for so long, in each direction for half of it.
    Slow(Duration),
    /// Connections are reset as soon as something is said on them.
    Storm,
}

#[derive(Clone)]
pub struct Proxy {
    pub address: SocketAddr,
    fault: Arc<Mutex<NetworkFault>>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let proxy = Self { address, fault: Arc::new(Mutex::new(NetworkFault::Fair)) };
        let this = proxy.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let this = this.clone();
                thread::spawn(move || this.serve(client, target));
            }
        });
        proxy
    }

    pub fn set(&self, fault: NetworkFault) {
        *self.fault.lock().expect("nobody panicked") = fault;
    }

    fn fault(&self) -> NetworkFault {
        *self.fault.lock().expect("nobody panicked")
    }

    fn serve(&self, client: TcpStream, target: SocketAddr) {
        // A black hole accepts, as far as the client's kernel can tell.
        let server = loop {
            match self.fault() {
                NetworkFault::BlackHole => thread::sleep(Duration::from_millis(10)),
                NetworkFault::Storm => return reset(&client),
                NetworkFault::Fair | NetworkFault::Slow(_) => match TcpStream::connect(target) {
                    Ok(server) => break server,
                    Err(_) => return reset(&client),
                },
            }
        };
        let (client_again, server_again) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let this = self.clone();
        let answers = thread::spawn(move || this.pump(server_again, client_again));
        self.pump(client, server);
        let _ = answers.join();
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let source = from.try_clone().unwrap();
        let (arrived, arrivals) = mpsc::channel();
        // Reading goes on while a chunk is held, so that several chunks of one message are not held one after another.
        let reader = thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            loop {
                match from.read(&mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(length) if arrived.send((Instant::now(), buffer[..length].to_vec())).is_err() => return,
                    Ok(_) => {}
                }
            }
        });
        for (at, chunk) in arrivals {
            if let NetworkFault::Slow(latency) = self.fault() {
                thread::sleep((at + latency / 2).saturating_duration_since(Instant::now()));
            }
            while self.fault() == NetworkFault::BlackHole {
                thread::sleep(Duration::from_millis(10));
            }
            if self.fault() == NetworkFault::Storm {
                reset(&source);
                reset(&to);
                break;
            }
            if to.write_all(&chunk).is_err() {
                reset(&source);
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        let _ = reader.join();
    }
}

/// Closes with RST instead of FIN, whoever else has a handle.
fn reset(stream: &TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt::Linger};
    let _ = setsockopt(stream, Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
    let _ = stream.as_raw_fd();
    let _ = stream.shutdown(Shutdown::Both);
}
