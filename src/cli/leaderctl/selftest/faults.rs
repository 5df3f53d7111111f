//! The faults, and what must happen after each.
//!
//! The hazard: a fault that does not reach leaderrun proves nothing. So each ends with a check of what must follow:
//! another leader, or the same one undisturbed.

use super::evidence::TestError;
use super::fleet::Fleet;
use super::programs::STUBBORN;
use super::proxy::NetworkFault;
use crate::lease::Timing;
use crate::time::BootInstant;
use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use tokio::time::sleep;

const HOUR_IN_SECONDS: i64 = 3600;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// The leader is asked to stop
    Stop,
    /// The leader's leaderrun is killed
    Kill,
    /// The leader's guard is killed
    KillGuard,
    /// The leader's leaderrun is frozen for longer than the lease
    Freeze,
    /// The same, with a COMMAND that ignores SIGTERM
    Stubborn,
    /// Each answer of the store takes a quarter of the lease
    Slow,
    /// The leader is cut off for a moment
    ShortPartition,
    /// The leader is cut off for longer than the lease
    Partition,
    /// The leader's wall clock is set an hour forward, then back
    Clock,
}

impl Fault {
    pub fn name(self) -> String {
        self.to_possible_value().expect("none is skipped").get_name().to_owned()
    }

    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::KillGuard | Self::Stubborn => &[STUBBORN],
            _ => &[],
        }
    }

    pub async fn happen(self, fleet: &mut Fleet<'_>) -> Result<(), TestError> {
        match self {
            Self::Stop => leader_is_sent(Signal::SIGTERM, fleet).await,
            Self::Kill => leader_is_sent(Signal::SIGKILL, fleet).await,
            Self::KillGuard => guard_is_killed(fleet).await,
            Self::Freeze | Self::Stubborn => leader_is_frozen(fleet).await,
            Self::Slow => every_answer_is_slow(fleet).await,
            Self::ShortPartition => leader_is_cut_off_for_a_moment(fleet).await,
            Self::Partition => leader_is_cut_off(fleet).await,
            Self::Clock => wall_clock_is_set(fleet).await,
        }
    }
}

async fn leader_is_sent(signal: Signal, fleet: &mut Fleet<'_>) -> Result<(), TestError> {
    let leader = fleet.leader().await?;
    fleet.signal(&leader.owner, signal);
    fleet.successor(&leader).await.map(drop)
}

async fn guard_is_killed(fleet: &mut Fleet<'_>) -> Result<(), TestError> {
    let leader = fleet.leader().await?;
    let guard = fleet.guard_of(&leader.owner);
    let guard = guard.ok_or_else(|| TestError::Failed("the leader has no guard".to_owned()))?;
    // Even if the backstop has just reaped it, no other process has its number yet.
    kill(guard, Signal::SIGKILL).map_err(std::io::Error::from)?;
    fleet.successor(&leader).await.map(drop)
}

async fn leader_is_frozen(fleet: &mut Fleet<'_>) -> Result<(), TestError> {
    let leader = fleet.leader().await?;
    let begun = BootInstant::now();
    fleet.signal(&leader.owner, Signal::SIGSTOP);
    if !fleet.setting.expires {
        longer_than_the_lease(begun, fleet).await;
        fleet.undisturbed(&leader).await?;
        fleet.signal(&leader.owner, Signal::SIGCONT);
        sleep(fleet.setting.timing.lease / 3).await;
        return fleet.undisturbed(&leader).await;
    }
    let next = fleet.successor(&leader).await?;
    longer_than_the_lease(begun, fleet).await;
    fleet.signal(&leader.owner, Signal::SIGCONT);
    // The candidate that continues must not disturb the other one.
    sleep(fleet.setting.timing.lease / 3).await;
    fleet.still(&next).await
}

async fn longer_than_the_lease(begun: BootInstant, fleet: &Fleet<'_>) {
    let rest = (fleet.setting.timing.lease * 5 / 4).saturating_sub(BootInstant::now().since(begun));
    sleep(rest).await;
}

async fn every_answer_is_slow(fleet: &mut Fleet<'_>) -> Result<(), TestError> {
    let Timing { lease, request_timeout, .. } = fleet.setting.timing;
    let leader = fleet.leader().await?;
    // A quarter of the lease, or less if a request may not take twice that: some stores ask twice.
    fleet.set_all(NetworkFault::Slow((lease / 4).min(request_timeout / 2)));
    sleep(lease * 2).await;
    fleet.set_all(NetworkFault::Fair);
    sleep(lease / 2).await;
    fleet.undisturbed(&leader).await
}

async fn leader_is_cut_off_for_a_moment(fleet: &mut Fleet<'_>) -> Result<(), TestError> {
    let timing = fleet.setting.timing;
    let leader = fleet.leader().await?;
    fleet.set(&leader.owner, NetworkFault::Partition);
    // Leaves a part of the outage that the timing allows to the renewal that follows.
    sleep((timing.lease / 4).min(timing.outage() * 3 / 4)).await;
    fleet.set(&leader.owner, NetworkFault::Fair);
    sleep(timing.lease).await;
    fleet.undisturbed(&leader).await
}

async fn leader_is_cut_off(fleet: &mut Fleet<'_>) -> Result<(), TestError> {
    let leader = fleet.leader().await?;
    let begun = BootInstant::now();
    fleet.set(&leader.owner, NetworkFault::Partition);
    let next = match fleet.successor(&leader).await {
        // Nobody took over, so the leader's renewals arrived.
        Err(TestError::Failed(_)) if fleet.undisturbed(&leader).await.is_ok() => {
            return Err(TestError::Impossible("its renewals reach the store without the proxy".to_owned()));
        }
        next => next?,
    };
    longer_than_the_lease(begun, fleet).await;
    fleet.set(&leader.owner, NetworkFault::Fair);
    sleep(fleet.setting.timing.lease / 3).await;
    fleet.still(&next).await
}

async fn wall_clock_is_set(fleet: &mut Fleet<'_>) -> Result<(), TestError> {
    let leader = fleet.leader().await?;
    for seconds in [HOUR_IN_SECONDS, -HOUR_IN_SECONDS] {
        fleet.set_wall_clock(&leader.owner, seconds)?;
        sleep(fleet.setting.timing.renew_interval * 2).await;
    }
    fleet.undisturbed(&leader).await?;
    fleet.signal(&leader.owner, Signal::SIGKILL);
    fleet.successor(&leader).await.map(drop)
}
