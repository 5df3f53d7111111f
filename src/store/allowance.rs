//! How much a server may say.
//!
//! The hazard: what reads an answer waits for the end that was promised, and keeps what came until then. A server that
//! is broken, hostile, or no store at all promises gigabytes, or says things that nobody asked for, without end; a bound
//! on time alone lets in what fits through the network meanwhile. So every byte from a socket counts against an
//! allowance. A request that leaves, and an answer that is whole, begin it again: however long a connection lives, what
//! is kept for one answer is bounded. One whose allowance is used up reads nothing more, and is not used again.
//!
//! The bounds leave room for the largest answer of an honest server: one page of a list.

#![cfg_attr(
    not(all(feature = "dynamodb", feature = "redis", feature = "postgres", feature = "nats", feature = "etcd")),
    allow(dead_code, reason = "each store uses a part of it")
)]

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Some ten times a page: 250 items of DynamoDB or keys of etcd, 500 rows of PostgreSQL, each of some hundred bytes.
/// The records of others may be longer, and DynamoDB's pages of a megabyte grow as JSON.
pub const MOST: usize = 4 << 20;
/// Of Redis, some five times a page of 500 keys: its parser takes 56 bytes for a value that takes 3 on the wire.
pub const MOST_OF_REDIS: usize = 1 << 20;
/// Of NATS, a value in JSON: a server takes a megabyte by default.
pub const MOST_OF_NATS: usize = 2 << 20;
/// Of NATS, a page of the names of all keys: as large as the server likes, which is 100,000 of them.
pub const MOST_NAMES_OF_NATS: usize = 16 << 20;
/// A list may take any number of pages. So many shards, or standbys, are put together from them.
pub const MOST_LISTED: usize = 200_000;

/// What is left to be read on one connection. Its clones are the same one.
#[derive(Clone, Debug)]
pub struct Allowance {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    most: usize,
    taken: AtomicUsize,
    exceeded: AtomicBool,
}

impl Allowance {
    pub fn of(most: usize) -> Self {
        Self { shared: Arc::new(Shared { most, taken: AtomicUsize::new(0), exceeded: AtomicBool::new(false) }) }
    }

    /// From the beginning: a request leaves, or an answer is whole.
    pub fn begin_again(&self) {
        self.shared.taken.store(0, Ordering::Relaxed);
    }

    /// Once true it stays so.
    pub fn is_exceeded(&self) -> bool {
        self.shared.exceeded.load(Ordering::Relaxed)
    }

    /// False when this is too much.
    fn take(&self, bytes: usize) -> bool {
        let Shared { most, taken, exceeded } = &*self.shared;
        let total = taken.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if total > *most {
            exceeded.store(true, Ordering::Relaxed);
        }
        !self.is_exceeded()
    }

    /// Says of the server at `place` that it used up this allowance. `kind` is what it should be: `redis`.
    pub fn complaint(&self, place: &str, kind: &str) -> String {
        complaint(place, kind, self.shared.most)
    }
}

/// What is at the bottom of the error with which a bounded answer fails.
#[derive(Debug)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer is too long")
    }
}

impl std::error::Error for TooLong {}

pub fn complaint(place: &str, kind: &str, most: usize) -> String {
    format!("{place} answered with more than {} MiB: is it {kind}?", most >> 20)
}

/// A list that does not end.
pub fn too_long(place: &str) -> String {
    format!(
        "{place} lists more than {MOST_LISTED} shards or standbys: remove those that nobody uses, or ask for fewer by a \
         longer prefix where one can be named"
    )
}

/// A stream whose bytes count.
#[derive(Debug)]
pub struct Counted<S> {
    stream: S,
    allowance: Allowance,
}

impl<S> Counted<S> {
    pub fn new(stream: S, allowance: &Allowance) -> Self {
        Self { stream, allowance: allowance.clone() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        if self.allowance.take(read) {
            return Poll::Ready(Ok(()));
        }
        buffer.set_filled(before);
        Poll::Ready(Err(io::Error::other(TooLong)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
