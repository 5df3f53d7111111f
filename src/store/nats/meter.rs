//! Limits on how much a server may send before its connection counts as broken.
//!
//! The hazard: the library keeps everything that a server sends until a message is whole, and no code of ours can come
//! between it and its socket. So its counter of bytes is read again and again. A thousand candidates that did this every
//! few milliseconds would take from a busy server on their machine the time that it needs to answer. A server that
//! sends is looked at often. One that is silent is looked at seldom, because what it sends next wakes the runtime, and
//! the counter is read then. Until it is connected the library counts nothing, so the memory of this process is watched
//! instead.

use super::failure::Trouble;
use crate::runtime;
use crate::store::allowance::{MOST_OF_NATS, complaint};
use crate::sys::page_size;
use async_nats::Statistics;
use std::fs::File;
use std::future::poll_fn;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

/// How often the counter is read while the server sends: if there is a request, and otherwise.
pub const BUSY_LOOK: Duration = Duration::from_millis(5);
pub const IDLE_LOOK: Duration = Duration::from_millis(100);
/// How often it is read at least, if the runtime tells that it wakes.
const SLEEPING_LOOK: Duration = Duration::from_secs(1);
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
        self.base.store(self.bytes_read(), Ordering::Relaxed);
    }

    /// Whether the server has sent too much. Then the connection counts as broken.
    pub fn is_exceeded(&self) -> bool {
        let read = self.bytes_read().saturating_sub(self.base.load(Ordering::Relaxed));
        if read > self.most.load(Ordering::Relaxed) as u64 && !self.exceeded.swap(true, Ordering::Relaxed) {
            self.told.send_modify(|trouble| trouble.broken = true);
        }
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Returns when the server has sent too much. Looks every `least` while it sends, and less and less often while it
    /// does not.
    pub async fn exceeded(&self, least: Duration) {
        let (mut look, mut read) = (least, self.bytes_read());
        while !self.is_exceeded() {
            runtime::woken(look).await;
            let most = if runtime::tells_that_it_wakes() { SLEEPING_LOOK } else { IDLE_LOOK };
            let before = std::mem::replace(&mut read, self.bytes_read());
            look = if read == before { (look * 2).min(most) } else { least };
        }
    }

    fn bytes_read(&self) -> u64 {
        self.statistics.in_bytes.load(Ordering::Relaxed)
    }
}

/// Runs `connecting`. None if this process needed too much memory meanwhile.
pub async fn in_moderation<T>(connecting: impl Future<Output = T>) -> Option<T> {
    let (mut connecting, memory) = (pin!(connecting), Memory::open());
    let before = memory.resident_bytes();
    poll_fn(|context| {
        // The library reads for a while and then yields. A buffer that has grown stays until it is dropped.
        if memory.resident_bytes().saturating_sub(before) > MOST_FOR_CONNECTING {
            return Poll::Ready(None);
        }
        connecting.as_mut().poll(context).map(Some)
    })
    .await
}

/// The memory of this process: proc_pid_statm(5).
struct Memory(Option<File>);

impl Memory {
    fn open() -> Self {
        Self(File::open("/proc/self/statm").ok())
    }

    /// Zero if the kernel does not show it.
    fn resident_bytes(&self) -> u64 {
        let mut text = [0; 128];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let pages =
            std::str::from_utf8(&text[..read]).ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        pages.unwrap_or(0) * page_size() as u64
    }
}
