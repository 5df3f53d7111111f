//! Rotation: when a leader gives the lease up by itself at recurring times, by the wall clock.
//!
//! The hazard: wall clocks are set, and a sleep does not count time in suspend. So the wait for a scheduled time reads
//! the wall clock again and again, and looks up the next time each time. Nothing here decides about a lease. A plain
//! duration needs no wall clock: the election counts it.

use crate::time::wall_clock_millis;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The longest delay with which a scheduled time is noticed.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Recurring times. Says which comes first after an instant, both in milliseconds since 1970.
#[derive(Clone)]
pub struct Schedule(Arc<dyn Fn(u64) -> Option<u64> + Send + Sync>);

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schedule").field(&self.next(0)).finish()
    }
}

impl Schedule {
    pub fn new(next: impl Fn(u64) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self(Arc::new(next))
    }

    pub fn next(&self, millis: u64) -> Option<u64> {
        (self.0)(millis)
    }

    pub async fn comes(self) {
        self.comes_by(wall_clock_millis).await;
    }

    async fn comes_by(self, clock: impl Fn() -> u64) {
        let mut due = self.next(clock());
        loop {
            let now = clock();
            if due.is_some_and(|due| now >= due) {
                return;
            }
            // If the clock was wrong at the start and is set back, this must not wait for years.
            due = due.into_iter().chain(self.next(now)).min();
            let left = due.map_or(LOOK_AGAIN, |due| Duration::from_millis(due.saturating_sub(now)));
            tokio::time::sleep(left.clamp(Duration::from_millis(1), LOOK_AGAIN)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::millis_of_rfc3339;
    use std::sync::atomic::{AtomicU64, Ordering};

    const DAY: u64 = 86_400_000;

    fn daily() -> Schedule {
        Schedule::new(|millis| Some((millis / DAY + 1) * DAY))
    }

    fn at(text: &str) -> u64 {
        millis_of_rfc3339(text).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_the_wall_clock_are_followed() {
        static SET_BACK: AtomicU64 = AtomicU64::new(0);
        static LEAPT: AtomicU64 = AtomicU64::new(0);
        let started = tokio::time::Instant::now();
        let clock = |offset: &'static AtomicU64| {
            move || offset.load(Ordering::Relaxed) + u64::try_from(started.elapsed().as_millis()).unwrap()
        };
        SET_BACK.store(at("2046-01-01T00:30:00Z"), Ordering::Relaxed);
        let waits = tokio::spawn(daily().comes_by(clock(&SET_BACK)));
        tokio::time::sleep(Duration::from_secs(5)).await;
        SET_BACK.store(at("2026-01-01T23:58:00Z"), Ordering::Relaxed);
        waits.await.unwrap();
        assert!((115..=121).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());

        LEAPT.store(at("2026-01-01T00:30:00Z"), Ordering::Relaxed);
        let begun = started.elapsed();
        let waits = tokio::spawn(daily().comes_by(clock(&LEAPT)));
        tokio::time::sleep(Duration::from_secs(5)).await;
        LEAPT.store(at("2026-01-05T12:00:00Z"), Ordering::Relaxed);
        waits.await.unwrap();
        assert!(started.elapsed() - begun <= LOOK_AGAIN, "{:?}", started.elapsed());
    }
}
