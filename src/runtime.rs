//! The runtime of an election: one thread, which tells those who ask that it has slept and woken.
//!
//! The hazard: a library (async-nats) counts the bytes that it reads, and reports no change of the count, which must be
//! noticed soon. To look on a timer would wake the thread many times a second, for ever, in each of a thousand
//! processes. But while nothing arrives the thread sleeps, so it is enough to look when it wakes.
//!
//! Another hazard: host names are looked up in a second thread, and tokio panics if it has none and cannot start one. By
//! then COMMAND may have used up all threads of our user. So that thread is kept once it is there, and is tried before.

#![cfg_attr(not(feature = "nats"), allow(dead_code, reason = "other stores notice all they need by themselves"))]

use std::cell::OnceCell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::sleep;

/// How long a thread that has looked up a host name is kept for the next one.
const FOR_EVER: Duration = Duration::from_hours(1_000_000);

/// How many times to look, a millisecond apart, whether the kernel still counts a joined thread. It does for some
/// 0.01 ms, and for longer where much else runs.
const MOST_LOOKS: u32 = 100;

thread_local! {
    /// Some in a thread whose runtime has woken before, and tells it.
    static WAKING: OnceCell<Arc<Notify>> = const { OnceCell::new() };
}

/// A runtime whose tasks run in the thread that blocks on it.
pub fn of_one_thread() -> Builder {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().on_thread_unpark(|| WAKING.with(|waking| waking.get_or_init(Arc::default).notify_waiters()));
    builder.thread_keep_alive(FOR_EVER);
    builder
}

/// Checks that a thread can be started.
pub fn check_threads() -> Result<(), String> {
    let before = threads();
    let started = thread::Builder::new().spawn(|| ());
    let ended = started.map(thread::JoinHandle::join);
    ended.map_err(|error| format!("a thread is needed: {error}: raise the limit (ulimit -u, ulimit -v)"))?.ok();
    // The kernel counts a thread for a moment after it was joined. Under a limit the next one would be refused.
    for _ in 0..MOST_LOOKS {
        if threads() <= before {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Our threads; None if /proc does not tell.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// Returns when the runtime of this thread has slept and woken, if it tells that; after `most` in any case.
pub async fn woken(most: Duration) {
    let waking = WAKING.with(|waking| waking.get().cloned());
    tokio::select! {
        () = async { waking.as_ref().expect("it is there").notified().await }, if waking.is_some() => {}
        () = sleep(most) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    const FOR_EVER: Duration = Duration::from_hours(1);

    #[test]
    fn a_runtime_that_slept_tells_it_and_one_that_only_works_does_not() {
        let runtime = of_one_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            sleep(Duration::from_millis(1)).await;
            let woken_once = Rc::new(Cell::new(false));
            let told = Rc::clone(&woken_once);
            let waiting = spawn_local(async move {
                woken(FOR_EVER).await;
                told.set(true);
            });
            for _ in 0..10 {
                yield_now().await;
            }
            assert!(!woken_once.get(), "it has not slept");
            sleep(Duration::from_millis(1)).await;
            waiting.await.unwrap();
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_tells_nothing_is_waited_for_no_longer_than_asked() {
        woken(FOR_EVER).await;
    }
}
