//! Limits on how much a server may send before its connection counts as broken.
//!
//! The hazard: the library keeps everything that a server sends until a message is whole, and no code of ours can come
//! between it and its socket. So its counter of bytes is read every few milliseconds while a request is under way, and
//! a few times a second otherwise. Until it is connected the library counts nothing, so the memory of this process is
//! watched instead.

use super::failure::Trouble;
use crate::store::allowance::{MOST_OF_NATS, complaint};
use async_nats::Statistics;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

/// How often the counter is read: while there is a request, and otherwise.
pub const BUSY_LOOK: Duration = Duration::from_millis(5);
pub const IDLE_LOOK: Duration = Duration::from_millis(100);
/// The memory for connecting: a few kilobytes, and a few megabytes if the system's authorities are read.
const MOST_FOR_CONNECTING: u64 = 8 << 20;

/// Counts the bytes that were read since a request was sent, or a message arrived.
pub struct Meter {
    statistics: Arc<Statistics>,
    told: Arc<watch::Sender<Trouble>>,
    /// The library's counter at that time.
    base: AtomicU64,
    most: AtomicUsize,
    exceeded: AtomicBool,
}

impl Meter {
    pub fn new(statistics: Arc<Statistics>, told: Arc<watch::Sender<Trouble>>) -> Self {
        let meter = Self {
            statistics,
            told,
            base: AtomicU64::new(0),
            most: AtomicUsize::new(MOST_OF_NATS),
            exceeded: AtomicBool::new(false),
        };
        meter.begin_again(MOST_OF_NATS);
        meter
    }

    /// The message about a server that used up its allowance.
    pub fn complaint(&self, server: &str) -> String {
        complaint(server, "nats", self.most.load(Ordering::Relaxed))
    }

    pub fn begin_again(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
        self.base.store(self.statistics.in_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether the server has sent too much. Then the connection counts as broken.
    pub fn is_exceeded(&self) -> bool {
        let read = self.statistics.in_bytes.load(Ordering::Relaxed).saturating_sub(self.base.load(Ordering::Relaxed));
        if read > self.most.load(Ordering::Relaxed) as u64 && !self.exceeded.swap(true, Ordering::Relaxed) {
            self.told.send_modify(|trouble| trouble.broken = true);
        }
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Returns when the server has sent too much.
    pub async fn exceeded(&self, look: Duration) {
        while !self.is_exceeded() {
            tokio::time::sleep(look).await;
        }
    }
}

/// Runs `connecting`. None if this process needed too much memory meanwhile.
pub async fn in_moderation<T>(connecting: impl Future<Output = T>) -> Option<T> {
    let (mut connecting, before) = (pin!(connecting), resident_bytes());
    poll_fn(|context| {
        // The library reads for a while and then yields. A buffer that has grown stays until it is dropped.
        if resident_bytes().saturating_sub(before) > MOST_FOR_CONNECTING {
            return Poll::Ready(None);
        }
        connecting.as_mut().poll(context).map(Some)
    })
    .await
}

/// The memory of this process. Zero if the kernel does not show it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kilobytes.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).map_or(0, |kilobytes| kilobytes << 10)
}
