//! Time: one true time, which tokio's paused clock turns, and what each host's clock makes of it.
//!
//! The hazard: code of one host that reads another host's clock would never be wrong about the time. So a process is
//! polled only through [`Process::run`], which says whose clock is read meanwhile; and what is polled by nobody's
//! process reads the true time.

use crate::random::Random;
use leaderrun::internals::time::{BootInstant, simulate};
use std::cell::Cell;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// What a host's clocks show.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Of the boot clock, when the true time is zero.
    pub offset: Duration,
    /// By how many millionths it is too fast.
    pub ppm: i64,
    /// What the wall clock shows when the true time is zero, in milliseconds since 1970.
    pub wall_millis: u64,
}

/// Milliseconds since 1970 when the true time is zero.
pub const EPOCH_MILLIS: u64 = 1_800_000_000_000;

/// True time.
pub const TRUE: Clock = Clock { offset: Duration::ZERO, ppm: 0, wall_millis: EPOCH_MILLIS };

/// How fast or slow a clock may be, in millionths: a twelfth, which is the most that chrony slews by.
const MOST_PPM: i64 = 83_333;

thread_local! {
    static BEGIN: Cell<Option<tokio::time::Instant>> = const { Cell::new(None) };
    static HERE: Cell<Clock> = const { Cell::new(TRUE) };
    static STORE: Cell<Clock> = const { Cell::new(TRUE) };
}

/// The true time of this thread's simulation begins.
pub fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| simulate(|| HERE.get().now(), wall_clock_millis));
    BEGIN.set(Some(tokio::time::Instant::now()));
    HERE.set(TRUE);
    STORE.set(TRUE);
}

/// From now on the store's clock, by which everything is judged, runs at this rate.
pub fn slew_the_store(ppm: i64) {
    STORE.set(Clock { ppm, ..TRUE });
}

/// A rate: as slow or as fast as one may be, or something between.
pub fn any_rate(random: &mut Random) -> i64 {
    let between = i64::try_from(random.between(0, 2 * MOST_PPM.unsigned_abs())).expect("small") - MOST_PPM;
    random.one_of(&[-MOST_PPM, MOST_PPM, between])
}

/// The true time.
pub fn elapsed() -> Duration {
    BEGIN.get().expect("a simulation has begun").elapsed()
}

/// The wall clock of the task that is being polled, in milliseconds since 1970.
fn wall_clock_millis() -> u64 {
    HERE.get().wall_clock_millis()
}

/// The store's own clock, in milliseconds since 1970.
pub fn store_millis() -> u64 {
    STORE.get().wall_clock_millis()
}

/// Does something by the store's clock.
pub fn by_the_stores_clock<T>(act: impl FnOnce() -> T) -> T {
    let here = HERE.replace(STORE.get());
    let done = act();
    HERE.set(here);
    done
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).expect("not so long")
}

impl Clock {
    /// What it has counted since the true time was zero.
    fn own(self) -> Duration {
        let own = nanos(elapsed()) * (1_000_000 + i128::from(self.ppm)) / 1_000_000;
        Duration::from_nanos(u64::try_from(own).expect("after the beginning"))
    }

    pub fn now(self) -> BootInstant {
        BootInstant::from_nanos(0).plus(self.offset + self.own())
    }

    fn wall_clock_millis(self) -> u64 {
        self.wall_millis + u64::try_from(self.own().as_millis()).expect("not so long")
    }

    /// Returns once this clock shows `instant`.
    pub async fn reaches(self, instant: BootInstant) {
        if instant == BootInstant::NEVER {
            return std::future::pending().await;
        }
        while self.now() < instant {
            let left = nanos(instant.since(self.now())) * 1_000_000 / (1_000_000 + i128::from(self.ppm)) + 1;
            tokio::time::sleep(Duration::from_nanos(u64::try_from(left).expect("not so long"))).await;
        }
    }
}

/// A process, or a part of one. It may be held (stopped, or its host suspended) and killed.
#[derive(Clone)]
pub struct Process {
    pub clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// How many reasons there are why it does not run.
    holds: u32,
    killed: bool,
    wakers: Vec<Waker>,
}

impl Process {
    pub fn new(clock: Clock) -> Self {
        Self { clock, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked")
    }

    pub fn hold(&self) {
        self.state().holds += 1;
    }

    pub fn let_go(&self) {
        let mut state = self.state();
        state.holds -= 1;
        if state.holds == 0 {
            state.wake();
        }
    }

    /// SIGKILL: what it runs ends, unfinished.
    pub fn kill(&self) {
        let mut state = self.state();
        state.killed = true;
        state.wake();
    }

    pub fn is_killed(&self) -> bool {
        self.state().killed
    }

    pub fn is_held(&self) -> bool {
        self.state().holds > 0
    }

    /// Some once it has run to its end, None once it was killed.
    pub fn run<F: Future + Send>(&self, future: F) -> Run<F> {
        Run { process: self.clone(), future: Some(Box::pin(future)) }
    }
}

impl State {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

pub struct Run<F> {
    process: Process,
    /// None once the process was killed: what it had open is closed.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Run<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let process = self.process.clone();
        let mut state = process.state();
        if state.killed {
            drop(state);
            self.future = None;
            return Poll::Ready(None);
        }
        // It may be killed or let go at any time, whatever else it waits for.
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        let held = state.holds > 0;
        drop(state);
        if held {
            return Poll::Pending;
        }
        let here = HERE.replace(self.process.clock);
        let polled = self.future.as_mut().expect("it was not killed").as_mut().poll(context);
        HERE.set(here);
        polled.map(Some)
    }
}
