//! The faults, and what must happen after each.
//!
//! The hazard: a fault that does not reach leaderrun proves nothing. So each ends with a check of what must follow:
//! another leader, or the same one undisturbed.

use super::evidence::TestError;
use super::fleet::Fleet;
use super::programs::STUBBORN;
use super::proxy::NetworkFault;
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
        let timing = fleet.setting.timing;
        let leader = fleet.leader().await?;
        let begun = BootInstant::now();
        let longer_than_the_lease =
            async || sleep((timing.lease * 5 / 4).saturating_sub(BootInstant::now().since(begun))).await;
        match self {
            Self::Stop => fleet.signal(&leader.owner, Signal::SIGTERM),
            Self::Kill => fleet.signal(&leader.owner, Signal::SIGKILL),
            Self::KillGuard => {
                let guard = fleet.guard_of(&leader.owner);
                let guard = guard.ok_or_else(|| TestError::Failed("the leader has no guard".to_owned()))?;
                // Even if the backstop has just reaped it, no other process has its number yet.
                kill(guard, Signal::SIGKILL).map_err(std::io::Error::from)?;
            }
            Self::Freeze | Self::Stubborn => {
                fleet.signal(&leader.owner, Signal::SIGSTOP);
                let next = if fleet.setting.expires { Some(fleet.successor(&leader).await?) } else { None };
                longer_than_the_lease().await;
                if next.is_none() {
                    fleet.undisturbed(&leader).await?;
                }
                fleet.signal(&leader.owner, Signal::SIGCONT);
                // The candidate that continues must not disturb the other one.
                sleep(timing.lease / 3).await;
                return match next {
                    Some(next) => fleet.still(&next).await,
                    None => fleet.undisturbed(&leader).await,
                };
            }
            Self::Slow => {
                // A quarter of the lease, or less if a request may not take twice that: some stores ask twice.
                fleet.set_all(NetworkFault::Slow((timing.lease / 4).min(timing.request_timeout / 2)));
                sleep(timing.lease * 2).await;
                fleet.set_all(NetworkFault::Fair);
                sleep(timing.lease / 2).await;
                return fleet.undisturbed(&leader).await;
            }
            Self::ShortPartition => {
                fleet.set(&leader.owner, NetworkFault::Partition);
                // Leaves a part of the outage that the timing allows to the renewal that follows.
                sleep((timing.lease / 4).min(timing.outage() * 3 / 4)).await;
                fleet.set(&leader.owner, NetworkFault::Fair);
                sleep(timing.lease).await;
                return fleet.undisturbed(&leader).await;
            }
            Self::Partition => {
                fleet.set(&leader.owner, NetworkFault::Partition);
                let next = match fleet.successor(&leader).await {
                    // Nobody took over, so the leader's renewals arrived.
                    Err(TestError::Failed(_)) if fleet.undisturbed(&leader).await.is_ok() => {
                        return Err(TestError::Impossible("its renewals reach the store without the proxy".to_owned()));
                    }
                    next => next?,
                };
                longer_than_the_lease().await;
                fleet.set(&leader.owner, NetworkFault::Fair);
                sleep(timing.lease / 3).await;
                return fleet.still(&next).await;
            }
            Self::Clock => {
                for seconds in [HOUR_IN_SECONDS, -HOUR_IN_SECONDS] {
                    fleet.set_wall_clock(&leader.owner, seconds)?;
                    sleep(timing.renew_interval * 2).await;
                }
                fleet.undisturbed(&leader).await?;
                fleet.signal(&leader.owner, Signal::SIGKILL);
            }
        }
        fleet.successor(&leader).await.map(drop)
    }
}
