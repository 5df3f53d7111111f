//! Limits on how much a server may send before its connection counts as broken.
//!
//! The hazard: the library keeps everything that a server sends until a message is whole, and no code of ours can come
//! between it and its socket. So its counter of bytes is read again and again, often while the server sends, and seldom
//! while it is silent: what it sends next wakes the runtime, and the counter is read then. Until it is connected the
//! library counts nothing, so the memory of this process is watched instead.

use crate::runtime;
use crate::store::allowance::MOST;
use crate::sys::page_size;
use async_nats::Statistics;
use std::fs;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

const LEAST_LOOK: Duration = Duration::from_millis(20);
const MOST_LOOK: Duration = Duration::from_secs(1);

/// Counts the bytes that were read since a request was sent, or a message arrived.
pub struct Meter {
    statistics: Arc<Statistics>,
    /// The library's counter at that time.
    base: AtomicU64,
}

impl Meter {
    pub fn new(statistics: Arc<Statistics>) -> Self {
        Self { statistics, base: AtomicU64::new(0) }
    }

    /// A whole message has arrived, or something is sent.
    pub fn begin_again(&self) {
        self.base.store(self.bytes_read(), Ordering::Relaxed);
    }

    /// Returns when the server has sent too much.
    pub async fn exceeded(&self) {
        let (mut look, mut read) = (LEAST_LOOK, self.bytes_read());
        while read.saturating_sub(self.base.load(Ordering::Relaxed)) <= MOST as u64 {
            runtime::woken(look).await;
            let before = std::mem::replace(&mut read, self.bytes_read());
            look = if read == before { (look * 2).min(MOST_LOOK) } else { LEAST_LOOK };
        }
    }

    fn bytes_read(&self) -> u64 {
        self.statistics.in_bytes.load(Ordering::Relaxed)
    }
}

/// Runs `connecting`. None if this process needed too much memory meanwhile.
pub async fn within_memory_limit<T>(connecting: impl Future<Output = T>) -> Option<T> {
    let (mut connecting, before) = (pin!(connecting), resident_bytes());
    poll_fn(|context| {
        // The library reads for a while and then yields. A buffer that has grown stays until it is dropped. With an
        // honest server it takes a few kilobytes, and the system's authorities some megabytes; other threads take
        // memory too.
        if resident_bytes().saturating_sub(before) > MOST {
            return Poll::Ready(None);
        }
        connecting.as_mut().poll(context).map(Some)
    })
    .await
}

/// The memory of this process (proc_pid_statm(5)); zero if the kernel does not show it.
fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * page_size()
}
