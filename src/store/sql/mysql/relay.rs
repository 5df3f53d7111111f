//! Between the library and the server: the socket and TLS.
//!
//! The library opens its own sockets, and its TLS knows fewer modes than ours. So it connects to a socket of this
//! process, and its bytes are passed on: packet by packet during the login, because TLS begins in the middle of it, and
//! then as they are.
//!
//! The hazards:
//!
//! - The library takes that socket for a safe one, and sends a password in the clear if the server asks for it. So over
//!   a network without TLS, a login in which the server may ask for it fails.
//! - Another process may find the socket. So its name is random, and only this process is accepted.
//! - Another kind of server may send anything. So a login is short, and every byte is counted (`allowance`).

use super::closed;
use crate::store::StoreError;
use crate::store::allowance::{Allowance, Counted, MOST};
use crate::store::lease_store::documents::random_name;
use crate::store::socket::{Bytes, Socket};
use crate::store::sql::failure::{Site, Trouble};
use crate::store::tls_mode::TlsMode;
use rustls::pki_types::ServerName;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use tokio_rustls::TlsConnector;

const LONGEST: usize = 1 << 16;
const TLS: u32 = 1 << 11;
/// The part of a login that a client sends before TLS.
const BEFORE_TLS: usize = 32;
const FAILED: u8 = 255;
const WELCOME: u8 = 0;
/// How a packet of `caching_sha2_password` begins if the server knows the password from an earlier login, or has to see
/// it.
const KNOWN: [u8; 2] = [1, 3];
const UNKNOWN: [u8; 2] = [1, 4];

pub struct Greeted {
    stream: Box<dyn Bytes>,
    greeting: Packet,
    is_remote: bool,
    takes_tls: bool,
}

struct Packet {
    sequence: u8,
    body: Vec<u8>,
}

impl Packet {
    async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Self, Trouble> {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        let [low, middle, high, sequence] = head;
        let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
        if length > LONGEST {
            return Err(Trouble::Garbled);
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Ok(Self { sequence, body })
    }

    async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let [low, middle, high, _] = u32::try_from(self.body.len()).unwrap_or(0).to_le_bytes();
        stream.write_all(&[&[low, middle, high, self.sequence], &self.body[..]].concat()).await?;
        stream.flush().await
    }

    fn is_failure(&self) -> bool {
        self.body.first() == Some(&FAILED)
    }

    fn later(self, by: u8) -> Self {
        Self { sequence: self.sequence.wrapping_add(by), ..self }
    }
}

impl Greeted {
    pub async fn by(socket: Socket, mode: TlsMode, site: &Site) -> Result<Self, StoreError> {
        let is_remote = matches!(socket, Socket::Tcp(_));
        let mut stream: Box<dyn Bytes> = Box::new(Counted::new(socket, &Allowance::of(MOST)));
        let greeting = Packet::read(&mut stream).await.map_err(|trouble| site.unconnected(trouble))?;
        let mut takes_tls = false;
        if !greeting.is_failure() {
            let offers = capabilities(&greeting.body).ok_or_else(|| site.unconnected(Trouble::Garbled))? & TLS != 0;
            // As in MySQL's clients, what does not leave this machine needs no TLS.
            let wants = is_remote && mode != TlsMode::Disable;
            if wants && !offers && mode != TlsMode::Prefer {
                return Err(site.without_tls("ssl-mode=PREFERRED"));
            }
            takes_tls = wants && offers;
        }
        Ok(Self { stream, greeting, is_remote, takes_tls })
    }

    /// Ends with the connection. `tls`: with the name of the server.
    pub async fn relay(mut self, door: Door, tls: (TlsConnector, String), site: Site) -> Trouble {
        let passed = async {
            let mut library = self.log_in(door, tls, &site).await?;
            Ok(copy_bidirectional(&mut library, &mut self.stream).await?)
        };
        passed.await.map_or_else(|trouble| trouble, |_| closed())
    }

    async fn log_in(
        &mut self,
        door: Door,
        (tls, name): (TlsConnector, String),
        site: &Site,
    ) -> Result<UnixStream, Trouble> {
        let mut library = door.opened().await?;
        // The library does not know of the packet that asks for TLS.
        let more = u8::from(self.takes_tls);
        self.greeting.write(&mut library).await?;
        if !self.greeting.is_failure() {
            let mut packet = Packet::read(&mut library).await?;
            if self.takes_tls {
                self.encrypt(&mut packet, &tls, name).await?;
            }
            packet.later(more).write(&mut self.stream).await?;
        }
        loop {
            let packet = Packet::read(&mut self.stream).await?.later(0_u8.wrapping_sub(more));
            let is_known = packet.body.starts_with(&KNOWN);
            if self.is_remote && !self.takes_tls && (is_known || packet.body.starts_with(&UNKNOWN)) {
                return Err(Trouble::Unfit(exposed(site)));
            }
            packet.write(&mut library).await?;
            match packet.body.first() {
                Some(&WELCOME) => return Ok(library),
                // The library does not answer these. What follows a failure still belongs to the login.
                Some(&FAILED) => {}
                _ if is_known => {}
                _ => Packet::read(&mut library).await?.later(more).write(&mut self.stream).await?,
            }
        }
    }

    async fn encrypt(&mut self, packet: &mut Packet, tls: &TlsConnector, name: String) -> Result<(), Trouble> {
        let Some(shown) = packet.body.get_mut(..BEFORE_TLS) else {
            return Err(Trouble::Garbled);
        };
        for (byte, flag) in shown.iter_mut().zip(TLS.to_le_bytes()) {
            *byte |= flag;
        }
        Packet { sequence: packet.sequence, body: shown.to_vec() }.write(&mut self.stream).await?;
        let name = ServerName::try_from(name).map_err(|error| {
            Trouble::Unfit(StoreError::misconfigured(format!("the host is not a valid name for TLS: {error}")))
        })?;
        let plain = std::mem::replace(&mut self.stream, Box::new(tokio::io::empty()));
        self.stream = Box::new(tls.connect(name, plain).await?);
        Ok(())
    }
}

/// The login would show a password over a network without TLS, now or another time.
fn exposed(site: &Site) -> StoreError {
    StoreError::misconfigured(format!(
        "{} has to see the password of user {} each time it has forgotten it (caching_sha2_password), and the \
         connection is not encrypted: use TLS, with ssl-mode=REQUIRED, or a unix socket",
        site.server, site.user
    ))
}

/// None if the greeting is not MySQL's.
fn capabilities(greeting: &[u8]) -> Option<u32> {
    let (&version, rest) = greeting.split_first()?;
    let name = rest.iter().position(|&byte| byte == 0).filter(|_| version == 10)?;
    // Behind the name: a number, half of the scramble, and a zero; then the lower half, a character set, and a status.
    let rest = rest.get(name + 1 + 4 + 8 + 1..)?;
    Some(u32::from_le_bytes([*rest.first()?, *rest.get(1)?, *rest.get(5)?, *rest.get(6)?]))
}

pub struct Door {
    listener: UnixListener,
    /// In the abstract namespace: it begins with a zero byte.
    pub path: String,
}

impl Door {
    pub fn new() -> Result<Self, StoreError> {
        let path = format!("\0{}", random_name()?);
        let listener = UnixListener::bind(&path)
            .map_err(|error| StoreError::not_applied(format!("cannot create a socket: {error}")).because(&error))?;
        Ok(Self { listener, path })
    }

    async fn opened(self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            if stream.peer_cred()?.pid() == i32::try_from(std::process::id()).ok() {
                return Ok(stream);
            }
        }
    }
}
