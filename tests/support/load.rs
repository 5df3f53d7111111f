//! A machine that is busy with other work. One load runs at a time, because the tests beside it are not its target.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Ends when it is dropped.
pub struct Load {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _alone: MutexGuard<'static, ()>,
}

impl Load {
    /// As many threads as there are processors, which never wait.
    pub fn of_processors() -> Self {
        let count = thread::available_parallelism().map_or(2, usize::from);
        Self::begin(count, || (0..1000).for_each(|_| spin_loop()))
    }

    /// Memory that is taken, written to and given back again and again: a quarter of what there is, and never more
    /// than a gigabyte.
    pub fn of_memory() -> Self {
        let size = (available_memory() / 4).min(1 << 30);
        Self::begin(1, move || {
            let mut memory = vec![0_u8; size];
            memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            black_box(&memory);
        })
    }

    fn begin(count: usize, work: impl Fn() + Send + Clone + 'static) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let over = Arc::new(AtomicBool::new(false));
        let threads = (0..count).map(|_| {
            let (over, work) = (Arc::clone(&over), work.clone());
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    work();
                }
            })
        });
        Self { threads: threads.collect(), over, _alone: alone }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// In bytes.
fn available_memory() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc is mounted");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("Linux says so");
    let number = line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number");
    number * 1024
}
