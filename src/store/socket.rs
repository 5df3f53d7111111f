//! Where a server listens, and the two kinds of sockets to it.
//!
//! The hazard: a peer may be gone without a sign of it, and a name may have several addresses, of which the first is
//! silent.

use nix::sys::socket::{setsockopt, sockopt};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout};

/// After this silence a peer is asked whether it is there, and then again after each of some intervals.
const KEEPALIVE_SECONDS: u32 = 15;
const KEEPALIVE_INTERVAL_SECONDS: u32 = 5;
const KEEPALIVES: u32 = 3;

/// A connection, with or without TLS.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Bytes for S {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Tcp { name: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { name, port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Tcp { name, port } => write!(f, "{name}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Place {
    /// The name for TLS. As in the servers' own clients, traffic that does not leave this machine needs none.
    pub fn name(&self) -> Option<&str> {
        if let Self::Tcp { name, .. } = self { Some(name) } else { None }
    }

    pub async fn reach(&self, deadline: Instant) -> io::Result<Socket> {
        match self {
            Self::Tcp { name, port } => {
                let stream = reach(name, *port, deadline).await?;
                stream.set_nodelay(true)?;
                setsockopt(&stream, sockopt::KeepAlive, &true)?;
                setsockopt(&stream, sockopt::TcpKeepIdle, &KEEPALIVE_SECONDS)?;
                setsockopt(&stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_SECONDS)?;
                setsockopt(&stream, sockopt::TcpKeepCount, &KEEPALIVES)?;
                Ok(Socket::Tcp(stream))
            }
            Self::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
        }
    }
}

/// Tries all addresses of a name: there may be several, and the first may be silent. The caller bounds the last one.
async fn reach(name: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    // A name server that is silent is named, before the time for all of it is over.
    let patience = deadline.saturating_duration_since(Instant::now()) / 4 * 3;
    let unresolved = |_| {
        io::Error::new(
            io::ErrorKind::TimedOut,
            "its name was not resolved in time: check the name servers in /etc/resolv.conf",
        )
    };
    let addresses: Vec<_> = timeout(patience, lookup_host((name, port))).await.map_err(unresolved)??.collect();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "its name cannot be resolved");
    for (index, address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        let attempt = TcpStream::connect(address);
        let attempted = if left == 1 { Ok(attempt.await) } else { timeout(share, attempt).await };
        match attempted {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::Error::new(io::ErrorKind::TimedOut, "no answer in time"),
        }
    }
    Err(failure)
}

pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub fn local_port(&self) -> io::Result<Option<u16>> {
        match self {
            Self::Tcp(stream) => Ok(Some(stream.local_addr()?.port())),
            Self::Unix(_) => Ok(None),
        }
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut dyn Bytes> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream as &mut dyn Bytes),
            Self::Unix(stream) => Pin::new(stream as &mut dyn Bytes),
        }
    }

    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
        .try_clone_to_owned()
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
