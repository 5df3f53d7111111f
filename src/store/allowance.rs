//! Limits on how much a server may send.
//!
//! The hazard: a reader waits for the end that an answer announced, and keeps in memory what arrives until then. A
//! server that is broken, hostile, or not a store at all may announce gigabytes, or send unrequested data without end.
//! A bound on time alone still lets in everything that the network can carry in that time. So every byte from a socket
//! counts, from the last time that something was sent to the server: however long a connection lives, the memory for
//! one answer is bounded. A connection that has read too much reads no more, and is not used again.
//!
//! The limit leaves room for the largest answer of an honest server, which is one page of a list.

use super::StoreError;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes since the last request: many times the longest page of a list, which has 250 to 1,000 entries, most
/// of them of a few hundred bytes. Records of other programs may be longer, and a DynamoDB page of a megabyte grows
/// when it is written as JSON.
pub const MOST: usize = 16 << 20;
/// For Redis: its parser takes 56 bytes for a value that takes 3 on the wire.
pub const MOST_OF_REDIS: usize = 1 << 20;
/// The most shards, or standbys, that a list collects: it could have any number of pages.
const MOST_LISTED: usize = 200_000;

/// The bytes that may be read on one connection. Clones share the count.
#[derive(Clone, Debug)]
pub struct Allowance {
    most: usize,
    taken: Arc<AtomicUsize>,
}

impl Allowance {
    pub fn of(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// Resets the allowance, because something is sent. One that was exceeded stays exceeded.
    pub fn begin_again(&self) {
        let _ =
            self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| (taken <= self.most).then_some(0));
    }

    pub fn is_exceeded(&self) -> bool {
        self.taken.load(Ordering::Relaxed) > self.most
    }
}

/// The innermost cause of the error when an answer exceeds its allowance.
#[derive(Debug)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer has no end")
    }
}

impl std::error::Error for TooLong {}

pub fn complaint(place: &str, kind: &str, most: usize) -> String {
    format!("{place} answered with more than {} MiB: is it {kind}?", most >> 20)
}

/// Fails where a list has collected more than that.
pub fn listed(count: usize, place: &str) -> Result<(), StoreError> {
    if count <= MOST_LISTED {
        return Ok(());
    }
    Err(StoreError::misconfigured(format!(
        "{place} lists more than {MOST_LISTED} shards or standbys: remove those that nobody uses, or ask for fewer by \
         a longer prefix where one can be named"
    )))
}

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
        self.allowance.taken.fetch_add(read, Ordering::Relaxed);
        if !self.allowance.is_exceeded() {
            return Poll::Ready(Ok(()));
        }
        buffer.set_filled(before);
        Poll::Ready(Err(io::Error::other(TooLong)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.allowance.begin_again();
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
