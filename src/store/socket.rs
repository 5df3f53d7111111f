//! The two kinds of sockets that a server listens on.
//!
//! The hazard: a peer may be gone without a sign of it, and a name may have several addresses, of which the first is
//! silent.

use nix::sys::socket::{setsockopt, sockopt};
use std::io;
#[cfg(feature = "postgres")]
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout};

/// A peer that is gone is noticed after four of these.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVES: u32 = 3;

/// Tries all addresses of a name: there may be several, and the first may be silent.
pub async fn reach(name: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host((name, port)).await?.collect();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for (index, address) in addresses.iter().enumerate() {
        let others = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(Instant::now()) / others;
        match timeout(share, TcpStream::connect(address)).await {
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
    /// Turns keepalive on, and the delay of small packets off.
    pub fn prepare(&self) -> io::Result<()> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        let seconds = u32::try_from(KEEPALIVE.as_secs()).expect("some seconds");
        stream.set_nodelay(true)?;
        setsockopt(stream, sockopt::KeepAlive, &true)?;
        setsockopt(stream, sockopt::TcpKeepIdle, &seconds)?;
        setsockopt(stream, sockopt::TcpKeepInterval, &seconds)?;
        setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVES)?;
        Ok(())
    }

    #[cfg(feature = "postgres")]
    pub fn local_port(&self) -> io::Result<Option<u16>> {
        match self {
            Self::Tcp(stream) => Ok(Some(stream.local_addr()?.port())),
            Self::Unix(_) => Ok(None),
        }
    }

    /// Another descriptor of the same socket.
    #[cfg(feature = "postgres")]
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
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
