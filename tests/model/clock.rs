//! Time in the model: true time is a number of ticks. A host's clock shows something else. The store's is not modelled:
//! it keeps a lease for 13/12 of it, so however fast it is, it does not give the lease away before the tick [`LEASE`].

use leaderrun::internals::lease::{Timing, TimingRequest};
use leaderrun::internals::time::BootInstant;
use std::sync::LazyLock;
use std::time::Duration;

/// True time.
pub type Tick = u8;

/// The most that a process needs to be scheduled and a kill to be done: half of what [`Timing`] allows for both
/// together, so the margin that it computes just covers what can happen here.
pub const TICK: Duration = Duration::from_millis(300);

/// How long the store keeps a lease, at least.
pub const LEASE: Tick = 10;

/// Every part but the lease is a little less than a whole number of ticks, so that a clock that is a twelfth slow needs as
/// many ticks for it as an exact one. In ticks: renew 3, request timeout 2, grace 2; the stop signal 6 after the
/// renewal was sent, the guard's kill 8, the backstop's 9, and at 10 the store gives the lease away.
pub static TIMING: LazyLock<Timing> = LazyLock::new(|| {
    let timing = TimingRequest {
        lease: TICK * u32::from(LEASE),
        renew_interval: Duration::from_millis(820),
        retry_interval: Duration::from_millis(1200),
        stop_grace: Duration::from_millis(540),
        ..TimingRequest::default()
    };
    Timing { request_timeout: Duration::from_millis(540), ..Timing::new(timing).expect("there is room") }
});

/// `CLOCK_BOOTTIME` of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Clock {
    /// How fast it runs; 60 is as fast as true time, and a twelfth is 5.
    pub sixtieths: u64,
    /// What it shows at tick 0. No two hosts' clocks are alike.
    pub at_start: u64,
    /// Ticks through which it stood still: none, unless a mutant has it stop during suspends.
    pub stood: Tick,
}

impl Clock {
    pub fn at(self, tick: Tick) -> BootInstant {
        let nanos = u64::try_from(TICK.as_nanos()).expect("a tick is short");
        BootInstant::from_nanos(self.at_start + u64::from(tick - self.stood) * nanos * self.sixtieths / 60)
    }
}
