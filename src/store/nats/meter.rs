//! How much a server may say before its connection counts as broken.
//!
//! The hazard: the library keeps what a server says until it is whole, and lets nobody come between it and its socket. So
//! its counter of bytes is read every few milliseconds while a request is under way, and a few times a second otherwise.
//! Until it is connected the library counts nothing, so the memory of this process is watched instead.

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

/// How often what was read is looked at: while there is a request, and else.
pub const BUSY_LOOK: Duration = Duration::from_millis(5);
pub const IDLE_LOOK: Duration = Duration::from_millis(100);
/// To be connected takes a few kilobytes, and a few megabytes where the system's authorities are read.
const MOST_FOR_CONNECTING: u64 = 8 << 20;

/// How much was read since a request was sent, or something was heard.
pub struct Meter {
    statistics: Arc<Statistics>,
    told: Arc<watch::Sender<Trouble>>,
    /// What had been read then.
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

    /// What is wrong with a server that used it up.
    pub fn complaint(&self, server: &str) -> String {
        complaint(server, "nats", self.most.load(Ordering::Relaxed))
    }

    pub fn begin_again(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
        self.base.store(self.statistics.in_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether it is too much. Then the connection counts as broken.
    pub fn is_exceeded(&self) -> bool {
        let read = self.statistics.in_bytes.load(Ordering::Relaxed).saturating_sub(self.base.load(Ordering::Relaxed));
        if read > self.most.load(Ordering::Relaxed) as u64 && !self.exceeded.swap(true, Ordering::Relaxed) {
            self.told.send_modify(|trouble| trouble.broken = true);
        }
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Returns when it is too much.
    pub async fn exceeded(&self, look: Duration) {
        while !self.is_exceeded() {
            tokio::time::sleep(look).await;
        }
    }
}

/// None when this process took much memory meanwhile.
pub async fn in_moderation<T>(connecting: impl Future<Output = T>) -> Option<T> {
    let (mut connecting, before) = (pin!(connecting), resident_bytes());
    poll_fn(|context| {
        // The library reads for a while, and lets others have their turn. A grown buffer stays until it is dropped.
        if resident_bytes().saturating_sub(before) > MOST_FOR_CONNECTING {
            return Poll::Ready(None);
        }
        connecting.as_mut().poll(context).map(Some)
    })
    .await
}

/// Zero where it is not told.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kilobytes.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).map_or(0, |kilobytes| kilobytes << 10)
}
